"""The processes that isolated tools run in: a warm pool of workers, each killed with its whole group at a deadline.

    program                                          warden (supervisor.py): ends the group with the program
    ├ submit: to an idle worker at once, or queued    └ worker (worker.py): runs the handler
    ├ ferrule-worker-…: a thread for each worker         │ the leader of a process group of its own
    │ starts it, reads what comes, ends its group         └ whatever the handler starts
    ├ ferrule-deadlines: kills what is late, also while the loop is blocked
    └ a spare, started ahead: who is killed is replaced already

Nothing of the program's `__main__` is imported or run again: a worker is a new interpreter that imports the handler's
module. Guards, approvals and slots stay in the program. Directory, path of imports and environment are the program's
at each call; what a handler changes in its own process, such as a module's globals, later calls may find there.

Nothing has to be done when the program ends: each warden sees its socket close. So a program can still make isolated
calls from `atexit` and from threads that outlive the main one.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NoReturn

from ferrule.errors import NotStartedError, WorkerDiedError
from ferrule.executors.threads import Raised
from ferrule.isolation import protocol as crossing
from ferrule.isolation.orders import Order, Recipe
from ferrule.isolation.protocol import (
    CannotCross,
    Kind,
    Line,
    Transfer,
    framed,
    rebuilt,
    surroundings,
    unpacked,
)
from ferrule.isolation.supervisor import WORD
from ferrule.scheduling.fair_queue import Turns
from ferrule.scheduling.limiter import Limiter
from ferrule.values.call import ToolCall

if sys.platform != "win32":
    import fcntl

WORKERS = max(4, os.cpu_count() or 1)
"""Calls at once. At least four: most handlers wait more than they count."""
SLOTS = Limiter(WORKERS)
"""A call takes one of these before it is submitted to the shared pool. So who waits for a worker waits as for any slot:
it is counted and bounded, its deadline does not run, and what stops a call that was not started stops it."""
_KEPT = 1
_IDLE_SECONDS = 30.0
_END_SECONDS = 2.0
_LATE = 0.02  # seconds after the deadline: the loop goes first, where it can
_WARDEN = str(Path(__file__).with_name("supervisor.py"))
_FORKING = threading.Lock()
"""Held while descriptors are made that a forked child has to let go of, so that it knows of all."""
_POOLS: weakref.WeakSet[WorkerPool] = weakref.WeakSet()
_numbers = itertools.count(1)

OnProgress = Callable[[dict[str, Any]], object]


def ordered(recipe: Recipe, call: ToolCall, given: tuple[Any, ...], values: Any, remaining: float | None) -> Order:
    """An order, or why it cannot be sent.

    Raises:
        NotStartedError: where arguments or context cannot cross.
    """
    try:
        return Order(recipe, call, given, values, remaining)
    except CannotCross as error:
        raise NotStartedError(str(error)) from error


# -- a call in the pool ----------------------------------------------------------------------------------------------


class Job:
    """One call in the pool. `future` gives what the handler returned, or `Raised`."""

    __slots__ = ("_loop", "_pool", "_state", "_unread", "_worker", "future", "on_progress", "order")

    def __init__(self, pool: WorkerPool, order: Order, on_progress: OnProgress | None) -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._state = "queued"
        self._worker: _Worker | None = None
        self._unread = 0  # workers that died before they had read it
        self.order = order
        self.on_progress = on_progress
        self.future: asyncio.Future[Any] = self._loop.create_future()

    @property
    def pid(self) -> int | None:
        """The process that runs it, the leader of its group; `None` where none does."""
        worker = self._worker
        return None if worker is None or self._state != "running" else worker.pid

    @property
    def deadline(self) -> float | None:
        """By the machine's monotonic clock, while it runs; `None` where there is none."""
        return self.order.deadline if self._state == "running" else None

    def kill(self) -> bool:
        """End it now, with all that its handler has started; whether it had not been started, so that nothing ran.

        When this returns, the whole process group has been sent SIGKILL.
        """
        return self._pool._kill(self)

    def _settle(self, outcome: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._finish, outcome)

    def _finish(self, outcome: Any) -> None:
        if not self.future.done():
            self.future.set_result(outcome)


