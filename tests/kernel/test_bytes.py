"""Bytes in arguments are base64 (RFC 4648, section 4), wherever they are, unless their author says otherwise."""

from __future__ import annotations

import base64
import dataclasses
import enum
from collections import deque
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isolated_tools import gives_bytes, length_of
from pydantic import (
    AfterValidator,
    Base64Bytes,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    RootModel,
    SecretBytes,
    SecretStr,
    SerializeAsAny,
    create_model,
    model_serializer,
)
from typing_extensions import TypedDict

from ferrule import DefinitionError, Runner, Tool, ToolCall, ToolContext, allow, ask, deny, tool
from ferrule.values.frozen import thaw
from watched import run


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def taking(annotation: Any, got: list[Any], **default: Any) -> Tool:
    async def take(value: Any) -> None:
        got.append(value)

    if default:
        take.__defaults__ = (default["default"],)
    take.__annotations__["value"] = annotation
    return tool(take)


class Shape(NamedTuple):
    """A type with bytes in it.

    Attributes:
        make: Makes a value of the type from some bytes.
        text: Makes the JSON of that value from the text of the bytes.
    """

    annotation: Any
    make: Callable[[bytes], Any]
    text: Callable[[str], Any]


@dataclasses.dataclass
class Held:
    data: bytes


class Typed(TypedDict):
    data: bytes


def in_model(inner: Shape) -> Shape:
    made = create_model("Made", inner=(inner.annotation, ...), data=(bytes, ...))
    return Shape(
        made,
        lambda data: made(inner=inner.make(data), data=data),
        lambda text: {"inner": inner.text(text), "data": text},
    )


def in_lists(kind: Any, make: Any) -> Callable[[Shape], Shape]:
    return lambda inner: Shape(
        kind[inner.annotation], lambda data: make([inner.make(data)]), lambda text: [inner.text(text)]
    )


BYTES = Shape(bytes, lambda data: data, lambda text: text)


LEAVES = [
    BYTES,
    Shape(Annotated[bytes, Field(max_length=50)], BYTES.make, BYTES.text),
    Shape(bytes | None, BYTES.make, BYTES.text),
    Shape(Held, Held, lambda text: {"data": text}),
    Shape(Typed, lambda data: {"data": data}, lambda text: {"data": text}),
    Shape(dict[bytes, int], lambda data: {data: 1}, lambda text: {text: 1}),
    Shape(set[bytes], lambda data: {data}, lambda text: [text]),
    Shape(tuple[int, bytes], lambda data: (1, data), lambda text: [1, text]),
]


ROUND: list[Callable[[Shape], Shape]] = [
    in_model,
    in_lists(list, list),
    in_lists(Sequence, list),
    in_lists(deque, deque),
    lambda inner: Shape(
        dict[str, inner.annotation],
        lambda data: {"k": inner.make(data)},
        lambda text: {"k": inner.text(text)},
    ),
    lambda inner: inner._replace(annotation=inner.annotation | None),
]


def nested(inner: st.SearchStrategy[Shape]) -> st.SearchStrategy[Shape]:
    return st.builds(lambda wrap, shape: wrap(shape), st.sampled_from(ROUND), inner)


SHAPES = st.recursive(st.sampled_from(LEAVES), nested, max_leaves=3)


def spelled_otherwise(text: str) -> set[str]:
    """Return texts that Pydantic or Python would decode to the same bytes."""
    texts = {text.translate({43: "-", 47: "_"}), text.rstrip("="), f"{text}\n", f" {text}", f"{text}!"}
    if text.endswith("=="):  # the last four of these bits say nothing
        texts.add(f"{text[:-3]}{chr(ord(text[-3]) + 1)}==")
    return texts - {text}


@given(SHAPES, st.binary(max_size=9))
def test_guards_read_base64_and_no_other_text_for_the_same_bytes_is_taken(shape: Shape, data: bytes) -> None:
    got: list[Any] = []
    shown: list[Any] = []
    one = taking(shape.annotation, got)
    guards = [lambda call, _: shown.append(thaw(call.arguments["value"]))]
    expected = shape.text(encode(data))
    for sent in (expected, shape.make(data)):
        result, _ = run(one, "take", {"value": sent}, guards=guards)
        assert result.success, result.error
    assert got == [shape.make(data)] * 2 and shown == [expected] * 2
    assert jsonschema_rs.validator_for(thaw(one.input_schema)).is_valid({"value": expected})
    for text in spelled_otherwise(encode(data)):
        result, _ = run(one, "take", {"value": shape.text(text)})
        assert result.status == "invalid" and len(got) == 2
    with_default = taking(shape.annotation, got, default=shape.make(data))
    result, _ = run(with_default, "take", {}, guards=guards)
    assert result.success and got[2:] == [shape.make(data)] and shown[2:] == [expected]
    assert thaw(with_default.input_schema)["properties"]["value"]["default"] == expected


def test_schema_and_errors_speak_of_base64_and_the_length_of_the_bytes() -> None:
    one = taking(Annotated[bytes, Field(min_length=2, max_length=7)], [])
    schema = {"type": "string", "contentEncoding": "base64", "minLength": 4, "maxLength": 12}
    assert thaw(one.input_schema)["properties"]["value"] == schema
    for sent, expected in (
        ("hello", "'value' must be bytes in base64 (with + and /, padded by =), got string \"hello\""),
        (encode(b"a"), "'value' must have at least 2 bytes"),
        (encode(b"abcdefgh"), "'value' must have at most 7 bytes"),
    ):
        result, _ = run(one, "take", {"value": sent})
        assert result.status == "invalid" and expected in (result.error or "")


