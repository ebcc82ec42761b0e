"""`ask_before_changes`: reading is free, all else is asked about."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.definition.tool import Tool
from ferrule.guards import ask_before_changes
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext, Traits
from ferrule.values.decision import Decision


def nothing(**arguments: Any) -> None:
    """A handler."""


def asked(arguments: dict[str, Any], name: str = "write_file", **options: Any) -> Decision | None:
    call = ToolCall("1", name, arguments)
    context: Any = SimpleNamespace(tool=Traits(Tool("a_tool", nothing, **options), arguments))
    return ask_before_changes(call, context)


def reason(arguments: dict[str, Any], name: str = "write_file", **options: Any) -> str:
    decision = asked(arguments, name, **options)
    assert decision is not None
    assert decision.kind == "ask"
    return decision.reason


def test_reading_is_free() -> None:
    assert asked({"path": "a"}, read_only=True) is None


def test_reading_counts_for_the_arguments_of_the_call() -> None:
    assert asked({"dry": True}, read_only=lambda arguments: arguments["dry"]) is None
    assert asked({"dry": False}, read_only=lambda arguments: arguments["dry"]) is not None


def test_a_trait_that_breaks_or_is_not_plainly_true_is_asked_about() -> None:
    assert asked({}, read_only=lambda arguments: arguments["dry"]) is not None
    assert asked({}, read_only=lambda arguments: 1) is not None


def test_a_tool_that_is_not_known_is_asked_about() -> None:
    decision = ask_before_changes(ToolCall("1", "x", {}), ToolContext())
    assert decision is not None
    assert decision.kind == "ask"


def test_the_question_names_the_tool_and_leaves_the_arguments_to_whoever_shows_them() -> None:
    assert reason({"path": "a.txt", "pin": "1234"}) == "write_file changes things"


@pytest.mark.slow
@given(st.text(min_size=1))
def test_no_name_can_make_the_question_long_or_unprintable(name: str) -> None:
    text = reason({}, name)
    assert len(text) < 200
    assert text.isprintable()


async def test_it_works_in_a_runner() -> None:
    runner_module = pytest.importorskip("ferrule.runner")
    from ferrule.definition.decorator import tool
    from ferrule.definition.toolset import Toolset

    ran: list[str] = []

    @tool(read_only=True)
    def look() -> str:
        return "seen"

    @tool
    def change(what: str) -> str:
        ran.append(what)
        return "done"

    questions: list[str] = []

    def approve(call: ToolCall, decision: Decision, context: ToolContext[Any]) -> bool:
        questions.append(f"{decision.reason}: {call.arguments['what']}")
        return bool(call.arguments["what"] == "good")

    runner = runner_module.Runner(Toolset([look, change]), guards=[ask_before_changes], approve=approve)

    async def calls() -> list[str]:
        results = [
            await runner.run("look", {}),
            await runner.run("change", {"what": "good"}),
            await runner.run("change", {"what": "bad"}),
        ]
        return [result.status for result in results]

    assert (await calls()) == ["ok", "ok", "denied"]
    assert ran == ["good"]
    assert questions == ["change changes things: good", "change changes things: bad"]
