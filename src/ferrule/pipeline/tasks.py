"""Tasks that begin at once, where Python has them."""

from __future__ import annotations

import asyncio
import sys
from typing import TypeVar

from ferrule.types import Coro

_T = TypeVar("_T")

EAGER = sys.version_info >= (3, 12)
"""Whether a task begins at once."""

if sys.version_info >= (3, 12):

    def start(coroutine: Coro[_T], loop: asyncio.AbstractEventLoop) -> asyncio.Task[_T]:
        """A task of its own, begun at once: many handlers never wait."""
        return asyncio.Task(coroutine, loop=loop, eager_start=True)

else:

    def start(coroutine: Coro[_T], loop: asyncio.AbstractEventLoop) -> asyncio.Task[_T]:
        """A task of its own."""
        return asyncio.Task(coroutine, loop=loop)