class WorkerPool:
    """At most `workers` calls at once, in as many processes and one spare; what is beyond waits in order."""

    def __init__(self, workers: int = WORKERS, *, idle_seconds: float = _IDLE_SECONDS) -> None:
        self.workers = workers
        self.idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._sooner = threading.Condition(self._lock)
        self._looks_at: float | None = None  # when its thread looks for who is late; None where there is none
        self._queue: Turns[Job] = Turns()
        self._alive: set[_Worker] = set()
        self._idle: list[_Worker] = []  # the last is the warmest
        self._starting = 0
        self._busy = 0
        self._failures = 0  # starts that failed since one did not
        self._recipes: dict[bytes, bool] = {}  # whether their tools are made ahead
        self._closed = False
        _POOLS.add(self)

    def warm(self, count: int = 1, recipes: Iterable[Recipe] = ()) -> None:
        """Start workers until `count` wait, which make the tools of `recipes` ahead. Does not wait for them.

        In a worker it does nothing: a module that warms the pool when it is imported would start workers without end.
        """
        if crossing.IN_WORKER:
            return
        with self._lock:
            for recipe in recipes:
                self._remember(recipe)
            missing = min(count, self.workers + 1) - len(self._idle) - self._starting
            started = self._more(missing)
        _start(started)

    def submit(self, order: Order, on_progress: OnProgress | None = None) -> Job:
        """Run a call in a worker, or queue it.

        Args:
            on_progress: Gets the data of each `tool:progress`, in a thread of the pool's.

        Raises:
            NotStartedError: where the program is ending.
        """
        job = Job(self, order, on_progress)
        with self._lock:
            if self._closed:
                raise NotStartedError("no isolated call is started any more: the program is ending")
            self._remember(order.recipe)
            self._queue.put(order.recipe.name, job)
            given, started = self._dispatched()
        self._send(given)
        _start(started)
        return job

    def close(self) -> None:
        """Kill every worker with its group; what waits fails, and no more is taken."""
        with self._lock:
            self._closed = True
            self._sooner.notify()
            waiting, alive = self._queue.clear(), list(self._alive)
            for job in waiting:
                job._state = "done"
        for worker in alive:
            worker.kill()
        for job in waiting:
            job._settle(Raised(NotStartedError("the workers were closed before it was started")))

    @property
    def pids(self) -> list[int]:
        """The workers that live, each the leader of its process group."""
        with self._lock:
            return [worker.pid for worker in self._alive if worker.pid]

    @property
    def idle(self) -> int:
        """How many workers wait for a call."""
        return len(self._idle)

    # All below is about what the lock guards. What blocks, sending and starting, is done after it was let go.

    def _remember(self, recipe: Recipe) -> None:
        if recipe.data not in self._recipes:
            self._recipes[recipe.data] = True
            if len(self._recipes) > crossing.RECIPES:
                del self._recipes[next(iter(self._recipes))]

    def _dispatched(self) -> tuple[list[tuple[_Worker, Job]], list[_Worker]]:
        """Whom to give which job, and which workers to start; with the lock held."""
        given = []
        while self._queue and self._idle and self._busy < self.workers:
            job = self._queue.take()
            if job.order.deadline is not None and not self._in_time(job, job.order.deadline):
                continue
            worker = self._idle.pop()
            worker.job, job._worker, job._state = job, worker, "running"
            worker.sent = False
            self._busy += 1
            given.append((worker, job))
        waiting = min(len(self._queue), self.workers - self._busy)
        spare = 0 if self._failures else 1
        return given, self._more(waiting + spare - len(self._idle) - self._starting)

    def _in_time(self, job: Job, deadline: float) -> bool:
        """See that it is killed when it is late; or that it is not started, where it is so already."""
        if deadline < time.monotonic():  # the loop is blocked, or it would have taken it back
            job._state = "done"
            job._settle(Raised(NotStartedError("its deadline came before a process was free")))
            return False
        if self._looks_at is None:
            with suppress(RuntimeError):  # no more threads: the loop alone will do it
                threading.Thread(target=self._end_late, name="ferrule-deadlines", daemon=True).start()
                self._looks_at = 0.0
        elif deadline < self._looks_at:
            self._sooner.notify()
        return True

    def _end_late(self) -> None:
        while (late := self._late()) is not None:
            for job in late:
                job.kill()

    def _late(self) -> list[Job] | None:
        """Wait for those whose deadline has passed; `None` where there were no deadlines for long."""
        rested = False
        with self._lock:
            while True:
                now = time.monotonic()
                jobs = [worker.job for worker in self._alive if worker.job is not None]
                due = {job: deadline + _LATE for job in jobs if (deadline := job.deadline) is not None}
                late = [job for job, when in due.items() if when <= now]
                if late:
                    return late
                if self._closed or (rested and not due):
                    self._looks_at = None
                    return None
                rested = not due
                self._looks_at = min(due.values(), default=now + self.idle_seconds)
                self._sooner.wait(self._looks_at - now)

    def _more(self, count: int) -> list[_Worker]:
        count = 0 if self._closed else min(count, self.workers + 1 - len(self._alive))
        recipes = [recipe for recipe, ahead in self._recipes.items() if ahead]
        started = [_Worker(self, recipes) for _ in range(count)]
        self._starting += len(started)
        self._alive.update(started)
        return started

    def _send(self, given: Iterable[tuple[_Worker, Job]]) -> None:
        for worker, job in given:
            if not worker.send(job.order):
                self._unsent(worker, job)

    def _unsent(self, worker: _Worker, job: Job) -> None:
        """The worker had died while it was idle: nothing of the job reached it, so another takes it."""
        with self._lock:
            if worker.job is job and job._state == "running":
                worker.job, worker.doomed = None, True
                self._busy -= 1
                self._put_back(job)
            given, started = self._dispatched()
        self._send(given)
        _start(started)

    def _put_back(self, job: Job) -> None:
        job._worker, job._state = None, "queued"
        job._unread += 1
        self._queue.put_back(job.order.recipe.name, job)

    def _ready(self, worker: _Worker) -> None:
        with self._lock:
            self._starting -= 1
            self._failures = 0
            worker.ready = True
            self._idle.insert(0, worker)
            given, started = self._dispatched()
        self._send(given)
        _start(started)

    def _done(self, worker: _Worker, outcome: Any) -> None:
        with self._lock:
            job, worker.job = worker.job, None
            if job is None:
                return
            job._state = "done"
            self._busy -= 1
            if not worker.doomed:
                self._idle.append(worker)
            given, started = self._dispatched()
        job._settle(outcome)
        self._send(given)
        _start(started)

    def _kill(self, job: Job) -> bool:
        with self._lock:
            state, worker = job._state, job._worker
            if state == "queued":
                self._queue.remove(job.order.recipe.name, job)
            elif worker is not None and state == "running":
                worker.doomed = True
            job._state = "done" if state == "done" else "killed"
        if state == "queued":
            job._settle(Raised(NotStartedError("it was stopped before it was started")))
            return True
        if state == "running" and worker is not None:
            worker.kill()
            job._settle(Raised(WorkerDiedError("it was stopped with its process and all that it had started")))
        return False

    def _retires(self, worker: _Worker) -> bool:
        """Whether a worker that was idle for long is one too many."""
        with self._lock:
            if worker not in self._idle or len(self._idle) <= _KEPT:
                return False
            self._idle.remove(worker)
            worker.doomed = True
            return True

    def _ended(self, worker: _Worker, why: str, unread: bool = False) -> None:
        """The worker is dead, its group too; `unread` says that it died before it had read its call."""
        with self._lock:
            self._alive.discard(worker)
            job, worker.job = worker.job, None
            unstarted: Job | None = None
            if worker in self._idle:
                self._idle.remove(worker)
            if job is not None:
                self._busy -= 1
                # All that were idle may have died together; or it is too large for any to read.
                unread = unread or not worker.sent
                again = unread and job._unread <= self.workers and job._state == "running"
                if again:
                    self._put_back(job)
                else:
                    job._state = "done"
                if again or unread:
                    job, unstarted = None, None if again else job
            if not worker.ready:
                unstarted = self._failed_start(worker)
            given, started = self._dispatched()
        if job is not None:
            job._settle(Raised(WorkerDiedError(f"its process ended before it was done: {why}")))
        if unstarted is not None:
            unstarted._settle(Raised(NotStartedError(f"its process could not be started: {why}")))
        self._send(given)
        _start(started)

    def _helpless(self, worker: _Worker, why: str) -> None:
        """There are no threads to be had: where no worker is left, nobody will ever take what waits."""
        with self._lock:
            self._alive.discard(worker)
            self._starting -= 1
            waiting = [] if self._alive else self._queue.clear()
            for job in waiting:
                job._state = "done"
        for job in waiting:
            job._settle(Raised(NotStartedError(f"its process could not be started: {why}")))

    def _failed_start(self, worker: _Worker) -> Job | None:
        """The job that fails for it, so that there is no start without end; with the lock held.

        None fails for a module that was imported ahead: it has to end only the calls that need it.
        """
        self._starting -= 1
        if worker.recipes:
            self._recipes |= dict.fromkeys(worker.recipes, False)
            return None
        self._failures += 1
        if self._failures < 2 or not self._queue:
            return None
        job = self._queue.take()
        job._state = "done"
        return job


