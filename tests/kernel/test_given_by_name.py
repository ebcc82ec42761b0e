"""What a call may use: given by name, in a context, or by its runner; and one tool that is run by itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from ferrule import DefinitionError, Runner, ToolCall, ToolContext, ToolResult, Toolset, ask, deny, tool
from ferrule.journal import MemoryJournal
from watched import go


@tool(read_only=True)
async def tell(context: ToolContext) -> list[Any]:
    """Tell what the context has."""
    return [context.deps, context.principal, context.session, dict(context.secrets)]


def told(runner: Runner, *given: Any, **named: Any) -> Any:
    result = go(runner.run("tell", {}, *given, **named))
    assert result.success, result.error
    return result.output


def test_a_call_has_what_its_runner_has_where_nobody_says_otherwise() -> None:
    runner = Runner([tell], deps="db", secrets={"key": "k"})
    assert told(runner) == ["db", None, None, {"key": "k"}]
    assert go(runner.run_all([ToolCall("1", "tell")]))[0].output[0] == "db"
    assert told(runner.replace(observers=[])) == ["db", None, None, {"key": "k"}]
    assert runner.run_sync("tell").output[0] == "db"


def test_what_is_given_by_name_goes_before_the_context_and_that_before_the_runner_field_by_field() -> None:
    runner = Runner([tell], deps="db", secrets={"key": "k"})
    context = ToolContext(principal="ada", session="s", deps="own")
    assert told(runner, context) == ["own", "ada", "s", {"key": "k"}]
    assert told(runner, context, deps="named", principal="bob") == ["named", "bob", "s", {"key": "k"}]
    assert told(runner, ToolContext(secrets={"other": "o"})) == ["db", None, None, {"other": "o"}]
    assert told(runner, context=context, session="t") == ["own", "ada", "t", {"key": "k"}]
    assert go(runner.run(ToolCall("1", "tell"), deps=0)).output[0] == 0


async def test_guards_and_middleware_and_children_have_it_too() -> None:
    seen: list[Any] = []

    @tool
    async def outer(context: ToolContext) -> Any:
        return (await context.run("tell")).output

    async def around(call: Any, context: ToolContext, next: Any) -> ToolResult:
        seen.append(context.deps)
        return await next(call, context)  # type: ignore[no-any-return]

    runner = Runner([tell, outer], deps="db", guards=[lambda call, context: seen.append(context.deps)], around=[around])
    assert (await runner.run("outer")).output[0] == "db"
    assert set(seen) == {"db"}


def test_a_mounted_tool_keeps_what_its_own_runner_has() -> None:
    @tool
    async def outer(context: ToolContext) -> Any:
        return [context.deps, (await context.run("inner_tell")).output[0]]

    inner = Toolset(Runner([tell], deps="inner").as_tools()).prefixed("inner_")
    runner = Runner([*inner, outer], deps="outer")
    assert go(runner.run("outer")).output == ["outer", "inner"]
    assert go(runner.run("outer", {}, deps="given")).output == ["given", "given"]


async def test_a_call_that_is_taken_up_again_has_what_its_runner_has() -> None:
    runner = Runner(
        [tell], deps="database", guards=[lambda call, context: ask("sure?")], approve=lambda call, asked, context: asked
    )

    async def main() -> ToolResult:
        waiting = await runner.run("tell", {}, principal="ada")
        assert "database" not in str(waiting.record())
        return await runner.resume(waiting.record(), True)

    assert (await main()).output[:2] == ["database", "ada"]


def test_several_calls_a_question_and_one_tool_by_itself_take_the_same() -> None:
    runner = Runner([tell.replace(guards=[lambda call, context: deny(str(context.principal))])], deps="db")
    calls, context = [ToolCall("1", "tell")], ToolContext(session="s")

    async def main() -> list[Any]:
        return [
            *await runner.run_all(calls, principal="ada"),
            *await runner.batch(calls, context, principal="ada"),
            await runner.decide(calls[0], context, principal="ada"),
        ]

    one, other, decision = go(main())
    assert (one.error, other.error) == ("Denied: ada. Nothing was run.",) * 2
    assert decision == deny("ada")
    given = ToolContext(principal="bob", session="s")
    assert go(tell.run({}, given, principal="ada", deps="db")).output == ["db", "ada", "s", {}]
    assert go(Runner([tell]).run_all(calls, given, deps=0))[0].output[:3] == [0, "bob", "s"]


async def test_what_is_no_context_is_told_with_what_is_one() -> None:
    runner, call = Runner([tell]), ToolCall("1", "tell")
    wrong: Any = {"deps": 1}

    for begin in (
        lambda: runner.run("tell", {}, wrong),
        lambda: runner.run(call, wrong),
        lambda: runner.run(call, context=wrong),
        lambda: runner.run_all([call], wrong),
        lambda: runner.batch([call], wrong),
        lambda: runner.decide(call, wrong),
        lambda: tell.run({}, wrong),
    ):
        with pytest.raises(DefinitionError, match=r"a context is ToolContext\(deps=….*not of the type dict"):
            await begin()


async def test_what_a_call_that_is_taken_up_again_gets_is_a_context() -> None:
    runner = Runner([tell.replace(ask=True)], approve=lambda call, asked, context: asked)

    record = (await runner.run("tell")).record()
    with pytest.raises(DefinitionError, match="resume: a context is ToolContext"):
        await runner.resume(record, True, {"deps": 1})  # type: ignore[arg-type]
    assert (await runner.resume(record, True)).success


@pytest.mark.parametrize("wrong", [tell, tell.handler, {"name": "tell"}, [ToolCall("1", "tell")], None], ids=repr)
def test_what_is_no_call_is_told_with_what_is_one(wrong: Any) -> None:
    runner = Runner([tell])
    with pytest.raises(DefinitionError, match=r"^run\(ToolCall\(''.* is right, or run\('name', {…}\); not "):
        go(runner.run(wrong, {}))
    with pytest.raises(DefinitionError, match=r"^decide\(ToolCall\(''.* is right, "):
        go(runner.decide(wrong))


def test_what_comes_after_the_context_is_refused_and_not_dropped() -> None:
    with pytest.raises(TypeError, match="positional arguments"):
        go(Runner([tell]).run("tell", {}, None, 30))  # type: ignore[call-arg]
    with pytest.raises(DefinitionError, match="takes one context; it was given"):
        go(Runner([tell]).run(ToolCall("1", "tell"), {}, ToolContext()))


def test_arguments_by_name_are_told_where_they_go() -> None:
    wrong: Any = {"city": "Rome"}
    for run in (lambda: Runner([tell]).run("tell", **wrong), lambda: tell.run(**wrong)):
        with pytest.raises(DefinitionError, match=r"run\(.*{…}.*, context, deps=…\): there is no option 'city'"):
            run()


@pytest.mark.parametrize("wrong", [tell, tell.handler])
def test_one_tool_that_is_no_list_is_told_as_a_list(wrong: Any) -> None:
    for make in (Runner, Toolset):
        with pytest.raises(DefinitionError, match=r"takes a list of tools, not .*a list of one tool is \[tool\]"):
            make(wrong)


@pytest.mark.parametrize("wrong", [{"dep": 1}, {"working_dir": "x"}])
async def test_another_name_is_told_with_the_ones_that_there_are(wrong: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match="The options are: deps, principal, session, timeout"):
        await Runner([tell]).run("tell", {}, **wrong)


@pytest.mark.parametrize("name", ["session", "principal", "turn"])
@pytest.mark.parametrize("wrong", [3, b"ann", ["ann"], True])
def test_what_a_call_is_known_by_is_text(name: str, wrong: Any) -> None:
    runner, call, given = Runner([tell]), ToolCall("1", "tell"), {name: wrong}

    async def begin() -> None:
        runner.batch([call], **given)

    ways: list[Callable[[], object]] = [
        lambda: go(runner.run(call, **given)),
        lambda: runner.run_sync(call, **given),
        lambda: go(runner.run_all([call], **given)),
        lambda: runner.run_all_sync([call], **given),
        lambda: go(begin()),
    ]
    if name != "turn":
        ways += [
            lambda: ToolContext(**given),
            lambda: go(runner.decide(call, **given)),
            lambda: go(tell.run({}, **given)),
        ]
    for way in ways:
        with pytest.raises(DefinitionError, match=rf"{name} must be a text.*, not {re.escape(repr(wrong))}"):
            way()


def test_secrets_of_a_runner_are_a_dict() -> None:
    with pytest.raises(DefinitionError, match="secrets must be a dict"):
        Runner([tell], secrets=["key"])  # type: ignore[arg-type]


class LooksLikeOne:
    begin, end, find, note, take = MemoryJournal.begin, MemoryJournal.end, MemoryJournal.find, print, print


@pytest.mark.parametrize("wrong", ["calls.db", LooksLikeOne(), MemoryJournal])
def test_what_is_no_journal_is_told_when_the_runner_is_made(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match=r"journal must be a Journal, such as Journal\.open\(\"calls\.db\"\) or"):
        Runner([tell], journal=wrong)
    assert Runner([tell], journal=MemoryJournal())


# -- one tool by itself ------------------------------------------------------------------------------------------------


def test_a_tool_is_run_by_itself_for_its_result() -> None:
    assert go(tell.run({}, deps="db")).output == ["db", None, None, {}]
    assert go(tell.run(context=ToolContext(principal="ada"), deps="db")).output[:2] == ["db", "ada"]
    assert go(tell.run(context=ToolContext(deps="own"), deps="db")).output[0] == "db"
    assert go(tell.run('{"what": 1}')).status == "invalid"


def test_its_own_guards_judge_it() -> None:
    guarded = tell.replace(guards=[lambda call, context: deny("never")])
    asking = tell.replace(guards=[lambda call, context: ask("sure?")])
    assert go(guarded.run()).error == "Denied: never. Nothing was run."
    assert go(asking.run()).status == "denied"


async def test_what_it_raises_is_told_as_a_model_would_read_it() -> None:
    @tool
    async def breaks() -> None:
        raise RuntimeError("inside")

    result = await breaks.run({})
    assert (result.status, "inside" in (result.error or "")) == ("failed", False)


def test_a_call_that_is_taken_up_has_the_deps_that_resume_is_given() -> None:
    @tool
    async def pay(context: ToolContext) -> list[Any]:
        return [context.deps, context.principal]

    runner = Runner(
        [pay], guards=[lambda call, context: ask("sure?")], approve=lambda call, decision, context: decision
    )
    record = go(runner.run("pay", principal="ada", deps="first")).record()
    assert go(runner.resume(record, True, ToolContext(deps="context"), deps="db")).output == ["db", "ada"]


async def test_an_option_of_a_tools_own_run_that_there_is_not_is_told_with_its_own_form() -> None:
    with pytest.raises(DefinitionError, match=r"some_tool\.run\(\{…\}, context, deps=…\): there is no option 'dep'"):
        await tell.run({}, dep=3)  # type: ignore[call-arg]
