"""`after(fn)`: a function that may change or check a result before anybody else sees it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from ferrule.core.context import ToolContext
from ferrule.core.types import Middleware, Next
from ferrule.core.values import ToolCall, ToolResult
from ferrule.middleware.before import takes_two


def after(function: Callable[..., Any | Awaitable[Any]]) -> Middleware:
    """A middleware for `inside` (or `around`) that calls `function(result)` or `function(result, context)` last.

    A `ToolResult` that it returns takes the place of the result, any other value the place of its output; `None`
    leaves it as it is. What it raises fails the call.

    Raises:
        DefinitionError: where `function` takes neither one nor two arguments.
    """
    with_context = takes_two("after", function)

    async def after_call(call: ToolCall, context: ToolContext[Any], next: Next) -> ToolResult:
        result = await next(call, context)
        answer: Any = function(result, context) if with_context else function(result)
        if answer is None:
            return result
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is None or isinstance(answer, ToolResult):
            return result if answer is None else answer
        return result.replace(output=answer)

    return after_call
