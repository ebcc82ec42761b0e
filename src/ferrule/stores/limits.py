"""Limits among several programs: `share_limits(place)`, for runners, rates and budgets.

The limits count with values in a `Store`, changed by compare-and-set alone, in one thread for each `share_limits(…)`.
No call waits for a disk or a network on its event loop, and concurrent orders of many calls become one change. There
are two kinds of values. A rate or a budget has one value for each key, changed by an order (`SharedLimits.order`).
The slots and keys of calls are leases, all in one value, in the order of their requests:

    [id, until when, whether it is held, {slot: how many at most}, [key, …], whether its keys are shared]

Each program writes its own entries there, removes expired ones of other programs, and grants free slots and keys to
the next in line, whichever program they belong to. A call takes everything it needs in one step, so there is no
deadlock.
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
from ferrule.values.count import pluralize

__all__ = ["SECONDS", "Change", "SharedLimits", "grant_turns", "share_limits", "wait_for_answer"]

log = logging.getLogger("ferrule")
T = TypeVar("T")
Change: TypeAlias = Callable[[JsonValue], tuple[JsonValue, T]]
"""A function from a value to its new value and an answer.

It may be called several times and must have no side effects. See docs/limits.md#among-several-programs.
"""

SECONDS = 10.0
"""Seconds to wait for an answer of the store; then nothing runs. See docs/limits.md#among-several-programs."""
_LONGEST_KEY = 200
_IDLE_SECONDS = 1.0  # seconds before the idle thread ends
_FIRST_CHECK, _LONGEST_CHECK = 0.01, 0.05  # seconds between two checks whether others have released something
_JITTER = random.SystemRandom()  # independent in each process, forked ones too
_FIRST_BACK_OFF, _LONGEST_BACK_OFF = 0.001, 0.05  # seconds to wait after another program changed the value first


