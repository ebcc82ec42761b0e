"""`before(fn)`: a function that may change or check the arguments as the model made them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ferrule.core.context import ToolContext
from ferrule.core.errors import DefinitionError
from ferrule.core.types import Middleware, Next
from ferrule.core.values import ToolCall, ToolResult

Changed = Mapping[str, Any] | None


def before(function: Callable[..., Changed | Awaitable[Changed]]) -> Middleware:
    """A middleware for `around` that calls `function(arguments)` or `function(arguments, context)` first.

    What it returns are the arguments that are validated and judged; `None` leaves them as they are. What it raises, or
    returns of another kind, ends the call: nothing is run.

    Raises:
        DefinitionError: where `function` takes neither one nor two arguments.
    """
    with_context = takes_two("before", function)

    async def before_call(call: ToolCall, context: ToolContext[Any], next: Next) -> ToolResult:
        answer: Any = function(call.arguments, context) if with_context else function(call.arguments)
        if answer is None:
            return await next(call, context)
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is None or answer is call.arguments:
            return await next(call, context)
        if not isinstance(answer, Mapping):
            raise TypeError(f"{function!r} returned {type(answer).__name__} and must return a mapping or None")
        return await next(call.replace(arguments=answer), context)

    return before_call


def takes_two(name: str, function: Callable[..., Any]) -> bool:
    """Whether `function` takes a second argument, the context.

    Raises:
        DefinitionError: where it takes neither one nor two.
    """
    if not callable(function):
        raise DefinitionError(f"{name} takes a function, not {function!r}")
    signature = inspect.signature(function)
    for count in (2, 1):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return count == 2
    raise DefinitionError(f"{name}: {function!r} must take one argument, or two with the context, not {signature}")
