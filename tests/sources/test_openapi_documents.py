"""How a document is read: versions, files, references, names, which operations, and within which bounds."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from openapi_wire import document, imported, one, operation, properties, with_body

from ferrule import DefinitionError
from ferrule.openapi.document import Document, Node, _from_yaml
from ferrule.openapi.schemas import MOST_NODES, Schemas
from ferrule.sources import openapi
from ferrule.values.frozen import thaw

TEXT = {"type": "string"}


def schema_of(given: Any, name: str = "op", **options: Any) -> dict[str, Any]:
    """The input schema of a tool of the document."""
    found = imported(given, **options)
    assert name in found, str(found.report)
    return thaw(found.get(name).input_schema)  # type: ignore[no-any-return]


def with_schema(schema: Any, **components: Any) -> dict[str, Any]:
    """A document whose operation takes a `body` of this schema."""
    return {**with_body("application/json", {"allOf": [schema]}), "components": {"schemas": components}}


def converted(schema: Any, minor: int = 1, **components: Any) -> dict[str, Any]:
    """A schema as JSON Schema 2020-12."""
    whole = document({}, f"3.{minor}.0", components={"schemas": components})
    [found], defs = Schemas(Document(whole, ())).bundle(Node(schema, ""))
    return {**found, "$defs": defs} if defs else found  # type: ignore[no-any-return]


def reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


# -- documents ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["3.0.4", "3.2", "3.1.0-rc1"])
def test_these_versions_are_read(version: str) -> None:
    assert len(imported(document({"/x": {"get": operation()}}, version))) == 1


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"swagger": "2.0"}, "is Swagger 2.0"),
        ({"openapi": "4.0.0"}, "its 'openapi' is '4.0.0'"),
        ({}, "its 'openapi' is None"),
        ({"openapi": "3.1.0"}, "has no 'paths'"),
        (b"{}", "must be a file or a mapping, not a bytes"),
        ("nowhere.yaml", "nowhere.yaml cannot be read"),
    ],
)
def test_an_invalid_document_is_an_error_that_says_why(given: Any, why: str) -> None:
    with pytest.raises(DefinitionError) as raised:
        imported(given)
    assert why in str(raised.value)


def test_yaml_and_json_are_read_alike(tmp_path: Path) -> None:
    given = one("get", {"in": "query", "name": "on", "schema": {"enum": ["no", "2026-01-01"]}})
    texts = {"a.json": json.dumps(given), "a.yaml": yaml.safe_dump(given), "b": "\ufeff" + json.dumps(given)}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert schema_of(tmp_path / name)["properties"] == {"on": {"enum": ["no", "2026-01-01"]}}


# -- references --------------------------------------------------------------------------------------------------------


def test_plain_scalars_of_yaml_become_values_of_json() -> None:
    text = b"a: no\nb: 2026-01-01\n200: {x: 1.50, y: 007, z: 1e3, n: ~, e: , t: true, s: 1:30}\nd: {<<: 1}"
    assert _from_yaml(text) == {
        "a": "no",
        "b": "2026-01-01",
        "200": {"x": 1.5, "y": "007", "z": 1000.0, "n": None, "e": None, "t": True, "s": "1:30"},
        "d": {"<<": 1},
    }


def test_references_within_the_document_are_followed() -> None:
    parameter, body = {"$ref": "#/components/parameters/P"}, {"$ref": "#/components/requestBodies/B"}
    tree = {"type": "object", "properties": {"kids": {"type": "array", "items": reference("Tree")}}}
    components = {
        "pathItems": {"X": {"post": operation(parameter, requestBody=body)}},
        "parameters": {
            "P": {"$ref": "#/components/parameters/Q"},
            "Q": {"in": "query", "name": "q", "schema": reference("a~1b%20c")},
        },
        "requestBodies": {"B": {"content": {"application/json": {"schema": reference("Tree")}}}},
        "schemas": {"a/b c": {"type": "integer"}, "Tree": tree},
    }
    found = schema_of(document({"/x": {"$ref": "#/components/pathItems/X"}}, components=components))
    validator = jsonschema_rs.validator_for(found)
    assert validator.is_valid({"q": 1, "kids": [{"kids": [{}]}]})
    assert not validator.is_valid({"q": "one"}) and not validator.is_valid({"kids": [{"kids": [1]}]})


def test_other_files_are_read_from_the_roots_alone(tmp_path: Path) -> None:
    inside = tmp_path / "specs"
    (inside / "models").mkdir(parents=True)
    (tmp_path / "secret.yaml").write_text("S: {type: string}")
    (inside / "models" / "pet.yaml").write_text(
        "Pet: {type: object, properties: {up: {$ref: '../api.yaml#/components/schemas/Up'}, me: {$ref: '#/Pet'}}}"
    )
    body = {"content": {"application/json": {"schema": {"$ref": "models/pet.yaml#/Pet"}}}}
    (inside / "paths.json").write_text(json.dumps({"x": {"post": operation(requestBody=body)}}))
    paths = {"/x": {"$ref": "paths.json#/x"}, "/s": {"$ref": "../secret.yaml#/S"}}
    (inside / "api.yaml").write_text(yaml.safe_dump(document(paths, components={"schemas": {"Up": TEXT}})))
    tools = imported(inside / "api.yaml", roots=inside)
    [tool] = tools
    validator = jsonschema_rs.validator_for(thaw(tool.input_schema))
    assert validator.is_valid({"up": "a", "me": {"up": "b"}}) and not validator.is_valid({"me": {"up": 1}})
    assert "is in none of the folders" in str(tools.report.left_out[0])
    without = imported(inside / "api.yaml")
    assert not without and "name the folder of the files, roots=[…]" in str(without.report)
    (inside / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    linked = document({"/s": {"$ref": "link.yaml#/S"}})
    assert "is in none of the folders" in str(imported(linked, roots=[inside]).report)


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("#/components/schemas/None", "it leads nowhere"),
        ("https://example.com/pet.yaml", "Ferrule fetches nothing"),
        ("file:///etc/passwd", "it is in another file"),
        (7, "is not a reference"),
    ],
)
def test_a_broken_reference_leaves_its_operation_out_and_no_other(target: Any, why: str) -> None:
    given = with_schema({"$ref": target})
    given["paths"]["/y"] = {"get": {**operation(), "operationId": "good"}}
    tools = imported(given)
    assert [tool.name for tool in tools] == ["good"]
    assert tools.report.left_out[0].item == "POST /x" and why in tools.report.left_out[0].reason


def test_circular_references_end() -> None:
    tools = imported(with_schema(reference("A"), A=reference("B"), B=reference("A")))
    assert "more than 20 references" in str(tools.report)
    parameters = {"A": {"$ref": "#/components/parameters/B"}, "B": {"$ref": "#/components/parameters/A"}}
    given = {**one("get", parameters["B"]), "components": {"parameters": parameters}}
    assert "more than 20 references" in str(imported(given).report)
    with pytest.raises(DefinitionError, match="leads through more than 20 references"):
        converted({"properties": {"p": reference("A")}}, 1, A=reference("A"))


def test_a_referenced_file_that_is_not_a_schema_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("github.com: {oauth_token: gho_secret}\nlist: [gho_secret]")
    for target in ("hosts.yml", "hosts.yml#/github.com", "hosts.yml#/list", "hosts.yml#/list/0"):
        tools = imported(with_schema({"$ref": target}), roots=tmp_path)
        assert "gho_secret" not in str(tools.report) + "".join(str(tool.input_schema) for tool in tools)


# -- hostile documents -------------------------------------------------------------------------------------------------


def bomb(levels: int) -> dict[str, Any]:
    """Schemas of which each has ten of the next in it."""
    schemas: dict[str, Any] = {
        f"S{level}": properties(**{f"p{number}": reference(f"S{level + 1}") for number in range(10)})
        for level in range(levels)
    }
    return with_schema(reference("S0"), **schemas, **{f"S{levels}": TEXT})


def nested(levels: int) -> Any:
    schema: Any = TEXT
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def test_references_that_would_multiply_are_kept_as_references() -> None:
    assert len(json.dumps(schema_of(bomb(50)))) < 40_000


PATHS = {
    "/a%2f..": "use parameters",
    "/a/../b": "have '.' or '..'",
    "/a/%2E%2e/b": "have '.' or '..'",
    "//evil.example/b": "'//'",
    "a": "begin with '/'",
    "/{a}": "must be both in",
    "/" + "x" * 1_001: "over 1,000 characters",
    "/a\u00adb": "must not have",
}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        *((one("get", path=path), why) for path, why in PATHS.items()),
        (bomb(2_000), f"over {MOST_NODES:,} keywords"),
        (with_schema({"enum": [*range(MOST_NODES)]}), f"over {MOST_NODES:,} keywords"),
        (with_schema(nested(5_000)), "nested more than 100 deep"),
        (with_schema({"type": "string", "pattern": "("}), "is not a regular expression"),
        (with_schema({"properties": {"a\u200b": {}}}), "hidden characters"),
        (with_schema({"$dynamicRef": "#x"}), "$dynamicRef"),
        (with_schema("text"), "a str is not a schema"),
        (one("get", *({"in": "query", "name": f"p{n}"} for n in range(600))), "takes 600 arguments"),
        (document({"/a": {"$ref": "#/paths/~1b", "post": {}}, "/b": {}}), "'post' stands beside its $ref"),
        (one("post", requestBody={"content": {"a/b\r\nx: y": {}}}), "which is not supported"),
        (document({"/a": {"get": []}}), "must be an object"),
        (document({"/a": {"get": {"parameters": {}}}}), "must be a list"),
        (one("get", {"in": "body", "name": "b"}), "be in one of path"),
        (one("get", {"in": "query", "name": "b", "style": "matrix"}), "has the style 'matrix'"),
        (one("post", requestBody={"content": {}}), "needs 'content'"),
        (document({"/a": {"additionalOperations": {"TRACE": operation()}}}, "3.2.0"), "this method is not supported"),
    ],
)
def test_an_invalid_operation_is_left_out_with_the_reason(given: Any, why: str) -> None:
    tools = imported(given)
    assert not tools and why in str(tools.report)
    assert all(len(left_out.item) <= 500 for left_out in tools.report.left_out)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b"{", "is not JSON"),
        (b"a: b: c", "is not YAML"),
        (b"a: !!python/object/apply:os.system [id]", "it has tags"),
        (b'a: !!int ""', "it has tags"),
        (b"a: " + b"[" * 1_000_000, "nested more than 200 deep"),
        (b"{" + b" " * 25_000_000 + b"}", "is too large: 24,000,000 bytes of JSON"),
        (b"a: b\n" * 1_300_000, "is too large: 6,000,000 bytes of YAML"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_cannot_be_read_is_an_error_that_says_why(tmp_path: Path, text: bytes, why: str) -> None:
    (tmp_path / "api").write_bytes(text)
    with pytest.raises(DefinitionError, match="api") as raised:
        imported(tmp_path / "api")
    assert why in str(raised.value)


def test_yaml_aliases_that_would_be_a_billion_values_are_left_out(tmp_path: Path) -> None:
    lines = ["openapi: 3.1.0", "info: {title: t, version: '1'}", "a0: &a0 {type: string}"]
    for level in range(1, 12):
        inner = ", ".join(f"p{number}: *a{level - 1}" for number in range(9))
        lines.append(f"a{level}: &a{level} {{type: object, properties: {{{inner}}}}}")
    lines.append("paths:")
    lines.append(
        "  /x: {post: {operationId: op, requestBody: {content: {application/json: {schema: {allOf: [*a11]}}}}}}"
    )
    (tmp_path / "api.yaml").write_text("\n".join(lines))
    assert f"over {MOST_NODES:,} keywords" in str(imported(tmp_path / "api.yaml").report)


# -- schemas -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "string", "nullable": True, "enum": ["a"]}, {"type": ["string", "null"], "enum": ["a", None]}),
        (
            {"nullable": True, "allOf": [TEXT], "description": "d"},
            {"description": "d", "anyOf": [{"allOf": [TEXT]}, {"type": "null"}]},
        ),
        ({"maximum": 5, "exclusiveMaximum": True}, {"exclusiveMaximum": 5}),
        ({"minimum": 5, "exclusiveMinimum": False}, {"minimum": 5}),
        ({"type": "string", "example": "x", "xml": {}, "externalDocs": {}, "x-more": 1}, TEXT),
        ({**reference("S"), "description": "d"}, {"$ref": "#/$defs/S", "$defs": {"S": TEXT}}),
    ],
)
def test_a_schema_of_3_0_is_converted_to_2020_12(before: Any, after: Any) -> None:
    assert converted(before, 0, S=TEXT) == after


def test_read_only_properties_are_not_sent() -> None:
    schema = {
        "properties": {"a": {"readOnly": True}, "b": {"writeOnly": True}, "c": reference("R")},
        "required": ["a", "b", "c"],
    }
    expected = {"properties": {"b": {}}, "required": ["b"], "propertyNames": {"not": {"enum": ["a", "c"]}}}
    assert {**converted(schema, 1, R={"readOnly": True}), "$defs": None} == {**expected, "$defs": None}
    assert "propertyNames" not in converted({**schema, "additionalProperties": False}, 1, R={"readOnly": True})
    bound = {"properties": {"id": {"readOnly": True}}, "propertyNames": {"pattern": "^[a-z]+$"}}
    validator = jsonschema_rs.validator_for(converted(bound))
    assert [validator.is_valid({name: 1}) for name in ("n", "N", "id")] == [True, False, False]


SCALARS = st.sampled_from(
    [{"type": kind} for kind in ("string", "integer", "boolean", "null")] + [{"enum": ["a", 1]}, {}]
)


def schemas_over(inner: Any) -> Any:
    objects = st.builds(
        lambda found: {"type": "object", "properties": found},
        st.dictionaries(st.sampled_from("pqr"), inner, max_size=3),
    )
    lists = st.builds(lambda items: {"type": "array", "items": items}, inner)
    keys = st.sampled_from(["anyOf", "oneOf", "allOf"])
    composed = st.builds(lambda key, some: {key: some}, keys, st.lists(inner, min_size=1, max_size=2))
    return objects | lists | composed | st.builds(lambda schema: {"not": schema}, inner)


SCHEMAS = st.recursive(SCALARS | st.builds(reference, st.sampled_from("ABC")), schemas_over, max_leaves=6)
VALUES = st.recursive(
    st.sampled_from([None, True, 1, 2, "a", "b"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("pqr"), inner, max_size=2),
    max_leaves=5,
)
COMPONENT = SCHEMAS.filter(lambda schema: "$ref" not in schema)
"""Not a mere reference: one that leads to itself says nothing, and is refused."""


@given(SCHEMAS, st.fixed_dictionaries(dict.fromkeys("ABC", COMPONENT)), VALUES)
def test_a_schema_of_3_1_takes_what_it_took_in_its_document(schema: Any, components: Any, value: Any) -> None:
    whole = {**schema, "components": {"schemas": components}}
    assert jsonschema_rs.is_valid(converted(schema, 1, **components), value) == jsonschema_rs.is_valid(whole, value)


KEYS = "$ref schema in name type properties content get parameters items requestBody servers security tags operationId"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS.split()), inner, max_size=4),
    max_leaves=12,
)


@given(JSON, JSON, JSON)
def test_any_document_is_read_or_left_out_or_a_definition_error(item: Any, inner: Any, schemas: Any) -> None:
    both = operation(inner, requestBody={"content": {"application/json": inner}})
    whole = document({"/x": item, "/y": {"post": inner}, "/z": {"get": both}})
    components = {"schemas": schemas, "securitySchemes": schemas}
    try:
        tools = imported({**whole, "components": components, "servers": inner, "security": inner})
    except DefinitionError:
        return
    assert len(tools) + len(tools.report.left_out) >= 1


# -- names, choice, budget ---------------------------------------------------------------------------------------------

DELETE = {"operationId": "delete order!", "summary": "Delete it.", "description": "For ever.", "deprecated": True}
SHOP = document(
    {
        "/orders": {
            "get": {"operationId": "listOrders", "tags": ["orders"]},
            "post": {"operationId": "orders/create", "tags": ["orders"]},
        },
        "/orders/{id}": {
            "parameters": [{"in": "path", "name": "id", "schema": TEXT}],
            "get": {"tags": ["orders", "one"]},
            "put": {"operationId": "listorders"},
            "delete": DELETE,
        },
        "/orders/id": {"get": {}},
        "x-more": {},
    }
)


def test_names_come_from_ids_or_from_method_and_path() -> None:
    names = {tool.source: tool.name for tool in imported(SHOP).report.tools}
    assert names == {
        "GET /orders": "get_orders",
        "POST /orders": "orders_create",
        "GET /orders/{id}": "get_orders_by_id",
        "PUT /orders/{id}": "put_orders_by_id",
        "DELETE /orders/{id}": "delete_order",
        "GET /orders/id": "get_orders_id",
    }
    same = document({path: {"get": {"operationId": "list"}} for path in ("/a", "/b")})
    assert [tool.name for tool in imported(same)] == ["get_a", "get_b"]
    assert [tool.name for tool in imported(same, only="/a")] == ["get_a"]  # whatever else was asked for


def test_operations_whose_names_would_be_equal_get_a_digest() -> None:
    names = [tool.name for tool in imported(document({path: {"get": {}} for path in ("/a-b", "/a_b", "/a/b")}))]
    assert len(set(names)) == 3 and names[0] == "get_a-b"
    assert all(len(name.rpartition("_")[2]) == 8 for name in names[1:])


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ("GET", ["GET /orders", "GET /orders/{id}", "GET /orders/id"]),
        ("tag:one", ["GET /orders/{id}"]),
        ("/orders", ["GET /orders", "POST /orders"]),
        (["DELETE /orders/*", "list*"], ["GET /orders", "PUT /orders/{id}", "DELETE /orders/{id}"]),
        ("listOrders", ["GET /orders"]),
    ],
)
def test_operations_are_chosen_by_method_path_tag_and_id(only: Any, expected: list[str]) -> None:
    report = imported(SHOP, only=only).report
    assert [tool.source for tool in report.tools] == expected and report.not_chosen == 6 - len(expected)


@pytest.mark.parametrize("only", ["gets", "tag:none", "GET /none"])
def test_a_choice_of_no_operation_is_an_error_that_lists_the_tags(only: str) -> None:
    with pytest.raises(DefinitionError, match=r"only='.*' names no operation") as raised:
        imported(SHOP, only=["GET", only])
    assert "['one', 'orders']" in str(raised.value)


@pytest.mark.large
def test_more_tools_than_the_budget_are_an_error_with_the_ways_out() -> None:
    text = "Get a thing of this kind, with all that belongs to it."
    paths = {
        f"/things/{at}": {"get": {"operationId": f"get_{at}", "tags": [f"group {at % 3}"], "description": text}}
        for at in range(800)
    }
    with pytest.raises(DefinitionError, match=r"800 operations need about [0-9,]+ tokens") as raised:
        imported(document(paths))
    for part in ("the budget is 20,000", "only=[", "group 0 (267)", "ferrule.selection", "budget=None"):
        assert part in str(raised.value)
    assert len(imported(document(paths), budget=None)) == 800
    assert len(imported(document(paths), only="tag:group 1", budget=30_000)) == 267


def test_the_report_lists_what_was_taken_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    more = {"/bad": {"get": operation({"$ref": "#/nowhere"})}, "/t": {"trace": {}}}
    report = imported({**SHOP, "paths": {**SHOP["paths"], **more}}, only="/*").report
    assert report.tokens == sum(tool.tokens for tool in report.tools) > 0
    assert "6 tools, about" in str(report) and "get_orders_by_id" in str(report)
    assert "TRACE /t is left out: this method is not supported" in str(report)
    assert "GET /bad is left out: the reference" in str(report)
    assert caplog.text.count("operations are left out") == 1
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


def test_the_report_has_only_the_chosen_operations() -> None:
    given = document({"/a": {"get": operation()}, "/b?x": {"get": {}}, "/c": {"get": {"$ref": "#/nope"}, "post": {}}})
    assert not imported(given, only="/a").report.left_out
    assert [left_out.item for left_out in imported(given, only=["/a", "/c"]).report.left_out] == ["GET /c"]
    assert [left_out.item for left_out in imported(given, only="GET").report.left_out] == ["GET /c"]


def test_the_texts_of_the_report_are_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    given = document({"/a\nWARNING forged \x1b[2J": {"get": {}}, "/b": {"get": operation({"$ref": "#/a\nb\u200b"})}})
    report = imported(given).report
    assert all(text.isprintable() for left_out in report.left_out for text in (left_out.item, left_out.reason))
    assert "\x1b" not in caplog.text


def test_an_unreadable_method_leaves_the_others_of_its_path() -> None:
    item = {"get": {"$ref": "#/nope"}, "put": 5, "post": operation(), "additionalOperations": {"A B": {}, "COPY": {}}}
    tools = imported(document({"/a": item}, "3.2.0"))
    assert [tool.source for tool in tools.report.tools] == ["POST /a", "COPY /a"]
    assert {left_out.item for left_out in tools.report.left_out} == {"PUT /a", "GET /a", "A B /a"}


# -- traits and texts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("methods", "traits"),
    [
        (["get", "head", "options", "query"], (True, False, True, True)),
        (["put", "delete"], (False, True, True, True)),
        (["post", "patch"], (False, True, False, True)),
    ],
)
def test_the_method_gives_the_traits_of_a_trusted_document(methods: list[str], traits: Any) -> None:
    for method in methods:
        [tool] = imported(one(method))
        assert (tool.read_only, tool.destructive, tool.idempotent, tool.open_world) == traits, method
        [careful] = imported(one(method), trusted=False)
        assert (careful.read_only, careful.destructive, careful.idempotent) == (False, True, False)
        assert (careful.open_world, careful.parallel) == (True, False)


def test_texts_are_kept_without_hidden_characters() -> None:
    tool = imported(SHOP).get("delete_order")
    assert tool.description == "Delete it.\n\nFor ever.\n\nDeprecated."
    assert tool.metadata["openapi"] == {"operation": "DELETE /orders/{id}", "id": "delete order!", "deprecated": True}
    parameter = {"in": "query", "name": "q", "description": "a\u200bb"}
    [tool] = imported(one("get", parameter, summary="x\U000e0041y"))
    assert tool.description == "xy" and tool.input_schema["properties"]["q"]["description"] == "ab"
    assert imported(SHOP).get("orders_create").tags == ("orders",)
    assert imported(one("get")).get("op").description == "GET /x"


# -- bodies ------------------------------------------------------------------------------------------------------------


def test_another_server_or_another_place_of_an_argument_is_another_tool() -> None:
    servers = [openapi(SHOP, server=f"https://{name}.example.com").get("get_orders").server for name in "ab"]
    places = [imported(one("get", {"in": at, "name": "a", "schema": TEXT})).get("op") for at in ("query", "header")]
    assert servers[0] != servers[1] and places[0].server != places[1].server


def test_an_optional_body_that_requires_something_is_required() -> None:
    schema = {**properties(a=TEXT, b=TEXT), "required": ["a"]}
    tools = imported(with_body("application/json", schema, required=False))
    assert next(iter(tools)).input_schema["required"] == ["a"]
    assert "its body is optional" in tools.report.tools[0].notes[0]


def test_keywords_beside_the_reference_of_a_body_are_kept() -> None:
    schema = {**reference("X"), "required": ["a"], "properties": {"b": TEXT}}
    components = {"schemas": {"X": {"properties": {"a": TEXT}}}}
    found = schema_of({**with_body("application/json", schema), "components": components})
    assert [*found["properties"]] == ["body"]
    assert jsonschema_rs.is_valid(found, {"body": {"a": "x"}})
    assert not jsonschema_rs.is_valid(found, {"body": {"b": "x"}})


FILE = {"type": "string", "format": "binary"}


@pytest.mark.parametrize(
    ("schema", "many"),
    [
        ({"type": ["string", "null"], "format": "binary"}, False),
        ({"allOf": [FILE]}, False),
        (reference("File"), False),
        ({"type": "array", "items": reference("File")}, True),
        ({"anyOf": [FILE, {"type": "array", "items": {"format": "binary"}}]}, None),
    ],
)
def test_a_file_is_recognized_however_it_is_written(schema: Any, many: bool | None) -> None:
    given = {**with_body("multipart/form-data", properties(f=schema)), "components": {"schemas": {"File": FILE}}}
    validator = jsonschema_rs.validator_for(schema_of(given)["properties"]["f"])
    file = {"text": "a", "name": "a.txt"}
    assert validator.is_valid(file) is (many is not True) and validator.is_valid([file]) is (many is not False)
    assert not validator.is_valid("aGk=")


@pytest.mark.parametrize(
    ("media", "schema", "chosen"),
    [
        (["application/json", "multipart/form-data"], properties(f=FILE), "multipart/form-data"),
        (["application/json-patch+json", "application/json"], {"type": "object"}, "application/json"),
    ],
)
def test_the_media_type_that_can_carry_the_body_is_chosen(media: list[str], schema: Any, chosen: str) -> None:
    [tool] = imported(one("post", requestBody={"content": {name: {"schema": schema} for name in media}}))
    assert tool.handler.__self__.signature.body.media == chosen  # type: ignore[attr-defined]


# -- bounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.large
def test_the_work_of_a_whole_document_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrule.openapi.document._MOST_UNITS", 4_000_000)
    shared = properties(**{f"p{number}": TEXT for number in range(6_000)})
    body = {"content": {"application/json": {"schema": {"allOf": [reference("S")]}}}}
    paths = {f"/x{at}": {"post": {"operationId": f"op{at}", "requestBody": body}} for at in range(20)}
    with pytest.raises(DefinitionError, match="takes too much work"):
        imported(document(paths, components={"schemas": {"S": shared}}), budget=None)
    with pytest.raises(DefinitionError, match="over 10,000 operations"):
        imported(document({f"/x{at}": {"get": {}} for at in range(10_001)}), budget=None)
