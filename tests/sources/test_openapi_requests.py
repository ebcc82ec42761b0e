"""What goes over the wire, byte by byte: parameters in all places and styles, and bodies of all kinds."""

from __future__ import annotations

import base64
import json
import re
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from openapi_wire import Wire, called, document, imported, operation

from ferrule import ToolError
from ferrule.openapi.arguments import Argument, Signature
from ferrule.openapi.bodies import Encoding
from ferrule.openapi.requests import make_request

BLUE, COLORS, RGB = "blue", ["blue", "black", "brown"], {"R": 100, "G": 200, "B": 150}

# https://spec.openapis.org/oas/v3.2.0#style-examples, with what is reserved written as in a URL
STYLES = [
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
CASES = [
    pytest.param(place, style, explode, value, written, id=f"{place} {style} {explode} {type(value).__name__}")
    for place, style, explode, *texts in STYLES
    for value, written in zip((BLUE, COLORS, RGB), texts, strict=True)
    if written is not None
]


@pytest.mark.parametrize(("place", "style", "explode", "value", "written"), CASES)
def test_a_parameter_is_written_as_the_table_of_the_specification_has_it(
    place: str, style: str, explode: bool, value: Any, written: str
) -> None:
    path = "/x/{color}" if place == "path" else "/x"
    parameter = {"in": place, "name": "color", "style": style, "explode": explode, "schema": {}, "required": True}
    result, wire = called(document({path: {"get": operation(parameter)}}, "3.2.0"), {"color": value})
    assert result.success, result.text
    target = wire.lines[0].split(" ")[1]
    found = {
        "path": target.removeprefix("/x/"),
        "query": target.partition("?")[2],
        "header": wire.header("color"),
        "cookie": wire.header("cookie"),
    }
    assert found[place] == written


def text_of(name: str, place: str = "query", **more: Any) -> dict[str, Any]:
    """A parameter that is text."""
    return {
        "in": place,
        "name": name,
        "schema": {"type": "string"},
        **({"required": True} if place == "path" else {}),
        **more,
    }


def with_body(media: str, schema: Any, *, required: bool = True, **more: Any) -> dict[str, Any]:
    """A document with one operation that has this body."""
    body = {"required": required, "content": {media: {"schema": schema, **more}}}
    return document({"/x": {"post": operation(requestBody=body)}})


def properties(**schemas: Any) -> dict[str, Any]:
    return {"type": "object", "properties": schemas}


def test_a_whole_request_is_these_bytes() -> None:
    body = {"content": {"application/json": {"schema": properties(naïve={"type": "string"})}}}
    given = document(
        {
            "/a/{id}/é": {
                "put": operation(
                    text_of("id", "path"),
                    {"in": "query", "name": "q[]", "schema": {"type": "array", "items": {"type": "string"}}},
                    {"in": "header", "name": "X-Trace", "schema": {"type": "integer"}},
                    requestBody=body,
                )
            }
        }
    )
    result, wire = called(given, {"id": "a/b c?%2e", "q": ["1&2", "ü"], "X-Trace": 7, "na_ve": "é\n"})
    assert result.success, result.text
    assert wire.heard[0].decode() == (
        "PUT /a/a%2Fb%20c%3F%252e/%C3%A9?q%5B%5D=1%262&q%5B%5D=%C3%BC HTTP/1.1\r\n"
        f"Host: {wire.url.removeprefix('http://')}\r\n"
        "Accept: application/json, text/*;q=0.9, */*;q=0.8\r\n"
        "Accept-Encoding: identity\r\n"
        "X-Trace: 7\r\n"
        "Content-Type: application/json\r\n"
        "Content-Length: 17\r\n"
        "User-Agent: ferrule\r\n"
        "\r\n"
        '{"naïve":"é\\n"}'
    )


# -- parameters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameter", "value", "query"),
    [
        (
            {"style": "deepObject"},
            {"a": {"b": [1, 2]}, "c": [{"d": True}]},
            "p%5Ba%5D%5Bb%5D%5B%5D=1&p%5Ba%5D%5Bb%5D%5B%5D=2&p%5Bc%5D%5B0%5D%5Bd%5D=true",
        ),
        ({"style": "deepObject"}, ["x", "y"], "p%5B%5D=x&p%5B%5D=y"),
        ({"allowReserved": True}, "a/b?c=d&e#f", "p=a/b?c%3Dd%26e%23f"),
        ({}, [], ""),
        ({}, [None, "a"], "p=a"),
        ({}, {"a": None}, ""),
        ({}, None, ""),
        ({}, 0.5, "p=0.5"),
        ({}, True, "p=true"),
        ({}, "", "p="),
    ],
)
def test_a_value_stands_in_the_query_like_this(parameter: Any, value: Any, query: str) -> None:
    given = document({"/x": {"get": operation({"in": "query", "name": "p", "schema": {}, **parameter})}})
    _, wire = called(given, {"p": value})
    assert wire.lines == [f"GET /x{'?' if query else ''}{query} HTTP/1.1"]


