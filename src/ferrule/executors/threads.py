"""The threads that blocking handlers run in.

Daemon threads of our own: a function that never returns must not keep the program from ending. What was started stays
for the next. How many run at once is a limit like any other: who waits for a thread waits for a slot.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeAlias

from ferrule.definition.handler import Handler
from ferrule.errors import NotStartedError
from ferrule.executors import Executor, StartedCall
from ferrule.scheduling.limiter import Limiter

THREADS = 64
SLOTS = Limiter(THREADS)
"""As many blocking handlers run at once in the whole program, with those that outlived their deadlines."""


class Raised:
    """What a handler raised, as a value: a `StopIteration` or `SystemExit` could not travel as an exception."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class ThreadJob:
    """One function in a thread.

    Attributes:
        future: Its value, or `Raised`, on the loop.
        done: Whether it has ended.
    """

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._context = copy_context()
        self._loop = asyncio.get_running_loop()
        self._when_done: list[Callable[[], object]] = []
        self.done = False
        self.future: asyncio.Future[object] = self._loop.create_future()

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` on the loop once the function has ended."""
        self._when_done.append(callback)
        if self.done:
            self._tell_done()

    def run(self) -> None:
        """Run it in this thread, and tell the loop of its end."""
        function = self._function
        del self._function  # what it refers to is not kept while others look at the job
        outcome: object
        try:
            outcome = self._context.run(function)
        except BaseException as error:
            outcome = Raised(error)
        self.done = True
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._finish, outcome)
        self._tell_done()

    def _tell_done(self) -> None:
        with suppress(IndexError):  # perhaps in two threads: each `pop` is atomic
            while True:
                self._when_done.pop(0)()

    def _finish(self, outcome: object) -> None:
        if not self.future.done():
            self.future.set_result(outcome)


_Inbox: TypeAlias = "queue.SimpleQueue[ThreadJob]"
_IDLE: list[_Inbox] = []
"""What the threads that wait take their next job from."""


def begin(function: Callable[[], object]) -> ThreadJob:
    """Run `function` in a thread, with a copy of the present context.

    Raises:
        NotStartedError: where no thread can be started.
    """
    job = ThreadJob(function)
    try:
        inbox = _IDLE.pop()
    except IndexError:
        inbox = queue.SimpleQueue()
        try:
            threading.Thread(target=_work, args=(inbox,), name="ferrule-thread", daemon=True).start()
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            raise NotStartedError(f"no thread can be started: {error}", limited=True) from error
    inbox.put(job)
    return job


def _work(inbox: _Inbox) -> None:
    while True:
        job = inbox.get()
        job.run()
        del job
        if len(_IDLE) >= THREADS:
            return
        _IDLE.append(inbox)


def _begin_anew() -> None:
    _IDLE.clear()  # the child has none of its parent's threads
    SLOTS.begin_anew()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_begin_anew)


def in_own_thread(function: Callable[[], object]) -> asyncio.Future[object]:
    """Run `function` in a thread that takes no slot, for what may wait for a person; its value or `Raised`.

    Raises:
        NotStartedError: where no thread can be started.
    """
    return begin(function).future


class InThread(Executor):
    """Runs a blocking handler in a thread, with the context variables copied.

    Args:
        shape: What makes of its value what others see, in the same thread.
    """

    limiter = SLOTS

    def __init__(self, handler: Handler, shape: Callable[[Any], object]) -> None:
        self._handler = handler
        self._shape = shape

    async def run(self, values: Any, call: StartedCall) -> Any:
        """The handler's value, shaped. Where this is cancelled the function runs on, and is reported as
        abandoned."""
        function, handle = self._handler.by_keywords, self._handler.call
        work = partial(handle, values, call.context) if function is None else partial(function, **values)
        try:
            job = begin(partial(self._shaped, work))
        except NotStartedError as error:
            call.not_started(error)
            raise
        try:
            value = await job.future
        except asyncio.CancelledError:
            if not job.done:
                call.abandon(job)
            raise
        if isinstance(value, Raised):
            if isinstance(value.error, KeyboardInterrupt | GeneratorExit | StopIteration):
                raise RuntimeError(f"{type(value.error).__name__} raised in a thread") from value.error
            raise value.error
        return self._shape(await value) if inspect.isawaitable(value) else value

    def _shaped(self, work: Callable[[], object]) -> object:
        value = work()
        return value if inspect.isawaitable(value) else self._shape(value)
