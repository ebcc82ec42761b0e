"""For programs without a loop: a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import Callable
from concurrent import futures
from typing import TypeVar

from ferrule.scheduling.clock import running_loop
from ferrule.types import Coro

_T = TypeVar("_T")
log = logging.getLogger("ferrule")
_LOOK_WHETHER_IT_RUNS = 1.0
"""Seconds after which who waits for a loop looks whether there still is one."""
_MOST_LOOKS = 3
"""So many in a row may find that it does not run: it has ended, without being closed, and perhaps its thread waits for
this one. One that has just been made may not run yet."""


class OwnLoop:
    """A loop in a daemon thread, started when first needed; it ends with its owner. A forked process, which has none of
    its parent's threads, begins another."""

    def __init__(self, owner: object) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._owner = weakref.ref(owner)
        self._process = os.getpid()

    def get(self) -> asyncio.AbstractEventLoop:
        """The running loop."""
        with self._lock:
            if self._loop is None or self._loop.is_closed() or self._process != os.getpid():
                self._process = os.getpid()
                loop = asyncio.new_event_loop()
                threading.Thread(target=_serve, args=(loop,), name="ferrule-loop", daemon=True).start()
                self._loop = loop
                owner = self._owner()
                if owner is not None:
                    weakref.finalize(owner, _stop_loop, loop).atexit = False
            return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    ended = False
    while not ended:
        try:
            loop.run_forever()
            ended = True
        except BaseException:  # a KeyboardInterrupt in a task stops the loop; whoever waits for the task is told of it
            log.debug("the loop goes on", exc_info=True)
    loop.close()


def _stop_loop(loop: asyncio.AbstractEventLoop) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)


def wait(loop: asyncio.AbstractEventLoop, make: Callable[[], Coro[_T]]) -> _T:
    """The result of the coroutine that `make` gives, run on `loop` in another thread, with the context of this one.

    Raises:
        RuntimeError: where this thread is the one that runs `loop`, and would wait for itself; and where the loop ended
            before the coroutine did.
    """
    if running_loop() is loop:
        raise RuntimeError("run_sync would wait for the loop that it runs on: await runner.run(…) here")
    future = asyncio.run_coroutine_threadsafe(make(), loop)
    try:
        idle = 0
        while not futures.wait((future,), _LOOK_WHETHER_IT_RUNS).done:
            idle = 0 if loop.is_running() else idle + 1
            if loop.is_closed() or idle == _MOST_LOOKS:  # what was handed to it in its last moment never begins
                future.cancel()
                break
        return future.result()
    except futures.CancelledError:
        raise RuntimeError("the event loop that the call was handed to ended before it did") from None
    except BaseException:
        future.cancel()
        raise
