"""Middleware: the order, what it may change, and results that it makes itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ferrule import Decision, Runner, Sizes, Text, Tool, ToolCall, ToolContext, ToolResult, deny, tool
from ferrule.middleware import after, before
from waits import BOUND
from watched import Watch, plain, run


@tool
async def double(n: int) -> int:
    """Double it."""
    return n * 2


def named(name: str, passed: list[str]) -> Any:
    async def middle(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        passed.append(f"{name} in")
        result: ToolResult = await next(call, context)
        passed.append(f"{name} out")
        return result

    return middle


def test_the_first_is_the_outermost_and_the_runners_are_outside_the_tools() -> None:
    passed: list[str] = []

    @tool(
        around=[named("tool's around", passed)],
        inside=[named("tool's inside", passed)],
        guards=[lambda call, context: passed.append("guard")],
    )
    async def work() -> None:
        passed.append("handler")

    run(
        work,
        "work",
        around=[named("first", passed), named("second", passed)],
        inside=[named("inside", passed)],
        observers=[lambda event: passed.append(event.kind)],
    )
    way = ["first", "second", "tool's around", "inside", "tool's inside"]
    assert passed == [
        "tool:pre",
        *(f"{name} in" for name in way[:3]),
        "guard",
        "tool:decided",
        "tool:started",
        *(f"{name} in" for name in way[3:]),
        "handler",
        *(f"{name} out" for name in reversed(way)),
        "tool:post",
    ]


@pytest.mark.parametrize(("n", "status"), [(5, "ok"), ("x", "invalid"), (50, "denied")])
def test_what_around_changes_is_validated_and_judged(n: Any, status: str) -> None:
    def small(call: ToolCall, context: ToolContext) -> Decision | None:
        return deny("too large") if call.arguments["n"] > 10 else None

    async def changes(call: ToolCall, context: ToolContext, next: Any) -> Any:
        return await next(call.replace(arguments={"n": n}), context)

    for middleware in (changes, before(lambda arguments: {"n": n})):
        result, watch = run(double, ToolCall("c1", "double", {"n": 1}), around=[middleware], guards=[small])
        assert result.status == status
        assert result.output == (10 if status == "ok" else None)
        assert result.call is not None and result.call.arguments == {"n": 1}
        assert len(watch.ends()) == 1


def test_before_and_after_do_what_they_say() -> None:
    grown = after(lambda result: result.replace(output=result.output + 1))
    assert run(double, "double", {"n": 1}, inside=[grown], around=[before(lambda a: {"n": 10})])[0].output == 21
    assert run(double, "double", {"n": 1}, around=[before(lambda a: None)])[0].output == 2
    refused, watch = run(double, "double", {"n": 1}, around=[before(lambda a: 5)])
    assert (refused.status, refused.executed, watch.ends()) == ("failed", False, ["tool:error"])


def answering(result: ToolResult) -> Any:
    async def cache(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        return result

    return cache


@pytest.mark.parametrize("where", ["around", "inside"])
def test_a_result_that_a_middleware_makes_is_bound_bounded_and_told(where: str) -> None:
    made = ToolResult(output="x" * 5000)
    result, watch = run(double, "double", {"n": 1}, sizes=Sizes(output=500), **{where: [answering(made)]})
    assert (result.call_id, result.tool_name, result.status) == ("c1", "double", "ok")
    assert len(plain(result)) <= 500
    assert watch.kinds() == ["tool:pre", "tool:post"]
    assert watch.events[-1].data["result"] is result
    assert made.call is None and len(plain(made)) == 5000
    assert result.duration_ms > 0


async def test_one_result_served_to_several_calls_belongs_to_each_of_them_alone() -> None:
    kept: list[ToolResult] = []
    ran: list[int] = []

    @tool
    async def work(n: int) -> int:
        ran.append(n)
        return n

    async def cache(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        if not kept:
            kept.append(await next(call, context))
        return kept[0]

    for where in ("around", "inside"):
        kept.clear()
        ran.clear()

        async def main(where: str = where) -> None:
            watch = Watch()
            runner = Runner([work], observers=[watch], **{where: [cache]})
            calls = [ToolCall(f"c{n}", "work", '{"n": 1}' if n else '{"n": "1"}') for n in range(3)]
            results = [await runner.run(call) for call in calls]
            assert [result.call_id for result in results] == ["c0", "c1", "c2"]
            assert [result.call for result in results] == calls
            assert len(set(map(id, results))) == 3
            assert results[0].repairs and not results[1].repairs
            before = [result.duration_ms for result in results]
            again = await runner.run(calls[0])
            assert again.call_id == "c0"
            assert [result.duration_ms for result in results] == before
            assert len(watch.ends()) == 4

        await main()
        assert ran == [1]


async def test_a_result_of_another_call_is_rebound() -> None:

    other = await Runner([double]).run(ToolCall("other", "double", {"n": 4}))
    result = await Runner([double], around=[answering(other)]).run(ToolCall("mine", "double", {"n": 1}))
    assert (result.call_id, result.output, other.call_id) == ("mine", 8, "other")


def test_a_middleware_may_change_status_and_content() -> None:
    async def hides(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        result: ToolResult = await next(call, context)
        return result.replace(content=[Text("hidden")], metadata={"seen": True})

    result, _ = run(double, "double", {"n": 1}, around=[hides])
    assert (plain(result), result.output, result.metadata["seen"]) == ("hidden", 2, True)


def test_a_retry_inside_runs_the_handler_again_with_one_result() -> None:
    tries: list[int] = []

    @tool
    async def shaky(n: int) -> int:
        tries.append(n)
        if len(tries) < 3:
            raise ValueError("not yet")
        return n

    async def retry(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        while not (result := await next(call, context)).success:
            await asyncio.sleep(0)
        return result

    for timeout in (None, BOUND):
        tries.clear()
        result, watch = run(shaky, "shaky", {"n": 1}, inside=[retry], timeout=timeout)
        assert (result.output, len(tries)) == (1, 3)
        assert watch.kinds() == ["tool:pre", "tool:post"]


def test_context_gives_middleware_the_tool_and_its_traits() -> None:
    seen: list[Any] = []

    async def middle(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        seen.append((context.tool.name, context.tool.read_only))
        return await next(call, context)

    traits: Tool = double.replace(read_only=lambda arguments: arguments["n"] == 1)
    for n in (1, 2):
        run(traits, "double", {"n": n}, around=[middle], inside=[middle])
    assert seen == [("double", True)] * 2 + [("double", False)] * 2


@pytest.mark.parametrize("calls", [True, False])
def test_a_middleware_that_says_nothing_was_run_is_believed_only_where_it_is_so(calls: bool) -> None:
    async def claims(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        if calls:
            await next(call, context)
        return ToolResult("from elsewhere", executed=False)

    result, _ = run(double, "double", {"n": 1}, inside=[claims])
    assert (result.output, result.executed) == ("from elsewhere", calls)
