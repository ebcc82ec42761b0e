"""Limits among several programs: `shared(place)`, for runners, rates and budgets.

The limits count with values in a `Store`, changed by compare-and-set alone, in one thread for each `shared(…)`. No call
waits for a disk or a network on its event loop, and concurrent orders of many calls become one change. There are two
kinds of values. A rate or a budget has one value for each key, changed by an order (`SharedLimits.order`). The slots
and keys of calls are leases, all in one value, in the order of their requests:

    [id, until when, whether it is held, {slot: how many at most}, [key, …], whether its keys are shared]

Each program writes its own entries there, removes expired ones of other programs, and grants free slots and keys to the
next in line, whichever program they belong to. A call takes everything it needs in one step, so there is no deadlock.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from ferrule.errors import DefinitionError
from ferrule.scheduling.clock import MONOTONIC, Clock, Timer, wait_until, wake_from_any_thread
from ferrule.stores.store import JsonValue, Postgres, Store, StoreError, read_row
from ferrule.types import Journal, Lease

__all__ = ["SECONDS", "Change", "SharedLimits", "answer", "shared", "turns"]

log = logging.getLogger("ferrule")
T = TypeVar("T")
Change: TypeAlias = Callable[[JsonValue], tuple[JsonValue, T]]
"""A function from a value to its new value and an answer.

It may be called several times and must have no side effects. See docs/limits.md#among-several-programs.
"""

SECONDS = 10.0
"""Seconds to wait for an answer of the store; then nothing runs. See docs/limits.md#among-several-programs."""
_LONGEST_KEY = 200
_LINGER = 1.0  # seconds before the idle thread ends
_FIRST_LOOK, _LONGEST_LOOK = 0.01, 0.05  # seconds between two checks whether others have released something
_JITTER = random.SystemRandom()  # independent in each process, forked ones too
_FIRST_BACK_OFF, _LONGEST_BACK_OFF = 0.001, 0.05  # seconds to wait after another program changed the value first


def shared(
    place: Journal | Store | str, *, name: str = "ferrule", lease: float = 30.0, clock: Clock | None = None
) -> SharedLimits:
    """Return the limits of all programs with the same place and name, for `limits=` of a `Runner`, of `rate` and of
    `budget`. See docs/limits.md#among-several-programs.

    Make one object, and pass it to everything that counts together.

    Args:
        place: A journal, such as `Journal.open("calls.db")`, for the programs of one machine; the URL of a PostgreSQL
            database, for those of many; or a `ferrule.stores.store.Store`.
        name: The name of the common count. Another name in the same place counts separately.
        lease: Seconds until the slots and keys of a killed program are free again. If a program hangs for longer than
            two thirds of that, other programs may get its slots and keys while it still runs.
        clock: The clock for the ends of leases, by its `now()`; by default the machine's.

    Raises:
        DefinitionError: An argument is not valid.
    """
    given: Any = name
    if not isinstance(given, str) or not given:
        raise DefinitionError(f"shared(name) must be a text that is not empty, not {name!r}")
    given = lease
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < 1e9:
        raise DefinitionError(f"shared(lease) must be seconds above 0, not {lease!r}")
    store = _store_of(place)
    keeper = _Keeper(store, f"{name}/leases", float(lease), clock or MONOTONIC)
    return SharedLimits(store, name, float(lease), keeper)


def _store_of(place: Any) -> Store:
    if isinstance(place, str):
        return Postgres(place)
    store = place.store if isinstance(place, Journal) else place
    methods = (getattr(store, name, None) for name in ("get", "compare_and_set", "items"))
    if isinstance(store, type) or not all(map(callable, methods)):
        raise DefinitionError(
            "shared(place) must be a journal, such as Journal.open('calls.db'), the URL of a PostgreSQL database, or a "
            f"store with get, compare_and_set and items, not {place!r}"
        )
    return store


