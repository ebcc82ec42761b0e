"""A loop in a thread of its own, for programs without a loop."""

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
_CHECK_SECONDS = 1.0
"""Seconds between checks whether the loop still runs."""
_MAX_IDLE_CHECKS = 3
"""Checks in a row that may find a loop not running: a new one may not run yet. After that it has ended unclosed."""


class BackgroundLoop:
    """A loop in a daemon thread, started when first needed. It ends with its owner.

    A forked process has none of its parent's threads, and starts a loop of its own.
    """

    def __init__(self, owner: object) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._owner = weakref.ref(owner)
        self._process = os.getpid()

    def get(self) -> asyncio.AbstractEventLoop:
        """Return the running loop."""
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
        except BaseException:  # a `KeyboardInterrupt` in a task stops the loop; the waiting thread gets it too
            log.debug("the loop goes on", exc_info=True)
    loop.close()


def _stop_loop(loop: asyncio.AbstractEventLoop) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)


def run_on_loop(loop: asyncio.AbstractEventLoop, make: Callable[[], Coro[_T]]) -> _T:
    """Run the coroutine of `make` on a loop of another thread, in the context of this one, and return its result.

    Raises:
        RuntimeError: This thread runs `loop`, or the loop ended before the coroutine.
    """
    if running_loop() is loop:
        raise RuntimeError("run_sync would wait for the loop that it runs on: await runner.run(…) here")
    future = asyncio.run_coroutine_threadsafe(make(), loop)
    try:
        idle = 0
        while not futures.wait((future,), _CHECK_SECONDS).done:
            idle = 0 if loop.is_running() else idle + 1
            if loop.is_closed() or idle == _MAX_IDLE_CHECKS:  # it never runs a call from its last moment
                future.cancel()
                break
        return future.result()
    except futures.CancelledError:
        raise RuntimeError("the event loop that the call was handed to ended before it did") from None
    except BaseException:
        future.cancel()
        raise
