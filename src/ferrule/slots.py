"""Keys and slots that a call takes before it runs, with a bounded wait; never held while somebody is asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from ferrule.core.context import CURRENT, CallState
from ferrule.core.keys import Hold, KeyLocks
from ferrule.core.limiter import Limiter
from ferrule.core.plan import Plan
from ferrule.results import NOTHING_RUN, Halt, busy
from ferrule.waiting import Slots, Waiting, ancestors

log = logging.getLogger("ferrule")
Held: TypeAlias = "list[Limiter | Hold]"


async def taken(
    plan: Plan, state: CallState, keys: KeyLocks, waiting: Waiting, timeout: float | None, ready: int = 0
) -> Held:
    """Wait, at most `timeout` seconds, for all keys and slots.

    Keys that an ancestor holds are not waited for, and a slot that an ancestor holds is lent to one of its children at
    a time; the others take free ones. The first `ready` slots are there already.

    Raises:
        Halt: where they are not to be had in time, or never, or the keys are not known.
    """
    loop = asyncio.get_running_loop()
    until = None if timeout is None else loop.time() + timeout
    family = list(ancestors(state))
    held: Held = list(plan.limiters[:ready])
    slots: Slots = {}
    try:
        if plan.locks:
            held.append(await _locked(plan, state, keys, waiting, family, until))
        for early in plan.limiters[:ready]:
            early.release()
            held.remove(early)
        wanted = [_Wanted(limiter, _loan(limiter, family)) for limiter in _limiters(state)]
        group = (plan.name, state.given[1])
        while (occupied := _first_busy(wanted, slots)) is not None:
            if state.parent is not None and waiting.give_way(occupied.limiters):
                continue
            if slots and waiting.wanted_by_children(slots.values()):
                _give_back(slots)
            with _waits(plan, state, waiting, occupied.limiters, slots):
                found = await occupied.acquire(_left_until(until, loop), group)
            if found is None:
                raise busy(plan, f"{occupied.limiter.limit} calls run already, the most that may run at once")
            slots[occupied] = found
        return [*held, *slots.values()]
    except BaseException:
        for one in (*held, *slots.values()):
            one.release()
        raise


@contextmanager
def _waits(
    plan: Plan, state: CallState, waiting: Waiting, what: Hold | tuple[Limiter, ...], slots: Slots | None = None
) -> Iterator[None]:
    waiting.add(state, what, slots)
    try:
        if waiting.in_a_ring(state):
            raise busy(plan, "what it needs is in use by a call that in turn waits for what this one was called by")
        yield
    finally:
        waiting.remove(state)


class _Wanted:
    """A slot that a call needs: one of its own, or the one that its parent lends it."""

    __slots__ = ("limiter", "loan")

    def __init__(self, limiter: Limiter, loan: Limiter | None) -> None:
        self.limiter = limiter
        self.loan = loan

    @property
    def limiters(self) -> tuple[Limiter, ...]:
        """Where it may come from, the loan first."""
        return (self.limiter,) if self.loan is None else (self.loan, self.limiter)

    def try_acquire(self) -> Limiter | None:
        return next((limiter for limiter in self.limiters if limiter.try_acquire()), None)

    async def acquire(self, timeout: float | None, group: Hashable) -> Limiter | None:
        """Wait for either; `None` where there was none in time."""
        if self.loan is None:
            return self.limiter if await self.limiter.acquire(timeout, group) else None
        waits = {asyncio.ensure_future(one.acquire(timeout, group)): one for one in (self.limiter, self.loan)}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            for limiter in _got(waits):
                limiter.release()
            raise
        got = _got(waits)
        for spare in got[1:]:
            spare.release()
        return got[0] if got else None


def _got(waits: dict[asyncio.Task[bool], Limiter]) -> list[Limiter]:
    """Those of the slots waited for that were to be had; the waiting for the others ends."""
    return [limiter for wait, limiter in waits.items() if not wait.cancel() and wait.result()]


def _limiters(state: CallState) -> list[Limiter]:
    """The tool's slots, then the principal's, and the runner's, which all others want too, last."""
    plan: Plan = state.plan
    if not plan.shares:
        return list(plan.limiters)
    shares = [shares.of(state.given[1]) for shares in plan.shares]
    return [*plan.limiters[:-1], *shares, *plan.limiters[-1:]]


def _loan(limiter: Limiter, family: list[CallState]) -> Limiter | None:
    """The one slot that the nearest ancestor which has one of `limiter` lends to its descendants."""
    for ancestor in family:
        if limiter in _limiters(ancestor):
            if not ancestor.loans:
                ancestor.loans = {}
            loan: Limiter = ancestor.loans.setdefault(limiter, Limiter(1))
            return loan
    return None


async def _locked(
    plan: Plan, state: CallState, keys: KeyLocks, waiting: Waiting, family: list[CallState], until: float | None
) -> Hold:
    shared = plan.tool.trait("parallel", state.call.arguments)
    wanted = _resources(plan, state)
    timeout = _left_until(until, asyncio.get_running_loop())
    hold = keys.join(wanted, state, family, shared=shared)
    if hold.granted:
        return hold
    try:
        with _waits(plan, state, waiting, hold):
            if await hold.wait(timeout):
                return hold
        raise busy(plan, "what it works on is in use")
    except BaseException:
        hold.release()
        raise


def _first_busy(wanted: list[_Wanted], slots: Slots) -> _Wanted | None:
    """Take all slots, in their order: the first that is not free. What was taken of those after it is given back."""
    for place, one in enumerate(wanted):
        if one in slots:
            continue
        found = one.try_acquire()
        if found is None:
            _give_back(slots, wanted[place:])
            return one
        slots[one] = found
    return None


def _give_back(slots: Slots, those: Iterable[_Wanted] | None = None) -> None:
    for one in list(slots) if those is None else those:
        limiter = slots.pop(one, None)
        if limiter is not None:
            limiter.release()


def _resources(plan: Plan, state: CallState) -> list[str]:
    try:
        return resource_keys(state, state.call.arguments)
    except Exception as error:
        log.error("resources of tool %r raised", plan.name, exc_info=error)
        raise Halt("failed", f"{plan.name} could not be run: its resources are not known. {NOTHING_RUN}") from None


def resource_keys(state: CallState, arguments: Mapping[str, Any]) -> list[str]:
    """The keys that a call with these arguments works on, which may depend on its working directory or principal.

    Raises:
        Exception: whatever the tool's own function raises.
    """
    token = CURRENT.set(state)
    try:
        keys = state.plan.tool.resources(arguments)
        return [keys] if isinstance(keys, str) else [str(key) for key in keys]
    finally:
        CURRENT.reset(token)


def _left_until(until: float | None, loop: asyncio.AbstractEventLoop) -> float | None:
    return None if until is None else max(0.0, until - loop.time())