class InHex(BaseModel):
    model_config = ConfigDict(ser_json_bytes="hex", val_json_bytes="hex")
    data: bytes
    more: list[bytes] = []


class ByItself(BaseModel):
    data: bytes

    @model_serializer
    def plain(self) -> dict[str, Any]:
        return {"data": self.data}


OWN: dict[str, tuple[Any, Any, Any]] = {
    "a model's setting": (InHex, {"data": "abcd", "more": ["ff"]}, InHex(data=b"\xab\xcd", more=[b"\xff"])),
    "a model's serializer": (ByItself, {"data": "abcd"}, ByItself(data=b"abcd")),
    "base64 of Pydantic's": (Base64Bytes, "YWI=", b"ab"),
    "a secret": (SecretBytes, "abcd", SecretBytes(b"abcd")),
    "a validator and its serializer": (
        Annotated[bytes, AfterValidator(lambda b: bytes.fromhex(b.decode())), PlainSerializer(lambda b: b.hex())],
        "abcd",
        b"\xab\xcd",
    ),
}


@pytest.mark.parametrize("case", OWN)
def test_an_authors_own_form_of_bytes_is_kept(case: str) -> None:
    annotation, sent, expected = OWN[case]
    got: list[Any] = []
    one = taking(annotation, got)
    assert "contentEncoding" not in str(one.input_schema)
    guards = [lambda call, _: None if thaw(call.arguments["value"]) == sent else deny("")]
    result, _ = run(one, "take", {"value": sent}, guards=guards)
    assert result.success and got == [expected]
    if isinstance(expected, BaseModel | SecretBytes):
        result, _ = run(one, "take", {"value": expected}, guards=guards)
        assert result.success and got[1] == expected


class Order(BaseModel):
    data: bytes
    key: SecretStr
    other: SecretBytes
    own: InHex


class Late(BaseModel):
    model_config = ConfigDict(defer_build=True)
    data: bytes


def test_an_object_is_written_as_its_class_is_read() -> None:
    got: list[Any] = []
    order = Order(data=b"abcd", key=SecretStr("k"), other=SecretBytes(b"abcd"), own=InHex(data=b"abcd"))
    for kind, value in ((Order, order), (Late, Late.model_construct(data=b"abcd"))):
        result, _ = run(taking(kind, got), "take", {"value": value})
        assert result.success and got[-1] == value


def test_bytes_from_python_are_refused_if_their_form_is_unknown() -> None:
    async def both(data: bytes, own: InHex) -> str:
        return f"{data!r} {own.data!r}"

    result, _ = run(tool(both), "both", {"data": encode(b"abcd"), "own": InHex(data=b"abcd")})
    assert result.output == "b'abcd' b'abcd'"
    result, _ = run(tool(both), "both", {"data": b"abcd", "own": {"data": b"abcd"}})
    assert result.status == "invalid" and "give a text, such as base64" in (result.error or "")


class Coloured(enum.Enum):
    A = b"a"


class Stripped(RootModel[str]):
    pass


class Tree(RootModel["list[Tree] | bytes | str"]):
    pass


class Any_(BaseModel):
    data: SerializeAsAny[Held]


class Polymorphic(BaseModel):
    model_config = ConfigDict(polymorphic_serialization=True)
    data: bytes


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        (str | bytes, "take one of both"),
        (int | Annotated[bytes, AfterValidator(bytes.upper)], "take one of both"),
        (dict[str | bytes, int], "take one of both"),
        (dict[str, bytes | Any], "take one of both"),
        (bytes | Base64Bytes, "take one of both"),
        (Annotated[bytes | Stripped, Field(union_mode="left_to_right")], "take one of both"),
        (int | Tree, "take one of both"),
        (Literal[b"a"], "take the text 'a'"),
        (Coloured, "take the text 'a'"),
        (Any_, "take the declared types"),
        (Polymorphic, "take the declared types"),
    ],
)
def test_an_ambiguous_type_with_bytes_is_refused_at_definition(annotation: Any, reason: str) -> None:
    with pytest.raises(DefinitionError, match=reason):
        taking(annotation, [])


async def test_bytes_arrive_whoever_gives_them() -> None:
    got: list[Any] = []
    one = taking(bytes, got)
    data = b"abcd"

    async def other(call: ToolCall, context: ToolContext, proceed: Any) -> Any:
        return await proceed(call.replace(arguments={"value": data}), context)

    await one(value=data)
    await one.run({"value": data})
    await Runner([one.bind(value=data)]).run("take", {})
    await Runner([one], around=[other]).run("take", {"value": ""})
    changed = [lambda call, _: None if call.arguments["value"] else allow(arguments={"value": data})]
    await Runner([one], guards=changed).run("take", {"value": ""})
    runner = Runner([one], guards=[lambda *_: ask("sure?")], approve=lambda *_: ask("later"))
    await runner.resume((await runner.run("take", {"value": data})).record(), True)
    assert got == [data] * 6


async def test_bytes_reach_a_worker_and_are_refused_on_the_way_out() -> None:
    runner = Runner([tool(length_of, isolation="process"), tool(gives_bytes, isolation="process"), taking(bytes, [])])
    assert (await runner.run("length_of", {"data": b"abcd"})).output == [4, 3]
    result = await runner.run("gives_bytes", {})
    assert result.status == "failed" and "such as base64" in (result.error or "")
