"""The handle of a batch that runs: it begins at once, and gives each result as it comes."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

from ferrule import DefinitionError, Runner, ToolCall, ToolResult, tool
from watched import Watch, go


class Gates:
    """A tool each call of which ends when its gate is opened."""

    def __init__(self, *names: str) -> None:
        self.gates = {name: asyncio.Event() for name in names}
        self.begun: list[str] = []

        @tool(read_only=True)
        async def wait_for(name: str) -> str:
            self.begun.append(name)
            await self.gates[name].wait()
            return name

        self.tool = wait_for

    def calls(self, *names: str) -> list[ToolCall]:
        return [ToolCall(f"call_{name}", "wait_for", {"name": name}) for name in names]


def test_a_batch_that_nobody_awaits_runs() -> None:
    async def main() -> list[ToolResult]:
        gates, watch = Gates("a"), Watch()
        runner = Runner([gates.tool], observers=[watch])
        batch = runner.batch(gates.calls("a"))
        while not gates.begun:
            await asyncio.sleep(0)
        assert batch.results[0].status == "unknown"
        gates.gates["a"].set()
        while not watch.ends():
            await asyncio.sleep(0)
        return batch.results

    assert [result.output for result in go(main())] == ["a"]


async def test_a_batch_whose_handle_is_dropped_comes_to_its_end() -> None:

    gates, watch = Gates("a"), Watch()
    runner = Runner([gates.tool], observers=[watch])
    runner.batch(gates.calls("a"))
    while not gates.begun:
        await asyncio.sleep(0)
    gc.collect()
    gates.gates["a"].set()
    while not watch.ends():
        await asyncio.sleep(0)
    assert watch.kinds() == ["tool:pre", "tool:post"]


def test_without_a_loop_a_batch_says_what_is_missing_and_runs_nothing() -> None:
    @tool
    async def act() -> str:
        raise AssertionError("it ran")

    with pytest.raises(RuntimeError, match="no running event loop"):
        Runner([act]).batch([ToolCall("1", "act")])


async def test_results_come_in_the_order_in_which_the_calls_end() -> None:
    async def main() -> list[str]:
        gates = Gates("a", "b", "c")
        batch = Runner([gates.tool]).batch(gates.calls("a", "b", "c"))
        came = []
        gates.gates["b"].set()
        async for result in batch:
            came.append(result.output)
            gates.gates["c" if len(came) == 1 else "a"].set()
        assert [result.output for result in await batch] == ["a", "b", "c"]
        return came

    assert (await main()) == ["b", "c", "a"]


async def test_every_call_has_its_result_also_one_that_came_twice_is_unknown_or_never_began() -> None:
    @tool
    async def act(n: int) -> int:
        return n

    calls = [
        ToolCall("1", "act", {"n": 1}),
        ToolCall("1", "act", {"n": 1}),
        ToolCall("1", "act", {"n": 2}),
        ToolCall("2", "nothing"),
        ToolCall("3", "act", {"n": "x"}),
    ]

    async def main() -> tuple[list[str], list[str]]:
        batch = Runner([act]).batch(calls)
        first = sorted([result.status async for result in batch])
        return first, sorted([result.status async for result in batch])

    first, again = await main()
    assert first == again == ["invalid", "invalid", "not_found", "ok", "ok"]


async def test_who_iterates_over_a_batch_that_is_cancelled_gets_a_result_for_each_call() -> None:
    async def main() -> list[str]:
        gates = Gates("a", "b")
        batch = Runner([gates.tool], concurrency=1).batch(gates.calls("a", "b"))
        while not gates.begun:
            await asyncio.sleep(0)
        batch.cancel(now=True)
        return [result.status async for result in batch]

    assert (await main()) == ["cancelled", "cancelled"]


def test_leaving_the_iteration_early_leaves_the_calls_to_run() -> None:
    async def main() -> list[ToolResult]:
        gates = Gates("a", "b")
        batch = Runner([gates.tool]).batch(gates.calls("a", "b"))
        gates.gates["a"].set()
        async for _ in batch:
            break
        gates.gates["b"].set()
        return await batch

    assert [result.output for result in go(main())] == ["a", "b"]


def test_who_is_cancelled_while_awaiting_it_cancels_the_calls() -> None:
    async def main() -> list[ToolResult]:
        gates = Gates("a")
        batch = Runner([gates.tool]).batch(gates.calls("a"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await batch
        return batch.results

    assert [result.status for result in go(main())] == ["cancelled"]


def test_who_is_cancelled_while_iterating_over_it_cancels_the_calls_and_waits_for_their_end() -> None:
    async def main() -> list[ToolResult]:
        gates = Gates("a", "b")
        batch = Runner([gates.tool]).batch(gates.calls("a", "b"))
        gates.gates["a"].set()
        came: list[ToolResult] = []

        async def each() -> None:
            async for result in batch:
                came.append(result)

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(each(), 0.02)
        assert [result.status for result in came] == ["ok"]
        return batch.results

    assert [result.status for result in go(main())] == ["ok", "cancelled"]


async def test_several_may_await_it_and_have_the_same_results() -> None:

    gates = Gates("a")
    batch = Runner([gates.tool]).batch(gates.calls("a"))
    gates.gates["a"].set()
    one, other = await asyncio.gather(batch, batch)
    assert one == other == batch.results


async def test_a_programmers_mistake_is_raised_to_who_iterates() -> None:
    @tool
    async def act() -> str:
        return "done"

    async def twice(call: Any, context: Any, next: Any) -> Any:
        return await asyncio.gather(next(call, context), next(call, context))

    async def main() -> list[str]:
        return [result.status async for result in Runner([act], around=[twice]).batch([ToolCall("1", "act")])]

    assert (await main()) == ["failed"]


@pytest.mark.parametrize("wrong", [ToolCall("1", "act"), "act", {"act": {}}, [("act", {})], ["act"], None, 7])
async def test_a_batch_is_of_a_list_of_calls(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match="a batch takes a list of calls"):
        Runner([]).batch(wrong)
    with pytest.raises(DefinitionError, match="a batch takes a list of calls"):
        await Runner([]).run_all(wrong)


def test_a_batch_between_two_calls_keeps_its_runner_on_its_loop() -> None:
    async def main() -> list[str]:
        called = []

        @tool
        async def first() -> None:
            called.append("first")

        runner = Runner([first])

        def elsewhere() -> None:
            with pytest.raises(RuntimeError, match="busy on another event loop"):
                asyncio.run(runner.run("first"))  # type: ignore[arg-type]
            called.append("elsewhere")

        batch = runner.batch([ToolCall("1", "first")])  # its task has not had its turn
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        await batch
        return called

    assert go(main()) == ["elsewhere", "first"]
