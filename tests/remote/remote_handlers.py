"""Handlers that an order runner imports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from ferrule import CONTEXT, NotStartedError, ToolContext, tool


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


async def odd_progress(context: ToolContext) -> AsyncIterator[bytes]:
    context.announce({"seen": {1}})
    yield b"\x00"


async def wait(began: str, context: ToolContext) -> bool:
    Path(began).touch()
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        assert context.cancelled
        Path(f"{began}.cancelled").touch()
        raise
    return True


async def ask(context: ToolContext) -> str:
    await context.run("add", {"a": 1})
    return "never"


async def pretends() -> None:
    raise NotStartedError("a second tool had no slot")


@tool(context={"unit": "the module's"})
def own() -> str:
    return str(CONTEXT.get()["unit"])


def guarded(path: str, token: str) -> str:
    return f"{path} with {token}"


async def traced() -> str:
    from opentelemetry import trace

    return f"{trace.get_current_span().get_span_context().trace_id:032x}"
