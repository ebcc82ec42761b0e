"""Handlers that yield chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from cast import passes
from ferrule import DefinitionError, Runner, Sizes, Text, ToolCall, ToolContext, ToolResult, tool
from ferrule.middleware import after, untrusted
from ferrule.testing import ManualClock
from waits import BOUND
from watched import Watch, run


async def words(count: int = 3) -> AsyncIterator[str]:
    """Say words."""
    for n in range(count):
        yield f"word {n} "


async def numbers(count: int = 3) -> AsyncGenerator[int, None]:
    """Count."""
    for n in range(count):
        yield n


async def anything(count: int = 3):
    """Say what you like."""
    for n in range(count):
        yield n if n % 2 else f"{n}"


def chunks_of(watch: Watch) -> list[Any]:
    return [event.data["chunk"] for event in watch.events if event.kind == "tool:progress"]


@pytest.mark.parametrize("timeout", [None, BOUND])
@pytest.mark.parametrize(
    ("handler", "count", "output"),
    [
        (words, 3, "word 0 word 1 word 2 "),
        (words, 0, ""),
        (numbers, 3, [0, 1, 2]),
        (numbers, 0, []),
        (anything, 3, ["0", 1, "2"]),
        (anything, 0, []),
    ],
)
def test_chunks_are_events_as_they_come_and_are_joined_at_the_end(
    handler: Any, count: int, output: Any, timeout: float | None
) -> None:
    result, watch = run(tool(handler), handler.__name__, {"count": count}, timeout=timeout)
    assert (result.status, result.output) == ("ok", output)
    assert len(chunks_of(watch)) == count
    assert watch.kinds() == ["tool:pre", *["tool:progress"] * count, "tool:post"]


def test_the_output_schema_is_that_of_all_chunks_together() -> None:
    assert tool(words).output_schema == {"type": "string"}
    assert tool(numbers).output_schema == {"type": "array", "items": {"type": "integer"}}
    assert tool(anything).output_schema is None


def test_a_plain_generator_is_refused() -> None:
    def plainly() -> Any:
        yield 1

    with pytest.raises(DefinitionError, match="async generator"):
        tool(plainly)


@pytest.mark.parametrize("of", ["its own", "the call that made it"])
@pytest.mark.parametrize("goes_round", [False, True])
async def test_a_generator_that_never_waits_ends_at_its_deadline(of: str, goes_round: bool) -> None:
    begun: list[int] = []
    ended: list[int] = []

    @tool(timeout=0.1 if of == "its own" else None)
    async def count() -> AsyncIterator[int]:
        number = 0
        begun.append(number)
        try:
            while True:
                yield (number := number + 1)
        finally:
            ended.append(number)

    @tool(timeout=0.1)
    async def counts(context: ToolContext) -> str:
        return (await context.run("count")).status

    runner = Runner([count, counts], inside=[passes] if goes_round else [])
    assert (await runner.run("count" if of == "its own" else "counts")).status == "timeout"
    assert len(ended) == len(begun)


class Halfway:
    """A tool, `speak`, that says two words, and then waits or raises."""

    def __init__(self, then: str = "waits") -> None:
        self.then = then
        self.closed = False
        self.said = asyncio.Event()
        self.tool = tool(self.speak)

    async def speak(self) -> AsyncIterator[str]:
        """Speak."""
        try:
            yield "one "
            yield "two "
            self.said.set()
            if self.then == "raises":
                raise ValueError("lost the thread")
            await asyncio.Event().wait()
        finally:
            self.closed = True

    async def cancel(self, **options: Any) -> ToolResult:
        """Return the result of a call that is cancelled after two words."""
        batch = Runner([self.tool], **options).batch([ToolCall("c1", "speak", "{}")])
        await self.said.wait()
        batch.cancel(now=True)
        (result,) = await batch
        return result


@pytest.mark.parametrize(
    ("then", "status", "timeout"), [("raises", "failed", None), ("raises", "failed", 5.0), ("waits", "timeout", 5.0)]
)
async def test_a_call_that_is_cut_keeps_its_chunks(then: str, status: str, timeout: float | None) -> None:
    speaker, clock = Halfway(then), ManualClock()
    call = asyncio.ensure_future(Runner([speaker.tool], timeout=timeout, clock=clock).run("speak"))
    await speaker.said.wait()
    await clock.advance(5)
    result = await call
    assert (result.status, result.output, result.success) == (status, "one two ", False)
    assert [block.text for block in result.content if isinstance(block, Text)] == [result.error, "one two "]
    assert result.record()["output"] == "one two "
    assert speaker.closed


@pytest.mark.parametrize("timeout", [None, BOUND])
async def test_a_cancelled_call_keeps_its_chunks_within_its_bounds(timeout: float | None) -> None:
    speaker = Halfway()
    result = await speaker.cancel(timeout=timeout, sizes=Sizes(output=80))
    assert (result.status, result.output) == ("cancelled", "one two ")
    assert sum(len(block.text) for block in result.content if isinstance(block, Text)) <= 80
    assert speaker.closed


def test_middleware_sees_the_chunks_and_a_second_attempt_begins_anew() -> None:
    seen: list[Any] = []

    async def twice(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        await next(call, context)
        seen.append(context.chunks)
        return await next(call, context)

    result, _ = run(tool(numbers), "numbers", {"count": 2}, inside=[twice])
    assert result.output == [0, 1] and seen == [(0, 1)]


def raises(value: Any) -> Any:
    raise RuntimeError("inside of the program")


async def raises_after(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
    raises(await next(call, context))


@pytest.mark.parametrize("timeout", [None, BOUND])
@pytest.mark.parametrize(
    "options", [{"around": [untrusted, raises_after]}, {"around": [after(raises)]}, {"inside": [after(raises)]}]
)
def test_chunks_do_not_bypass_middleware_that_raises(options: dict[str, Any], timeout: float | None) -> None:
    @tool
    async def speak() -> AsyncIterator[str]:
        yield "secret=hunter2"

    result, _ = run(speak, "speak", timeout=timeout, **options)
    assert result.status == "failed"
    assert "hunter2" not in f"{result.content} {result.output} {result.record()}"
