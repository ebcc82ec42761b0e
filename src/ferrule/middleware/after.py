"""`after(fn)`: call a function that may change or check a result before anybody else sees it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from ferrule.definition.hooks import Hook
from ferrule.middleware.before import takes_context
from ferrule.types import Middleware
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult


def after(function: Callable[..., Any | Awaitable[Any]]) -> Middleware:
    """Return a middleware that calls `function(result)` or `function(result, context)` last. See docs/middleware.md.

    Put it in `inside` to see the handler's result; in `around`, it also sees calls refused before the handler. If the
    function returns a `ToolResult`, that replaces the result. Any other value replaces the output; None leaves the
    result unchanged. If the function raises, the call fails.

    Raises:
        DefinitionError: `function` takes neither one nor two arguments.
    """
    with_context = takes_context("after", function)

    def change_result(result: ToolResult, context: ToolContext) -> Any:
        answer: Any = function(result, context) if with_context else function(result)
        if answer is None or isinstance(answer, ToolResult):
            return answer
        return _await_answer(result, answer) if inspect.isawaitable(answer) else result.replace(output=answer)

    return Hook(after=change_result)


async def _await_answer(result: ToolResult, awaitable: Awaitable[Any]) -> ToolResult | None:
    answer = await awaitable
    return answer if answer is None or isinstance(answer, ToolResult) else result.replace(output=answer)
