"""A request byte by byte: parameters in all places and styles, and bodies of all kinds."""

from __future__ import annotations

import base64
import re
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from openapi_wire import Wire, called, document, imported, one, operation, properties, text_parameter, with_body

from ferrule import ToolError
from ferrule.openapi.arguments import Argument, Signature
from ferrule.openapi.bodies import Encoding
from ferrule.openapi.requests import make_request

FORM = "application/x-www-form-urlencoded"
TEXT, FILE = {"type": "string"}, {"type": "string", "format": "binary"}
BLUE, COLORS, RGB = "blue", ["blue", "black", "brown"], {"R": 100, "G": 200, "B": 150}
STYLES = [  # https://spec.openapis.org/oas/v3.2.0#style-examples, with what is reserved written as in a URL
    ("path", "matrix", False, ";color=blue", ";color=blue,black,brown", ";color=R,100,G,200,B,150"),
    ("path", "matrix", True, ";color=blue", ";color=blue;color=black;color=brown", ";R=100;G=200;B=150"),
    ("path", "label", False, ".blue", ".blue,black,brown", ".R,100,G,200,B,150"),
    ("path", "label", True, ".blue", ".blue.black.brown", ".R=100.G=200.B=150"),
    ("path", "simple", False, "blue", "blue,black,brown", "R,100,G,200,B,150"),
    ("path", "simple", True, "blue", "blue,black,brown", "R=100,G=200,B=150"),
    ("query", "form", False, "color=blue", "color=blue,black,brown", "color=R,100,G,200,B,150"),
    ("query", "form", True, "color=blue", "color=blue&color=black&color=brown", "R=100&G=200&B=150"),
    ("query", "spaceDelimited", False, None, "color=blue%20black%20brown", "color=R%20100%20G%20200%20B%20150"),
    ("query", "pipeDelimited", False, None, "color=blue%7Cblack%7Cbrown", "color=R%7C100%7CG%7C200%7CB%7C150"),
    ("query", "deepObject", True, None, None, "color%5BR%5D=100&color%5BG%5D=200&color%5BB%5D=150"),
    ("header", "simple", False, "blue", "blue,black,brown", "R,100,G,200,B,150"),
    ("header", "simple", True, "blue", "blue,black,brown", "R=100,G=200,B=150"),
    ("cookie", "form", True, "color=blue", None, None),
    ("cookie", "form", False, "color=blue", "color=blue,black,brown", "color=R,100,G,200,B,150"),
    ("cookie", "cookie", True, "color=blue", None, None),
]


@pytest.mark.parametrize(("place", "style", "explode", "text", "listed", "object_"), STYLES)
def test_a_parameter_is_written_as_in_the_table_of_the_specification(
    place: str, style: str, explode: bool, text: str | None, listed: str | None, object_: str | None
) -> None:
    parameter = {"in": place, "name": "color", "style": style, "explode": explode, "schema": {}, "required": True}
    given = one("get", parameter, path="/x/{color}" if place == "path" else "/x")
    for value, expected in ((BLUE, text), (COLORS, listed), (RGB, object_)):
        if expected is None:
            continue
        result, wire = called(given, {"color": value})
        assert result.success, result.text
        target = wire.lines[0].split(" ")[1]
        found = {
            "path": target.removeprefix("/x/"),
            "query": target.partition("?")[2],
            "header": wire.header("color"),
            "cookie": wire.header("cookie"),
        }
        assert found[place] == expected


# -- parameters --------------------------------------------------------------------------------------------------------

DEEP = "p%5Ba%5D%5Bb%5D%5B%5D=1&p%5Ba%5D%5Bb%5D%5B%5D=2&p%5Bc%5D%5B0%5D%5Bd%5D=true"
JSON_CONTENT = {"content": {"application/json": {"schema": {}}}}


