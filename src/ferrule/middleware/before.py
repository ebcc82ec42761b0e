"""`before(fn)`: call a function that may change or check the model's arguments."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ferrule.definition.hooks import Hook
from ferrule.definition.signature import CONTEXT_NAMES, read_signature
from ferrule.errors import DefinitionError
from ferrule.types import Middleware
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.json_text import Malformed, parse_json_object

Changed = Mapping[str, Any] | None


def before(function: Callable[..., Changed | Awaitable[Changed]]) -> Middleware:
    """Return a middleware that calls `function(arguments)` or `function(arguments, context)` first. See
    docs/middleware.md.

    It belongs in `around`: in `inside`, the arguments are judged and stay. The function returns the arguments to
    validate and judge. They stay as they are if it returns None, or if the arguments of the call do not decode. If the
    function raises or returns anything else, the call ends: nothing is run.

    Raises:
        DefinitionError: `function` takes neither one nor two arguments, or the middleware is in `inside`.
    """
    with_context = takes_two("before", function)

    def changed_call(call: ToolCall, context: ToolContext) -> Any:
        answer: Any = function(call.arguments, context) if with_context else function(call.arguments)
        if answer is None:
            return None
        return _changed(call, answer) if isinstance(answer, Mapping) else _awaited(call, answer)

    async def _awaited(call: ToolCall, answer: Any) -> ToolCall | None:
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is not None and not isinstance(answer, Mapping):
            raise TypeError(f"{function!r} returned {type(answer).__name__} and must return a mapping or None")
        return _changed(call, answer)

    return Hook(before=changed_call)


def _changed(call: ToolCall, arguments: Changed) -> ToolCall | None:
    if arguments is None or arguments is call.arguments or not _decodes(call):
        return None
    return call.replace(arguments=arguments)


def _decodes(call: ToolCall) -> bool:
    """Return whether the model's arguments can be parsed. If not, *decode* reports it, so nothing may replace them."""
    try:
        return not isinstance(call.raw, str) or parse_json_object(call.raw) is not None
    except Malformed:
        return False


def takes_two(name: str, function: Callable[..., Any]) -> bool:
    """Return whether `function` takes the context as a second argument.

    It does if its second argument is required, or if the argument's name or annotation means the context.

    Raises:
        DefinitionError: `function` takes neither one nor two arguments.
    """
    if not callable(function):
        raise DefinitionError(f"{name} takes a function, not {function!r}")
    try:
        signature = read_signature(function)
    except ValueError:
        raise DefinitionError(f"{name}: {function!r} does not say which arguments it takes; wrap it in one") from None
    positional = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    two = len(positional) > 1 and (positional[1].default is inspect.Parameter.empty or _is_context(positional[1]))
    try:
        signature.bind(*range(1 + two))
    except TypeError:
        raise DefinitionError(
            f"{name}: {function!r} must take one argument, or two with the context, not {signature}"
        ) from None
    return two


def _is_context(parameter: inspect.Parameter) -> bool:
    return parameter.name in CONTEXT_NAMES or ToolContext.__name__ in str(parameter.annotation)
