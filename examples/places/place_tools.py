"""The tools of `program.py`. One line chooses where they run."""

from __future__ import annotations

import asyncio
import os

from ferrule import ToolContext, tool
from ferrule.remote import dbos, ray

PLACES = {
    "program": lambda: None,
    "processes": lambda: "process",
    "dbos": lambda: dbos.queue("places", concurrency=8),
    "ray": lambda: ray.actors(2),
}

# Change this line.
PLACE = PLACES[os.environ.get("PLACE", "program")]()


@tool(read_only=True, isolation=PLACE)
async def count_words(text: str, context: ToolContext) -> dict[str, int]:
    """Count the words of a text."""
    for percent in (0, 50, 100):
        context.progress(percent, 100)
        await asyncio.sleep(0.05)
    return {"words": len(text.split()), "process": os.getpid()}


@tool(isolation=PLACE)
def publish(title: str, words: int) -> str:
    """Publish a text."""
    return f"{title!r}, {words} words, is published by process {os.getpid()}"


TOOLS = [count_words, publish]
