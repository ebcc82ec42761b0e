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
from ferrule.testing.expected import expect, logged, seen_of
from ferrule.testing.framework import Driven, Framework, RecordState, Said, Seen
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

    def answered(
        self,
        world: World,
        answers: Mapping[str, bool | dict[str, Any]],
        *calls: Said,
        runner: dict[str, Any] | None = None,
        record: RecordState = "kept",
    ) -> tuple[Driven, Driven]:
        """Return the run while it waits, and after the answers; with options for its runner."""

        async def run() -> tuple[Driven, Driven]:
            driven = await self._framework().drive(world.runner(**(runner or {})), *calls)
            waiting = copy.copy(driven)
            waiting.questions, waiting.results = dict(driven.questions), dict(driven.results)
            await driven.answer(answers, record=record)
            return waiting, driven

        return in_time(run())

    # -- answers ------------------------------------------------------------------------------------------------------

    def test_an_ask_waits_for_a_person_and_runs_when_it_is_approved(self) -> None:
        world = World()
        waiting, driven = self.answered(world, {"c1": True}, PAY)
        _expect_question(waiting, "pay changes things")
        expect(driven, c1=Seen("paid 5 EUR to ada"))
        world.expect_paid({"ada 5": 1})

    def test_a_no_runs_nothing_and_the_model_reads_it(self) -> None:
        world = World()
        _, driven = self.answered(world, {"c1": False}, PAY)
        assert "paid" not in seen_of(driven, "c1").text, f"of a no the model reads {seen_of(driven, 'c1')}"
        world.expect_paid({})

    def test_a_person_may_change_what_runs(self) -> None:
        self._only_where(self.framework.edits, _NO_EDITS)
        world = World()
        _, driven = self.answered(world, {"c1": {"to": "ada", "euros": 4}}, PAY)
        _expect_text(driven, "paid 4 EUR to ada")
        world.expect_paid({"ada 4": 1})

    def test_an_edit_that_changes_nothing_is_a_yes(self) -> None:
        self._only_where(self.framework.edits, _NO_EDITS)
        world = World()
        _, driven = self.answered(world, {"c1": dict(_ADA_AND_EUROS)}, PAY)
        _expect_text(driven, "paid 5 EUR to ada")
        world.expect_paid({"ada 5": 1})

    def test_a_yes_is_one_to_what_the_guards_made_of_the_call(self) -> None:
        def capped(call: ToolCall, context: ToolContext) -> Any:
            too_much = call.arguments["euros"] > 100
            return {**call.arguments, "euros": 100} if too_much else ask("it is money")

        world = World()
        call = Said("c1", "pay", {"to": "ada", "euros": 500})
        if not self.framework.asks_about_changes:
            driven = self.drive(world, call, guards=[capped])
            _expect_text(driven, '"euros": 100')
            assert not driven.questions, f"a person is asked {driven.questions}"
            world.expect_paid({})
            return
        _, driven = self.answered(world, {"c1": True}, call, runner={"guards": [capped]})
        expect(driven, c1=Seen("paid 100 EUR to ada"))
        world.expect_paid({"ada 100": 1})

    def test_what_a_person_changes_is_judged_again(self) -> None:
        self._only_where(self.framework.edits, _NO_EDITS)
        world = World()
        _, driven = self.answered(world, {"c1": {"to": "ada", "euros": "many"}}, PAY)
        read = driven.results.get("c1", Seen(""))
        assert "paid" not in read.text, f"of what cannot be paid the model reads {read}"
        world.expect_paid({})

    def test_an_answer_that_comes_twice_runs_once(self) -> None:
        async def run() -> None:
            driven = await self._framework().drive(world.runner(), Said("c1", "pay", {"to": "ada"}))
            await driven.answer({"c1": True})
            await driven.answer({"c1": True})

        world = World()
        in_time(run())
        world.expect_paid({"ada 1": 1})

    # -- several calls ------------------------------------------------------------------------------------------------

    def test_each_of_two_answers_reaches_its_own_call_beside_a_sibling_that_has_ended(self) -> None:
        async def run() -> Driven:
            calls = Said("c0", "look", {"name": "x"}), PAY, Said("c2", "pay", {"to": "bob", "euros": 6})
            driven = await self._framework().drive(world.runner(), *calls)
            for _ in range(3):  # some frameworks ask one after the other
                if driven.questions:
                    await driven.answer({call_id: call_id == "c1" for call_id in driven.questions})
            return driven

        world = World()
        driven = in_time(run())
        assert not driven.questions, f"all is answered, and {driven.questions} is asked"
        expect(driven, c0=Seen("saw x"), c1=Seen("paid 5 EUR to ada"))
        assert "paid" not in seen_of(driven, "c2").text, f"of a no the model reads {seen_of(driven, 'c2')}"
        world.expect_paid({"ada 5": 1})

    def test_a_call_that_changed_something_and_ended_is_not_run_again_when_a_sibling_is_answered(self) -> None:
        def for_bob(call: ToolCall, context: ToolContext) -> Any:
            return ask("bob is new") if call.arguments.get("to") == "bob" else None

        world = World()
        calls = Said("c1", "pay", {"to": "ada"}), Said("c2", "pay", {"to": "bob"})
        _, driven = self.answered(world, {"c2": True}, *calls, runner={"guards": [for_bob]})
        expect(driven, c1=Seen("paid 1 EUR to ada"), c2=Seen("paid 1 EUR to bob"))
        world.expect_paid({"ada 1": 1, "bob 1": 1})

    # -- records ------------------------------------------------------------------------------------------------------

    def test_an_answer_with_a_record_that_was_changed_runs_nothing_but_what_was_asked(self) -> None:
        self._only_where(self.framework.brings_record, _NO_RECORD)
        world = World()
        self.answered(world, {"c1": True}, PAY, record="changed")
        world.expect_paid({})

    def test_an_answer_whose_record_is_kept_here_needs_none_that_comes_along(self) -> None:
        self._only_where(self.framework.knows_calls, "no call is known without its record")
        world = World()
        _, driven = self.answered(world, {"c1": True}, Said("c1", "pay", {"to": "ada"}), record="lost")
        expect(driven, c1=Seen("paid 1 EUR to ada"))
        world.expect_paid({"ada 1": 1})

    def test_an_answer_to_a_call_that_somebody_else_has_answered_runs_nothing_more(self) -> None:
        """Another process with the same journal is an example."""

        async def run(other: bool) -> Driven:
            journal = memory()
            runner = world.runner(journal=journal)
            driven = await self._framework().drive(runner, PAY)
            kept = list(_records(journal.store).values())
            assert len(kept) == 1, f"the store of the journal keeps {kept}, and not the record of one call that waits"
            await runner.resume(kept[0], other)
            await driven.answer({"c1": True})
            return driven

        self._only_where(self.framework.brings_record, _NO_RECORD)
        for other in (True, False):
            world = World()
            driven = in_time(run(other))
            world.expect_paid({"ada 5": 1} if other else {})
            read = seen_of(driven, "c1")
            assert ("paid 5 EUR to ada" in read.text) is other, f"the other said {other}, and the model reads {read}"

    def test_an_answer_without_any_record_is_asked_again(self) -> None:
        """The record is neither in the answer nor in the store."""

        async def run() -> Driven:
            journal = memory()
            driven = await self._framework().drive(world.runner(journal=journal), PAY)
            _forget_records(journal.store)
            await driven.answer({"c1": True}, record="lost")
            return driven

        self._only_where(self.framework.brings_record, _NO_RECORD)
        world = World()
        driven = in_time(run())
        world.expect_paid({})
        if self.framework.asks_once:
            _expect_text(driven, "make the call again")
        else:
            assert "c1" in driven.questions, f"nobody is asked again; the model reads {driven.results}"

    def test_a_record_that_is_gone_lets_no_call_run_because_the_guards_ask_no_more(self) -> None:
        """The memory of the guards may be lost with the record, such as by a restart."""

        async def run(answer: bool) -> Driven:
            tainted, journal = {"s"}, memory()
            guards = [lambda call, context: ask("it is tainted") if tainted else None]
            driven = await self._framework().drive(world.runner(guards=guards, journal=journal), PAY)
            tainted.clear()
            _forget_records(journal.store)
            await driven.answer({"c1": answer}, record="lost" if self.framework.brings_record else "kept")
            return driven

        for answer in (False, True):
            world = World()
            driven = in_time(run(answer))
            if answer and (self.framework.waits_with_record or self.framework.holds_yes):
                expect(driven, c1=Seen("paid 5 EUR to ada"))
                continue
            world.expect_paid({})
            if answer and not self.framework.asks_once:
                _expect_question(driven)

    def test_a_yes_is_none_to_another_call_that_had_the_same_id(self) -> None:
        """A call of an earlier turn is an example: some servers count from `call_0` in each."""

        async def run() -> Driven:
            journal = memory()
            runner = world.runner(journal=journal)
            driven = await self._framework().drive(runner, PAY)
            for key, kept in _records(journal.store).items():
                told = kept["pending"]["context"]
                context = ToolContext(principal=told["principal"], session=told["session"])
                earlier = await runner.replace(approve=lambda call, decision, context: decision).run(
                    ToolCall(kept["pending"]["call"]["id"], "pay", {"to": "eve", "euros": 500}), context
                )
                assert journal.store.compare_and_set(key, kept, {**kept, "pending": thaw(earlier.pending)})
            await driven.answer({"c1": True}, record="lost" if self.framework.brings_record else "kept")
            return driven

        world = World()
        driven = in_time(run())
        assert "eve 500" not in world.paid, f"paid was {dict(world.paid)}, which nobody approved"
        asked = {question.arguments["to"] for question in driven.questions.values()}
        assert asked <= {"ada"}, f"a person is asked about a call to {asked}, and not to ada"

    def test_what_goes_wrong_where_records_are_kept_is_told_to_no_model(self) -> None:
        """The error ends the run, or is a failure without its text."""
        world = World()
        try:
            driven = self.drive(world, Said("c1", "pay", {"to": "ada"}), journal=_Broken())
        except Exception:
            return
        read = seen_of(driven, "c1")
        assert read.failed and "secret" not in read.text, f"where no record could be kept, the model reads {read}"
        world.expect_paid({})
        assert not driven.questions, f"a person is asked {driven.questions}, whose answer cannot be taken"

    # -- other processes ----------------------------------------------------------------------------------------------

    def test_an_answer_that_comes_to_a_process_of_its_own_runs_what_was_asked(self) -> None:
        async def asked(path: Path) -> Any:
            with closing(Journal.open(path)) as journal:
                runner = world.runner(journal=journal, resume_key=_RESUME_KEY)
                return self._framework().stored(await self._framework().drive(runner, PAY))

        self._only_where(self.framework.stores_data, "what is stored is a service")
        world = World()
        with TemporaryDirectory() as folder, ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as another:
            path = Path(folder, "calls.db")
            answered = another.submit(answered_here, self._framework(), path, in_time(asked(path)))
            results = answered.result(_LONGEST_ELSEWHERE)
        assert results.get("c1") == Seen("paid 5 EUR to ada"), f"of c1 the model reads {results.get('c1')}"
        world.expect_paid({})

    def test_an_answer_that_comes_to_other_processes_runs_once_what_was_asked(self) -> None:
        for record in self._records_elsewhere():
            world = World()
            driven = self._answered_elsewhere(world, [_RESUME_KEY] * 3, record)
            expect(driven, c1=Seen("paid 5 EUR to ada"))
            world.expect_paid({"ada 5": 1})

    def test_an_answer_that_comes_to_a_process_with_another_resume_key_is_asked_again_and_the_log_says_why(
        self,
    ) -> None:
        for record in self._records_elsewhere():
            world = World()
            with logged() as told:
                driven = self._answered_elsewhere(world, [_RESUME_KEY, _OTHER_RESUME_KEY], record)
            world.expect_paid({})
            assert "resume_key" in "\n".join(told), f"the log says nothing of a resume_key; it says {told}"
            if self.framework.asks_once:
                read = seen_of(driven, "c1").text
                assert "again" in read and "resume_key" not in read, f"the model reads {read!r}"
            else:
                _expect_question(driven)

    # -- running ------------------------------------------------------------------------------------------------------

    def _records_elsewhere(self) -> list[RecordState]:
        """Return the states of the record that can reach another process."""
        brought = self.framework.brings_record and self.framework.knows_calls
        return ["kept", "lost"] if brought else ["kept"]

    def _answered_elsewhere(self, world: World, keys: Sequence[bytes], record: RecordState) -> Driven:
        """Return the run after one yes in each process but the first. The first process asks. Each has a runner of its
        own, with this `resume_key`.
        """

        async def run(path: Path) -> Driven | None:
            with closing(Journal.open(path)) as journal:
                runner = world.runner(journal=journal, resume_key=keys[0])
                stored = self._framework().stored(await self._framework().drive(runner, PAY))
            driven: Driven | None = None
            for key in () if stored is None else keys[1:]:
                with closing(Journal.open(path)) as journal:
                    runner = world.runner(journal=journal, resume_key=key)
                    driven = await self._framework().elsewhere(runner, stored)
                    await driven.answer({"c1": True}, record=record)
            return driven

        with TemporaryDirectory() as folder:
            driven = in_time(run(Path(folder, "calls.db")))
        if driven is None:
            raise SkipTest(_NOT_ELSEWHERE)
        return driven


def answered_here(framework: Framework, path: Path, stored: Any) -> dict[str, Seen]:
    """Return the results that the model reads if the waiting call is approved in this process."""

    async def run() -> Driven:
        with closing(Journal.open(path)) as journal:
            driven = await framework.elsewhere(world.runner(journal=journal, resume_key=_RESUME_KEY), stored)
            await driven.answer({"c1": True})
            return driven

    world = World()
    return in_time(run()).results


def _expect_text(driven: Driven, text: str) -> None:
    """Fail if the model does not read this text of the first call."""
    read = seen_of(driven, "c1")
    assert text in read.text, f"of c1 the model reads {read}, where {text!r} is not said"


def _expect_question(driven: Driven, reason: str = "") -> None:
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
