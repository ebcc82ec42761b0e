"""A name that no tool has is read as another's only where it can mean no other, and the result says so."""

from __future__ import annotations

from typing import Any

import pytest

from ferrule import Runner, ToolCall, Toolset, tool
from gates import Gate
from watched import Watch, run


def make_tools(*names: str) -> list[Any]:
    async def act(n: int = 1) -> int:
        return n

    return [tool(act, name=name, read_only=True) for name in names]


@pytest.mark.parametrize(
    ("there", "called"),
    [
        ("write", "Write"),
        ("google-web-search", "google_web_search"),
        ("get_weather", "default_api.get_weather"),
        ("get_weather", "default_api:Get-Weather"),
        ("notes.read", "NOTES.read"),
        ("notes.read", "functions.notes.read"),
    ],
)
def test_a_name_that_can_mean_one_tool_only_is_resolved(there: str, called: str) -> None:
    result, watch = run(make_tools(there, "other"), ToolCall("c1", called, '{"n": 2}'))
    assert (result.status, result.output, result.tool_name) == ("ok", 2, there)
    assert result.call is not None and result.call.name == called
    assert result.repairs == (f"read the name {called!r} as {there!r}",)
    assert {event.call.name for event in watch.events} == {there}


async def test_a_resolved_tool_keeps_its_place_in_a_batch_and_is_judged() -> None:
    watch, gate = Watch(), Gate()
    gate.open.set()
    runner = Runner([gate.tool], observers=[watch], guards=[lambda call, context: None])
    assert all(one.success for one in await runner.run_all([ToolCall("1", "Wait"), ToolCall("2", "functions.wait")]))
    assert watch.kinds() == ["tool:pre", "tool:decided", "tool:post"] * 2
    assert (await runner.decide(ToolCall("3", "WAIT"))).kind == "allow"


def test_a_toolset_resolves_names_and_a_long_one_costs_nothing() -> None:
    tools = Toolset(make_tools("act"))
    found = tools.resolve_name("functions.ACT")
    assert found is not None and found.name == "act"
    assert tools.resolve_name("x" * 1_000_000) is None
