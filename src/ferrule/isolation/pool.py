"""The processes that isolated tools run in: a warm pool of workers, each killed with its whole group at a deadline.

    program                                  supervisor (supervisor.py): ends the group with the program
    ├ submit: to an idle worker, or queued    └ worker (worker.py): runs the handler
    ├ ferrule-worker: a thread for each         │ the leader of a process group of its own
    │ worker (process.py); it starts it,        └ whatever the handler starts
    │ reads what comes, and kills what is
    │ late, also while the loop is blocked
    └ a spare, started ahead: who is killed is replaced already

Nothing of the program's `__main__` is imported or run again: a worker is a new interpreter that imports the handler's
module. Guards, approvals and slots stay in the program. Directory, path of imports and environment are the program's
at each call; what a handler changes in its own process, such as a module's globals, later calls may find there.

Nothing has to be done when the program ends: each supervisor sees its socket close. So a program can still make
isolated calls from `atexit` and from threads that outlive the main one.
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
from ferrule.isolation.children import Children, Run
from ferrule.isolation.orders import Order
from ferrule.isolation.process import STARTING, WorkerProcess
from ferrule.isolation.protocol import IN_WORKER, MOST_RECIPES, Kind, Message
from ferrule.isolation.recipes import Recipe
from ferrule.scheduling.limiter import Limiter

WORKERS = max(4, os.cpu_count() or 1)
"""Calls at once in the shared pool. At least four: most handlers wait more than they count."""

OnProgress = Callable[[Mapping[str, Any]], object]


class Job:
    """One call in the pool.

    Attributes:
        future: What the handler returned, or `Raised` with what it raised. Its exception is a `NotStartedError` where
            nothing was run, a `ToolTimeoutError` where it was killed, and a `WorkerDiedError` where the process ended
            before the handler otherwise.
        order: The call itself.
        worker: The process that has it; `None` while it is queued, and when it is done.
        begun: When the handler began, by the machine's monotonic clock; `None` where nothing is to be waited for.
        attempts: How often it was given to a worker that died before it had read it.
        read: Whether a worker has read it; no other gets it then.
        started: Whether the handler has begun, so that anything of it may have happened.
        deadline: By the machine's monotonic clock, counted from then.
        killed: Whether it is to be ended.
        done: Whether it has ended or was killed.
    """

    __slots__ = (
        *("_children", "_loop", "_on_progress", "_pool", "attempts", "begun", "deadline", "done", "future", "killed"),
        *("order", "read", "started", "worker"),
    )

    def __init__(self, pool: WorkerPool, order: Order, on_progress: OnProgress | None, run: Run | None) -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._on_progress = on_progress
        self._children = Children(run or _run_nothing, self._reply, order.recipe.transfer)
        self.future: asyncio.Future[Any] = self._loop.create_future()
        self.begun: asyncio.Future[float | None] = self._loop.create_future()
        self.order = order
        self.worker: WorkerProcess | None = None
        self.attempts = 0
        self.deadline: float | None = None
        self.read = self.started = self.killed = self.done = False

    @property
    def pid(self) -> int | None:
        """The process that runs it, the leader of its group; `None` where none does."""
        worker = self.worker
        return None if worker is None else worker.pid

    def kill(self) -> bool:
        """Have it ended, with all that its handler has started; whether no worker had it yet, so that nothing ran.

        Its supervisor sends SIGKILL: it takes a millisecond or two, and nobody waits for it. Whether a handler that was
        about to begin has begun is known then, and `future` says so.
        """
        return self._pool.kill(self)

    async def end_children(self) -> None:
        """Cancel the calls that its handler has made, and wait for their ends."""
        await self._children.end()

    def start(self) -> None:
        """Its handler begins."""
        self.started, now = True, time.monotonic()
        if self.order.remaining is not None and self.order.timed:
            self.deadline = now + self.order.remaining
        self._on_loop(self._begin, now)

    def take_request(self, message: Message) -> None:
        """Its handler runs another tool, or does not want it any more."""
        number, *name = message.head
        if message.kind == Kind.STOP:
            self._on_loop(self._children.stop, number)
        else:
            self._on_loop(self._children.start, number, *name, message.body.decode("utf-8", "surrogatepass"))

    def _reply(self, head: object, body: bytes) -> None:
        worker = self.worker
        if worker is not None:
            worker.reply(self.order, head, body)

    def _on_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(callback, *arguments)

    def tell(self, progress: Mapping[str, Any]) -> None:
        """Hand on the data of a `tool:progress`."""
        if self._on_progress is not None and not self.done:
            with suppress(RuntimeError):  # the loop that it is told on is closed
                self._on_progress(progress)

    def settle(self, outcome: object = None, failure: ToolError | None = None) -> None:
        """Say how it ended, once; from any thread."""
        if not self.done:
            self.done, self.worker = True, None
            self._on_loop(self._finish, outcome, failure)

    def _begin(self, at: float | None) -> None:
        if not self.begun.done():
            self.begun.set_result(at)

    def _finish(self, outcome: object, failure: ToolError | None) -> None:
        self._begin(None)
        if self.future.done():
            return
        if failure is None:
            self.future.set_result(outcome)
        else:
            self.future.set_exception(failure)


def _killed() -> ToolTimeoutError:
    return ToolTimeoutError("it was stopped with its process and all that it had started", executed=None)


async def _run_nothing(name: str, arguments: str) -> NoReturn:
    raise ToolError("context.run(...) works in a call of a runner")


class WorkerPool:
    """At most `workers` calls at once, in as many processes and one spare; what is beyond waits in order. A call that
    another one made has a worker beside these: it would wait for one that may be waiting for it.

    Args:
        idle_seconds: How long a worker waits for a call before it ends, where it is not the last one.

    Attributes:
        slots: A call takes one of these before it is submitted. So who waits for a worker waits as for any slot: it is
            counted and bounded, its deadline does not run, and what stops a call that was not started stops it.
    """

    def __init__(self, workers: int = WORKERS, *, idle_seconds: float = 30.0) -> None:
        self.workers = workers
        self.idle_seconds = idle_seconds
        self.slots = Limiter(workers)
        self._empty()
        _POOLS.add(self)

    def _empty(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[Job] = deque()
        self._alive: set[WorkerProcess] = set()
        self._idle: list[WorkerProcess] = []  # the last is the warmest
        self._failed_starts = 0  # since one did not fail
        self._recipes: dict[str, None] = {}  # whose tools are made ahead
        self._closed = False

    def warm(self, count: int = 1, recipes: Iterable[Recipe] = ()) -> None:
        """Start workers until `count` wait, which make the tools of `recipes` ahead. Does not wait for them.

        In a worker it does nothing: a module that warms the pool when it is imported would start workers without end.
        """
        if IN_WORKER.is_set():
            return
        with self._lock:
            for recipe in recipes:
                self._remember(recipe)
            started = self._new_workers(count)
        for worker in started:
            worker.start()

    def submit(self, order: Order, on_progress: OnProgress | None = None, run: Run | None = None) -> Job:
        """Run a call in a worker, or queue it.

        Args:
            on_progress: Gets the data of each `tool:progress`, in a thread of the pool's.
            run: Runs what the handler asks for by `context.run`, on the present loop.

        Raises:
            NotStartedError: where the pool was closed.
        """
        job = Job(self, order, on_progress, run)
        with self._change():
            if self._closed:
                raise NotStartedError("the workers were closed before it was started")
            self._remember(order.recipe)
            self._queue.append(job)
        return job

    def kill(self, job: Job) -> bool:
        """See `Job.kill`."""
        with self._change():
            worker, job.killed = job.worker, True
            if worker is not None:
                worker.kill()
                if job.started:  # else `ended` knows
                    job.settle(failure=_killed())
            elif not job.done:
                self._queue.remove(job)
                job.settle(failure=NotStartedError("it was stopped before it was started"))
                return True
        return False

    def close(self) -> None:
        """Kill every worker with all that it has started; what waits fails, and no more is taken."""
        with self._change():
            self._closed = True
            while self._queue:
                failure = NotStartedError("the workers were closed before it was started")
                self._queue.popleft().settle(failure=failure)
            for worker in self._alive:
                worker.kill()

    @property
    def pids(self) -> list[int]:
        """The workers that live, each the leader of its process group."""
        with self._lock:
            return [worker.pid for worker in self._alive if worker.pid is not None]

    @property
    def idle(self) -> int:
        """How many workers wait for a call."""
        return len(self._idle)

    @property
    def busy(self) -> int:
        """How many workers have a call."""
        return sum(worker.job is not None for worker in list(self._alive))

    # -- what a worker's thread says -----------------------------------------------------------------------------------

    def ready(self, worker: WorkerProcess) -> None:
        """It takes calls."""
        with self._change():
            worker.ready = True
            self._failed_starts = 0
            self._idle.insert(0, worker)

    def finished(self, worker: WorkerProcess, outcome: object = None, failure: ToolError | None = None) -> None:
        """Its call has ended."""
        with self._change():
            job, worker.job = worker.job, None
            worker.release_files()
            if not worker.killed:
                self._idle.append(worker)
            if job is not None:
                job.settle(outcome, failure)

    def retires(self, worker: WorkerProcess) -> bool:
        """Whether it, idle for long, is one too many; it gets no call any more."""
        with self._lock:
            if worker not in self._idle or len(self._idle) == 1:
                return False
            self._idle.remove(worker)
            return True

    def ended(self, worker: WorkerProcess, why: str) -> None:
        """It is dead, and all that it had started."""
        with self._change():
            self._alive.discard(worker)
            if worker in self._idle:
                self._idle.remove(worker)
            if not worker.ready:
                self._count_failed_start(worker, why)
            job, worker.job = worker.job, None
            if job is None or job.done:
                return
            if job.started:
                died = WorkerDiedError(f"its process ended before it was done: {why}")
                job.settle(failure=_killed() if job.killed else died)
            elif job.killed or job.read:
                job.settle(failure=NotStartedError(f"its process ended before the handler began: {why}"))
            elif job.attempts > self.workers:  # all that were idle may have died; or it is too large for any to read
                job.settle(failure=NotStartedError(f"its process could not be started: {why}"))
            else:
                job.worker = None
                job.attempts += 1
                self._queue.appendleft(job)

    def _count_failed_start(self, worker: WorkerProcess, why: str) -> None:
        """From the second on a job that waits fails for it: no start is tried without end.

        None fails for a module that was imported ahead, which has to end only the calls that need it.
        """
        self._failed_starts += 1
        if self._failed_starts > 1 and not worker.recipes and self._queue:
            failure = NotStartedError(f"its process could not be started: {why}")
            self._queue.popleft().settle(failure=failure)

    # -- with the lock held --------------------------------------------------------------------------------------------

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Change what the lock guards; then send and start what that calls for, which may block, without it."""
        with self._lock:
            yield
            given, started = self._give(), self._new_workers(self._wanted())
        for worker, job in given:
            worker.send(job.order)
        for worker in started:
            worker.start()

    def _remember(self, recipe: Recipe) -> None:
        self._recipes[recipe.text] = None
        if len(self._recipes) > MOST_RECIPES:
            del self._recipes[next(iter(self._recipes))]

    def _give(self) -> list[tuple[WorkerProcess, Job]]:
        """Give the jobs that wait to the workers that do."""
        given = []
        for job in self._ready_jobs()[: len(self._idle)]:
            self._queue.remove(job)
            worker = self._idle.pop()
            worker.job, job.worker = job, worker
            given.append((worker, job))
        return given

    def _ready_jobs(self) -> list[Job]:
        """The jobs that wait and may have a worker, in their order."""
        room = self.workers - sum(not job.order.nested for job in self._jobs())
        ready = []
        for job in self._queue:
            if job.order.nested or room > 0:
                ready.append(job)
                room -= not job.order.nested
        return ready

    def _jobs(self) -> list[Job]:
        """Those that workers have."""
        return [job for worker in self._alive if (job := worker.job) is not None]

    def _wanted(self) -> int:
        """How many workers are to wait for a call: for each that may have one, and a spare."""
        return len(self._ready_jobs()) + (0 if self._failed_starts else 1)

    def _new_workers(self, wanted: int) -> list[WorkerProcess]:
        """As many as are missing until `wanted` wait for a call, to be started.

        After a start that failed they make no tools ahead: that may be what ended it.
        """
        starting = sum(not worker.ready for worker in self._alive)
        nested = sum(job.order.nested for job in (*self._jobs(), *self._queue))
        missing = min(wanted - len(self._idle) - starting, self.workers + nested + 1 - len(self._alive))
        recipes = [] if self._failed_starts else list(self._recipes)
        started = [WorkerProcess(self, recipes) for _ in range(0 if self._closed else missing)]
        self._alive.update(started)
        return started

    def begin_anew(self) -> None:
        """In a forked child: let go of the parent's workers and calls, where it has any."""
        for worker in self._alive:
            worker.disown()
        self._empty()
        self.slots.begin_anew()


_POOLS: WeakSet[WorkerPool] = WeakSet()
_SHARED_POOL = WorkerPool()


def shared() -> WorkerPool:
    """The pool of `isolation="process"`, one for the whole program."""
    return _SHARED_POOL


def _begin_pools_anew() -> None:
    STARTING.release()
    for pool in list(_POOLS):
        pool.begin_anew()


os.register_at_fork(before=STARTING.acquire, after_in_parent=STARTING.release, after_in_child=_begin_pools_anew)
