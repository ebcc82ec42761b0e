"""Keys and slots that a call takes before it runs, with a bounded wait; never held while somebody is asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, TypeAlias

from ferrule.pipeline.plan import Plan
from ferrule.pipeline.results import NOTHING_RUN, Halt, busy
from ferrule.pipeline.waiting import Slots, Waiting, ancestors
from ferrule.scheduling.limiter import Limiter
from ferrule.scheduling.locks import Hold, KeyLocks
from ferrule.values.context import CURRENT, CallState

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
    until = None if timeout is None else asyncio.get_running_loop().time() + timeout
    family = list(ancestors(state))
    hold: Hold | None = None
    slots: Slots = {}
    for early in plan.limiters[:ready]:
        early.release()
    try:
        if plan.locks:
            shared = plan.tool.trait("parallel", state.call.arguments)
            hold = keys.join(_resources(plan, state), state, family, shared=shared)
        wanted = [_Wanted(limiter, _loan(limiter, family)) for limiter in _limiters(state)]
        while (lacks := _lacking(hold, wanted, slots)) is not None:
            await _waited(plan, state, waiting, lacks, hold, slots, until)
        return [*slots.values()] if hold is None else [hold, *slots.values()]
    except BaseException:
        _give_back(slots)
        if hold is not None:
            hold.release()
        raise


def _lacking(hold: Hold | None, wanted: list[_Wanted], slots: Slots) -> Hold | _Wanted | None:
    """Take what can be had; the first that cannot, the keys before the slots."""
    if hold is not None and not hold.try_acquire():
        return hold
    occupied = _first_busy(wanted, slots)
    return hold if occupied is None and hold is not None and not hold.begin() else occupied


async def _waited(
    plan: Plan,
    state: CallState,
    waiting: Waiting,
    lacks: Hold | _Wanted,
    hold: Hold | None,
    slots: Slots,
    until: float | None,
) -> None:
    """Wait for the keys, or for a slot.

    A call that another one made may be what the others wait for: it passes its turn with the keys on, and gets the
    slots that those have who do not run yet.

    Raises:
        Halt: where it is not to be had in time, or never.
    """
    if state.parent is not None:
        if hold is not None and hold is not lacks:
            hold.put_off()
        if isinstance(lacks, _Wanted) and waiting.give_way(lacks.limiters):
            return
    if waiting.wanted_by_children(slots.values()):
        _give_back(slots)
    waiting.add(state, lacks if isinstance(lacks, Hold) else lacks.limiters, slots)
    try:
        if waiting.in_a_ring(state):
            raise busy(plan, "what it needs is in use by a call that in turn waits for what this one was called by")
        left = None if until is None else max(0.0, until - asyncio.get_running_loop().time())
        if isinstance(lacks, Hold):
            if not await lacks.wait(left):
                raise busy(plan, "what it works on is in use")
            return
        found = await lacks.acquire(left, (plan.name, state.given[1]))
    finally:
        waiting.remove(state)
    if found is None:
        raise busy(plan, f"{lacks.limiter.limit} calls run already, the most that may run at once")
    slots[lacks] = found


def give_back(state: CallState, held: Held) -> None:
    """Give back what a call had; a slot that it has lent goes by way of the child that has it."""
    for one in held:
        if state.loans and (loan := state.loans.get(one)) is not None:
            loan.end()
        else:
            one.release()


class Loan(Limiter):
    """The slot of a call that runs, for one of its children at a time."""

    __slots__ = ("_ended", "_slot", "of")

    def __init__(self, of: Limiter, slot: Limiter) -> None:
        super().__init__(1)
        self.of = of
        self._slot = slot
        self._ended = False

    def release(self) -> None:
        """Give it back: to the call that lent it, or in its place where that has ended."""
        if self._ended:
            self._slot.release()
        else:
            super().release()

    def end(self) -> None:
        """Give the slot back, now or when the child that has it does."""
        self._ended = True
        try:
            self.take()
        except IndexError:
            return
        self._slot.release()


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
        slot = next((one for one in ancestor.held if one is limiter or getattr(one, "of", None) is limiter), None)
        if slot is not None:
            if not ancestor.loans:
                ancestor.loans = {}
            loan: Limiter = ancestor.loans.setdefault(slot, Loan(limiter, slot))
            return loan
    return None


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
