"""`AdapterContract`: tests of the promises of every adapter to a framework, to run on your own."""

from __future__ import annotations

import copy
import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import SkipTest

from ferrule.journal import MemoryJournal, memory
from ferrule.stores.store import Memory, Store, StoreError
from ferrule.testing.adapter_calls import AdapterCalls
from ferrule.testing.bounded import in_time
from ferrule.testing.expected import capture_log, expect, read_seen
from ferrule.testing.framework import Framework, FrameworkRun, ModelView, RecordState, ScriptedCall
from ferrule.testing.world import PAY, World
from ferrule.types import Journal
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import ask
from ferrule.values.frozen import thaw

_ADA_AND_EUROS = {"to": "ada", "euros": 5}
_LONGEST_ELSEWHERE = 60.0
_RESUME_KEY, _OTHER_RESUME_KEY = b"k" * 32, b"o" * 32
_NO_EDITS = "a person cannot change the arguments"
_NO_RECORD = "no record travels with the answer"
_NOT_ELSEWHERE = "only the process that asked can be answered"


class AdapterContract(AdapterCalls):
    """Tests of the promises of every adapter to a framework in which a call can wait for a person. Derive a class, and
    pytest runs them. See docs/coming-from.md#your-own-adapter.

        class TestDesk(AdapterContract):
            framework = Desk()

    Your framework runs unchanged, under a `Framework` that drives it, with a scripted model. The adapter stores the
    records of waiting calls in the store of the runner's journal, as `ferrule.adapters.adapter` does. Each run waits
    for a minute at most. A test of something the framework cannot do is skipped, with the reason.
    """

    def run_and_answer(
        self,
        world: World,
        answers: Mapping[str, bool | dict[str, Any]],
        *calls: ScriptedCall,
        runner: dict[str, Any] | None = None,
        record: RecordState = "unchanged",
    ) -> tuple[FrameworkRun, FrameworkRun]:
        """Return the run while it waits, and after the answers; with options for its runner."""

        async def run() -> tuple[FrameworkRun, FrameworkRun]:
            driven = await self._framework().start_run(world.runner(**(runner or {})), *calls)
            waiting = copy.copy(driven)
            waiting.questions, waiting.results = dict(driven.questions), dict(driven.results)
            await driven.answer(answers, record=record)
            return waiting, driven

        return in_time(run())

    # -- answers ------------------------------------------------------------------------------------------------------

    def test_an_approved_call_runs(self) -> None:
        world = World()
        waiting, driven = self.run_and_answer(world, {"c1": True}, PAY)
        _expect_question(waiting, "pay changes things")
        expect(driven, c1=ModelView("paid 5 EUR to ada"))
        world.expect_paid({"ada 5": 1})

    def test_a_denied_call_runs_nothing_and_the_model_reads_the_denial(self) -> None:
        world = World()
        _, driven = self.run_and_answer(world, {"c1": False}, PAY)
        assert "paid" not in read_seen(driven, "c1").text, f"of a no the model reads {read_seen(driven, 'c1')}"
        world.expect_paid({})

    def test_a_person_can_edit_the_arguments(self) -> None:
        self._skip_unless(self.framework.edits, _NO_EDITS)
        world = World()
        _, driven = self.run_and_answer(world, {"c1": {"to": "ada", "euros": 4}}, PAY)
        _expect_text(driven, "paid 4 EUR to ada")
        world.expect_paid({"ada 4": 1})

    def test_an_unchanged_edit_is_an_approval(self) -> None:
        self._skip_unless(self.framework.edits, _NO_EDITS)
        world = World()
        _, driven = self.run_and_answer(world, {"c1": dict(_ADA_AND_EUROS)}, PAY)
        _expect_text(driven, "paid 5 EUR to ada")
        world.expect_paid({"ada 5": 1})

    def test_an_approval_covers_the_arguments_that_the_guards_changed(self) -> None:
        def cap_euros(call: ToolCall, context: ToolContext) -> Any:
            too_much = call.arguments["euros"] > 100
            return {**call.arguments, "euros": 100} if too_much else ask("it is money")

        world = World()
        call = ScriptedCall("c1", "pay", {"to": "ada", "euros": 500})
        if not self.framework.asks_about_changes:
            driven = self.start_run(world, call, guards=[cap_euros])
            _expect_text(driven, '"euros": 100')
            assert not driven.questions, f"a person is asked {driven.questions}"
            world.expect_paid({})
            return
        _, driven = self.run_and_answer(world, {"c1": True}, call, runner={"guards": [cap_euros]})
        expect(driven, c1=ModelView("paid 100 EUR to ada"))
        world.expect_paid({"ada 100": 1})

    def test_an_edit_of_the_arguments_is_judged_again(self) -> None:
        self._skip_unless(self.framework.edits, _NO_EDITS)
        world = World()
        _, driven = self.run_and_answer(world, {"c1": {"to": "ada", "euros": "many"}}, PAY)
        read = driven.results.get("c1", ModelView(""))
        assert "paid" not in read.text, f"of what cannot be paid the model reads {read}"
        world.expect_paid({})

    def test_a_repeated_answer_runs_the_call_once(self) -> None:
        async def run() -> None:
            driven = await self._framework().start_run(world.runner(), ScriptedCall("c1", "pay", {"to": "ada"}))
            await driven.answer({"c1": True})
            await driven.answer({"c1": True})

        world = World()
        in_time(run())
        world.expect_paid({"ada 1": 1})

    # -- several calls ------------------------------------------------------------------------------------------------

    def test_each_of_two_answers_reaches_its_own_call(self) -> None:
        async def run() -> FrameworkRun:
            calls = ScriptedCall("c0", "look", {"name": "x"}), PAY, ScriptedCall("c2", "pay", {"to": "bob", "euros": 6})
            driven = await self._framework().start_run(world.runner(), *calls)
            for _ in range(3):  # some frameworks ask one after the other
                if driven.questions:
                    await driven.answer({call_id: call_id == "c1" for call_id in driven.questions})
            return driven

        world = World()
        driven = in_time(run())
        assert not driven.questions, f"all is answered, and {driven.questions} is asked"
        expect(driven, c0=ModelView("saw x"), c1=ModelView("paid 5 EUR to ada"))
        assert "paid" not in read_seen(driven, "c2").text, f"of a no the model reads {read_seen(driven, 'c2')}"
        world.expect_paid({"ada 5": 1})

    def test_an_ended_call_does_not_run_again_when_a_sibling_is_answered(self) -> None:
        def for_bob(call: ToolCall, context: ToolContext) -> Any:
            return ask("bob is new") if call.arguments.get("to") == "bob" else None

        world = World()
        calls = ScriptedCall("c1", "pay", {"to": "ada"}), ScriptedCall("c2", "pay", {"to": "bob"})
        _, driven = self.run_and_answer(world, {"c2": True}, *calls, runner={"guards": [for_bob]})
        expect(driven, c1=ModelView("paid 1 EUR to ada"), c2=ModelView("paid 1 EUR to bob"))
        world.expect_paid({"ada 1": 1, "bob 1": 1})

    # -- records ------------------------------------------------------------------------------------------------------

    def test_a_changed_record_does_not_change_the_call(self) -> None:
        self._skip_unless(self.framework.brings_record, _NO_RECORD)
        world = World()
        self.run_and_answer(world, {"c1": True}, PAY, record="changed")
        world.expect_paid({})

    def test_an_answer_without_its_record_uses_the_stored_one(self) -> None:
        self._skip_unless(self.framework.knows_calls, "no call is known without its record")
        world = World()
        _, driven = self.run_and_answer(world, {"c1": True}, ScriptedCall("c1", "pay", {"to": "ada"}), record="lost")
        expect(driven, c1=ModelView("paid 1 EUR to ada"))
        world.expect_paid({"ada 1": 1})

    def test_a_call_answered_elsewhere_does_not_run_again(self) -> None:
        """Another process with the same journal is an example."""

        async def run(other: bool) -> FrameworkRun:
            journal = memory()
            runner = world.runner(journal=journal)
            driven = await self._framework().start_run(runner, PAY)
            kept = list(_records(journal.store).values())
            assert len(kept) == 1, f"the store of the journal keeps {kept}, and not the record of one call that waits"
            await runner.resume(kept[0], other)
            await driven.answer({"c1": True})
            return driven

        self._skip_unless(self.framework.brings_record, _NO_RECORD)
        for other in (True, False):
            world = World()
            driven = in_time(run(other))
            world.expect_paid({"ada 5": 1} if other else {})
            read = read_seen(driven, "c1")
            assert ("paid 5 EUR to ada" in read.text) is other, f"the other said {other}, and the model reads {read}"

    def test_an_answer_without_a_record_is_asked_again(self) -> None:
        """The record is neither in the answer nor in the store."""

        async def run() -> FrameworkRun:
            journal = memory()
            driven = await self._framework().start_run(world.runner(journal=journal), PAY)
            _forget_records(journal.store)
            await driven.answer({"c1": True}, record="lost")
            return driven

        self._skip_unless(self.framework.brings_record, _NO_RECORD)
        world = World()
        driven = in_time(run())
        world.expect_paid({})
        if self.framework.asks_once:
            _expect_text(driven, "make the call again")
        else:
            assert "c1" in driven.questions, f"nobody is asked again; the model reads {driven.results}"

    def test_a_lost_record_lets_no_call_run(self) -> None:
        """The memory of the guards may be lost with the record, such as by a restart."""

        async def run(answer: bool) -> FrameworkRun:
            tainted, journal = {"s"}, memory()
            guards = [lambda call, context: ask("it is tainted") if tainted else None]
            driven = await self._framework().start_run(world.runner(guards=guards, journal=journal), PAY)
            tainted.clear()
            _forget_records(journal.store)
            await driven.answer({"c1": answer}, record="lost" if self.framework.brings_record else "unchanged")
            return driven

        for answer in (False, True):
            world = World()
            driven = in_time(run(answer))
            if answer and (self.framework.waits_with_record or self.framework.holds_yes):
                expect(driven, c1=ModelView("paid 5 EUR to ada"))
                continue
            world.expect_paid({})
            if answer and not self.framework.asks_once:
                _expect_question(driven)

    def test_an_approval_does_not_cover_another_call_with_the_same_id(self) -> None:
        """A call of an earlier turn is an example: some servers count from `call_0` in each."""

        async def run() -> FrameworkRun:
            journal = memory()
            runner = world.runner(journal=journal)
            driven = await self._framework().start_run(runner, PAY)
            for key, kept in _records(journal.store).items():
                asked = kept["pending"]["context"]
                context = ToolContext(principal=asked["principal"], session=asked["session"])
                earlier = await runner.replace(approve=lambda call, decision, context: decision).run(
                    ToolCall(kept["pending"]["call"]["id"], "pay", {"to": "eve", "euros": 500}), context
                )
                assert journal.store.compare_and_set(key, kept, {**kept, "pending": thaw(earlier.pending)})
            await driven.answer({"c1": True}, record="lost" if self.framework.brings_record else "unchanged")
            return driven

        world = World()
        driven = in_time(run())
        assert "eve 500" not in world.paid, f"paid was {dict(world.paid)}, which nobody approved"
        asked_about = {question.arguments["to"] for question in driven.questions.values()}
        assert asked_about <= {"ada"}, f"a person is asked about a call to {asked_about}, and not to ada"

    def test_an_error_of_the_record_store_does_not_reach_the_model(self) -> None:
        """The error ends the run, or is a failure without its text."""
        world = World()
        try:
            driven = self.start_run(world, ScriptedCall("c1", "pay", {"to": "ada"}), journal=_Broken())
        except Exception:
            return
        read = read_seen(driven, "c1")
        assert read.failed and "secret" not in read.text, f"where no record could be kept, the model reads {read}"
        world.expect_paid({})
        assert not driven.questions, f"a person is asked {driven.questions}, whose answer cannot be taken"

    # -- other processes ----------------------------------------------------------------------------------------------

    def test_an_answer_in_another_process_runs_the_call(self) -> None:
        async def start_here(path: Path) -> Any:
            with closing(Journal.open(path)) as journal:
                runner = world.runner(journal=journal, resume_key=_RESUME_KEY)
                return self._framework().export_run(await self._framework().start_run(runner, PAY))

        self._skip_unless(self.framework.stores_data, "what is stored is a service")
        world = World()
        with TemporaryDirectory() as folder, ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as another:
            path = Path(folder, "calls.db")
            run_and_answer = another.submit(answer_here, self._framework(), path, in_time(start_here(path)))
            results = run_and_answer.result(_LONGEST_ELSEWHERE)
        assert results.get("c1") == ModelView("paid 5 EUR to ada"), f"of c1 the model reads {results.get('c1')}"
        world.expect_paid({})

    def test_an_answer_in_several_processes_runs_the_call_once(self) -> None:
        for record in self._list_record_states():
            world = World()
            driven = self._answer_elsewhere(world, [_RESUME_KEY] * 3, record)
            expect(driven, c1=ModelView("paid 5 EUR to ada"))
            world.expect_paid({"ada 5": 1})

    def test_another_resume_key_asks_again_and_logs_why(
        self,
    ) -> None:
        for record in self._list_record_states():
            world = World()
            with capture_log() as log_lines:
                driven = self._answer_elsewhere(world, [_RESUME_KEY, _OTHER_RESUME_KEY], record)
            world.expect_paid({})
            assert "resume_key" in "\n".join(log_lines), f"the log says nothing of a resume_key; it says {log_lines}"
            if self.framework.asks_once:
                read = read_seen(driven, "c1").text
                assert "again" in read and "resume_key" not in read, f"the model reads {read!r}"
            else:
                _expect_question(driven)

    # -- running ------------------------------------------------------------------------------------------------------

    def _list_record_states(self) -> list[RecordState]:
        """Return the states of the record that can reach another process."""
        brought = self.framework.brings_record and self.framework.knows_calls
        return ["unchanged", "lost"] if brought else ["unchanged"]

    def _answer_elsewhere(self, world: World, keys: Sequence[bytes], record: RecordState) -> FrameworkRun:
        """Return the run after one yes in each process but the first. The first process asks. Each has a runner of its
        own, with this `resume_key`.
        """

        async def run(path: Path) -> FrameworkRun | None:
            with closing(Journal.open(path)) as journal:
                runner = world.runner(journal=journal, resume_key=keys[0])
                stored = self._framework().export_run(await self._framework().start_run(runner, PAY))
            driven: FrameworkRun | None = None
            for key in () if stored is None else keys[1:]:
                with closing(Journal.open(path)) as journal:
                    runner = world.runner(journal=journal, resume_key=key)
                    driven = await self._framework().import_run(runner, stored)
                    await driven.answer({"c1": True}, record=record)
            return driven

        with TemporaryDirectory() as folder:
            driven = in_time(run(Path(folder, "calls.db")))
        if driven is None:
            raise SkipTest(_NOT_ELSEWHERE)
        return driven


