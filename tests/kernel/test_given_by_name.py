"""The options of a call, by name, in a context or from its runner."""

from __future__ import annotations

from typing import Any

import pytest

from cast import ask_always
from ferrule import DefinitionError, Runner, ToolCall, ToolContext, Toolset, deny, tool
from ferrule.journal import MemoryJournal

CALL = ToolCall("1", "tell")


@tool(read_only=True)
async def tell(context: ToolContext) -> list[Any]:
    """Tell what the context has."""
    return [context.deps, context.principal, context.session, dict(context.secrets)]


async def test_a_named_option_goes_before_the_context_and_that_before_the_runner() -> None:
    runner = Runner([tell], deps="db", secrets={"key": "k"})
    context = ToolContext(deps="own", principal="ada", session="s", secrets={"other": "o"})
    assert (await runner.run("tell", {}, context)).output == ["own", "ada", "s", {"other": "o"}]
    assert (await runner.run(CALL, context=context, deps=0, session="t")).output == [0, "ada", "t", {"other": "o"}]


async def test_a_mounted_tool_keeps_the_options_of_its_own_runner() -> None:
    @tool
    async def outer(context: ToolContext) -> Any:
        return [context.deps, (await context.run("inner_tell")).output[0]]

    inner = Toolset(Runner([tell], deps="inner").as_tools()).prefixed("inner_")
    runner = Runner([*inner, outer], deps="outer")
    assert (await runner.run("outer")).output == ["outer", "inner"]
    assert (await runner.run("outer", {}, deps="given")).output == ["given", "given"]


async def test_a_resumed_call_has_the_deps_of_resume_or_of_its_runner() -> None:
    runner = Runner([tell], deps="database", guards=[ask_always], approve=lambda call, asked, context: asked)
    waiting = await runner.run("tell", {}, principal="ada")
    assert "database" not in str(waiting.record())
    with pytest.raises(DefinitionError, match="resume: a context is ToolContext"):
        await runner.resume(waiting, True, {"deps": 1})  # type: ignore[arg-type]
    assert (await runner.resume(waiting, True)).output[:2] == ["database", "ada"]
    waiting = await runner.run("tell", {}, principal="ada")
    assert (await runner.resume(waiting, True, ToolContext(deps="context"), deps="db")).output[:2] == ["db", "ada"]


async def test_batches_decide_and_tool_run_take_the_same_options() -> None:
    runner = Runner([tell.replace(guards=[lambda call, context: deny(str(context.principal))])], deps="db")
    given = ToolContext(principal="bob", session="s")
    results = await runner.run_all([CALL], principal="ada")
    results += await runner.batch([CALL], given, principal="ada")
    assert [one.error for one in results] == ["Denied: ada. Nothing was run."] * 2
    assert await runner.decide(CALL, given, principal="ada") == deny("ada")
    assert (await tell.run({}, given, principal="ada", deps="db")).output == ["db", "ada", "s", {}]
    assert (await Runner([tell]).run_all([CALL], given, deps=0))[0].output[:3] == [0, "bob", "s"]


@pytest.mark.parametrize("wrong", [tell, {"name": "tell"}, [CALL]], ids=repr)
async def test_an_error_shows_how_a_call_is_written(wrong: Any) -> None:
    runner = Runner([tell])
    with pytest.raises(DefinitionError, match=r"^run\(ToolCall\(''.* is right, or run\('name', {…}\); not "):
        await runner.run(wrong, {})
    with pytest.raises(DefinitionError, match=r"^decide\(ToolCall\(''.* is right, "):
        await runner.decide(wrong)


@pytest.mark.parametrize("name", ["session", "principal", "turn"])
async def test_session_principal_and_turn_must_be_texts(name: str) -> None:
    runner, given = Runner([tell]), {name: 3}
    for way in (runner.run, runner.decide) if name != "turn" else (runner.run,):
        with pytest.raises(DefinitionError, match=f"{name} must be a text.*, not 3"):
            await way(CALL, **given)
    for begin in (runner.batch, runner.run_all_sync):
        with pytest.raises(DefinitionError, match=f"{name} must be a text.*, not 3"):
            begin([CALL], **given)


class LooksLikeOne:
    begin, end, find, note, take = MemoryJournal.begin, MemoryJournal.end, MemoryJournal.find, print, print


@pytest.mark.parametrize("wrong", ["calls.db", LooksLikeOne(), MemoryJournal])
def test_a_runner_refuses_what_is_no_journal(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match=r"journal must be a Journal, such as Journal\.open\(\"calls\.db\"\) or"):
        Runner([tell], journal=wrong)


async def test_a_tool_can_be_run_by_itself() -> None:
    assert (await tell.run({}, deps="db")).output == ["db", None, None, {}]
    assert (await tell.run('{"what": 1}')).status == "invalid"
    guarded = tell.replace(guards=[lambda call, context: deny("never")])
    assert (await guarded.run()).error == "Denied: never. Nothing was run."
    assert (await tell.replace(guards=[ask_always]).run()).status == "denied"

    @tool
    async def breaks() -> None:
        raise RuntimeError("inside")

    result = await breaks.run({})
    assert result.status == "failed" and "inside" not in str(result.error)