@pytest.mark.parametrize(
    ("parameter", "value", "query"),
    [
        ({"style": "deepObject"}, {"a": {"b": [1, 2]}, "c": [{"d": True}]}, DEEP),
        ({"style": "deepObject"}, ["x", "y"], "p%5B%5D=x&p%5B%5D=y"),
        ({"allowReserved": True}, "a/b?c=d&e#f", "p=a/b?c%3Dd%26e%23f"),
        ({}, [None, "a"], "p=a"),
        ({}, "", "p="),
        (JSON_CONTENT, {"a": [1, "é"]}, "p=%7B%22a%22%3A%5B1%2C%22%C3%A9%22%5D%7D"),
        ({"content": {"text/plain": {}}}, "a b", "p=a%20b"),
        ({"in": "querystring", "content": {FORM: {}}}, {"a": 1, "b": "x y"}, "a=1&b=x%20y"),
        ({"in": "querystring", **JSON_CONTENT}, {"a": 1, "b": "x y"}, "%7B%22a%22%3A1%2C%22b%22%3A%22x%20y%22%7D"),
    ],
)
def test_a_value_is_written_like_this_in_the_query(parameter: Any, value: Any, query: str) -> None:
    schema = {} if "content" in parameter else {"schema": {}}
    _, wire = called(one("get", {"in": "query", "name": "p", **schema, **parameter}), {"p": value})
    assert wire.lines == [f"GET /x{'?' if query else ''}{query} HTTP/1.1"]


def test_an_operation_overrides_the_parameters_of_its_path() -> None:
    item = {
        "parameters": [text_parameter("id", "path"), text_parameter("a"), text_parameter("b")],
        "get": operation({"in": "query", "name": "b", "schema": {"type": "integer"}}),
    }
    [tool] = imported(document({"/x/{id}": item}))
    found = {name: schema["type"] for name, schema in tool.input_schema["properties"].items()}
    assert found == {"id": "string", "a": "string", "b": "integer"}


def test_one_name_in_two_places_gets_the_place_as_a_prefix() -> None:
    given = one("get", text_parameter("id", "path"), text_parameter("id"), text_parameter("q"), path="/x/{id}")
    tools = imported(given)
    assert [*next(iter(tools)).input_schema["properties"]] == ["path_id", "query_id", "q"]
    assert tools.report.tools[0].notes == (
        "the argument 'path_id' is 'id' in the path",
        "the argument 'query_id' is 'id' in the query",
    )
    _, wire = called(given, {"path_id": "1", "query_id": "2"})
    assert wire.lines == ["GET /x/1?id=2 HTTP/1.1"]


def test_names_that_no_api_takes_are_replaced_and_stay_apart() -> None:
    given = one("get", *map(text_parameter, ("d", "d<", "d>", "f[a]")))
    [tool] = imported(given)
    plain, less, more, filtered = tool.input_schema["properties"]
    assert (plain, filtered) == ("d", "f_a") and less.startswith("d_") and more.startswith("d_") and less != more
    _, wire = called(given, {less: "1", more: "2", plain: "0", filtered: "3"})
    assert wire.lines == ["GET /x?d=0&d%3C=1&d%3E=2&f%5Ba%5D=3 HTTP/1.1"]


def test_a_reserved_header_is_not_an_argument() -> None:
    names = ("Accept", "Content-Type", "Authorization", "Host", "Content-Length", "Cookie", "a b", "x\r\ny")
    given = one("get", *(text_parameter(name, "header") for name in names))
    assert next(iter(imported(given))).input_schema["properties"] == {}


@pytest.mark.parametrize("value", ["a\r\nX-Admin: 1", "é", " a", "a\x7f"])
def test_a_value_that_a_header_cannot_hold_is_not_sent(value: str) -> None:
    result, wire = called(one("get", text_parameter("X-Note", "header")), {"X-Note": value})
    assert (result.status, result.executed, wire.heard) == ("failed", False, [])
    assert "printable ASCII" in result.text and "Nothing was run" in result.text


