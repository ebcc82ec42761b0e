"""Lanes of a batch: a call that waits for its key has not begun, whatever it or others make of its arguments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ferrule import Event, Runner, Tool, ToolCall, ToolContext, tool
from watched import Watch

TURNS = 5


class Files:
    """A tool whose calls share the key of their file; it remembers who begins and ends."""

    def __init__(self) -> None:
        self.log: list[str] = []

        async def use(name: str, file: str = "f", write: bool = False) -> None:
            self.log.append(f"+{name}")
            for _ in range(TURNS):
                await asyncio.sleep(0)
            self.log.append(f"-{name}")

        self.tool = tool(
            use,
            resources=lambda arguments: [arguments["file"]],
            parallel=lambda arguments: not arguments["write"],
        )

    def tell(self, event: Event) -> None:
        if event.kind == "tool:pre":
            self.log.append(f"?{event.call.id}")


def use(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name, "use", {"name": name, **arguments})


async def test_a_writer_does_not_even_arrive_before_the_readers_before_it_have_ended() -> None:
    files = Files()
    sent = [use("a"), use("b"), use("w", write=True), use("c")]
    await Runner([files.tool], observers=[files.tell]).run_all(sent)
    at = files.log.index
    assert max(at("-a"), at("-b")) < at("?w")
    assert at("-w") < at("?c")


async def test_a_guard_that_gives_a_writer_another_key_does_not_let_it_in_among_the_readers() -> None:
    files = Files()

    def elsewhere(call: ToolCall, context: ToolContext) -> dict[str, Any] | None:
        return {**call.arguments, "file": call.arguments["name"]} if call.arguments["file"] == "f" else None

    sent = [use("a"), use("w", write=True), use("b")]
    await Runner([files.tool], guards=[elsewhere]).run_all(sent)
    assert files.log == ["+a", "-a", "+w", "-w", "+b", "-b"]


async def test_readers_of_one_key_hold_up_no_writer_of_another() -> None:
    files = Files()
    await Runner([files.tool]).run_all([use("a"), use("w", file="g", write=True)])
    assert files.log[:2] == ["+a", "+w"]


async def test_a_writer_that_still_waits_for_readers_is_cancelled_as_not_started() -> None:

    reading, ran = asyncio.Event(), []

    @tool(resources=lambda arguments: ["f"], parallel=lambda arguments: not arguments["write"])
    async def touch(write: bool) -> None:
        ran.append(write)
        reading.set()
        await asyncio.Event().wait()

    watch = Watch()
    batch = Runner([touch], observers=[watch]).batch(
        [ToolCall("r", "touch", {"write": False}), ToolCall("w", "touch", {"write": True})]
    )
    going = asyncio.ensure_future(_awaited(batch))
    await reading.wait()
    assert watch.kinds("w") == []
    assert [result.status for result in batch.results] == ["unknown", "cancelled"]
    batch.cancel(now=True)
    await going
    assert [result.executed for result in batch.results] == [None, False]
    assert ran == [False] and watch.kinds("w") == ["tool:pre", "tool:error"]


async def _awaited(batch: Any) -> None:
    await batch


# -- a batch that is cancelled by what its own call sets off -----------------------------------------------------------


def by_its_handler(cancel: Callable[[], None]) -> Tool:
    @tool(parallel=True)
    async def stop() -> None:
        cancel()
        await asyncio.Event().wait()

    return stop


def by_its_keys(cancel: Callable[[], None]) -> Tool:
    """Which a batch asks for before it begins the call."""

    def keys(arguments: Any) -> list[str]:
        cancel()
        return ["k"]

    @tool(parallel=True, resources=keys)
    async def stop() -> None:
        await asyncio.Event().wait()

    return stop


def by_its_trait(cancel: Callable[[], None]) -> Tool:
    def parallel(arguments: Any) -> bool:
        cancel()
        return True

    @tool(parallel=parallel)
    async def stop() -> None:
        await asyncio.Event().wait()

    return stop


@pytest.mark.parametrize("stops", [by_its_handler, by_its_keys, by_its_trait])
async def test_a_call_that_cancels_its_own_batch_as_it_begins_is_cancelled_itself(stops: Callable[..., Tool]) -> None:

    batches: list[Any] = []
    watch = Watch()
    runner = Runner([stops(lambda: batches[0].cancel(now=True))], observers=[watch])
    batches.append(runner.batch([ToolCall(name, "stop") for name in "abc"]))
    results = await batches[0]
    assert [result.status for result in results] == ["cancelled"] * 3
    assert [result.executed for result in results[1:]] == [False, False] or stops is by_its_handler
    assert [len(watch.ends(name)) for name in "abc"] == [1, 1, 1]
