"""`retry`: another attempt where it can do no harm, and nowhere else."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernel import isolated_tools

from ferrule import DefinitionError, Runner, Tool, ToolCall, ToolContext, ToolError, ToolResult, tool
from ferrule.middleware import rate, retry
from ferrule.middleware._limits import make_limited_result
from ferrule.testing import ManualClock
from watched import Watch, go, plain


class Flaky:
    """A tool that raises what it is given, one after the other, and then answers."""

    def __init__(self, *errors: BaseException | None, **traits: Any) -> None:
        self.errors = list(errors)
        self.runs = 0
        self.tool: Tool = tool(self.act, name="act", **traits)

    async def act(self, n: int = 0) -> str:
        self.runs += 1
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise copy.copy(error)  # one that is raised again and again grows
        return "done"


def attempt(
    flaky: Flaky, *, seconds: float = 1000, inside: Any = (), **options: Any
) -> tuple[ToolResult, Watch, float]:
    """The result, what an observer saw, and when it was there."""
    clock, watch = ManualClock(), Watch()
    options = {"jitter": 0, **options}
    timeout = options.pop("timeout", None)

    async def main() -> tuple[ToolResult, float]:
        runner = Runner(
            [flaky.tool], inside=[retry(clock=clock, **options), *inside], observers=[watch], timeout=timeout
        )
        ended: list[float] = []

        async def run() -> ToolResult:
            result = await runner.run(ToolCall("c1", "act", "{}"))
            ended.append(clock.time())
            return result

        task = asyncio.create_task(run())
        await clock.advance(seconds)
        return await task, ended[0]

    result, when = go(main())
    return result, watch, when


DOWN = ValueError("down")


@pytest.mark.parametrize("traits", [{"read_only": True}, {"idempotent": True}, {"idempotent": lambda arguments: True}])
def test_what_may_run_again_runs_until_it_succeeds(traits: Any) -> None:
    flaky = Flaky(DOWN, DOWN, **traits)
    result, _, when = attempt(flaky)
    assert (result.output, flaky.runs, when) == ("done", 3, 0.5 + 1.0)


@pytest.mark.parametrize(
    "traits", [{}, {"idempotent": lambda arguments: False}, {"idempotent": lambda arguments: 1 / 0}]
)
def test_what_changes_things_runs_once(traits: Any) -> None:
    flaky = Flaky(DOWN, **traits)
    result, watch, _ = attempt(flaky)
    assert (result.status, flaky.runs, watch.kinds()) == ("failed", 1, ["tool:pre", "tool:error"])
    assert "attempts" not in result.metadata


@pytest.mark.parametrize("name", ["act", "a*"])
def test_what_is_declared_safe_runs_again(name: str) -> None:
    flaky = Flaky(DOWN)
    assert attempt(flaky, safe=[name])[0].success
    assert not attempt(Flaky(DOWN), safe=["other"])[0].success


def test_what_ran_nothing_is_tried_again_even_if_it_changes_things() -> None:
    answers = [make_limited_result("Full.", 7), make_limited_result("Full.", 3)]

    async def full(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
        return answers.pop() if answers else await next(call, context)

    flaky = Flaky()
    result, _, when = attempt(flaky, inside=[full])
    assert (result.output, flaky.runs, when) == ("done", 1, 10.0)


async def denying_it(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
    """Says of whatever comes back that it was not run."""
    return (await next(call, context)).replace(executed=False)  # type: ignore[no-any-return]


@pytest.mark.parametrize("before", [[], [make_limited_result("Full.", 1)]])
def test_what_was_run_is_not_run_again_because_a_middleware_says_that_it_was_not(before: list[ToolResult]) -> None:
    answers = list(before)

    async def full(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
        return answers.pop() if answers else await next(call, context)

    flaky = Flaky(DOWN, DOWN)
    assert (attempt(flaky, inside=[denying_it, full])[0].status, flaky.runs) == ("failed", 1)


async def test_what_could_not_be_started_is_tried_again_even_if_it_changes_things() -> None:
    made = tool(isolated_tools.touches, name="act", isolation="process")

    async def main() -> ToolResult:
        runner = Runner([made], inside=[retry(2, wait=0)])
        return await runner.run("act", {"path": "never"}, ToolContext(metadata={b"": 0}))  # type: ignore[dict-item]

    result = await main()
    assert (result.status, result.executed, len(result.metadata["attempts"])) == ("failed", False, 2)
    assert "could not be run" in result.text and "Nothing was run." in result.text


async def test_in_around_where_no_deadline_would_cover_it_it_is_refused() -> None:
    flaky, within = Flaky(read_only=True), retry()
    with pytest.raises(DefinitionError, match=r"retry\(…\) belongs in `inside`"):
        Runner([flaky.tool], around=[retry()])
    result = await Runner([flaky.tool], around=[lambda call, context, next: within(call, context, next)]).run("act")
    assert (result.status, result.executed, flaky.runs) == ("failed", False, 0)
    assert isinstance(result.exception, DefinitionError) and "inside" in str(result.exception)


@pytest.mark.parametrize("timeout", [None, 1000])
async def test_a_call_made_by_what_stands_before_it_does_not_stop_it(timeout: float | None) -> None:
    async def asks_first(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
        if call.parent is None:
            await context.run("act")
        return await next(call, context)  # type: ignore[no-any-return]

    flaky, clock = Flaky(None, DOWN, read_only=True), ManualClock()
    runner = Runner([flaky.tool], inside=[asks_first, retry(wait=0, clock=clock)], timeout=timeout)
    assert ((await runner.run("act")).status, flaky.runs) == ("ok", 3)


@given(st.lists(st.sampled_from(["failed", "limited"]), max_size=8), st.integers(1, 5))
def test_a_tool_that_changes_things_is_run_at_most_once_whatever_comes(ends: list[str], attempts: int) -> None:
    ends = list(ends)

    async def between(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
        end = ends.pop() if ends else "ok"
        return make_limited_result("Full.", 1) if end == "limited" else await next(call, context)

    flaky = Flaky(*[DOWN if end == "failed" else None for end in reversed(ends) if end != "limited"])
    attempt(flaky, inside=[between], attempts=attempts)
    assert flaky.runs <= 1


@given(st.integers(1, 6), st.integers(0, 8), st.integers(1, 4))
def test_there_are_never_more_attempts_than_allowed_in_a_batch_either(attempts: int, failures: int, count: int) -> None:
    flaky = Flaky(*[DOWN] * (failures * count), read_only=True)
    clock = ManualClock()

    async def main() -> list[ToolResult]:
        runner = Runner([flaky.tool], inside=[retry(attempts, clock=clock)])
        task = asyncio.ensure_future(runner.run_all([ToolCall(str(n), "act", {"n": n}) for n in range(count)]))
        await clock.advance(1000)
        return await task

    results = go(main())
    made = [len(result.metadata.get("attempts", [1])) for result in results]
    assert max(made) <= attempts
    assert sum(made) == flaky.runs <= attempts * count


def test_every_attempt_is_an_event_and_on_the_record() -> None:
    result, watch, _ = attempt(Flaky(DOWN, DOWN, read_only=True))
    error = "act failed: ValueError: down."
    made = [
        {"attempt": 1, "of": 3, "status": "failed", "error": error, "wait": 0.5},
        {"attempt": 2, "of": 3, "status": "failed", "error": error, "wait": 1.0},
        {"attempt": 3, "of": 3, "status": "ok", "error": None, "wait": None},
    ]
    assert json.loads(json.dumps(result.record()))["metadata"]["attempts"] == made
    told = [event.data for event in watch.events if event.kind == "tool:progress"]
    assert [{name: data[name] for name in made[0]} for data in told] == made[:2]
    assert watch.kinds() == ["tool:pre", "tool:progress", "tool:progress", "tool:post"]


def test_a_success_at_once_is_the_same_result_without_a_record_of_attempts() -> None:
    result, watch, when = attempt(Flaky(read_only=True))
    assert (dict(result.metadata), when, watch.kinds()) == ({}, 0.0, ["tool:pre", "tool:post"])


def test_the_last_failure_is_given_when_all_attempts_are_used() -> None:
    flaky = Flaky(*[DOWN] * 9, read_only=True)
    result, _, _ = attempt(flaky, attempts=4)
    assert (result.status, flaky.runs, len(result.metadata["attempts"])) == ("failed", 4, 4)
    assert plain(result) == "act failed: ValueError: down."


def test_the_wait_doubles_up_to_the_longest() -> None:
    result, _, _ = attempt(Flaky(*[DOWN] * 9, read_only=True), attempts=6, wait=1, longest=5)
    assert [made["wait"] for made in result.metadata["attempts"]] == [1, 2, 4, 5, 5, None]


@given(st.floats(0, 1), st.floats(0, 10), st.floats(0, 20))
def test_chance_makes_a_wait_shorter_by_its_share_at_most(jitter: float, wait: float, longest: float) -> None:
    result, _, _ = attempt(Flaky(DOWN, read_only=True), wait=wait, longest=longest, jitter=jitter)
    most = min(wait, longest)
    assert most * (1 - jitter) * 0.999 <= result.metadata["attempts"][0]["wait"] <= most


@given(st.floats(0, 40), st.floats(0, 1))
def test_the_tools_own_time_is_kept_and_beyond_the_longest_there_is_no_other_attempt(
    seconds: float, jitter: float
) -> None:
    flaky = Flaky(ToolError("busy", retry_after=seconds), read_only=True)
    result, _, _ = attempt(flaky, jitter=jitter, longest=30)
    if seconds > 30:
        assert (result.status, flaky.runs) == ("failed", 1)
    else:
        assert seconds <= result.metadata["attempts"][0]["wait"] <= min(seconds + 0.5, 30)


@pytest.mark.parametrize(
    ("why", "traits", "options"),
    [
        ("the wait of 60 s is longer than retry(longest=30)", {"read_only": True}, {}),
        ("the wait of 60 s would end after the deadline", {"read_only": True}, {"longest": 60, "timeout": 50}),
        ("neither read_only nor idempotent nor in retry(safe=…)", {}, {"longest": 60}),
        ("retry(per_minute=1)", {"read_only": True}, {"longest": 60, "per_minute": 1, "attempts": 3}),
    ],
)
def test_a_result_that_is_worth_another_attempt_and_gets_none_says_why(
    why: str, traits: dict[str, Any], options: dict[str, Any]
) -> None:
    per_minute = "per_minute" in options
    errors = [ToolError("busy", retry_after=0.5 if per_minute else 60)] * 3
    result, _, _ = attempt(Flaky(*errors, **traits), **options)
    assert why in result.metadata["not_retried"]
    assert len(result.metadata.get("attempts", [1])) == (2 if per_minute else 1)
    assert plain(result) == "busy"  # that is for the program, not for the model


def test_waiting_for_a_limit_is_no_further_attempt() -> None:
    answers = [make_limited_result("Full.", 1) for _ in range(4)]

    async def full(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
        return answers.pop() if answers else await next(call, context)

    assert attempt(Flaky(), inside=[full], attempts=9, per_minute=1)[0].success


@pytest.mark.parametrize("longest", [30, 60])
async def test_a_rate_of_a_minute_is_waited_for_where_longest_allows_it(longest: int) -> None:
    clock = ManualClock()

    async def main() -> list[ToolResult]:
        runner = Runner([Flaky(read_only=True).tool], inside=[retry(longest=longest), rate(1, 60)], clock=clock)
        task = asyncio.ensure_future(runner.run_all([ToolCall(str(n), "act", {"n": n}) for n in range(2)]))
        await clock.advance(60)
        return await task

    second = (await main())[1]
    assert second.status == ("ok" if longest == 60 else "limited")
    assert ("longest=30" in second.metadata.get("not_retried", "")) is (longest == 30)


@pytest.mark.parametrize("what", ["all attempts were made", "it went well", "it is not worth another"])
def test_who_expects_no_other_attempt_is_told_nothing(what: str) -> None:
    flaky = Flaky(*[DOWN] * (2 if what == "all attempts were made" else 1), read_only=True)
    options = {"when": lambda result: False} if what == "it is not worth another" else {}
    assert "not_retried" not in attempt(flaky, attempts=2, **options)[0].metadata


@pytest.mark.parametrize("wrong", [True, "5", float("nan"), -1, None])
def test_a_time_that_is_none_counts_as_none(wrong: Any) -> None:
    async def says(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
        result = await next(call, context)
        return result.replace(metadata={"retry_after": wrong})

    result, _, _ = attempt(Flaky(DOWN, read_only=True), inside=[says])
    assert result.metadata["attempts"][0]["wait"] == 0.5


@pytest.mark.parametrize("never", [float("inf"), 10**400])
def test_a_tool_that_says_never_is_not_asked_again(never: Any) -> None:
    async def says(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
        result = await next(call, context)
        return result.replace(metadata={"retry_after": never})

    flaky = Flaky(DOWN, read_only=True)
    assert (plain(attempt(flaky, inside=[says])[0]), flaky.runs) == ("act failed: ValueError: down.", 1)


def test_no_wait_goes_beyond_the_deadline() -> None:
    flaky = Flaky(*[DOWN] * 5, read_only=True)
    result, _, when = attempt(flaky, attempts=9, wait=4, longest=100, timeout=10)
    assert (result.status, flaky.runs, when) == ("failed", 3, 4 + 8)
    assert [made["wait"] for made in result.metadata["attempts"]] == [4, 8, None]


@pytest.mark.parametrize("status", ["denied", "invalid", "suspended", "cancelled", "not_found", "unknown"])
def test_what_another_attempt_cannot_change_gets_none_even_if_asked_for(status: Any) -> None:
    flaky = Flaky(read_only=True)

    async def refuses(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
        flaky.runs += 1
        return ToolResult(error="no", status=status, executed=False)

    told = "failed" if status == "suspended" else status  # only the kernel can suspend
    assert attempt(flaky, inside=[refuses], when=lambda result: True)[0].status == told
    assert flaky.runs == 1


def test_what_is_limited_without_a_time_gets_no_other_attempt() -> None:
    asked = []

    async def full(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
        asked.append(1)
        return make_limited_result("The budget is used up.")

    result, _, _ = attempt(Flaky(read_only=True), inside=[full])
    assert (result.status, len(asked)) == ("limited", 1)


@pytest.mark.parametrize("executed", [True, False, None])
@pytest.mark.parametrize("retryable", [True, False, None])
def test_a_result_says_whether_another_attempt_is_worth_it(retryable: bool | None, executed: bool | None) -> None:
    error = ToolError("no", retryable=retryable, executed=executed)
    flaky = Flaky(error, read_only=True)
    result, _, _ = attempt(flaky)
    assert flaky.runs == (1 if retryable is False else 2) and result.success is (retryable is not False)
    assert result.retryable is (None if result.success else retryable) and "not_retried" not in result.metadata
    flaky = Flaky(error)
    attempt(flaky)
    assert flaky.runs == (2 if executed is False and retryable is not False else 1), "safety goes before"


def test_what_is_limited_and_retryable_is_tried_again() -> None:
    answers = [ToolResult(error="Full.", status="limited", executed=False, retryable=True)]

    async def full(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
        return answers.pop() if answers else await next(call, context)

    assert attempt(Flaky(), inside=[full])[0].success


@pytest.mark.parametrize("retryable", ["no", 0, lambda self: False])
def test_an_exception_that_says_retryable_in_its_own_way_says_nothing(retryable: Any) -> None:
    own = type("Own", (ToolError,), {"retryable": retryable})
    raising = type("Raising", (ToolError,), {"retryable": property(lambda self: 1 / 0)})
    for kind in (own, raising):
        flaky = Flaky(kind("no"), read_only=True)
        assert attempt(flaky)[0].success and flaky.runs == 2
    with pytest.raises(TypeError, match="retryable must be True, False or None"):
        ToolResult(retryable=retryable)


def test_when_says_what_is_worth_another_attempt() -> None:
    def not_missing(result: ToolResult) -> bool:
        return not isinstance(result.exception, LookupError)

    missing, down = Flaky(KeyError("x"), read_only=True), Flaky(DOWN, read_only=True)
    assert attempt(missing, when=not_missing)[0].status == "failed" and missing.runs == 1
    assert attempt(down, when=not_missing)[0].success and down.runs == 2


def test_what_was_run_before_is_never_said_to_have_run_nothing() -> None:
    flaky = Flaky(DOWN, idempotent=True)

    async def then_full(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
        return make_limited_result("Full.") if flaky.runs else await next(call, context)

    result, _, _ = attempt(flaky, inside=[then_full])
    assert (result.status, result.executed) == ("limited", True)
    assert plain(result) == "Full. An earlier attempt ran."


def test_what_was_run_before_is_not_denied_where_a_middleware_denies_it() -> None:
    result, _, _ = attempt(Flaky(DOWN, idempotent=True), attempts=2, inside=[denying_it])
    assert (result.status, result.executed) == ("ok", None)


def test_after_a_chunk_of_the_output_was_shown_there_is_no_other_attempt() -> None:
    flaky = Flaky(DOWN, read_only=True)

    async def shows(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
        context.running_call.create_chunk_list().append("half")  # type: ignore[union-attr]
        return await next(call, context)  # type: ignore[no-any-return]

    assert attempt(flaky, inside=[shows])[0].status == "failed"
    assert flaky.runs == 1


async def test_a_dead_service_gets_only_so_many_attempts_a_minute_from_all_calls_together() -> None:
    flaky = Flaky(*[DOWN] * 1000, read_only=True)
    clock = ManualClock()

    async def main() -> list[int]:
        runner = Runner([flaky.tool], inside=[retry(5, per_minute=10, clock=clock)])
        runs = []
        for _ in range(2):
            before = flaky.runs
            task = asyncio.ensure_future(runner.run_all([ToolCall(str(n), "act", {"n": n}) for n in range(20)]))
            await clock.advance(59.9)
            await task
            runs.append(flaky.runs - before)
            await clock.advance(0.1)
        return runs

    assert (await main()) == [20 + 10, 20 + 10]


async def test_each_tool_has_further_attempts_of_its_own() -> None:
    flaky, other = Flaky(*[DOWN] * 1000, read_only=True), Flaky(*[DOWN] * 1000, read_only=True)
    clock = ManualClock()

    async def main() -> None:
        tools = [flaky.tool, other.tool.replace(name="other")]
        runner = Runner(tools, inside=[retry(5, per_minute=3, wait=0, clock=clock)])
        for name in ("act", "act", "other"):
            await runner.run(name)

    await main()
    assert (flaky.runs, other.runs) == (2 + 3, 1 + 3)


@pytest.mark.parametrize(
    ("how", "status"), [("the batch is cancelled", "cancelled"), ("it is turned off", "denied"), ("left", "cancelled")]
)
async def test_after_a_wait_nothing_runs_where_there_is_to_be_no_other_attempt(how: str, status: str) -> None:
    flaky = Flaky(DOWN, read_only=True)

    async def main() -> ToolResult:
        clock = ManualClock()
        runner = Runner([flaky.tool], inside=[retry(wait=20, clock=clock)])
        batch = runner.batch([ToolCall("c1", "act", "{}")])
        going = asyncio.ensure_future(batch)  # type: ignore[arg-type]
        await clock.advance(0)
        if how == "the batch is cancelled":
            batch.cancel()
        elif how == "it is turned off":
            runner.disable("act", "no more")
        leaving = asyncio.ensure_future(runner.__aexit__()) if how == "left" else None
        await clock.advance(20)
        (result,) = await going
        if leaving is not None:
            await leaving
        return result

    result = await main()
    assert (result.status, result.executed, flaky.runs, len(result.metadata["attempts"])) == (status, True, 1, 2)
    assert "It had been started, and changes nothing" in plain(result)


@pytest.mark.parametrize("when", ["while it waits", "while it runs", "while it runs, and the tool hides it"])
async def test_a_cancellation_passes_at_once(when: str) -> None:
    runs: list[int] = []

    @tool(read_only=True)
    async def act() -> Any:
        runs.append(1)
        if when == "while it waits":
            raise DOWN
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if when == "while it runs":
                raise
            return ToolResult(error="interrupted")

    clock = ManualClock()
    # Without a deadline, what a handler hides is hidden before Python 3.13.
    timeout = 60.0 if when == "while it runs, and the tool hides it" else None
    task = asyncio.ensure_future(Runner([act], inside=[retry(clock=clock)], timeout=timeout).run("act"))
    await clock.advance(0.1)
    task.cancel()
    await clock.advance(0)
    assert task.cancelled() and runs == [1] and not clock.sleeping


def test_a_fault_of_the_program_is_not_tried_again() -> None:
    asked = []

    async def breaks(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
        asked.append(1)
        raise RuntimeError

    assert attempt(Flaky(read_only=True), inside=[breaks])[0].status == "failed"
    assert len(asked) == 1


async def test_each_attempt_gets_arguments_of_its_own() -> None:
    seen: list[list[int]] = []

    @tool(read_only=True)
    async def act(items: list[int]) -> None:
        seen.append(list(items))
        items.clear()
        raise DOWN

    await Runner([act], inside=[retry(2, wait=0)]).run("act", {"items": [1, 2]})
    assert seen == [[1, 2], [1, 2]]


async def later(result: ToolResult) -> bool:
    return True


@pytest.mark.parametrize(
    "arguments",
    [
        {"attempts": 0},
        {"attempts": 2.0},
        {"wait": -1},
        {"wait": "1"},
        {"longest": float("nan")},
        {"jitter": 1.5},
        {"per_minute": 0},
        {"safe": "act"},
        {"safe": [1]},
        {"safe": 5},
        {"when": 5},
        {"when": later},
        {"clock": 5},
    ],
)
def test_wrong_parameters_are_a_mistake_at_once(arguments: Any) -> None:
    make: Callable[..., Any] = retry
    with pytest.raises(DefinitionError, match=next(iter(arguments))):
        make(**arguments)
