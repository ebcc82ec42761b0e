"""What a handler returns."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, get_args

import pytest
from pydantic import Base64UrlBytes, BaseModel, Field, field_serializer

from cast import add, ask_always
from ferrule import (
    Deferred,
    Event,
    InputRequired,
    Runner,
    Text,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    ToolResult,
    deny,
    tool,
)
from ferrule.executors.process.transfer import pack, unpack
from ferrule.values import content
from ferrule.values.result import Status
from waits import BOUND
from watched import Watch, plain, run

ENDS: list[type[BaseException]] = [GeneratorExit, asyncio.CancelledError, RecursionError]


def asynchronous(make: Callable[[], Any]) -> Tool:
    async def give() -> Any:
        return make()

    return tool(give, name="give")


def threaded(make: Callable[[], Any]) -> Tool:
    def give() -> Any:
        return make()

    return tool(give, name="give")


WAYS = pytest.mark.parametrize("way", [asynchronous, threaded])


def returning(value: Any, returns: Any) -> Tool:
    def give() -> Any:
        return value

    give.__annotations__["return"] = returns
    return tool(give)


@WAYS
async def test_an_output_is_plain_data_and_a_direct_call_gives_the_value(way: Any) -> None:
    value = Holder(inside=[1, {2}])
    give = way(lambda: value)
    result = await Runner([give]).run("give")
    value.inside.append(3)  # which is not seen any more
    assert result.output == {"inside": [1, [2]]} and result.text == '{"inside": [1, [2]]}'
    assert await give() is value


class Blob(BaseModel):
    data: bytes


class InBase64(BaseModel):
    data: Base64UrlBytes


def test_bytes_in_a_value_are_base64_and_those_of_a_model_as_it_writes_them() -> None:
    data = b"\xff\xfe\xfa\x00a"
    text = base64.b64encode(data).decode()
    values: list[tuple[Any, Any, Any]] = [
        (list[bytes], [data], [text]),
        (dict[str, Any], {"data": data, "blobs": [Blob(data=b"abc")]}, {"data": text, "blobs": [{"data": "abc"}]}),
        (InBase64, InBase64(data=b"__8="), {"data": "__8="}),
    ]
    for returns, value, expected in values:
        result, _ = run(returning(value, returns), "give")
        assert (result.status, result.output) == ("ok", expected)
        assert unpack(pack(value, "json"), "json") == result.output  # as a worker gives it
    for value in (data, bytearray(data)):  # bytes alone stay bytes
        assert run(returning(value, bytes), "give")[0].output == data


class Place(BaseModel):
    name: str
    near: list[Place] = []
    source: Any = Field(None, exclude=True, repr=True)

    @field_serializer("near")
    def names(self, near: list[Place]) -> list[str]:
        return [place.name for place in near]


class Holder(BaseModel):
    inside: Any


def test_models_in_a_ring_are_shown_by_their_class_without_excluded_fields() -> None:
    holder = Holder(inside=Place(name="here", source="s3cret"))
    holder.inside = [holder.inside, holder]
    result, _ = run(asynchronous(lambda: holder), "give")
    assert "s3cret" not in plain(result)
    holder.inside = {"again": holder}
    assert run(asynchronous(lambda: [holder]), "give")[0].output == ["<Holder>"]


class Endless(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        return map(str, itertools.count())

    def __len__(self) -> int:
        return 3


@dataclass
class Held:
    inside: Any


async def chunks() -> Any:
    yield 1


def doubled() -> Any:
    value: Any = [1]
    for _ in range(60):
        value = [value, value]
    return value


ITERATORS: dict[str, Callable[[], Any]] = {
    "in a dict": lambda: {"rows": (n for n in itertools.count())},
    "in a set": lambda: {iter([1])},
    "an async generator": lambda: {"rows": chunks()},
    "in a result": lambda: ToolResult({"rows": itertools.count()}),
    "in a deque in a dataclass": lambda: Held(deque([iter([1])])),
    "in an enum": lambda: Enum("Kind", {"one": iter([1])})["one"],
    "bare": lambda: itertools.count(),
}


@pytest.mark.parametrize("make", ITERATORS.values(), ids=ITERATORS.keys())
def test_an_iterator_in_a_value_is_refused_and_not_read(make: Callable[[], Any]) -> None:
    result, watch = run(asynchronous(make), "give")
    assert (result.status, result.executed, watch.ends()) == ("failed", True, ["tool:error"])
    assert "was run, but it returned an iterator" in (result.error or "") and "list" in (result.error or "")


@pytest.mark.parametrize("value", [ToolResult("x"), ToolResult(error="x"), Deferred("t"), InputRequired("Who?")])
@pytest.mark.parametrize("hold", [lambda value: [value, 1], lambda value: {"a": value}, ToolResult])
def test_a_value_that_is_returned_alone_is_refused_in_other_data(value: Any, hold: Any) -> None:
    result, _ = run(threaded(lambda: hold(value)), "give")
    assert (result.status, result.executed) == ("failed", True)
    assert f"a {type(value).__name__} within other data" in (result.error or "") and "<" not in result.text


@pytest.mark.parametrize(("way", "make"), [(asynchronous, lambda: {"a": [Endless()]}), (threaded, doubled)])
def test_a_value_without_end_is_cut(way: Any, make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "MAX_VALUES", 20_000)  # it is reached sooner
    result, watch = run(way(make), "give")
    assert (result.executed, watch.ends()) == (True, ["tool:post" if result.success else "tool:error"])
    assert result.success or "return fewer of them" in (result.error or "")
    assert len(plain(result)) <= 100_000


def breaking(error: type[BaseException]) -> Any:
    def breaks(*args: object) -> Any:
        raise error("of the handler's")

    return breaks


def with_broken(base: type, error: type[BaseException], *names: str) -> Any:
    return type("Broken", (base,), dict.fromkeys(names, breaking(error)))


TEXT = ("__str__", "__repr__", "__len__", "__eq__", "__hash__", "encode", "isascii", "__iter__", "__getitem__")


def values_that_break(error: type[BaseException]) -> list[Any]:
    odd = with_broken(object, error, *TEXT, "__bool__")()
    text = with_broken(str, error, *TEXT)("hello")
    rows = with_broken(Mapping, error, "__getitem__", "__iter__", "__len__")()
    listed = with_broken(list, error, "__iter__")([1])
    keyed = with_broken(dict, error, "items", "__iter__")(a=1)
    modelled = with_broken(BaseModel, error, "__iter__", "__repr__", "__str__")()
    built = ToolResult(odd, text, {"a": odd, "b": text}, [Text(text)])
    return [odd, text, {"a": odd}, [text], {"rows": rows}, listed, keyed, modelled, built, [Text(text)]]


@WAYS
@pytest.mark.parametrize("error", ENDS)
@pytest.mark.parametrize("options", [{}, {"timeout": BOUND}])
async def test_a_call_has_one_result(way: Any, error: type[BaseException], options: Any) -> None:
    for value in values_that_break(error):
        seen: list[Any] = []

        def look(event: Event, seen: list[Any] = seen) -> None:
            result = event.data.get("result")
            seen.append(repr(result) + str(result and result.output) + json.dumps(result and result.record()))

        watch = Watch()
        runner = Runner([way(lambda value=value: value)], observers=[look, watch], **options)
        results = await runner.run_all([ToolCall("a", "give"), ToolCall("b", "give")])
        for result in results:
            assert watch.ends(result.call_id) == ["tool:post" if result.success else "tool:error"]
            assert result.executed is True and "Nothing was run" not in (result.error or "")
            plain(result)
        assert len(seen) == 6


@WAYS
@pytest.mark.parametrize("error", ENDS)
def test_an_exception_whose_methods_raise_is_one_failure(way: Any, error: type[BaseException]) -> None:
    kinds = [with_broken(ValueError, error, "__str__", "__repr__")]
    if issubclass(error, Exception):
        kinds.append(type("Odd", (ToolError,), {"retry_after": property(breaking(error), lambda *_: None)}))
    for kind in kinds:

        def raises(kind: type[BaseException] = kind) -> Any:
            raise kind("of the handler's")

        async def passes_on(call: ToolCall, context: Any, next: Any, raises: Any = raises) -> Any:
            raises()

        for options in ({}, {"timeout": BOUND}, {"inside": [passes_on]}, {"around": [passes_on]}):
            result, watch = run(way(raises), "give", **options)
            assert (result.status, watch.ends()) == ("failed", ["tool:error"])


def test_a_returned_result_keeps_its_status_and_whether_it_was_executed() -> None:
    for status, executed in itertools.product(get_args(Status), (True, False, None)):
        given = ToolResult({"a": 1}, None if status == "ok" else "why", {"b": 2}, status=status, executed=executed)
        result, _ = run(asynchronous(lambda given=given: given), "give")
        assert (result.output, result.error, result.metadata) == (given.output, given.error, given.metadata)
        # No result that a handler makes can be resumed.
        assert result.status == ("failed" if status == "suspended" else status)
        assert result.executed is executed and result.pending is None
    with pytest.raises(TypeError, match="status must be one of ok, invalid"):
        ToolResult(status="done")


@pytest.mark.parametrize("read_only", [True, False])
def test_returning_a_denied_calls_result_does_not_say_that_nothing_ran(read_only: bool) -> None:
    @tool(read_only=read_only)
    async def outer(context: ToolContext) -> ToolResult:
        return await context.run("add", {"a": 1, "b": 2})

    result, _ = run([add, outer], "outer", guards=[lambda call, _: deny("no") if call.name == "add" else None])
    assert result.status == "denied" and "no" in str(result.error)
    assert result.executed is not read_only


def test_a_suspended_result_keeps_its_pending_in_another_process() -> None:
    result, _ = run(add, "add", {"a": 1, "b": 2}, guards=[ask_always], approve=lambda call, asked, context: asked)
    for transfer in ("json", "pickle"):
        again = unpack(pack(result, transfer), transfer)
        assert result.pending is not None and again.pending == result.pending, transfer