@dataclass(frozen=True, eq=False, slots=True)
class SharedLimits:
    """The limits of `shared`. See docs/limits.md#among-several-programs.

    Attributes:
        store: The store of the values.
        name: The prefix of all their keys.
        lease_seconds: The lifetime of a lease without renewal.
    """

    store: Store
    name: str
    lease_seconds: float
    _keeper: _Keeper = field(repr=False)

    def order(self, place: str, change: Change[T]) -> Future[T]:
        """Change the value at `place`, after all earlier orders for it. Return a future of the answer or a
        `StoreError`.

        Any thread may call this, and it does not wait. A failed order is not repeated, because it may have been carried
        out.

        Raises:
            StoreError: The program is ending.
        """
        return self._keeper.order(f"{self.name}/{place}", change)

    def sweep(self, places: str, is_over: Callable[[JsonValue], bool]) -> None:
        """Remove the expired values at all places with this prefix, without waiting for the store."""
        self._keeper.sweep(f"{self.name}/{places}", is_over)

    def place(self, kind: str, key: object) -> str:
        """Return the place of a key's count.

        Raises:
            TypeError: The key is not made of texts, whole numbers, `None` and tuples of these.
        """
        text = json.dumps(_json_key(key))
        if len(text) > _LONGEST_KEY:
            from hashlib import sha256  # loads OpenSSL

            text = sha256(text.encode()).hexdigest()
        return f"{kind}/{text}"

    def lease(self, slots: Mapping[str, int], keys: Iterable[str], *, shared: bool) -> Lease:
        """Return the lease of a call among all programs. It holds nothing before `acquire`.

        Args:
            slots: The limits to take a slot of, with their numbers of slots.
            keys: The keys to take.
            shared: Whether other calls may share the keys.
        """
        return _CallLease(self._keeper, dict(slots), sorted(keys), shared)


def _json_key(key: object) -> object:
    if key is None or isinstance(key, str):
        return key
    if isinstance(key, int):
        return int(key)
    if isinstance(key, tuple):
        return [_json_key(one) for one in key]
    raise TypeError(f"a limit among programs counts by texts, whole numbers, None and tuples of these, not by {key!r}")


async def answer(order: Future[T]) -> T:
    """Return the answer of an order. The order goes on if nobody waits any more. See
    docs/limits.md#among-several-programs.

    Raises:
        StoreError: The order failed, or is not done within `SECONDS`.
    """
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    order.add_done_callback(lambda _: wake_from_any_thread(waiter))
    await wait_until(waiter, loop.time() + SECONDS)
    if not order.done():
        raise StoreError(f"the store did not answer within {SECONDS:g} s")
    return order.result()


# -- leases ------------------------------------------------------------------------------------------------------------


class _LeaseEntry(NamedTuple):
    """A lease in its stored form."""

    id: str
    until: float
    held: bool
    slots: dict[str, int]
    keys: list[str]
    shared: bool


def turns(entries: Iterable[JsonValue]) -> tuple[list[JsonValue], dict[str, str]]:
    """Return the entries, with the next ones in line held, and the reason of each entry that still waits. See
    docs/limits.md.

    First come, first served. A waiting entry blocks all later ones that want one of its keys, as a held entry does. It
    occupies no slots before it has everything.
    """
    listed = [_LeaseEntry(*entry) for entry in entries]
    slots: dict[str, int] = {}
    keys: dict[str, list[bool]] = {}
    lacking: dict[str, str] = {}

    def take(entry: _LeaseEntry) -> None:
        for slot in entry.slots if entry.held else ():
            slots[slot] = slots.get(slot, 0) + 1
        for key in entry.keys:
            keys.setdefault(key, []).append(entry.shared)

    for entry in listed:
        if entry.held:
            take(entry)
    for place, entry in enumerate(listed):
        if not entry.held:
            lacks = _lacks(entry, slots, keys)
            if lacks is None:
                listed[place] = entry = entry._replace(held=True)
            else:
                lacking[entry.id] = lacks
            take(entry)
    return [[*entry] for entry in listed], lacking


def _lacks(entry: _LeaseEntry, slots: Mapping[str, int], keys: Mapping[str, list[bool]]) -> str | None:
    if any(not (entry.shared and beside) for key in entry.keys for beside in keys.get(key, ())):
        return "what it works on is in use"
    full = [most for slot, most in entry.slots.items() if slots.get(slot, 0) >= most]
    return f"{full[0]} calls run already, the most that may run at once" if full else None


