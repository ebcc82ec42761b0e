"""The threads in which blocking handlers run.

They are daemon threads, so a function that never returns does not keep the program from ending. A thread takes the next
job when its job is done. `THREAD_SLOTS` limits how many handlers run at once, like any other limiter.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from ferrule.definition.handler import Handler
from ferrule.errors import NotStartedError
from ferrule.executors import Executor, StartedCall
from ferrule.scheduling.limiter import Limiter

if TYPE_CHECKING:
    from queue import SimpleQueue

MAX_THREADS = 64
THREAD_SLOTS = Limiter(MAX_THREADS)
"""One slot for each blocking handler that runs in this program, abandoned ones included."""


class Raised:
    """An exception as a value. A future cannot carry `StopIteration`, and `SystemExit` would end a thread."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class ThreadJob:
    """One function that runs in a thread.

    Attributes:
        future: The function's value, or `Raised`. It is set on the loop that made the job.
        is_done: Whether the function has ended.
    """

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._context = copy_context()
        self._loop = asyncio.get_running_loop()
        self._callbacks: list[Callable[[], object]] = []
        self.is_done = False
        self.future: asyncio.Future[object] = self._loop.create_future()

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the function has ended, in its thread or in this one."""
        self._callbacks.append(callback)
        if self.is_done:
            self._call_callbacks()

    def run(self) -> None:
        """Run the function in this thread."""
        function = self._function
        del self._function  # frees its objects although others still hold the job
        outcome: object
        try:
            outcome = self._context.run(function)
        except BaseException as error:
            outcome = Raised(error)
        self.is_done = True
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._set_outcome, outcome)
        self._call_callbacks()

    def _call_callbacks(self) -> None:
        with suppress(IndexError):  # two threads may be here, and each `pop` is atomic
            while True:
                self._callbacks.pop(0)()

    def _set_outcome(self, outcome: object) -> None:
        if not self.future.done():
            self.future.set_result(outcome)


_Inbox: TypeAlias = "SimpleQueue[ThreadJob]"
_IDLE: list[_Inbox] = []
"""The inboxes of the threads that wait for a job."""


def start_job(function: Callable[[], object]) -> ThreadJob:
    """Run `function` in a thread, with a copy of the current context.

    Raises:
        NotStartedError: No thread can be started.
    """
    job = ThreadJob(function)
    try:
        inbox = _IDLE.pop()
    except IndexError:
        from queue import SimpleQueue  # for programs with blocking handlers

        inbox = SimpleQueue()
        try:
            threading.Thread(target=_run_jobs, args=(inbox,), name="ferrule-thread", daemon=True).start()
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            raise NotStartedError(f"no thread can be started: {error}", limited=True) from error
    inbox.put(job)
    return job


def _run_jobs(inbox: _Inbox) -> None:
    while True:
        job = inbox.get()
        job.run()
        del job
        if len(_IDLE) >= MAX_THREADS:
            return
        _IDLE.append(inbox)


def _reset_after_fork() -> None:
    _IDLE.clear()  # a forked child has no threads of its parent
    THREAD_SLOTS.reset_after_fork()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_reset_after_fork)


def run_in_thread(function: Callable[[], object]) -> asyncio.Future[object]:
    """Run `function` in a thread without a slot, because it may wait for a person. Return a future of its value or
    `Raised`.

    Raises:
        NotStartedError: No thread can be started.
    """
    return start_job(function).future


class ThreadExecutor(Executor):
    """Runs a blocking handler in a thread, with a copy of the context variables.

    Args:
        shape: Converts the handler's value to an output, in the same thread.
    """

    limiter = THREAD_SLOTS

    def __init__(self, handler: Handler, shape: Callable[[Any], object]) -> None:
        self._handler = handler
        self._shape = shape

    async def run(self, values: Any, call: StartedCall) -> Any:
        """Return the handler's output. If this is cancelled, the function goes on and is reported as abandoned."""
        function, call_handler = self._handler.kwargs_call, self._handler.call
        work = partial(call_handler, values, call.context) if function is None else partial(function, **values)
        try:
            job = start_job(partial(self._run_and_shape, work))
        except NotStartedError as error:
            call.report_not_started(error)
            raise
        try:
            value = await job.future
        except asyncio.CancelledError:
            if not job.is_done:
                call.abandon(job)
            raise
        if isinstance(value, Raised):
            if isinstance(value.error, KeyboardInterrupt | GeneratorExit | StopIteration):
                raise RuntimeError(f"{type(value.error).__name__} raised in a thread") from value.error
            raise value.error
        return self._shape(await value) if inspect.isawaitable(value) else value

    def _run_and_shape(self, work: Callable[[], object]) -> object:
        value = work()
        return value if inspect.isawaitable(value) else self._shape(value)