@pytest.mark.parametrize(
    ("content", "value", "query"),
    [
        ({"application/json": {"schema": {}}}, {"a": [1, "é"]}, "p=%7B%22a%22%3A%5B1%2C%22%C3%A9%22%5D%7D"),
        ({"text/plain": {}}, "a b", "p=a%20b"),
    ],
)
def test_a_parameter_with_content_is_written_as_that_type(content: Any, value: Any, query: str) -> None:
    given = document({"/x": {"get": operation({"in": "query", "name": "p", "content": content})}})
    _, wire = called(given, {"p": value})
    assert wire.lines == [f"GET /x?{query} HTTP/1.1"]


@pytest.mark.parametrize(
    ("media", "query"),
    [
        ("application/x-www-form-urlencoded", "a=1&b=x%20y"),
        ("application/json", "%7B%22a%22%3A1%2C%22b%22%3A%22x%20y%22%7D"),
    ],
)
def test_a_whole_query_string_is_one_parameter_since_3_2(media: str, query: str) -> None:
    content = {media: {"schema": properties(a={"type": "integer"}, b={"type": "string"})}}
    parameter = {"in": "querystring", "name": "all", "content": content}
    _, wire = called(document({"/x": {"get": operation(parameter)}}, "3.2.0"), {"all": {"a": 1, "b": "x y"}})
    assert wire.lines == [f"GET /x?{query} HTTP/1.1"]


def test_the_parameters_of_a_path_are_those_of_its_operations_which_have_the_last_word() -> None:
    item = {
        "parameters": [text_of("id", "path"), text_of("a"), text_of("b")],
        "get": operation({"in": "query", "name": "b", "schema": {"type": "integer"}}),
    }
    [tool] = imported(document({"/x/{id}": item}))
    assert {name: one["type"] for name, one in tool.input_schema["properties"].items()} == {
        "id": "string",
        "a": "string",
        "b": "integer",
    }


def test_one_name_in_two_places_has_the_place_before_it_and_the_report_says_so() -> None:
    given = document({"/x/{id}": {"get": operation(text_of("id", "path"), text_of("id"), text_of("q"))}})
    tools = imported(given)
    assert [*next(iter(tools)).input_schema["properties"]] == ["path_id", "query_id", "q"]
    assert tools.report.tools[0].notes == (
        "the argument 'path_id' is 'id' in the path",
        "the argument 'query_id' is 'id' in the query",
    )
    _, wire = called(given, {"path_id": "1", "query_id": "2"})
    assert wire.lines == ["GET /x/1?id=2 HTTP/1.1"]


def test_names_that_no_api_takes_are_others_and_stay_apart() -> None:
    given = document({"/x": {"get": operation(text_of("d"), text_of("d<"), text_of("d>"), text_of("f[a]"))}})
    [tool] = imported(given)
    plain, less, more, filtered = tool.input_schema["properties"]
    assert (plain, filtered) == ("d", "f_a") and less.startswith("d_") and more.startswith("d_") and less != more
    _, wire = called(given, {less: "1", more: "2", plain: "0", filtered: "3"})
    assert wire.lines == ["GET /x?d=0&d%3C=1&d%3E=2&f%5Ba%5D=3 HTTP/1.1"]


