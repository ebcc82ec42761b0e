"""`offered=`, the tools that the model was offered."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cast import ask_always
from ferrule import DefinitionError, Runner, Tool, ToolCall, ToolContext, ToolResult, Toolset, ask, tool
from ferrule.middleware import before
from watched import Watch, go

KEY = b"k" * 32


def make_tool(ran: list[str], name: str, **options: Any) -> Tool:
    async def act(n: int = 1) -> int:
        ran.append(name)
        return n

    return tool(act, name=name, **options)


def make_runner(*names: str, **options: Any) -> tuple[Runner, list[str]]:
    ran: list[str] = []
    return Runner([make_tool(ran, name) for name in names], **options), ran


def make_search(name: str = "find.tools") -> Tool:
    async def find(query: str) -> str:
        return query

    return tool(find, name=name, tags=["tool_search"])


WIRE = make_tool([], "files.read").wire_name


def refusal(result: ToolResult) -> str:
    """Return the text of the refusal."""
    assert (result.status, result.executed, result.output) == ("not_found", False, None)
    assert result.error is not None
    return result.error


async def test_nothing_of_a_tool_that_was_not_offered_is_called() -> None:
    asked: list[str] = []

    def note(name: str, answer: Any = None) -> Any:
        return lambda *_: asked.append(name) or answer

    own = {"guards": [note("guard")], "around": [before(lambda arguments: asked.append("around"))]}
    beside = {"parallel": note("parallel", True), "resources": note("resources", ["k"])}
    tools = [make_tool(asked, "look"), make_tool(asked, "drop", **own, **beside)]
    runner = Runner(tools, observers=[watch := Watch()], guards=[note("guard")])
    offered, call = runner.tools.only("look"), ToolCall("c1", "drop", {})
    result = await runner.run(call, offered=offered)
    assert refusal(result) == "'drop' was not offered. There are 'look'. Nothing was run."
    assert asked == [] and watch.kinds("c1") == ["tool:pre", "tool:error"]
    assert result.tool_name == "drop" and result.call_id == "c1"


async def test_another_tool_of_an_offered_name_was_not_offered() -> None:
    old, (other, ran) = make_runner("read", "ready")[0], make_runner("read")
    offered = old.tools.only("read", "ready")
    runner = old.replace(tools=[*other.tools, *old.tools.only("ready")])
    error = refusal(await runner.run("read", {}, offered=offered))
    assert error == "'read' was not offered. Did you mean 'ready'? Nothing was run."
    assert ran == [] and (await old.run("read", {}, offered=offered)).success
    renamed = old.tools.renamed({"ready": "set"})
    assert refusal(await runner.run("read", {}, offered=renamed)).count("'") == 2


@pytest.mark.parametrize("wrong", [["read"], (), False])
async def test_offered_must_be_a_toolset(wrong: Any) -> None:
    runner, ran = make_runner("read")
    with pytest.raises(DefinitionError, match="offered must be a Toolset"):
        await runner.run("read", offered=wrong)
    with pytest.raises(DefinitionError, match="offered must be a Toolset"):
        runner.batch([ToolCall("c1", "read", {})], offered=wrong)
    assert ran == []


@pytest.mark.parametrize("finds", [False, True])
@pytest.mark.parametrize(("name", "problem"), [("drop_table", None), ("Drop-Table", "the arguments were cut")])
async def test_a_tool_that_was_not_offered_looks_like_one_that_does_not_exist(
    name: str, problem: str | None, finds: bool
) -> None:
    few = Toolset([*make_runner("read_table", "look")[0].tools, *([make_search()] if finds else [])])
    runner = Runner([*few, *make_runner("drop_table", "drop_tables", "crop_table")[0].tools])
    call = ToolCall("c1", name, {}, problem=problem)

    async def told(runner: Runner) -> list[tuple[object, ...]]:
        watch = Watch()
        results = [await runner.run(call, offered=few), *await runner.batch([call], offered=few, observers=[watch])]
        results += await runner.run_all([ToolCall("c1", "look", {}), call], offered=few)  # its id was used before
        stopped = runner.batch([call], offered=few)
        results += stopped.results
        stopped.cancel()
        results += await stopped
        return [(one.status, one.tool_name, one.error) for one in results] + [(one.call.name,) for one in watch.events]

    there, not_there = await told(runner), await told(Runner(few))
    assert there == not_there and len(there) == 8
    assert "drop_table" not in str(there).replace(name, "")


async def test_a_running_tool_may_call_tools_that_were_not_offered() -> None:
    ran: list[str] = []

    async def job(context: ToolContext) -> list[str]:
        mine = await context.run("step", {})
        outer = await runner.run("step", {})
        bound = await runner.run("step", {}, offered=Toolset())
        return [mine.status, outer.status, bound.status]

    runner = Runner([tool(job), make_tool(ran, "step")])
    result = await runner.run("job", {}, offered=runner.tools.only("job"))
    assert (result.output, ran) == (["ok", "ok", "not_found"], ["step", "step"])


def make_asking(*names: str) -> tuple[Runner, list[str]]:
    return make_runner(*names, guards=[ask_always], approve=lambda *_: ask("not now"), resume_key=KEY)


async def suspend(runner: Runner, name: str, *offered: str) -> dict[str, Any]:
    """Return the record as another process reads it."""
    result = await runner.run(name, {}, offered=runner.tools.only(*offered) if offered else None)
    assert result.status == "suspended", result.error
    return json.loads(json.dumps(result.record()))  # type: ignore[no-any-return]


async def test_a_record_lists_the_offered_names_in_the_order_of_the_toolset() -> None:
    runner, ran = make_asking("b", "files.read", "a", "drop")
    assert (await suspend(runner, "a", "a", "files.read", "b"))["pending"]["offered"] == ["b", "files.read", "a"]
    assert (await suspend(runner, "a"))["pending"]["offered"] is None
    calls = [ToolCall("1", "a", {}), ToolCall("2", "drop", {})]
    first, second = await runner.run_all(calls, offered=runner.tools.only("a"))
    assert first.pending is not None and list(first.pending["offered"]) == ["a"]
    assert refusal(second) and second.pending is None and ran == []


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_resumed_call_keeps_the_offered_names_that_exist(elsewhere: bool) -> None:
    first, ran = make_asking("read", "look", "drop")
    second, ran = make_asking("drop", "look") if elsewhere else (first, ran)
    again = await second.resume(await suspend(first, "look", "look", "read"), ask("later"))
    assert again.pending is not None
    assert list(again.pending["offered"]) == (["look"] if elsewhere else ["read", "look"])
    assert (await second.resume(again.record(), True)).success and ran == ["look"]


async def test_a_call_whose_name_now_means_an_unoffered_tool_is_not_resumed() -> None:
    first, _ = make_asking("files.read", "look")
    record = await suspend(first, WIRE, "files.read")
    second, ran = make_asking(WIRE, "look")
    watch = Watch()
    error = refusal(await second.resume(record, True, observers=[watch]))
    assert error == f"{WIRE!r} was not offered. There are none. Nothing was run."
    assert ran == [] and watch.kinds() == ["tool:error"]
    assert (await first.resume(record, True)).success, "the refusal used nothing up"


NAMES = ["read", "read_file", "read-file", "files.read", "files-drop", "drop", "Straße", "functions.x", "x"]
SPELLINGS: list[Callable[[str], str]] = [
    str,
    str.upper,
    lambda name: name.replace("-", "_"),
    lambda name: name.replace(".", "_"),
    lambda name: f"functions.{name}",
    lambda name: f"{name} ",
    lambda name: make_tool([], name).wire_name,
]
CALLED = st.builds(lambda spell, name: spell(name), st.sampled_from(SPELLINGS), st.sampled_from(NAMES))


@given(offered=st.sets(st.sampled_from(NAMES)), name=CALLED | st.text(max_size=12), batched=st.booleans())
def test_only_an_offered_tool_runs(offered: set[str], name: str, batched: bool) -> None:
    runner, ran = make_runner(*NAMES)
    few = Toolset(one for one in runner.tools if one.name in offered)

    async def main() -> tuple[ToolResult, ToolResult]:
        free = await runner.run(name, {})
        ran.clear()
        call = ToolCall("c1", name, {})
        return free, (await runner.run_all([call], offered=few))[0] if batched else await runner.run(call, offered=few)

    free, bound = go(main())
    assert set(ran) <= offered
    if free.success and free.tool_name in offered:
        assert bound.success and ran == [free.tool_name]
    else:
        told = refusal(bound).replace(repr(name), "")
        assert not any(repr(other) in told for other in NAMES if other not in offered) and ran == []
