"""Tools to look at calls in the background, and to stop them: for tools with `background=True`.

They see only the calls of their caller's principal and session. For others they answer as for an unknown ticket.
`runner = Runner([my_tool, *background.tools])`. See docs/long-work.md#in-the-background.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field

from ferrule.definition.decorator import tool
from ferrule.definition.tool import Tool
from ferrule.errors import ToolError
from ferrule.kernel.background import BackgroundJob
from ferrule.values.context import ToolContext
from ferrule.values.frozen import thaw
from ferrule.values.result import ToolResult

_OF_WHAT_IS_LEFT: Final = 0.9  # share of the time until the deadline, so that the answer comes before it
_MOST_SECONDS: Final = 3600

Ticket = Annotated[str, Field(description="As the call that began the work gave it.")]
"""The type of the ticket parameter of these tools: the ticket of a call in the background."""


async def _own_work(ticket: str, context: ToolContext) -> BackgroundJob:
    work = await context.find_job(ticket)
    if work is None:
        raise ToolError(f"There is no call with the ticket {ticket[:80]!r}.", executed=False)
    return work


@tool(read_only=True, open_world=False)
async def check_call(
    ticket: Ticket,
    context: ToolContext,
    wait_seconds: Annotated[float, Field(ge=0, le=_MOST_SECONDS, description="Wait so long for its end.")] = 0,
) -> ToolResult:
    """Look at a call that runs in the background: its result, or how far it is."""
    work = await _own_work(ticket, context)
    left = context.remaining()
    await work.wait(wait_seconds if left is None else min(wait_seconds, left * _OF_WHAT_IS_LEFT))
    return _answer(await _own_work(ticket, context))


@tool(idempotent=True, destructive=True, open_world=False)
async def cancel_call(ticket: Ticket, context: ToolContext) -> dict[str, str]:
    """Stop a call that runs in the background."""
    work = await _own_work(ticket, context)
    if await work.cancel():
        return {"ticket": ticket, "status": "stopping" if work.result is None else work.result.status}
    if work.result is None:
        raise ToolError(f"{ticket} runs in another process, and cannot be stopped here.", executed=False)
    return {"ticket": ticket, "status": work.result.status}


def _answer(work: BackgroundJob) -> ToolResult:
    result = work.result
    if result is None or not work.has_ended:
        about: dict[str, Any] = {"ticket": work.ticket, "status": "running" if result is None else "suspended"}
        if work.progress is not None:
            about["progress"] = thaw(work.progress)
        return ToolResult(about, metadata={"ticket": work.ticket})
    work.told = True
    return result.replace(metadata={**result.metadata, "ticket": work.ticket})


tools: list[Tool] = [check_call, cancel_call]
"""Both tools."""
