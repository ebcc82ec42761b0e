"""`cache`: the same question to a tool that only reads runs once, and nobody gets another's answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, SecretStr

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
    deny,
    tool,
)
from ferrule.middleware import cache
from ferrule.testing import ManualClock
from watched import BOUND, Watch, go


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


async def test_the_second_time_it_does_not_run_and_says_where_the_answer_is_from() -> None:
    source = Source()
    first, second = await twice(Runner([source.tool], inside=[cache()]), '{"path": "x"}', '{"path": "x"}')
    assert (first.output, second.output, source.runs) == (["x", 10, 1], ["x", 10, 1], [("x", 10)])
    assert (first.executed, second.executed, second.success) == (True, False, True)
    assert ("cached" in first.metadata, dict(second.metadata)) == (False, {"cached": True})
    assert second.content == first.content == (Text('["x", 10, 1]'),)


async def test_each_call_has_its_own_id_and_its_own_event() -> None:
    watch = Watch()
    runner = Runner([Source().tool], inside=[cache()], observers=[watch])
    results = await runner.run_all([ToolCall("a", "read"), ToolCall("b", "read"), ToolCall("c", "read")])
    assert [result.call_id for result in results] == ["a", "b", "c"]
    assert [watch.ends(id) for id in "abc"] == [["tool:post"]] * 3


@pytest.mark.parametrize(
    "other", ['{"lines": 10, "path": "x"}', '{"path": "x"}', '{ "path":"\\u0078" }', {"path": "x"}]
)
async def test_however_the_same_arguments_are_written_they_are_the_same(other: Any) -> None:
    source = Source()
    await twice(Runner([source.tool], inside=[cache()]), '{"path": "x", "lines": 10}', other)
    assert len(source.runs) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, 1.0, 0.5, "", "1", "true", "null"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
    max_leaves=4,
)


def told_apart(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{','.join(f'{key!r}:{told_apart(value[key])}' for key in sorted(value))}}}"
    return f"[{','.join(map(told_apart, value))}]" if isinstance(value, list) else repr(value)


@given(JSON, JSON)
def test_different_arguments_never_share_an_answer(one: Any, other: Any) -> None:
    @tool(read_only=True)
    async def echo(value: Any) -> str:
        return told_apart(value)

    async def main() -> None:
        runner = Runner([echo], inside=[cache()])
        for value in (one, other):
            assert (await runner.run("echo", {"value": value})).output == told_apart(value)

    go(main())


DEPS, SECRETS = object(), {"token": "x"}


@pytest.mark.parametrize(
    "other",
    [
        ToolContext(principal="b", session="s", working_directory="/d", deps=DEPS, secrets=SECRETS),
        ToolContext(principal="a", session="t", working_directory="/d", deps=DEPS, secrets=SECRETS),
        ToolContext(principal="a", session="s", working_directory="/e", deps=DEPS, secrets=SECRETS),
        ToolContext(principal="a", session="s", working_directory="/d", deps=object(), secrets=SECRETS),
        ToolContext(principal="a", session="s", working_directory="/d", deps=DEPS, secrets={"token": "y"}),
        ToolContext(
            session="s", principal="a", working_directory="/d", deps=DEPS, metadata={"trace": 5}, secrets=SECRETS
        ),
    ],
)
async def test_nobody_gets_the_answer_of_another_context(other: ToolContext) -> None:
    same = ToolContext(principal="a", session="s", working_directory="/d", deps=DEPS, secrets=SECRETS)

    async def main() -> tuple[int, int]:
        source = Source()
        runner = Runner([source.tool], inside=[cache()])
        await twice(runner, {}, {}, (same, same.replace()))
        before = len(source.runs)
        await runner.run("read", {}, other)
        return before, len(source.runs)

    assert (await main()) == (1, 2)


@pytest.mark.parametrize(
    ("by", "runs"), [("all", 1), ("session", 1), ("principal", 2), (lambda call, context: context.principal, 2)]
)
async def test_by_says_what_of_the_context_changes_an_answer(by: Any, runs: int) -> None:
    source = Source()
    contexts = (ToolContext(principal="a", session="s"), ToolContext(principal="b", session="s"))
    await twice(Runner([source.tool], inside=[cache(by=by)]), {}, {}, contexts)
    assert len(source.runs) == runs


async def test_a_key_that_is_none_fails_the_call_and_nothing_runs() -> None:
    source = Source()
    result = await Runner([source.tool], inside=[cache(by=lambda call, context: [])]).run("read")
    assert (result.status, result.executed, source.runs) == ("failed", False, [])


async def test_what_is_fixed_in_a_tool_keeps_its_answers_apart() -> None:
    source, kept = Source(), cache()

    async def main() -> list[Any]:
        runners = [Runner([source.tool.bind(path=path)], inside=[kept]) for path in ("mine", "yours")]
        return [(await runner.run("read", "{}")).output[0] for runner in runners]

    assert (await main()) == ["mine", "yours"]


@pytest.mark.parametrize("traits", [{"read_only": False}, {"read_only": lambda arguments: arguments["path"] != "x"}])
async def test_what_changes_things_is_run_every_time(traits: Any) -> None:
    source = Source(**traits)
    await twice(Runner([source.tool], inside=[cache()]), {"path": "x"}, {"path": "x"})
    assert len(source.runs) == 2


async def test_an_answer_is_good_for_its_time_and_no_longer() -> None:
    source, clock = Source(), ManualClock()

    async def main() -> list[int]:
        runner = Runner([source.tool], inside=[cache(60, clock=clock)])
        counts = []
        for wait in (0, 59, 1):
            await clock.advance(wait)
            await runner.run("read")
            counts.append(len(source.runs))
        return counts

    assert (await main()) == [1, 1, 2]


async def test_only_so_many_are_kept_and_the_one_not_asked_for_the_longest_goes() -> None:
    source, kept = Source(), cache(entries=2)

    async def main() -> None:
        runner = Runner([source.tool], inside=[kept])
        for path in "abacab":
            await runner.run("read", {"path": path})
            assert len(kept) <= 2

    await main()
    assert [path for path, _ in source.runs] == ["a", "b", "c", "b"]


@pytest.mark.parametrize("error", [ValueError("x"), ConnectionError()])
async def test_a_failure_is_not_kept(error: Exception) -> None:
    source = Source()
    source.error = error
    await twice(Runner([source.tool], inside=[cache()]), {}, {})
    assert len(source.runs) == 2


async def test_what_says_that_it_must_not_be_kept_is_neither_kept_nor_shared() -> None:
    runs: list[int] = []

    @tool(read_only=True)
    async def now() -> ToolResult:
        runs.append(1)
        mine = len(runs)
        await asyncio.sleep(0)
        return ToolResult(mine, metadata={"cache": False})

    async def main() -> list[Any]:
        runner = Runner([now], inside=[cache()])
        first = [result.output for result in await runner.run_all([ToolCall(id, "now") for id in "abc"])]
        return [*first, (await runner.run("now")).output]

    assert sorted(await main()) == [1, 2, 3, 4]


async def test_what_cannot_be_copied_is_not_kept() -> None:
    runs: list[int] = []

    @tool(read_only=True)
    async def lock() -> Any:
        runs.append(1)
        return {"lock": threading.Lock()}

    async def main() -> None:
        runner = Runner([lock], inside=[cache()])
        assert (await runner.run("lock")).success and (await runner.run("lock")).success

    await main()
    assert len(runs) == 2


async def test_who_changes_an_output_changes_nobody_elses() -> None:
    source = Source()

    async def main() -> list[Any]:
        runner = Runner([source.tool], inside=[cache()])
        for _ in range(3):
            result = await runner.run("read")
            result.output.append("scribble")
        last = await runner.run("read")
        return [last.output, last.text]

    assert (await main()) == [["a", 10, 1], '["a", 10, 1]']


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_calls_for_the_same_at_the_same_time_run_once(lines: list[int]) -> None:
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
    assert len({id(result.output) for result in results}) == len(results)


def test_who_waits_for_one_that_fails_runs_by_itself() -> None:
    source = Source()
    source.error = ValueError("x")

    async def main() -> list[ToolResult]:
        source.gate = asyncio.Event()
        batch = asyncio.ensure_future(
            Runner([source.tool], inside=[cache()]).run_all([ToolCall("a", "read"), ToolCall("b", "read")])
        )
        await ManualClock().advance(0)
        source.gate.set()
        return await batch

    assert [(one.status, one.executed, dict(one.metadata)) for one in go(main())] == [("failed", True, {})] * 2
    assert len(source.runs) == 2


# -- what a person was asked -------------------------------------------------------------------------------------------


async def _by_input_required(context: ToolContext) -> Any:
    return InputRequired("which?") if context.answer is None else dict(context.answer.value)


async def _while_it_runs(context: ToolContext) -> Any:
    return dict(await context.ask(InputRequired("which?")) or {})


async def _by_a_tool_that_it_calls(context: ToolContext) -> Any:
    return (await context.run("inner", {})).output


@pytest.mark.parametrize("handler", [_by_input_required, _while_it_runs, _by_a_tool_that_it_calls])
@pytest.mark.parametrize("at_once", [True, False])
def test_what_a_person_answered_is_for_the_call_that_asked_and_no_other(handler: Any, at_once: bool) -> None:
    answers = iter(range(9))
    asking = tool(handler, name="asking", read_only=True)
    inner = tool(_by_input_required, name="inner", read_only=True)

    async def main() -> list[Any]:
        gate = asyncio.Event()

        async def person(call: ToolCall, decision: Any, context: ToolContext) -> Any:
            answer = next(answers)
            if at_once:
                await gate.wait()
            return allow({"n": answer})

        runner = Runner([asking, inner], inside=[cache()], approve=person)
        calls = [ToolCall(id, "asking") for id in "abc"]
        if not at_once:
            return [(await runner.run(call)).output for call in calls]
        batch = asyncio.ensure_future(runner.run_all(calls))
        await ManualClock().advance(0)
        gate.set()
        return [result.output for result in await batch]

    assert sorted(found["n"] for found in go(main())) == [0, 1, 2]


async def test_a_suspension_is_for_the_call_that_was_suspended_and_no_other() -> None:
    asking = tool(_by_input_required, name="asking", read_only=True)

    async def main() -> list[Any]:
        runner = Runner([asking], inside=[cache()], approve=lambda call, decision, context: ask("later"))
        results = await runner.run_all([ToolCall(id, "asking") for id in "abc"])
        assert [result.status for result in results] == ["suspended"] * 3
        answered = [await runner.resume(one.record(), allow({"n": n})) for n, one in enumerate(results)]
        return [(one.output, dict(one.metadata)) for one in answered]

    assert (await main()) == [({"n": 0}, {}), ({"n": 1}, {}), ({"n": 2}, {})]


@given(st.integers(2, 6), st.lists(st.integers(0, 5), max_size=8))
def test_whoever_is_cancelled_the_others_get_their_answer(count: int, cancelled: list[int]) -> None:
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


async def test_a_leader_that_ran_into_its_deadline_does_not_take_the_others_along() -> None:
    source = Source()

    async def main() -> tuple[str, Any]:
        source.gate = asyncio.Event()
        runner = Runner([source.tool], inside=[cache()])
        leader = asyncio.ensure_future(runner.run("read", {}, timeout=0.01))
        await ManualClock().advance(0)
        follower = asyncio.ensure_future(runner.run("read", {}))
        first = await leader
        source.gate.set()
        return first.status, (await follower).output

    assert (await main()) == ("timeout", ["a", 10, 2])


@pytest.mark.parametrize("how", ["its deadline came", "it was cancelled"])
async def test_who_waits_for_a_leader_that_was_given_up_runs_once_its_handler_has_ended(how: str) -> None:
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

    runner = Runner([read], inside=[cache()], waits=Waits(grace=0))
    leader = asyncio.ensure_future(runner.run("read", timeout=0.01 if how == "its deadline came" else BOUND))
    await ManualClock().advance(0)
    waiting = [asyncio.ensure_future(runner.run("read")) for _ in range(3)]
    await ManualClock().advance(0)
    if how == "it was cancelled":
        leader.cancel()
    await cancelled.wait()
    await ManualClock().advance(0)
    assert not any(one.done() for one in waiting) and len(runs) == 1
    release.set()
    await asyncio.wait({leader})
    assert [(await one).success for one in waiting] == [True] * 3
    assert leader.cancelled() if how == "it was cancelled" else leader.result().status == "timeout"
    assert probe.is_at_rest(runner)


async def test_while_a_leader_handles_a_timeout_of_its_own_the_others_wait_for_it() -> None:
    runs: list[int] = []

    @tool(read_only=True, timeout=BOUND)
    async def read() -> str:
        runs.append(1)
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            await ManualClock().advance(0)
        return "the other source"

    results = await Runner([read], inside=[cache()]).run_all([ToolCall(id, "read") for id in "abc"])
    assert ([result.output for result in results], len(runs)) == (["the other source"] * 3, 1)


async def test_a_call_made_by_the_one_it_would_wait_for_runs_by_itself() -> None:
    runs: list[int] = []

    @tool(read_only=True)
    async def read(context: ToolContext) -> Any:
        runs.append(1)
        return (await context.run("read")).output if len(runs) < 3 else "deep"

    assert (await Runner([read], inside=[cache()]).run("read")).output == "deep"


async def test_two_that_call_what_the_other_runs_do_not_wait_for_each_other_for_ever() -> None:
    both = asyncio.Event()
    began: list[str] = []

    async def work(mine: str, other: str, context: ToolContext) -> str:
        began.append(mine)
        if len(began) == 2:
            both.set()
        await both.wait()
        return mine if context.call is None or context.call.parent else f"{mine}{(await context.run(other)).output}"

    @tool(read_only=True)
    async def a(context: ToolContext) -> str:
        return await work("a", "b", context)

    @tool(read_only=True)
    async def b(context: ToolContext) -> str:
        return await work("b", "a", context)

    results = await Runner([a, b], inside=[cache()]).run_all([ToolCall("1", "a"), ToolCall("2", "b")])
    assert [result.output[:2] for result in results] == ["ab", "ba"]


def test_loops_in_two_threads_share_one_run() -> None:
    kept = cache()
    began, release = threading.Event(), threading.Event()
    runs: list[int] = []

    @tool(read_only=True)
    def read() -> int:
        runs.append(1)
        began.set()
        release.wait(BOUND)
        return len(runs)

    outputs: list[Any] = []

    def one() -> None:
        outputs.append(asyncio.run(Runner([read], inside=[kept]).run("read")).output)

    leader, follower = threading.Thread(target=one), threading.Thread(target=one)
    leader.start()
    assert began.wait(BOUND)
    follower.start()
    while not next(iter(kept._flights.values())).waiters:
        assert follower.is_alive()
    release.set()
    leader.join(BOUND)
    follower.join(BOUND)
    assert (outputs, len(runs)) == ([1, 1], 1)


def test_a_leader_whose_loop_was_closed_is_not_waited_for() -> None:
    kept, source = cache(), Source()
    runner = Runner([source.tool], inside=[kept])
    source.gate = asyncio.Event()
    loop = asyncio.new_event_loop()
    left = loop.create_task(runner.run("read"))
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    source.gate = None
    assert kept._flights
    assert go(Runner([source.tool], inside=[kept]).run("read")).success
    left._log_destroy_pending = False  # type: ignore[attr-defined]
    left.get_coro().close()  # type: ignore[union-attr]


async def test_guards_are_asked_every_time() -> None:
    refused = False

    def guard(call: ToolCall, context: ToolContext[Any]) -> Any:
        return deny("not any more") if refused else None

    async def main() -> list[str]:
        nonlocal refused
        runner = Runner([Source().tool], guards=[guard], inside=[cache()])
        found = [(await runner.run("read")).status for _ in range(2)]
        refused = True
        return [*found, (await runner.run("read")).status]

    assert (await main()) == ["ok", "ok", "denied"]


async def test_in_around_where_it_would_go_round_the_guards_it_is_refused() -> None:
    source, within = Source(), cache()
    with pytest.raises(DefinitionError, match=r"cache\(…\) belongs in `inside`"):
        Runner([source.tool], around=[cache()])
    result = await Runner([source.tool], around=[lambda call, context, next: within(call, context, next)]).run("read")
    assert (result.status, source.runs) == ("failed", [])
    assert isinstance(result.exception, DefinitionError) and "inside" in str(result.exception)


@tool
async def login() -> None:
    """What a middleware runs before the call that it goes round."""


async def _logs_in(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
    if call.name != "login":
        assert (await context.run("login")).success
    return await next(call, context)  # type: ignore[no-any-return]


@pytest.mark.parametrize("timeout", [None, BOUND])
async def test_a_call_made_by_what_stands_before_it_does_not_stop_it(timeout: float | None) -> None:
    source = Source()
    result = await Runner([source.tool, login], inside=[_logs_in, cache()], timeout=timeout).run("read")
    assert (result.status, source.runs) == ("ok", [("a", 10)])


async def test_a_call_made_before_it_does_not_let_it_stand_in_around() -> None:
    source, within = Source(), cache()
    around = [_logs_in, lambda call, context, next: within(call, context, next)]
    result = await Runner([source.tool, login], around=around).run("read")
    assert (result.status, source.runs) == ("failed", [])
    assert isinstance(result.exception, DefinitionError)


async def test_forget_drops_what_is_kept_of_one_tool_or_of_all() -> None:
    source, other, kept = Source(), Source(), cache()

    async def main() -> list[int]:
        runner = Runner([source.tool, other.tool.replace(name="other")], inside=[kept])
        counts = []
        for forget in (lambda: None, lambda: kept.forget("other"), kept.forget):
            forget()
            await runner.run("read")
            await runner.run("other")
            counts += [len(source.runs), len(other.runs)]
        return counts

    assert (await main()) == [1, 1, 1, 2, 2, 3]


async def test_what_runs_while_it_is_forgotten_is_not_kept() -> None:
    source, kept = Source(), cache()

    async def main() -> None:
        source.gate = asyncio.Event()
        runner = Runner([source.tool], inside=[kept])
        running = asyncio.ensure_future(runner.run("read"))
        await ManualClock().advance(0)
        kept.forget()
        source.gate.set()
        await running
        await runner.run("read")

    await main()
    assert len(source.runs) == 2


@pytest.mark.parametrize(
    "arguments", [{"seconds": 0}, {"seconds": True}, {"entries": 0}, {"by": "user"}, {"by": 5}, {"clock": 1}]
)
def test_wrong_parameters_are_a_mistake_at_once(arguments: Any) -> None:
    make: Callable[..., Any] = cache
    with pytest.raises(DefinitionError, match=next(iter(arguments))):
        make(**arguments)


async def test_metadata_that_says_otherwise_has_answers_of_its_own() -> None:
    @tool(read_only=True)
    async def tenant(context: ToolContext) -> Any:
        return context.metadata["tenant"]

    async def main() -> list[Any]:
        runner = Runner([tenant], inside=[cache()])
        contexts = [ToolContext(metadata={"tenant": name}) for name in "ABA"]
        return [(await runner.run("tenant", None, context)).output for context in contexts]

    assert (await main()) == ["A", "B", "A"]


def test_two_secrets_have_answers_of_their_own() -> None:
    @tool(read_only=True)
    async def balance(token: Annotated[SecretStr, AfterValidator(stripped)]) -> str:
        """Look it up."""
        return token.get_secret_value()

    runner = Runner([balance], inside=[cache()])
    assert [go(runner.run("balance", {"token": token})).output for token in ("ada", "bob")] == ["ada", "bob"]


def stripped(secret: SecretStr) -> SecretStr:
    return SecretStr(secret.get_secret_value().strip())


@pytest.mark.parametrize("copies", [0, 1])
def test_whatever_an_output_raises_when_it_is_copied_fails_no_call(copies: int) -> None:
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
