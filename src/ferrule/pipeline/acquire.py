"""The keys and slots that a call takes before it runs, with a bounded wait; never held while somebody is asked.

Keys come first, then the tool's slots, the principal's, and the runner's, which all others want too, last: as all take
them in this order, calls of a runner never wait for each other in a ring. Beneath a call that holds a slot or a key,
that limit and that key apply anew among the calls that it makes. Whatever else a call waits for, the time is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from ferrule.executors import Job
from ferrule.pipeline.hiding import log_raised
from ferrule.pipeline.plan import Plan
from ferrule.pipeline.results import NOTHING_RUN, Rejected, busy, denied
from ferrule.pipeline.state import CallState, ancestors
from ferrule.scheduling.limiter import Limiter
from ferrule.scheduling.locks import Hold, KeyLocks
from ferrule.types import Coro
from ferrule.values.context import CURRENT

NESTED_TIMEOUT = 60.0
"""Seconds that a call made by another waits at most, where the runner's `queue_timeout` is `None`."""


def acquire(plan: Plan, state: CallState) -> Coro[None] | None:
    """Take all keys and slots: at once where all are free, else by the coroutine that is returned.

    Raises:
        Rejected: where the call may not run beside others, or its keys are not known. So does the coroutine, also where
            they are not to be had in time.
    """
    limiters = plan.limiters
    if plan.limits_vary or state.parent is not None or state.beside:
        if state.beside and not plan.tool.trait("parallel", state.call.arguments):
            what = f"{plan.name} may not run beside other calls with the arguments as they were changed"
            raise Rejected("limited", f"{what}. {NOTHING_RUN} Send it alone.")
        limiters = _limits_for(plan, state)
        if plan.locks:
            return _wait_for_all(plan, state, limiters)
    taken = 0
    try:
        for limiter in limiters:
            limiter.take()
            taken += 1
    except IndexError:
        for limiter in limiters[:taken]:
            limiter.release()
        return _wait_for_all(plan, state, limiters)
    state.held = limiters
    return None


async def _wait_for_all(plan: Plan, state: CallState, limiters: tuple[Limiter, ...]) -> None:
    """Wait for the keys, then for one slot after the other.

    Raises:
        Rejected: where one is not to be had in time.
    """
    runner, clock = plan.runner, asyncio.get_running_loop().time
    timeout = runner.queue_timeout
    if timeout is None and state.parent is not None:
        timeout = NESTED_TIMEOUT
    until = None if timeout is None else clock() + timeout
    runner.waiting.add(state)
    try:
        if plan.locks:
            await _wait_for_keys(plan, state, until)
        for limiter in limiters:
            left = None if until is None else max(0.0, until - clock())
            if not await limiter.acquire(left, state.group):
                raise busy(plan, f"{limiter.limit} calls run already, the most that may run at once")
            state.held = (*state.held, limiter)
        if plan.disabled is not None:  # since it began to wait
            raise denied(plan.disabled)
    except BaseException:
        release(state)
        raise
    finally:
        runner.waiting.discard(state)


async def _wait_for_keys(plan: Plan, state: CallState, until: float | None) -> None:
    try:
        keys = resource_keys(state, state.call.arguments)
    except Exception as error:
        log_raised(state, "resources of tool %r raised", plan.name, error=error)
        raise Rejected("failed", f"{plan.name} could not be run: its resources are not known. {NOTHING_RUN}") from None
    shared = plan.tool.trait("parallel", state.call.arguments)
    places: dict[KeyLocks, list[str]] = {}
    for key in keys:
        places.setdefault(_locks_for(key, state), []).append(key)
    state.holds = tuple([locks.join(keys, shared=shared) for locks, keys in places.items()])
    for hold in state.holds:
        left = None if until is None else max(0.0, until - asyncio.get_running_loop().time())
        if not hold.granted and not await hold.wait(left):
            raise busy(plan, "what it works on is in use")


def _limits_for(plan: Plan, state: CallState) -> tuple[Limiter, ...]:
    """The limits that hold for a call, in the order in which it takes their slots."""
    limiters = plan.limiters
    if plan.principal_limits:
        own = [limits.of(state.fields.principal) for limits in plan.principal_limits]
        limiters = (*limiters[:-1], *own, *limiters[-1:])
    if state.parent is not None:
        limiters = tuple([_below(limiter, state) for limiter in limiters])
    return limiters


def _below(limiter: Limiter, state: CallState) -> Limiter:
    """The limit itself, or the one that stands for it beneath the nearest call which holds a slot of it."""
    for parent in ancestors(state):
        if any(held is limiter or held.origin is limiter for held in parent.held):
            parent.below = parent.below or {}
            if limiter not in parent.below:
                parent.below[limiter] = Limiter(limiter.limit, origin=limiter)
            return parent.below[limiter]
    return limiter


def _locks_for(key: str, state: CallState) -> KeyLocks:
    """The runner's locks, or those beneath the nearest call which holds the key."""
    for parent in ancestors(state):
        if any(key in hold.keys for hold in parent.holds):
            parent.locks_below = parent.locks_below or KeyLocks()
            return parent.locks_below
    return state.plan.runner.locks


def resource_keys(state: CallState, arguments: Mapping[str, object]) -> list[str]:
    """The keys that a call with these arguments works on, which may depend on its working directory or principal.

    Raises:
        Exception: whatever the tool's own function raises.
    """
    token = CURRENT.set(state)
    try:
        resources = state.plan.tool.resources
        keys = [] if resources is None else resources(arguments)
        return [keys] if isinstance(keys, str) else [str(key) for key in keys]
    finally:
        CURRENT.reset(token)


def release(state: CallState) -> None:
    """Give back what a call had. What was given up and still runs is counted, and keeps it until its last part ends."""
    held, state.held = state.held, ()  # `around` may try again, with slots of its own
    if state.handlers:  # a middleware inside, or a deadline, has left something running
        state.abandon(state)
    if len(state.abandoned) > state.counted:
        _release_at_end(state, held)
        return
    for limiter in held:
        limiter.release()
    holds, state.holds = state.holds, ()
    for hold in holds:
        hold.release()


def _release_at_end(state: CallState, held: tuple[Limiter, ...]) -> None:
    taken: list[Limiter | Hold] = [*held, *state.holds]
    running = dict.fromkeys(state.abandoned[state.counted :])
    state.holds, state.counted = (), len(state.abandoned)
    abandoned = state.plan.runner.abandoned

    def ended(job: Job) -> None:  # perhaps told twice, and by threads whose loop is closed: each `pop` is atomic
        abandoned.pop(job, None)
        running.pop(job, None)
        while taken and not running:
            with suppress(IndexError):
                taken.pop().release()

    for job in list(running):
        when_done = partial(ended, job)
        abandoned[job] = (*abandoned.get(job, ()), when_done)
        job.when_done(when_done)
