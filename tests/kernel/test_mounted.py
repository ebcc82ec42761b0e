"""Where a name is looked up: in the runner of who asks, also where a tool is mounted, and when it is taken up again."""

from __future__ import annotations

from typing import Any

import pytest

from ferrule import Decision, DefinitionError, Runner, Tool, ToolCall, ToolContext, ToolResult, Toolset, ask, deny, tool
from ferrule.middleware import after, before
from watched import Watch, go

KEY = b"k" * 32


def asks(call: ToolCall, context: ToolContext) -> Decision | None:
    return ask("may it?") if call.name.endswith("pay") else None


def later(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
    return decision


def paying(whose: str, ran: list[str]) -> Tool:
    async def pay(to: str, euros: int) -> str:
        ran.append(whose)
        return whose

    return tool(pay)


def saying(name: str, says: str) -> Tool:
    async def say() -> str:
        return says

    return tool(say, name=name, read_only=True)


def calling(name: str, called: str, arguments: Any = None) -> Tool:
    async def call(context: ToolContext) -> str:
        result = await context.run(called, arguments)
        return result.output if result.success else result.status

    return tool(call, name=name)


PAY = {"to": "ada", "euros": 5}


# -- taken up again ----------------------------------------------------------------------------------------------------


async def suspended(runner: Runner, watch: Watch, name: str) -> dict[str, Any]:
    """The record of what a tool of that name had suspended."""
    assert (await runner.run(name)).output == "suspended"
    return next(event.data["result"].record() for event in watch.events if event.kind == "tool:suspended")


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("outer_has", ["another pay", "no pay", "it as shop_pay", "all by other names", "two levels"])
async def test_what_a_mounted_tool_called_is_resumed_as_no_other_tool(outer_has: str, elsewhere: bool) -> None:
    ran: list[str] = []

    def made(watch: Watch) -> Runner:
        inner = Runner([calling("job", "pay", PAY), paying("inner", ran)], guards=[asks])
        mounted = {one.name: one for one in inner.as_tools()}
        tools: list[Any] = {
            "another pay": [mounted["job"], paying("outer", ran)],
            "no pay": [mounted["job"]],
            "it as shop_pay": [mounted["job"], mounted["pay"].replace(name="shop_pay")],
            "all by other names": list(Toolset(mounted.values()).prefixed("a_")),
            "two levels": [*Toolset(Runner([mounted["job"]]).as_tools()).prefixed("a_"), paying("outer", ran)],
        }[outer_has]
        return Runner(tools, approve=later, resume_key=KEY, observers=[watch])

    async def main() -> ToolResult:
        first, second = made(watch := Watch()), made(Watch())
        record = await suspended(first, watch, next(one.name for one in first.tools if one.name.endswith("job")))
        resuming = second if elsewhere else first
        return await resuming.resume(record, True)

    result = await main()
    assert (ran, result.executed) == ([], False)
    assert result.status in ("not_found", "invalid")


@pytest.mark.parametrize("now_has", ["no job", "a job of its own", "both of its own", "pay of another one"])
async def test_a_record_of_what_is_not_mounted_any_more_runs_nothing(now_has: str) -> None:
    ran: list[str] = []

    async def main() -> ToolResult:
        inner = Runner([calling("job", "pay", PAY), paying("inner", ran)], guards=[asks])
        mounted = Toolset(inner.as_tools()).only("job")
        first = Runner(mounted, approve=later, resume_key=KEY, observers=[watch := Watch()])
        record = await suspended(first, watch, "job")
        other = Runner([paying("another", ran)]).as_tools()
        tools: list[Any] = {
            "no job": [paying("outer", ran)],
            "a job of its own": [calling("job", "pay", PAY)],
            "both of its own": [calling("job", "pay", PAY), paying("outer", ran)],
            "pay of another one": other,
        }[now_has]
        return await Runner(tools, resume_key=KEY).resume(record, True)

    result = await main()
    assert (ran, result.executed) == ([], False)
    assert result.status in ("not_found", "invalid")


# -- guards, middleware and approvers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["guards", "around", "inside", "before", "after", "after inside"])
@pytest.mark.parametrize("which", [0, 1, 2, 3])
async def test_what_a_runner_was_given_calls_the_tools_of_that_runner(place: str, which: int) -> None:
    """`which` has it: the outer runner, the one in it, the innermost, or the tool itself."""
    heard: list[Any] = []

    async def listen(context: ToolContext) -> None:
        if context.tool.name != "who":
            heard.append((await context.run("who")).output)

    async def guard(call: ToolCall, context: ToolContext) -> None:
        await listen(context)

    async def middleware(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        await listen(context)
        return await next(call, context)  # type: ignore[no-any-return]

    async def hook(seen: Any, context: ToolContext) -> None:
        await listen(context)

    given: dict[str, Any] = {
        "guards": {"guards": [guard]},
        "around": {"around": [middleware]},
        "inside": {"inside": [middleware]},
        "before": {"around": [before(hook)]},
        "after": {"around": [after(hook)]},
        "after inside": {"inside": [after(hook)]},
    }[place]

    async def passes(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        return await next(call, context)  # type: ignore[no-any-return]

    options: list[dict[str, Any]] = [
        given if which == n else {"around": [passes], "inside": [passes]} for n in range(4)
    ]
    inner = Runner([calling("act", "who").replace(**options[3]), saying("who", "inner")], **options[2])
    middle = Runner([*Toolset(inner.as_tools()).only("act"), saying("who", "middle")], **options[1])
    outer = Runner([*Toolset(middle.as_tools()).only("act"), saying("who", "outer")], **options[0])
    assert (await outer.run("act")).output == "inner"
    assert heard == [["outer", "middle", "inner", "inner"][which]]


async def test_an_approver_calls_the_tools_of_its_runner() -> None:
    async def looks(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
        return (await context.run("who")).output == "outer"

    inner = Runner([paying("inner", []), saying("who", "inner")], guards=[asks])
    outer = Runner([*Toolset(inner.as_tools()).only("pay"), saying("who", "outer")], approve=looks)
    assert (await outer.run("pay", PAY)).output == "inner"


async def test_what_an_outer_runners_guard_calls_is_a_tool_of_the_outer_runner() -> None:
    async def asks_the_judge(call: ToolCall, context: ToolContext) -> Decision | None:
        if call.name.endswith("judge"):
            return None
        return None if (await context.run("judge")).output == "fine" else deny("the judge says no")

    plugin = Toolset(Runner([saying("act", "done"), saying("judge", "fine")]).as_tools()).prefixed("plugin_")
    runner = Runner([*plugin, saying("judge", "bad")], guards=[asks_the_judge])
    assert (await runner.run("plugin_act")).status == "denied"


# -- mounted twice -----------------------------------------------------------------------------------------------------


def for_tenants(mounted: list[Runner], **changes: Any) -> Runner:
    """What two runners have, as `a_` with `tenant="A"` and as `b_` with `tenant="B"`, in another one."""
    first, second = (Toolset(one.as_tools()) for one in mounted)
    changed = second.bind(tenant="B").map(lambda one: one.replace(**changes) if one.name == "pay" else one)
    return Runner([*first.bind(tenant="A").prefixed("a_"), *changed.prefixed("b_")])


def tenants(ran: list[str]) -> Runner:
    @tool
    async def pay(to: str, tenant: str) -> str:
        ran.append(tenant)
        return tenant

    @tool
    async def job(tenant: str, context: ToolContext) -> str:
        return (await context.run("pay", {"to": "ada"})).status

    return Runner([job, pay])


@pytest.mark.parametrize("again", ["itself", "a replacement"])
def test_a_runner_that_is_mounted_twice_is_refused(again: str) -> None:
    runner = tenants([])
    with pytest.raises(DefinitionError, match=r"'a_job' and 'b_job'.*two runners"):
        for_tenants([runner, runner if again == "itself" else runner.replace(approve=later)])


def test_what_a_tool_calls_that_is_mounted_for_one_tenant_runs_for_that_one() -> None:
    ran: list[str] = []
    runner = for_tenants([tenants(ran), tenants(ran)])
    assert [go(runner.run(name)).output for name in ("b_job", "a_job")] == ["ok", "ok"]
    assert ran == ["B", "A"]


def test_what_a_tool_calls_that_is_mounted_with_a_guard_is_judged_by_it() -> None:
    ran: list[str] = []
    runner = for_tenants([tenants(ran), tenants(ran)], guards=[lambda call, context: deny("readers do not pay")])
    assert (go(runner.run("b_job")).output, go(runner.run("a_job")).output, ran) == ("denied", "ok", ["A"])
