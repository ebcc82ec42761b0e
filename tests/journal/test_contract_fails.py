"""Each test of `JournalContract` fails for a journal that breaks what it is about."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from ferrule import Event, Journal
from ferrule.journal import MemoryJournal
from ferrule.stores.store import Memory
from ferrule.testing import JournalContract
from ferrule.types import Begun
from ferrule.values.frozen import JsonObject
from ferrule.values.journal_entry import Intent, JournalEntry


class MakesUp(MemoryJournal):
    async def find(self, key: str, *, wait: bool = False) -> JournalEntry | None:
        kept = await super().find(key, wait=wait)
        return kept or (JournalEntry(intent=self.last, state="running") if hasattr(self, "last") else None)

    async def begin(self, intent: Intent, *, after: JournalEntry | None = None) -> Begun:
        self.last = intent
        return await super().begin(intent, after=after)


class CleansTexts(MemoryJournal):
    async def begin(self, intent: Intent, *, after: JournalEntry | None = None) -> Begun:
        return await super().begin(dataclasses.replace(intent, call_id=intent.call_id.strip("\0")[:5]), after=after)


class RoundsNumbers(MemoryJournal):
    async def end(self, intent: Intent, outcome: JsonObject | None) -> None:
        await super().end(intent, outcome and json.loads(json.dumps(outcome), parse_int=float))


class Shares(MemoryJournal):
    """It gives out what it has."""

    async def find(self, key: str, *, wait: bool = False) -> JournalEntry | None:
        return self._calls.get(key) if not wait else await super().find(key, wait=True)


class TakesAnything(MemoryJournal):
    async def end(self, intent: Intent, outcome: JsonObject | None) -> None:
        try:
            await super().end(intent, outcome)
        except (TypeError, ValueError):
            await super().end(intent, {"status": "ok", "output": repr(outcome)})


class BeginsAlways(MemoryJournal):
    async def begin(self, intent: Intent, *, after: JournalEntry | None = None) -> Begun:
        kept = self._calls.get(intent.key)
        if kept is not None:
            self._calls[intent.key] = dataclasses.replace(kept, intent=intent)
        return await super().begin(intent, after=after)


class KnowsNoClaim(MemoryJournal):
    async def begin(self, intent: Intent, *, after: JournalEntry | None = None) -> Begun:
        kept = self._calls.get(intent.key)
        return Begun(kept) if kept is not None else await super().begin(intent)


class LooksThenBegins(MemoryJournal):
    async def begin(self, intent: Intent, *, after: JournalEntry | None = None) -> Begun:
        kept = await self.find(intent.key)
        await asyncio.sleep(0)
        if kept is None:
            self._calls.pop(intent.key, None)
        return await super().begin(intent, after=after)


class EndsForAnybody(MemoryJournal):
    async def end(self, intent: Intent, outcome: JsonObject | None) -> None:
        kept = self._calls.get(intent.key)
        await super().end(intent if kept is None else kept.intent, outcome)


class MakesEnds(MemoryJournal):
    async def end(self, intent: Intent, outcome: JsonObject | None) -> None:
        if outcome is not None and intent.key not in self._calls:
            await self.begin(intent)
        await super().end(intent, outcome)


class ForgetsNothing(MemoryJournal):
    async def end(self, intent: Intent, outcome: JsonObject | None) -> None:
        await super().end(intent, {"status": "cancelled"} if outcome is None else outcome)


class TellsNoOthers(MemoryJournal):
    async def begin(self, intent: Intent, *, after: JournalEntry | None = None) -> Begun:
        return Begun((await super().begin(intent, after=after)).earlier)


class NeverCutsOff(MemoryJournal):
    def cut_off(self) -> None:
        """What runs, runs for ever."""

    def _kept(self, key: str) -> JournalEntry | None:
        return self._calls.get(key)


class BeginsWhatIsOpen(MemoryJournal):
    """Whoever has read it may begin it, whatever has become of it."""

    async def begin(self, intent: Intent, *, after: JournalEntry | None = None) -> Begun:
        if after is not None:
            self._calls.pop(intent.key, None)
        return await super().begin(intent)


class SettlesAnything(MemoryJournal):
    async def settle(self, kept: JournalEntry, outcome: JsonObject) -> bool:
        await super().begin(kept.intent)
        await super().end(kept.intent, outcome)
        return True


class SettlesByState(MemoryJournal):
    """It does not look whether the outcome is the one that was read."""

    async def settle(self, kept: JournalEntry, outcome: JsonObject) -> bool:
        found = self._calls.get(kept.intent.key)
        if found is None or found.state != kept.state or kept.state not in ("cut_off", "deferred"):
            return False
        await super().end(found.intent, outcome)
        return True


class InNoOrder(MemoryJournal):
    async def unfinished(self, *, ticket: str | None = None) -> list[JournalEntry]:
        return (await super().unfinished())[::-1]


class NeverWaits(MemoryJournal):
    async def find(self, key: str, *, wait: bool = False) -> JournalEntry | None:
        return await super().find(key)


class WaitsInOneLoop(MemoryJournal):
    """Who waits is woken by a future, from whatever thread."""

    async def find(self, key: str, *, wait: bool = False) -> JournalEntry | None:
        kept = await super().find(key)
        if wait and kept is not None and kept.state == "running":
            self.waiting = asyncio.get_running_loop().create_future()
            async with asyncio.timeout(1):
                await self.waiting
        return await super().find(key)

    async def end(self, intent: Intent, outcome: JsonObject | None) -> None:
        await super().end(intent, outcome)
        waiting = getattr(self, "waiting", None)
        if waiting is not None and waiting.get_loop() is asyncio.get_running_loop() and not waiting.done():
            waiting.set_result(None)


class WaitsTogether(MemoryJournal):
    """Who gives up takes all others with it."""

    async def find(self, key: str, *, wait: bool = False) -> JournalEntry | None:
        if not wait:
            return await super().find(key)
        shared = self.__dict__.setdefault("shared", {})
        if key not in shared:
            shared[key] = asyncio.ensure_future(super().find(key, wait=True))
        return await shared[key]  # type: ignore[no-any-return]


class TakesAgain(MemoryJournal):
    async def take(self, key: str, expires_at: float) -> bool:
        await super().take(key, expires_at)
        return True


class NeverExpires(MemoryJournal):
    async def take(self, key: str, expires_at: float) -> bool:
        return await super().take(key, 1e12)


class WrongStore(Memory):
    def compare_and_set(self, key: str, old: Any, new: Any) -> bool:
        before = self.get(key)
        found = super().compare_and_set(key, before, new)
        return found and before == old


class RacingStore(Memory):
    def compare_and_set(self, key: str, old: Any, new: Any) -> bool:
        if self.get(key) != old:
            return False
        for _ in range(20):
            time.sleep(0)  # others have their turn
        Memory.compare_and_set(self, key, self.get(key), new)
        return True


class UnsortedStore(Memory):
    def items(self, prefix: str = "") -> dict[str, Any]:
        return dict(reversed(super().items(prefix).items()))


def with_store(make: Callable[[], Memory]) -> type[MemoryJournal]:
    class WithStore(MemoryJournal):
        def __init__(self) -> None:
            super().__init__()
            self._store = make()

    WithStore.__name__ = make.__name__
    return WithStore


class LooksThenSettles(MemoryJournal):
    async def settle(self, kept: JournalEntry, outcome: JsonObject) -> bool:
        is_open = self._read_entry(kept.intent.key) == kept and kept.state in ("cut_off", "deferred")
        await asyncio.sleep(0)
        await super().settle(kept, outcome)
        return is_open


def says_that_it_settled(state: str | None) -> type[MemoryJournal]:
    """A journal that says so of a call in this state, or of one that it does not have."""

    class SaysThatItSettled(MemoryJournal):
        async def settle(self, kept: JournalEntry, outcome: JsonObject) -> bool:
            found = self._read_entry(kept.intent.key)
            return await super().settle(kept, outcome) or (found and found.state) == state

    return SaysThatItSettled


class BreaksOnEvents(MemoryJournal):
    def note(self, event: Event) -> None:
        json.dumps(event.data["input"])
        event.call.id.encode()


class ClosesOnce(MemoryJournal):
    def close(self) -> None:
        del self._calls


WRONG: list[tuple[str, Callable[[], Any]]] = [
    ("an_unknown_key_has_no_entry", MakesUp),
    ("a_begun_call_is_stored_unchanged", CleansTexts),
    ("an_outcome_is_stored_unchanged", RoundsNumbers),
    ("later_changes_do_not_reach_the_journal", Shares),
    ("an_outcome_that_is_no_json_is_refused", TakesAnything),
    ("a_known_key_does_not_begin_again_and_its_entry_is_returned", BeginsAlways),
    ("the_same_claim_can_begin_a_call_again", KnowsNoClaim),
    ("only_one_of_a_hundred_concurrent_callers_begins_a_key", LooksThenBegins),
    ("another_claim_cannot_end_or_forget_a_call", EndsForAnybody),
    ("ending_an_unknown_call_does_nothing", MakesEnds),
    ("a_forgotten_call_can_begin_anew", ForgetsNothing),
    ("other_arguments_with_the_same_reference_are_reported", TellsNoOthers),
    ("a_call_of_a_dead_process_is_cut_off_and_others_are_unchanged", NeverCutsOff),
    ("a_cut_off_call_begins_again_once", BeginsWhatIsOpen),
    ("a_deferred_call_begins_again_once_for_a_current_entry", BeginsWhatIsOpen),
    ("a_cut_off_call_is_settled_once", LooksThenSettles),
    ("a_cut_off_call_is_settled_once", says_that_it_settled("ended")),
    ("a_deferred_call_is_settled_only_if_unchanged_since_it_was_read", SettlesByState),
    ("a_deferred_call_is_settled_only_if_unchanged_since_it_was_read", says_that_it_settled("ended")),
    ("an_unknown_outcome_can_be_settled_and_forgotten", LooksThenSettles),
    ("a_running_forgotten_or_foreign_call_is_not_settled", SettlesAnything),
    ("unfinished_calls_are_listed_oldest_first_and_by_ticket", InNoOrder),
    ("a_waiter_is_woken_when_the_call_ends", NeverWaits),
    ("a_waiter_in_another_loop_is_woken", WaitsInOneLoop),
    ("a_cancelled_waiter_does_not_disturb_others", WaitsTogether),
    ("a_key_can_be_taken_once_until_it_expires", TakesAgain),
    ("a_key_can_be_taken_once_until_it_expires", NeverExpires),
    ("the_store_changes_a_value_only_if_it_is_as_expected", with_store(WrongStore)),
    ("the_store_lists_items_by_prefix_in_order", with_store(UnsortedStore)),
    ("a_hundred_concurrent_increments_are_all_counted", with_store(RacingStore)),
    ("events_from_any_thread_are_accepted", BreaksOnEvents),
    ("it_can_be_closed_twice", ClosesOnce),
]


def contract_of(made: Callable[[], Any]) -> JournalContract:
    class Contract(JournalContract):
        def make(self) -> Journal:
            return made()

        def second(self, journal: Journal) -> Journal:
            return journal

        def reopen(self, journal: Journal) -> Journal:
            journal.cut_off()  # type: ignore[attr-defined]
            return journal

    return Contract()


def test_every_test_of_the_contract_has_a_journal_that_fails_it() -> None:
    tests = {name.removeprefix("test_") for name in vars(JournalContract) if name.startswith("test_")}
    assert tests == {name for name, _ in WRONG}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("name", "made"), WRONG)
def test_a_journal_that_breaks_a_promise_fails(name: str, made: Callable[[], Any]) -> None:
    with pytest.raises(BaseException) as raised:  # of any kind: a journal of somebody's may raise what it likes
        getattr(contract_of(made), f"test_{name}")()
    assert not isinstance(raised.value, KeyboardInterrupt | SystemExit)


def test_a_contract_without_a_journal_says_what_it_needs() -> None:
    contract = JournalContract()
    with pytest.raises(Exception, match=r"needs a method make\(self\)"):
        contract.test_it_can_be_closed_twice()