@pytest.mark.parametrize("required", [True, False])
def test_a_list_of_objects_that_its_style_cannot_write_is_left_out(required: bool) -> None:
    schema = {"type": "array", "items": {"type": "object"}}
    tools = imported(one("get", {"in": "query", "name": "p", "schema": schema, "required": required}))
    if required:
        assert not tools and "which its style cannot write" in tools.report.left_out[0].reason
    else:
        assert next(iter(tools)).input_schema["properties"] == {}
        assert "which its style cannot write: it is left out" in tools.report.tools[0].notes[0]


def spread(name: str, place: str = "query", style: str = "form") -> dict[str, Any]:
    """A parameter whose keys become parameters."""
    schema = {"type": "object", "additionalProperties": TEXT}
    return {"in": place, "name": name, "style": style, "explode": True, "schema": schema}


@pytest.mark.parametrize(
    ("parameters", "arguments"),
    [
        ([spread("a"), spread("b")], {"a": {"k": "1"}, "b": {"k": "2"}}),
        ([spread("f", style="deepObject"), text_parameter("f[k]")], {"f": {"k": "1"}}),
        ([spread("a", "cookie", "cookie")], {"a": {"k=1; sid": "2"}}),
    ],
    ids=["query", "deepObject", "cookie name"],
)
def test_a_key_cannot_take_the_place_of_another_parameter(parameters: Any, arguments: Any) -> None:
    result, wire = called(one("get", *parameters), arguments)
    assert (result.status, result.executed, wire.heard) == ("failed", False, []), result.text
    assert "Nothing was run" in result.text


# -- bodies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schema",
    [
        {**properties(a={}), "additionalProperties": True},
        {"allOf": [properties(a={})]},
        {**properties(a={}), "type": ["object", "null"]},
    ],
)
def test_a_body_that_is_not_a_plain_object_is_one_argument(schema: Any) -> None:
    [tool] = imported(with_body("application/json", schema))
    assert [*tool.input_schema["properties"]] == ["body"] and tool.input_schema["required"] == ["body"]


def test_the_properties_of_a_plain_object_become_arguments_unless_read_only() -> None:
    pet = properties(id={"$ref": "#/components/schemas/Id"}, name=TEXT)
    schemas = {"Id": {"type": "integer", "readOnly": True}, "Pet": {**pet, "required": ["id", "name"]}}
    given = with_body("application/json", {"$ref": "#/components/schemas/Pet"})
    given["components"] = {"schemas": schemas}
    [tool] = imported(given)
    assert [*tool.input_schema["properties"]] == ["name"] and tool.input_schema["required"] == ["name"]
    _, wire = called(given, {"name": "Tom"})
    assert (wire.header("content-type"), wire.body()) == ("application/json", b'{"name":"Tom"}')


def test_a_body_that_shares_a_name_with_a_parameter_is_one_argument() -> None:
    body = {"required": True, "content": {"application/json": {"schema": properties(id={"type": "integer"})}}}
    given = one("put", text_parameter("id", "path"), path="/x/{id}", requestBody=body)
    _, wire = called(given, {"id": "a", "body": {"id": 1}})
    assert (wire.lines, wire.body()) == (["PUT /x/a HTTP/1.1"], b'{"id":1}')


@pytest.mark.parametrize(
    ("required", "arguments", "sent"),
    [(True, {}, b"{}"), (False, {}, b""), (True, {"a": None}, b'{"a":null}')],
)
def test_an_empty_body_is_sent_if_it_is_required_and_a_null_always(required: bool, arguments: Any, sent: bytes) -> None:
    given = with_body("application/json", properties(a={"type": ["string", "null"]}), required=required)
    _, wire = called(given, arguments)
    assert wire.body() == sent
    assert wire.header("content-type") == ("application/json" if sent else None)


