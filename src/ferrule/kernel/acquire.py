"""Acquire the keys and slots of a call before it runs, and release them afterwards.

Every call takes them in this order, so calls of one runner cannot deadlock:

1. its keys (the resources that the tool names)
2. a slot of the tool, then of the principal, then of the runner
3. a lease, if slots or keys are shared with other programs
4. a thread or worker process, shared by all runners

A call holds nothing while an approver is asked about it. Its ancestors keep their slots and keys meanwhile, and its
batch keeps the order of its keys. A running handler that calls `context.ask` keeps its slots.

A nested call never waits for a slot or key of its own ancestors: the calls below a holder compete among themselves for
a nested limiter or nested locks. Every other wait of a nested call ends after `waits.slot`, or 60 s if that is None
(`kernel/deadline.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from ferrule.definition.tool import Tool
from ferrule.executors import Job
from ferrule.kernel.deadline import wait_deadline
from ferrule.kernel.plan import Plan
from ferrule.kernel.redact import log_exception
from ferrule.kernel.results import NOTHING_RUN, Rejected, busy
from ferrule.kernel.state import CallState, ancestors
from ferrule.scheduling.limiter import Limiter
from ferrule.scheduling.locks import Hold, KeyLocks
from ferrule.types import Coro, Lease
from ferrule.values.context import CURRENT
from ferrule.values.frozen import JsonObject


class HeldSlots:
    """The slots and keys held by one call, from `acquire` to `release`.

    Attributes:
        slots: All that `release` gives back: its holds on keys, one slot of each limiter, and its lease.
        key_holds: Its holds on resource keys alone.
        nested_limiters: For calls below this one: the limiter to use in place of each limiter held here.
        nested_locks: For calls below this one: the locks to use for the keys held here.
        active_runs: How many runs of the handler and its inner middleware are in progress.
        idle_callbacks: Callbacks for when no run is in progress any more.
        abandoned_jobs: Abandoned jobs of this call and of calls below it, still running.
    """

    # Class attributes are defaults that few calls overwrite.
    key_holds: tuple[Hold, ...] = ()
    nested_limiters: dict[Limiter, Limiter] | None = None
    nested_locks: KeyLocks | None = None
    idle_callbacks: tuple[Callable[[], object], ...] = ()
    abandoned_jobs: tuple[Job, ...] = ()

    def __init__(self, slots: tuple[Limiter | Lease | Hold, ...]) -> None:
        self.slots = slots
        self.active_runs = 0

    def on_run_end(self) -> None:
        """Call the idle callbacks if no run is in progress."""
        if self.idle_callbacks and not self.active_runs:
            callbacks, self.idle_callbacks = self.idle_callbacks, ()
            for callback in callbacks:
                callback()

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` when no run is in progress. Runs shielded by a middleware count."""
        if self.active_runs:
            self.idle_callbacks = (*self.idle_callbacks, callback)
        else:
            callback()


# -- acquire -----------------------------------------------------------------------------------------------------------


def acquire(plan: Plan, state: CallState) -> HeldSlots | Coro[HeldSlots]:
    """Acquire all keys and slots of the call. Return a coroutine if it may have to wait.

    Raises:
        Rejected: (by the coroutine) The keys cannot be computed, or the wait takes too long.
    """
    limiters = plan.limiters
    if plan.has_call_limits or state.parent is not None:
        limiters = _list_limiters(plan, state)
        if plan.has_resources or plan.leases is not None:
            return _acquire_all(plan, state, limiters)
    taken = 0
    try:
        for limiter in limiters:
            limiter.acquire_nowait()
            taken += 1
    except IndexError:  # no slot is free
        for limiter in limiters[:taken]:
            limiter.release()
        return _acquire_all(plan, state, limiters)
    return HeldSlots(limiters)


async def _acquire_all(plan: Plan, state: CallState, limiters: tuple[Limiter, ...]) -> HeldSlots:
    """Wait for the keys, then for each slot, and for the lease.

    Raises:
        Rejected: The wait took too long, or the keys cannot be computed.
    """
    timer, deadline = plan.runner.timer, wait_deadline(state)
    held = HeldSlots(())
    plan.runner.waiting.add(state)
    try:
        if plan.has_resources:
            held.key_holds = held.slots = _queue_for_keys(plan, state)
            for hold in held.key_holds:
                if not await hold.wait(deadline, timer):
                    raise busy(plan, "what it works on is in use")
        for slot in _insert_lease(plan, state, limiters, held.key_holds):
            if not await slot.acquire(deadline, (plan.name, state.fields.principal), timer):
                raise busy(plan, slot.busy_reason)
            held.slots = (*held.slots, slot)
    except BaseException:
        release(state, held)
        raise
    finally:
        plan.runner.waiting.discard(state)
    return held


def _queue_for_keys(plan: Plan, state: CallState) -> tuple[Hold, ...]:
    """Join the queue of every resource key of the call.

    Raises:
        Rejected: The tool's `resources` function raised.
    """
    try:
        keys = find_resource_keys(state, state.call.arguments)
    except Exception as error:
        log_exception(state, "resources of tool %r raised", plan.name, error=error)
        raise Rejected("failed", f"{plan.name} could not be run: its resources are not known. {NOTHING_RUN}") from None
    shared = can_share_keys(plan.tool, state.call.arguments)
    keys_by_locks: dict[KeyLocks, list[str]] = {}
    for key in keys:
        keys_by_locks.setdefault(_choose_locks(key, state), []).append(key)
    return tuple([locks.request(keys, shared=shared) for locks, keys in keys_by_locks.items()])


