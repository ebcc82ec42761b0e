"""A server for the soak: says what it was told, over stdio or HTTP, by `ferrule serve`."""

from __future__ import annotations

import os

from ferrule import Runner, tool


@tool(read_only=True)
async def say(number: int, text: str = "") -> dict[str, object]:
    """Say it back, and who says it."""
    return {"number": number, "text": text, "pid": os.getpid()}


runner = Runner([say])
