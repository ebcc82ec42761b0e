"""Programs that run until a signal comes: `ferrule serve` and `ferrule worker`."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from ferrule.cli.text import warn
from ferrule.mcp.serve._listen import stop_on_signals


async def run_until_signal(work: Callable[..., Coroutine[Any, Any, None]]) -> int:
    """Run `work` until it ends or a signal comes, and return the exit code. A second signal stops the calls, a third
    kills.
    """
    stop = asyncio.Event()
    with stop_on_signals(stop, _on_first_signal) as signals:
        await work(stop=stop)
    return 128 + signal.SIGINT if signal.SIGINT in signals else 0


def _on_first_signal(number: int) -> None:
    if number == signal.SIGINT:
        warn("finishing the running calls; press ctrl-C again to stop them")
