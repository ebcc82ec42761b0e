"""Tools of a runner that are mounted in another one."""

from __future__ import annotations

from typing import Any

import pytest

from cast import Person, add, ask_always, passes, put_off
from ferrule import (
    Decision,
    DefinitionError,
    Runner,
    Sizes,
    Tool,
    ToolCall,
    ToolContext,
    ToolResult,
    Toolset,
    ask,
    deny,
    tool,
)
from ferrule.middleware import after, before
from watched import Watch

KEY = b"k" * 32
PAY = {"to": "ada", "euros": 5}
SUM = {"a": 1, "b": 2}


def ask_to_pay(call: ToolCall, context: ToolContext) -> Decision | None:
    return ask("may it?") if call.name.endswith("pay") else None


def paying(whose: str, ran: list[str]) -> Tool:
    async def pay(to: str, euros: int) -> str:
        ran.append(whose)
        return whose

    return tool(pay)


def saying(name: str, says: str) -> Tool:
    return tool(lambda: says, name=name, read_only=True, description="Say.")


def calling(name: str, called: str, arguments: Any = None) -> Tool:
    async def call(context: ToolContext) -> str:
        result = await context.run(called, arguments)
        return result.output if result.success else result.status

    return tool(call, name=name)


def only(runner: Runner, *names: str) -> Toolset:
    return Toolset(runner.as_tools()).only(*names)


async def test_mounted_tools_carry_guards_middleware_and_limits_on_one_path() -> None:
    passed: list[str] = []

    def options(name: str) -> dict[str, Any]:
        def middle(place: str) -> Any:
            async def pass_by(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
                passed.append(f"{name} {place}")
                return await next(call, context)

            return [pass_by]

        guards = [lambda call, context: passed.append(f"{name} guard")]
        return {"guards": guards, "around": middle("around"), "inside": middle("inside"), "observers": [Watch()]}

    inner_options, outer_options = options("inner"), options("outer")
    inner = Runner([add], **inner_options, sizes=Sizes(output=50))
    outer = Runner(inner.as_tools(), **outer_options)
    assert (await outer.run("add", SUM)).output == 3
    assert passed == [f"{name} {place}" for place in ("around", "guard", "inside") for name in ("outer", "inner")]
    assert outer_options["observers"][0].kinds() == ["tool:pre", "tool:decided", "tool:post"]
    assert inner_options["observers"][0].kinds() == []


async def test_the_outer_runners_approver_answers_for_mounted_tools() -> None:
    person, nobody = Person(), Person(deny("no"))
    inner = Runner([add], guards=[ask_always], approve=nobody)
    assert (await Runner(inner.as_tools(), approve=person).run("add", SUM)).success
    assert len(person.questions) == 1 and not nobody.questions
    assert (await Runner(inner.as_tools()).run("add", SUM)).status == "denied"


async def test_a_mounted_tool_calls_its_own_runner() -> None:
    judged: list[tuple[str, str]] = []
    person, watch, inner_watch = Person(), Watch(), Watch()

    def judge(name: str, decision: Decision | None = None) -> Any:
        def guard(call: ToolCall, context: ToolContext) -> Decision | None:
            judged.append((name, call.name))
            return decision if call.name != "entry" else None

        return guard

    @tool
    async def entry(context: ToolContext, name: str) -> str:
        result = await context.run(name)
        return result.output if result.success else f"{result.status}: {result.error}"

    tools = [entry, saying("lookup", "inner"), saying("hidden", "hidden")]
    inner = Runner(tools, guards=[judge("inner", ask("?"))], observers=[inner_watch], approve=Person(deny("no")))
    middle = Runner(inner.as_tools(), guards=[judge("middle")])
    for mounted, guards in ((inner, ["outer", "inner"]), (middle, ["outer", "middle", "inner"])):
        has = [*only(mounted, "entry"), saying("lookup", "outer")]
        outer = Runner(has, guards=[judge("outer")], observers=[watch], approve=person)
        for name, output in (("lookup", "inner"), ("hidden", "hidden")):
            judged.clear()
            person.questions.clear()
            assert (await outer.run("entry", {"name": name})).output == output
            assert list(dict.fromkeys(judged)) == [(one, called) for called in ("entry", name) for one in guards]
            assert [call.name for call in person.questions] == [name]
            assert watch.kinds()[-2:] == ["tool:post", "tool:post"]
        assert (await outer.run("lookup")).output == "outer" and inner_watch.events == []
        assert (await outer.run("entry", {"name": "no"})).output.startswith("not_found")


@pytest.mark.parametrize("place", ["guards", "around", "inside", "before", "after", "after inside"])
@pytest.mark.parametrize("which", [0, 1, 2, 3])
async def test_guards_and_middleware_call_the_tools_of_their_own_runner(place: str, which: int) -> None:
    """`which` has it: the outer runner, the one in it, the innermost, or the tool itself."""
    heard: list[Any] = []

    async def listen(context: ToolContext) -> None:
        if context.tool.name != "who":
            heard.append((await context.run("who")).output)

    async def guard(call: ToolCall, context: ToolContext) -> None:
        await listen(context)

    async def middleware(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        await listen(context)
        return await next(call, context)

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
    options = [given if which == n else {"around": [passes], "inside": [passes]} for n in range(4)]
    inner = Runner([calling("act", "who").replace(**options[3]), saying("who", "inner")], **options[2])
    middle = Runner([*only(inner, "act"), saying("who", "middle")], **options[1])
    outer = Runner([*only(middle, "act"), saying("who", "outer")], **options[0])
    assert (await outer.run("act")).output == "inner"
    assert heard == [["outer", "middle", "inner", "inner"][which]]


async def suspended(runner: Runner, watch: Watch, name: str) -> dict[str, Any]:
    """The record of what a tool of that name had suspended."""
    assert (await runner.run(name)).output == "suspended"
    return next(event.data["result"].record() for event in watch.events if event.kind == "tool:suspended")


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("outer_has", ["another pay", "it as shop_pay", "all by other names", "two levels"])
async def test_a_call_by_a_mounted_tool_is_resumed_as_no_other_tool(outer_has: str, elsewhere: bool) -> None:
    ran: list[str] = []

    def make(watch: Watch) -> Runner:
        inner = Runner([calling("job", "pay", PAY), paying("inner", ran)], guards=[ask_to_pay])
        mounted = {one.name: one for one in inner.as_tools()}
        tools: list[Any] = {
            "another pay": [mounted["job"], paying("outer", ran)],
            "it as shop_pay": [mounted["job"], mounted["pay"].replace(name="shop_pay")],
            "all by other names": list(Toolset(mounted.values()).prefixed("a_")),
            "two levels": [*Toolset(Runner([mounted["job"]]).as_tools()).prefixed("a_"), paying("outer", ran)],
        }[outer_has]
        return Runner(tools, approve=put_off, resume_key=KEY, observers=[watch])

    first, second = make(watch := Watch()), make(Watch())
    record = await suspended(first, watch, next(one.name for one in first.tools if one.name.endswith("job")))
    result = await (second if elsewhere else first).resume(record, True)
    assert (ran, result.executed) == ([], False)
    assert result.status in ("not_found", "invalid")


@pytest.mark.parametrize("again", ["itself", "a replacement"])
def test_a_runner_that_is_mounted_twice_is_refused(again: str) -> None:
    runner = Runner([add])
    second = runner if again == "itself" else runner.replace(approve=put_off)
    with pytest.raises(DefinitionError, match=r"'a_add' and 'b_add'.*two runners"):
        Runner([*Toolset(runner.as_tools()).prefixed("a_"), *Toolset(second.as_tools()).prefixed("b_")])
