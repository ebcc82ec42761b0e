"""`JournalContract`: tests of the promises of every journal, to run on your own."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from ferrule.errors import DefinitionError
from ferrule.testing.bounded import SECONDS, bounded, in_time, make_test
from ferrule.types import Journal
from ferrule.values.call import ToolCall
from ferrule.values.event import Event
from ferrule.values.frozen import JsonObject, freeze
from ferrule.values.journal_entry import Intent, JournalEntry
from ferrule.values.result import ToolResult

_T = TypeVar("_T")

_ODD_TEXT = "é 文 🙂 \0 \x1f \x7f \u2028 \u202e \ud800 ' \" \\ % ; -- NULL"
_UNKNOWN: JsonObject = {"status": "timeout", "executed": None}
_OUTCOME: JsonObject = {"status": "ok", "output": {"paid": 7}}
_OTHER_OUTCOME: JsonObject = {"status": "failed", "output": None, "error": "no"}
_ODD_JSON: JsonObject = {
    "status": "ok",
    "output": [None, True, False, 0, -1, 2**53 + 1, 10**40, 0.1, 1e300, -0.0, "", _ODD_TEXT, [[[]]], {"": {"a": []}}],
    _ODD_TEXT: _ODD_TEXT,
    "content": [{"text": _ODD_TEXT}],
}
_START = 1_700_000_000.25
_numbers = itertools.count(1)


_journal_test = make_test(lambda self, check: self._run(check))


class JournalContract:
    """Tests of the promises of every journal. Derive a class, and pytest runs them. See docs/journal.md#your-own.

        class TestPostgres(JournalContract):
            def make(self):
                return PostgresJournal(new_database())

            def second(self, journal):
                return PostgresJournal(journal.address)

            def reopen(self, journal):
                journal.close()
                return PostgresJournal(journal.address)

    Each test makes journals of its own and closes them; each waits for a minute at most. The tests use the journals in
    several loops and threads, as several runners would.
    """

    def make(self) -> Journal:
        """Make a new, empty journal, outside of any loop."""
        raise DefinitionError(f"{type(self).__name__} needs a method make(self) that gives a new, empty journal")

    def second(self, journal: Journal) -> Journal:
        """Return another journal on the same data, as a second process has it; `journal` itself if there can be no
        second one.
        """
        raise DefinitionError(f"{type(self).__name__} needs a method second(self, journal)")

    def reopen(self, journal: Journal) -> Journal:
        """Return the journal that a new process finds after the process of `journal` has died. `journal` is not used
        any more.
        """
        raise DefinitionError(f"{type(self).__name__} needs a method reopen(self, journal)")

    # Stored calls

    @_journal_test
    async def test_an_unknown_key_has_no_entry(self, journal: Journal) -> None:
        assert isinstance(journal, Journal), f"{journal!r} is no subclass of ferrule.Journal"
        await journal.begin(_new_intent())
        for wait in (False, True):
            found = await journal.find("0" * 32, wait=wait)
            assert found is None, f"find gave {found!r} for a key that is not there"
        _check_unfinished(await journal.unfinished(), [])

    @_journal_test
    async def test_a_begun_call_is_stored_unchanged(self, journal: Journal) -> None:
        plain = _new_intent()
        text = _ODD_TEXT
        strange = _new_intent(
            call_id=text,
            tool_name=text,
            principal=text,
            session=text,
            parent=text,
            fingerprint=text,
            arguments=_ODD_JSON,
        )
        big = _new_intent(arguments={"text": "x" * 5_000_000, "list": list(range(100_000))})
        for intent in (plain, strange, big):
            _check_begun(await journal.begin(intent))
        for intent in (plain, strange, big):
            for one in (journal, self._open_second(journal)):
                _check_entry(await one.find(intent.key), JournalEntry(intent=intent, state="running"))

    @_journal_test
    async def test_an_outcome_is_stored_unchanged(self, journal: Journal) -> None:
        big: JsonObject = {"status": "ok", "output": _ODD_TEXT * 200_000}
        for outcome in (_OUTCOME, _OTHER_OUTCOME, _ODD_JSON, freeze(_ODD_JSON), big):
            intent = await _begin_call(journal)
            await journal.end(intent, outcome)
            for one in (journal, self._open_second(journal)):
                for wait in (False, True):
                    _check_entry(
                        await one.find(intent.key, wait=wait),
                        JournalEntry(intent=intent, state="ended", outcome=outcome),
                    )

    @_journal_test
    async def test_later_changes_do_not_reach_the_journal(self, journal: Journal) -> None:
        arguments: dict[str, Any] = {"list": [1]}
        outcome: dict[str, Any] = {"status": "ok", "output": [1]}
        intent = _new_intent(arguments=arguments)
        expected = copy.deepcopy(JournalEntry(intent=intent, state="ended", outcome=outcome))
        await journal.begin(intent)
        await journal.end(intent, outcome)
        arguments["list"].append(2)
        outcome["output"].append(2)
        found = await journal.find(intent.key)
        _check_entry(found, expected)
        assert found is not None and found.outcome is not None
        for value in (found.outcome["output"], found.intent.arguments["list"]):
            _try_to_append(value)
        _check_entry(await journal.find(intent.key), expected)

    @_journal_test
    async def test_an_outcome_that_is_no_json_is_refused(self, journal: Journal) -> None:
        intent = await _begin_call(journal)
        for wrong in (object(), float("nan"), {1, 2}):
            try:
                await journal.end(intent, {"status": "ok", "output": wrong})
            except Exception:
                continue
            raise AssertionError(f"it took {wrong!r} in an outcome, which no other program can read")
        _check_entry(await journal.find(intent.key), JournalEntry(intent=intent, state="running"))
        await journal.end(intent, _OUTCOME)
        _check_entry(await journal.find(intent.key), JournalEntry(intent=intent, state="ended", outcome=_OUTCOME))

    # The owner of a call

    @_journal_test
    async def test_a_known_key_does_not_begin_again_and_its_entry_is_returned(self, journal: Journal) -> None:
        intent = await _begin_call(journal)
        for outcome in (None, _OUTCOME):
            if outcome is not None:
                await journal.end(intent, outcome)
            expected = JournalEntry(intent=intent, state="ended" if outcome else "running", outcome=outcome)
            for after in (None, expected, replace(expected, state="cut_off")):
                for one in (journal, self._open_second(journal)):
                    begun = await one.begin(_repeat_intent(intent), after=after)
                    _check_entry(begun.earlier, expected)
                    _check_entry(await journal.find(intent.key), expected)

    @_journal_test
    async def test_the_same_claim_can_begin_a_call_again(self, journal: Journal) -> None:
        intent = await _begin_call(journal)
        changed = replace(intent, arguments={"amount": 8}, fingerprint="another", at=_START + 1)
        _check_begun(await journal.begin(changed))
        _check_entry(await journal.find(intent.key), JournalEntry(intent=changed, state="running"))

    def test_only_one_of_a_hundred_concurrent_callers_begins_a_key(self) -> None:
        journal = self.make()
        both = [journal, self._open_second(journal)]
        first = _new_intent()

        async def begin(place: int) -> list[Any]:
            intents = [_repeat_intent(first) for _ in range(25)]
            return await _gather(both[(place + at) % 2].begin(intent) for at, intent in enumerate(intents))

        try:
            begun = [one for many in _in_threads(4, begin) for one in many]
            ours = [one for one in begun if one.earlier is None]
            assert len(ours) == 1, f"{len(ours)} of a hundred were told that the call is theirs"
            entry = in_time(journal.find(first.key))
            assert entry is not None
            for one in begun:
                if one.earlier is not None:
                    # The loop of the first may be closed.
                    _check_entry(one.earlier, replace(entry, state=one.earlier.state, may_go_on=one.earlier.may_go_on))
        finally:
            self._close(*both)

    @_journal_test
    async def test_another_claim_cannot_end_or_forget_a_call(self, journal: Journal) -> None:
        intent = await _begin_call(journal)
        for one in (journal, self._open_second(journal)):
            for outcome in (_OTHER_OUTCOME, None):
                await one.end(_repeat_intent(intent), outcome)
                _check_entry(await journal.find(intent.key), JournalEntry(intent=intent, state="running"))
        await journal.end(intent, _OUTCOME)
        for outcome in (_OTHER_OUTCOME, None):
            await journal.end(_repeat_intent(intent), outcome)
            _check_entry(await journal.find(intent.key), JournalEntry(intent=intent, state="ended", outcome=_OUTCOME))

    @_journal_test
    async def test_ending_an_unknown_call_does_nothing(self, journal: Journal) -> None:
        intent = _new_intent()
        for outcome in (_OUTCOME, None):
            await journal.end(intent, outcome)
            assert await journal.find(intent.key) is None, "an end made a call that was never begun"

    @_journal_test
    async def test_a_forgotten_call_can_begin_anew(self, journal: Journal) -> None:
        intent = await _begin_call(journal)
        await journal.end(intent, None)
        assert await journal.find(intent.key) is None, "it is kept, and was to be forgotten"
        another = _repeat_intent(intent)
        _check_begun(await self._open_second(journal).begin(another))
        _check_entry(await journal.find(intent.key), JournalEntry(intent=another, state="running"))

    @_journal_test
    async def test_other_arguments_with_the_same_reference_are_reported(self, journal: Journal) -> None:
        first = _new_intent()
        another = _new_intent(reference=first.reference)
        begun = [await journal.begin(first), await journal.begin(_repeat_intent(first)), await journal.begin(first)]
        assert not any(one.other_arguments for one in begun), "the same key is told as other arguments"
        await journal.end(first, _OUTCOME)
        for again in range(2):
            assert (await journal.begin(another)).other_arguments, f"begun {again + 1} times, and nothing was told"
        assert (await journal.begin(_repeat_intent(first))).other_arguments, "of the first one nothing was told"
        assert not (await journal.begin(_new_intent())).other_arguments, "of another reference"
        await journal.end(another, None)
        assert not (await journal.begin(_repeat_intent(first))).other_arguments, "of one that was forgotten"

    # After a process has died

    def test_a_call_of_a_dead_process_is_cut_off_and_others_are_unchanged(self) -> None:
        async def before(journal: Journal) -> list[JournalEntry]:
            ended, deferred, running = [await _begin_call(journal) for _ in range(3)]
            await journal.end(ended, _OUTCOME)
            await journal.end(deferred, _make_deferred())
            await journal.end(await _begin_call(journal), None)
            return [
                JournalEntry(intent=ended, state="ended", outcome=_OUTCOME),
                JournalEntry(intent=deferred, state="deferred", outcome=_make_deferred()),
                JournalEntry(intent=running, state="cut_off"),
            ]

        async def after(journal: Journal, expected: list[JournalEntry]) -> None:
            for entry in expected:
                for wait in (False, True):
                    _check_entry(await journal.find(entry.intent.key, wait=wait), entry)
                _check_entry((await journal.begin(_repeat_intent(entry.intent))).earlier, entry)
            _check_unfinished(await journal.unfinished(), expected[1:])

        self._run_twice(before, after)

    def test_a_cut_off_call_begins_again_once(self) -> None:
        async def after(journal: Journal, old: Intent) -> None:
            read = await journal.find(old.key)
            begun = await _gather(journal.begin(_repeat_intent(old), after=read) for _ in range(100))
            assert sum(one.earlier is None for one in begun) == 1, "not exactly one of a hundred has it"
            entry = await journal.find(old.key)
            assert entry is not None and entry.state == "running", f"it was begun, and {entry!r} is kept"
            for outcome in (_OTHER_OUTCOME, None):
                await journal.end(old, outcome)  # as a process that was thought dead might
                _check_entry(await journal.find(old.key), entry)
            _check_unfinished(await journal.unfinished(), [])
            await journal.end(entry.intent, _OUTCOME)
            _check_entry(await journal.find(old.key), replace(entry, state="ended", outcome=_OUTCOME))

        self._run_twice(_begin_call, after)

    @_journal_test
    async def test_a_deferred_call_begins_again_once_for_a_current_entry(self, journal: Journal) -> None:
        intent = await _begin_call(journal)
        await journal.end(intent, _make_deferred(poll_at=1.5))
        first = await journal.find(intent.key)
        assert first is not None and await journal.settle(first, _make_deferred(poll_at=2.5))
        entry = JournalEntry(intent=intent, state="deferred", outcome=_make_deferred(poll_at=2.5))
        for wrong in (None, first, replace(entry, state="cut_off"), replace(entry, intent=_repeat_intent(intent))):
            _check_entry((await journal.begin(_repeat_intent(intent), after=wrong)).earlier, entry)
        both = [self._open_second(journal), journal]
        begun = await _gather(both[at % 2].begin(_repeat_intent(intent), after=entry) for at in range(100))
        assert sum(one.earlier is None for one in begun) == 1, "not exactly one of a hundred has it"
        found = await journal.find(intent.key)
        assert found is not None and (found.state, found.outcome) == ("running", None), f"it runs, and is {found!r}"
        _check_unfinished(await journal.unfinished(), [])
        _check_unfinished(await journal.unfinished(ticket="t1"), [])

    # Later settlement

    def test_a_cut_off_call_is_settled_once(self) -> None:
        async def after(journal: Journal, intent: Intent) -> None:
            cut_off = await journal.find(intent.key)
            assert cut_off is not None
            settled = await _gather(journal.settle(cut_off, {**_OUTCOME, "by": at}) for at in range(100))
            assert settled.count(True) == 1, f"{settled.count(True)} of a hundred have settled it"
            ended = JournalEntry(intent=intent, state="ended", outcome={**_OUTCOME, "by": settled.index(True)})
            _check_entry(await journal.find(intent.key), ended)
            _check_unfinished(await journal.unfinished(), [])
            assert not await journal.settle(ended, _OTHER_OUTCOME), "it settled a call that has its outcome"
            _check_entry(await journal.find(intent.key), ended)

        self._run_twice(_begin_call, after)

    @_journal_test
    async def test_an_unknown_outcome_can_be_settled_and_forgotten(self, journal: Journal) -> None:
        intent = await _begin_call(journal)
        await journal.end(intent, _UNKNOWN)
        unknown = await journal.find(intent.key)
        assert unknown is not None
        assert not await journal.settle(replace(unknown, outcome=_OUTCOME), _OUTCOME), "it settled what was not there"
        assert await journal.settle(unknown, _UNKNOWN), "it did not settle an outcome that nobody knows"
        assert await journal.settle(unknown, None), "it did not forget an outcome that nobody knows"
        assert await journal.find(intent.key) is None, "what was forgotten is there"
        assert (await journal.begin(intent)).earlier is None

    @_journal_test
    async def test_a_deferred_call_is_settled_only_if_unchanged_since_it_was_read(self, journal: Journal) -> None:
        intent = await _begin_call(journal)
        await journal.end(intent, _make_deferred(poll_at=1.5))
        first = await journal.find(intent.key)
        _check_entry(first, JournalEntry(intent=intent, state="deferred", outcome=_make_deferred(poll_at=1.5)))
        assert first is not None
        assert await self._open_second(journal).settle(first, _make_deferred(poll_at=2.5))
        assert not await journal.settle(first, _OUTCOME), "it was looked at since, and has another outcome"
        later = await journal.find(intent.key)
        _check_entry(later, JournalEntry(intent=intent, state="deferred", outcome=_make_deferred(poll_at=2.5)))
        assert later is not None
        assert await journal.settle(later, _OUTCOME)
        _check_entry(await journal.find(intent.key), JournalEntry(intent=intent, state="ended", outcome=_OUTCOME))
        assert not await journal.settle(later, _OTHER_OUTCOME), "it settled twice what was deferred"
        _check_entry(await journal.find(intent.key), JournalEntry(intent=intent, state="ended", outcome=_OUTCOME))

    @_journal_test
    async def test_a_running_forgotten_or_foreign_call_is_not_settled(self, journal: Journal) -> None:
        intent = await _begin_call(journal)
        for state in ("running", "cut_off", "deferred", "ended"):
            entry = JournalEntry(intent=intent, state=state)
            assert not await journal.settle(entry, _OTHER_OUTCOME), f"it settled a call that runs, as {state}"
        await journal.end(intent, _make_deferred())
        entry = JournalEntry(intent=_repeat_intent(intent), state="deferred", outcome=_make_deferred())
        assert not await journal.settle(entry, _OTHER_OUTCOME), "it settled the call of another claim"
        _check_entry(
            await journal.find(intent.key), JournalEntry(intent=intent, state="deferred", outcome=_make_deferred())
        )
        await journal.end(intent, None)
        assert not await journal.settle(replace(entry, intent=intent), _OTHER_OUTCOME), "it settled what was forgotten"
        assert await journal.find(intent.key) is None, "what was forgotten is there after it was to be settled"

    @_journal_test
    async def test_unfinished_calls_are_listed_oldest_first_and_by_ticket(self, journal: Journal) -> None:
        deferred = [_new_intent(at=_START + at) for at in (3, 1, 2)]
        for intent in deferred:
            await journal.begin(intent)
            await journal.end(intent, _make_deferred(ticket=f"{_ODD_TEXT} {intent.at}"))
        await _begin_call(journal)  # it runs
        await journal.end(await _begin_call(journal), {**_OUTCOME, "pending": {"state": {"ticket": "t"}}})
        entry = [
            JournalEntry(intent=intent, state="deferred", outcome=_make_deferred(ticket=f"{_ODD_TEXT} {intent.at}"))
            for intent in sorted(deferred, key=lambda one: one.at)
        ]
        for one in (journal, self._open_second(journal)):
            _check_unfinished(await one.unfinished(), entry)
            for call in entry:
                _check_unfinished(await one.unfinished(ticket=f"{_ODD_TEXT} {call.intent.at}"), [call])
            assert await one.unfinished(ticket="t") == [], "it told of the ticket of a call that has ended"
            assert await one.unfinished(ticket="") == [], "it took an empty ticket for none"
        assert await journal.settle(entry[0], _OUTCOME)
        _check_unfinished(await journal.unfinished(), entry[1:])
        _check_unfinished(await journal.unfinished(ticket=f"{_ODD_TEXT} {entry[0].intent.at}"), [])

    # Waiting

    @_journal_test
    async def test_a_waiter_is_woken_when_the_call_ends(self, journal: Journal) -> None:
        for outcome in (_OUTCOME, None, _make_deferred()):
            for one in (journal, self._open_second(journal)):
                intent = await _begin_call(journal)
                waiting = [asyncio.ensure_future(one.find(intent.key, wait=True)) for _ in range(3)]
                await _let_others_wait(one, intent)
                assert not any(task.done() for task in waiting), "it did not wait for a call that runs"
                await journal.end(intent, outcome)
                expected = await journal.find(intent.key)
                for found in await asyncio.gather(*waiting):
                    if expected is None:
                        assert found is None, f"it was forgotten, and who waited was given {found!r}"
                    else:
                        _check_entry(found, expected)

    def test_a_waiter_in_another_loop_is_woken(self) -> None:
        journal = self.make()
        another = self._open_second(journal)
        runner = asyncio.Runner()  # its loop stays open
        intent = runner.run(bounded(_begin_call(journal)))
        looked = threading.Barrier(3, timeout=SECONDS)

        async def wait(place: int) -> JournalEntry | None:
            one = (journal, another)[place]
            task = asyncio.ensure_future(one.find(intent.key, wait=True))
            await _let_others_wait(one, intent)
            looked.wait()
            return await task

        try:
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(_in_threads, 2, wait)
                looked.wait()
                runner.run(bounded(journal.end(intent, _OUTCOME)))
                for found in waiting.result(SECONDS):
                    _check_entry(found, JournalEntry(intent=intent, state="ended", outcome=_OUTCOME))
        finally:
            runner.close()
            self._close(another, journal)

    @_journal_test
    async def test_a_cancelled_waiter_does_not_disturb_others(self, journal: Journal) -> None:
        intent = await _begin_call(journal)
        cancelled, waiting = (asyncio.ensure_future(journal.find(intent.key, wait=True)) for _ in range(2))
        await _let_others_wait(journal, intent)
        cancelled.cancel()
        await asyncio.wait({cancelled})
        await journal.end(intent, _OUTCOME)
        _check_entry(await waiting, JournalEntry(intent=intent, state="ended", outcome=_OUTCOME))

    # Marks that can be set once

    def test_a_key_can_be_taken_once_until_it_expires(self) -> None:
        async def before(journal: Journal) -> float:
            later = time.time() + 1_000
            for key in ("one", _ODD_TEXT, ""):
                assert await journal.take(key, later), f"{key!r} had never been taken"
                for one in (journal, self._open_second(journal)):
                    assert not await one.take(key, later), f"{key!r} was taken twice"
            assert await journal.take("old", time.time() - 1)
            assert await journal.take("old", later), "it had expired"
            assert not await journal.take("old", later), "it was taken twice after it had expired"
            taken = await _gather(journal.take("raced", later) for _ in range(100))
            assert taken.count(True) == 1, f"{taken.count(True)} of a hundred have taken it"
            return later

        async def after(journal: Journal, later: float) -> None:
            for key in ("one", _ODD_TEXT, "", "old", "raced"):
                assert not await journal.take(key, later), f"{key!r} was taken again by a new process"

        self._run_twice(before, after)

    # The store

    def test_the_store_changes_a_value_only_if_it_is_as_expected(self) -> None:
        async def before(journal: Journal) -> dict[str, Any]:
            await journal.take("taken", time.time() + 1_000)
            await _begin_call(journal)
            for at, one in enumerate((journal, self._open_second(journal))):
                store, key = one.store, f"{_ODD_TEXT}{at}"
                assert not store.compare_and_set(key, {"a": 1}, 2), "it changed what was not there"
                assert store.compare_and_set(key, None, {"b": [1], "a": _ODD_TEXT}), "it did not take a new key"
                assert not store.compare_and_set(key, None, 3), "what was there was taken for nothing"
                assert store.get(key) == {"a": _ODD_TEXT, "b": [1]}, f"get gave {store.get(key)!r}"
                assert store.compare_and_set(key, {"a": _ODD_TEXT, "b": [1]}, [at]), "equal JSON was not equal"
                assert not store.compare_and_set(key, [at, at], [7]), "it changed what had another value"
                assert store.compare_and_set("gone", None, 1) and store.compare_and_set("gone", 1, None)
            found = journal.store.items()
            assert found == {f"{_ODD_TEXT}0": [0], f"{_ODD_TEXT}1": [1]}, f"items gave {found!r}"
            return found

        async def after(journal: Journal, found: dict[str, Any]) -> None:
            assert journal.store.items() == found, f"a new process finds {journal.store.items()!r}"

        self._run_twice(before, after)

    @_journal_test
    async def test_the_store_lists_items_by_prefix_in_order(self, journal: Journal) -> None:
        for key in ("b/2", "a/1", "b/10", "B/1", "b", "b%"):
            assert journal.store.compare_and_set(key, None, key)
        every = ["B/1", "a/1", "b", "b%", "b/10", "b/2"]
        for prefix, keys in {"b/": ["b/10", "b/2"], "": every, "b%": ["b%"], "c": []}.items():
            found = list(journal.store.items(prefix).items())
            assert found == [(key, key) for key in keys], f"items({prefix!r}) gave {found!r}"

    def test_a_hundred_concurrent_increments_are_all_counted(self) -> None:
        journal = self.make()
        both = [journal, self._open_second(journal)]

        async def count(place: int) -> None:
            store = both[place % 2].store
            for _ in range(25):
                while not store.compare_and_set("count", now := store.get("count"), (now or 0) + 1):
                    pass

        try:
            _in_threads(4, count)
            assert journal.store.get("count") == 100, f"it counted {journal.store.get('count')} of a hundred"
        finally:
            self._close(*both)

    # Events

    @_journal_test
    async def test_events_from_any_thread_are_accepted(self, journal: Journal) -> None:
        def note(_: int) -> None:
            for event in _some_events():
                journal.note(event)

        with ThreadPoolExecutor(4) as pool:
            for _ in pool.map(note, range(4)):
                pass
        note(0)
        await journal.flush()
        intent = await _begin_call(journal)
        await journal.end(intent, _OUTCOME)
        _check_entry(await journal.find(intent.key), JournalEntry(intent=intent, state="ended", outcome=_OUTCOME))

    def test_it_can_be_closed_twice(self) -> None:
        journal = self.make()
        journal.note(_some_events()[0])
        journal.close()
        journal.close()

    # Helpers

    def _run(self, check: Callable[[Journal], Coroutine[Any, Any, object]]) -> None:
        journal = self.make()
        try:
            in_time(check(journal))
        finally:
            self._close(journal)

    def _run_twice(
        self,
        before: Callable[[Journal], Coroutine[Any, Any, _T]],
        after: Callable[[Journal, _T], Coroutine[Any, Any, object]],
    ) -> None:
        """Run one process, and another after it has died."""
        journal = self.make()
        try:
            entry = in_time(before(journal))
            self._close_others()
            journal = self.reopen(journal)
            in_time(after(journal, entry))
        finally:
            self._close(journal)

    def _open_second(self, journal: Journal) -> Journal:
        """Return the second journal. It is the same one in all of a test."""
        others: list[Journal] = self.__dict__.setdefault("_others", [])
        if not others:
            others.append(self.second(journal))
        return others[0]

    def _close(self, *journals: Journal) -> None:
        self._close_others()
        for journal in journals:
            journal.close()

    def _close_others(self) -> None:
        for other in self.__dict__.pop("_others", []):
            other.close()


def _new_intent(**facts: Any) -> Intent:
    """Return the intent of a new call."""
    number = next(_numbers)
    given: dict[str, Any] = {
        "key": f"{number:032x}",
        "reference": f"reference {number}",
        "claim": f"claim {number}",
        "call_id": f"call_{number}",
        "tool_name": "pay",
        "principal": "ada",
        "session": "s",
        "parent": None,
        "fingerprint": "f",
        "arguments": {"amount": 7},
        "at": _START + number / 1024,
    }
    return Intent(**{**given, **facts})


def _repeat_intent(intent: Intent) -> Intent:
    """Return the intent of the same call, from somewhere else."""
    return replace(intent, claim=f"claim {next(_numbers)}", at=intent.at + 10)


def _make_deferred(ticket: str = "t1", poll_at: float | None = None) -> JsonObject:
    return {"status": "suspended", "output": None, "pending": {"state": {"ticket": ticket, "poll_at": poll_at}}}


async def _begin_call(journal: Journal) -> Intent:
    intent = _new_intent()
    _check_begun(await journal.begin(intent))
    return intent


def _check_begun(begun: Any) -> None:
    assert begun.earlier is None, f"begin gave {begun!r} for a call that nobody has begun"


def _check_entry(found: JournalEntry | None, expected: JournalEntry) -> None:
    assert found is not None, f"nothing is kept of {_format_entry(expected)}"
    assert found.state == expected.state, (
        f"it is {found.state!r}, and not {expected.state!r}: {_format_entry(expected)}"
    )
    assert found == expected, f"kept is {_format_entry(found)}, and not {_format_entry(expected)}"


def _check_unfinished(found: list[JournalEntry], expected: list[JournalEntry]) -> None:
    assert found == expected, f"unfinished are {found!r:.2000}, and not {expected!r:.2000}"


def _format_entry(entry: JournalEntry) -> str:
    return f"{entry!r:.2000}"


def _try_to_append(value: Any) -> None:
    with contextlib.suppress(TypeError):  # it is frozen
        value.append("changed")


def _some_events() -> list[Event]:
    call = ToolCall("c1", "pay", {"amount": 7})
    odd = ToolCall(_ODD_TEXT, _ODD_TEXT, _ODD_TEXT, parent=_ODD_TEXT)
    result = ToolResult({"paid": object()}, call=call, tool_name="pay", metadata={"by": {1, 2}})
    broken = ToolResult(error=_ODD_TEXT, call=odd, exception=ValueError(_ODD_TEXT))
    return [
        Event("tool:pre", call, session="s", principal="ada"),
        Event("tool:pre", odd, session=_ODD_TEXT, principal=_ODD_TEXT),
        Event("tool:progress", call, {"done": 1, "total": None, "message": _ODD_TEXT, "chunk": object()}),
        Event("tool:post", call, result),
        Event("tool:error", odd, broken),
        Event("client:refused", ToolCall("", "", None), {"reason": "no token", "address": "192.0.2.1"}),
    ]


async def _let_others_wait(journal: Journal, intent: Intent) -> None:
    """Wait until other tasks have asked for the call too."""
    for _ in range(5):
        await asyncio.sleep(0)
        await journal.find(intent.key)


async def _gather(waited: Any) -> list[Any]:
    return list(await asyncio.gather(*waited))


def _in_threads(count: int, make: Callable[[int], Coroutine[Any, Any, _T]]) -> list[_T]:
    """Return the results of the coroutines, each run in a thread with a loop of its own."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda place: in_time(make(place)), range(count)))
