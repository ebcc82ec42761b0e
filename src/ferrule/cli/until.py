"""What runs until a signal comes: `ferrule serve` and `ferrule worker`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

_STOPPING = "finishing the calls that run; press ctrl-C again to stop them now"


async def until_told(work: Callable[..., Coroutine[Any, Any, None]]) -> int:
    """Run `work` until it ends or a signal comes; the exit code. A second signal stops the calls, a third kills."""
    stop = asyncio.Event()
    with _signals(stop) as came:
        try:
            await work(stop=stop)
        except asyncio.CancelledError:
            if not came:
                raise
    return 128 + signal.SIGINT if signal.SIGINT in came else 0


@contextlib.contextmanager
def _signals(stop: asyncio.Event) -> Iterator[list[int]]:
    """Take ctrl-C and SIGTERM meanwhile; those that came."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    came: list[int] = []
    ours = [signal.SIGINT, signal.SIGTERM]

    def press(number: int) -> None:
        came.append(number)
        if len(came) == 1:
            stop.set()
            if number == signal.SIGINT:
                print(f"ferrule: {_STOPPING}", file=sys.stderr, flush=True)
            return
        for one in ours:
            loop.remove_signal_handler(one)
            signal.signal(one, signal.SIG_DFL)
        if task is not None:
            task.cancel()

    with contextlib.suppress(NotImplementedError):  # Windows, where ctrl-C is a KeyboardInterrupt
        for one in ours:
            loop.add_signal_handler(one, press, one)
    try:
        yield came
    finally:
        with contextlib.suppress(NotImplementedError):
            for one in ours:
                loop.remove_signal_handler(one)
