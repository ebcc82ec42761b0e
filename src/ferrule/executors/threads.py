"""The threads that blocking handlers run in.

Daemon threads of our own: a function that never returns must not keep the program from ending, and one that outlived
its deadline must not take a thread from those that come after it, up to a bound. What was started stays for the next.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import queue
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any

from ferrule.definition.handler import Handler
from ferrule.definition.output import Output
from ferrule.executors import Executor, NotStarted, StartedCall
from ferrule.scheduling.fair_queue import FairQueue

THREADS = 32
ABANDONED = 64


class Raised:
    """What a handler raised, as a value: a `StopIteration` or `SystemExit` could not travel as an exception."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class ThreadJob:
    """One function in a thread, perhaps of the pool.

    Attributes:
        future: Its value, or `Raised`, on the loop.
        done: Whether it has ended.
    """

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._context = copy_context()
        self._loop = asyncio.get_running_loop()
        self._begun = threading.Lock()  # who has it runs the function, or has taken it back
        self._outcome: object = None
        self._when_done: list[Callable[[], object]] = []
        self.done = False
        self.future: asyncio.Future[object] = self._loop.create_future()

    def cancel(self) -> bool:
        """Take it back; whether it had not been started. What has been started runs on."""
        return self._begun.acquire(blocking=False)

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` on the loop once the function has ended."""
        self._when_done.append(callback)
        if self.done:
            self._tell_done()

    def run(self) -> bool:
        """Run it in this thread; whether it had not been taken back."""
        if not self._begun.acquire(blocking=False):
            return False
        function = self._function
        del self._function  # what it refers to is not kept while others look at the job
        try:
            self._outcome = self._context.run(function)
        except BaseException as error:
            self._outcome = Raised(error)
        self.done = True
        return True

    def tell(self) -> None:
        """Tell the loop of its end."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._finish)
        self._tell_done()

    def _tell_done(self) -> None:
        with suppress(IndexError):  # perhaps in two threads: each `pop` is atomic
            while True:
                callback = self._when_done.pop()
                try:
                    self._loop.call_soon_threadsafe(callback)
                except RuntimeError:  # the loop is closed, but slots are to be given back
                    callback()

    def _finish(self) -> None:
        if not self.future.done():
            self.future.set_result(self._outcome)


class ThreadPool:
    """At most `threads` functions at once, not counting at most `abandoned` that outlived their deadlines."""

    def __init__(self, threads: int = THREADS, abandoned: int = ABANDONED) -> None:
        self.threads = threads
        self.most_abandoned = abandoned
        self._abandoned: set[ThreadJob] = set()
        self._alive = 0
        self._idle = 0
        self._lock = threading.Lock()
        self._jobs: FairQueue[ThreadJob] = FairQueue()
        # An entry for each job. A condition in its place takes two to six times as long.
        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()

    @property
    def abandoned(self) -> int:
        """How many functions that outlived their deadlines still run."""
        return len(self._abandoned)

    def submit(self, function: Callable[[], object], *, group: Hashable = None, nested: bool = False) -> ThreadJob:
        """Run `function` in a thread, with a copy of the present context; groups that wait take turns.

        Raises:
            NotStarted: where too many abandoned functions still run, or no thread can be started and none is there
                that would come to it.
        """
        if self.abandoned >= self.most_abandoned:
            raise NotStarted(f"{self.abandoned} earlier calls still run past their deadlines", "limited")
        job = ThreadJob(function)
        with self._lock:
            if nested and not self._has_room() and len(self._jobs) >= self._idle:
                # Its parent may hold the thread that it would wait for.
                _begin(partial(self._run, job), "ferrule-nested")
                return job
            self._jobs.put(group, job)
            try:
                self._start_if_needed()
            except NotStarted:
                if nested or self._alive <= self.abandoned:  # nobody would come to it
                    self._jobs.remove(group, job)
                    raise
            self._queue.put(None)
        return job

    def _has_room(self) -> bool:
        return self._alive - self.abandoned < self.threads

    def _start_if_needed(self) -> None:
        if self._has_room() and len(self._jobs) > self._idle:
            _begin(self._work, f"ferrule-{self._alive + 1}")
            self._alive += 1  # it waits for the lock before it looks

    def abandon(self, job: ThreadJob) -> None:
        """Let another thread take the place of the one that a job keeps, until that ends."""
        with self._lock:
            if not job.done:
                self._abandoned.add(job)
            with suppress(NotStarted):  # what waits is taken by the next thread that is free
                self._start_if_needed()

    def _run(self, job: ThreadJob) -> None:
        if job.run():
            with self._lock:
                self._abandoned.discard(job)
            job.tell()

    def _work(self) -> None:
        while True:
            with self._lock:
                if self._alive - self.abandoned > self.threads:
                    self._alive -= 1
                    return
                self._idle += 1
            self._queue.get()
            with self._lock:
                self._idle -= 1
                job = self._jobs.take()
            self._run(job)
            del job


def _begin(work: Callable[[], None], name: str) -> None:
    """Do `work` in a thread of its own.

    Raises:
        NotStarted: where none can be started.
    """
    try:
        threading.Thread(target=work, name=name, daemon=True).start()
    except RuntimeError as error:  # no more threads, or the interpreter is ending
        raise NotStarted(f"no thread can be started: {error}", "limited") from error


_POOL = ThreadPool()


def shared() -> ThreadPool:
    """The process's pool."""
    return _POOL


def _renew_pool() -> None:
    global _POOL
    _POOL = ThreadPool()  # the child has none of its parent's threads


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_renew_pool)


def in_own_thread(function: Callable[[], object]) -> asyncio.Future[object]:
    """Run `function` in a thread of its own, for what may wait for a person; its value or `Raised`."""
    job = ThreadJob(function)
    threading.Thread(target=shared()._run, args=(job,), name="ferrule-own", daemon=True).start()
    return job.future


class InThread(Executor):
    """Runs a blocking handler in the pool, with the context variables copied.

    Args:
        output: What makes of its value what others see, in the same thread.
    """

    shapes = True

    def __init__(self, handler: Handler, output: Output) -> None:
        self._handler = handler
        self._output = output

    async def run(self, values: Any, call: StartedCall) -> Any:
        """The handler's value, or `Shaped`. Where this is cancelled the function runs on, and is reported as
        abandoned."""
        function, handle = self._handler.by_keywords, self._handler.call
        work = partial(handle, values, call.context) if function is None else partial(function, **values)
        work, pool = partial(self._shaped, work), shared()
        try:
            job = pool.submit(work, group=(call.call.name, call.fields.principal), nested=call.parent is not None)
        except NotStarted as error:
            call.not_started(error)
            raise
        try:
            value = await job.future
        except asyncio.CancelledError:
            if job.cancel():
                call.not_started()
            elif not job.done:
                pool.abandon(job)
                call.abandon(job)
            raise
        if isinstance(value, Raised):
            if isinstance(value.error, KeyboardInterrupt | GeneratorExit | StopIteration):
                raise RuntimeError(f"{type(value.error).__name__} raised in a thread") from value.error
            raise value.error
        return self._output.shape(await value) if inspect.isawaitable(value) else value

    def _shaped(self, work: Callable[[], object]) -> object:
        value = work()
        return value if inspect.isawaitable(value) else self._output.shape(value)