def test_a_default_is_told_and_not_sent() -> None:
    schema = properties(name={"type": "string"}, limit={"type": "integer", "default": 20})
    given = document({"/x": {"patch": operation(requestBody={"content": {"application/json": {"schema": schema}}})}})
    assert next(iter(imported(given))).input_schema["properties"]["limit"]["description"] == "Left out, it is 20."
    _, wire = called(given, {"name": "a"})
    assert wire.body() == b'{"name":"a"}'


@pytest.mark.parametrize(
    "name", ["Accept", "Content-Type", "Authorization", "Host", "Content-Length", "Cookie", "a b", "x\r\ny"]
)
def test_a_header_that_is_no_parameter_is_none(name: str) -> None:
    given = document({"/x": {"get": operation(text_of(name, "header"))}})
    assert next(iter(imported(given))).input_schema["properties"] == {}


@pytest.mark.parametrize("value", ["a\r\nX-Admin: 1", "a\nb", "\0", "é", " a", "a\x7f"])
def test_what_a_header_cannot_hold_is_not_sent(value: str) -> None:
    result, wire = called(document({"/x": {"get": operation(text_of("X-Note", "header"))}}), {"X-Note": value})
    assert (result.status, result.executed, wire.heard) == ("failed", False, [])
    assert "printable ASCII" in result.text and "Nothing was sent" in result.text


@pytest.mark.parametrize("value", [".", "..", ""])
@pytest.mark.parametrize("style", ["simple", "label", "matrix"])
def test_a_value_that_would_lead_to_another_path_is_not_sent(value: str, style: str) -> None:
    given = document({"/x/{id}/keys": {"delete": operation(text_of("id", "path", style=style))}})
    result, wire = called(given, {"id": value})
    if style == "matrix" or (style == "label" and value == ".."):
        assert wire.lines[0].startswith(("DELETE /x/;id=", "DELETE /x/.../keys"))  # a segment of its own
    else:
        assert (result.executed, wire.heard) == (False, [])


def test_two_values_beside_each_other_make_no_dots_either() -> None:
    given = document({"/x/{a}{b}": {"get": operation(text_of("a", "path"), text_of("b", "path"))}})
    result, wire = called(given, {"a": ".", "b": "."})
    assert (result.executed, wire.heard) == (False, [])


def test_half_of_a_surrogate_pair_is_not_sent() -> None:
    result, wire = called(document({"/x": {"get": operation(text_of("q"))}}), {"q": "\ud800"})
    assert wire.heard == [] and result.executed is False


def test_wrong_arguments_and_unknown_ones_are_answered_before_anything_is_sent() -> None:
    given = document({"/x": {"get": operation({"in": "query", "name": "n", "schema": {"type": "integer"}})}})
    for arguments in ({"n": "many"}, {"m": 1}, {"n": [1]}):
        result, wire = called(given, arguments)
        assert (result.status, wire.heard) == ("invalid", [])
    result, wire = called(given, {"n": "7"})
    assert result.repairs and wire.lines == ["GET /x?n=7 HTTP/1.1"]


@pytest.mark.parametrize("required", [True, False])
def test_a_list_of_objects_in_a_style_that_cannot_write_it_is_left_out(required: bool) -> None:
    schema = {"type": "array", "items": {"type": "object"}}
    given = document({"/x": {"get": operation({"in": "query", "name": "p", "schema": schema, "required": required})}})
    tools = imported(given)
    if required:
        assert not tools and "which its style cannot write" in tools.report.left_out[0].reason
    else:
        assert next(iter(tools)).input_schema["properties"] == {}
        assert "which its style cannot write: it is left out" in tools.report.tools[0].notes[0]


