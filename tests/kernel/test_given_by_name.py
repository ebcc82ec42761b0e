"""The options of a call, by name, in a context or from its runner; and one tool that is run by itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from cast import ask_always
from ferrule import DefinitionError, Runner, ToolCall, ToolContext, ToolResult, Toolset, deny, tool
from ferrule.journal import MemoryJournal

CALL = ToolCall("1", "tell")


@tool(read_only=True)
async def tell(context: ToolContext) -> list[Any]:
    """Tell what the context has."""
    return [context.deps, context.principal, context.session, dict(context.secrets)]


async def test_a_call_has_the_options_of_its_runner() -> None:
    runner, expected = Runner([tell], deps="db", secrets={"key": "k"}), ["db", None, None, {"key": "k"}]
    assert (await runner.run("tell")).output == (await runner.replace(observers=[]).run("tell")).output == expected
    assert (await runner.run_all([CALL]))[0].output == runner.run_sync("tell").output == expected


@pytest.mark.parametrize(
    ("given", "named", "expected"),
    [
        ({"deps": "own", "principal": "ada", "session": "s"}, {}, ["own", "ada", "s", {"key": "k"}]),
        (
            {"deps": "own", "principal": "ada"},
            {"deps": "named", "principal": "bob"},
            ["named", "bob", None, {"key": "k"}],
        ),
        ({"secrets": {"other": "o"}}, {}, ["db", None, None, {"other": "o"}]),
        ({"session": "s"}, {"session": "t", "deps": 0}, [0, None, "t", {"key": "k"}]),
    ],
)
async def test_a_named_option_goes_before_the_context_and_that_before_the_runner(
    given: Any, named: Any, expected: Any
) -> None:
    runner = Runner([tell], deps="db", secrets={"key": "k"})
    assert (await runner.run("tell", {}, ToolContext(**given), **named)).output == expected
    assert (await runner.run(CALL, context=ToolContext(**given), **named)).output == expected


async def test_guards_middleware_and_children_have_the_options_too() -> None:
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


# -- mistakes of the program -------------------------------------------------------------------------------------------


async def test_an_error_shows_how_a_context_is_written() -> None:
    runner, wrong = Runner([tell]), {"deps": 1}
    for begin in (
        lambda: runner.run("tell", {}, wrong),
        lambda: runner.run(CALL, wrong),
        lambda: runner.run(CALL, context=wrong),
        lambda: runner.run_all([CALL], wrong),
        lambda: runner.batch([CALL], wrong),
        lambda: runner.decide(CALL, wrong),
        lambda: tell.run({}, wrong),
    ):
        with pytest.raises(DefinitionError, match=r"a context is ToolContext\(deps=….*not of the type dict"):
            await begin()


@pytest.mark.parametrize("wrong", [tell, tell.handler, {"name": "tell"}, [CALL], None], ids=repr)
async def test_an_error_shows_how_a_call_is_written(wrong: Any) -> None:
    runner = Runner([tell])
    with pytest.raises(DefinitionError, match=r"^run\(ToolCall\(''.* is right, or run\('name', {…}\); not "):
        await runner.run(wrong, {})
    with pytest.raises(DefinitionError, match=r"^decide\(ToolCall\(''.* is right, "):
        await runner.decide(wrong)


async def test_surplus_positional_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="positional arguments"):
        await Runner([tell]).run("tell", {}, None, 30)  # type: ignore[call-arg]
    with pytest.raises(DefinitionError, match="takes one context; it was given"):
        await Runner([tell]).run(CALL, {}, ToolContext())


@pytest.mark.parametrize("wrong", ["city", "dep", "working_dir"])
async def test_an_error_of_an_unknown_option_lists_the_options(wrong: str) -> None:
    for begin in (lambda: Runner([tell]).run("tell", **{wrong: "x"}), lambda: tell.run(**{wrong: "x"})):
        with pytest.raises(DefinitionError, match=rf"run\(.*{{…}}.*, context, deps=…\): there is no option '{wrong}'"):
            await begin()
    with pytest.raises(DefinitionError, match="The options are: deps, principal, session, timeout"):
        await Runner([tell]).run("tell", {}, **{wrong: "x"})


@pytest.mark.parametrize("wrong", [tell, tell.handler])
def test_one_tool_is_no_list_of_tools(wrong: Any) -> None:
    for make in (Runner, Toolset):
        with pytest.raises(DefinitionError, match=r"takes a list of tools, not .*a list of one tool is \[tool\]"):
            make(wrong)


@pytest.mark.parametrize("name", ["session", "principal", "turn"])
@pytest.mark.parametrize("wrong", [3, b"ann", True])
async def test_session_principal_and_turn_must_be_texts(name: str, wrong: Any) -> None:
    runner, given = Runner([tell]), {name: wrong}

    async def begin_batch() -> None:
        runner.batch([CALL], **given)

    async def make_context() -> None:
        ToolContext(**given)

    ways: list[Callable[[], Any]] = [
        lambda: runner.run(CALL, **given),
        lambda: runner.run_all([CALL], **given),
        begin_batch,
    ]
    if name != "turn":
        ways += [make_context, lambda: runner.decide(CALL, **given), lambda: tell.run({}, **given)]
    error = rf"{name} must be a text.*, not {re.escape(repr(wrong))}"
    for way in ways:
        with pytest.raises(DefinitionError, match=error):
            await way()
    for sync in (lambda: runner.run_sync(CALL, **given), lambda: runner.run_all_sync([CALL], **given)):
        with pytest.raises(DefinitionError, match=error):
            sync()


class LooksLikeOne:
    begin, end, find, note, take = MemoryJournal.begin, MemoryJournal.end, MemoryJournal.find, print, print


@pytest.mark.parametrize("wrong", ["calls.db", LooksLikeOne(), MemoryJournal])
def test_a_runner_refuses_what_is_no_journal(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match=r"journal must be a Journal, such as Journal\.open\(\"calls\.db\"\) or"):
        Runner([tell], journal=wrong)


def test_a_runner_refuses_secrets_that_are_no_dict() -> None:
    with pytest.raises(DefinitionError, match="secrets must be a dict"):
        Runner([tell], secrets=["key"])  # type: ignore[arg-type]


# -- one tool by itself ------------------------------------------------------------------------------------------------


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
