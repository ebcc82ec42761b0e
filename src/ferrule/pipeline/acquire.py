"""The keys and slots that a call takes before it runs, with a bounded wait; never held while somebody is asked.

Keys come first, then the tool's slots, the principal's, the runner's, in one step what of these holds among all
programs, and last the thread or process, which the calls of all runners want: as all take them in this order, calls of
a runner never wait for each other in a ring. Beneath a call that holds a slot or a key, that limit and that key apply
anew among the calls that it makes. Whatever else a call waits for, the time is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from ferrule.executors import Job
from ferrule.pipeline.hiding import log_raised
from ferrule.pipeline.plan import Plan
from ferrule.pipeline.results import NOTHING_RUN, Rejected, busy, denied
from ferrule.pipeline.state import CallState, ancestors
from ferrule.scheduling.limiter import Limiter
from ferrule.scheduling.locks import Hold, KeyLocks
from ferrule.types import Coro, Lease
from ferrule.values.context import CURRENT

NESTED_TIMEOUT = 60.0
"""Seconds that a call made by another waits at most, where the runner's `queue_timeout` is `None`."""


class Holdings:
    """What a call holds from `acquire` to `release`.

    Attributes:
        limiters: The limits of which it has a slot each, and what it has among all programs.
        keys: The keys that it has.
        limiters_below: The limits that apply anew among the calls that it makes, by the limit that each stands for.
        locks_below: The same for keys.
        runs: How many runs of the handler, and of what goes round it inside, are under way.
        when_idle: What to do once none is.
        left: What still runs after it was given up, of the calls beneath it too.
    """

    # What few calls write is kept at the class.
    keys: tuple[Hold, ...] = ()
    limiters_below: dict[Limiter, Limiter] | None = None
    locks_below: KeyLocks | None = None
    when_idle: tuple[Callable[[], object], ...] = ()
    left: tuple[Job, ...] = ()

    def __init__(self, limiters: tuple[Limiter | Lease, ...]) -> None:
        self.limiters = limiters
        self.runs = 0

    def end(self) -> None:
        """A run of the handler, or of what goes round it inside, has ended."""
        if self.when_idle and not self.runs:
            callbacks, self.when_idle = self.when_idle, ()
            for callback in callbacks:
                callback()

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` once no run is under way, also one that a middleware has shielded."""
        if self.runs:
            self.when_idle = (*self.when_idle, callback)
        else:
            callback()


def acquire(plan: Plan, state: CallState) -> Holdings | Coro[Holdings]:
    """Take all keys and slots: at once where all are free, else by the coroutine that is returned.

    Raises:
        Rejected: where the call may not run beside others, or its keys are not known. So does the coroutine, also where
            they are not to be had in time.
    """
    limiters, entry = plan.limiters, state.origin.entry
    if entry is not None and entry.beside and not plan.tool.trait("parallel", state.call.arguments):
        what = f"{plan.name} may not run beside other calls with the arguments as they were changed"
        raise Rejected("limited", f"{what}. {NOTHING_RUN} Send it alone.")
    if plan.limits_vary or state.parent is not None:
        limiters = _limits_for(plan, state)
        if plan.locks or plan.leases is not None:
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
    return Holdings(limiters)


def end_of_wait(state: CallState) -> float | None:
    """Until when it waits at most, from now on, for what it needs to run; `None` for ever."""
    runner = state.plan.runner
    timeout = runner.queue_timeout
    if timeout is None and state.parent is not None:
        timeout = NESTED_TIMEOUT
    return None if timeout is None else runner.timer.time() + timeout


async def _wait_for_all(plan: Plan, state: CallState, limiters: tuple[Limiter, ...]) -> Holdings:
    """Wait for the keys, then for one slot after the other, and for what it takes among all programs.

    Raises:
        Rejected: where one is not to be had in time.
    """
    runner, timer, until = plan.runner, plan.runner.timer, end_of_wait(state)
    holdings = Holdings(())
    runner.waiting.add(state)
    try:
        if plan.locks:
            holdings.keys = _keys(plan, state)
            for hold in holdings.keys:
                if not await hold.wait(until, timer):
                    raise busy(plan, "what it works on is in use")
        for limiter in _with_lease(plan, state, limiters, holdings.keys):
            if not await limiter.acquire(until, (plan.name, state.fields.principal), timer):
                raise busy(plan, limiter.full)
            holdings.limiters = (*holdings.limiters, limiter)
        if plan.disabled is not None:  # since it began to wait
            raise denied(plan.disabled)
    except BaseException:
        release(state, holdings)
        raise
    finally:
        runner.waiting.discard(state)
    return holdings


def _with_lease(
    plan: Plan, state: CallState, limiters: tuple[Limiter, ...], holds: tuple[Hold, ...]
) -> tuple[Limiter | Lease, ...]:
    """The limits and, before the thread or process, those of them and the keys that hold among all programs too; what a
    call above has of these holds anew beneath it, in this program alone."""
    if plan.leases is None:
        return limiters
    slots = {limiter.name: limiter.limit for limiter in limiters if limiter.name is not None}
    keys = [key for hold in holds for key in hold.keys if _locks_for(key, state) is plan.runner.locks]
    if not slots and not keys:
        return limiters
    lease = plan.leases.lease(slots, keys, shared=any(hold.shared for hold in holds))
    before = len(limiters) - (plan.place is not None)
    return (*limiters[:before], lease, *limiters[before:])


def _keys(plan: Plan, state: CallState) -> tuple[Hold, ...]:
    """Ask for the keys that the call works on."""
    try:
        keys = resource_keys(state, state.call.arguments)
    except Exception as error:
        log_raised(state, "resources of tool %r raised", plan.name, error=error)
        raise Rejected("failed", f"{plan.name} could not be run: its resources are not known. {NOTHING_RUN}") from None
    shared = plan.tool.trait("parallel", state.call.arguments)
    places: dict[KeyLocks, list[str]] = {}
    for key in keys:
        places.setdefault(_locks_for(key, state), []).append(key)
    return tuple([locks.join(keys, shared=shared) for locks, keys in places.items()])


def _limits_for(plan: Plan, state: CallState) -> tuple[Limiter, ...]:
    """The limits that hold for a call, in the order in which it takes their slots."""
    limiters = plan.limiters
    if plan.principal_limits:
        own = [limits.of(state.fields.principal) for limits in plan.principal_limits]
        own_at = plan.tool.limiter is not None
        limiters = (*limiters[:own_at], *own, *limiters[own_at:])
    if state.parent is not None:
        limiters = tuple([_below(limiter, state) for limiter in limiters])
    return limiters


def _below(limiter: Limiter, state: CallState) -> Limiter:
    """The limit itself, or the one that stands for it beneath the nearest call which holds a slot of it."""
    holder = _holder(state, lambda held: any(one is limiter or one.origin is limiter for one in held.limiters))
    if holder is None:
        return limiter
    below = holder.limiters_below = holder.limiters_below or {}
    return below.setdefault(limiter, Limiter(limiter.limit, origin=limiter))


def _locks_for(key: str, state: CallState) -> KeyLocks:
    """The runner's locks, or those beneath the nearest call which holds the key."""
    holder = _holder(state, lambda held: any(key in hold.keys for hold in held.keys))
    if holder is None:
        return state.plan.runner.locks
    holder.locks_below = holder.locks_below or KeyLocks()
    return holder.locks_below


def _holder(state: CallState, holds: Callable[[Holdings], bool]) -> Holdings | None:
    """What the nearest call above has that `holds`."""
    above = (call.holdings for call in ancestors(state))
    return next((held for held in above if held is not None and holds(held)), None)


def resource_keys(state: CallState, arguments: Mapping[str, object]) -> list[str]:
    """The keys that a call with these arguments works on, which may depend on its working directory or principal.

    Raises:
        Exception: whatever the tool's own function raises.
    """
    token = CURRENT.set(state)  # type: ignore[arg-type]
    try:
        resources = state.plan.tool.resources
        keys = [] if resources is None else resources(arguments)
        return [keys] if isinstance(keys, str) else [str(key) for key in keys]
    finally:
        CURRENT.reset(token)


def abandon(state: CallState, job: Job) -> None:
    """Note that a handler goes on after it was given up; who made the call keeps its keys and slots as long, too."""
    for call in (state, *ancestors(state)):
        if call.holdings is not None and call.plan.runner is state.plan.runner:
            call.holdings.left = (*call.holdings.left, job)
            call.attempt.left_running = True


def release(state: CallState, holdings: Holdings) -> None:
    """Give back what a call had. What was given up and still runs is counted, and keeps it until its last part ends."""
    if holdings.runs:  # a middleware inside, or a deadline, has left something running
        abandon(state, holdings)
    state.holdings = None
    if holdings.left:
        _give_back_at_end(state, holdings)
        return
    for limiter in holdings.limiters:
        limiter.release()
    for hold in holdings.keys:
        hold.release()


def _give_back_at_end(state: CallState, holdings: Holdings) -> None:
    running, abandoned = set(holdings.left), state.plan.runner.abandoned
    taken: list[Limiter | Lease | Hold] = [*holdings.limiters, *holdings.keys]

    def ended(job: Job) -> None:  # perhaps called twice, and by threads: each `pop` is atomic
        running.discard(job)
        while taken and not running:
            with suppress(IndexError):
                taken.pop().release()  # here and now: the loop may stand still, or be closed before its next turn
        abandoned.pop(job, None)

    for job in set(running):
        when_done = partial(ended, job)
        abandoned[job] = (*abandoned.get(job, ()), when_done)
        job.when_done(when_done)
