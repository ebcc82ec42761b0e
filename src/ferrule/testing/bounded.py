"""Runs the check of a contract to its end in a loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")
SECONDS = 60.0
"""Seconds that any test of a contract waits for an event."""


def in_time(made: Coroutine[Any, Any, _T], what_hangs: Callable[[], str] = str) -> _T:
    """Return the result of the coroutine. A run that hangs fails after a minute, and the error ends with
    `what_hangs()`.
    """

    async def bounded() -> _T:
        try:
            async with asyncio.timeout(SECONDS) as limit:
                return await made
        except TimeoutError as error:
            if limit.expired():
                raise AssertionError(f"the run has not ended after {SECONDS:g} s{what_hangs()}") from error
            raise

    return asyncio.run(bounded())