# -- bodies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "additionalProperties": True, "properties": {"a": {}}},
        {"type": "object", "properties": {"a": {}}, "minProperties": 1},
        {"allOf": [properties(a={})]},
        {"type": "array"},
        {"type": ["object", "null"], "properties": {"a": {}}},
        {},
    ],
)
def test_a_body_that_is_no_plain_object_is_one_argument(schema: Any) -> None:
    [tool] = imported(with_body("application/json", schema))
    assert [*tool.input_schema["properties"]] == ["body"] and tool.input_schema["required"] == ["body"]


def test_a_plain_object_becomes_arguments_and_its_read_only_parts_do_not() -> None:
    schema = {"$ref": "#/components/schemas/Pet"}
    components = {
        "schemas": {
            "Id": {"type": "integer", "readOnly": True},
            "Pet": {
                **properties(id={"$ref": "#/components/schemas/Id"}, name={"type": "string"}),
                "required": ["id", "name"],
            },
        }
    }
    given = {**with_body("application/json", schema), "components": components}
    [tool] = imported(given)
    assert [*tool.input_schema["properties"]] == ["name"] and tool.input_schema["required"] == ["name"]
    _, wire = called(given, {"name": "Tom"})
    assert (wire.header("content-type"), wire.body()) == ("application/json", b'{"name":"Tom"}')


def test_a_body_that_shares_a_name_with_a_parameter_is_one_argument() -> None:
    body = {"required": True, "content": {"application/json": {"schema": properties(id={"type": "integer"})}}}
    given = document({"/x/{id}": {"put": operation(text_of("id", "path"), requestBody=body)}})
    _, wire = called(given, {"id": "a", "body": {"id": 1}})
    assert (wire.lines, wire.body()) == (["PUT /x/a HTTP/1.1"], b'{"id":1}')


@pytest.mark.parametrize(("required", "sent"), [(True, b"{}"), (False, b"")])
def test_a_body_without_anything_in_it_is_sent_where_it_is_required(required: bool, sent: bytes) -> None:
    given = with_body("application/json", properties(a={"type": "string"}), required=required)
    _, wire = called(given, {})
    assert wire.body() == sent
    assert wire.header("content-type") == ("application/json" if required else None)


def test_a_null_that_was_given_is_sent() -> None:
    _, wire = called(with_body("application/json", properties(a={"type": ["string", "null"]})), {"a": None})
    assert wire.body() == b'{"a":null}'


def test_json_goes_before_other_types_and_under_its_own_name() -> None:
    contents = {
        name: {"schema": properties(a={"type": "string"})}
        for name in ("text/xml", "multipart/form-data", "application/vnd.api+json")
    }
    given = document({"/x": {"post": operation(requestBody={"content": contents})}})
    _, wire = called(given, {"a": "1"})
    assert (wire.header("content-type"), wire.body()) == ("application/vnd.api+json", b'{"a":"1"}')


def test_a_form_is_written_by_its_encodings() -> None:
    schema = properties(
        plain={"type": "string"},
        listed={"type": "array", "items": {"type": "string"}},
        deep={"type": "object"},
        items={"type": "array", "items": {"type": "object"}},
        object={"type": "object"},
        none={"type": ["string", "null"]},
    )
    encoding = {"deep": {"style": "deepObject", "explode": True}, "items": {"style": "deepObject", "explode": True}}
    given = with_body("application/x-www-form-urlencoded", schema, encoding=encoding)
    arguments = {
        "plain": "a b&c+é",
        "listed": ["1", "2"],
        "deep": {"k": {"l": 1}},
        "items": [{"price": "p"}],
        "object": {"x": [1]},
        "none": None,
    }
    _, wire = called(given, arguments)
    assert wire.header("content-type") == "application/x-www-form-urlencoded"
    assert wire.body().decode() == (
        "plain=a%20b%26c%2B%C3%A9&listed=1&listed=2&deep%5Bk%5D%5Bl%5D=1"
        "&items%5B0%5D%5Bprice%5D=p&object=%7B%22x%22%3A%5B1%5D%7D"
    )


