"""`JournalContract`: tests of the promises of every journal, to run on your own."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from ferrule.errors import DefinitionError
from ferrule.types import Journal
from ferrule.values.call import ToolCall
from ferrule.values.event import Event
from ferrule.values.frozen import JsonObject, freeze
from ferrule.values.journal_entry import Intent, JournalEntry
from ferrule.values.result import ToolResult

_T = TypeVar("_T")

_SECONDS = 60.0
"""Seconds that any of the tests waits for an event."""
_ODD_TEXT = "é 文 🙂 \0 \x1f \x7f \u2028 \u202e \ud800 ' \" \\ % ; -- NULL"
_UNKNOWN: JsonObject = {"status": "timeout", "executed": None}
_ENDED: JsonObject = {"status": "ok", "output": {"paid": 7}}
_NOTHING_CAME: JsonObject = {"status": "failed", "output": None, "error": "no"}
_JSON: JsonObject = {
    "status": "ok",
    "output": [None, True, False, 0, -1, 2**53 + 1, 10**40, 0.1, 1e300, -0.0, "", _ODD_TEXT, [[[]]], {"": {"a": []}}],
    _ODD_TEXT: _ODD_TEXT,
    "content": [{"text": _ODD_TEXT}],
}
_AT = 1_700_000_000.25
_numbers = itertools.count(1)


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

    def test_of_a_key_that_nobody_has_begun_nothing_is_kept(self) -> None:
        async def check(journal: Journal) -> None:
            assert isinstance(journal, Journal), f"{journal!r} is no subclass of ferrule.Journal"
            await journal.begin(_new_intent())
            for wait in (False, True):
                found = await journal.find("0" * 32, wait=wait)
                assert found is None, f"find gave {found!r} for a key that is not there"
            _are_kept(await journal.unfinished(), [])

        self._run(check)

    def test_a_call_that_was_begun_runs_and_is_kept_as_it_was_given(self) -> None:
        async def check(journal: Journal) -> None:
            plain = _new_intent()
            text = _ODD_TEXT
            strange = _new_intent(
                call_id=text,
                tool_name=text,
                principal=text,
                session=text,
                parent=text,
                fingerprint=text,
                arguments=_JSON,
            )
            big = _new_intent(arguments={"text": "x" * 5_000_000, "list": list(range(100_000))})
            for intent in (plain, strange, big):
                _is_ours(await journal.begin(intent))
            for intent in (plain, strange, big):
                for one in (journal, self._another(journal)):
                    _is_kept(await one.find(intent.key), JournalEntry(intent=intent, state="running"))

        self._run(check)

    def test_an_outcome_is_kept_as_it_was_given(self) -> None:
        async def check(journal: Journal) -> None:
            big: JsonObject = {"status": "ok", "output": _ODD_TEXT * 200_000}
            for outcome in (_ENDED, _NOTHING_CAME, _JSON, freeze(_JSON), big):
                intent = await _begun(journal)
                await journal.end(intent, outcome)
                for one in (journal, self._another(journal)):
                    for wait in (False, True):
                        _is_kept(
                            await one.find(intent.key, wait=wait),
                            JournalEntry(intent=intent, state="ended", outcome=outcome),
                        )

        self._run(check)

    def test_what_is_changed_afterwards_changes_nothing_that_is_kept(self) -> None:
        async def check(journal: Journal) -> None:
            arguments: dict[str, Any] = {"list": [1]}
            outcome: dict[str, Any] = {"status": "ok", "output": [1]}
            intent = _new_intent(arguments=arguments)
            expected = copy.deepcopy(JournalEntry(intent=intent, state="ended", outcome=outcome))
            await journal.begin(intent)
            await journal.end(intent, outcome)
            arguments["list"].append(2)
            outcome["output"].append(2)
            found = await journal.find(intent.key)
            _is_kept(found, expected)
            assert found is not None and found.outcome is not None
            for value in (found.outcome["output"], found.intent.arguments["list"]):
                _try_to_append(value)
            _is_kept(await journal.find(intent.key), expected)

        self._run(check)

    def test_what_is_no_json_is_refused_and_leaves_the_call_as_it_was(self) -> None:
        async def check(journal: Journal) -> None:
            intent = await _begun(journal)
            for wrong in (object(), float("nan"), {1, 2}):
                try:
                    await journal.end(intent, {"status": "ok", "output": wrong})
                except Exception:
                    continue
                raise AssertionError(f"it took {wrong!r} in an outcome, which no other program can read")
            _is_kept(await journal.find(intent.key), JournalEntry(intent=intent, state="running"))
            await journal.end(intent, _ENDED)
            _is_kept(await journal.find(intent.key), JournalEntry(intent=intent, state="ended", outcome=_ENDED))

        self._run(check)

    # The owner of a call

    def test_a_key_that_is_there_is_not_begun_again_and_what_is_kept_is_told(self) -> None:
        async def check(journal: Journal) -> None:
            intent = await _begun(journal)
            for outcome in (None, _ENDED):
                if outcome is not None:
                    await journal.end(intent, outcome)
                expected = JournalEntry(intent=intent, state="ended" if outcome else "running", outcome=outcome)
                for after in (None, expected, replace(expected, state="cut_off")):
                    for one in (journal, self._another(journal)):
                        begun = await one.begin(_comes_again(intent), after=after)
                        _is_kept(begun.earlier, expected)
                        _is_kept(await journal.find(intent.key), expected)

        self._run(check)

    def test_the_same_claim_begins_it_again(self) -> None:
        async def check(journal: Journal) -> None:
            intent = await _begun(journal)
            changed = replace(intent, arguments={"amount": 8}, fingerprint="another", at=_AT + 1)
            _is_ours(await journal.begin(changed))
            _is_kept(await journal.find(intent.key), JournalEntry(intent=changed, state="running"))

        self._run(check)

    def test_of_a_hundred_that_begin_a_key_at_once_exactly_one_has_it(self) -> None:
        journal = self.make()
        both = [journal, self._another(journal)]
        first = _new_intent()

        async def begin(place: int) -> list[Any]:
            intents = [_comes_again(first) for _ in range(25)]
            return await _gathered(both[(place + at) % 2].begin(intent) for at, intent in enumerate(intents))

        try:
            begun = [one for many in _in_threads(4, begin) for one in many]
            ours = [one for one in begun if one.earlier is None]
            assert len(ours) == 1, f"{len(ours)} of a hundred were told that the call is theirs"
            kept = asyncio.run(_bounded(journal.find(first.key)))
            assert kept is not None
            for one in begun:
                if one.earlier is not None:
                    # The loop of the first may be closed.
                    _is_kept(one.earlier, replace(kept, state=one.earlier.state, may_go_on=one.earlier.may_go_on))
        finally:
            self._close(*both)

    def test_nobody_ends_or_forgets_the_call_of_another_claim(self) -> None:
        async def check(journal: Journal) -> None:
            intent = await _begun(journal)
            for one in (journal, self._another(journal)):
                for outcome in (_NOTHING_CAME, None):
                    await one.end(_comes_again(intent), outcome)
                    _is_kept(await journal.find(intent.key), JournalEntry(intent=intent, state="running"))
            await journal.end(intent, _ENDED)
            for outcome in (_NOTHING_CAME, None):
                await journal.end(_comes_again(intent), outcome)
                _is_kept(await journal.find(intent.key), JournalEntry(intent=intent, state="ended", outcome=_ENDED))

        self._run(check)

    def test_the_end_of_what_is_not_there_is_nothing(self) -> None:
        async def check(journal: Journal) -> None:
            intent = _new_intent()
            for outcome in (_ENDED, None):
                await journal.end(intent, outcome)
                assert await journal.find(intent.key) is None, "an end made a call that was never begun"

        self._run(check)

    def test_what_is_forgotten_may_be_begun_by_anybody(self) -> None:
        async def check(journal: Journal) -> None:
            intent = await _begun(journal)
            await journal.end(intent, None)
            assert await journal.find(intent.key) is None, "it is kept, and was to be forgotten"
            another = _comes_again(intent)
            _is_ours(await self._another(journal).begin(another))
            _is_kept(await journal.find(intent.key), JournalEntry(intent=another, state="running"))

        self._run(check)

    def test_other_arguments_under_one_reference_are_told(self) -> None:
        async def check(journal: Journal) -> None:
            first = _new_intent()
            another = _new_intent(reference=first.reference)
            begun = [await journal.begin(first), await journal.begin(_comes_again(first)), await journal.begin(first)]
            assert not any(one.other_arguments for one in begun), "the same key is told as other arguments"
            await journal.end(first, _ENDED)
            for again in range(2):
                assert (await journal.begin(another)).other_arguments, f"begun {again + 1} times, and nothing was told"
            assert (await journal.begin(_comes_again(first))).other_arguments, "of the first one nothing was told"
            assert not (await journal.begin(_new_intent())).other_arguments, "of another reference"
            await journal.end(another, None)
            assert not (await journal.begin(_comes_again(first))).other_arguments, "of one that was forgotten"

        self._run(check)

    # After a process has died

    def test_what_ran_in_a_process_that_died_is_cut_off_and_all_else_is_as_it_was(self) -> None:
        async def before(journal: Journal) -> list[JournalEntry]:
            ended, deferred, running = [await _begun(journal) for _ in range(3)]
            await journal.end(ended, _ENDED)
            await journal.end(deferred, _deferred())
            await journal.end(await _begun(journal), None)
            return [
                JournalEntry(intent=ended, state="ended", outcome=_ENDED),
                JournalEntry(intent=deferred, state="deferred", outcome=_deferred()),
                JournalEntry(intent=running, state="cut_off"),
            ]

        async def after(journal: Journal, expected: list[JournalEntry]) -> None:
            for kept in expected:
                for wait in (False, True):
                    _is_kept(await journal.find(kept.intent.key, wait=wait), kept)
                _is_kept((await journal.begin(_comes_again(kept.intent))).earlier, kept)
            _are_kept(await journal.unfinished(), expected[1:])

        self._run_twice(before, after)

    def test_what_was_cut_off_is_begun_again_by_one_that_has_read_it(self) -> None:
        async def after(journal: Journal, old: Intent) -> None:
            read = await journal.find(old.key)
            begun = await _gathered(journal.begin(_comes_again(old), after=read) for _ in range(100))
            assert sum(one.earlier is None for one in begun) == 1, "not exactly one of a hundred has it"
            kept = await journal.find(old.key)
            assert kept is not None and kept.state == "running", f"it was begun, and {kept!r} is kept"
            for outcome in (_NOTHING_CAME, None):
                await journal.end(old, outcome)  # as a process that was thought dead might
                _is_kept(await journal.find(old.key), kept)
            _are_kept(await journal.unfinished(), [])
            await journal.end(kept.intent, _ENDED)
            _is_kept(await journal.find(old.key), replace(kept, state="ended", outcome=_ENDED))

        self._run_twice(_begun, after)

    def test_what_was_deferred_is_begun_again_by_one_that_has_read_it_as_it_is(self) -> None:
        async def check(journal: Journal) -> None:
            intent = await _begun(journal)
            await journal.end(intent, _deferred(poll_at=1.5))
            first = await journal.find(intent.key)
            assert first is not None and await journal.settle(first, _deferred(poll_at=2.5))
            kept = JournalEntry(intent=intent, state="deferred", outcome=_deferred(poll_at=2.5))
            for wrong in (None, first, replace(kept, state="cut_off"), replace(kept, intent=_comes_again(intent))):
                _is_kept((await journal.begin(_comes_again(intent), after=wrong)).earlier, kept)
            both = [self._another(journal), journal]
            begun = await _gathered(both[at % 2].begin(_comes_again(intent), after=kept) for at in range(100))
            assert sum(one.earlier is None for one in begun) == 1, "not exactly one of a hundred has it"
            found = await journal.find(intent.key)
            assert found is not None and (found.state, found.outcome) == ("running", None), f"it runs, and is {found!r}"
            _are_kept(await journal.unfinished(), [])
            _are_kept(await journal.unfinished(ticket="t1"), [])

        self._run(check)

    # Later settlement

    def test_what_was_cut_off_is_settled_once(self) -> None:
        async def after(journal: Journal, intent: Intent) -> None:
            cut_off = await journal.find(intent.key)
            assert cut_off is not None
            settled = await _gathered(journal.settle(cut_off, {**_ENDED, "by": at}) for at in range(100))
            assert settled.count(True) == 1, f"{settled.count(True)} of a hundred have settled it"
            ended = JournalEntry(intent=intent, state="ended", outcome={**_ENDED, "by": settled.index(True)})
            _is_kept(await journal.find(intent.key), ended)
            _are_kept(await journal.unfinished(), [])
            assert not await journal.settle(ended, _NOTHING_CAME), "it settled a call that has its outcome"
            _is_kept(await journal.find(intent.key), ended)

        self._run_twice(_begun, after)

    def test_an_outcome_that_nobody_knows_is_settled_and_forgotten(self) -> None:
        async def check(journal: Journal) -> None:
            intent = await _begun(journal)
            await journal.end(intent, _UNKNOWN)
            unknown = await journal.find(intent.key)
            assert unknown is not None
            assert not await journal.settle(replace(unknown, outcome=_ENDED), _ENDED), "it settled what was not there"
            assert await journal.settle(unknown, _UNKNOWN), "it did not settle an outcome that nobody knows"
            assert await journal.settle(unknown, None), "it did not forget an outcome that nobody knows"
            assert await journal.find(intent.key) is None, "what was forgotten is there"
            assert (await journal.begin(intent)).earlier is None

        self._run(check)

    def test_what_was_deferred_is_settled_where_it_still_is_as_it_was_read(self) -> None:
        async def check(journal: Journal) -> None:
            intent = await _begun(journal)
            await journal.end(intent, _deferred(poll_at=1.5))
            first = await journal.find(intent.key)
            _is_kept(first, JournalEntry(intent=intent, state="deferred", outcome=_deferred(poll_at=1.5)))
            assert first is not None
            assert await self._another(journal).settle(first, _deferred(poll_at=2.5))
            assert not await journal.settle(first, _ENDED), "it was looked at since, and has another outcome"
            later = await journal.find(intent.key)
            _is_kept(later, JournalEntry(intent=intent, state="deferred", outcome=_deferred(poll_at=2.5)))
            assert later is not None
            assert await journal.settle(later, _ENDED)
            _is_kept(await journal.find(intent.key), JournalEntry(intent=intent, state="ended", outcome=_ENDED))
            assert not await journal.settle(later, _NOTHING_CAME), "it settled twice what was deferred"
            _is_kept(await journal.find(intent.key), JournalEntry(intent=intent, state="ended", outcome=_ENDED))

        self._run(check)

    def test_nothing_is_settled_that_runs_or_was_forgotten_or_is_another_claims(self) -> None:
        async def check(journal: Journal) -> None:
            intent = await _begun(journal)
            for state in ("running", "cut_off", "deferred", "ended"):
                kept = JournalEntry(intent=intent, state=state)
                assert not await journal.settle(kept, _NOTHING_CAME), f"it settled a call that runs, as {state}"
            await journal.end(intent, _deferred())
            kept = JournalEntry(intent=_comes_again(intent), state="deferred", outcome=_deferred())
            assert not await journal.settle(kept, _NOTHING_CAME), "it settled the call of another claim"
            _is_kept(await journal.find(intent.key), JournalEntry(intent=intent, state="deferred", outcome=_deferred()))
            await journal.end(intent, None)
            assert not await journal.settle(replace(kept, intent=intent), _NOTHING_CAME), (
                "it settled what was forgotten"
            )
            assert await journal.find(intent.key) is None, "what was forgotten is there after it was to be settled"

        self._run(check)

    def test_what_is_unfinished_is_told_the_oldest_first_and_by_its_ticket(self) -> None:
        async def check(journal: Journal) -> None:
            deferred = [_new_intent(at=_AT + at) for at in (3, 1, 2)]
            for intent in deferred:
                await journal.begin(intent)
                await journal.end(intent, _deferred(ticket=f"{_ODD_TEXT} {intent.at}"))
            await _begun(journal)  # it runs
            await journal.end(await _begun(journal), {**_ENDED, "pending": {"state": {"ticket": "t"}}})
            kept = [
                JournalEntry(intent=intent, state="deferred", outcome=_deferred(ticket=f"{_ODD_TEXT} {intent.at}"))
                for intent in sorted(deferred, key=lambda one: one.at)
            ]
            for one in (journal, self._another(journal)):
                _are_kept(await one.unfinished(), kept)
                for call in kept:
                    _are_kept(await one.unfinished(ticket=f"{_ODD_TEXT} {call.intent.at}"), [call])
                assert await one.unfinished(ticket="t") == [], "it told of the ticket of a call that has ended"
                assert await one.unfinished(ticket="") == [], "it took an empty ticket for none"
            assert await journal.settle(kept[0], _ENDED)
            _are_kept(await journal.unfinished(), kept[1:])
            _are_kept(await journal.unfinished(ticket=f"{_ODD_TEXT} {kept[0].intent.at}"), [])

        self._run(check)

    # Waiting

    def test_who_waits_for_a_call_is_answered_when_it_has_ended_and_not_before(self) -> None:
        async def check(journal: Journal) -> None:
            for outcome in (_ENDED, None, _deferred()):
                for one in (journal, self._another(journal)):
                    intent = await _begun(journal)
                    waiting = [asyncio.ensure_future(one.find(intent.key, wait=True)) for _ in range(3)]
                    await _others_go_on(one, intent)
                    assert not any(task.done() for task in waiting), "it did not wait for a call that runs"
                    await journal.end(intent, outcome)
                    expected = await journal.find(intent.key)
                    for found in await asyncio.gather(*waiting):
                        if expected is None:
                            assert found is None, f"it was forgotten, and who waited was given {found!r}"
                        else:
                            _is_kept(found, expected)

        self._run(check)

    def test_who_waits_in_another_loop_is_answered_too(self) -> None:
        journal = self.make()
        another = self._another(journal)
        runner = asyncio.Runner()  # its loop stays open
        intent = runner.run(_bounded(_begun(journal)))
        looked = threading.Barrier(3, timeout=_SECONDS)

        async def wait(place: int) -> JournalEntry | None:
            one = (journal, another)[place]
            task = asyncio.ensure_future(one.find(intent.key, wait=True))
            await _others_go_on(one, intent)
            looked.wait()
            return await task

        try:
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(_in_threads, 2, wait)
                looked.wait()
                runner.run(_bounded(journal.end(intent, _ENDED)))
                for found in waiting.result(_SECONDS):
                    _is_kept(found, JournalEntry(intent=intent, state="ended", outcome=_ENDED))
        finally:
            runner.close()
            self._close(another, journal)

    def test_who_stops_waiting_disturbs_nobody(self) -> None:
        async def check(journal: Journal) -> None:
            intent = await _begun(journal)
            given_up, waiting = (asyncio.ensure_future(journal.find(intent.key, wait=True)) for _ in range(2))
            await _others_go_on(journal, intent)
            given_up.cancel()
            await asyncio.wait({given_up})
            await journal.end(intent, _ENDED)
            _is_kept(await waiting, JournalEntry(intent=intent, state="ended", outcome=_ENDED))

        self._run(check)

    # Marks that can be set once

    def test_a_key_is_taken_once_until_it_expires(self) -> None:
        async def before(journal: Journal) -> float:
            later = time.time() + 1_000
            for key in ("one", _ODD_TEXT, ""):
                assert await journal.take(key, later), f"{key!r} had never been taken"
                for one in (journal, self._another(journal)):
                    assert not await one.take(key, later), f"{key!r} was taken twice"
            assert await journal.take("old", time.time() - 1)
            assert await journal.take("old", later), "it had expired"
            assert not await journal.take("old", later), "it was taken twice after it had expired"
            taken = await _gathered(journal.take("raced", later) for _ in range(100))
            assert taken.count(True) == 1, f"{taken.count(True)} of a hundred have taken it"
            return later

        async def after(journal: Journal, later: float) -> None:
            for key in ("one", _ODD_TEXT, "", "old", "raced"):
                assert not await journal.take(key, later), f"{key!r} was taken again by a new process"

        self._run_twice(before, after)

    # The store

    def test_its_store_changes_what_is_as_it_was_and_nothing_else(self) -> None:
        async def before(journal: Journal) -> dict[str, Any]:
            await journal.take("taken", time.time() + 1_000)
            await _begun(journal)
            for at, one in enumerate((journal, self._another(journal))):
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

    def test_its_store_has_items_by_the_beginning_of_their_keys_in_order(self) -> None:
        async def check(journal: Journal) -> None:
            for key in ("b/2", "a/1", "b/10", "B/1", "b", "b%"):
                assert journal.store.compare_and_set(key, None, key)
            every = ["B/1", "a/1", "b", "b%", "b/10", "b/2"]
            for prefix, keys in {"b/": ["b/10", "b/2"], "": every, "b%": ["b%"], "c": []}.items():
                found = list(journal.store.items(prefix).items())
                assert found == [(key, key) for key in keys], f"items({prefix!r}) gave {found!r}"

        self._run(check)

    def test_of_a_hundred_that_count_in_its_store_each_is_counted(self) -> None:
        journal = self.make()
        both = [journal, self._another(journal)]

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

    def test_events_are_taken_from_any_thread_and_none_breaks_it(self) -> None:
        async def check(journal: Journal) -> None:
            def note(_: int) -> None:
                for event in _some_events():
                    journal.note(event)

            with ThreadPoolExecutor(4) as pool:
                for _ in pool.map(note, range(4)):
                    pass
            note(0)
            await journal.flush()
            intent = await _begun(journal)
            await journal.end(intent, _ENDED)
            _is_kept(await journal.find(intent.key), JournalEntry(intent=intent, state="ended", outcome=_ENDED))

        self._run(check)

    def test_it_may_be_closed_twice(self) -> None:
        journal = self.make()
        journal.note(_some_events()[0])
        journal.close()
        journal.close()

    # Helpers

    def _run(self, check: Callable[[Journal], Coroutine[Any, Any, object]]) -> None:
        journal = self.make()
        try:
            asyncio.run(_bounded(check(journal)))
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
            kept = asyncio.run(_bounded(before(journal)))
            self._close_others()
            journal = self.reopen(journal)
            asyncio.run(_bounded(after(journal, kept)))
        finally:
            self._close(journal)

    def _another(self, journal: Journal) -> Journal:
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
        "at": _AT + number / 1024,
    }
    return Intent(**{**given, **facts})


def _comes_again(intent: Intent) -> Intent:
    """Return the intent of the same call, from somewhere else."""
    return replace(intent, claim=f"claim {next(_numbers)}", at=intent.at + 10)


def _deferred(ticket: str = "t1", poll_at: float | None = None) -> JsonObject:
    return {"status": "suspended", "output": None, "pending": {"state": {"ticket": ticket, "poll_at": poll_at}}}


async def _begun(journal: Journal) -> Intent:
    intent = _new_intent()
    _is_ours(await journal.begin(intent))
    return intent


def _is_ours(begun: Any) -> None:
    assert begun.earlier is None, f"begin gave {begun!r} for a call that nobody has begun"


def _is_kept(found: JournalEntry | None, expected: JournalEntry) -> None:
    assert found is not None, f"nothing is kept of {_in_short(expected)}"
    assert found.state == expected.state, f"it is {found.state!r}, and not {expected.state!r}: {_in_short(expected)}"
    assert found == expected, f"kept is {_in_short(found)}, and not {_in_short(expected)}"


def _are_kept(found: list[JournalEntry], expected: list[JournalEntry]) -> None:
    assert found == expected, f"unfinished are {found!r:.2000}, and not {expected!r:.2000}"


def _in_short(kept: JournalEntry) -> str:
    return f"{kept!r:.2000}"


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
        Event("tools:changed", ToolCall("", "", None), {"added": ["pay"]}),
    ]


async def _others_go_on(journal: Journal, intent: Intent) -> None:
    """Wait until other tasks have asked for the call too."""
    for _ in range(5):
        await asyncio.sleep(0)
        await journal.find(intent.key)


async def _gathered(waited: Any) -> list[Any]:
    return list(await asyncio.gather(*waited))


async def _bounded(waited: Awaitable[_T]) -> _T:
    async with asyncio.timeout(_SECONDS):
        return await waited


def _in_threads(count: int, make: Callable[[int], Coroutine[Any, Any, _T]]) -> list[_T]:
    """Return the results of the coroutines, each run in a thread with a loop of its own."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda place: asyncio.run(_bounded(make(place))), range(count)))
