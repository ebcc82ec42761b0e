"""Tools that wait until a test lets them go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

from ferrule import DefinitionError, ToolContext, ask, tool


async def opened(gate: str) -> None:
    """Waits at a gate."""
    descriptor = os.open(gate, os.O_RDONLY | os.O_NONBLOCK)
    event, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(descriptor, event.set)
    try:
        while await event.wait():
            with contextlib.suppress(BlockingIOError):  # another one at this gate was faster
                os.read(descriptor, 1)
                return
            event.clear()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def say(gate: str) -> None:
    """Says that it has come to a gate."""
    with open(gate, "wb", buffering=0) as file:
        file.write(b"x")


@tool(read_only=True)
async def work(gate: str, context: ToolContext, total: int | None = 4, message: str = "begun") -> str:
    """Reports, and goes on when it may."""
    context.progress(1, total, message)
    await opened(gate)
    context.progress(2, total, "goes on")
    return "fine"


@tool(read_only=True)
async def loud(gate: str, context: ToolContext) -> str:
    """Prints, and goes on when it may."""
    context.progress(1, 4)
    print("printed")
    await opened(gate)
    return "fine"


@tool(read_only=True)
async def ended(gate: str, says: str) -> str:
    """Ends when it may, and says so."""
    await opened(gate)
    say(says)
    return "ended"


@tool(read_only=True)
async def tell(gate: str) -> AsyncIterator[str]:
    """Yields, and goes on when it may."""
    yield "first line\nhalf \x1b[31m"
    await opened(gate)
    yield "a line\n\x1b[2Jlast"


@tool(read_only=True)
async def breaks() -> AsyncIterator[str]:
    """Yields, and fails."""
    yield "as far as this"
    raise ValueError("no further")


@tool(destructive=False, parallel=True)
async def note(text: str) -> str:
    """Writes a note."""
    Path("note.txt").write_text(text, encoding="utf-8")
    return "written"


@tool(destructive=False)
async def last(text: str) -> str:
    """Runs alone."""
    Path("note.txt").write_text(text, encoding="utf-8")
    return "written"


@tool(read_only=True)
def stuck(gate: str) -> str:
    """Blocks in a thread, for ever."""
    say(gate)
    threading.Event().wait()
    raise DefinitionError("never")


@tool(read_only=True)
async def stubborn(gate: str, context: ToolContext) -> str:
    """Does not end by a cancellation."""
    context.progress(1, 2, "and does not end")
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            say(gate)


@tool(read_only=True, isolation="process")
def apart(gate: str, alive: str) -> str:
    """Blocks in a process, which keeps `alive` open."""
    kept = os.open(alive, os.O_WRONLY)
    say(gate)
    threading.Event().wait()
    os.close(kept)
    raise DefinitionError("never")


@tool(read_only=True, private=("pin",), guards=[lambda call, context: ask("a pin is needed", into="pin")])
async def secret(pin: str) -> str:
    """Takes what only a person knows."""
    return "opened"