def test_json_is_preferred_and_sent_under_its_own_name() -> None:
    kinds = ("text/xml", "multipart/form-data", "application/vnd.api+json")
    content = {kind: {"schema": properties(a=TEXT)} for kind in kinds}
    _, wire = called(one("post", requestBody={"content": content}), {"a": "1"})
    assert (wire.header("content-type"), wire.body()) == ("application/vnd.api+json", b'{"a":"1"}')
    patch = {kind: {"schema": {}} for kind in ("application/json-patch+json", "application/json")}
    _, wire = called(one("post", requestBody={"content": patch}), {"body": 1})
    assert wire.header("content-type") == "application/json"
    with_file = {kind: {"schema": properties(a=FILE)} for kind in kinds}
    _, wire = called(one("post", requestBody={"content": with_file}), {"a": {"text": "1"}})
    assert str(wire.header("content-type")).startswith("multipart/form-data"), "which can carry a file"


def test_a_form_is_written_by_its_encodings() -> None:
    schema = properties(
        plain=TEXT,
        listed={"type": "array", "items": TEXT},
        deep={"type": "object"},
        items={"type": "array", "items": {"type": "object"}},
        object={"type": "object"},
        none={"type": ["string", "null"]},
    )
    deep = {"style": "deepObject", "explode": True}
    arguments = {
        "plain": "a b&c+é",
        "listed": ["1", "2"],
        "deep": {"k": {"l": 1}},
        "items": [{"price": "p"}],
        "object": {"x": [1]},
        "none": None,
    }
    _, wire = called(with_body(FORM, schema, encoding={"deep": deep, "items": deep}), arguments)
    assert wire.header("content-type") == FORM
    assert wire.body().decode() == (
        "plain=a%20b%26c%2B%C3%A9&listed=1&listed=2&deep%5Bk%5D%5Bl%5D=1"
        "&items%5B0%5D%5Bprice%5D=p&object=%7B%22x%22%3A%5B1%5D%7D"
    )


def parts_of(wire: Wire) -> list[tuple[str, bytes]]:
    """The headers, in one text, and the content of each part."""
    kind = wire.header("content-type") or ""
    assert kind.startswith("multipart/form-data; boundary=")
    parts = wire.body().split(b"--" + kind.partition("boundary=")[2].encode())
    assert parts[0] == b"" and parts[-1].strip() == b"--"
    split = (part.removeprefix(b"\r\n").removesuffix(b"\r\n").split(b"\r\n\r\n", 1) for part in parts[1:-1])
    return [(head.decode(), content) for head, content in split]


@pytest.mark.parametrize(("version", "schema"), [("3.0.4", FILE), ("3.1.0", {"contentMediaType": "image/png"})])
def test_a_form_in_parts_carries_files(version: str, schema: Any) -> None:
    whole = properties(file=schema, note=TEXT, about={"type": "object"}, more={"type": "array", "items": schema})
    given = with_body("multipart/form-data", whole, encoding={"file": {"contentType": "image/png"}})
    arguments = {
        "file": {"data": base64.b64encode(b"\x89PNG\r\n--x").decode(), "name": 'a"b\r\nc.png'},
        "note": "é",
        "about": {"x": 1},
        "more": [{"text": "a,b", "name": "t.csv", "mime_type": "text/csv"}],
    }
    result, wire = called({**given, "openapi": version}, arguments)
    assert result.success, result.text
    start = "Content-Disposition: form-data; name="
    assert parts_of(wire) == [
        (f'{start}"file"; filename="a%22b%0D%0Ac.png"\r\nContent-Type: image/png', b"\x89PNG\r\n--x"),
        (f'{start}"note"', "é".encode()),
        (f'{start}"about"\r\nContent-Type: application/json', b'{"x":1}'),
        (f'{start}"more"; filename="t.csv"\r\nContent-Type: text/csv', b"a,b"),
    ]


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ({"text": "a", "data": "YQ=="}, "one of text, data and path"),
        ({"name": "a"}, "one of text, data and path"),
        ({"data": "no base64!"}, "is no base64"),
        ({"text": "a", "mime_type": "text/csv\r\nx: y"}, "is none"),
    ],
)
def test_an_invalid_file_is_not_sent(file: Any, why: str) -> None:
    result, wire = called(with_body("multipart/form-data", properties(file=FILE)), {"file": file})
    assert (result.executed, wire.heard) == (False, []) and why in result.text


