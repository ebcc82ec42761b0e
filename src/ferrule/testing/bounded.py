"""A check of a contract, run to its end in a loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")
SECONDS = 60.0
"""How long any test of a contract waits for something that has to come."""


def run_bounded(check: Coroutine[Any, Any, _T]) -> _T:
    """What the check returns, which takes at most a minute."""
    return asyncio.run(asyncio.wait_for(check, SECONDS))
