"""Run handlers in other processes. Use these functions to write an executor for another machine.

The other process makes the tool again from a `Recipe`, and validates the judged arguments again:

    recipe = Recipe(tool)                       # here, once for each tool; it must be importable
    recipe.text, judged_text(call)              # send these
    tool = make_tool(text)                      # there: imports the handler, so accept text only from your own program
    await Runner([tool]).run(ToolCall(id, tool.name, arguments))
    pack(result, "json")                        # send this back, or `describe_error(error)`
    unpack(data, "json")                        # here again, or `rebuild_error(described)`

`continue_trace(headers)` there continues the trace of `trace_headers()` here. `executor.py` has the executor for
`isolation="process"`.
"""

from __future__ import annotations

from ferrule.executors.process.recipe import Recipe, make_tool, validate_judged_arguments
from ferrule.executors.process.remote_errors import describe_error, rebuild_error
from ferrule.executors.process.traces import continue_trace, trace_headers
from ferrule.executors.process.transfer import judged_text, pack, pack_items, unpack, unpack_items
from ferrule.executors.workers import Workers

__all__ = [
    "Recipe",
    "Workers",
    "continue_trace",
    "describe_error",
    "judged_text",
    "make_tool",
    "pack",
    "pack_items",
    "rebuild_error",
    "trace_headers",
    "unpack",
    "unpack_items",
    "validate_judged_arguments",
]
