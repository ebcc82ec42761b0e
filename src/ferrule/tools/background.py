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

_SHARE_OF_REMAINING: Final = 0.9  # share of the time until the deadline, so that the answer comes before it
_MAX_SECONDS: Final = 3600

Ticket = Annotated[str, Field(description="As the call that began the work gave it.")]
"""The type of the ticket parameter of these tools: the ticket of a call in the background."""


async def _find_job(ticket: str, context: ToolContext) -> BackgroundJob:
    job = await context.find_job(ticket)
    if job is None:
        raise ToolError(f"There is no call with the ticket {ticket[:80]!r}.", executed=False)
    return job


@tool(read_only=True, open_world=False)
async def check_call(
    ticket: Ticket,
    context: ToolContext,
    wait_seconds: Annotated[float, Field(ge=0, le=_MAX_SECONDS, description="Wait so long for its end.")] = 0,
) -> ToolResult:
    """Look at a call that runs in the background: its result, or how far it is."""
    job = await _find_job(ticket, context)
    left = context.remaining()
    await job.wait(wait_seconds if left is None else min(wait_seconds, left * _SHARE_OF_REMAINING))
    return _to_result(await _find_job(ticket, context))


@tool(idempotent=True, destructive=True, open_world=False)
async def cancel_call(ticket: Ticket, context: ToolContext) -> dict[str, str]:
    """Stop a call that runs in the background."""
    job = await _find_job(ticket, context)
    if await job.cancel():
        return {"ticket": ticket, "status": "stopping" if job.result is None else job.result.status}
    if job.result is None:
        raise ToolError(f"{ticket} runs in another process, and cannot be stopped here.", executed=False)
    return {"ticket": ticket, "status": job.result.status}


def _to_result(job: BackgroundJob) -> ToolResult:
    result = job.result
    if result is None or not job.has_ended:
        about: dict[str, Any] = {"ticket": job.ticket, "status": "running" if result is None else "suspended"}
        if job.progress is not None:
            about["progress"] = thaw(job.progress)
        return ToolResult(about, metadata={"ticket": job.ticket})
    job.told = True
    return result.replace(metadata={**result.metadata, "ticket": job.ticket})


tools: list[Tool] = [check_call, cancel_call]
"""Both tools."""
