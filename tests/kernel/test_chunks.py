"""Handlers that yield, and progress: each chunk is told as it comes, and what was cut off keeps what it had."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from ferrule import (
    DefinitionError,
    Runner,
    Sizes,
    Text,
    ToolCall,
    ToolContext,
    ToolError,
    ToolHandler,
    ToolResult,
    build_tool,
    tool,
)
from ferrule.middleware import after, untrusted
from waits import BOUND
from watched import Watch, go, run


async def words(count: int = 3) -> AsyncIterator[str]:
    """Say words."""
    for n in range(count):
        yield f"word {n} "


async def numbers(count: int = 3) -> AsyncGenerator[int, None]:
    """Count."""
    for n in range(count):
        yield n


async def anything(count: int = 3):  # type: ignore[no-untyped-def]
    """Say what you like."""
    for n in range(count):
        yield n if n % 2 else f"{n}"


def told(watch: Watch) -> list[Any]:
    return [event.data["chunk"] for event in watch.events if event.kind == "tool:progress"]


@pytest.mark.parametrize("of", ["its own", "the call that made it"])
@pytest.mark.parametrize("goes_round", [False, True])
def test_a_generator_that_never_waits_ends_at_its_deadline(of: str, goes_round: bool) -> None:
    ended: list[int] = []

    @tool(timeout=0.1 if of == "its own" else None)
    async def count() -> AsyncIterator[int]:
        number = 0
        try:
            while True:
                yield (number := number + 1)
        finally:
            ended.append(number)

    @tool(timeout=0.1)
    async def counts(context: ToolContext) -> str:
        return (await context.run("count")).status

    async def passes(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        return await next(call, context)  # type: ignore[no-any-return]

    runner = Runner([count, counts], inside=[passes] if goes_round else [])
    assert go(runner.run("count" if of == "its own" else "counts")).status == "timeout"
    assert len(ended) == 1


@pytest.mark.parametrize("timeout", [None, BOUND])
@pytest.mark.parametrize(
    ("handler", "count", "output"),
    [
        (words, 3, "word 0 word 1 word 2 "),
        (words, 0, ""),
        (numbers, 3, [0, 1, 2]),
        (numbers, 0, []),
        (anything, 3, ["0", 1, "2"]),
        (anything, 1, "0"),
        (anything, 0, []),
    ],
)
def test_chunks_are_told_as_they_come_and_joined_at_the_end(
    handler: Any, count: int, output: Any, timeout: float | None
) -> None:
    result, watch = run(tool(handler), handler.__name__, {"count": count}, timeout=timeout)
    assert (result.status, result.output) == ("ok", output)
    assert len(told(watch)) == count
    assert watch.kinds() == ["tool:pre", *["tool:progress"] * count, "tool:post"]


def test_the_schema_of_what_is_returned_is_that_of_the_whole() -> None:
    assert tool(words).output_schema == {"type": "string"}
    assert tool(numbers).output_schema == {"type": "array", "items": {"type": "integer"}}
    assert tool(anything).output_schema is None


def test_a_chunk_of_another_type_fails_the_call_that_promised_its_type() -> None:
    async def lies() -> AsyncIterator[int]:
        yield 1
        yield "two"  # type: ignore[misc]

    result, watch = run(tool(lies), "lies")
    assert (result.status, result.executed, told(watch)) == ("failed", True, [1, "two"])


def test_a_handler_class_an_arguments_model_and_a_payload_may_yield_too() -> None:
    from pydantic import BaseModel

    class Say(ToolHandler):
        """Say."""

        count: int

        async def __call__(self) -> AsyncIterator[str]:
            for n in range(self.count):
                yield str(n)

    class Count(BaseModel):
        count: int

    async def with_model(args: Count, ctx: ToolContext) -> AsyncIterator[str]:
        for n in range(args.count):
            yield f"{n}{ctx.session}"

    async def payload(payload: dict[str, Any], context: Any) -> AsyncIterator[str]:
        yield str(payload["count"])

    schema = {"type": "object", "properties": {"count": {"type": "integer"}}}
    tools = [
        tool(Say, "say"),
        tool(with_model, input_schema=Count),
        build_tool(
            {"name": "payload", "input_schema": schema, "execute": payload, "check_permissions": lambda p: None}
        ),
    ]
    outputs = [run(tools, ToolCall("c", one.name, {"count": 2}))[0].output for one in tools]
    assert outputs == ["01", "0None1None", "2"]


def test_a_plain_generator_is_refused_with_the_way_out() -> None:
    def plainly() -> Any:
        yield 1

    with pytest.raises(DefinitionError, match="async generator"):
        tool(plainly)


class Halfway:
    """Says two words, and then waits, or breaks."""

    def __init__(self, then: str) -> None:
        self.then = then
        self.closed = False
        self.said = asyncio.Event()

    async def speak(self) -> AsyncIterator[str]:
        """Speak."""
        try:
            yield "one "
            yield "two "
            self.said.set()
            if self.then == "breaks":
                raise ValueError("lost the thread")
            await asyncio.Event().wait()
        finally:
            self.closed = True


@pytest.mark.parametrize(
    ("then", "status", "timeout"),
    [("breaks", "failed", None), ("breaks", "failed", 5.0), ("waits", "timeout", 0.02)],
)
async def test_a_call_that_is_cut_keeps_what_it_had(then: str, status: str, timeout: float | None) -> None:

    speaker = Halfway(then)
    runner = Runner([tool(speaker.speak, name="speak")], timeout=timeout)
    result = await runner.run("speak")
    assert (result.status, result.output, result.success) == (status, "one two ", False)
    assert [block.text for block in result.content if isinstance(block, Text)] == [result.error, "one two "]
    assert result.record()["output"] == "one two "
    assert speaker.closed


@pytest.mark.parametrize(("chunk", "kept"), [(b"\xff", ["/w=="]), ("\ud800", "\ufffd")])
def test_a_stream_that_fails_keeps_its_error_whatever_it_had_yielded(chunk: Any, kept: Any) -> None:
    @tool
    async def act() -> AsyncIterator[Any]:
        yield chunk
        raise ToolError("no more")

    result, _ = run(act, "act")
    assert (result.error, result.output) == ("no more", kept)


@pytest.mark.parametrize("timeout", [None, BOUND])
async def test_a_call_that_is_cancelled_keeps_what_it_had_within_its_bounds(timeout: float | None) -> None:

    speaker = Halfway("waits")
    runner = Runner([tool(speaker.speak, name="speak")], timeout=timeout, sizes=Sizes(output=80))
    batch = runner.batch([ToolCall("c1", "speak", "{}")])
    going = asyncio.ensure_future(waited(batch))
    await speaker.said.wait()
    batch.cancel(now=True)
    (result,) = await going
    assert (result.status, result.output) == ("cancelled", "one two ")
    assert sum(len(block.text) for block in result.content if isinstance(block, Text)) <= 80
    assert speaker.closed


async def waited(batch: Any) -> Any:
    return await batch


def test_a_middleware_sees_what_was_yielded_so_far() -> None:
    seen: list[Any] = []

    async def looks(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        result: ToolResult = await next(call, context)
        seen.append(context.chunks)
        return result

    run(tool(words), "words", {"count": 2}, inside=[looks])
    assert seen == [("word 0 ", "word 1 ")]


def test_a_second_attempt_begins_anew() -> None:
    async def twice(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        await next(call, context)
        return await next(call, context)  # type: ignore[no-any-return]

    result, _ = run(tool(numbers), "numbers", {"count": 2}, inside=[twice])
    assert result.output == [0, 1]


def test_progress_is_an_event_and_says_nothing_after_the_end() -> None:
    kept: list[ToolContext] = []

    @tool
    async def work(context: ToolContext) -> None:
        kept.append(context)
        context.progress(1, 2, "half \ud800way")

    result, watch = run(work, "work")
    assert result.success
    (event,) = [event for event in watch.events if event.kind == "tool:progress"]
    assert (event.data["done"], event.data["total"]) == (1, 2)
    event.data["message"].encode()
    kept[0].progress(2, 2)
    assert watch.kinds() == ["tool:pre", "tool:progress", "tool:post"]


async def leaves_marks() -> AsyncIterator[str]:
    """Say a secret."""
    yield "secret=hunter2"


def breaks(value: Any) -> Any:
    raise RuntimeError("inside of the program")


async def breaks_after(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
    await next(call, context)
    raise RuntimeError("inside of the program")


@pytest.mark.parametrize("timeout", [None, BOUND])
@pytest.mark.parametrize(
    "options", [{"around": [untrusted, breaks_after]}, {"around": [after(breaks)]}, {"inside": [after(breaks)]}]
)
def test_chunks_do_not_pass_by_a_middleware_that_broke(options: dict[str, Any], timeout: float | None) -> None:
    result, _ = run(tool(leaves_marks), "leaves_marks", timeout=timeout, **options)
    assert result.status == "failed"
    assert "hunter2" not in f"{result.content} {result.output} {result.record()}"


async def test_chunks_of_a_call_that_is_cut_off_do_not_pass_by_a_middleware_either() -> None:

    for options in ({"inside": [after(lambda result: None)], "timeout": 0.02}, {"around": [untrusted]}):
        speaker = Halfway("waits")
        runner = Runner([tool(speaker.speak, name="speak")], **options)  # type: ignore[arg-type]
        batch = runner.batch([ToolCall("c1", "speak", "{}")])
        going = asyncio.ensure_future(waited(batch))
        await speaker.said.wait()
        if "timeout" not in options:
            batch.cancel(now=True)
        (result,) = await going
        assert result.status in {"timeout", "cancelled"} and "one " not in str(result.content)


def test_an_observer_cannot_change_a_chunk() -> None:
    async def records() -> AsyncIterator[dict[str, Any]]:
        yield {"x": 1, "y": [1]}

    def meddles(event: Any) -> None:
        if "chunk" in event.data:
            event.data["chunk"]["x"] = 2

    result, _ = run(tool(records), "records", observers=[meddles])
    assert result.output == [{"x": 1, "y": [1]}]
