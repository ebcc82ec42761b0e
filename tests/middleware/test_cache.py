"""`cache` runs equal calls of a read-only tool once, and never shares an answer between contexts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

import probe
from ferrule import (
    DefinitionError,
    InputRequired,
    Runner,
    Text,
    ToolCall,
    ToolContext,
    ToolResult,
    Waits,
    allow,
    ask,
    tool,
)
from ferrule.middleware import cache
from ferrule.testing import ManualClock
from watched import BOUND, go


class Source:
    """A tool that reads, and counts how often; while `gate` is there, it waits for it."""

    def __init__(self, **traits: Any) -> None:
        self.runs: list[Any] = []
        self.gate: asyncio.Event | None = None
        self.error: Exception | None = None
        self.tool = tool(self.read, name="read", **{"read_only": True, **traits})

    async def read(self, path: str = "a", lines: int = 10) -> list[Any]:
        self.runs.append((path, lines))
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return [path, lines, len(self.runs)]


async def twice(runner: Runner, one: Any, other: Any, contexts: tuple[Any, Any] = (None, None)) -> list[ToolResult]:
    return [await runner.run("read", one, contexts[0]), await runner.run("read", other, contexts[1])]


async def test_a_repeated_call_is_answered_from_the_cache() -> None:
    source = Source()
    first, second = await twice(Runner([source.tool], inside=[cache()]), '{"path": "x"}', '{"path": "x"}')
    assert (first.output, second.output, source.runs) == (["x", 10, 1], ["x", 10, 1], [("x", 10)])
    assert (first.executed, second.executed, second.success) == (True, False, True)
    assert ("cached" in first.metadata, dict(second.metadata)) == (False, {"cached": True})
    assert second.content == first.content == (Text('["x", 10, 1]'),)


@pytest.mark.parametrize(
    "other", ['{"lines": 10, "path": "x"}', '{"path": "x"}', '{ "path":"\\u0078" }', {"path": "x"}]
)
async def test_equal_arguments_share_an_answer(other: Any) -> None:
    source = Source()
    await twice(Runner([source.tool], inside=[cache()]), '{"path": "x", "lines": 10}', other)
    assert len(source.runs) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, 1.0, 0.5, "", "1", "true", "null"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
    max_leaves=4,
)


def exact_text(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{','.join(f'{key!r}:{exact_text(value[key])}' for key in sorted(value))}}}"
    return f"[{','.join(map(exact_text, value))}]" if isinstance(value, list) else repr(value)


@given(JSON, JSON)
def test_different_arguments_never_share_an_answer(one: Any, other: Any) -> None:
    @tool(read_only=True)
    async def echo(value: Any) -> str:
        return exact_text(value)

    async def main() -> None:
        runner = Runner([echo], inside=[cache()])
        for value in (one, other):
            assert (await runner.run("echo", {"value": value})).output == exact_text(value)

    go(main())


@pytest.mark.parametrize(
    "change",
    [
        *({"principal": "b"}, {"session": "t"}, {"working_directory": "/e"}, {"deps": object()}),
        *({"secrets": {"token": "y"}}, {"metadata": {"trace": 5}}),
    ],
)
async def test_another_context_gets_its_own_answer(change: dict[str, Any]) -> None:
    same = ToolContext[Any](principal="a", session="s", working_directory="/d", deps="db", secrets={"token": "x"})
    source = Source()
    runner = Runner([source.tool], inside=[cache()])
    counts = []
    for context in (same, same.replace(), same.replace(**change)):
        await runner.run("read", {}, context)
        counts.append(len(source.runs))
    assert counts == [1, 1, 2]


@pytest.mark.parametrize(
    ("by", "runs"), [("all", 1), ("session", 1), ("principal", 2), (lambda call, context: context.principal, 2)]
)
async def test_by_selects_what_separates_answers(by: Any, runs: int) -> None:
    source = Source()
    contexts = (ToolContext(principal="a", session="s"), ToolContext(principal="b", session="s"))
    await twice(Runner([source.tool], inside=[cache(by=by)]), {}, {}, contexts)
    assert len(source.runs) == runs


async def test_bound_arguments_separate_answers() -> None:
    source, kept = Source(), cache()

    runners = [Runner([source.tool.bind(path=path)], inside=[kept]) for path in ("mine", "yours")]
    assert [(await runner.run("read", "{}")).output[0] for runner in runners] == ["mine", "yours"]


@pytest.mark.parametrize("traits", [{"read_only": False}, {"read_only": lambda arguments: arguments["path"] != "x"}])
async def test_a_tool_that_changes_something_is_not_cached(traits: Any) -> None:
    source = Source(**traits)
    await twice(Runner([source.tool], inside=[cache()]), {"path": "x"}, {"path": "x"})
    assert len(source.runs) == 2


async def test_an_answer_expires() -> None:
    source, clock = Source(), ManualClock()

    runner = Runner([source.tool], inside=[cache(60, clock=clock)])
    counts = []
    for wait in (0, 59, 1):
        await clock.advance(wait)
        await runner.run("read")
        counts.append(len(source.runs))
    assert counts == [1, 1, 2]


async def test_the_least_recently_used_answer_is_dropped() -> None:
    source, kept = Source(), cache(entries=2)

    runner = Runner([source.tool], inside=[kept])
    for path in "abacab":
        await runner.run("read", {"path": path})
        assert len(kept) <= 2
    assert [read for read, _ in source.runs] == ["a", "b", "c", "b"]


async def test_a_result_may_opt_out_of_the_cache() -> None:
    runs: list[int] = []

    @tool(read_only=True)
    async def now() -> ToolResult:
        runs.append(1)
        mine = len(runs)
        await asyncio.sleep(0)
        return ToolResult(mine, metadata={"cache": False})

    runner = Runner([now], inside=[cache()])
    first = [result.output for result in await runner.run_all([ToolCall(id, "now") for id in "abc"])]
    assert sorted([*first, (await runner.run("now")).output]) == [1, 2, 3, 4]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_equal_concurrent_calls_run_once(lines: list[int]) -> None:
    source = Source()

    async def main() -> list[ToolResult]:
        source.gate = asyncio.Event()
        runner = Runner([source.tool], inside=[cache()])
        calls = [ToolCall(f"c{n}", "read", {"lines": line}) for n, line in enumerate(lines)]
        batch = asyncio.ensure_future(runner.run_all(calls))
        await ManualClock().advance(0)
        source.gate.set()
        return await batch

    results = go(main())
    assert len(source.runs) == len(set(lines))
    assert [result.output[1] for result in results] == lines
    assert len({id(result.output) for result in results}) == len(results)  # who changes one changes no other


async def test_a_failure_is_neither_shared_nor_kept() -> None:
    source = Source()
    source.error, source.gate = ValueError("x"), asyncio.Event()
    runner = Runner([source.tool], inside=[cache()])
    batch = asyncio.ensure_future(runner.run_all([ToolCall("a", "read"), ToolCall("b", "read")]))
    await ManualClock().advance(0)
    source.gate.set()
    assert [(one.status, one.executed, dict(one.metadata)) for one in await batch] == [("failed", True, {})] * 2
    assert not (await runner.run("read")).success and len(source.runs) == 3  # a failure is not kept


# -- what a person was asked -------------------------------------------------------------------------------------------


async def _by_input_required(context: ToolContext) -> Any:
    return InputRequired("which?") if context.answer is None else dict(context.answer.value)


async def _while_it_runs(context: ToolContext) -> Any:
    return dict(await context.ask(InputRequired("which?")) or {})


async def _by_a_tool_that_it_calls(context: ToolContext) -> Any:
    return (await context.run("inner", {})).output


@pytest.mark.parametrize("handler", [_by_input_required, _while_it_runs, _by_a_tool_that_it_calls])
@pytest.mark.parametrize("at_once", [True, False])
async def test_an_approvers_answer_is_not_shared(handler: Any, at_once: bool) -> None:
    answers, gate = iter(range(9)), asyncio.Event()
    asking = tool(handler, name="asking", read_only=True)
    inner = tool(_by_input_required, name="inner", read_only=True)

    async def person(call: ToolCall, decision: Any, context: ToolContext) -> Any:
        answer = next(answers)
        if at_once:
            await gate.wait()
        return allow({"n": answer})

    runner = Runner([asking, inner], inside=[cache()], approve=person)
    calls = [ToolCall(id, "asking") for id in "abc"]
    if at_once:
        batch = asyncio.ensure_future(runner.run_all(calls))
        await ManualClock().advance(0)
        gate.set()
        found = await batch
    else:
        found = [await runner.run(call) for call in calls]
    assert sorted(result.output["n"] for result in found) == [0, 1, 2]


async def test_a_suspension_is_not_shared() -> None:
    asking = tool(_by_input_required, name="asking", read_only=True)

    runner = Runner([asking], inside=[cache()], approve=lambda call, decision, context: ask("later"))
    results = await runner.run_all([ToolCall(id, "asking") for id in "abc"])
    assert [result.status for result in results] == ["suspended"] * 3
    answered = [await runner.resume(one.record(), allow({"n": n})) for n, one in enumerate(results)]
    assert [(one.output, dict(one.metadata)) for one in answered] == [({"n": 0}, {}), ({"n": 1}, {}), ({"n": 2}, {})]


@given(st.integers(2, 6), st.lists(st.integers(0, 5), max_size=8))
def test_cancelling_one_call_does_not_affect_the_others(count: int, cancelled: list[int]) -> None:
    source = Source()

    async def main() -> None:
        clock = ManualClock()
        source.gate = asyncio.Event()
        runner = Runner([source.tool], inside=[cache(clock=clock)])
        tasks = [asyncio.ensure_future(runner.run("read")) for _ in range(count)]
        await clock.advance(0)
        for one in cancelled:
            tasks[one % count].cancel()
            await clock.advance(0)
        source.gate.set()
        await asyncio.wait(tasks, timeout=BOUND)
        gone = {one % count for one in cancelled}
        assert {n for n, task in enumerate(tasks) if task.cancelled()} == gone
        assert all(task.result().success for n, task in enumerate(tasks) if n not in gone)
        assert len(source.runs) <= 1 + len(gone)

    go(main())


@pytest.mark.parametrize("how", ["its deadline came", "it was cancelled"])
async def test_followers_of_an_abandoned_leader_run_after_it_ends(how: str) -> None:
    cancelled, release = asyncio.Event(), asyncio.Event()
    runs: list[int] = []

    @tool(read_only=True)
    async def read() -> int:
        runs.append(1)
        mine = len(runs)
        while mine == 1 and not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                cancelled.set()
        return mine

    clock = ManualClock()
    runner = Runner([read], inside=[cache()], waits=Waits(grace=0), clock=clock)
    leader = asyncio.ensure_future(runner.run("read", timeout=10))
    await clock.advance(0)
    waiting = [asyncio.ensure_future(runner.run("read")) for _ in range(3)]
    await clock.advance(0)
    if how == "it was cancelled":
        leader.cancel()
    else:
        await clock.advance(10)
    await cancelled.wait()
    await clock.advance(0)
    assert not any(one.done() for one in waiting) and len(runs) == 1
    release.set()
    await asyncio.wait({leader})
    assert [(await one).success for one in waiting] == [True] * 3
    assert leader.cancelled() if how == "it was cancelled" else leader.result().status == "timeout"
    assert probe.is_at_rest(runner)


async def test_an_inner_call_does_not_wait_for_its_parent() -> None:
    runs: list[int] = []

    @tool(read_only=True)
    async def read(context: ToolContext) -> Any:
        runs.append(1)
        return (await context.run("read")).output if len(runs) < 3 else "deep"

    assert (await Runner([read], inside=[cache()]).run("read")).output == "deep"


async def test_the_cache_is_refused_in_around() -> None:
    source, within = Source(), cache()
    with pytest.raises(DefinitionError, match=r"cache\(…\) belongs in `inside`"):
        Runner([source.tool], around=[cache()])
    result = await Runner([source.tool], around=[lambda call, context, next: within(call, context, next)]).run("read")
    assert (result.status, source.runs) == ("failed", [])
    assert isinstance(result.exception, DefinitionError) and "inside" in str(result.exception)


async def test_forget_drops_the_answers_of_one_tool_or_all() -> None:
    source, other, kept = Source(), Source(), cache()

    runner = Runner([source.tool, other.tool.replace(name="other")], inside=[kept])
    counts = []
    for forget in (lambda: None, lambda: kept.forget("other"), kept.forget):
        forget()
        await runner.run("read")
        await runner.run("other")
        counts += [len(source.runs), len(other.runs)]
    assert counts == [1, 1, 1, 2, 2, 3]


async def test_a_call_running_during_forget_is_not_kept() -> None:
    source, kept = Source(), cache()
    source.gate = asyncio.Event()
    runner = Runner([source.tool], inside=[kept])
    running = asyncio.ensure_future(runner.run("read"))
    await ManualClock().advance(0)
    kept.forget()
    source.gate.set()
    await running
    await runner.run("read")
    assert len(source.runs) == 2


@pytest.mark.parametrize(
    "arguments", [{"seconds": 0}, {"seconds": True}, {"entries": 0}, {"by": "user"}, {"by": 5}, {"clock": 1}]
)
def test_wrong_parameters_are_refused(arguments: Any) -> None:
    make: Callable[..., Any] = cache
    with pytest.raises(DefinitionError, match=next(iter(arguments))):
        make(**arguments)


async def test_secret_arguments_separate_answers() -> None:
    @tool(read_only=True)
    async def balance(token: SecretStr) -> str:
        """Look it up."""
        return token.get_secret_value()

    runner = Runner([balance], inside=[cache()])
    assert [(await runner.run("balance", {"token": token})).output for token in ("ada", "bob")] == ["ada", "bob"]


@pytest.mark.parametrize("copies", [0, 1])
def test_an_output_that_cannot_be_copied_fails_no_call(copies: int) -> None:
    """It cannot be copied when it is to be kept, or later, when it is to be given to another call."""
    made: list[int] = []

    class Odd:
        def __deepcopy__(self, memo: Any) -> Odd:
            made.append(1)
            if len(made) > copies:
                raise SystemExit(3)
            return self

    @tool(read_only=True)
    async def act() -> Any:
        return Odd()

    runner = Runner([act], inside=[cache()])
    results = [go(runner.run("act")) for _ in range(2)]
    assert [(result.status, "cached" in result.metadata) for result in results] == [("ok", False)] * 2