def find_resource_keys(state: CallState, arguments: Mapping[str, object]) -> list[str]:
    """Return the resource keys of a call with these arguments. The tool's `resources` may read the call's context.

    Raises:
        Exception: The tool's function raised it.
    """
    token = CURRENT.set(state)  # type: ignore[arg-type]
    try:
        resources = state.plan.tool.resources
        keys = [] if resources is None else resources(arguments)
        return [keys] if isinstance(keys, str) else [str(key) for key in keys]
    finally:
        CURRENT.reset(token)


def can_share_keys(tool: Tool, arguments: JsonObject) -> bool:
    """Return whether a call may hold its keys together with other such calls."""
    return tool.trait("read_only", arguments) and tool.trait("parallel", arguments)


def _insert_lease(
    plan: Plan, state: CallState, limiters: tuple[Limiter, ...], holds: tuple[Hold, ...]
) -> tuple[Limiter | Lease, ...]:
    """Insert one lease for all slots and keys shared with other programs, before the thread or worker process.

    Nested limiters and locks exist in this program only, so the lease leaves them out.
    """
    if plan.leases is None:
        return limiters
    slots = {limiter.name: limiter.limit for limiter in limiters if limiter.name is not None}
    keys = [key for hold in holds for key in hold.keys if _choose_locks(key, state) is plan.runner.locks]
    if not slots and not keys:
        return limiters
    lease = plan.leases.lease(slots, keys, shared=any(hold.shared for hold in holds))
    position = len(limiters) - (plan.executor_limiter is not None)
    return (*limiters[:position], lease, *limiters[position:])


# -- choose limiters and locks -----------------------------------------------------------------------------------------


def _list_limiters(plan: Plan, state: CallState) -> tuple[Limiter, ...]:
    """Return the limiters of the call in the order of acquisition: tool, principal, runner, thread or process."""
    limiters = plan.limiters
    if plan.principal_limits:
        principal_limiters = [limits.get_limiter(state.fields.principal) for limits in plan.principal_limits]
        position = plan.tool.limiter is not None
        limiters = (*limiters[:position], *principal_limiters, *limiters[position:])
    if state.parent is not None:
        limiters = tuple([_choose_limiter(limiter, state) for limiter in limiters])
    return limiters


def _choose_limiter(limiter: Limiter, state: CallState) -> Limiter:
    """Return the limiter, or its nested one if an ancestor holds a slot of it."""
    holder = _find_holder(state, lambda held: any(slot is limiter or slot.outer is limiter for slot in held.slots))
    if holder is None:
        return limiter
    nested = holder.nested_limiters = holder.nested_limiters or {}
    return nested.setdefault(limiter, Limiter(limiter.limit, outer=limiter))


def _choose_locks(resource_key: str, state: CallState) -> KeyLocks:
    """Return the runner's locks, or the nested ones if an ancestor holds the key."""
    holder = _find_holder(state, lambda held: any(resource_key in hold.keys for hold in held.key_holds))
    if holder is None:
        return state.plan.runner.locks
    holder.nested_locks = holder.nested_locks or KeyLocks()
    return holder.nested_locks


def _find_holder(state: CallState, is_holder: Callable[[HeldSlots], bool]) -> HeldSlots | None:
    """Return the slots of the nearest ancestor with `is_holder` true, or None."""
    all_held = (call.held for call in ancestors(state))
    return next((held for held in all_held if held is not None and is_holder(held)), None)


# -- release -----------------------------------------------------------------------------------------------------------


def release(state: CallState, held: HeldSlots) -> None:
    """Release the keys and slots, or leave them to abandoned jobs until the last one ends."""
    if held.active_runs:  # an inner middleware or the deadline left a run behind
        leave_running(state, held)
    state.held = None
    if held.abandoned_jobs:
        _release_after_jobs(state, held)
        return
    for slot in held.slots:
        slot.release()


def leave_running(state: CallState, job: Job) -> None:
    """Record that `job` goes on. The call and its ancestors in this runner keep their slots and keys until it ends."""
    for call in (state, *ancestors(state)):
        if call.held is not None and call.plan.runner is state.plan.runner:
            call.held.abandoned_jobs = (*call.held.abandoned_jobs, job)
            call.attempt.left_running = True


def _release_after_jobs(state: CallState, held: HeldSlots) -> None:
    """Release the slots and keys when the last abandoned job ends.

    A job may end in any thread. They are released in that thread, because the loop may be blocked or closed.
    """
    running, abandoned = set(held.abandoned_jobs), state.plan.runner.abandoned
    left = list(reversed(held.slots))  # the keys first: a lease of somebody else may raise

    def on_job_end(job: Job) -> None:
        running.discard(job)
        while left and not running:
            with suppress(IndexError):  # `pop` is atomic: another thread may have taken the last one
                left.pop().release()
        abandoned.discard(job)

    for job in set(running):
        abandoned.add(job)
        job.when_done(partial(on_job_end, job))
