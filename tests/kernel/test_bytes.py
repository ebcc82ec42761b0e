"""Bytes in arguments are read and written as Pydantic does: as UTF-8, unless their author says otherwise."""

from __future__ import annotations

import base64
import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    Base64Bytes,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretBytes,
    SecretStr,
    model_serializer,
)
from typing_extensions import TypedDict

from ferrule import Runner, Tool, ToolCall, ToolContext, allow, ask, deny, tool
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


class InModel(BaseModel):
    inner: list[bytes]
    data: bytes | None


SHAPES = [
    Shape(bytes, lambda data: data, lambda text: text),
    Shape(Annotated[bytes, Field(max_length=50)], lambda data: data, lambda text: text),
    Shape(Held, Held, lambda text: {"data": text}),
    Shape(Typed, lambda data: {"data": data}, lambda text: {"data": text}),
    Shape(dict[bytes, int], lambda data: {data: 1}, lambda text: {text: 1}),
    Shape(dict[str, set[bytes]], lambda data: {"k": {data}}, lambda text: {"k": [text]}),
    Shape(tuple[int, bytes], lambda data: (1, data), lambda text: [1, text]),
    Shape(Sequence[deque[bytes]], lambda data: [deque([data])], lambda text: [[text]]),
    Shape(InModel, lambda data: InModel(inner=[data], data=data), lambda text: {"inner": [text], "data": text}),
]


@given(st.sampled_from(SHAPES), st.text(max_size=9))
def test_a_guard_reads_the_text_of_bytes(shape: Shape, text: str) -> None:
    got: list[Any] = []
    shown: list[Any] = []
    one = taking(shape.annotation, got)
    guards = [lambda call, _: shown.append(thaw(call.arguments["value"]))]
    expected, data = shape.text(text), shape.make(text.encode())
    for sent in (expected, data):
        result, _ = run(one, "take", {"value": sent}, guards=guards)
        assert result.success, result.error
    assert got == [data] * 2 and shown == [expected] * 2
    assert jsonschema_rs.validator_for(thaw(one.input_schema)).is_valid({"value": expected})


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
    guards = [lambda call, _: None if thaw(call.arguments["value"]) == sent else deny("")]
    result, _ = run(one, "take", {"value": sent}, guards=guards)
    assert result.success and got == [expected]
    if isinstance(expected, BaseModel | SecretBytes):
        result, _ = run(one, "take", {"value": expected}, guards=guards)
        assert result.success and got[1] == expected


class Order(BaseModel):
    key: SecretStr
    own: InHex


def test_an_object_with_a_secret_is_refused() -> None:
    order = Order(key=SecretStr("k"), own=InHex(data=b"abcd"))
    result, _ = run(taking(Order, got := []), "take", {"value": order})
    assert result.status == "invalid" and "give its fields as a dict" in (result.error or "")
    result, _ = run(taking(Order, got), "take", {"value": {"key": order.key, "own": order.own}})
    assert result.success and got == [order]


def test_bytes_that_are_no_text_are_refused() -> None:
    result, _ = run(taking(bytes, got := []), "take", {"value": b"\xff"})
    assert result.status == "invalid" and not got


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
