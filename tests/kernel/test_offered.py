"""What the model was offered is what it can call: no other tool runs, by whatever name, and no other name is told."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import Decision, DefinitionError, Runner, Tool, ToolCall, ToolContext, ToolResult, Toolset, ask, tool
from ferrule.middleware import before
from waits import BOUND
from watched import Watch, go

KEY = b"k" * 32


def named(ran: list[str], name: str, **options: Any) -> Tool:
    async def act(n: int = 1) -> int:
        ran.append(name)
        return n

    return tool(act, name=name, **options)


def made(*names: str, **options: Any) -> tuple[Runner, list[str]]:
    ran: list[str] = []
    return Runner([named(ran, name) for name in names], **options), ran


WIRE = named([], "files.read").wire_name


def search(name: str = "find.tools") -> Tool:
    async def find(query: str) -> str:
        return query

    return tool(find, name=name, tags=["tool_search"])


def refused(result: ToolResult) -> str:
    """The text of the refusal."""
    assert (result.status, result.executed, result.output) == ("not_found", False, None)
    assert result.error is not None
    return result.error


# -- what runs ---------------------------------------------------------------------------------------------------------


async def test_what_was_not_offered_is_not_found_and_nothing_of_its_own_is_asked() -> None:
    asked: list[str] = []

    def guard(call: ToolCall, context: ToolContext) -> None:
        asked.append("guard")

    own = {"guards": [guard], "around": [before(lambda arguments: asked.append("around"))]}
    runner = Runner([named(asked, "look"), named(asked, "drop", **own)], observers=[watch := Watch()], guards=[guard])
    result = await runner.run(ToolCall("c1", "drop", {}), offered=runner.tools.only("look"))
    assert refused(result) == "'drop' was not offered. There are 'look'. Nothing was run."
    assert asked == [] and watch.kinds("c1") == ["tool:pre", "tool:error"]
    assert result.tool_name == "drop" and result.call_id == "c1"


@pytest.mark.parametrize("name", ["files.read", WIRE, "Files.Read", "functions.files.read"])
async def test_what_was_offered_runs_by_every_name_that_means_it(name: str) -> None:
    runner, ran = made("files.read", "drop")
    assert (await runner.run(name, {}, offered=runner.tools.only("files.read"))).success
    assert ran == ["files.read"]


@pytest.mark.parametrize("name", ["files.read", WIRE, "Files.Read", WIRE.upper(), "functions.files.read"])
async def test_no_other_name_reaches_a_tool_that_was_not_offered(name: str) -> None:
    runner, ran = made("files.read", "files.look")
    result = await runner.run(name, {}, offered=runner.tools.only("files.look"))
    assert refused(result).startswith(f"{name!r} was not offered. ")
    assert (result.tool_name, ran) == (name, [])


async def test_the_name_of_a_tool_that_was_not_offered_is_not_read_as_one_that_was() -> None:
    runner, ran = made("read_file", "read-file")
    result = await runner.run("read-file", {}, offered=runner.tools.only("read_file"))
    assert refused(result) == "'read-file' was not offered. Did you mean 'read_file'? Nothing was run."
    assert ran == []


def test_a_tool_of_the_same_name_that_is_another_was_not_offered() -> None:
    old, (other, ran) = made("read", "ready")[0], made("read")
    offered = old.tools.only("read", "ready")
    runner = old.replace(tools=[*other.tools, *old.tools.only("ready")])
    error = refused(go(runner.run("read", {}, offered=offered)))
    assert error == "'read' was not offered. Did you mean 'ready'? Nothing was run."
    assert ran == [] and go(old.run("read", {}, offered=offered)).success
    assert refused(go(runner.run("read", {}, offered=old.tools.renamed({"ready": "set"})))).count("'") == 2


async def test_where_nothing_was_offered_nothing_can_be_called() -> None:
    runner, ran = made("read")
    assert refused(await runner.run("read", {}, offered=Toolset())) == (
        "'read' was not offered. There are none. Nothing was run."
    )
    assert ran == []


async def test_where_no_name_is_near_twelve_of_many_are_told() -> None:
    runner, _ = made(*(f"read_{number}" for number in range(13)))
    for offered in (None, runner.tools):
        error = refused(await runner.run("zoom", {}, offered=offered))
        assert error.count("'read_") == 12 and "'read_11'. Nothing was run." in error


async def test_a_tool_that_is_turned_off_and_was_not_offered_is_not_found() -> None:
    runner, _ = made("read", "drop")
    runner.disable("drop", "broken since Monday")
    assert "Monday" not in refused(await runner.run("drop", {}, offered=runner.tools.only("read")))


def test_it_holds_without_a_loop_and_with_a_deadline() -> None:
    runner, ran = made("read", "drop")
    offered = runner.tools.only("read")
    assert runner.run_sync("read", {}, offered=offered, timeout=BOUND).success
    refused(runner.run_sync("drop", {}, offered=offered, timeout=BOUND))
    refused(runner.run_sync(ToolCall("", "drop", {}), offered=offered))
    assert ran == ["read"]


@pytest.mark.parametrize("wrong", [["read"], "read", {"read"}, (), False, tool(search), 0])
def test_what_is_no_toolset_is_a_programmers_mistake(wrong: Any) -> None:
    runner, ran = made("read")
    calls = [ToolCall("c1", "read", {})]

    async def batch() -> None:
        await runner.batch(calls, offered=wrong)

    ways: list[Callable[[], Any]] = [
        lambda: go(runner.run("read", {}, offered=wrong)),
        lambda: runner.run_sync("read", {}, offered=wrong),
        lambda: go(runner.run_all(calls, offered=wrong)),
        lambda: go(batch()),
    ]
    for way in ways:
        with pytest.raises(
            DefinitionError, match=r"offered must be a Toolset, such as runner.tools.only\('read_\*'\), not"
        ):
            way()
    assert ran == []


# -- what the model is told --------------------------------------------------------------------------------------------


def test_a_tool_that_finds_others_is_named_by_its_wire_name() -> None:
    runner = Runner([search(), *made("read", "readme")[0].tools])
    offered = runner.tools.only("read", "find.tools")
    error = refused(go(runner.run("readme", {}, offered=offered)))
    wire_name = runner.tools.get("find.tools").wire_name
    assert error == f"'readme' was not offered. Find it with {wire_name!r} first. Nothing was run."
    assert go(runner.run(wire_name, {"query": "x"}, offered=offered)).success


async def test_a_tool_that_finds_others_and_cannot_be_called_is_not_named() -> None:
    reader = made("read", "readme")[0].tools
    runner = Runner([search(), *reader])
    others = [
        runner.tools.only("read"),
        Toolset([search(), *reader.only("read")]),
        Toolset([search("f"), reader.get("read")]),
    ]
    for offered in others:
        error = refused(await runner.run("readme", {}, offered=offered))
        assert error == "'readme' was not offered. Did you mean 'read'? Nothing was run."


@pytest.mark.parametrize("finds", [False, True])
@pytest.mark.parametrize("name", ["drop_table", "Drop-Table", "functions.drop_table"])
@pytest.mark.parametrize("problem", [None, "the arguments were cut"])
def test_a_name_that_was_not_offered_reads_like_one_that_there_is_not(
    name: str, problem: str | None, finds: bool
) -> None:
    few = Toolset([*made("read_table", "look")[0].tools, *([search()] if finds else [])])
    runner = Runner([*few, *made("drop_table", "drop_tables", "crop_table")[0].tools])
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

    there, not_there = go(told(runner)), go(told(Runner(few)))
    assert there == not_there and len(there) == 8
    assert "drop_table" not in str(there).replace(name, "")


# -- batches -----------------------------------------------------------------------------------------------------------


async def test_in_a_batch_each_call_has_its_one_result_and_what_was_not_offered_does_not_run() -> None:
    runner, ran = made("read", "drop")
    calls = [
        ToolCall("1", "drop", {}),
        ToolCall("2", "read", {"n": 2}),
        ToolCall("2", "read", {"n": 2}),
        ToolCall("1", "drop", {}),
        ToolCall("2", "drop", {}),
        ToolCall("3", "none", {}),
    ]
    offered = runner.tools.only("read")

    async def both() -> list[list[ToolResult]]:
        watch = Watch()
        found = [
            await runner.batch(calls, offered=offered, observers=[watch]),
            await runner.run_all(calls, offered=offered),
        ]
        assert [watch.ends(call_id) for call_id in "13"] == [["tool:error"], ["tool:error"]]
        assert watch.ends("2") == ["tool:post", "tool:error"]
        return found

    for results in await both():
        statuses = [result.status for result in results]
        assert statuses == ["not_found", "ok", "ok", "not_found", "invalid", "not_found"]
        assert [result.tool_name for result in results] == [call.name for call in calls]
    assert ran == ["read", "read"]


async def test_what_was_not_offered_is_not_asked_what_it_may_run_beside() -> None:
    asked: list[str] = []

    def parallel(arguments: Any) -> bool:
        asked.append("parallel")
        return True

    def resources(arguments: Any) -> list[str]:
        asked.append("resources")
        return ["k"]

    tools = [named(asked, "a", parallel=parallel), named(asked, "b", resources=resources), named([], "c")]
    runner = Runner(tools)
    calls = [ToolCall("1", "a", {}), ToolCall("2", "b", {}), ToolCall("3", "c", {})]
    results = await runner.run_all(calls, offered=runner.tools.only("c"))
    assert [result.status for result in results] == ["not_found", "not_found", "ok"] and asked == []


# -- what a tool calls itself ------------------------------------------------------------------------------------------


async def test_what_a_running_tool_calls_is_the_programs_own() -> None:
    ran: list[str] = []

    async def job(context: ToolContext) -> list[str]:
        mine = await context.run("step", {})
        outer = await runner.run("step", {})
        bound = await runner.run("step", {}, offered=Toolset())
        return [mine.status, outer.status, bound.status]

    runner = Runner([tool(job), named(ran, "step")])
    result = await runner.run("job", {}, offered=runner.tools.only("job"))
    assert (result.output, ran) == (["ok", "ok", "not_found"], ["step", "step"])


def test_a_mounted_runner_is_bound_for_the_outer_call_alone() -> None:
    ran: list[str] = []

    async def job(context: ToolContext) -> str:
        return (await context.run("step", {})).status

    inner = Runner([tool(job), named(ran, "step")])
    outer = Runner(inner.as_tools())
    offered = outer.tools.only("job")
    assert go(outer.run("job", {}, offered=offered)).output == "ok"
    refused(go(outer.run("step", {}, offered=offered)))
    refused(go(outer.run("job", {}, offered=inner.tools)))
    assert ran == ["step"]


# -- suspended calls ---------------------------------------------------------------------------------------------------


def asks(call: ToolCall, context: ToolContext) -> Decision:
    return ask("may it?")


def asking(*names: str) -> tuple[Runner, list[str]]:
    return made(*names, guards=[asks], approve=lambda call, decision, context: ask("not now"), resume_key=KEY)


def suspended(runner: Runner, name: str, *offered: str) -> dict[str, Any]:
    """The record, as another process would read it."""
    result = go(runner.run(name, {}, offered=runner.tools.only(*offered) if offered else None))
    assert result.status == "suspended", result.error
    return json.loads(json.dumps(result.record()))  # type: ignore[no-any-return]


def test_a_suspended_call_keeps_what_was_offered_by_name_in_the_order_of_the_toolset() -> None:
    runner, ran = asking("b", "files.read", "a", "drop")
    assert suspended(runner, "a", "a", "files.read", "b")["pending"]["offered"] == ["b", "files.read", "a"]
    assert suspended(runner, "a")["pending"]["offered"] is None
    assert ran == []


def test_it_is_resumed_here_and_elsewhere_and_suspended_again_keeps_it() -> None:
    ran = []
    for elsewhere in (False, True):
        first, ran_here = asking("read", "look", "drop")
        second, ran_there = asking("drop", "look") if elsewhere else (first, ran_here)
        record = suspended(first, "look", "look", "read")
        again = go(second.resume(record, ask("later")))
        there = ["look"] if elsewhere else ["read", "look"]
        assert again.pending is not None and list(again.pending["offered"]) == there
        assert go(second.resume(again.record(), True)).success
        ran.append(ran_there)
    assert ran == [["look"], ["look"]]


async def test_what_was_suspended_in_a_batch_keeps_it_too() -> None:
    runner, _ = asking("read", "drop")
    calls = [ToolCall("1", "read", {}), ToolCall("2", "drop", {})]
    first, second = await runner.run_all(calls, offered=runner.tools.only("read"))
    assert first.pending is not None and list(first.pending["offered"]) == ["read"]
    assert refused(second) and second.pending is None


def test_where_its_name_means_a_tool_that_was_not_offered_it_is_not_resumed() -> None:
    first, _ = asking("files.read", "look")
    record = suspended(first, WIRE, "files.read")
    second, ran = asking(WIRE, "look")
    watch = Watch()
    error = refused(go(second.resume(record, True, observers=[watch])))
    assert error == f"{WIRE!r} was not offered. There are none. Nothing was run."
    assert ran == [] and watch.kinds() == ["tool:error"]
    assert go(first.resume(record, True)).success, "the refusal used nothing up"


@pytest.mark.parametrize(
    "change",
    [
        lambda pending: pending["offered"].append("drop"),
        lambda pending: pending["offered"].reverse(),
        lambda pending: pending["offered"].clear(),
        lambda pending: pending.update(offered=None),
        lambda pending: pending.pop("offered"),
    ],
)
def test_a_list_that_was_changed_breaks_the_seal(change: Callable[[dict[str, Any]], object]) -> None:
    runner, ran = asking("read", "look", "drop")
    record = suspended(runner, "read", "read", "look")
    edited = copy.deepcopy(record)
    change(edited["pending"])
    result = go(runner.resume(edited, True))
    assert (result.status, ran) == ("invalid", [])
    assert "was changed" in str(result.error) and go(runner.resume(record, True)).success


# -- any subset and any name -------------------------------------------------------------------------------------------

NAMES = [
    "read",
    "read_file",
    "read-file",
    "files.read",
    "files-drop",
    "drop",
    "find.tools",
    "Straße",
    "functions.x",
    "x",
]
CALLED = st.one_of(
    st.sampled_from(NAMES).flatmap(
        lambda name: st.sampled_from(
            [name, name.upper(), name.replace("-", "_"), name.replace(".", "_"), f"functions.{name}", f"{name} "]
        )
    ),
    st.sampled_from(NAMES).map(lambda name: Toolset([named([], name)]).get(name).wire_name),
    st.text(max_size=12),
)


@given(offered=st.sets(st.sampled_from(NAMES)), name=CALLED, batched=st.booleans())
def test_for_any_subset_and_any_name_a_handler_runs_only_if_its_tool_was_offered(
    offered: set[str], name: str, batched: bool
) -> None:
    runner, ran = made(*NAMES)
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
        told = refused(bound).replace(repr(name), "")
        assert not any(repr(other) in told for other in NAMES if other not in offered) and ran == []
