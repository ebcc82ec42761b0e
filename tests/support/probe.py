"""What tests want to know of the kernel that it does not say in public: the one file that reads its private names."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from ferrule import Clock, Runner, Tool
from ferrule.executors import threads
from ferrule.kernel.batch import Batch
from ferrule.scheduling.limiter import Limiter
from ferrule.scheduling.locks import KeyLocks

# -- slots and keys ----------------------------------------------------------------------------------------------------


def limiters(*runners: Runner) -> set[Limiter]:
    """The limits of the tools and of the runners, once each, without the shares of the principals."""
    return {limiter for runner in runners for plan in runner._state.plans.values() for limiter in plan.limiters}


def principal_limits(*runners: Runner) -> set[Limiter]:
    """The limits of the principals that are known."""
    known = {one for runner in runners for plan in runner._state.plans.values() for one in plan.principal_limits}
    return {limiter for one in known for limiter in one._limiters.values()}


def slots_taken(*runners: Runner) -> int:
    """Slots taken of all limits."""
    return sum(limiter.used_slots for limiter in limiters(*runners) | principal_limits(*runners))


def slots_taken_by(tool: Tool) -> int:
    """Slots taken of the tool's own limit."""
    return 0 if tool.limiter is None else tool.limiter.used_slots


def slots_taken_of(runner: Runner) -> int:
    """Slots taken of the runner's own limit, `concurrency`."""
    limiter = runner._state.settings.limiter
    return 0 if limiter is None else limiter.used_slots


def patience(runner: Runner) -> tuple[Clock, float | None]:
    """By which clock, and how long, its calls wait for slots and keys."""
    return runner._state.clock, runner._state.waits.slot


def unanswered(runner: Runner) -> bool:
    """Whether a call waits that was not told yet what it lacks among all programs."""
    limits: Any = runner._state.settings.limits
    leases = () if limits is None else tuple(limits._limits_thread._leases.values())
    return any(not lease.had and "have not answered" in lease.busy_reason for lease in leases)


def waits_for_slot(limiter: Limiter) -> int:
    """How many wait at a limit."""
    return sum(map(len, limiter._waiting.values()))


def locked(limiter: Limiter) -> AbstractContextManager[Any]:
    """A time in which the limiter is at work."""
    return limiter._lock


def keys_held(what: Runner | KeyLocks) -> int:
    """How many keys are held or waited for."""
    return len(_locks(what).queues)


def _locks(what: Runner | KeyLocks) -> KeyLocks:
    return what._state.locks if isinstance(what, Runner) else what


# -- calls -------------------------------------------------------------------------------------------------------------


def live_calls(runner: Runner) -> Collection[Any]:
    """The state of each call that has begun and not ended; not of those that were abandoned."""
    return runner._state.live


def abandoned(runner: Runner) -> Iterable[Any]:
    """What runs on after its call has its result: jobs of threads, and tasks."""
    return runner._state.abandoned


def is_at_rest(runner: Runner) -> bool:
    """Whether nothing is live, abandoned, waiting or being written, and nobody has a slot or a key or wants one."""
    at_work = runner._state.live or runner._state.writes or runner.left_running or runner.waiting
    queued = any(map(waits_for_slot, limiters(runner) | principal_limits(runner)))
    return not (at_work or queued or slots_taken(runner) or keys_held(runner))


def batched(batch: Batch) -> list[Any]:
    """The calls of a batch, in the order of its results."""
    return [entry.call for entry in batch._entries]


# -- loops -------------------------------------------------------------------------------------------------------------


def timers(loop: Any) -> int:
    """Timers that are armed."""
    return sum(not handle.cancelled() for handle in loop._scheduled)


def is_ready(loop: Any) -> bool:
    """Whether the loop has something to do at once."""
    return bool(loop._ready)


# -- threads and processes ---------------------------------------------------------------------------------------------


def threads_busy() -> int:
    """Threads that run a job."""
    started = [thread for thread in threading.enumerate() if thread.name == "ferrule-thread"]
    return len(started) - len(threads._IDLE)


class _GivesNone(list[Any]):
    """Takes the threads that have only now ended a job of an earlier test, and gives none of them."""

    def pop(self, *place: Any) -> Any:
        raise IndexError


@contextmanager
def no_idle_threads() -> Iterator[None]:
    """Whoever wants a thread has to start one."""
    idle, threads._IDLE = threads._IDLE, _GivesNone()
    try:
        yield
    finally:
        idle.extend(threads._IDLE)
        threads._IDLE = idle


def worker_pids(pool: Any) -> list[int]:
    """The process ids of the living workers of a pool."""
    with pool._lock:
        return [worker.pid for worker in pool._alive if worker.pid is not None]


# -- tools -------------------------------------------------------------------------------------------------------------


def parameters(tool: Tool) -> Any:
    """What validates the arguments of the tool."""
    return tool.handling.parameters