def parts_of(wire: Wire) -> list[tuple[str, bytes]]:
    """The headers, in one text, and the content of each part."""
    kind = wire.header("content-type") or ""
    assert kind.startswith("multipart/form-data; boundary=")
    boundary = kind.partition("boundary=")[2].encode()
    parts = wire.body().split(b"--" + boundary)
    assert parts[0] == b"" and parts[-1].strip() == b"--"
    split = (part.removeprefix(b"\r\n").removesuffix(b"\r\n").split(b"\r\n\r\n", 1) for part in parts[1:-1])
    return [(head.decode(), content) for head, content in split]


@pytest.mark.parametrize(
    ("version", "schema"),
    [("3.0.4", {"type": "string", "format": "binary"}), ("3.1.0", {"contentMediaType": "image/png"})],
)
def test_a_form_in_parts_carries_files(version: str, schema: Any) -> None:
    whole = properties(
        file=schema, note={"type": "string"}, about={"type": "object"}, more={"type": "array", "items": schema}
    )
    given = {
        **with_body("multipart/form-data", whole, encoding={"file": {"contentType": "image/png"}}),
        "openapi": version,
    }
    png = base64.b64encode(b"\x89PNG\r\n--x").decode()
    arguments = {
        "file": {"data": png, "name": 'a"b\r\nc.png'},
        "note": "é",
        "about": {"x": 1},
        "more": [{"text": "a,b", "name": "t.csv", "mime_type": "text/csv"}],
    }
    result, wire = called(given, arguments)
    assert result.success, result.text
    assert parts_of(wire) == [
        (
            'Content-Disposition: form-data; name="file"; filename="a%22b%0D%0Ac.png"\r\nContent-Type: image/png',
            b"\x89PNG\r\n--x",
        ),
        ('Content-Disposition: form-data; name="note"', "é".encode()),
        ('Content-Disposition: form-data; name="about"\r\nContent-Type: application/json', b'{"x":1}'),
        ('Content-Disposition: form-data; name="more"; filename="t.csv"\r\nContent-Type: text/csv', b"a,b"),
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
def test_a_file_that_is_none_is_not_sent(file: Any, why: str) -> None:
    given = with_body("multipart/form-data", properties(file={"type": "string", "format": "binary"}))
    result, wire = called(given, {"file": file})
    assert (result.executed, wire.heard) == (False, []) and why in result.text


@pytest.mark.parametrize(
    ("media", "body", "kind", "sent"),
    [
        ("text/plain", "é\n", "text/plain; charset=utf-8", "é\n".encode()),
        ("application/xml", "<a/>", "application/xml; charset=utf-8", b"<a/>"),
        ("application/octet-stream", "AP8=", "application/octet-stream", b"\x00\xff"),
        ("image/*", "AP8=", "application/octet-stream", b"\x00\xff"),
    ],
)
def test_text_and_bytes_are_sent_as_they_are(media: str, body: str, kind: str, sent: bytes) -> None:
    _, wire = called(
        with_body(media, {"type": "string", "format": "binary"} if "text" not in media else {}), {"body": body}
    )
    assert (wire.header("content-type"), wire.body()) == (kind, sent)


# -- laws --------------------------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


def written(place: Any, encoding: Encoding, value: Any) -> Any:
    path = "/a/{p}/z" if place == "path" else "/a"
    return make_request(
        "GET", path, Signature((Argument("p", place, "p", encoding, False),), None, {}, ()), {"p": value}
    )


@given(TEXTS)
def test_every_text_in_a_query_is_read_as_that_text(text: str) -> None:
    for encoding in (Encoding(), Encoding(reserved=True), Encoding("form", False), Encoding(media="text/plain")):
        url = f"http://h/a?{'&'.join(written('query', encoding, text).query)}"
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
        made = written(place, encoding, texts)
    except ToolError:
        return
    whole = {
        "query": "".join(made.query).partition("=")[2],
        "cookie": "".join(made.cookies).partition("=")[2],
        "header": "".join(value for _, value in made.headers),
        "path": made.path.removeprefix("/a/").removesuffix("/z").removeprefix(lead),
    }[place]
    assert [one if place == "header" else unquote(one) for one in whole.split(separator)] == texts


def test_a_list_that_could_be_read_otherwise_is_refused() -> None:
    parameter = {"in": "query", "name": "tags", "style": "pipeDelimited", "explode": False, "schema": {"type": "array"}}
    result, wire = called(document({"/x": {"get": operation(parameter)}}), {"tags": ["a|b", "c"]})
    assert (result.executed, result.retryable, wire.heard) == (False, False, [])
    assert "'tags' has '|' in a value, and it separates the values there. Nothing was sent" in result.text


@given(st.dictionaries(TEXTS, TEXTS))
def test_every_object_in_a_query_is_read_as_that_object(value: dict[str, str]) -> None:
    query = "&".join(written("query", Encoding("deepObject", True), value).query)
    assert parse_qsl(query, keep_blank_values=True) == [(f"p[{key}]", text) for key, text in value.items()]


@given(TEXTS | st.lists(st.sampled_from(["/", "\\", ".", "..", ";", "a", "%"])).map("".join))
@example("/.")
@example("..;a")
def test_every_text_in_a_path_is_one_part_of_it_or_refused(text: str) -> None:
    leads_on = {"." * dots for dots in (1, 2)} & {part.partition(";")[0] for part in re.split(r"[/\\]", text)}
    if leads_on or not text:
        with pytest.raises(ToolError, match="Nothing was sent"):
            written("path", Encoding("simple"), text)
    else:
        parts = written("path", Encoding("simple"), text).path.split("/")
        assert [unquote(part) for part in parts] == ["", "a", text, "z"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner)
    )
)
def test_every_value_in_a_body_is_read_as_that_value(value: Any) -> None:
    [tool] = imported(with_body("application/json", {}))
    made = make_request("POST", "/x", tool.handler.__self__.signature, {"body": value})  # type: ignore[attr-defined]
    assert json.loads(made.content) == value


