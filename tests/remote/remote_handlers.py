"""Handlers that an order runner imports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from ferrule import NotStartedError, ToolContext


async def add(a: int, b: int = 2) -> int:
    return a + b


async def steps(count: int, context: ToolContext) -> int:
    for step in range(count):
        context.progress(step, count)
        await asyncio.sleep(0)
    return count


async def chunks(count: int) -> AsyncIterator[str]:
    for chunk in range(count):
        yield f"{chunk} "
        await asyncio.sleep(0)


async def wait(began: str, context: ToolContext) -> bool:
    Path(began).touch()
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        assert context.cancelled
        Path(f"{began}.cancelled").touch()
        raise
    return True


async def pretends() -> None:
    raise NotStartedError("a second tool had no slot")


def guarded(path: str, token: str) -> str:
    return f"{path} with {token}"