def _start(workers: Iterable[_Worker]) -> None:
    for worker in workers:
        worker.start()


# -- a worker, seen from the program ---------------------------------------------------------------------------------


class _Worker:
    """One worker process and the thread that attends to it."""

    def __init__(self, pool: WorkerPool, recipes: list[bytes]) -> None:
        self._pool = pool
        self.recipes = recipes
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None  # the warden
        self._line: Line | None = None
        self._life: socket.socket | None = None
        self._gone = False
        self._told: Any = None
        self.pid: int | None = None
        self.job: Job | None = None
        self.ready = False
        self.doomed = False
        self.sent = False  # whether anything of its present call
        self.number = next(_numbers)

    def start(self) -> None:
        """Start the thread, which starts the process: that takes a while, and no loop waits for it."""
        try:
            threading.Thread(target=self._attend, name=f"ferrule-worker-{self.number}", daemon=True).start()
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            self._pool._helpless(self, str(error))

    def send(self, order: Order) -> bool:
        """Send a call, a large one from a thread of its own; whether the worker is there."""
        assert self._line is not None
        now = surroundings()
        told, self._told = b"" if now == self._told else json.dumps(now).encode(), now
        frame = framed(Kind.CALL, order.recipe.data, told, order.head, order.body)
        with self._lock:
            if self._gone:
                return False
            try:
                sent = self._line.send_at_once(frame)
            except OSError:
                return False
            self.sent = True
        if sent < len(frame):
            rest = memoryview(frame)[sent:]
            try:
                threading.Thread(target=self._send_rest, args=(rest,), name="ferrule-worker-send", daemon=True).start()
            except RuntimeError:  # the interpreter is ending: it has nothing else to do
                self._send_rest(rest)
        return True

    def _send_rest(self, rest: memoryview) -> None:
        assert self._line is not None
        with suppress(OSError):  # it died meanwhile, and the thread that reads is told so
            self._line.send_rest(rest)

    def kill(self) -> None:
        """Send SIGKILL to the process and its group, unless they are dead; the warden ends what went elsewhere."""
        with self._lock:
            self._killed()

    def _killed(self) -> None:
        if self._gone:
            return
        if self.pid is not None:  # it has been started
            self._gone = True  # once the warden knows, the id may become another's
            for kill in (os.killpg, os.kill):  # the second for a handler that went to another group
                with suppress(ProcessLookupError, PermissionError):  # macOS says the latter of zombies
                    kill(self.pid, signal.SIGKILL)
            self.pid = None
            self._wake_warden()
        if self._life is not None:
            with suppress(OSError):
                self._life.shutdown(socket.SHUT_WR)

    def _wake_warden(self) -> None:
        """A handler may have stopped it, and stopped it ends nothing: not even itself, with the program."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def _attend(self) -> None:
        why, unread = "it was ended", False
        try:
            self._open()
            self._read()
        except EOFError:
            pass
        except ConnectionResetError:
            unread = True
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        code = self._buried()
        self._pool._ended(self, why if code is None else _reason(code), unread)
        self._end_warden()

    def _end_warden(self) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:  # it was stopped once more
            self._process.kill()
            self._process.wait()

    def _open(self) -> None:
        with ExitStack() as theirs:
            with _FORKING:
                ours, other = socket.socketpair()
                self._line = Line(ours)
                line = theirs.enter_context(_beyond_standard(other))
                self._life, other = socket.socketpair()
                life = theirs.enter_context(_beyond_standard(other))
            self._process = _launched(life.fileno(), line.fileno())
        told = self._life.recv(WORD.size)
        with self._lock:
            self.pid = WORD.unpack(told)[0] if told else None
            if self._pool._closed:
                self._killed()
        self._line.send(Kind.PREPARE, *self.recipes)

    def _read(self) -> NoReturn:
        assert self._line is not None and self._life is not None
        life = self._life.fileno()
        coming = select.poll()
        coming.register(self._line.fileno(), select.POLLIN)
        coming.register(life, 0)  # without its warden it would outlive the program
        while True:
            found = coming.poll(self._pool.idle_seconds * 1000)
            if any(descriptor == life for descriptor, _ in found):
                self._line.ended()
                raise EOFError
            if found:
                for kind, parts in self._line.receive():
                    self._take(kind, parts)
            elif self._pool._retires(self):
                self._line.finish()
                coming.poll(_END_SECONDS * 1000)
                raise EOFError

    def _take(self, kind: int, parts: list[bytes]) -> None:
        job = self.job
        if kind == Kind.READY:
            self._pool._ready(self)
        elif job is None:  # what comes after a kill
            return
        elif kind == Kind.PROGRESS:
            if job.on_progress is not None:
                with suppress(RuntimeError):  # the loop that it is told on is closed
                    job.on_progress(json.loads(parts[0]))
        else:
            self._wake_warden()
            self._pool._done(self, _outcome(kind, parts[0], job.order.recipe.transfer))

    def _buried(self) -> int | None:
        """End what is left of the group, and then let its id go; how the worker ended, where that is known."""
        with self._lock:
            self._killed()
            self._gone = True
        code = None
        if self._life is not None:
            with suppress(OSError, struct.error):
                self._life.settimeout(_END_SECONDS)
                code = WORD.unpack(self._life.recv(WORD.size))[0]
        self._close()
        return code

    def _close(self) -> None:
        if self._line is not None:
            self._line.close()
        if self._life is not None:
            self._life.close()

    def disown(self) -> None:
        """In a forked child: let go of what keeps the warden waiting, and of a process that is none of its own."""
        if self._line is not None:
            self._line.abandon()
            self._line = None
        self._close()
        if self._process is not None:
            self._process.returncode = 0


def _launched(life: int, line: int) -> subprocess.Popen[bytes]:
    """A warden with the other ends of its two sockets."""
    if not sys.executable:
        raise RuntimeError("sys.executable does not say where Python is")
    # -P: beside supervisor.py are modules whose names others have too.
    flags = [*subprocess._args_from_interpreter_flags(), "-P"]  # type: ignore[attr-defined]
    return subprocess.Popen(
        [sys.executable, *flags, _WARDEN, str(life), str(line), *surroundings()[1]],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=(life, line),
    )


class RaisedThere(Raised):
    """What the handler itself raised, whatever it is; all else comes from the pool."""

    __slots__ = ()


def _outcome(kind: int, data: bytes, transfer: Transfer) -> Any:
    """What the handler returned, or `Raised`."""
    try:
        if kind == Kind.VALUE:
            return unpacked(data, transfer)
        error = rebuilt(data)
    except Exception as broken:
        return Raised(broken)
    if kind == Kind.UNSTARTED:
        started = NotStartedError(f"it could not be started in its process: {type(error).__name__}: {error}")
        started.__cause__ = error
        return Raised(started)
    return RaisedThere(error)


def _beyond_standard(end: socket.socket) -> socket.socket:
    """The socket under a number that the standard streams do not take: a program may have closed its own."""
    if end.fileno() > 2:
        return end
    with end:
        return socket.socket(fileno=fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3))


def _reason(status: int) -> str:
    if status == -signal.SIGKILL:
        return "it was killed (SIGKILL), perhaps for want of memory, or it closed its connection"
    if status < 0:
        try:
            return f"it was ended by {signal.Signals(-status).name}"
        except ValueError:
            return f"it was ended by signal {-status}"
    return f"it left with exit code {status}"


# -- the process's own pool ------------------------------------------------------------------------------------------

_POOL = WorkerPool()


def shared() -> WorkerPool:
    """The process's pool."""
    return _POOL


def _after_fork() -> None:
    global _POOL
    _FORKING.release()
    for pool in list(_POOLS):
        for worker in list(pool._alive):
            worker.disown()
        _POOLS.discard(pool)
    _POOL = WorkerPool()
    SLOTS.refill()


os.register_at_fork(before=_FORKING.acquire, after_in_parent=_FORKING.release, after_in_child=_after_fork)
