"""Tools that say in which trace they run, elsewhere."""

from __future__ import annotations

import sys
from typing import Any

from opentelemetry.trace import get_current_span

from ferrule import ToolContext, tool


@tool(read_only=True, isolation="process")
def which_trace() -> str:
    """Say in which trace this is, and below which span."""
    current = get_current_span().get_span_context()
    return f"{current.trace_id:032x}-{current.span_id:016x}"


@tool(isolation="process")
async def asks_back(context: ToolContext) -> Any:
    """Have another tool called by the program."""
    return (await context.run("look", {"n": 3})).output


@tool(read_only=True)
async def trace_here() -> str:
    """Say in which trace this is."""
    return f"{get_current_span().get_span_context().trace_id:032x}"


OURS = [sys.executable, "-m", "ferrule", "serve", "--tools", f"{__file__}:trace_here"]


@tool(read_only=True, isolation="process")
def baggage_there() -> dict[str, str]:
    """What came along with the trace."""
    from opentelemetry import baggage

    return {name: str(value) for name, value in baggage.get_all().items()}
