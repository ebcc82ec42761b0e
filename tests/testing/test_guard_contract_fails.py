"""Each test of `GuardContract` passes for a right guard and fails for a wrong one."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import Any, Literal
from unittest import SkipTest

import pytest
from kits import expect_kit_failure, run_kit_test

from ferrule import DefinitionError, ToolCall, ToolContext, ask, deny, tool
from ferrule.testing import ExpectedDecision, GuardContract


@tool
async def pay(euros: int, to: str = "ada") -> str:
    return f"paid {to} {euros}"


@tool(read_only=True)
async def look(at: str) -> str:
    return at


CALLS: list[ExpectedDecision] = [
    ("pay", {"euros": 5}, "allow"),
    ("pay", {"euros": 500}, "ask"),
    ("pay", {"euros": 5000}, "deny"),
    ("look", {"at": "it"}, "allow"),
]


def right(call: ToolCall, context: ToolContext[Any]) -> Any:
    if call.name != "pay":
        return None
    euros = call.arguments["euros"]
    return deny("too much") if euros > 1000 else ask("much") if euros > 100 else None


right.asks = lambda tool: tool.name == "pay"  # type: ignore[attr-defined]


def too_mild(call: ToolCall, context: ToolContext[Any]) -> Any:
    answer = right(call, context)
    return ask("is it?") if answer is not None and answer.kind == "deny" else answer


def needs_a_principal(call: ToolCall, context: ToolContext[Any]) -> Any:
    return right(call, context) if context.principal.lower() else None  # type: ignore[union-attr]


def answers_by_bool(call: ToolCall, context: ToolContext[Any]) -> Any:
    return right(call, context) or True


class Remembers:
    def __init__(self) -> None:
        self.seen: set[str] = set()

    def __call__(self, call: ToolCall, context: ToolContext[Any]) -> Any:
        answer, key = right(call, context), str(call.arguments)
        if key in self.seen:
            return None
        self.seen.add(key)
        return answer


def writes(call: ToolCall, context: ToolContext[Any]) -> Any:
    os.environ["LAST_CALL"] = call.name + str(call.arguments)
    return right(call, context)


async def runs(call: ToolCall, context: ToolContext[Any]) -> Any:
    if call.name == "pay":
        await context.run("look", {"at": "it"})
    return right(call, context)


def reads_the_text(call: ToolCall, context: ToolContext[Any]) -> Any:
    """It knows one way only to write an amount."""
    written = re.search(r'"euros":(\d+)', str(call.raw))
    return right(call, context) if written else None


class RemembersByName:
    """What was allowed or asked about once is not looked at again."""

    def __init__(self) -> None:
        self.decided: dict[str, Any] = {}

    def __call__(self, call: ToolCall, context: ToolContext[Any]) -> Any:
        return self.decided.setdefault(call.name, right(call, context))


def grows(call: ToolCall, context: ToolContext[Any]) -> Any:
    if call.name == "look":
        return {**call.arguments, "at": call.arguments["at"] + "."}
    return right(call, context)


def asks_of_all(call: ToolCall, context: ToolContext[Any]) -> Any:
    return right(call, context)


asks_of_all.asks = False  # type: ignore[attr-defined]


WRONG: list[tuple[str, Callable[[], Any], str]] = [
    ("each_call_has_the_expected_decision", lambda: too_mild, "is to be 'deny', and is Decision(kind='ask'"),
    ("no_call_and_no_context_makes_it_raise", lambda: needs_a_principal, "it says [AttributeError("),
    ("no_call_and_no_context_makes_it_raise", lambda: answers_by_bool, "it says [True]"),
    ("the_same_call_has_the_same_decision", Remembers, "asked once more"),
    ("it_changes_nothing", lambda: writes, "changed what world() gives"),
    ("deciding_runs_nothing_and_predicts_the_call", lambda: runs, "made calls: ['tool:pre'"),
    ("arguments_changed_by_another_guard_are_judged", RemembersByName, "that another guard changes to"),
    ("repaired_arguments_are_judged", lambda: reads_the_text, "with the text"),
    ("edited_arguments_are_judged", RemembersByName, "that a person changes to"),
    ("its_own_change_settles", lambda: grows, "kept changing the arguments"),
    ("it_never_asks_about_a_tool_that_its_asks_excludes", lambda: asks_of_all, "its asks says never for pay"),
]
"""A test of the kit, a function that makes a wrong guard, and the text of the failure."""


def contract_of(make: Callable[[], Any], calls: list[ExpectedDecision] = CALLS) -> GuardContract:
    class Contract(GuardContract):
        def guard(self) -> Any:
            return make()

        def tools(self) -> Iterable[Any]:
            return [pay, look]

        def calls(self) -> Iterable[ExpectedDecision]:
            return calls

    return Contract()


def test_each_test_of_the_contract_has_a_guard_that_fails() -> None:
    tests = {name.removeprefix("test_") for name in vars(GuardContract) if name.startswith("test_")}
    assert tests == {name for name, _, _ in WRONG}


@pytest.mark.parametrize(("name", "make", "said"), WRONG)
def test_a_wrong_guard_fails(name: str, make: Callable[[], Any], said: str) -> None:
    run_kit_test(contract_of(lambda: right), name)
    expect_kit_failure(contract_of(make), name, said)


def test_unrepairable_arguments_are_not_judged() -> None:
    @tool
    async def rate(stars: Literal[1, 2, 3]) -> str:
        return f"{stars} stars"

    class Contract(GuardContract):
        def guard(self) -> Any:
            return lambda call, context: None

        def tools(self) -> Iterable[Any]:
            return [rate]

        def calls(self) -> Iterable[ExpectedDecision]:
            return [("rate", {"stars": 2}, "allow")]

    run_kit_test(Contract(), "repaired_arguments_are_judged")


def test_a_missing_hook_is_named() -> None:
    with pytest.raises(DefinitionError, match=r"needs a method guard\(self\)"):
        GuardContract()._runner()
    with pytest.raises(DefinitionError, match="at least one"):
        contract_of(lambda: right, []).test_each_call_has_the_expected_decision()
    with pytest.raises(SkipTest, match="two calls of one tool"):
        contract_of(lambda: right, [("look", {"at": "it"}, "allow")]).test_edited_arguments_are_judged()