class _CallLease:
    """The lease of `SharedLimits.lease`.

    Attributes:
        outer: None; see `Limiter`.
        had: Whether it has everything it asked for.
        busy_reason: The reason why it has not.
    """

    outer: None = None

    def __init__(self, keeper: _Keeper, slots: dict[str, int], keys: list[str], shared: bool) -> None:
        self._keeper = keeper
        self._waiter: asyncio.Future[None] | None = None
        self.wanted = slots, keys, shared
        self.had = False
        self.busy_reason = "what counts the calls of all programs has not answered"

    async def acquire(self, deadline: float | None = None, group: object = None, timer: Timer | None = None) -> bool:
        """Wait for all of it until the deadline of `timer`, or of the loop. Return whether it was acquired."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            self._keeper.ask(self)
            await wait_until(self._waiter, deadline, timer)
        except StoreError as error:
            self.fail(error)
        except BaseException:
            self.release()
            raise
        had = self.had
        if not had:
            self.release()
        return had

    def release(self) -> None:
        """Release the lease or withdraw the request; from any thread."""
        self._keeper.leave(self)

    def tell(self) -> None:
        """Wake the waiting call, from any thread."""
        waiter = self._waiter
        if waiter is not None:
            wake_from_any_thread(waiter)

    def fail(self, error: StoreError) -> None:
        """End the wait without a lease; from any thread."""
        log.error("no call is run whose limits are shared: %s", error)
        self.busy_reason = "what counts the calls of all programs cannot be reached"
        self.tell()


# -- the thread --------------------------------------------------------------------------------------------------------


class _ChangeOrder(Generic[T]):
    def __init__(self, change: Change[T]) -> None:
        self.change = change
        self.future: Future[T] = Future()


class _Keeper:
    """The thread of one `shared(…)`. It carries out orders and renews the leases of this program.

    It runs while there is something to do, and a second longer.
    """

    def __init__(self, store: Store, place: str, seconds: float, clock: Clock) -> None:
        self._store = store
        self._place = place
        self._seconds = seconds
        self._clock = clock
        self._begin_anew()
        # Exit functions run in reverse order: this one runs before the earlier one that closes the journal.
        atexit.register(_flush_at_exit, weakref.ref(self))

    def _begin_anew(self) -> None:
        """Reset everything: a forked process does not own the state it has copied."""
        self._process = os.getpid()
        self._program = os.urandom(8).hex()
        self._numbers = count()
        self._awake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._orders: dict[str, list[_ChangeOrder[Any]]] = {}
        self._sweeps: dict[str, Callable[[JsonValue], bool]] = {}
        self._leases: dict[str, _CallLease] = {}
        self._due: float | None = None  # when to check the leases, by the machine's clock
        self._looks = 0
        self._failing: float | None = None  # the start of the failures
        self._busy = False

    # Methods for callers in any thread.

    def order(self, key: str, change: Change[T]) -> Future[T]:
        order = _ChangeOrder(change)
        with self._at_work():
            self._orders.setdefault(key, []).append(order)
        return order.future

    def sweep(self, prefix: str, is_over: Callable[[JsonValue], bool]) -> None:
        with self._at_work():
            self._sweeps[prefix] = is_over

    def ask(self, lease: _CallLease) -> None:
        with self._at_work():
            self._leases[f"{self._program}-{next(self._numbers)}"] = lease
            self._due, self._looks = 0.0, 0

    def leave(self, lease: _CallLease) -> None:
        with suppress(StoreError), self._at_work():
            for name in [name for name, one in self._leases.items() if one is lease]:
                del self._leases[name]
                self._due = 0.0

    def flush(self, seconds: float) -> None:
        """Wait until all orders, sweeps and due checks are done."""
        if self._process == os.getpid():
            with self._awake:
                self._awake.wait_for(self._is_done, seconds)

    def _is_done(self) -> bool:
        due = self._due is not None and self._due <= time.monotonic()
        return self._thread is None or not (self._orders or self._sweeps or self._busy or due)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        if self._process != os.getpid():
            self._begin_anew()
        with self._awake:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="ferrule-limits", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # no more threads, or the interpreter is ending
                    raise StoreError(f"no thread can be started: {error}") from error
                self._thread = thread
            yield
            self._awake.notify_all()

    # Methods of the thread itself.

    def _work(self) -> None:
        while self._has_work():
            orders, sweeps = self._take()
            for key, together in orders.items():
                self._carry_out(key, together)
            for prefix, is_over in sweeps.items():
                self._sweep(prefix, is_over)
            if self._due is not None and self._due <= time.monotonic():
                self._look()

    def _has_work(self) -> bool:
        """Wait for something to do. Return False if the thread is to end."""
        with self._awake:
            self._busy = False
            self._awake.notify_all()
            while not self._orders and not self._sweeps:
                pause = _LINGER if self._due is None else self._due - time.monotonic()
                if pause <= 0:
                    break
                if not self._awake.wait(pause) and self._due is None and not self._orders and not self._sweeps:
                    self._thread = None
                    return False
            self._busy = True
            return True

    def _take(self) -> tuple[dict[str, list[_ChangeOrder[Any]]], dict[str, Callable[[JsonValue], bool]]]:
        with self._awake:
            taken = self._orders, self._sweeps
            self._orders, self._sweeps = {}, {}
            return taken

    def _carry_out(self, key: str, orders: list[_ChangeOrder[Any]]) -> None:
        def change(value: JsonValue) -> tuple[JsonValue, list[Any]]:
            answers = []
            for order in orders:
                value, answered = order.change(value)
                answers.append(answered)
            return value, answers

        try:
            answers = self._changed(key, change)
        except StoreError as error:
            for order in orders:
                order.future.set_exception(error)
        else:
            for order, answered in zip(orders, answers, strict=True):
                order.future.set_result(answered)

    def _changed(self, key: str, change: Change[T]) -> T:
        """Change a value in spite of concurrent changes, and return the answer.

        Raises:
            StoreError: The change failed, or its outcome is unknown.
        """
        ends, pause = time.monotonic() + SECONDS, _FIRST_BACK_OFF
        while True:
            try:
                old = self._store.get(key)
                new, answered = change(old)
                if new == old or self._store.compare_and_set(key, old, new):
                    return answered
            except StoreError:
                raise
            except Exception as error:
                raise StoreError(f"what is kept at {key!r} cannot be counted by: {error!r}") from error
            if time.monotonic() > ends:
                raise StoreError(f"{key!r} was not changed: other programs were first for {SECONDS:g} s")
            time.sleep(_JITTER.uniform(0, pause))
            pause = min(2 * pause, _LONGEST_BACK_OFF)

    def _sweep(self, prefix: str, is_over: Callable[[JsonValue], bool]) -> None:
        try:
            for key, value in self._store.items(prefix).items():
                if read_row(value, is_over) is True:
                    self._store.compare_and_set(key, value, None)
        except Exception as error:
            log.warning("what is over was not taken away from what limits are kept by: %s", error)

    def _look(self) -> None:
        """Write the leases of this program to the store, and wake the calls with a granted lease."""
        mine = self._leases_now()
        try:
            lacking = self._changed(self._place, partial(self._kept, mine))
        except StoreError as error:
            self._failed(mine, error)
        else:
            self._failing = None
            for name, lease in mine.items():
                if name in lacking:
                    lease.busy_reason = lacking[name]
                elif not lease.had:
                    lease.had = True
                    lease.tell()
        with self._awake:
            if self._due is None and (self._leases or self._may_have_left()):
                self._due = time.monotonic() + self._pause()

    def _leases_now(self) -> dict[str, _CallLease]:
        with self._awake:
            self._due = None
            return dict(self._leases)

    def _failed(self, mine: Mapping[str, _CallLease], error: StoreError) -> None:
        """Fail the waiting leases. Held leases stay, and are written once the store works again."""
        self._failing = self._failing or time.monotonic()
        with self._awake:
            waiting = [name for name, lease in mine.items() if not lease.had]
            for name in waiting:
                self._leases.pop(name, None)
        for name in waiting:
            mine[name].fail(error)
        if len(waiting) < len(mine):
            log.warning("the slots and keys of running calls were not renewed: %s", error)

    def _may_have_left(self) -> bool:
        """Return whether the store may have unexpired entries of this program for leases that have ended."""
        return self._failing is not None and time.monotonic() - self._failing < self._seconds

    def _pause(self) -> float:
        if all(lease.had for lease in self._leases.values()):
            return self._seconds / 3
        self._looks += 1
        return _JITTER.uniform(0.5, 1.5) * min(_FIRST_LOOK * self._looks, _LONGEST_LOOK)

    def _kept(self, mine: Mapping[str, _CallLease], value: JsonValue) -> tuple[JsonValue, dict[str, str]]:
        """Return the current entries of all leases, and the reasons of the waiting leases of this program."""
        now = self._clock.now()
        entries: list[_LeaseEntry] = []
        for entry in [_LeaseEntry(*kept) for kept in value or ()]:
            if entry.id in mine:
                late = entry.until < now + self._seconds * 2 / 3
                entries.append(entry._replace(until=now + self._seconds) if late else entry)
            elif entry.until > now and not entry.id.startswith(self._program):
                entries.append(entry)
        there = {entry.id for entry in entries}
        entries += [
            _LeaseEntry(name, now + self._seconds, lease.had, *lease.wanted)
            for name, lease in mine.items()
            if name not in there
        ]
        kept, lacking = turns(entries)
        return kept or None, {name: lacks for name, lacks in lacking.items() if name in mine}


def _flush_at_exit(known: weakref.ref[_Keeper]) -> None:
    """Write the ends of leases to the store before the program ends."""
    keeper = known()
    if keeper is not None:
        keeper.flush(SECONDS)