def answer_here(framework: Framework, path: Path, stored: Any) -> dict[str, ModelView]:
    """Return the results that the model reads if the waiting call is approved in this process."""

    async def run() -> FrameworkRun:
        with closing(Journal.open(path)) as journal:
            driven = await framework.import_run(world.runner(journal=journal, resume_key=_RESUME_KEY), stored)
            await driven.answer({"c1": True})
            return driven

    world = World()
    return in_time(run()).results


def _expect_text(driven: FrameworkRun, text: str) -> None:
    """Fail if the model does not read this text of the first call."""
    read = read_seen(driven, "c1")
    assert text in read.text, f"of c1 the model reads {read}, where {text!r} is not said"


def _expect_question(driven: FrameworkRun, reason: str = "") -> None:
    """Fail if nobody is asked whether ada may be paid, for this reason."""
    question = driven.questions.get("c1")
    assert question is not None, f"nobody is asked about c1; asked is {driven.questions}, and read {driven.results}"
    assert dict(question.arguments) == _ADA_AND_EUROS, f"a person is shown {dict(question.arguments)}"
    assert reason in question.reason, f"a person is told {question.reason!r}, where {reason!r} is not said"


def _records(store: Store) -> dict[str, Any]:
    """Return the records of waiting calls by their keys."""
    return {key: value for key, value in store.items().items() if isinstance(value, Mapping) and "pending" in value}


def _forget_records(store: Store) -> None:
    for key, record in _records(store).items():
        assert store.compare_and_set(key, record, None)


class _Broken(MemoryJournal):
    """A journal with a store that cannot be written."""

    @property
    def store(self) -> Memory:
        return _BrokenStore()


class _BrokenStore(Memory):
    def compare_and_set(self, key: str, old: Any, new: Any) -> bool:
        raise StoreError("the secret place")
