"""The pool of worker processes that isolated tools run in. A late worker is killed with its whole process group.

    program                                    supervisor (supervisor.py): kills the group if the program ends
    ├ submit: to an idle worker, or the queue   └ worker (worker.py): runs the handler
    ├ ferrule-worker: one thread per worker       │ the leader of its own process group
    │ (worker_process.py). It starts the          └ the processes that the handler starts
    │ worker, reads its messages, and kills
    │ it when it is late, even if the event
    │ loop is blocked
    └ a spare worker replaces a killed one at once

A worker is a new interpreter that imports the handler's module. It never imports the program's `__main__`. Guards,
approvals and slots stay in the program. Each call gets the program's working directory, import path and environment.
Other changes that a handler makes to its process, such as a module's globals, may be seen by later calls.

The program needs no shutdown step, because each supervisor sees its socket close. So a program can make isolated calls
in `atexit` functions, and in threads that outlive the main thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NoReturn
from weakref import WeakSet

from ferrule.errors import NotStartedError, ToolError, ToolTimeoutError, WorkerDiedError
from ferrule.executors.process.nested_calls import NestedCalls, RunNested
from ferrule.executors.process.order import Order
from ferrule.executors.process.protocol import IN_WORKER, MAX_RECIPES, Kind, Message
from ferrule.executors.process.recipe import Recipe
from ferrule.executors.process.worker_process import START_LOCK, WorkerProcess
from ferrule.scheduling.limiter import Limiter

DEFAULT_WORKERS = max(4, os.cpu_count() or 1)
"""Calls that run at once in the shared pool. At least four, because most handlers wait more than they compute."""

OnProgress = Callable[[Mapping[str, Any]], object]


class Job:
    """One call in the pool.

    Attributes:
        future: The handler's value, or `Raised`. Its exception is a `NotStartedError` if nothing was run, a
            `ToolTimeoutError` if the worker was killed, and a `WorkerDiedError` if the worker ended in another way.
        order: The call as it is sent.
        worker: The process that has the call, or None while it is queued and after it is done.
        start_time: The start of the handler by `time.monotonic()`, or None if it ended without one.
        failed_deliveries: The number of workers that died before they had received the call.
        is_received: Whether a worker has received the call. It is sent to no other worker then.
        is_started: Whether the handler has started, and may have had effects.
        deadline: When the worker is killed, by `time.monotonic()`, or None.
        is_killed: Whether the call is to be killed.
        is_done: Whether the call has ended or was killed.
    """

    __slots__ = (
        *("_loop", "_nested_calls", "_on_progress", "_pool", "deadline", "failed_deliveries", "future", "is_done"),
        *("is_killed", "is_received", "is_started", "order", "start_time", "worker"),
    )

    def __init__(
        self, pool: WorkerPool, order: Order, on_progress: OnProgress | None, run_nested_call: RunNested | None
    ) -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._on_progress = on_progress
        self._nested_calls = NestedCalls(run_nested_call or _refuse_nested_call, self._reply, order.recipe.transfer)
        self.future: asyncio.Future[Any] = self._loop.create_future()
        self.future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # seen, if the call left
        self.start_time: asyncio.Future[float | None] = self._loop.create_future()
        self.order = order
        self.worker: WorkerProcess | None = None
        self.failed_deliveries = 0
        self.deadline: float | None = None
        self.is_received = self.is_started = self.is_killed = self.is_done = False

    @property
    def pid(self) -> int | None:
        """The worker's process id, which is also its group's, or None."""
        worker = self.worker
        return None if worker is None else worker.pid

    def kill(self) -> bool:
        """Kill the worker and all processes that the handler has started. Return True if no worker had the call yet.

        The supervisor sends SIGKILL within a millisecond or two, and this does not wait for it. `future` tells whether
        a handler that was about to start did start.
        """
        return self._pool.kill(self)

    async def cancel_nested_calls(self) -> None:
        """Cancel the calls that the handler has made, and wait until they have ended."""
        await self._nested_calls.cancel_all()

    def on_started(self) -> None:
        """Set the deadline, because the handler starts now."""
        self.is_started, now = True, time.monotonic()
        if self.order.remaining is not None and self.order.enforce_deadline:
            self.deadline = now + self.order.remaining
        self._call_on_loop(self._set_start_time, now)

    def on_nested_call(self, message: Message) -> None:
        """Start or cancel a nested call of the handler."""
        number, *name = message.head
        if message.kind == Kind.CANCEL_NESTED:
            self._call_on_loop(self._nested_calls.cancel, number)
        else:
            arguments = message.body.decode("utf-8", "surrogatepass")
            self._call_on_loop(self._nested_calls.start, number, *name, arguments)

    def on_progress(self, data: Mapping[str, Any]) -> None:
        """Forward the data of a `tool:progress`, unless the call is done."""
        if self._on_progress is not None and not self.is_done:
            with suppress(RuntimeError):  # the loop of the call is closed
                self._on_progress(data)

    def finish(self, outcome: object = None, failure: ToolError | None = None) -> None:
        """Set the outcome or the failure, if neither is set. Any thread may call this."""
        if not self.is_done:
            self.is_done, self.worker = True, None
            self._call_on_loop(self._set_outcome, outcome, failure)

    def _reply(self, head: object, body: bytes) -> None:
        worker = self.worker
        if worker is not None:
            worker.reply(self.order, head, body)

    def _call_on_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _set_start_time(self, at: float | None) -> None:
        if not self.start_time.done():
            self.start_time.set_result(at)

    def _set_outcome(self, outcome: object, failure: ToolError | None) -> None:
        self._set_start_time(None)
        if self.future.done():
            return
        if failure is None:
            self.future.set_result(outcome)
        else:
            self.future.set_exception(failure)


def _killed_error() -> ToolTimeoutError:
    return ToolTimeoutError("it was stopped with its process and all that it had started", executed=None)


async def _refuse_nested_call(name: str, arguments: str) -> NoReturn:
    raise ToolError("context.run(...) works in a call of a runner")


class WorkerPool:
    """Worker processes for at most `max_workers` calls at once, and one spare. Other calls wait in a queue.

    A call that another call made gets an extra worker, because the outer call holds one while it waits.

    Args:
        idle_seconds: Seconds after which an idle worker ends, unless it is the last one.

    Attributes:
        slots: A limiter of `max_workers` slots. A call acquires one before it is submitted, so it waits for a worker
            as for any slot: bounded and counted, with its deadline paused.
    """

    def __init__(self, max_workers: int = DEFAULT_WORKERS, *, idle_seconds: float = 30.0) -> None:
        self.max_workers = max_workers
        self.idle_seconds = idle_seconds
        self.slots = Limiter(max_workers)
        self._reset()
        _POOLS.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[Job] = deque()
        self._alive: set[WorkerProcess] = set()
        self._idle: list[WorkerProcess] = []  # the last one ran a call most recently
        self._failed_starts = 0  # in a row
        self._recipes: dict[str, None] = {}  # the tools that a new worker makes ahead
        self._closed = False

    def warm(self, count: int = 1, recipes: Iterable[Recipe] = ()) -> None:
        """Start workers until `count` are idle, and have them make the tools of `recipes`. Do not wait for them.

        This does nothing in a worker. Otherwise a module that warms the pool at import would start workers without end.
        """
        if IN_WORKER.is_set():
            return
        with self._lock:
            for recipe in recipes:
                self._remember_recipe(recipe)
            created = self._create_workers(count)
        for worker in created:
            worker.start()

    def submit(
        self, order: Order, on_progress: OnProgress | None = None, run_nested_call: RunNested | None = None
    ) -> Job:
        """Run a call in a worker, or queue it.

        Args:
            on_progress: Gets the data of each `tool:progress`, in a thread of the pool.
            run_nested_call: Runs the tools that the handler calls by `context.run`, on the current loop.

        Raises:
            NotStartedError: The pool is closed.
        """
        job = Job(self, order, on_progress, run_nested_call)
        with self._update():
            if self._closed:
                raise NotStartedError("the workers were closed before it was started")
            self._remember_recipe(order.recipe)
            self._queue.append(job)
        return job

    def kill(self, job: Job) -> bool:
        """Kill the worker that has the job; see `Job.kill`."""
        with self._update():
            worker, job.is_killed = job.worker, True
            if worker is not None:
                worker.kill()
                if job.is_started:  # otherwise `on_worker_ended` finds out whether it did
                    job.finish(failure=_killed_error())
            elif not job.is_done:
                self._queue.remove(job)
                job.finish(failure=NotStartedError("it was stopped before it was started"))
                return True
        return False

    def close(self) -> None:
        """Kill all workers and the processes that they have started. Queued calls fail, and so do later ones."""
        with self._update():
            self._closed = True
            while self._queue:
                failure = NotStartedError("the workers were closed before it was started")
                self._queue.popleft().finish(failure=failure)
            for worker in self._alive:
                worker.kill()

    @property
    def idle_count(self) -> int:
        """The number of workers that wait for a call."""
        return len(self._idle)

    # -- called by the threads of the workers --------------------------------------------------------------------------

    def on_ready(self, worker: WorkerProcess) -> None:
        """Add a new worker that takes calls now."""
        with self._update():
            worker.is_ready = True
            self._failed_starts = 0
            self._idle.insert(0, worker)

    def on_finished(self, worker: WorkerProcess, outcome: object = None, failure: ToolError | None = None) -> None:
        """Finish the worker's job, and make the worker idle."""
        with self._update():
            job, worker.job = worker.job, None
            worker.release_files()
            if not worker.is_killed:
                self._idle.append(worker)
            if job is not None:
                job.finish(outcome, failure)

    def retire_if_surplus(self, worker: WorkerProcess) -> bool:
        """Remove the worker if another one is idle too. Return whether it was removed."""
        with self._lock:
            if worker not in self._idle or len(self._idle) == 1:
                return False
            self._idle.remove(worker)
            return True

    def on_worker_ended(self, worker: WorkerProcess, reason: str) -> None:
        """Remove a dead worker. Its job fails, or goes back to the queue if the worker had not received it."""
        with self._update():
            self._alive.discard(worker)
            if worker in self._idle:
                self._idle.remove(worker)
            if not worker.is_ready:
                self._count_failed_start(worker, reason)
            job, worker.job = worker.job, None
            if job is None or job.is_done:
                return
            if job.is_started:
                died = WorkerDiedError(f"its process ended before it was done: {reason}")
                job.finish(failure=_killed_error() if job.is_killed else died)
            elif job.is_killed or job.is_received:
                job.finish(failure=NotStartedError(f"its process ended before the handler began: {reason}"))
            elif job.failed_deliveries > self.max_workers:  # it was not only dead workers: none can read the order
                job.finish(failure=NotStartedError(f"its process could not be started: {reason}"))
            else:
                job.worker = None
                job.failed_deliveries += 1
                self._queue.appendleft(job)

    def _count_failed_start(self, worker: WorkerProcess, reason: str) -> None:
        """Count a failed start. From the second on, each fails one queued job, so the pool does not try forever.

        No job fails if the worker was making tools ahead. A module that ends its process may only fail its own calls.
        """
        self._failed_starts += 1
        if self._failed_starts > 1 and not worker.recipes and self._queue:
            failure = NotStartedError(f"its process could not be started: {reason}")
            self._queue.popleft().finish(failure=failure)

    # -- called with the lock held -------------------------------------------------------------------------------------

    @contextmanager
    def _update(self) -> Iterator[None]:
        """Hold the lock while the pool changes. Then send jobs and start workers without it, because both may block."""
        with self._lock:
            yield
            assigned, created = self._assign_jobs(), self._create_workers(self._count_wanted_workers())
        for worker, job in assigned:
            worker.send(job.order)
        for worker in created:
            worker.start()

    def _remember_recipe(self, recipe: Recipe) -> None:
        self._recipes[recipe.text] = None
        if len(self._recipes) > MAX_RECIPES:
            del self._recipes[next(iter(self._recipes))]

    def _assign_jobs(self) -> list[tuple[WorkerProcess, Job]]:
        """Assign queued jobs to idle workers."""
        assigned = []
        for job in self._runnable_jobs()[: len(self._idle)]:
            self._queue.remove(job)
            worker = self._idle.pop()
            worker.job, job.worker = job, worker
            assigned.append((worker, job))
        return assigned

    def _runnable_jobs(self) -> list[Job]:
        """Return the queued jobs that may have a worker, in their order."""
        free = self.max_workers - sum(not job.order.nested for job in self._assigned_jobs())
        runnable = []
        for job in self._queue:
            if job.order.nested or free > 0:
                runnable.append(job)
                free -= not job.order.nested
        return runnable

    def _assigned_jobs(self) -> list[Job]:
        return [job for worker in self._alive if (job := worker.job) is not None]

    def _count_wanted_workers(self) -> int:
        """Return how many idle workers the pool needs: one for each runnable job, and a spare."""
        return len(self._runnable_jobs()) + (0 if self._failed_starts else 1)

    def _create_workers(self, wanted: int) -> list[WorkerProcess]:
        """Create the workers that are missing until `wanted` are idle. The caller starts them.

        After a failed start they make no tools ahead, because that may have ended the process.
        """
        starting = sum(not worker.is_ready for worker in self._alive)
        nested = sum(job.order.nested for job in (*self._assigned_jobs(), *self._queue))
        missing = min(wanted - len(self._idle) - starting, self.max_workers + nested + 1 - len(self._alive))
        recipes = [] if self._failed_starts else list(self._recipes)
        created = [WorkerProcess(self, recipes) for _ in range(0 if self._closed else missing)]
        self._alive.update(created)
        return created

    def reset_after_fork(self) -> None:
        """Forget the parent's workers and calls in a forked child."""
        for worker in self._alive:
            worker.abandon_after_fork()
        self._reset()
        self.slots.reset_after_fork()


_POOLS: WeakSet[WorkerPool] = WeakSet()
_SHARED_POOL = WorkerPool()


def shared_pool() -> WorkerPool:
    """Return the program's one pool for `isolation="process"`."""
    return _SHARED_POOL


def _reset_pools() -> None:
    START_LOCK.release()
    for pool in list(_POOLS):
        pool.reset_after_fork()


os.register_at_fork(before=START_LOCK.acquire, after_in_parent=START_LOCK.release, after_in_child=_reset_pools)
