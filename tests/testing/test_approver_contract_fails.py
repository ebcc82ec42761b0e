"""Each test of `ApproverContract` passes for a right approver and fails for a wrong one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any
from unittest import SkipTest

import pytest
from kits import expect_kit_failure, run_kit_test

from ferrule import Decision, DefinitionError, ToolCall, ToolContext, allow
from ferrule.testing import ApproverContract
from ferrule.types import Approver


class Right:
    """Each question waits for the answer to its own call."""

    def __init__(self) -> None:
        self.answers: dict[str, asyncio.Future[Any]] = {}
        self.log = ""

    async def __call__(self, call: ToolCall, decision: Decision, context: ToolContext[Any]) -> Any:
        self.log += f"{call.name} {dict(call.arguments)!r} {decision.reason}\n"
        return await self.waits(call)

    async def waits(self, call: ToolCall) -> Any:
        try:
            return await self.answer_to(call)
        finally:
            self.answers.pop(call.id, None)

    def answer_to(self, call: ToolCall) -> asyncio.Future[Any]:
        return self.answers.setdefault(call.id, asyncio.get_running_loop().create_future())

    def say(self, call: ToolCall, answer: Any) -> None:
        self.answer_to(call).set_result(answer)


def waiting(change: Callable[[Any], Any]) -> type[Right]:
    """An approver that changes what a person answered."""

    class Changed(Right):
        async def waits(self, call: ToolCall) -> Any:
            return change(await super().waits(call))

    return Changed


class ReadsOnlyAscii(Right):
    async def __call__(self, call: ToolCall, decision: Decision, context: ToolContext[Any]) -> Any:
        decision.reason.encode("ascii")
        return await super().__call__(call, decision, context)


class MakesUpValues(Right):
    async def __call__(self, call: ToolCall, decision: Decision, context: ToolContext[Any]) -> Any:
        answer = await super().__call__(call, decision, context)
        return answer if decision.into is None else allow({**call.arguments, decision.into: "guessed"})


class LooksBehindTheStars(Right):
    async def __call__(self, call: ToolCall, decision: Decision, context: ToolContext[Any]) -> Any:
        assert context.call is not None
        return await super().__call__(context.call, decision, context)


class MixesUp(Right):
    def answer_to(self, call: ToolCall) -> asyncio.Future[Any]:
        return self.answers.setdefault("the one question", asyncio.get_running_loop().create_future())

    def say(self, call: ToolCall, answer: Any) -> None:
        if not self.answer_to(call).done():
            super().say(call, answer)


class RemembersByTool(Right):
    allowed = False

    async def waits(self, call: ToolCall) -> Any:
        self.allowed = self.allowed or await super().waits(call) is True
        return self.allowed


class LeavesItsQuestion(Right):
    async def waits(self, call: ToolCall) -> Any:
        self.asking = asyncio.create_task(super().waits(call))
        return await asyncio.shield(self.asking)


class SaysNoWhenItIsCancelled(Right):
    async def waits(self, call: ToolCall) -> Any:
        try:
            return await super().waits(call)
        except asyncio.CancelledError:
            return False


SaysByWord = waiting(lambda answer: "yes" if answer else "no")
PaysEve = waiting(lambda answer: allow({"to": "eve", "euros": 5}) if answer else False)
TakesANoForAnEdit = waiting(lambda answer: answer or allow({"to": "eve", "euros": 0}))
WRONG: list[tuple[str, type[Right], str]] = [
    ("it_returns_a_decision_or_a_bool", SaysByWord, "it gave ['yes']"),
    ("only_a_yes_runs_the_call", SaysByWord, "the answer was yes, and it is denied"),
    ("only_a_yes_runs_the_call", waiting(lambda answer: allow()), "the answer was no, and it is ok"),
    ("only_a_yes_runs_the_call", PaysEve, "and what ran is [('eve', 5)]"),
    ("only_a_yes_runs_the_call", TakesANoForAnEdit, "the answer was no, and it is ok"),
    ("no_question_makes_it_raise", ReadsOnlyAscii, "it raised [UnicodeEncodeError("),
    ("a_missing_value_is_not_made_up", MakesUpValues, "given a yes, and it is ok"),
    ("bound_and_secret_values_are_not_shown", LooksBehindTheStars, "it shows 'bound-4711-abcd'"),
    ("two_waiting_calls_each_get_their_own_answer", MixesUp, "and it is ok"),
    ("a_yes_covers_one_call_only", RemembersByTool, "the answer was no, and it is ok"),
    ("an_edit_is_judged_again", waiting(lambda answer: answer is not False), "ran [('ada', 5)]"),
    ("a_cancelled_call_leaves_nothing_waiting", SaysNoWhenItIsCancelled, "its call was cancelled, and is <Task fin"),
    ("a_cancelled_call_leaves_nothing_waiting", LeavesItsQuestion, "after the call was cancelled there are"),
]
"""A test of the kit, a wrong approver, and the text of the failure."""


class Contract(ApproverContract):
    def __init__(self, made: type[Right]) -> None:
        self.made = made

    def approver(self) -> Right:
        return self.made()

    async def answer(self, approver: Any, call: ToolCall, yes: bool) -> None:
        approver.say(call, yes)

    async def edit(self, approver: Any, call: ToolCall, arguments: Mapping[str, Any]) -> None:
        approver.say(call, allow(arguments))

    def read_shown_text(self, approver: Any) -> str:
        return str(approver.log)


def test_each_test_of_the_contract_has_an_approver_that_fails() -> None:
    tests = {name.removeprefix("test_") for name in vars(ApproverContract) if name.startswith("test_")}
    assert tests == {name for name, _, _ in WRONG}


@pytest.mark.parametrize(("name", "made", "said"), WRONG)
def test_a_wrong_approver_fails(name: str, made: type[Right], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_kit_test(Contract(Right), name)
    monkeypatch.setattr("ferrule.testing.approver_contract.SECONDS", 0.6)
    expect_kit_failure(Contract(made), name, said)


def test_a_missing_hook_is_named() -> None:
    class Bare(ApproverContract):
        def approver(self) -> Approver:
            return lambda call, decision, context: True

    with pytest.raises(DefinitionError, match=r"needs a method approver\(self\)"):
        ApproverContract().test_it_returns_a_decision_or_a_bool()
    hooks = {"bound_and_secret_values_are_not_shown": "read_shown_text", "an_edit_is_judged_again": "edit"}
    for name, hook in hooks.items():
        with pytest.raises(SkipTest, match=f"give {hook}"):
            getattr(Bare(), f"test_{name}")()


class PutsOff(ApproverContract):
    possible_answers = ("later",)

    def approver(self) -> Approver:
        return lambda call, decision, context: decision

    def read_shown_text(self, approver: Approver) -> str:
        return ""


def test_an_approver_that_suspends_passes() -> None:
    names = [name for name in vars(ApproverContract) if name.startswith("test_") and "edit" not in name]
    for name in names:
        run_kit_test(PutsOff(), name.removeprefix("test_"))
    unsaid = type("Unsaid", (PutsOff,), {"possible_answers": ("yes", "no")})()
    expect_kit_failure(unsaid, "only_a_yes_runs_the_call", "it suspends the call, possible_answers is ('yes'")
