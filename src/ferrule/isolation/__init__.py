"""Handlers in processes of their own, and what an executor needs to run one anywhere else.

A tool is made again where its handler runs, from a `Recipe`, and the judged arguments are validated there once more:

    recipe = Recipe(tool)                       # here, once for each tool: DefinitionError, if nobody else finds it
    recipe.text, judged_text(call)              # what is sent
    tool = make_tool(text)                      # there: imports the handler, so the text must be from who may say that
    await Runner([tool]).run(ToolCall(id, tool.name, arguments))
    pack(result, "json")                        # what is sent back, with its content; an exception by `describe`
    unpack(data, "json")                        # here again; an exception by `rebuild`

The spans of there belong to the trace of here by `in_trace(headers)`, with the `trace_headers()` of here. The worker
processes are behind `executor.py`, which nobody else needs.
"""

from __future__ import annotations

from ferrule.isolation.recipes import Recipe, judged_values, make_tool
from ferrule.isolation.remote_errors import describe, rebuild
from ferrule.isolation.traces import in_trace, trace_headers
from ferrule.isolation.transfer import judged_text, pack, pack_items, unpack, unpack_items

__all__ = [
    "Recipe",
    "describe",
    "in_trace",
    "judged_text",
    "judged_values",
    "make_tool",
    "pack",
    "pack_items",
    "rebuild",
    "trace_headers",
    "unpack",
    "unpack_items",
]
