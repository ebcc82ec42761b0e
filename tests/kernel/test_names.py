"""A name that no tool has is read as another's only where it can mean no other, and the result says so."""

from __future__ import annotations

from typing import Any

import pytest

from ferrule import DefinitionError, Runner, ToolCall, Toolset, tool
from watched import Watch, run


def named(*names: str) -> list[Any]:
    async def act(n: int = 1) -> int:
        return n

    return [tool(act, name=name, read_only=True) for name in names]


@pytest.mark.parametrize(
    ("there", "called"),
    [
        ("write", "Write"),
        ("google-web-search", "google_web_search"),
        ("read_notes", "READ-NOTES"),
        ("get_weather", "functions.get_weather"),
        ("get_weather", "default_api.get_weather"),
        ("get_weather", "default_api:Get-Weather"),
        ("notes.read", "NOTES.read"),
        ("notes.read", "functions.notes.read"),
    ],
)
def test_a_name_that_can_mean_one_tool_only_is_read_as_its_own(there: str, called: str) -> None:
    result, watch = run(named(there, "other"), ToolCall("c1", called, '{"n": 2}'))
    assert (result.status, result.output, result.tool_name) == ("ok", 2, there)
    assert result.call is not None and result.call.name == called
    assert result.repairs == (f"read the name {called!r} as {there!r}",)
    assert {event.call.name for event in watch.events} == {there}


@pytest.mark.parametrize(
    ("there", "called"),
    [
        (["read-note", "read_note2"], "readnote"),
        (["rd"], "evil:rd"),
        (["rd"], "evil.rd"),
        (["rd"], "functions.evil.rd"),
        (["get_weather"], "tools.functions.get_weather"),
        (["booking_request_lookup"], "paloma.booking_request_lookup"),
        (["a-b", "a_b"], "A-B"),
        (["todo"], "TodoTool_tool"),
        (["get_weather"], "commentary to=functions.get_weather"),
        (["analyzeEmail"], "print(default_api.analyzeEmail(...))"),
        (["get_weather"], "get_weather."),
        (["get_weather"], ".get_weather"),
        (["get_weather"], ""),
        (["notes.read", "mail.read"], "read"),
        (["notes.read", "read"], "mail.notes.read"),
    ],
)
def test_a_name_that_may_mean_another_or_has_more_to_it_is_answered_and_nothing_runs(
    there: list[str], called: str
) -> None:
    result, watch = run(named(*there), ToolCall("c1", called, "{}"))
    assert (result.status, result.executed) == ("not_found", False)
    assert watch.ends() == ["tool:error"]


def test_an_exact_name_goes_before_all_that_look_like_it() -> None:
    result, _ = run(named("read", "functions.read"), ToolCall("c1", "functions.read", "{}"))
    assert (result.tool_name, result.repairs) == ("functions.read", ())


def test_repairs_of_name_and_arguments_are_both_told() -> None:
    result, _ = run(named("act"), ToolCall("c1", "Act", '{"n": "2"}'))
    assert result.output == 2 and len(result.repairs) == 2


async def test_in_a_batch_a_resolved_tool_keeps_its_place_as_a_barrier_and_is_judged() -> None:
    log: list[str] = []

    @tool
    async def write(n: int) -> None:
        log.append(f"w{n}")

    watch = Watch()
    runner = Runner([write, *named("look")], observers=[watch], guards=[lambda call, context: None])
    calls = [ToolCall("c1", "Write", '{"n": 1}'), ToolCall("c2", "functions.write", '{"n": 2}')]
    assert all(result.success for result in await runner.run_all(calls))
    assert log == ["w1", "w2"] and watch.kinds("c2")[0] == "tool:pre"
    ends = [watch.kinds().index("tool:post"), watch.kinds().index("tool:pre", 1)]
    assert ends == sorted(ends)
    assert (await runner.decide(ToolCall("c3", "WRITE", '{"n": 1}'))).kind == "allow"


def test_the_toolset_says_what_is_meant_and_a_long_name_costs_nothing() -> None:
    tools = Toolset(named("act"))
    found = tools.resolve_name("functions.ACT")
    assert found is not None and found.name == "act"
    assert tools.resolve_name("x" * 1_000_000) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Read", "read"),
        ("read_note", "READ_Note"),
        ("read", "r\u0435ad"),  # a Cyrillic letter
        ("TOP", "\u03a4\u039f\u03a1"),  # Greek ones
        ("read", "\uff52\uff45\uff41\uff44"),  # full width
        ("file", "\ufb01le"),  # a ligature
        ("caf\u00e9", "cafe\u0301"),
    ],
)
def test_two_names_that_a_reader_cannot_tell_apart_are_an_error(one: str, other: str) -> None:
    with pytest.raises(DefinitionError, match="look alike"):
        Toolset(named(one, other))


def test_names_that_are_told_apart_are_two() -> None:
    assert len(Toolset(named("a-b", "a_b", "a1", "al", "cafe", "caf\u00e9"))) == 6