def share_limits(
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
    name_given: Any = name
    if not isinstance(name_given, str) or not name_given:
        raise DefinitionError(f"share_limits(name) must be a text that is not empty, not {name!r}")
    name_given = lease
    if isinstance(name_given, bool) or not isinstance(name_given, int | float) or not 0 < name_given < 1e9:
        raise DefinitionError(f"share_limits(lease) must be seconds above 0, not {lease!r}")
    store = _to_store(place)
    limits_thread = _LimitsThread(store, f"{name}/leases", float(lease), clock or MONOTONIC)
    return SharedLimits(store, name, float(lease), limits_thread)


def _to_store(place: Any) -> Store:
    if isinstance(place, str):
        if place and "://" not in place and "=" not in place:
            raise DefinitionError(f"share_limits({place!r}): for a file, write share_limits(Journal.open({place!r}))")
        return Postgres(place)
    store = place.store if isinstance(place, Journal) else place
    methods = (getattr(store, name, None) for name in ("get", "compare_and_set", "items"))
    if isinstance(store, type) or not all(map(callable, methods)):
        raise DefinitionError(
            "share_limits(place) must be a journal, such as Journal.open('calls.db'), the URL of a PostgreSQL "
            f"database, or a store with get, compare_and_set and items, not {place!r}"
        )
    return store


@dataclass(frozen=True, eq=False, slots=True)
class SharedLimits:
    """The limits of `share_limits`. See docs/limits.md#among-several-programs.

    Attributes:
        store: The store of the values.
        name: The prefix of all their keys.
        lease_seconds: The lifetime of a lease without renewal.
    """

    store: Store
    name: str
    lease_seconds: float
    _limits_thread: _LimitsThread = field(repr=False)

    def order(self, place: str, change: Change[T]) -> Future[T]:
        """Change the value at `place`, after all earlier orders for it. Return a future of the answer or a
        `StoreError`.

        Any thread may call this, and it does not wait. A failed order is not repeated, because it may have been carried
        out.

        Raises:
            StoreError: The program is ending.
        """
        return self._limits_thread.order(f"{self.name}/{place}", change)

    def sweep(self, places: str, is_over: Callable[[JsonValue], bool]) -> None:
        """Remove the expired values at all places with this prefix, without waiting for the store."""
        self._limits_thread.sweep(f"{self.name}/{places}", is_over)

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
        return _CallLease(self._limits_thread, dict(slots), sorted(keys), shared)


def _json_key(key: object) -> object:
    if key is None or isinstance(key, str):
        return key
    if isinstance(key, int):
        return int(key)
    if isinstance(key, tuple):
        return [_json_key(one) for one in key]
    raise TypeError(f"a key of a shared limit must be made of texts, whole numbers, None and tuples, not {key!r}")


async def wait_for_answer(order: Future[T]) -> T:
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


def grant_turns(entries: Iterable[JsonValue]) -> tuple[list[JsonValue], dict[str, str]]:
    """Return the entries, with the next ones in line held, and the reason of each entry that still waits. See
    docs/limits.md.

    First come, first served. A waiting entry blocks all later ones that want one of its keys, as a held entry does. It
    occupies no slots before it has everything.
    """
    listed = [_LeaseEntry(*entry) for entry in entries]
    slots: dict[str, int] = {}
    keys: dict[str, list[bool]] = {}
    obstacles: dict[str, str] = {}

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
            obstacle = _find_obstacle(entry, slots, keys)
            if obstacle is None:
                listed[place] = entry = entry._replace(held=True)
            else:
                obstacles[entry.id] = obstacle
            take(entry)
    return [[*entry] for entry in listed], obstacles


def _find_obstacle(entry: _LeaseEntry, slots: Mapping[str, int], keys: Mapping[str, list[bool]]) -> str | None:
    if any(not (entry.shared and beside) for key in entry.keys for beside in keys.get(key, ())):
        return "what it works on is in use"
    full = [most for slot, most in entry.slots.items() if slots.get(slot, 0) >= most]
    if not full:
        return None
    return f"{full[0]} {pluralize(full[0], 'call runs', 'calls run')} already, the most that may run at once"


class _CallLease:
    """The lease of `SharedLimits.lease`.

    Attributes:
        outer: None; see `Limiter`.
        had: Whether it has everything it asked for.
        busy_reason: The reason why it has not.
    """

    outer: None = None

    def __init__(self, limits_thread: _LimitsThread, slots: dict[str, int], keys: list[str], shared: bool) -> None:
        self._limits_thread = limits_thread
        self._waiter: asyncio.Future[None] | None = None
        self.wanted = slots, keys, shared
        self.had = False
        self.busy_reason = "the shared limits have not answered"

    async def acquire(self, deadline: float | None = None, group: object = None, timer: Timer | None = None) -> bool:
        """Wait for all of it until the deadline of `timer`, or of the loop. Return whether it was acquired."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            self._limits_thread.add_lease(self)
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
        self._limits_thread.remove_lease(self)

    def wake(self) -> None:
        """Wake the waiting call, from any thread."""
        waiter = self._waiter
        if waiter is not None:
            wake_from_any_thread(waiter)

    def fail(self, error: StoreError) -> None:
        """End the wait without a lease; from any thread."""
        log.error("no call with shared limits runs: %s", error)
        self.busy_reason = "the shared limits are unavailable"
        self.wake()


# -- the thread --------------------------------------------------------------------------------------------------------


class _ChangeOrder(Generic[T]):
    def __init__(self, change: Change[T]) -> None:
        self.change = change
        self.future: Future[T] = Future()


class _LimitsThread:
    """The thread of one `share_limits(…)`. It carries out orders and renews the leases of this program.

    It runs while there is something to do, and a second longer.
    """

    def __init__(self, store: Store, place: str, seconds: float, clock: Clock) -> None:
        self._store = store
        self._place = place
        self._seconds = seconds
        self._clock = clock
        self._reset()
        # Exit functions run in reverse order: this one runs before the earlier one that closes the journal.
        atexit.register(_flush_at_exit, weakref.ref(self))

    def _reset(self) -> None:
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
        self._checks = 0
        self._failing_since: float | None = None  # the start of the failures
        self._busy = False

    # Methods for callers in any thread.

    def order(self, key: str, change: Change[T]) -> Future[T]:
        order = _ChangeOrder(change)
        with self._wake_thread():
            self._orders.setdefault(key, []).append(order)
        return order.future

    def sweep(self, prefix: str, is_over: Callable[[JsonValue], bool]) -> None:
        with self._wake_thread():
            self._sweeps[prefix] = is_over

    def add_lease(self, lease: _CallLease) -> None:
        with self._wake_thread():
            self._leases[f"{self._program}-{next(self._numbers)}"] = lease
            self._due, self._checks = 0.0, 0

    def remove_lease(self, lease: _CallLease) -> None:
        with suppress(StoreError), self._wake_thread():
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
    def _wake_thread(self) -> Iterator[None]:
        if self._process != os.getpid():
            self._reset()
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
            orders, sweeps = self._take_work()
            for key, together in orders.items():
                self._execute_orders(key, together)
            for prefix, is_over in sweeps.items():
                self._sweep(prefix, is_over)
            if self._due is not None and self._due <= time.monotonic():
                self._update_leases()

    def _has_work(self) -> bool:
        """Wait for something to do. Return False if the thread is to end."""
        with self._awake:
            self._busy = False
            self._awake.notify_all()
            while not self._orders and not self._sweeps:
                pause = _IDLE_SECONDS if self._due is None else self._due - time.monotonic()
                if pause <= 0:
                    break
                if not self._awake.wait(pause) and self._due is None and not self._orders and not self._sweeps:
                    self._thread = None
                    return False
            self._busy = True
            return True

    def _take_work(self) -> tuple[dict[str, list[_ChangeOrder[Any]]], dict[str, Callable[[JsonValue], bool]]]:
        with self._awake:
            taken = self._orders, self._sweeps
            self._orders, self._sweeps = {}, {}
            return taken

    def _execute_orders(self, key: str, orders: list[_ChangeOrder[Any]]) -> None:
        def change(value: JsonValue) -> tuple[JsonValue, list[Any]]:
            answers = []
            for order in orders:
                value, result = order.change(value)
                answers.append(result)
            return value, answers

        try:
            answers = self._change_value(key, change)
        except StoreError as error:
            for order in orders:
                order.future.set_exception(error)
        else:
            for order, result in zip(orders, answers, strict=True):
                order.future.set_result(result)

    def _change_value(self, key: str, change: Change[T]) -> T:
        """Change a value in spite of concurrent changes, and return the answer.

        Raises:
            StoreError: The change failed, or its outcome is unknown.
        """
        deadline, pause = time.monotonic() + SECONDS, _FIRST_BACK_OFF
        while True:
            try:
                old = self._store.get(key)
                new, result = change(old)
                if new == old or self._store.compare_and_set(key, old, new):
                    return result
            except StoreError:
                raise
            except Exception as error:
                raise StoreError(f"the stored value {key!r} cannot be changed: {error!r}") from error
            if time.monotonic() > deadline:
                raise StoreError(f"{key!r} was not changed: other programs changed it first for {SECONDS:g} s")
            time.sleep(_JITTER.uniform(0, pause))
            pause = min(2 * pause, _LONGEST_BACK_OFF)

    def _sweep(self, prefix: str, is_over: Callable[[JsonValue], bool]) -> None:
        try:
            for key, value in self._store.items(prefix).items():
                if read_row(value, is_over) is True:
                    self._store.compare_and_set(key, value, None)
        except Exception as error:
            log.warning("the expired values of shared limits were not removed: %s", error)

    def _update_leases(self) -> None:
        """Write the leases of this program to the store, and wake the calls with a granted lease."""
        leases = self._list_leases()
        try:
            obstacles = self._change_value(self._place, partial(self._update_entries, leases))
        except StoreError as error:
            self._on_failure(leases, error)
        else:
            self._failing_since = None
            for name, lease in leases.items():
                if name in obstacles:
                    lease.busy_reason = obstacles[name]
                elif not lease.had:
                    lease.had = True
                    lease.wake()
        with self._awake:
            if self._due is None and (self._leases or self._may_have_entries()):
                self._due = time.monotonic() + self._pause()

    def _list_leases(self) -> dict[str, _CallLease]:
        with self._awake:
            self._due = None
            return dict(self._leases)

    def _on_failure(self, leases: Mapping[str, _CallLease], error: StoreError) -> None:
        """Fail the waiting leases. Held leases stay, and are written once the store works again."""
        self._failing_since = self._failing_since or time.monotonic()
        with self._awake:
            waiting = [name for name, lease in leases.items() if not lease.had]
            for name in waiting:
                self._leases.pop(name, None)
        for name in waiting:
            leases[name].fail(error)
        if len(waiting) < len(leases):
            log.warning("the slots and keys of running calls were not renewed: %s", error)

    def _may_have_entries(self) -> bool:
        """Return whether the store may have unexpired entries of this program for leases that have ended."""
        return self._failing_since is not None and time.monotonic() - self._failing_since < self._seconds

    def _pause(self) -> float:
        if all(lease.had for lease in self._leases.values()):
            return self._seconds / 3
        self._checks += 1
        return _JITTER.uniform(0.5, 1.5) * min(_FIRST_CHECK * self._checks, _LONGEST_CHECK)

    def _update_entries(self, leases: Mapping[str, _CallLease], value: JsonValue) -> tuple[JsonValue, dict[str, str]]:
        """Return the current entries of all leases, and the reasons of the waiting leases of this program."""
        now = self._clock.now()
        entries: list[_LeaseEntry] = []
        for entry in [_LeaseEntry(*stored) for stored in value or ()]:
            if entry.id in leases:
                is_late = entry.until < now + self._seconds * 2 / 3
                entries.append(entry._replace(until=now + self._seconds) if is_late else entry)
            elif entry.until > now and not entry.id.startswith(self._program):
                entries.append(entry)
        known_ids = {entry.id for entry in entries}
        entries += [
            _LeaseEntry(name, now + self._seconds, lease.had, *lease.wanted)
            for name, lease in leases.items()
            if name not in known_ids
        ]
        stored, obstacles = grant_turns(entries)
        return stored or None, {name: obstacle for name, obstacle in obstacles.items() if name in leases}


def _flush_at_exit(known: weakref.ref[_LimitsThread]) -> None:
    """Write the ends of leases to the store before the program ends."""
    limits_thread = known()
    if limits_thread is not None:
        limits_thread.flush(SECONDS)
