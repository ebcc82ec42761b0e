"""Middleware around a call and inside it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cast import passes
from ferrule import DefinitionError, Runner, Sizes, ToolCall, ToolContext, ToolResult, Waits, tool
from ferrule.middleware import after, before
from ferrule.testing import ManualClock
from gates import Gate
from waits import BOUND, until
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


def test_the_first_middleware_is_the_outermost() -> None:
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


@pytest.mark.parametrize("where", ["around", "inside"])
@pytest.mark.parametrize("hook", [True, False])
def test_a_result_made_by_middleware_belongs_to_the_call_and_is_bounded(where: str, hook: bool) -> None:
    made = ToolResult(output="x" * 5000)

    async def answers(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        return made

    middleware = after(lambda result: made) if hook else answers
    result, watch = run(double, "double", {"n": 1}, sizes=Sizes(output=500), **{where: [middleware]})
    assert (result.call_id, result.tool_name, result.status) == ("c1", "double", "ok")
    assert len(plain(result)) <= 500
    assert watch.kinds() == ["tool:pre", "tool:post"]
    assert watch.events[-1].data["result"] is result
    assert made.call is None and len(plain(made)) == 5000
    assert result.duration_ms > 0


def raises(error: BaseException) -> Any:
    def hook(value: Any) -> Any:
        raise error

    return hook


async def raises_later(value: Any) -> Any:
    raise ValueError("inside of the program")


async def one_more(arguments: Any) -> dict[str, int]:
    await asyncio.sleep(0)
    return {"n": arguments["n"] + 1}


CHAINS = [
    ([before(lambda arguments: {"n": 7}), before(one_more)], []),
    ([before(one_more), after(lambda result: result.output * 10)], [after(lambda result: result.output * 10)]),
    ([before(lambda arguments: [1])], []),
    ([before(raises(ValueError("inside of the program")))], []),
    ([], [after(raises(SystemExit(3)))]),
    ([], [after(raises_later)]),
]


@pytest.mark.parametrize(("around", "inside"), CHAINS)
def test_a_hook_next_to_the_kernel_acts_like_one_outside_other_middleware(around: list[Any], inside: list[Any]) -> None:
    def describe(result: ToolResult) -> tuple[Any, ...]:
        return (result.status, result.output, result.error, result.executed, result.text, type(result.exception))

    near, near_watch = run(double, "double", {"n": 1}, around=around, inside=inside)
    far, far_watch = run(double, "double", {"n": 1}, around=[*around, passes], inside=[*inside, passes])
    assert describe(near) == describe(far) and near_watch.kinds() == far_watch.kinds()


def test_hooks_change_arguments_on_the_way_in_and_results_on_the_way_out() -> None:
    passed: list[Any] = []

    def hears(name: str) -> Any:
        def hook(value: Any) -> Any:
            if isinstance(value, ToolResult):
                passed.append((name, value.output))
                return value.output + 1
            passed.append((name, value["n"]))
            return {"n": value["n"] + 1}

        return hook

    around = [before(hears("a")), after(hears("b")), before(hears("c")), after(hears("d"))]
    inside = [after(hears("e")), after(hears("f"))]
    result, _ = run(double, "double", {"n": 1}, around=around, inside=inside)
    assert passed == [("a", 1), ("c", 2), ("f", 6), ("e", 7), ("d", 8), ("b", 9)]
    assert result.output == 10
    assert run(double, "double", {"n": 1}, around=[before(lambda arguments: None)])[0].output == 2


@pytest.mark.parametrize("timeout", [None, 10])
@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_shielded_handler_holds_its_slot_until_it_ends(timeout: float | None, stubborn: bool) -> None:
    gate, watch, clock = Gate(concurrency=1), Watch(), ManualClock()

    async def shielding(call: Any, context: Any, next: Any) -> ToolResult:
        inner = asyncio.ensure_future(next(call, context))
        if timeout is None:
            await gate.inside.wait()
            return ToolResult("at once")
        try:
            return await asyncio.shield(inner)
        except asyncio.CancelledError:
            if stubborn:
                return await inner
            raise

    waits, observers = Waits(grace=0, slot=10), [watch]
    runner = Runner([gate.tool], inside=[shielding], timeout=timeout, waits=waits, observers=observers, clock=clock)
    call = asyncio.ensure_future(runner.run("wait"))
    await gate.inside.wait()
    await clock.advance(10)
    first = await call
    assert first.status == ("ok" if timeout is None else "timeout") and runner.left_running == 1
    assert timeout is None or "went on running" in (first.error or "")
    call = asyncio.ensure_future(runner.run("wait"))
    await clock.advance(10)
    second = await call
    assert (second.status, second.executed, gate.runs) == ("limited", False, 1)
    gate.open.set()
    await until(lambda: not runner.left_running)
    assert (await runner.run("wait", timeout=BOUND)).executed is True
    assert len(watch.ends()) == 3


@pytest.mark.parametrize("place", ["inside", "around"])
@pytest.mark.parametrize("begun", [False, True])
async def test_next_after_the_result_runs_nothing(place: str, begun: bool) -> None:
    late: list[Any] = []
    runs: list[int] = []

    @tool
    async def work() -> str:
        runs.append(1)
        return "done"

    async def leaving(call: Any, context: Any, next: Any) -> ToolResult:
        late.append(asyncio.ensure_future(next(call, context)) if begun else lambda: next(call, context))
        return ToolResult("at once")

    runner = Runner([work], **{place: [leaving]})
    assert (await runner.run("work")).output == "at once"
    with pytest.raises(DefinitionError, match="`next`"):
        await (late[0] if begun else late[0]())
    assert (runs, runner.left_running, runner.waiting) == ([], 0, 0)
