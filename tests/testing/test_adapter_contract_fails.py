"""Each test of `AdapterContract` passes for a right adapter and fails for a wrong one."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import SkipTest

import pytest
from desk import BlockingDesk, Desk, DeskRun, Record
from kits import expect_kit_failure, run_kit_test

from ferrule import DefinitionError, Runner, ToolCall, ToolResult
from ferrule.adapters.adapter import Adapter
from ferrule.approval import later
from ferrule.journal import memory
from ferrule.testing import AdapterContract, BlockingAdapterContract, FrameworkRun, ModelView, Question
from ferrule.testing.adapter_calls import AdapterCalls


def wrong(base: type[DeskRun] = DeskRun, **methods: Any) -> type[DeskRun]:
    """A run with other methods. A function that returns what an async method returns is as good as it."""
    return type("Wrong", (base,), methods)


def reads(**changes: Callable[[ModelView], ModelView]) -> type[DeskRun]:
    """A run whose model reads results of this status in a wrong way."""
    as_it_is: Callable[[ModelView], ModelView] = lambda seen: seen  # noqa: E731
    return wrong(read=lambda run, result: changes.get(result.status, as_it_is)(DeskRun.read(run, result)))


def with_context(**changes: Any) -> type[DeskRun]:
    return wrong(context=lambda run: DeskRun.context(run).replace(**changes))


def with_call(change: Callable[[ToolCall], ToolCall]) -> type[DeskRun]:
    return wrong(call=lambda run, call_id: change(DeskRun.call(run, call_id)))


def with_runner(change: Callable[[Runner], Runner]) -> type[DeskRun]:
    return wrong(adapter_of=lambda run, runner, suspends: DeskRun.adapter_of(run, change(runner), suspends))


def with_answer(change: Callable[[Any, Any], tuple[Any, Any]]) -> type[DeskRun]:
    """A run that changes an answer and its record."""
    return wrong(answer_one=lambda run, id, answer, record: DeskRun.answer_one(run, id, *change(answer, record)))


def answering(run: Callable[[DeskRun, str], Awaitable[Any]], *, without_record: bool = False) -> type[DeskRun]:
    """A run that answers by `run`, or only does so without a record."""
    return wrong(
        answer_one=lambda self, id, answer, record: (
            run(self, id) if record is None or not without_record else DeskRun.answer_one(self, id, answer, record)
        )
    )


def run_anew(run: DeskRun, call_id: str, **options: Any) -> Awaitable[ToolResult]:
    """Run the call again, as if it was approved."""
    runner = run.adapter.runner.replace(approve=lambda call, decision, context: True, **options)
    return runner.run(run.call(call_id), run.context())


async def refuse(run: DeskRun, call_id: str) -> ToolResult:
    return ToolResult(error="there is no such question")


GuessesNames = with_call(lambda call: call.replace(name="pay") if call.name == "pays" else call)
FillsIn = with_call(
    lambda call: call.replace(arguments={name: one for name, one in call.arguments.items() if name != "runtime"})
)
AsksPeopleOnly = with_runner(lambda runner: runner.replace(approve=later))
KeepsInSilence = with_runner(lambda runner: runner if runner.journal else runner.replace(journal=memory()))
SaysYes = with_runner(lambda runner: runner.replace(approve=lambda call, decision, context: True))
PutsOff = with_runner(lambda runner: runner.replace(approve=lambda call, decision, context: decision))
WithoutArguments = wrong(question=lambda run, pending: Question({}, pending["reason"]))
WithoutReason = wrong(question=lambda run, pending: Question(pending["arguments"]))
NeverHearsNo = with_answer(lambda answer, record: (answer or True, record))
IgnoresEdits = with_answer(lambda answer, record: (bool(answer), record))
TakesEditsForNo = with_answer(lambda answer, record: (answer is True, record))
NeedsItsRecord = with_answer(lambda answer, record: (answer, record or {}))
RunsWithoutGuards = answering(lambda run, id: run_anew(run, id, guards=[]))
RunsWithoutRecord = answering(lambda run, id: run_anew(run, id, journal=memory()))
RefusesWithoutRecord = answering(refuse, without_record=True)
RunsWhereNobodyAsks = answering(lambda run, id: run.adapter.run(run.call(id), run.context()), without_record=True)


class RunsTwice(DeskRun):
    async def run_one(self, call_id: str) -> None:
        await self.adapter.runner.replace(journal=memory()).run(self.call(call_id), self.context())
        await super().run_one(call_id)


class ReadsJson(DeskRun):
    def call(self, call_id: str) -> ToolCall:
        call, said = super().call(call_id), self.calls[call_id]
        if isinstance(said.arguments, str):
            with suppress(json.JSONDecodeError):
                return call.replace(arguments=json.loads(said.arguments))
            return call.replace(arguments={})
        return call


class OneByOne(DeskRun):
    async def run_all(self) -> None:
        for call_id in self.calls:
            self.see(call_id, await self.adapter.runner.run(self.call(call_id), self.context(), timeout=0.05))


class TellsNothing(DeskRun):
    async def run_one(self, call_id: str) -> None:
        self.see(call_id, await self.adapter.run(self.call(call_id), self.context()))


class LetsItGoOn(DeskRun):
    async def run_one(self, call_id: str) -> None:
        going_on = self.adapter.runner.run(self.call(call_id), self.context(), timeout=0.05)
        self.see(call_id, await asyncio.shield(asyncio.ensure_future(going_on)))


class LeavesOpen(DeskRun):
    """What an approver puts off has no end."""

    async def run_one(self, call_id: str) -> None:
        self.results[call_id] = self.read(await self.adapter.runner.run(self.call(call_id), self.context()))


class RunsWithoutSeal(DeskRun):
    async def answer_one(self, call_id: str, answer: Any, record: Any) -> ToolResult:
        result = await super().answer_one(call_id, answer, record)
        return await run_anew(self, call_id) if result.pending else result


class MixesUpAnswers(DeskRun):
    async def answer(self, answers: Mapping[str, bool | dict[str, Any]], record: Record = "unchanged") -> None:
        await super().answer(dict.fromkeys(answers, any(answers.values())), record)


class BeginsAnew(DeskRun):
    """With each answer all calls of the turn are run again, and a new journal knows none of them."""

    async def answer(self, answers: Mapping[str, bool | dict[str, Any]], record: Record = "unchanged") -> None:
        await super().answer(answers, record)
        for call_id in self.calls.keys() - answers.keys():
            self.see(
                call_id, await self.adapter.runner.replace(journal=memory()).run(self.call(call_id), self.context())
            )


class FindsById(DeskRun):
    """The record that is kept is taken for the call, whatever its arguments."""

    async def answer_one(self, call_id: str, answer: Any, record: Any) -> ToolResult:
        runner = self.adapter.runner
        assert runner.journal is not None
        [kept] = [one for one in runner.journal.store.items().values() if one["pending"]["call"]["id"] == call_id]
        return await runner.resume({"pending": kept["pending"]}, answer, self.context())


class AsksOnce(DeskRun):
    """A person is asked once about a call; then the model is told to make it again."""

    told = "nobody can be asked twice: make the call again"

    def see(self, call_id: str, result: ToolResult) -> None:
        if result.pending is not None and call_id in self.records:
            self.results[call_id] = ModelView(self.told, failed=True)
        else:
            super().see(call_id, result)


SaysThatItWaits = wrong(AsksOnce, told="it waits")


class TellsWhatWentWrong(DeskRun):
    async def run_one(self, call_id: str) -> None:
        try:
            await super().run_one(call_id)
        except Exception as error:
            self.results[call_id] = ModelView(str(error), failed=True)


class AskingOnce(Desk):
    asks_once = True
    run = AsksOnce


class Sequential(Desk):
    overlaps_calls = False
    run = OneByOne


class ForgetsTheSession(Desk):
    async def import_run(self, runner: Runner, stored: Any) -> DeskRun:
        _, *others = stored
        return await super().import_run(runner, ("another session", *others))


def asking_once(wrong_run: type[DeskRun]) -> Desk:
    return type("Wrong", (AskingOnce,), {"run": wrong_run})()


def text_alone(seen: ModelView) -> ModelView:
    return ModelView(seen.text)


HIDES = reads(ok=lambda seen: ModelView("it failed", failed=True))
SHOWS = reads(failed=lambda seen: ModelView("the secret inside", failed=True))
WRONG: list[tuple[str, type[DeskRun] | Desk, str]] = [
    ("a_call_has_the_deps_and_the_session_of_the_framework", with_context(session=None), "without a session"),
    ("a_call_has_the_deps_and_the_session_of_the_framework", with_context(deps=None), "its deps were [None]"),
    ("a_call_has_the_deps_and_the_session_of_the_framework", with_context(principal=None), "it ran for {None}"),
    (
        "wrong_arguments_run_nothing_and_the_error_names_the_right_ones",
        reads(invalid=text_alone),
        "of c1, which failed",
    ),
    ("wrong_arguments_run_nothing_and_the_error_names_the_right_ones", RunsTwice, "look ran 2 times"),
    ("nearly_valid_json_is_repaired", ReadsJson, "of c1 the model reads"),
    ("a_picture_arrives_as_a_picture", reads(ok=text_alone), "of a picture and 'a dot' the model has"),
    ("an_exception_becomes_a_failure_without_its_text", SHOWS, "'the secret inside'"),
    ("a_call_past_its_deadline_becomes_a_failure", reads(timeout=text_alone), "of c1, which failed"),
    ("a_call_without_a_slot_becomes_a_failure", reads(limited=text_alone), "of two the model reads"),
    ("an_unknown_tool_name_runs_nothing", GuessesNames, "about a tool that is not there"),
    ("parallel_calls_run_at_the_same_time", OneByOne, "of c1 the model reads"),
    ("a_parameter_can_have_any_name", FillsIn, "of c1 the model reads"),
    ("progress_from_a_thread_arrives", TellsNothing, "told was []"),
    ("a_cancelled_run_cancels_its_calls", LetsItGoOn, "has ended as ['timeout']"),
    ("the_approver_of_the_runner_answers_at_once", AsksPeopleOnly, "the model reads nothing of c1"),
    ("a_runner_without_a_journal_is_logged", KeepsInSilence, "the log does not say that there is no journal"),
    ("a_denied_call_does_not_run", SaysYes, "of c1, which failed"),
    ("tools_that_may_ask_are_refused_without_an_approver", PutsOff, "or the error does not say which: ''"),
    ("tools_that_may_ask_are_refused_with_a_deferring_approver", PutsOff, "or the error does not say which: ''"),
    ("a_call_that_the_approver_defers_is_denied", LeavesOpen, "where 'no call can wait' is not said"),
    ("an_approved_call_runs", WithoutReason, "a person is told ''"),
    ("an_approved_call_runs", WithoutArguments, "a person is shown {}"),
    ("a_denied_call_runs_nothing_and_the_model_reads_the_denial", NeverHearsNo, "of a no the model reads"),
    ("a_person_can_edit_the_arguments", IgnoresEdits, "where 'paid 4 EUR to ada' is not said"),
    ("an_unchanged_edit_is_an_approval", TakesEditsForNo, "where 'paid 5 EUR to ada' is not said"),
    ("an_approval_covers_the_arguments_that_the_guards_changed", RunsWithoutGuards, "text='paid 500"),
    ("an_edit_of_the_arguments_is_judged_again", IgnoresEdits, "of what cannot be paid the model reads"),
    ("a_repeated_answer_runs_the_call_once", RunsWithoutRecord, "paid was {'ada 1': 2}"),
    ("each_of_two_answers_reaches_its_own_call", MixesUpAnswers, "of a no the model reads"),
    ("an_ended_call_does_not_run_again_when_a_sibling_is_answered", BeginsAnew, "paid was {'ada 1': 2"),
    ("a_changed_record_does_not_change_the_call", RunsWithoutRecord, "paid was {'ada 5': 1}"),
    ("an_answer_without_its_record_uses_the_stored_one", NeedsItsRecord, "the model reads nothing of c1"),
    ("a_call_answered_elsewhere_does_not_run_again", RunsWithoutRecord, "paid was {'ada 5': 2}"),
    ("a_call_answered_elsewhere_does_not_run_again", HIDES, "the other said True"),
    ("an_answer_without_a_record_is_asked_again", RunsWithoutRecord, "paid was {'ada 5': 1}"),
    ("an_answer_without_a_record_is_asked_again", RefusesWithoutRecord, "nobody is asked again"),
    ("an_answer_without_a_record_is_asked_again", asking_once(SaysThatItWaits), "'make the call again'"),
    ("a_lost_record_lets_no_call_run", RunsWhereNobodyAsks, "paid was {'ada 5': 1}"),
    ("a_lost_record_lets_no_call_run", RefusesWithoutRecord, "nobody is asked about c1"),
    ("an_approval_does_not_cover_another_call_with_the_same_id", FindsById, "which nobody approved"),
    ("an_error_of_the_record_store_does_not_reach_the_model", TellsWhatWentWrong, "'the secret place'"),
    ("an_answer_in_another_process_runs_the_call", ForgetsTheSession(), "of c1 the model reads None"),
    ("an_answer_in_several_processes_runs_the_call_once", RunsWithoutRecord, "paid was {'ada 5': 2}"),
    ("another_resume_key_asks_again_and_logs_why", RunsWithoutSeal, "paid was {'ada 5': 1}"),
    ("another_resume_key_asks_again_and_logs_why", asking_once(SaysThatItWaits), "the model reads 'it waits'"),
]
"""A test of the kit, a wrong run or framework, and the text of the failure."""


def framework_of(broken: type[DeskRun] | Desk, right: Desk) -> Desk:
    """The framework that is right but for this."""
    return broken if isinstance(broken, Desk) else type("Wrong", (type(right),), {"run": broken})()


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


def test_each_test_of_the_contracts_has_an_adapter_that_fails() -> None:
    assert names_of(AdapterContract, BlockingAdapterContract) == {name for name, _, _ in WRONG}


@pytest.mark.parametrize(
    ("name", "broken", "said"),
    [pytest.param(*one, marks=[pytest.mark.slow] if "another_process" in one[0] else []) for one in WRONG],
)
def test_a_wrong_adapter_fails(name: str, broken: type[DeskRun] | Desk, said: str) -> None:
    right = desk_for(name)
    run_kit_test(contract_of(right), name)
    expect_kit_failure(contract_of(framework_of(broken, right)), name, said)


@pytest.mark.parametrize("name", sorted(names_of(AdapterContract) & names_of(BlockingAdapterContract)))
def test_shared_tests_pass_for_a_blocking_adapter(name: str) -> None:
    run_kit_test(contract_of(BlockingDesk()), name)


DESK = Path(__file__).parents[1] / "support" / "desk_adapter.py"


@pytest.mark.slow
def test_the_adapter_of_the_example_passes_the_whole_contract(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    shutil.copy(DESK, tmp_path / "test_desk.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert f"{len(names_of(AdapterContract))} passed" in done.stdout, done.stdout


class Hangs(DeskRun):
    async def run_all(self) -> None:
        await asyncio.get_running_loop().create_future()


def test_a_run_that_hangs_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrule.testing.bounded.SECONDS", 0.05)
    with pytest.raises(AssertionError, match=r"the run has not ended after 0\.05 s"):
        contract_of(framework_of(Hangs, Desk())).test_a_picture_arrives_as_a_picture()


class KeepsNoRecord(DeskRun):
    """But in its own hands."""

    def adapter_of(self, runner: Runner, suspends: bool) -> Adapter:
        return Adapter(runner, "Desk", suspends=suspends, records=memory().store)


def test_an_adapter_must_store_records_in_the_journal() -> None:
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
        (Sequential(), "parallel_calls_run_at_the_same_time", "one after the other"),
        (Sequential(), "a_call_without_a_slot_becomes_a_failure", "one after the other"),
        (YesOrNo(), "a_person_can_edit_the_arguments", "a person cannot change the arguments"),
        (InOneProcess(), "an_answer_in_several_processes_runs_the_call_once", "only the process that asked"),
    ],
)
def test_an_unsupported_ability_is_skipped_with_the_reason(unable: Desk, name: str, reason: str) -> None:
    with pytest.raises(SkipTest, match=reason):
        getattr(contract_of(unable), f"test_{name}")()


def test_a_missing_hook_is_named() -> None:
    with pytest.raises(DefinitionError, match="AdapterContract needs an attribute framework = YourFramework"):
        AdapterContract().test_a_picture_arrives_as_a_picture()
    with pytest.raises(DefinitionError, match=r"FrameworkRun needs a method answer\(self, answers"):
        asyncio.run(FrameworkRun().answer({"c1": True}))