def spread(name: str, place: str = "query", style: str = "form") -> dict[str, Any]:
    schema = {"type": "object", "additionalProperties": {"type": "string"}}
    return {"in": place, "name": name, "style": style, "explode": True, "schema": schema}


PLAIN = {"type": "string"}


@pytest.mark.parametrize(
    ("parameters", "arguments"),
    [
        ([spread("a"), spread("b")], {"a": {"k": "1"}, "b": {"k": "2"}}),
        ([spread("a", "cookie"), spread("b", "cookie")], {"a": {"k": "1"}, "b": {"k": "2"}}),
        (
            [spread("f", style="deepObject"), {"in": "query", "name": "f[k]", "schema": PLAIN}],
            {"f": {"k": "1"}},
        ),
        ([spread("a", "cookie", "cookie")], {"a": {"k=1; sid": "2"}}),
        ([spread("a", "cookie", "cookie")], {"a": {"": "2"}}),
    ],
    ids=["query", "cookie", "deepObject", "cookie name", "no cookie name"],
)
def test_a_key_takes_the_place_of_no_other_parameter(parameters: Any, arguments: Any) -> None:
    given = document({"/x": {"get": operation(*parameters)}}, "3.2.0")
    result, wire = called(given, arguments)
    assert (result.status, result.executed, wire.heard) == ("failed", False, []), result.text
    assert "Nothing was sent" in result.text


def test_a_key_takes_the_place_of_no_other_field_of_a_form() -> None:
    inner = {"type": "object", "additionalProperties": PLAIN}
    schema = {"type": "object", "properties": {"a": inner, "k": PLAIN}}
    about = {"schema": schema, "encoding": {"a": {"style": "form", "explode": True}}}
    given = document({"/x": {"post": operation(requestBody={"content": {"application/x-www-form-urlencoded": about}})}})
    result, wire = called(given, {"a": {"k": "1"}})
    assert (result.status, wire.heard) == ("failed", []), result.text
    result, wire = called(given, {"a": {"m": "1"}, "k": "2"})
    assert wire.body() == b"m=1&k=2"
