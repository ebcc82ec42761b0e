"""One call: one result and exactly one terminal event, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cast import add, ask_always
from ferrule import (
    GuardError,
    HandlerError,
    Runner,
    Sizes,
    Text,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    ToolResult,
    ValidationError,
    deny,
    tool,
)
from waits import BOUND
from watched import go, plain, run


def returning(value: Any, **options: Any) -> Tool:
    async def give() -> Any:
        return value

    return tool(give, **options)


def raising(error: BaseException) -> Tool:
    async def give() -> Any:
        raise error

    return tool(give)


def blocking(error: BaseException) -> Tool:
    def give() -> Any:
        raise error

    return tool(give)


def test_a_successful_call_has_a_pre_and_a_post_event() -> None:
    result, watch = run(add, "add", {"a": 1, "b": 2})
    assert (result.output, result.status, result.executed, result.call_id) == (3, "ok", True, "c1")
    assert watch.kinds() == ["tool:pre", "tool:post"]
    assert watch.events[-1].data["result"] is result


@pytest.mark.parametrize("error", [ValueError("x"), BaseException("x"), SystemExit(1), asyncio.CancelledError()])
def test_an_observer_that_raises_harms_neither_call_nor_observers(error: BaseException) -> None:
    def broken(event: Any) -> None:
        raise error

    result, watch = run(add, "add", {"a": 1, "b": 2}, observers=[broken])
    assert result.output == 3
    assert watch.kinds() == ["tool:pre", "tool:post"]


def breaking(error: BaseException) -> Any:
    async def middleware(call: Any, context: Any, next: Any) -> Any:
        raise error

    return middleware


def passing(change: Callable[[ToolCall, ToolContext], Any]) -> Any:
    async def middleware(call: Any, context: Any, next: Any) -> Any:
        return await next(*change(call, context))

    return middleware


async def give_none(call: Any, context: Any, next: Any) -> Any:
    return None


BROKEN = {
    "raises": breaking(RuntimeError("secret inside")),
    "exits": breaking(SystemExit(3)),
    "cancels itself": breaking(asyncio.CancelledError()),
    "returns None": give_none,
    "is no coroutine": lambda call, context, next: ToolResult(output=1),
    "passes no call": passing(lambda call, context: (None, context)),
    "passes another id": passing(lambda call, context: (call.replace(id="another"), context)),
    "passes a context of its own": passing(lambda call, context: (call, ToolContext())),
}


@pytest.mark.parametrize("where", ["around", "inside"])
@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_middleware_fails_its_call_before_anything_runs(how: str, where: str) -> None:
    ran: list[int] = []

    @tool
    async def add(a: int, b: int) -> int:
        ran.append(a)
        return a + b

    result, watch = run(add, "add", '{"a": 1, "b": 2}', **{where: [BROKEN[how]]})
    assert (result.status, result.call_id, result.tool_name) == ("failed", "c1", "add")
    assert watch.kinds() == ["tool:pre", "tool:error"]
    assert "secret" not in plain(result)
    assert (ran, result.executed) == ([], False)


def test_a_middleware_that_raises_after_the_run_does_not_hide_the_run() -> None:
    async def late(call: Any, context: Any, next: Any) -> Any:
        await next(call, context)
        raise RuntimeError

    result, watch = run(add, "add", {"a": 1, "b": 2}, around=[late])
    assert (result.status, result.executed) == ("failed", True)
    assert "Nothing was run" not in str(result.error) and "could not be run" not in str(result.error)
    assert "It had been started" in str(result.error)
    assert watch.ends() == ["tool:error"]


@pytest.mark.parametrize("found_by", ["model", "middleware"])
def test_a_call_with_a_problem_is_never_run(found_by: str) -> None:
    problem = passing(lambda call, context: (call.replace(problem="The turn was cut off."), context))
    around = [problem] if found_by == "middleware" else []
    sent = ToolCall("c1", "add", {"a": 1, "b": 2}, problem=None if around else "The turn was cut off.")
    result, watch = run(add, sent, around=around)
    assert (result.status, result.executed) == ("invalid", False)
    assert result.error == "The turn was cut off. Nothing was run."
    assert watch.kinds() == ["tool:pre", "tool:error"]


RAISED: list[BaseException] = [
    *(SystemExit(2), asyncio.CancelledError(), TimeoutError(), StopIteration(), StopAsyncIteration(), MemoryError()),
    BaseExceptionGroup("several", [SystemExit(1), KeyError("b")]),
]


@pytest.mark.parametrize("timeout", [None, BOUND], ids=["no deadline", "deadline"])
@pytest.mark.parametrize("kind", [raising, blocking], ids=["async", "sync"])
@pytest.mark.parametrize("error", RAISED, ids=repr)
def test_any_exception_of_a_handler_is_a_failed_result(error: Any, kind: Any, timeout: float | None) -> None:
    result, watch = run(kind(error), "give", timeout=timeout)
    assert (result.status, result.executed) == ("failed", True)
    assert watch.kinds() == ["tool:pre", "tool:error"]
    assert result.exception is not None


EXPOSED = (ValueError, KeyError, OSError)


@pytest.mark.parametrize("kind", [*EXPOSED, RuntimeError, TypeError, SystemExit])
def test_the_model_reads_the_text_of_exposed_exceptions_only(kind: type[BaseException]) -> None:
    text = str(run(raising(kind("password=1")), "give")[0].error)
    assert kind.__name__ in text and "password=1" not in text
    assert ("bad colour" in str(run(raising(kind("bad colour")), "give")[0].error)) is (kind in EXPOSED)


LOOPED: list[Any] = []
LOOPED += [LOOPED, LOOPED]


@pytest.mark.parametrize(
    "value",
    [10**5000, b"\xff\xfe", "\ud800", {"\udfff": ["\ud800"]}, {("a", 1): 2}, object(), LOOPED],
    ids=lambda value: type(value).__name__,
)
def test_every_output_becomes_json_and_utf_8(value: Any) -> None:
    result, watch = run(returning(value), "give")
    assert result.success
    plain(result)
    assert watch.ends() == ["tool:post"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: "x" * 5000,
        lambda: {str(n): n for n in range(2000)},
        lambda: "\ud800" * 5000,
        lambda: ToolResult(content=[Text("z" * 900)] * 9),
        lambda: ToolResult(error="e" * 5000),
    ],
)
def test_a_result_has_at_most_max_output_characters(make: Any) -> None:
    result, _ = run(returning(make()), "give", sizes=Sizes(output=1000))
    plain(result)
    assert sum(len(block.text) for block in result.content if isinstance(block, Text)) <= 1000
    assert len(result.error or "") <= 1000


class Unknown:
    """A class that Pydantic does not know."""


@pytest.mark.parametrize(
    ("hint", "value", "fits"),
    [
        (list[int], (1, 2), True),  # which has the same JSON
        (Unknown, Unknown(), True),
        (int, "5", False),
        (int, True, False),
        (str, 5, False),
        (list[int], ["5"], False),
        (bool, 1, False),
    ],
)
def test_an_output_is_checked_strictly_by_its_json(hint: Any, value: Any, fits: bool) -> None:
    made = returning(value)
    made.handler.__annotations__["return"] = hint
    assert run(tool(made.handler), "give")[0].success is fits


def tool_name(context: ToolContext) -> str:
    return context.tool.definition.name


def test_a_tool_is_found_by_its_wire_name_and_shown_by_its_own() -> None:
    named = tool(add.handler, name="math.add")
    seen: list[str] = []

    async def middle(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        seen.append(call.name)
        return await next(call, context)

    def guard(call: ToolCall, context: ToolContext) -> None:
        seen.append(call.name)

    sent = ToolCall("c1", named.wire_name, {"a": 1, "b": 2}, data={"signature": "s"})
    result, watch = run(named, sent, guards=[guard], around=[middle], inside=[middle])
    assert sent.name != "math.add"
    assert seen == ["math.add"] * 3
    assert {event.call.name for event in watch.events} == {"math.add"}
    assert {event.data["tool_name"] for event in watch.events} == {"math.add"}
    assert result.tool_name == result.record()["tool_name"] == "math.add"
    assert result.call is sent


async def test_whoever_cancels_a_call_gets_no_tool_error() -> None:
    begun = asyncio.Event()

    @tool
    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ToolError("stopped") from None

    running = asyncio.ensure_future(Runner([work], timeout=60).run("work"))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_direct_call_returns_the_raw_value() -> None:
    value = object()

    assert await add(a=1, b=2) == 3
    assert await returning(value)() is value
    assert await returning(ToolResult(output=5, metadata={"m": 1}))() == 5


async def test_a_direct_call_raises_the_reason_of_a_failure() -> None:
    with pytest.raises(ValidationError, match="b"):
        await add(a=1)
    with pytest.raises(ValidationError):
        await add(a=1, b=True)
    with pytest.raises(GuardError, match="no"):
        await add.replace(guards=[lambda call, context: deny("no")])(a=1, b=2)
    with pytest.raises(GuardError):
        await add.replace(guards=[ask_always])(a=1, b=2)
    with pytest.raises(HandlerError, match="inner") as caught:
        await raising(KeyError("inner"))()
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.result is not None
    with pytest.raises(HandlerError):
        await returning(ToolResult(error="no"))()
    with pytest.raises(TypeError):
        await add(1, 2, 3)


def test_direct_calls_work_concurrently_and_on_a_second_loop() -> None:
    async def main() -> list[int]:
        return await asyncio.gather(*(add(a=n, b=1) for n in range(50)))

    assert go(main()) == go(main()) == list(range(1, 51))
