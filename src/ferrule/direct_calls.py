"""`await some_tool(…)` and `some_tool.run({…})`: a tool that is called by itself takes the path of every call."""

from __future__ import annotations

from typing import Any

from ferrule.definition.options import RunOptions, build_context
from ferrule.definition.tool import Tool
from ferrule.errors import GuardError, HandlerError, ToolError, ToolTimeoutError, ValidationError
from ferrule.runner import Runner
from ferrule.types import Coro
from ferrule.values.call import ToolCall, new_id
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult, get_original

_ERRORS: dict[str, type[ToolError]] = {
    "invalid": ValidationError,
    "denied": GuardError,
    "suspended": GuardError,
    "timeout": ToolTimeoutError,
    "failed": HandlerError,
}


async def call_directly(tool: Tool, arguments: dict[str, object]) -> Any:
    """`await some_tool(**arguments)`: the same path, with the tool's own guards and limits and nobody to ask."""
    runner: Runner | None = getattr(tool.in_this_thread, "runner", None)  # a runner runs one loop at a time
    if runner is None:
        runner = tool.in_this_thread.runner = Runner([_run_in_foreground(tool)], concurrency=None, expose=(Exception,))
    result = await runner.run(ToolCall(new_id(), tool.name, arguments))
    if result.success:
        return get_original(result)[0]
    # The call has written it down, with stars that who called it would not know to put.
    raise error_of(result) from None if tool.handling.parameters.hidden else result.exception


def error_of(result: ToolResult) -> ToolError:
    """What is raised where a call came to no success."""
    return _ERRORS.get(result.status, ToolError)(result.error or "", result=result)


def run_directly(tool: Tool, arguments: Any, context: ToolContext | None, options: RunOptions) -> Coro[ToolResult]:
    """`await some_tool.run({...})`: the same for its result."""
    build_context(context, options, "some_tool.run({…}, context, deps=…)", ("timeout",))
    return Runner([_run_in_foreground(tool)], concurrency=None).run(tool.name, arguments, context, **options)


def _run_in_foreground(tool: Tool) -> Tool:
    """The tool as who calls it by itself awaits it."""
    return tool.replace(background=False) if tool.background else tool
