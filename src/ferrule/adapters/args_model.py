"""Functions that take all arguments as one object: `fn(args)`, `fn(args, ctx)`, `fn(ctx, args)`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from inspect import Parameter
from typing import Any, get_origin

from pydantic import BaseModel

from ferrule.definition.docstring import parse_docstring
from ferrule.definition.handler import UNANNOTATED, Call, Handler, get_docstring
from ferrule.definition.model_class import build_model_parameters
from ferrule.definition.options import ToolOptions
from ferrule.definition.signature import CONTEXT_NAMES, is_context, read_tool_signature, read_type_hints
from ferrule.errors import DefinitionError

_DATA = (int, float, str, bool, bytes, list, dict, tuple, set)


def from_args_model(function: Callable[..., object], options: ToolOptions) -> Handler:
    """Return a handler of `fn(args)`, `fn(args, ctx)` or `fn(ctx, args)`. See docs/forms.md.

    `args` is an instance of a Pydantic model, the `input_schema`.

    Raises:
        DefinitionError: The function has another signature.
    """
    model: object = options["input_schema"]
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise DefinitionError(f"input_schema must be a JSON Schema or a Pydantic model, not {model!r}")
    hints = read_type_hints(function)
    parameters = list(read_tool_signature(function).parameters.values())
    # A hint that is neither for the arguments nor for the context means another kind of function.
    has_data_hint = any((get_origin(hints.get(p.name)) or hints.get(p.name)) in _DATA for p in parameters)
    context_parameters = find_context_parameters(parameters, hints) or parameters[1:]
    if has_data_hint or len(parameters) not in (1, 2) or len(context_parameters) == len(parameters):
        raise DefinitionError(
            f"with a model as input_schema the function takes (args), (args, ctx) or (ctx, args), "
            f"where args is a {model.__name__}, and this one takes ({', '.join(p.name for p in parameters)})"
        )
    return Handler(
        function=function,
        parameters=build_model_parameters(model, options),
        call=call_with_object(function, parameters, context_parameters),
        description=parse_docstring(get_docstring(function))[0],
        returns=hints.get("return", UNANNOTATED),
    )


def find_context_parameters(
    parameters: list[Parameter], hints: Mapping[str, object], others: Collection[str] = ()
) -> list[Parameter]:
    """Return the parameters for the context.

    They have its hint, or the name `context` or `ctx` if that is not in `others`.
    """
    named = CONTEXT_NAMES.difference(others)
    return [p for p in parameters if p.name in named or is_context(hints.get(p.name))]


def call_with_object(
    function: Callable[..., Any], parameters: list[Parameter], context_parameters: list[Parameter]
) -> Call:
    """Return the call of a function that takes all values as one object.

    The context comes before or after it or by keyword.
    """
    if not context_parameters:
        return lambda values, context: function(values)
    if context_parameters[0] is parameters[0] and parameters[1:]:
        return lambda values, context: function(context, values)
    if any(p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL) for p in context_parameters):
        return lambda values, context: function(values, context)
    return lambda values, context: function(values, **{p.name: context for p in context_parameters})
