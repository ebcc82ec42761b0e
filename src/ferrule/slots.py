"""Keys and slots that a call takes before it runs, with a bounded wait; never held while somebody is asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from ferrule.core.context import CURRENT, CallState
from ferrule.core.keys import Hold, KeyLocks
from ferrule.core.limiter import Limiter
from ferrule.core.plan import Plan
from ferrule.results import NOTHING_RUN, Halt, busy

log = logging.getLogger("ferrule")
Held: TypeAlias = "list[Limiter | Hold]"


async def taken(plan: Plan, state: CallState, keys: KeyLocks, timeout: float | None, ready: int = 0) -> Held:
    """Wait, at most `timeout` seconds, for all keys and slots, without those that an ancestor holds.

    The first `ready` slots are there already.

    Raises:
        Halt: where they are not to be had in time, or the keys are not known.
    """
    loop = asyncio.get_running_loop()
    until = None if timeout is None else loop.time() + timeout
    family = list(_ancestors(state))
    held: Held = list(plan.limiters[:ready])
    try:
        if plan.locks:
            held.append(await _locked(plan, state, keys, family, until))
        wanted = _limiters(state) if plan.shares else list(plan.limiters)
        if family:
            theirs = {limiter for one in family for limiter in _limiters(one)}
            wanted = [limiter for limiter in wanted if limiter not in theirs]
        for early in plan.limiters[:ready]:
            early.release()
            held.remove(early)
        while (occupied := _first_busy(wanted, held)) is not None:
            if not await occupied.acquire(_left_until(until, loop), (plan.name, state.given[1])):
                raise busy(plan, f"{occupied.limit} calls run already, the most that may run at once")
            held.append(occupied)
    except BaseException:
        for one in held:
            one.release()
        raise
    return held


def _limiters(state: CallState) -> list[Limiter]:
    """The tool's slots, then the principal's, and the runner's, which all others want too, last."""
    plan: Plan = state.plan
    shares = [shares.of(state.given[1]) for shares in plan.shares]
    return [*plan.limiters[:-1], *shares, *plan.limiters[-1:]]


async def _locked(plan: Plan, state: CallState, keys: KeyLocks, family: list[CallState], until: float | None) -> Hold:
    shared = plan.tool.trait("parallel", state.call.arguments)
    wanted = _resources(plan, state)
    timeout = _left_until(until, asyncio.get_running_loop())
    hold = await keys.acquire(wanted, state, family, shared=shared, timeout=timeout)
    if hold is None:
        raise busy(plan, "what it works on is in use")
    return hold


def _first_busy(wanted: list[Limiter], held: Held) -> Limiter | None:
    """Take all slots, or give back those that were taken: the first that is not free.

    Who held one slot while it waits for another could be waited for by the one that it waits for.
    """
    for limiter in wanted:
        if limiter in held:
            continue
        if not limiter.try_acquire():
            for one in [one for one in held if one in wanted]:
                one.release()
                held.remove(one)
            return limiter
        held.append(limiter)
    return None


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


def _ancestors(state: CallState) -> Iterable[CallState]:
    parent = state.parent
    while parent is not None:
        yield parent
        parent = parent.parent
