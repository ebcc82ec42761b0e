"""`retry` repeats a call only where that does no harm."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import DefinitionError, Runner, Tool, ToolCall, ToolContext, ToolError, ToolResult, tool
from ferrule.middleware import retry
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
def test_a_safe_tool_is_retried_until_it_succeeds(traits: Any) -> None:
    flaky = Flaky(DOWN, DOWN, **traits)
    result, _, when = attempt(flaky)
    assert (result.output, flaky.runs, when) == ("done", 3, 0.5 + 1.0)


@pytest.mark.parametrize(
    "traits", [{}, {"idempotent": lambda arguments: False}, {"idempotent": lambda arguments: 1 / 0}]
)
def test_a_tool_that_changes_something_runs_once(traits: Any) -> None:
    flaky = Flaky(DOWN, **traits)
    result, watch, _ = attempt(flaky)
    assert (result.status, flaky.runs, watch.kinds()) == ("failed", 1, ["tool:pre", "tool:error"])
    assert "attempts" not in result.metadata


def test_a_tool_declared_safe_is_retried() -> None:
    assert attempt(Flaky(DOWN), safe=["a*"])[0].success
    assert not attempt(Flaky(DOWN), safe=["other"])[0].success
    result, watch, when = attempt(Flaky(), safe=["act"])  # a success at once has no record of attempts
    assert (dict(result.metadata), when, watch.kinds()) == ({}, 0.0, ["tool:pre", "tool:post"])


def test_a_call_that_did_not_run_is_retried() -> None:
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
def test_a_call_that_ran_is_not_retried_on_middlewares_word(before: list[ToolResult]) -> None:
    answers = list(before)

    async def full(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
        return answers.pop() if answers else await next(call, context)

    flaky = Flaky(DOWN, DOWN)
    assert (attempt(flaky, inside=[denying_it, full])[0].status, flaky.runs) == ("failed", 1)
    result, _, _ = attempt(Flaky(DOWN, idempotent=True), attempts=2, inside=[denying_it])
    assert (result.status, result.executed) == ("ok", None)


async def test_retry_is_refused_in_around() -> None:
    flaky, within = Flaky(read_only=True), retry()
    with pytest.raises(DefinitionError, match=r"retry\(…\) belongs in `inside`"):
        Runner([flaky.tool], around=[retry()])
    result = await Runner([flaky.tool], around=[lambda call, context, next: within(call, context, next)]).run("act")
    assert (result.status, result.executed, flaky.runs) == ("failed", False, 0)
    assert isinstance(result.exception, DefinitionError) and "inside" in str(result.exception)


@given(st.lists(st.sampled_from(["failed", "limited"]), max_size=8), st.integers(1, 5))
def test_an_unsafe_tool_runs_at_most_once(ends: list[str], attempts: int) -> None:
    ends = list(ends)

    async def between(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
        end = ends.pop() if ends else "ok"
        return make_limited_result("Full.", 1) if end == "limited" else await next(call, context)

    flaky = Flaky(*[DOWN if end == "failed" else None for end in reversed(ends) if end != "limited"])
    attempt(flaky, inside=[between], attempts=attempts)
    assert flaky.runs <= 1


def test_every_attempt_is_reported_and_recorded() -> None:
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


def test_the_wait_doubles_up_to_the_longest() -> None:
    result, _, _ = attempt(Flaky(*[DOWN] * 9, read_only=True), attempts=6, wait=1, longest=5)
    assert [made["wait"] for made in result.metadata["attempts"]] == [1, 2, 4, 5, 5, None]
    assert "not_retried" not in result.metadata  # all attempts were made


@given(st.floats(0, 1), st.floats(0, 10), st.floats(0, 20))
def test_jitter_only_shortens_a_wait(jitter: float, wait: float, longest: float) -> None:
    result, _, _ = attempt(Flaky(DOWN, read_only=True), wait=wait, longest=longest, jitter=jitter)
    most = min(wait, longest)
    assert most * (1 - jitter) * 0.999 <= result.metadata["attempts"][0]["wait"] <= most


@given(st.floats(0, 40), st.floats(0, 1))
def test_retry_after_is_kept_up_to_the_longest_wait(seconds: float, jitter: float) -> None:
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
def test_a_result_says_why_it_was_not_retried(why: str, traits: dict[str, Any], options: dict[str, Any]) -> None:
    per_minute = "per_minute" in options
    errors = [ToolError("busy", retry_after=0.5 if per_minute else 60)] * 3
    result, _, _ = attempt(Flaky(*errors, **traits), **options)
    assert why in result.metadata["not_retried"]
    assert len(result.metadata.get("attempts", [1])) == (2 if per_minute else 1)
    assert plain(result) == "busy"  # that is for the program, not for the model


@pytest.mark.parametrize(
    ("given_time", "runs"),
    [*((wrong, 2) for wrong in (True, "5", float("nan"), -1, None)), (float("inf"), 1), (10**400, 1)],
)
def test_a_wrong_time_counts_as_none_and_never_means_never(given_time: Any, runs: int) -> None:
    async def says(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
        result = await next(call, context)
        return result.replace(metadata={"retry_after": given_time})

    flaky = Flaky(DOWN, read_only=True)
    result, _, _ = attempt(flaky, inside=[says])
    assert flaky.runs == runs and (runs == 1 or result.metadata["attempts"][0]["wait"] == 0.5)


@pytest.mark.parametrize("status", ["denied", "suspended", "unknown"])
def test_final_statuses_are_never_retried(status: Any) -> None:
    flaky = Flaky(read_only=True)

    async def refuses(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
        flaky.runs += 1
        return ToolResult(error="no", status=status, executed=False)

    told = "failed" if status == "suspended" else status  # only the kernel can suspend
    assert attempt(flaky, inside=[refuses], when=lambda result: True)[0].status == told
    assert flaky.runs == 1


def test_a_limit_without_a_time_and_an_error_of_middleware_are_not_retried() -> None:
    asked = []

    async def full(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
        asked.append("full")
        return make_limited_result("The budget is used up.")

    async def breaks(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
        asked.append("breaks")
        raise RuntimeError

    assert [attempt(Flaky(read_only=True), inside=[one])[0].status for one in (full, breaks)] == ["limited", "failed"]
    assert asked == ["full", "breaks"]


@pytest.mark.parametrize(("retryable", "executed"), [(False, False), (None, False), (True, True), (None, None)])
def test_retryable_and_executed_decide_about_a_retry(retryable: bool | None, executed: bool | None) -> None:
    error = ToolError("no", retryable=retryable, executed=executed)
    flaky = Flaky(error, read_only=True)
    result, _, _ = attempt(flaky)
    assert flaky.runs == (1 if retryable is False else 2) and result.success is (retryable is not False)
    assert result.retryable is (None if result.success else retryable) and "not_retried" not in result.metadata
    flaky = Flaky(error)
    attempt(flaky)
    assert flaky.runs == (2 if executed is False and retryable is not False else 1), "safety goes before"


def test_when_decides_what_is_retried() -> None:
    def not_missing(result: ToolResult) -> bool:
        return not isinstance(result.exception, LookupError)

    missing, down = Flaky(KeyError("x"), read_only=True), Flaky(DOWN, read_only=True)
    result, _, _ = attempt(missing, when=not_missing)
    assert (result.status, missing.runs, "not_retried" in result.metadata) == ("failed", 1, False)
    assert attempt(down, when=not_missing)[0].success and down.runs == 2


def test_a_retried_call_is_marked_as_executed() -> None:
    flaky = Flaky(DOWN, idempotent=True)

    async def then_full(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
        return make_limited_result("Full.") if flaky.runs else await next(call, context)

    result, _, _ = attempt(flaky, inside=[then_full])
    assert (result.status, result.executed) == ("limited", True)
    assert plain(result) == "Full. An earlier attempt ran."


def test_no_retry_after_a_chunk_was_shown() -> None:
    flaky = Flaky(DOWN, read_only=True)

    async def shows(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
        context.running_call.create_chunk_list().append("half")  # type: ignore[union-attr]
        return await next(call, context)  # type: ignore[no-any-return]

    assert attempt(flaky, inside=[shows])[0].status == "failed"
    assert flaky.runs == 1


async def test_all_calls_share_the_retries_per_minute() -> None:
    flaky = Flaky(*[DOWN] * 1000, read_only=True)
    clock = ManualClock()

    runner = Runner([flaky.tool], inside=[retry(5, per_minute=10, clock=clock)])
    runs = []
    for _ in range(2):
        before = flaky.runs
        task = asyncio.ensure_future(runner.run_all([ToolCall(str(n), "act", {"n": n}) for n in range(20)]))
        await clock.advance(59.9)
        await task
        runs.append(flaky.runs - before)
        await clock.advance(0.1)
    assert runs == [20 + 10, 20 + 10]


async def test_each_tool_has_its_own_retries_per_minute() -> None:
    flaky, other = Flaky(*[DOWN] * 1000, read_only=True), Flaky(*[DOWN] * 1000, read_only=True)
    clock = ManualClock()

    tools = [flaky.tool, other.tool.replace(name="other")]
    runner = Runner(tools, inside=[retry(5, per_minute=3, wait=0, clock=clock)])
    for name in ("act", "act", "other"):
        await runner.run(name)
    assert (flaky.runs, other.runs) == (2 + 3, 1 + 3)


async def test_nothing_runs_after_a_wait_that_was_cut_short() -> None:
    flaky = Flaky(DOWN, read_only=True)

    clock = ManualClock()
    runner = Runner([flaky.tool], inside=[retry(wait=20, clock=clock)])
    batch = runner.batch([ToolCall("c1", "act", "{}")])
    going = asyncio.ensure_future(batch)  # type: ignore[arg-type]
    await clock.advance(0)
    batch.cancel()
    await clock.advance(20)
    (result,) = await going
    assert (result.status, result.executed, flaky.runs, len(result.metadata["attempts"])) == ("cancelled", True, 1, 2)
    assert "It had been started, and changes nothing" in plain(result)


@pytest.mark.parametrize("while_it_waits", [True, False])
async def test_a_cancellation_passes_at_once(while_it_waits: bool) -> None:
    runs: list[int] = []

    @tool(read_only=True)
    async def act() -> Any:
        runs.append(1)
        if while_it_waits:
            raise DOWN
        await asyncio.Event().wait()

    clock = ManualClock()
    task = asyncio.ensure_future(Runner([act], inside=[retry(clock=clock)]).run("act"))
    await clock.advance(0.1)
    task.cancel()
    await clock.advance(0)
    assert task.cancelled() and runs == [1] and not clock.sleeping


async def later(result: ToolResult) -> bool:
    return True


@pytest.mark.parametrize(
    "arguments",
    [
        *({"attempts": 0}, {"wait": "1"}, {"longest": float("nan")}, {"jitter": 1.5}, {"per_minute": 0}),
        *({"safe": "act"}, {"safe": [1]}, {"when": later}, {"clock": 5}),
    ],
)
def test_wrong_parameters_are_refused(arguments: Any) -> None:
    make: Callable[..., Any] = retry
    with pytest.raises(DefinitionError, match=next(iter(arguments))):
        make(**arguments)
