"""What is read of a document: versions, files, references, names, which operations, and within which bounds."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from openapi_wire import document, imported, operation

from ferrule import DefinitionError, Runner
from ferrule.openapi.document import Document, Node, _from_yaml
from ferrule.openapi.schemas import MOST_NODES, Schemas
from ferrule.openapi.toolset import import_operations
from ferrule.selection import keyword
from ferrule.sources import openapi
from ferrule.values.frozen import thaw

TEXT = {"type": "string"}


def schema_of(given: Any, name: str = "op", **options: Any) -> dict[str, Any]:
    """The input schema of a tool of the document."""
    found = imported(given, **options)
    assert name in found, str(found.report)
    return thaw(found.get(name).input_schema)  # type: ignore[no-any-return]


def taking(schema: Any, **more: Any) -> dict[str, Any]:
    """A document whose operation takes a `body` of this schema beside nothing else."""
    body = {"required": True, "content": {"application/json": {"schema": {"allOf": [schema]}}}}
    return document({"/x": {"post": operation(requestBody=body)}}, **more)


def converted(schema: Any, minor: int = 1, **components: Any) -> dict[str, Any]:
    """A schema as JSON Schema 2020-12."""
    whole = document({}, f"3.{minor}.0", components={"schemas": components})
    [found], defs = Schemas(Document(whole, ())).bundle(Node(schema, ""))
    return {**found, "$defs": defs} if defs else found  # type: ignore[no-any-return]


# -- documents ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["3.0.0", "3.0.4", "3.1.0", "3.1.1", "3.2.0", "3.2", "3.1.0-rc1"])
def test_these_versions_are_read(version: str) -> None:
    assert len(imported(document({"/x": {"get": operation()}}, version))) == 1


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"swagger": "2.0"}, "is Swagger 2.0"),
        ({"openapi": "4.0.0"}, "its 'openapi' is '4.0.0'"),
        ({"openapi": 3.1}, "its 'openapi' is 3.1"),
        ({}, "its 'openapi' is None"),
        ({"openapi": "3.1.0"}, "has no 'paths'"),
        ({"openapi": "3.1.0", "paths": []}, "has no 'paths'"),
        ([], "must be a file or a mapping, not a list"),
        (b"{}", "must be a file or a mapping, not a bytes"),
        ("nowhere.yaml", "nowhere.yaml cannot be read"),
    ],
)
def test_what_is_no_document_is_an_error_that_says_so(given: Any, why: str) -> None:
    with pytest.raises(DefinitionError) as raised:
        imported(given)
    assert why in str(raised.value)


def test_yaml_and_json_are_read_alike(tmp_path: Path) -> None:
    given = document(
        {"/x": {"get": operation({"in": "query", "name": "on", "schema": {"enum": ["no", "2026-01-01"]}})}}
    )
    for name, text in (
        ("a.json", json.dumps(given)),
        ("a.yaml", yaml.safe_dump(given)),
        ("b", "\ufeff" + json.dumps(given)),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert schema_of(tmp_path / name)["properties"] == {"on": {"enum": ["no", "2026-01-01"]}}


def test_plain_scalars_of_yaml_are_what_json_has() -> None:
    text = b"a: no\nb: 2026-01-01\n200: {x: 1.50, y: 007, z: 1e3, n: ~, e: , t: true, s: 1:30}\nd: {<<: 1}"
    assert _from_yaml(text) == {
        "a": "no",
        "b": "2026-01-01",
        "200": {"x": 1.5, "y": "007", "z": 1000.0, "n": None, "e": None, "t": True, "s": "1:30"},
        "d": {"<<": 1},
    }


# -- references --------------------------------------------------------------------------------------------------------


def test_what_stands_elsewhere_in_the_document_is_found_there() -> None:
    given = document(
        {"/x": {"$ref": "#/components/pathItems/X"}},
        components={
            "pathItems": {
                "X": {
                    "post": operation(
                        {"$ref": "#/components/parameters/P"}, requestBody={"$ref": "#/components/requestBodies/B"}
                    )
                }
            },
            "parameters": {
                "P": {"$ref": "#/components/parameters/Q"},
                "Q": {"in": "query", "name": "q", "schema": {"$ref": "#/components/schemas/a~1b%20c"}},
            },
            "requestBodies": {
                "B": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Tree"}}}}
            },
            "schemas": {
                "a/b c": {"type": "integer"},
                "Tree": {
                    "type": "object",
                    "properties": {"kids": {"type": "array", "items": {"$ref": "#/components/schemas/Tree"}}},
                },
            },
        },
    )
    found = schema_of(given)
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
    (inside / "paths.json").write_text(
        json.dumps(
            {
                "x": {
                    "post": {
                        **operation(),
                        "requestBody": {"content": {"application/json": {"schema": {"$ref": "models/pet.yaml#/Pet"}}}},
                    }
                }
            }
        )
    )
    given = document(
        {"/x": {"$ref": "paths.json#/x"}, "/s": {"$ref": "../secret.yaml#/S"}}, components={"schemas": {"Up": TEXT}}
    )
    (inside / "api.yaml").write_text(yaml.safe_dump(given))
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
    ("reference", "why"),
    [
        ("#/components/schemas/None", "it leads nowhere"),
        ("#/info/title/x", "it leads nowhere"),
        ("https://example.com/pet.yaml", "Ferrule fetches nothing"),
        ("file:///etc/passwd", "it is in another file"),
        ("//evil.example/x", "Ferrule fetches nothing"),
        ("other.yaml", "it is in another file"),
        (7, "is not a reference"),
    ],
)
def test_a_reference_that_leads_nowhere_leaves_its_operation_out_and_no_other(reference: Any, why: str) -> None:
    given = taking({"$ref": reference})
    given["paths"]["/y"] = {"get": {**operation(), "operationId": "good"}}
    tools = imported(given)
    assert [tool.name for tool in tools] == ["good"]
    assert tools.report.left_out[0].item == "POST /x" and why in tools.report.left_out[0].reason


def test_references_that_go_round_end() -> None:
    schemas = {"A": {"$ref": "#/components/schemas/B"}, "B": {"$ref": "#/components/schemas/A"}}
    tools = imported(taking({"$ref": "#/components/schemas/A"}, components={"schemas": schemas}))
    assert "more than 20 references" in str(tools.report)
    parameters = {"A": {"$ref": "#/components/parameters/B"}, "B": {"$ref": "#/components/parameters/A"}}
    tools = imported(
        document(
            {"/x": {"get": operation({"$ref": "#/components/parameters/A"})}}, components={"parameters": parameters}
        )
    )
    assert "more than 20 references" in str(tools.report)


# -- hostile documents -------------------------------------------------------------------------------------------------


def bomb(levels: int) -> dict[str, Any]:
    """Schemas of which each has ten of the next in it."""
    schemas: dict[str, Any] = {
        f"S{level}": {
            "type": "object",
            "properties": {f"p{one}": {"$ref": f"#/components/schemas/S{level + 1}"} for one in range(10)},
        }
        for level in range(levels)
    }
    return taking({"$ref": "#/components/schemas/S0"}, components={"schemas": {**schemas, f"S{levels}": TEXT}})


def deep(levels: int) -> Any:
    schema: Any = TEXT
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def test_references_that_would_be_copied_without_end_are_kept_as_references() -> None:
    assert len(json.dumps(schema_of(bomb(50)))) < 40_000


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (bomb(2_000), f"over {MOST_NODES:,} keywords"),
        (taking({"enum": [*range(MOST_NODES)]}), f"over {MOST_NODES:,} keywords"),
        (taking(deep(5_000)), "nested more than 100 deep"),
        (taking({"type": "string", "pattern": "("}), "is not a regular expression"),
        (taking({"type": "nonsense"}), "is not a valid JSON Schema"),
        (taking({"properties": {"a\u200b": {}}}), "hidden characters"),
        (taking({"$dynamicRef": "#x"}), "$dynamicRef"),
        (taking("text"), "a str is not a schema"),
        (
            document({"/a": {"get": operation(*({"in": "query", "name": f"p{n}"} for n in range(600)))}}),
            "takes 600 arguments",
        ),
        (document({"/a%b": {"get": operation()}}), "use parameters"),
        (document({"/a%2f..": {"get": operation()}}), "use parameters"),
        (document({"/a\u200b": {"get": operation()}}), "use parameters"),
        (document({"/a/..;x/b": {"get": operation()}}), "have '.' or '..'"),
        (document({"/a": {"$ref": "#/paths/~1b", "post": {}}, "/b": {}}), "'post' stands beside its $ref"),
        (document({"/a": {"post": operation(requestBody={"content": {"a/b\r\nx: y": {}}})}}), "which is not supported"),
        (
            document({"/a": {"post": operation(requestBody={"content": {"multipart/mixed": {}}})}}),
            "which is not supported",
        ),
        (document({"/a/../b": {"get": operation()}}), "have '.' or '..'"),
        (document({"/a/%2E%2e/b": {"get": operation()}}), "have '.' or '..'"),
        (document({"//evil.example/b": {"get": operation()}}), "'//'"),
        (document({"/a?b": {"get": operation()}}), "use parameters"),
        (document({"/a\\b": {"get": operation()}}), "'\\'"),
        (document({"a": {"get": operation()}}), "begin with '/'"),
        (document({"/{a}": {"get": operation()}}), "must be both in"),
        (document({"/{a": {"get": operation()}}), "a brace"),
        (document({"/a": {"get": []}}), "must be an object"),
        (document({"/a": []}), "must be an object"),
        (document({"/a": {"get": {"parameters": {}}}}), "must be a list"),
        (document({"/a": {"get": operation({"in": "body", "name": "b"})}}), "be in one of path"),
        (
            document({"/a": {"get": operation({"in": "query", "name": "b", "style": "matrix"})}}),
            "has the style 'matrix'",
        ),
        (document({"/a": {"post": operation(requestBody={"content": {}})}}), "needs 'content'"),
        (document({"/a": {"additionalOperations": {"TRACE": operation()}}}, "3.2.0"), "this method is not supported"),
    ],
)
def test_what_cannot_be_kept_is_left_out_with_the_reason(given: Any, why: str) -> None:
    tools = imported(given)
    assert not tools and why in str(tools.report)


def test_a_pattern_that_would_take_long_is_shown_and_not_enforced() -> None:
    pattern = "([^!]{1,250}a){1,30}!"
    assert (
        schema_of(taking({"type": "string", "pattern": pattern}))["properties"]["body"]["allOf"][0]["pattern"]
        == pattern
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b"a: " + b"[" * 20_000, "YAML"),
        (b"{", "is not JSON"),
        (b"a: b: c", "is not YAML"),
        (b"a: !!python/object/apply:os.system [id]", "it has tags"),
        (b'a: !!int ""', "it has tags"),
        (b"a: " + b"[" * 1_000_000, "nested more than 200 deep"),
        (b"- " * 200_000, "nested more than 200 deep"),
        (b"{" + b" " * 25_000_000 + b"}", "is too large: 24,000,000 bytes of JSON"),
        (b"a: b\n" * 1_300_000, "is too large: 6,000,000 bytes of YAML"),
        (b'{"a":"' + b"x" * 50_000_000 + b'"}', "is too large"),
    ],
    ids=[
        "deep JSON",
        "deep YAML",
        "no JSON",
        "no YAML",
        "an object of Python",
        "a tag",
        "deeper YAML",
        "deep blocks",
        "long",
        "long YAML",
        "50 MB",
    ],
)
def test_a_file_that_cannot_be_read_is_an_error_that_says_why(tmp_path: Path, text: bytes, why: str) -> None:
    (tmp_path / "api").write_bytes(text)
    with pytest.raises(DefinitionError, match="api") as raised:
        imported(tmp_path / "api")
    assert why in str(raised.value)


def test_aliases_of_yaml_that_would_be_a_billion_values_are_left_out(tmp_path: Path) -> None:
    lines = ["a0: &a0 {type: string}"]
    lines += [
        f"a{n}: &a{n} {{type: object, properties: {{{', '.join(f'p{i}: *a{n - 1}' for i in range(9))}}}}}"
        for n in range(1, 12)
    ]
    whole = "\n".join(
        [
            "openapi: 3.1.0",
            "info: {title: t, version: '1'}",
            *lines,
            "paths:",
            "  /x: {post: {operationId: op, requestBody: {content: {application/json: {schema: {allOf: [*a11]}}}}}}",
        ]
    )
    (tmp_path / "api.yaml").write_text(whole)
    assert f"over {MOST_NODES:,} keywords" in str(imported(tmp_path / "api.yaml").report)


# -- schemas -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "string", "nullable": True, "enum": ["a"]}, {"type": ["string", "null"], "enum": ["a", None]}),
        (
            {"nullable": True, "allOf": [{"type": "string"}], "description": "d"},
            {"description": "d", "anyOf": [{"allOf": [{"type": "string"}]}, {"type": "null"}]},
        ),
        ({"type": "string", "nullable": False}, {"type": "string"}),
        ({"maximum": 5, "exclusiveMaximum": True}, {"exclusiveMaximum": 5}),
        ({"minimum": 5, "exclusiveMinimum": False}, {"minimum": 5}),
        ({"type": "string", "example": "x", "xml": {}, "externalDocs": {}, "x-more": 1}, {"type": "string"}),
        (
            {"$ref": "#/components/schemas/S", "description": "d"},
            {"$ref": "#/$defs/S", "$defs": {"S": {"type": "string"}}},
        ),
    ],
)
def test_schemas_of_3_0_are_turned_into_2020_12(before: Any, after: Any) -> None:
    assert converted(before, 0, S={"type": "string"}) == after


def test_what_stands_beside_a_reference_counts_since_3_1() -> None:
    assert converted({"$ref": "#/components/schemas/S", "maxLength": 2}, 1, S=TEXT) == {
        "$ref": "#/$defs/S",
        "maxLength": 2,
        "$defs": {"S": TEXT},
    }


def test_properties_may_be_called_like_keywords() -> None:
    properties = {"example": TEXT, "nullable": TEXT, "$ref": TEXT, "x-a": TEXT, "readOnly": TEXT, "discriminator": TEXT}
    assert converted({"properties": properties}) == {"properties": properties}


def test_what_is_only_read_goes_no_way_round() -> None:
    user = {"type": "object", "properties": {"role": {"readOnly": True}, "name": {}}, "required": ["role", "name"]}
    assert converted(user) == {
        "type": "object",
        "properties": {"name": {}},
        "required": ["name"],
        "propertyNames": {"not": {"enum": ["role"]}},
    }
    assert "propertyNames" not in converted({**user, "additionalProperties": False})
    composed = {"allOf": [{"$ref": "#/components/schemas/Base"}, {"required": ["id", "n"]}]}
    base = {"type": "object", "properties": {"id": {"allOf": [{"readOnly": True}]}, "n": {}}}
    assert converted(composed, 1, Base=base)["allOf"][1] == {"required": ["n"]}
    assert jsonschema_rs.is_valid(converted(composed, 1, Base=base), {"n": "x"})


def test_schemas_beside_one_with_what_is_only_read_have_properties_of_their_own() -> None:
    base = {"type": "object", "properties": {"id": {"readOnly": True}, "n": {"type": "string"}}}
    composed = {"allOf": [{"$ref": "#/components/schemas/Base"}, {"properties": {"more": {"type": "string"}}}]}
    validator = jsonschema_rs.validator_for(converted(composed, 1, Base=base))
    assert validator.is_valid({"n": "x", "more": "y"}) and not validator.is_valid({"n": "x", "id": "1"})


def test_names_that_are_bound_stay_so_where_something_is_only_read() -> None:
    given = {"properties": {"id": {"readOnly": True}}, "propertyNames": {"pattern": "^[a-z]+$"}}
    validator = jsonschema_rs.validator_for(converted(given))
    assert [validator.is_valid({name: 1}) for name in ("n", "N", "id")] == [True, False, False]


def test_read_only_properties_are_not_sent() -> None:
    schema = {
        "properties": {"a": {"readOnly": True}, "b": {"writeOnly": True}, "c": {"$ref": "#/components/schemas/R"}},
        "required": ["a", "b", "c"],
    }
    requests = converted(schema, 1, R={"readOnly": True})
    assert (requests["properties"], requests["required"]) == ({"b": {}}, ["b"])
    assert requests["propertyNames"] == {"not": {"enum": ["a", "c"]}}


def test_two_schemas_of_one_name_in_two_files_stay_two(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("S: {type: string}")
    (tmp_path / "b.yaml").write_text("S: {type: integer}")
    found = schema_of(taking({"properties": {"a": {"$ref": "a.yaml#/S"}, "b": {"$ref": "b.yaml#/S"}}}), roots=tmp_path)
    validator = jsonschema_rs.validator_for(found)
    assert validator.is_valid({"body": {"a": "x", "b": 1}}) and not validator.is_valid({"body": {"a": 1, "b": "x"}})


SCALARS = st.sampled_from(
    [{"type": kind} for kind in ("string", "integer", "boolean", "null")] + [{"enum": ["a", 1]}, {}]
)
NAMES = st.sampled_from(["A", "B", "C"])


def schemas_over(inner: Any) -> Any:
    objects = st.builds(
        lambda properties: {"type": "object", "properties": properties},
        st.dictionaries(st.sampled_from("pqr"), inner, max_size=3),
    )
    lists = st.builds(lambda items: {"type": "array", "items": items}, inner)
    composed = st.builds(
        lambda key, some: {key: some},
        st.sampled_from(["anyOf", "oneOf", "allOf"]),
        st.lists(inner, min_size=1, max_size=2),
    )
    return objects | lists | composed | st.builds(lambda one: {"not": one}, inner)


SCHEMAS = st.recursive(
    SCALARS | st.builds(lambda name: {"$ref": f"#/components/schemas/{name}"}, NAMES), schemas_over, max_leaves=6
)
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


NULLABLE = st.builds(
    lambda schema, nullable: {**schema, "nullable": nullable} if schema.get("type") not in (None, "null") else schema,
    SCALARS,
    st.booleans(),
)


@given(NULLABLE, VALUES)
def test_a_nullable_schema_of_3_0_takes_null_and_what_it_took(schema: Any, value: Any) -> None:
    plain = {key: item for key, item in schema.items() if key != "nullable"}
    takes = jsonschema_rs.is_valid(plain, value) or (value is None and schema.get("nullable", False))
    assert jsonschema_rs.is_valid(converted(schema, 0), value) == takes


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "$ref",
                    "schema",
                    "in",
                    "name",
                    "type",
                    "properties",
                    "content",
                    "get",
                    "parameters",
                    "items",
                    "requestBody",
                    "servers",
                    "security",
                    "tags",
                    "operationId",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON, JSON, JSON)
def test_whatever_stands_in_a_document_it_is_read_or_left_out_and_raises_nothing_else(
    item: Any, inner: Any, schemas: Any
) -> None:
    whole = document(
        {
            "/x": item,
            "/y": {"post": inner},
            "/z": {"get": operation(inner, requestBody={"content": {"application/json": inner}})},
        }
    )
    try:
        tools = imported(
            {
                **whole,
                "components": {"schemas": schemas, "securitySchemes": schemas},
                "servers": inner,
                "security": inner,
            }
        )
    except DefinitionError:
        return
    assert len(tools) + len(tools.report.left_out) >= 1


# -- names, choice, budget ---------------------------------------------------------------------------------------------

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
            "delete": {
                "operationId": "delete order!",
                "summary": "Delete it.",
                "description": "For ever.",
                "deprecated": True,
            },
        },
        "/orders/id": {"get": {}},
        "x-more": {},
    }
)


def test_names_come_from_ids_and_else_from_method_and_path_and_stay_apart() -> None:
    names = {tool.source: tool.name for tool in imported(SHOP).report.tools}
    assert names == {
        "GET /orders": "get_orders",
        "POST /orders": "orders_create",
        "GET /orders/{id}": "get_orders_by_id",
        "PUT /orders/{id}": "put_orders_by_id",
        "DELETE /orders/{id}": "delete_order",
        "GET /orders/id": "get_orders_id",
    }


def test_names_and_schemas_do_not_depend_on_the_order_of_a_document() -> None:
    paths = [*SHOP["paths"].items()]
    expected = {tool.fingerprint for tool in imported(SHOP)}
    for seed in range(5):
        random.Random(seed).shuffle(paths)
        assert {tool.fingerprint for tool in imported({**SHOP, "paths": dict(paths)})} == expected


def test_two_operations_that_one_name_would_be_made_of_have_a_digest_in_it() -> None:
    given = document({"/a-b": {"get": {}}, "/a_b": {"get": {}}, "/a/b": {"get": {}}})
    names = [tool.name for tool in imported(given)]
    assert (
        len(set(names)) == 3 and names[0] == "get_a-b" and all(len(name.rpartition("_")[2]) == 8 for name in names[1:])
    )


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ("GET", ["GET /orders", "GET /orders/{id}", "GET /orders/id"]),
        ("tag:one", ["GET /orders/{id}"]),
        (["tag:o*"], ["GET /orders", "POST /orders", "GET /orders/{id}"]),
        ("/orders", ["GET /orders", "POST /orders"]),
        (["DELETE /orders/*", "list*"], ["GET /orders", "PUT /orders/{id}", "DELETE /orders/{id}"]),
        ("listOrders", ["GET /orders"]),
    ],
)
def test_operations_are_chosen_by_method_path_tag_and_id(only: Any, expected: list[str]) -> None:
    report = imported(SHOP, only=only).report
    assert [tool.source for tool in report.tools] == expected and report.not_chosen == 6 - len(expected)


@pytest.mark.parametrize("only", ["gets", "tag:none", "/none", "PATCH", "GET /none"])
def test_a_choice_that_names_nothing_is_an_error_that_says_what_there_is(only: str) -> None:
    with pytest.raises(DefinitionError, match=r"only='.*' names no operation") as raised:
        imported(SHOP, only=["GET", only])
    assert "['one', 'orders']" in str(raised.value)


def large(count: int) -> dict[str, Any]:
    return document(
        {
            f"/things/{one}": {
                "get": {
                    **operation(),
                    "operationId": f"get_{one}",
                    "tags": [f"group {one % 3}"],
                    "description": "Get a thing of this kind, with all that belongs to it.",
                }
            }
            for one in range(count)
        }
    )


def test_more_tools_than_the_budget_has_room_for_are_an_error_with_the_ways_out() -> None:
    with pytest.raises(DefinitionError, match=r"800 operations need about [0-9,]+ tokens") as raised:
        imported(large(800))
    for part in ("the budget is 20,000", "only=[", "group 0 (267)", "ferrule.selection", "budget=None"):
        assert part in str(raised.value)
    assert len(imported(large(800), budget=None)) == 800
    assert len(imported(large(800), only="tag:group 1", budget=30_000)) == 267


def test_with_a_selector_a_model_is_offered_the_few_that_fit() -> None:
    given = {**large(300)}
    given["paths"]["/refunds"] = {
        "post": {"operationId": "refund_order", "description": "Give a customer the money back."}
    }
    tools = imported(given, budget=None)
    found = keyword(3).rank(tools, "refund the customer", limit=3)
    assert next(iter(found)).tool.name == "refund_order"


def test_the_report_says_what_was_taken_and_left_out_and_the_log_that_something_was(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = {**SHOP, "paths": {**SHOP["paths"], "/bad": {"get": operation({"$ref": "#/nowhere"})}, "/t": {"trace": {}}}}
    report = imported(given, only="/*").report
    assert report.tokens == sum(tool.tokens for tool in report.tools) > 0
    text = str(report)
    assert "6 tools, about" in text and "get_orders_by_id" in text
    assert (
        "TRACE /t is left out: this method is not supported" in text and "GET /bad is left out: the reference" in text
    )
    assert caplog.text.count("operations are left out") == 1
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


# -- traits and texts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "read_only", "destructive", "idempotent"),
    [
        ("get", True, False, True),
        ("head", True, False, True),
        ("options", True, False, True),
        ("query", True, False, True),
        ("put", False, True, True),
        ("delete", False, True, True),
        ("post", False, True, False),
        ("patch", False, True, False),
    ],
)
def test_the_method_says_what_a_tool_does_where_the_document_is_trusted(
    method: str, read_only: bool, destructive: bool, idempotent: bool
) -> None:
    given = document({"/x": {method: operation()}}, "3.2.0")
    [tool] = imported(given)
    assert (tool.read_only, tool.destructive, tool.idempotent, tool.open_world) == (
        read_only,
        destructive,
        idempotent,
        True,
    )
    [careful] = imported(given, trusted=False)
    assert (careful.read_only, careful.destructive, careful.idempotent, careful.open_world) == (
        False,
        True,
        False,
        True,
    )
    assert careful.parallel is False


def test_methods_of_ones_own_are_taken_since_3_2_and_change_things() -> None:
    [tool] = imported(document({"/x": {"additionalOperations": {"COPY": operation()}}}, "3.2.0"))
    assert (tool.read_only, tool.metadata["openapi"]["operation"]) == (False, "COPY /x")


def test_texts_are_without_what_nobody_sees_and_tags_and_ids_are_kept() -> None:
    tool = imported(SHOP).get("delete_order")
    assert tool.description == "Delete it.\n\nFor ever.\n\nDeprecated."
    assert tool.metadata["openapi"] == {"operation": "DELETE /orders/{id}", "id": "delete order!", "deprecated": True}
    hidden = document(
        {"/x": {"get": operation({"in": "query", "name": "q", "description": "a\u200bb"}, summary="x\U000e0041y")}}
    )
    [tool] = imported(hidden)
    assert tool.description == "xy" and tool.input_schema["properties"]["q"]["description"] == "ab"
    assert imported(SHOP).get("orders_create").tags == ("orders",)
    assert imported(document({"/x": {"get": operation()}})).get("op").description == "GET /x"


def test_another_server_is_another_tool_for_who_waits() -> None:
    one, two = (openapi(SHOP, server=f"https://{name}.example.com").get("get_orders").server for name in "ab")
    assert one != two and Runner(openapi(SHOP, server="https://a.example.com"))


# -- whole documents ---------------------------------------------------------------------------------------------------


def test_one_method_that_cannot_be_read_leaves_the_others_of_its_path() -> None:
    item = {"get": {"$ref": "#/nope"}, "put": 5, "post": operation(), "additionalOperations": {"A B": {}, "COPY": {}}}
    tools = imported(document({"/a": item}, "3.2.0"))
    assert [tool.source for tool in tools.report.tools] == ["POST /a", "COPY /a"]
    assert [one.item for one in tools.report.left_out] == ["PUT /a", "GET /a", "A B /a"] or {
        one.item for one in tools.report.left_out
    } == {"PUT /a", "GET /a", "A B /a"}


def test_a_name_does_not_depend_on_what_was_asked_for() -> None:
    given = document({path: {"get": {"operationId": "list"}} for path in ("/a", "/b")})
    assert [tool.name for tool in imported(given)] == ["get_a", "get_b"]
    assert [tool.name for tool in imported(given, only="/a")] == ["get_a"]


def test_the_report_has_what_was_asked_for_alone() -> None:
    given = document({"/a": {"get": operation()}, "/b?x": {"get": {}}, "/c": {"get": {"$ref": "#/nope"}, "post": {}}})
    assert not imported(given, only="/a").report.left_out
    assert [one.item for one in imported(given, only=["/a", "/c"]).report.left_out] == ["GET /c"]
    assert [one.item for one in imported(given, only="GET").report.left_out] == ["GET /c"]


def test_a_body_that_is_optional_and_requires_something_is_required() -> None:
    schema = {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "required": ["a"]}
    tools = imported(
        document({"/x": {"post": operation(requestBody={"content": {"application/json": {"schema": schema}}})}})
    )
    assert (
        next(iter(tools)).input_schema["required"] == ["a"] and "its body is optional" in tools.report.tools[0].notes[0]
    )


def test_what_stands_beside_the_reference_of_a_body_is_kept() -> None:
    schema = {"$ref": "#/components/schemas/X", "required": ["a"], "properties": {"b": TEXT}}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    given = document(
        {"/x": {"post": operation(requestBody=body)}}, components={"schemas": {"X": {"properties": {"a": TEXT}}}}
    )
    found = schema_of(given)
    assert [*found["properties"]] == ["body"]
    assert not jsonschema_rs.is_valid(found, {"body": {"b": "x"}}) and jsonschema_rs.is_valid(
        found, {"body": {"a": "x"}}
    )


@pytest.mark.parametrize(
    ("schema", "many"),
    [
        ({"type": ["string", "null"], "format": "binary"}, False),
        ({"allOf": [{"type": "string", "format": "binary"}]}, False),
        ({"$ref": "#/components/schemas/File"}, False),
        ({"type": "array", "items": {"$ref": "#/components/schemas/File"}}, True),
        ({"anyOf": [{"type": "string", "format": "binary"}, {"type": "array", "items": {"format": "binary"}}]}, None),
    ],
)
def test_a_file_is_found_however_it_is_written(schema: Any, many: bool | None) -> None:
    content = {"multipart/form-data": {"schema": {"type": "object", "properties": {"f": schema}}}}
    given = document(
        {"/x": {"post": operation(requestBody={"content": content})}},
        components={"schemas": {"File": {"type": "string", "format": "binary"}}},
    )
    found = schema_of(given)["properties"]
    file = {"text": "a", "name": "a.txt"}
    validator = jsonschema_rs.validator_for(found["f"])
    assert validator.is_valid(file) is (many is not True) and validator.is_valid([file]) is (many is not False)
    assert not validator.is_valid("aGk=")


def test_a_file_goes_in_parts_also_where_json_is_offered() -> None:
    schema = {"schema": {"type": "object", "properties": {"f": {"type": "string", "format": "binary"}}}}
    given = document(
        {
            "/x": {
                "post": operation(requestBody={"content": {"application/json": schema, "multipart/form-data": schema}})
            }
        }
    )
    [tool] = imported(given)
    assert tool.handler.__self__.signature.body.kind == "multipart"  # type: ignore[attr-defined]
    for listed, media in (
        (["application/json-patch+json", "application/json"], "application/json"),
        (["application/*+json"], "application/json"),
    ):
        content = {one: {"schema": {"type": "object"}} for one in listed}
        [tool] = imported(document({"/x": {"post": operation(requestBody={"content": content})}}))
        assert tool.handler.__self__.signature.body.media == media  # type: ignore[attr-defined]


def test_the_work_of_a_whole_document_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrule.openapi.document._MOST_UNITS", 4_000_000)
    shared = {"type": "object", "properties": {f"p{one}": TEXT for one in range(6_000)}}
    body = {"content": {"application/json": {"schema": {"allOf": [{"$ref": "#/components/schemas/S"}]}}}}
    given = document(
        {f"/x{one}": {"post": {"operationId": f"op{one}", "requestBody": body}} for one in range(20)},
        components={"schemas": {"S": shared}},
    )
    with pytest.raises(DefinitionError, match="takes too much work"):
        imported(given, budget=None)
    many = document({f"/x{one}": {"get": {}} for one in range(10_001)})
    with pytest.raises(DefinitionError, match="over 10,000 operations"):
        imported(many, budget=None)


def test_merge_keys_of_yaml_are_keys_like_any_other(tmp_path: Path) -> None:
    lines = ["openapi: 3.1.0", "paths: {}", "a0: &a0 {k: v}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 30)]
    (tmp_path / "api.yaml").write_text("\n".join(lines))
    assert not imported(tmp_path / "api.yaml")


def test_what_is_no_schema_shows_nothing_of_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("github.com: {oauth_token: gho_secret}\nlist: [gho_secret]")
    for reference in ("hosts.yml", "hosts.yml#/github.com", "hosts.yml#/list", "hosts.yml#/list/0"):
        tools = imported(taking({"$ref": reference}), roots=tmp_path)
        assert "gho_secret" not in str(tools.report) + "".join(str(tool.input_schema) for tool in tools)


def test_a_document_of_3_2_may_name_itself() -> None:
    given = {
        **taking({"$ref": "https://api.example.com/api#/components/schemas/S"}, components={"schemas": {"S": TEXT}})
    }
    given = {**given, "openapi": "3.2.0", "$self": "https://api.example.com/api"}
    assert not jsonschema_rs.is_valid(schema_of(given), {"body": 7})


def test_the_texts_of_the_report_are_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    given = document({"/a\nWARNING forged \x1b[2J": {"get": {}}, "/b": {"get": operation({"$ref": "#/a\nb\u200b"})}})
    report = imported(given).report
    assert all(text.isprintable() for one in report.left_out for text in (one.item, one.reason))
    assert "\x1b" not in caplog.text


def test_another_place_of_an_argument_is_another_tool_for_who_waits() -> None:
    one, two = (
        next(iter(imported(document({"/x": {"get": operation({"in": place, "name": "a", "schema": TEXT})}})))).server
        for place in ("query", "header")
    )
    assert one != two


def test_a_schema_that_refers_to_itself_hundreds_of_times_is_read_once() -> None:
    itself = {"allOf": [{"$ref": "#/components/schemas/A"}] * 200, "properties": {"id": {"readOnly": True}}}
    assert converted({"$ref": "#/components/schemas/A"}, 1, A=itself)["$ref"]


@pytest.mark.parametrize(
    "shared",
    [
        {"parameters": [{"in": "query", "name": f"q{one}", "schema": TEXT} for one in range(499)]},
        {"get": {"security": [{"key": []}] * 50_000}},
    ],
    ids=["parameters", "security"],
)
def test_what_thousands_of_paths_share_is_no_work_without_a_bound(
    shared: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ferrule.openapi.document._MOST_UNITS", 1_000_000)
    item = {"get": {}, **shared}
    given = document(
        {f"/x{one}": {"$ref": "#/components/pathItems/P"} for one in range(9_000)},
        components={
            "pathItems": {"P": item},
            "securitySchemes": {"key": {"type": "apiKey", "in": "query", "name": "key"}},
        },
    )
    with pytest.raises(DefinitionError, match="takes too much work"):
        import_operations({**given, "openapi": "3.1.0"}, calls=False)


@pytest.mark.parametrize(
    ("path", "reason"),
    [("/" + "x" * 1_001, "over 1,000 characters"), ("/a\u00adb", "must not have"), ("/a\u3164b", "must not have")],
)
def test_a_path_that_nobody_could_read_is_no_operation(path: str, reason: str) -> None:
    [left_out] = import_operations(document({path: {"get": {}}}), calls=False).report.left_out
    assert reason in left_out.reason and len(left_out.item) <= 500


def test_what_a_document_calls_something_has_a_bound() -> None:
    given = document({"/x": {"get": {"operationId": "i" * 5_000, "tags": ["t" * 5_000] * 100, "summary": "s" * 9_000}}})
    [tool] = import_operations(given, calls=False)
    assert len(tool.name) <= 128 and len(tool.tags) <= 50 and len(tool.description) <= 8_000
    assert len(tool.metadata["openapi"]["id"]) == 1_000 and {len(tag) for tag in tool.tags} == {1_000}


def test_a_reference_that_leads_to_nothing_but_itself_is_refused() -> None:
    with pytest.raises(DefinitionError, match="leads through more than 20 references"):
        converted({"properties": {"p": {"$ref": "#/components/schemas/A"}}}, 1, A={"$ref": "#/components/schemas/A"})
