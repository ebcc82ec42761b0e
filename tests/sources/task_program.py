"""A server of tools as a program, over standard input and output, with a journal.

python task_program.py JOURNAL MOMENT: the first process with the journal dies while its job runs ("inside"), or as soon
as it has ended ("after").
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from ferrule import Event, Journal, Runner, ToolContext, serve, tool

path, moment = sys.argv[1:]
died = Path(f"{path}.died")


def die_once() -> None:
    if not died.exists():
        died.touch()
        os._exit(3)


@tool(background=True)
async def order(count: int) -> str:
    """Order something."""
    if moment == "inside":
        die_once()
    return f"ordered {count}"


def observe(event: Event) -> None:
    if event.kind == "tool:post" and event.call.id.startswith("work_") and moment == "after":
        die_once()


runner = Runner([order], journal=Journal.open(path), observers=[observe])
asyncio.run(serve.stdio(runner, context=ToolContext(session="desk")))
