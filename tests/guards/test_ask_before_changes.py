"""`ask_before_changes`: reading is free, all else is asked about."""

from __future__ import annotations

import asyncio
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


def test_the_question_says_what_would_be_done() -> None:
    assert reason({"path": "a.txt", "n": 3}) == "write_file changes things: path='a.txt', n=3"
    assert reason({}) == "write_file changes things"


def test_private_values_are_not_shown() -> None:
    def pay(amount: int, pin: str) -> None:
        """Pay."""

    call = ToolCall("1", "pay", {"amount": 1, "pin": "1234"})
    context: Any = SimpleNamespace(tool=Traits(Tool("pay", pay, private=("pin",)), call.arguments))
    decision = ask_before_changes(call, context)
    assert decision is not None
    text = decision.reason
    assert "1234" not in text
    assert "pin='**********'" in text


def test_long_arguments_are_cut_and_counted() -> None:
    text = reason({"content": "x" * 100_000} | {f"k{n}": "y" * 70 for n in range(50)})
    assert "(100000 characters)" in text
    assert "more arguments" in text


@pytest.mark.slow
@given(
    st.dictionaries(
        st.text(max_size=200),
        st.recursive(
            st.text() | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
        ),
    ),
    st.text(min_size=1),
)
def test_no_arguments_can_make_the_question_long_or_unprintable(arguments: dict[str, Any], name: str) -> None:
    text = reason(arguments, name)
    assert len(text) < 1000
    assert text.isprintable()


def test_it_works_in_a_runner() -> None:
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
        questions.append(decision.reason)
        return bool(call.arguments["what"] == "good")

    runner = runner_module.Runner(Toolset([look, change]), guards=[ask_before_changes], approve=approve)

    async def calls() -> list[str]:
        results = [
            await runner.run("look", {}),
            await runner.run("change", {"what": "good"}),
            await runner.run("change", {"what": "bad"}),
        ]
        return [result.status for result in results]

    assert asyncio.run(calls()) == ["ok", "ok", "denied"]
    assert ran == ["good"]
    assert questions == ["change changes things: what='good'", "change changes things: what='bad'"]