@pytest.mark.parametrize(
    ("media", "body", "kind", "sent"),
    [
        ("text/plain", "é\n", "text/plain; charset=utf-8", "é\n".encode()),
        ("application/octet-stream", "AP8=", "application/octet-stream", b"\x00\xff"),
        ("image/*", "AP8=", "application/octet-stream", b"\x00\xff"),
    ],
)
def test_text_and_bytes_are_sent_as_they_are(media: str, body: str, kind: str, sent: bytes) -> None:
    _, wire = called(with_body(media, {} if "text" in media else FILE), {"body": body})
    assert (wire.header("content-type"), wire.body()) == (kind, sent)


# -- laws --------------------------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


def request_with(place: Any, encoding: Encoding, value: Any) -> Any:
    """The request with this value of a parameter."""
    path = "/a/{p}/z" if place == "path" else "/a"
    signature = Signature((Argument("p", place, "p", encoding, False),), None, {}, ())
    return make_request("GET", path, signature, {"p": value})


@given(TEXTS)
def test_every_text_in_a_query_is_read_as_that_text(text: str) -> None:
    for encoding in (Encoding(), Encoding(reserved=True), Encoding("form", False), Encoding(media="text/plain")):
        url = f"http://h/a?{'&'.join(request_with('query', encoding, text).query)}"
        assert parse_qsl(urlsplit(url).query, keep_blank_values=True) == [("p", text)]


LISTS = [
    ("query", Encoding("form", False), ","),
    ("query", Encoding("form", False, reserved=True), ","),
    ("query", Encoding("spaceDelimited", False), "%20"),
    ("query", Encoding("pipeDelimited", False), "%7C"),
    ("cookie", Encoding("form", False), ","),
    ("header", Encoding("simple", False), ","),
    ("path", Encoding("simple", False), ","),
    ("path", Encoding("label", True), "."),
    ("path", Encoding("matrix", False), ","),
]


@pytest.mark.parametrize(("place", "encoding", "separator"), LISTS)
@given(texts=st.lists(TEXTS | st.text("a|, .;%C7=2", min_size=1), min_size=1, max_size=4))
@example(texts=["a|b"])
@example(texts=["a", "b c", "d,e", "f.g"])
def test_every_list_is_read_as_that_list_or_refused(
    place: str, encoding: Encoding, separator: str, texts: list[str]
) -> None:
    lead = {"label": ".", "matrix": ";p="}.get(encoding.style, "")
    try:
        made = request_with(place, encoding, texts)
    except ToolError:
        return
    whole = {
        "query": "".join(made.query).partition("=")[2],
        "cookie": "".join(made.cookies).partition("=")[2],
        "header": "".join(value for _, value in made.headers),
        "path": made.path.removeprefix("/a/").removesuffix("/z").removeprefix(lead),
    }[place]
    assert [text if place == "header" else unquote(text) for text in whole.split(separator)] == texts


@given(st.dictionaries(TEXTS, TEXTS))
def test_every_object_in_a_query_is_read_as_that_object(value: dict[str, str]) -> None:
    query = "&".join(request_with("query", Encoding("deepObject", True), value).query)
    assert parse_qsl(query, keep_blank_values=True) == [(f"p[{key}]", text) for key, text in value.items()]


@given(TEXTS | st.lists(st.sampled_from(["/", "\\", ".", "..", ";", "a", "%"])).map("".join))
@example("/.")
@example("..;a")
def test_a_text_is_one_part_of_a_path(text: str) -> None:
    leads_on = {"." * dots for dots in (1, 2)} & {part.partition(";")[0] for part in re.split(r"[/\\]", text)}
    if leads_on or not text:
        with pytest.raises(ToolError, match="in the path"):
            request_with("path", Encoding("simple"), text)
    else:
        parts = request_with("path", Encoding("simple"), text).path.split("/")
        assert [unquote(part) for part in parts] == ["", "a", text, "z"]
