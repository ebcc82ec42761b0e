"""Batches: one result for every call, in call order; what may overlap does, and what may not does not."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journals import WatchedJournal, forever

import probe
from ferrule import Runner, Tool, ToolCall, ToolResult, ask, deny, tool
from watched import BOUND, Watch, go


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"c{n}", name) for n, name in enumerate(names)]


class Meeting:
    """Tools that end only when `size` of them run at the same time; else they give up and say so."""

    def __init__(self, size: int, **options: Any) -> None:
        self.here = 0
        self.most = 0
        everybody = asyncio.Event()

        async def meet(key: str = "", n: int = 0) -> bool:
            self.here += 1
            self.most = max(self.most, self.here)
            if self.here >= size:
                everybody.set()
            try:
                await asyncio.wait_for(everybody.wait(), BOUND / 2)
                return True
            except TimeoutError:
                return False
            finally:
                self.here -= 1

        self.tool = tool(meet, **options)


class Order:
    """Remembers when handlers begin and end; every handler gives others many turns to get in its way."""

    def __init__(self, **options: Any) -> None:
        self.log: list[str] = []

        async def work(name: str, key: str = "") -> str:
            self.log.append(f"+{name}")
            for _ in range(5):
                await asyncio.sleep(0)
            self.log.append(f"-{name}")
            return name

        self.tool = tool(work, **options)

    def overlap(self, one: str, other: str) -> bool:
        at = self.log.index
        return at(f"+{one}") < at(f"-{other}") and at(f"+{other}") < at(f"-{one}")


async def test_every_call_has_its_result_in_call_order() -> None:
    @tool(read_only=True)
    async def late(n: int) -> int:
        for _ in range(10 - n):
            await asyncio.sleep(0)
        return n

    @tool
    async def breaks() -> None:
        raise SystemExit(1)

    @tool(guards=[lambda call, context: deny("no")])
    async def refused() -> None: ...

    watch = Watch()
    sent = [
        ToolCall("a", "late", {"n": 1}),
        ToolCall("b", "late", {"n": 9}),
        ToolCall("c", "nothing"),
        ToolCall("d", "breaks"),
        ToolCall("e", "late", "{"),
        ToolCall("f", "refused"),
        ToolCall("g", "late", {"n": 3}, problem="cut off"),
        ToolCall("", "late", {"n": 4}),
    ]
    results = await Runner([late, breaks, refused], observers=[watch]).run_all(sent)
    assert [result.status for result in results] == [
        "ok", "ok", "not_found", "failed", "invalid", "denied", "invalid", "ok",
    ]  # fmt: skip
    assert [result.call_id for result in results][:7] == list("abcdefg") and results[7].call_id
    for result in results:
        assert len(watch.ends(result.call_id)) == 1


async def test_an_empty_batch_has_no_results() -> None:
    assert (await Runner([]).run_all([])) == []


async def test_calls_that_may_run_in_parallel_do() -> None:

    meeting = Meeting(5, read_only=True)
    results = await Runner([meeting.tool]).run_all(calls(*["meet"] * 5))
    assert [result.output for result in results] == [True] * 5


async def test_an_unmarked_call_runs_alone_and_in_its_place() -> None:
    reading, writing = Order(read_only=True), Order()
    writing.log = reading.log
    runner = Runner([reading.tool.replace(name="read"), writing.tool.replace(name="write")])
    sent = [
        ToolCall(name, "write" if name in "wx" else "read", {"name": name})
        for name in ("a", "b", "w", "c", "d", "x", "e")
    ]
    await runner.run_all(sent)
    log = reading.log
    assert reading.overlap("a", "b") and reading.overlap("c", "d")
    for alone in "wx":
        assert log.index(f"-{alone}") == log.index(f"+{alone}") + 1
    assert max(map(log.index, ("-a", "-b"))) < log.index("+w") < min(map(log.index, ("+c", "+d")))
    assert max(map(log.index, ("-c", "-d"))) < log.index("+x") < log.index("+e")


async def test_parallel_may_depend_on_the_arguments() -> None:
    order = Order(parallel=lambda arguments: arguments["key"] == "")
    sent = [ToolCall(name, "work", {"name": name, "key": key}) for name, key in (("a", ""), ("b", ""), ("c", "x"))]
    await Runner([order.tool]).run_all(sent)
    assert order.overlap("a", "b") and not order.overlap("b", "c") and not order.overlap("a", "c")


@pytest.mark.parametrize("concurrency", [32, None])
async def test_resources_narrow_a_barrier_to_the_calls_that_share_a_key(concurrency: int | None) -> None:
    order = Order(resources=lambda arguments: [arguments["key"]])
    sent = [
        ToolCall(name, "work", {"name": name, "key": key})
        for name, key in (("a", "x"), ("b", "y"), ("c", "x"), ("d", "y"))
    ]
    await Runner([order.tool], concurrency=concurrency).run_all(sent)
    assert order.overlap("a", "b") and order.overlap("c", "d")
    assert not order.overlap("a", "c") and not order.overlap("b", "d")
    assert order.log.index("-a") < order.log.index("+c")


@pytest.mark.parametrize("concurrency", [32, None])
async def test_keys_hold_between_runs_of_one_runner_too(concurrency: int | None) -> None:
    order = Order(resources=lambda arguments: arguments["key"].split())

    async def main() -> None:
        runner = Runner([order.tool], concurrency=concurrency)
        await asyncio.gather(
            *(runner.run("work", {"name": n, "key": key}) for n, key in (("a", "x"), ("b", "x y"), ("c", "z")))
        )

    await main()
    assert not order.overlap("a", "b") and order.overlap("a", "c")


async def test_parallel_calls_share_their_keys() -> None:
    order = Order(resources=lambda arguments: ["x"], parallel=lambda arguments: arguments["key"] == "read")
    sent = [
        ToolCall(name, "work", {"name": name, "key": key})
        for name, key in (("a", "read"), ("b", "read"), ("w", "write"), ("c", "read"), ("d", "read"))
    ]
    await Runner([order.tool]).run_all(sent)
    assert order.overlap("a", "b") and order.overlap("c", "d")
    assert not any(order.overlap("w", other) for other in "abcd")
    assert order.log.index("-b") < order.log.index("+w") < order.log.index("+c")


@pytest.mark.parametrize("error", [ValueError(), SystemExit(1), asyncio.CancelledError()])
async def test_resources_that_break_fail_their_call_alone(error: BaseException) -> None:
    def broken(arguments: Any) -> list[str]:
        if arguments["name"] == "a":
            raise error
        return ["x"]

    order = Order(resources=broken)
    watch = Watch()
    sent = [ToolCall(name, "work", {"name": name}) for name in "ab"]
    results = await Runner([order.tool], observers=[watch]).run_all(sent)
    assert [result.status for result in results] == ["failed", "ok"]
    assert results[0].executed is False and len(watch.ends("a")) == 1


@pytest.mark.parametrize(
    "error", [SystemExit(1), asyncio.CancelledError(), BaseException(), ExceptionGroup("g", [OSError()])]
)
@pytest.mark.parametrize("parallel", [True, False])
async def test_what_one_raises_does_not_take_down_the_others(error: BaseException, parallel: bool) -> None:
    @tool(parallel=parallel)
    async def work(n: int) -> int:
        await asyncio.sleep(0)
        if n == 1:
            raise error
        return n

    results = await Runner([work]).run_all([ToolCall(str(n), "work", {"n": n}) for n in range(3)])
    assert [result.status for result in results] == ["ok", "failed", "ok"]


# -- the same id twice -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("given", [{"n": 1}, '{"n": 1}', '{ "n" : 1 }'])
def test_a_call_that_came_twice_runs_once_and_both_get_its_result(given: Any, read_only: bool) -> None:
    ran: list[int] = []

    @tool(read_only=read_only)
    async def work(n: int) -> int:
        ran.append(n)
        await asyncio.sleep(0)
        return n

    watch = Watch()
    again = given if isinstance(given, str) else dict(given)
    sent = [ToolCall("a", "work", given), ToolCall("b", "work", {"n": 2}), ToolCall("a", "work", again)]
    results = go(Runner([work], observers=[watch]).run_all(sent))
    assert [result.output for result in results] == [1, 2, 1]
    assert ran == [1, 2] and len(watch.ends("a")) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ('{"n": 1}', '{"n": 2}'),
        ("{}", '{"n": '),
        ('{"n": 1}', '{"n": true}'),
        ('{"n": 1}', '{"n": 1.5}'),
        ('{"n": 1}', '{ "n": 1}'),
        ('{"n": 1}', {"n": 1}),
        ({"n": 1}, {"n": True}),
    ],
)
async def test_another_call_under_a_used_id_is_invalid_and_never_run(first: Any, second: Any) -> None:
    ran: list[Any] = []

    @tool
    async def work(n: Any = None) -> None:
        ran.append(n)

    results = await Runner([work]).run_all([ToolCall("a", "work", first), ToolCall("a", "work", second)])
    assert [result.status for result in results] == ["ok", "invalid"]
    assert results[1].executed is False and len(ran) == 1


def test_a_call_with_a_problem_is_not_the_same_as_one_without() -> None:
    @tool
    async def work() -> None: ...

    sent = [ToolCall("a", "work"), ToolCall("a", "work", problem="cut off")]
    assert [result.status for result in go(Runner([work]).run_all(sent))] == ["ok", "invalid"]


# -- cancelled half-way ----------------------------------------------------------------------------------------------


def half_way() -> tuple[list[Tool], asyncio.Event, list[int]]:
    reached, ended = asyncio.Event(), []

    @tool(read_only=True)
    async def quick(n: int) -> int:
        ended.append(n)
        return n

    @tool
    async def stuck() -> None:
        reached.set()
        await asyncio.Event().wait()

    return [quick, stuck], reached, ended


SENT = [
    ToolCall("a", "quick", {"n": 1}),
    ToolCall("b", "stuck"),
    ToolCall("c", "quick", {"n": 2}),
    ToolCall("b", "stuck"),
    ToolCall("d", "nothing"),
    ToolCall("b", "quick", {"n": 3}),
]
ENDED = ["ok", "cancelled", "cancelled", "cancelled", "cancelled", "cancelled"]


@pytest.mark.parametrize("timeout", [None, BOUND])
async def test_a_batch_that_is_cancelled_has_all_its_results(timeout: float | None) -> None:

    tools, reached, ended = half_way()
    watch = Watch()
    batch = Runner(tools, observers=[watch], timeout=timeout).batch(SENT)
    going = asyncio.ensure_future(_awaited(batch))
    await reached.wait()
    assert [result.status for result in batch.results][:3] == ["ok", "unknown", "cancelled"]
    batch.cancel(now=True)
    results = await going
    assert [result.status for result in results] == ENDED
    assert [result.status for result in batch.results] == ENDED
    assert [result.executed for result in results[:3]] == [True, None, False]
    assert ended == [1]
    assert {id: len(watch.ends(id)) for id in "ac"} == {"a": 1, "c": 1}


async def _awaited(batch: Any) -> list[ToolResult]:
    results: list[ToolResult] = await batch
    return results


@pytest.mark.parametrize("timeout", [None, BOUND])
async def test_a_cancellation_from_outside_cancels_and_still_every_call_has_its_result(timeout: float | None) -> None:

    tools, reached, _ = half_way()
    watch = Watch()
    batch = Runner(tools, observers=[watch], timeout=timeout).batch(SENT[:3])
    going = asyncio.ensure_future(_awaited(batch))
    await reached.wait()
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    assert [result.status for result in batch.results] == ENDED[:3]
    assert [len(watch.ends(id)) for id in "abc"] == [1, 1, 1]
    assert [watch.kinds(id).count("tool:pre") for id in "abc"] == [1, 1, 1]


async def test_a_batch_that_never_began_is_cancelled_without_running_anything() -> None:

    tools, _, ended = half_way()
    batch = Runner(tools).batch(SENT)
    assert {result.status for result in batch.results} == {"cancelled"}
    batch.cancel()
    assert {result.status for result in await batch} == {"cancelled"}
    assert ended == []


async def test_a_batch_may_be_awaited_twice_and_runs_once() -> None:

    tools, _, ended = half_way()
    batch = Runner(tools).batch(SENT[:1])
    first, second = await asyncio.gather(_awaited(batch), _awaited(batch))
    assert [r.output for r in first] == [r.output for r in second] == [1] == [r.output for r in await batch]
    assert ended == [1]


async def test_a_handler_may_cancel_its_own_batch() -> None:

    batches: list[Any] = []
    seen: list[str] = []

    @tool
    async def stop() -> None:
        seen.append(batches[0].results[0].status)
        batches[0].cancel(now=True)
        await asyncio.Event().wait()

    watch = Watch()
    batches.append(Runner([stop], observers=[watch]).batch(calls("stop", "stop")))
    results = await batches[0]
    assert [result.status for result in results] == ["cancelled", "cancelled"]
    assert [result.executed for result in results] == [None, False]
    assert seen == ["unknown"]
    assert [len(watch.ends(call)) for call in ("c0", "c1")] == [1, 1]


async def test_a_cancellation_while_the_journal_writes_makes_no_second_end() -> None:
    @tool
    async def work() -> int:
        return 1

    reached, watch = asyncio.Event(), Watch()

    async def slow() -> None:
        reached.set()
        await forever()

    journal = WatchedJournal(ends=slow)
    batch = Runner([work], observers=[watch], journal=journal).batch(calls("work"))
    going = asyncio.ensure_future(_awaited(batch))
    await reached.wait()
    batch.cancel(now=True)
    results = await going
    assert watch.kinds() == ["tool:pre", "tool:post"]
    assert [result.status for result in results] == ["ok"]


async def test_an_outcome_that_cannot_be_written_is_told_though_its_caller_was_cut_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @tool
    async def work() -> int:
        return 1

    reached, goes_on = asyncio.Event(), asyncio.Event()

    async def breaks_late() -> None:
        reached.set()
        await goes_on.wait()
        raise OSError("disk full")

    async with Runner([work], journal=WatchedJournal(ends=breaks_late)) as runner:
        going = asyncio.ensure_future(runner.run("work"))
        await reached.wait()
        going.cancel()
        await asyncio.wait({going})
        goes_on.set()
    assert "outcome of a cancelled call could not be written" in caplog.text and "disk full" in caplog.text


# -- laws ------------------------------------------------------------------------------------------------------------

KINDS = ["read", "write", "keyed", "fails", "exits", "denied", "asked", "missing", "malformed", "slow", "blocks"]


def zoo() -> list[Tool]:
    async def read() -> str:
        await asyncio.sleep(0)
        return "read"

    async def fails() -> None:
        raise ValueError

    async def exits() -> None:
        raise SystemExit

    async def slow() -> None:
        await asyncio.Event().wait()

    def blocks() -> str:
        return "blocks"

    return [
        tool(read, read_only=True),
        tool(read, name="write"),
        tool(read, name="keyed", resources=lambda arguments: ["k"], concurrency=1),
        tool(fails, parallel=True),
        tool(exits),
        tool(read, name="denied", guards=[lambda call, context: deny("no")]),
        tool(read, name="asked", guards=[lambda call, context: ask("?")], read_only=True),
        tool(slow, timeout=0.005, parallel=True),
        tool(blocks),
    ]


STATUS = {
    "fails": "failed",
    "exits": "failed",
    "denied": "denied",
    "asked": "denied",
    "missing": "not_found",
    "malformed": "invalid",
    "slow": "timeout",
}


@given(st.lists(st.sampled_from(KINDS), max_size=12), st.integers(1, 4))
def test_any_mix_of_calls_gives_one_result_and_one_end_for_each(names: list[str], concurrency: int) -> None:
    watch = Watch()
    runner = Runner(zoo(), observers=[watch], concurrency=concurrency)
    sent = [
        ToolCall(f"c{n}", "read" if name == "malformed" else name, "{" if name == "malformed" else None)
        for n, name in enumerate(names)
    ]
    results = go(runner.run_all(sent))
    assert [result.status for result in results] == [STATUS.get(name, "ok") for name in names]
    assert [result.call for result in results] == sent
    for call in sent:
        assert watch.kinds(call.id)[0] == "tool:pre" and len(watch.ends(call.id)) == 1
        assert watch.kinds(call.id)[-1] in ("tool:post", "tool:error")
    assert probe.slots_taken(runner) == 0
    assert not probe.keys_held(runner) and not runner.left_running


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=10), st.integers(0, 8), st.booleans())
def test_a_batch_cancelled_at_any_moment_is_complete_and_leaves_nothing(
    names: list[str], turns: int, from_outside: bool
) -> None:
    watch = Watch()
    runner = Runner(zoo(), observers=[watch], concurrency=2)
    sent = [ToolCall(f"c{n}", "read" if name == "malformed" else name, None) for n, name in enumerate(names)]

    async def main() -> None:
        batch = runner.batch(sent)
        going = asyncio.ensure_future(_awaited(batch))
        for _ in range(turns):
            await asyncio.sleep(0)
        going.cancel() if from_outside else batch.cancel(now=True)
        try:
            await going
        except asyncio.CancelledError:
            assert from_outside
        if turns or not from_outside:
            assert "unknown" not in [result.status for result in batch.results]
            assert [len(watch.ends(call.id)) for call in sent] == [1] * len(sent)
        while runner.left_running:  # a thread that was under way ends by itself
            await asyncio.sleep(0)

    go(main())
    while runner.left_running:  # one that was cancelled with the loop, before its batch was waited for
        time.sleep(0)
    assert probe.slots_taken(runner) == 0
    assert not probe.keys_held(runner)


@pytest.mark.slow
@pytest.mark.parametrize("timeout", [None, 30.0])
async def test_a_batch_leaves_nothing_for_the_garbage_collector(timeout: float | None) -> None:
    @tool(read_only=True)
    async def nap() -> str:
        """Wait for the loop once."""
        await asyncio.sleep(0)
        return "done"

    async def story() -> int:
        runner = Runner([nap], concurrency=None, timeout=timeout)
        await runner.run_all([ToolCall("first", "nap")])
        gc.collect()
        gc.disable()
        try:
            results = await runner.run_all([ToolCall(f"call_{n}", "nap") for n in range(100)])
            return gc.collect() if all(result.success for result in results) else -1
        finally:
            gc.enable()

    assert (await story()) < 100


@pytest.mark.parametrize("timeout", [None, 30.0])
@pytest.mark.parametrize("where", ["approve", "around", "inside", "journal"])
async def test_what_makes_nothing_of_a_cancellation_before_the_handler_does_not_let_it_run(
    where: str, timeout: float | None
) -> None:
    here, ran = asyncio.Event(), []

    async def swallows() -> None:
        here.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

    async def approve(call: ToolCall, decision: Any, context: Any) -> bool:
        await swallows()
        return True

    async def middleware(call: ToolCall, context: Any, next: Any) -> ToolResult:
        await swallows()
        result: ToolResult = await next(call, context)
        return result

    @tool
    async def work() -> None:
        ran.append("work")

    async def main() -> ToolResult:
        options: dict[str, Any] = {
            "approve": {"guards": [lambda call, context: ask("may it?")], "approve": approve},
            "around": {"around": [middleware]},
            "inside": {"inside": [middleware]},
            "journal": {"journal": WatchedJournal(begins=swallows)},
        }[where]
        batch = Runner([work], timeout=timeout, **options).batch([ToolCall("c1", "work")])
        going = asyncio.ensure_future(batch)  # type: ignore[arg-type]
        await here.wait()
        batch.cancel()
        (result,) = await going
        return result

    result = await main()
    assert (result.status, result.executed, ran) == ("cancelled", False, [])
