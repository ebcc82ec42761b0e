"""Programs that run until a signal comes: `ferrule serve` and `ferrule worker`."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from ferrule.mcp.serve._listen import stop_on_signals

_STOPPING = "finishing the calls that run; press ctrl-C again to stop them now"


async def until_told(work: Callable[..., Coroutine[Any, Any, None]]) -> int:
    """Run `work` until it ends or a signal comes, and return the exit code. A second signal stops the calls, a third
    kills.
    """
    stop = asyncio.Event()
    with stop_on_signals(stop, _say_first) as came:
        await work(stop=stop)
    return 128 + signal.SIGINT if signal.SIGINT in came else 0


def _say_first(number: int) -> None:
    if number == signal.SIGINT:
        print(f"ferrule: {_STOPPING}", file=sys.stderr, flush=True)
