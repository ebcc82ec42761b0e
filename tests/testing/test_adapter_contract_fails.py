"""Each test of `AdapterContract` passes for a right adapter, and fails for one that breaks what it is about."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar
from unittest import SkipTest

import pytest
from desk import BlockingDesk, Desk, DeskRun, Record
from kits import expect_kit_failure, run_kit_test

from ferrule import DefinitionError, Runner, ToolCall, ToolContext, ToolResult
from ferrule.adapters.adapter import Adapter
from ferrule.approval import later
from ferrule.journal import memory
from ferrule.testing import AdapterContract, BlockingAdapterContract, Framework, FrameworkRun, ModelView, Question
from ferrule.testing.adapter_calls import AdapterCalls


def as_it_is(seen: ModelView) -> ModelView:
    return seen


def reads(**wrong: Callable[[ModelView], ModelView]) -> type[DeskRun]:
    """A run whose model reads results of this status in a wrong way."""

    class Reads(DeskRun):
        def read(self, result: ToolResult) -> ModelView:
            return wrong.get(result.status, as_it_is)(super().read(result))

    return Reads


def as_text(seen: ModelView) -> ModelView:
    """Without a word of whether it failed, and without pictures."""
    return ModelView(seen.text)


def without_its_text(seen: ModelView) -> ModelView:
    return ModelView("it failed", failed=True)


def with_the_exception(seen: ModelView) -> ModelView:
    return ModelView("the secret inside", failed=True)


def without_text(seen: ModelView) -> ModelView:
    return ModelView("", seen.failed, seen.media)


def as_failure(seen: ModelView) -> ModelView:
    return ModelView(seen.text, failed=True, media=seen.media)


class WithoutDeps(DeskRun):
    def context(self) -> ToolContext:
        return super().context().replace(deps=None)


class WithoutPrincipal(DeskRun):
    def context(self) -> ToolContext:
        return super().context().replace(principal=None)


class RunsTwice(DeskRun):
    async def run_one(self, call_id: str) -> None:
        await self.adapter.runner.replace(journal=memory()).run(self.call(call_id), self.context())
        await super().run_one(call_id)


class WithoutSession(DeskRun):
    def context(self) -> ToolContext:
        return ToolContext(principal="ada", deps="DEPS")


class ReadsJson(DeskRun):
    def call(self, call_id: str) -> ToolCall:
        call, said = super().call(call_id), self.calls[call_id]
        if isinstance(said.arguments, str):
            with suppress(json.JSONDecodeError):
                return call.replace(arguments=json.loads(said.arguments))
            return call.replace(arguments={})
        return call


class GuessesNames(DeskRun):
    def call(self, call_id: str) -> ToolCall:
        call = super().call(call_id)
        return call.replace(name="pay") if call.name == "pays" else call


class OneByOne(DeskRun):
    async def run_all(self) -> None:
        for call_id in self.calls:
            self.see(call_id, await self.adapter.runner.run(self.call(call_id), self.context(), timeout=0.05))


class FillsIn(DeskRun):
    def call(self, call_id: str) -> ToolCall:
        call = super().call(call_id)
        return call.replace(arguments={name: value for name, value in call.arguments.items() if name != "runtime"})


class TellsNothing(DeskRun):
    async def run_one(self, call_id: str) -> None:
        self.see(call_id, await self.adapter.run(self.call(call_id), self.context()))


class LetsItGoOn(DeskRun):
    async def run_one(self, call_id: str) -> None:
        going_on = self.adapter.runner.run(self.call(call_id), self.context(), timeout=0.05)
        self.see(call_id, await asyncio.shield(asyncio.ensure_future(going_on)))


class AsksPeopleOnly(DeskRun):
    def adapter_of(self, runner: Runner, suspends: bool) -> Adapter:
        return super().adapter_of(runner.replace(approve=later), suspends)


class KeepsInSilence(DeskRun):
    def adapter_of(self, runner: Runner, suspends: bool) -> Adapter:
        return super().adapter_of(runner if runner.journal else runner.replace(journal=memory()), suspends)


class SaysYes(DeskRun):
    def adapter_of(self, runner: Runner, suspends: bool) -> Adapter:
        return super().adapter_of(runner.replace(approve=lambda call, decision, context: True), suspends)


class PutsOff(DeskRun):
    def adapter_of(self, runner: Runner, suspends: bool) -> Adapter:
        return super().adapter_of(runner.replace(approve=lambda call, decision, context: decision), suspends)


class LeavesOpen(DeskRun):
    """What an approver puts off has no end."""

    async def run_one(self, call_id: str) -> None:
        self.results[call_id] = self.read(await self.adapter.runner.run(self.call(call_id), self.context()))


class SaysThatNothingWaits(LeavesOpen):
    def read(self, result: ToolResult) -> ModelView:
        return ModelView("here no call can wait", failed=True) if result.pending else super().read(result)


class AsksNobody(DeskRun):
    def see(self, call_id: str, result: ToolResult) -> None:
        super().see(call_id, result)
        self.questions.clear()


class WithoutArguments(DeskRun):
    def question(self, pending: dict[str, Any]) -> Question:
        return Question({}, pending["reason"])


class WithoutReason(DeskRun):
    def question(self, pending: dict[str, Any]) -> Question:
        return Question(pending["arguments"])


class Answers(DeskRun):
    """A run that answers in a wrong way: by running the call as one that was approved."""

    def by_yes(self, call_id: str, **options: Any) -> Any:
        runner = self.adapter.runner.replace(approve=lambda call, decision, context: True, **options)
        return runner.run(self.call(call_id), self.context())


class NeverHearsNo(DeskRun):
    async def answer_one(self, call_id: str, answer: Any, record: Any) -> ToolResult:
        return await super().answer_one(call_id, answer or True, record)


class IgnoresEdits(DeskRun):
    async def answer_one(self, call_id: str, answer: Any, record: Any) -> ToolResult:
        return await super().answer_one(call_id, bool(answer), record)


class TakesEditsForNo(DeskRun):
    async def answer_one(self, call_id: str, answer: Any, record: Any) -> ToolResult:
        return await super().answer_one(call_id, answer is True, record)


class RunsWithoutGuards(Answers):
    async def answer_one(self, call_id: str, answer: Any, record: Any) -> ToolResult:
        result: ToolResult = await self.by_yes(call_id, guards=[])
        return result


class RunsWithoutRecord(Answers):
    """The first time and each time after, whatever record there is."""

    async def answer_one(self, call_id: str, answer: Any, record: Any) -> ToolResult:
        result: ToolResult = await self.by_yes(call_id, journal=memory())
        return result


class RunsWithoutSeal(Answers):
    async def answer_one(self, call_id: str, answer: Any, record: Any) -> ToolResult:
        result = await super().answer_one(call_id, answer, record)
        return await self.by_yes(call_id) if result.pending else result


class MixesUpAnswers(DeskRun):
    async def answer(self, answers: Mapping[str, bool | dict[str, Any]], record: Record = "unchanged") -> None:
        await super().answer(dict.fromkeys(answers, any(answers.values())), record)


class AsksOnAndOn(DeskRun):
    async def answer(self, answers: Mapping[str, bool | dict[str, Any]], record: Record = "unchanged") -> None:
        await super().answer(answers, record)
        self.questions["c1"] = Question({"to": "ada", "euros": 5})


class BeginsAnew(DeskRun):
    """With each answer all calls of the turn are run again, and a new journal knows none of them."""

    async def answer(self, answers: Mapping[str, bool | dict[str, Any]], record: Record = "unchanged") -> None:
        await super().answer(answers, record)
        for call_id in self.calls.keys() - answers.keys():
            self.see(
                call_id, await self.adapter.runner.replace(journal=memory()).run(self.call(call_id), self.context())
            )


class NeedsItsRecord(DeskRun):
    async def answer_one(self, call_id: str, answer: Any, record: Any) -> ToolResult:
        return await super().answer_one(call_id, answer, record or {})


class RefusesWithoutRecord(DeskRun):
    async def answer_one(self, call_id: str, answer: Any, record: Any) -> ToolResult:
        if record is None:
            return ToolResult(error="there is no such question")
        return await super().answer_one(call_id, answer, record)


class RunsWhereNobodyAsks(DeskRun):
    async def answer_one(self, call_id: str, answer: Any, record: Any) -> ToolResult:
        if record is None:
            return await self.adapter.run(self.call(call_id), self.context())
        return await super().answer_one(call_id, answer, record)


class FindsById(DeskRun):
    """The record that is kept is taken for the call, whatever its arguments."""

    async def answer_one(self, call_id: str, answer: Any, record: Any) -> ToolResult:
        runner = self.adapter.runner
        assert runner.journal is not None
        [kept] = [one for one in runner.journal.store.items().values() if one["pending"]["call"]["id"] == call_id]
        return await runner.resume({"pending": kept["pending"]}, answer, self.context())


class ShowsById(DeskRun):
    """A person is shown the call whose record is kept under this id."""

    async def answer(self, answers: Mapping[str, bool | dict[str, Any]], record: Record = "unchanged") -> None:
        journal = self.adapter.runner.journal
        assert journal is not None
        for kept in journal.store.items().values():
            self.questions[kept["pending"]["call"]["id"]] = self.question(kept["pending"])


class CallsItASuccess(DeskRun):
    async def run_one(self, call_id: str) -> None:
        try:
            await super().run_one(call_id)
        except Exception:
            self.results[call_id] = ModelView("it waits")


class AsksWhatNobodyCanAnswer(DeskRun):
    async def run_one(self, call_id: str) -> None:
        try:
            await super().run_one(call_id)
        except Exception:
            self.results[call_id] = ModelView("it could not be kept", failed=True)
            self.questions[call_id] = Question({"to": "ada"})


class AsksAgainInSilence(DeskRun):
    async def answer_one(self, call_id: str, answer: Any, record: Any) -> ToolResult:
        logging.disable()
        try:
            return await super().answer_one(call_id, answer, record)
        finally:
            logging.disable(logging.NOTSET)


class AsksOnce(DeskRun):
    """A person is asked once about a call; then the model is told to make it again."""

    told = "nobody can be asked twice: make the call again"

    def see(self, call_id: str, result: ToolResult) -> None:
        if result.pending is not None and call_id in self.records:
            self.results[call_id] = ModelView(self.told, failed=True)
        else:
            super().see(call_id, result)


class SaysThatItWaits(AsksOnce):
    told = "it waits"


class SaysWhichKey(AsksOnce):
    told = "it was sealed with another resume_key: make the call again"


class SendsBack(DeskRun):
    """A person is asked about what the model has sent alone; of what guards make of it, the model is told."""

    def see(self, call_id: str, result: ToolResult) -> None:
        super().see(call_id, result)
        if call_id in self.questions and self.questions[call_id].arguments != self.calls[call_id].arguments:
            self.send_back(call_id)

    def send_back(self, call_id: str) -> None:
        self.results[call_id] = ModelView(f"send {json.dumps(self.questions.pop(call_id).arguments)}", failed=True)


class SendsBackAndAsks(SendsBack):
    def send_back(self, call_id: str) -> None:
        self.results[call_id] = ModelView(f"send {json.dumps(self.questions[call_id].arguments)}", failed=True)


class HoldsYes(DeskRun):
    async def answer_one(self, call_id: str, answer: Any, record: Any) -> ToolResult:
        result = await super().answer_one(call_id, answer, record)
        if result.pending is not None and record is None and answer is True:
            return await self.adapter.run(self.call(call_id), self.context())
        return result


class TellsWhatWentWrong(DeskRun):
    async def run_one(self, call_id: str) -> None:
        try:
            await super().run_one(call_id)
        except Exception as error:
            self.results[call_id] = ModelView(str(error), failed=True)


class AskingOnce(Desk):
    asks_once = True
    run = AsksOnce


class SendingBack(Desk):
    asks_about_changes = False
    run = SendsBack


class HoldingYes(Desk):
    holds_yes = True
    run = HoldsYes


class SendingBackAndAsking(SendingBack):
    run = SendsBackAndAsks


class ForgetsTheSession(Desk):
    async def import_run(self, runner: Runner, stored: Any) -> DeskRun:
        _, *others = stored
        return await super().import_run(runner, ("another session", *others))


def asking_once(wrong: type[AsksOnce]) -> Desk:
    class Wrong(AskingOnce):
        run = wrong

    return Wrong()


WRONG: list[tuple[str, type[DeskRun] | Desk, str]] = [
    (
        "a_call_has_the_deps_and_the_session_of_the_framework",
        WithoutSession,
        "without a session no call is known again",
    ),
    ("a_call_has_the_deps_and_the_session_of_the_framework", WithoutDeps, "its deps were [None]"),
    ("a_call_has_the_deps_and_the_session_of_the_framework", WithoutPrincipal, "it ran for {None}"),
    (
        "wrong_arguments_run_nothing_and_the_error_names_the_right_ones",
        reads(invalid=as_text),
        "of c1, which failed",
    ),
    ("wrong_arguments_run_nothing_and_the_error_names_the_right_ones", RunsTwice, "look ran 2 times"),
    ("nearly_valid_json_is_repaired", ReadsJson, "of c1 the model reads"),
    ("a_picture_arrives_as_a_picture", reads(ok=as_text), "of a picture and 'a dot' the model has"),
    ("a_picture_arrives_as_a_picture", reads(ok=without_text), "of a picture and 'a dot' the model has"),
    (
        "an_exception_becomes_a_failure_without_its_text",
        reads(failed=with_the_exception),
        "of c1 the model reads 'the secret inside'",
    ),
    ("a_call_past_its_deadline_becomes_a_failure", reads(timeout=as_text), "of c1, which failed"),
    (
        "a_call_past_its_deadline_becomes_a_failure",
        reads(timeout=without_its_text),
        "where '0.05 s' is not said",
    ),
    ("a_call_without_a_slot_becomes_a_failure", reads(limited=without_its_text), "of two the model reads"),
    ("a_call_without_a_slot_becomes_a_failure", reads(limited=as_text), "of two the model reads"),
    ("a_call_without_a_slot_becomes_a_failure", reads(ok=without_text), "of two the model reads"),
    ("an_unknown_tool_name_runs_nothing", GuessesNames, "about a tool that is not there"),
    ("parallel_calls_run_at_the_same_time", OneByOne, "of c1 the model reads"),
    ("a_parameter_can_have_any_name", FillsIn, "of c1 the model reads"),
    ("progress_from_a_thread_arrives", TellsNothing, "told was []"),
    ("progress_from_a_thread_arrives", reads(ok=as_failure), "of a call that counts the model reads"),
    ("a_cancelled_run_cancels_its_calls", LetsItGoOn, "has ended as ['timeout']"),
    ("the_approver_of_the_runner_answers_at_once", AsksPeopleOnly, "the model reads nothing of c1"),
    ("a_runner_without_a_journal_is_logged", KeepsInSilence, "the log does not say that there is no journal"),
    ("a_denied_call_does_not_run", SaysYes, "of c1, which failed"),
    ("tools_that_may_ask_are_refused_without_an_approver", PutsOff, "or the error does not say which: ''"),
    ("tools_that_may_ask_are_refused_with_a_deferring_approver", PutsOff, "or the error does not say which: ''"),
    (
        "a_call_that_the_approver_defers_is_denied",
        LeavesOpen,
        "where 'no call can wait' is not said",
    ),
    (
        "a_call_that_the_approver_defers_is_denied",
        SaysThatNothingWaits,
        "the call has ended as []",
    ),
    ("an_approved_call_runs", WithoutReason, "a person is told ''"),
    ("an_approved_call_runs", AsksNobody, "nobody is asked about c1"),
    ("an_approved_call_runs", WithoutArguments, "a person is shown {}"),
    ("a_denied_call_runs_nothing_and_the_model_reads_the_denial", NeverHearsNo, "of a no the model reads"),
    ("a_person_can_edit_the_arguments", IgnoresEdits, "where 'paid 4 EUR to ada' is not said"),
    ("an_unchanged_edit_is_an_approval", TakesEditsForNo, "where 'paid 5 EUR to ada' is not said"),
    (
        "an_approval_covers_the_arguments_that_the_guards_changed",
        RunsWithoutGuards,
        "of c1 the model reads ModelView(text='paid 500",
    ),
    ("an_approval_covers_the_arguments_that_the_guards_changed", SendingBackAndAsking(), "a person is asked"),
    ("an_edit_of_the_arguments_is_judged_again", IgnoresEdits, "of what cannot be paid the model reads"),
    ("a_repeated_answer_runs_the_call_once", RunsWithoutRecord, "paid was {'ada 1': 2}"),
    (
        "each_of_two_answers_reaches_its_own_call",
        MixesUpAnswers,
        "of a no the model reads",
    ),
    ("each_of_two_answers_reaches_its_own_call", AsksOnAndOn, "all is answered, and"),
    (
        "an_ended_call_does_not_run_again_when_a_sibling_is_answered",
        BeginsAnew,
        "paid was {'ada 1': 2",
    ),
    (
        "a_changed_record_does_not_change_the_call",
        RunsWithoutRecord,
        "paid was {'ada 5': 1}",
    ),
    (
        "an_answer_without_its_record_uses_the_stored_one",
        NeedsItsRecord,
        "the model reads nothing of c1",
    ),
    (
        "a_call_answered_elsewhere_does_not_run_again",
        RunsWithoutRecord,
        "paid was {'ada 5': 2}",
    ),
    (
        "a_call_answered_elsewhere_does_not_run_again",
        reads(ok=without_its_text),
        "the other said True, and the model reads",
    ),
    ("an_answer_without_a_record_is_asked_again", RunsWithoutRecord, "paid was {'ada 5': 1}"),
    ("an_answer_without_a_record_is_asked_again", RefusesWithoutRecord, "nobody is asked again"),
    (
        "an_answer_without_a_record_is_asked_again",
        asking_once(SaysThatItWaits),
        "where 'make the call again' is not said",
    ),
    (
        "a_lost_record_lets_no_call_run",
        RunsWhereNobodyAsks,
        "paid was {'ada 5': 1}",
    ),
    (
        "a_lost_record_lets_no_call_run",
        RefusesWithoutRecord,
        "nobody is asked about c1",
    ),
    ("an_approval_does_not_cover_another_call_with_the_same_id", FindsById, "which nobody approved"),
    (
        "an_approval_does_not_cover_another_call_with_the_same_id",
        ShowsById,
        "a person is asked about a call to {'eve'}",
    ),
    ("an_error_of_the_record_store_does_not_reach_the_model", TellsWhatWentWrong, "'the secret place'"),
    (
        "an_error_of_the_record_store_does_not_reach_the_model",
        CallsItASuccess,
        "the model reads ModelView(text='it waits'",
    ),
    (
        "an_error_of_the_record_store_does_not_reach_the_model",
        AsksWhatNobodyCanAnswer,
        "whose answer cannot be taken",
    ),
    (
        "an_answer_in_another_process_runs_the_call",
        ForgetsTheSession(),
        "of c1 the model reads None",
    ),
    ("an_answer_in_several_processes_runs_the_call_once", RunsWithoutRecord, "paid was {'ada 5': 2}"),
    (
        "another_resume_key_asks_again_and_logs_why",
        RunsWithoutSeal,
        "paid was {'ada 5': 1}",
    ),
    (
        "another_resume_key_asks_again_and_logs_why",
        AsksAgainInSilence,
        "the log says nothing of a resume_key",
    ),
    (
        "another_resume_key_asks_again_and_logs_why",
        asking_once(SaysThatItWaits),
        "the model reads 'it waits'",
    ),
    (
        "another_resume_key_asks_again_and_logs_why",
        asking_once(SaysWhichKey),
        "the model reads 'it was sealed with another resume_key",
    ),
]
"""A test of the kit, what breaks it, and what the failure says."""


def framework_of(wrong: type[DeskRun] | Desk, right: Desk) -> Desk:
    """The framework that is right but for this."""
    if isinstance(wrong, Desk):
        return wrong

    class Wrong(type(right)):  # type: ignore[misc]
        run: ClassVar = wrong

    return Wrong()


def contract_of(tested: Desk) -> AdapterCalls:
    class Contract(AdapterContract if tested.suspends else BlockingAdapterContract):  # type: ignore[misc]
        framework = tested

    return Contract()


def desk_for(name: str) -> Desk:
    """A right framework for the test: one where calls can wait, or else one where none can."""
    return Desk() if hasattr(AdapterContract, f"test_{name}") else BlockingDesk()


def names_of(*contracts: type) -> set[str]:
    found = {name for contract in contracts for name in dir(contract) if name.startswith("test_")}
    return {name.removeprefix("test_") for name in found}


def test_every_test_of_the_contracts_has_an_adapter_that_fails_it() -> None:
    assert names_of(AdapterContract, BlockingAdapterContract) == {name for name, _, _ in WRONG}


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [pytest.param(*one, marks=[pytest.mark.slow] if "a_process_of_its_own" in one[0] else []) for one in WRONG],
)
def test_an_adapter_that_breaks_it_fails(name: str, wrong: type[DeskRun] | Desk, said: str) -> None:
    right = desk_for(name)
    run_kit_test(contract_of(right), name)
    expect_kit_failure(contract_of(framework_of(wrong, right)), name, said)


@pytest.mark.parametrize("right", [AskingOnce(), SendingBack(), HoldingYes()], ids=lambda one: type(one).__name__)
def test_what_a_framework_says_that_it_does_otherwise_is_not_held_against_it(right: Desk) -> None:
    for name in sorted(names_of(AdapterContract)):
        if "a_process_of_its_own" not in name:
            run_kit_test(contract_of(right), name)


@pytest.mark.parametrize("name", sorted(names_of(AdapterContract) & names_of(BlockingAdapterContract)))
def test_what_holds_where_calls_can_wait_holds_where_none_can(name: str) -> None:
    run_kit_test(contract_of(BlockingDesk()), name)


PAGE = (Path(__file__).parents[2] / "docs" / "coming-from.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_adapter_of_the_page_passes_the_whole_contract(tmp_path: Path) -> None:
    section = PAGE.partition("## Your own adapter")[2]
    [program] = re.findall(r"^```python\n(.*?)^```$", section.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_desk.py").write_text(program, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert f"{len(names_of(AdapterContract))} passed" in done.stdout, done.stdout


class RunsNothing(DeskRun):
    async def run_all(self) -> None:
        self.results["c1"] = ModelView("there is no such tool", failed=True)


def test_a_run_that_ends_before_its_call_begins_fails_and_says_what_the_model_read() -> None:
    contract = contract_of(framework_of(RunsNothing, Desk()))
    with pytest.raises(AssertionError, match=r"the call has not begun; .*there is no such tool"):
        contract.test_a_cancelled_run_cancels_its_calls()


class Hangs(DeskRun):
    async def run_all(self) -> None:
        await asyncio.get_running_loop().create_future()


def test_a_run_that_hangs_fails_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrule.testing.bounded.SECONDS", 0.05)
    with pytest.raises(AssertionError, match=r"the run has not ended after 0\.05 s"):
        contract_of(framework_of(Hangs, Desk())).test_a_picture_arrives_as_a_picture()


class KeepsNoRecord(DeskRun):
    """But in its own hands."""

    def adapter_of(self, runner: Runner, suspends: bool) -> Adapter:
        return Adapter(runner, "Desk", suspends=suspends, records=memory().store)


def test_an_adapter_whose_records_are_not_in_the_store_of_the_journal_is_told_so() -> None:
    contract = contract_of(framework_of(KeepsNoRecord, Desk()))
    assert isinstance(contract, AdapterContract)
    with pytest.raises(AssertionError, match=r"the store of the journal keeps \[\], and not the record of one call"):
        contract.test_a_call_answered_elsewhere_does_not_run_again()


class YesOrNo(Desk):
    edits = False


class InOneProcess(Desk):
    def export_run(self, waiting: DeskRun) -> Any:
        return None


@pytest.mark.parametrize(
    ("unable", "name", "reason"),
    [
        (YesOrNo(), "a_person_can_edit_the_arguments", "a person cannot change the arguments"),
        (
            InOneProcess(),
            "an_answer_in_several_processes_runs_the_call_once",
            "only the process that asked can be answered",
        ),
    ],
)
def test_what_a_framework_cannot_do_is_skipped_with_the_reason(unable: Desk, name: str, reason: str) -> None:
    with pytest.raises(SkipTest, match=reason):
        getattr(contract_of(unable), f"test_{name}")()


class Bare(AdapterContract):
    pass


class Undriven(AdapterContract):
    framework = Framework()


def test_what_a_contract_needs_is_said() -> None:
    with pytest.raises(DefinitionError, match="Bare needs an attribute framework = YourFramework"):
        Bare().test_a_picture_arrives_as_a_picture()
    with pytest.raises(DefinitionError, match=r"Framework needs a method start_run\(self, runner, \*calls\)"):
        Undriven().test_a_picture_arrives_as_a_picture()
    with pytest.raises(DefinitionError, match=r"FrameworkRun needs a method answer\(self, answers"):
        asyncio.run(FrameworkRun().answer({"c1": True}))
