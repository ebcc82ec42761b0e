"""A function that answers for a tool: its parameters, and the form in which it takes the arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from typing import Any

from pydantic import BaseModel

from ferrule.adapters.args_model import call_with_object, find_context_parameters
from ferrule.arguments.schema_parameters import SchemaParameters
from ferrule.definition.handler import Call
from ferrule.definition.signature import read_signature, read_tool_signature, read_type_hints
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError
from ferrule.security.similar_names import NameIndex
from ferrule.values.context import ToolContext
from ferrule.values.frozen import thaw

_WHOLE_NAMES = ("arguments", "args", "payload", "params", "input", "_")
"""Names of a single parameter that takes all arguments. A parameter of the tool itself takes precedence."""


def call_by_signature(tool: Tool, function: Callable[..., Any]) -> Call:
    """Return `function` in place of the handler of `tool`, with the parameters that it names.

    Raises:
        DefinitionError: The tool lacks a parameter of the function, or a call may omit it and it has no default.
    """
    try:
        signature_parameters = list(read_tool_signature(function).parameters.values())
    except DefinitionError:  # written in C, such as `dict`
        return lambda values, context: function(_arguments(context))
    try:
        hints = read_type_hints(function)
    except DefinitionError:
        hints = {}
    own = _list_parameters(tool)
    contexts = find_context_parameters(signature_parameters, hints, own)
    kinds = {p.kind for p in signature_parameters}
    taken = [p for p in signature_parameters if p not in contexts and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    others = Parameter.VAR_KEYWORD in kinds
    if not others and _has_whole_parameter(taken, own):
        whole = call_with_object(function, signature_parameters, contexts)
        return lambda values, context: whole(_arguments(context), context)
    defaults = _defaults(tool, own)
    for parameter in taken:
        _refuse_parameter(tool, parameter, own, defaults)
    names = None if others else [p.name for p in taken]

    def call(values: object, context: ToolContext) -> Any:
        given = {**defaults, **_values_by_name(values)}
        chosen = given if names is None else {name: given[name] for name in names if name in given}
        return function(**chosen, **{p.name: context for p in contexts})

    return call


def _arguments(context: ToolContext) -> dict[str, Any]:
    assert context.call is not None
    return thaw(context.call.arguments)  # type: ignore[no-any-return]


def _list_parameters(tool: Tool) -> list[str]:
    """Return the Python names of the tool's parameters."""
    handling = tool.handling
    model: Any = handling.function if handling.makes_instance else tool.options.get("input_schema")
    if isinstance(model, type) and issubclass(model, BaseModel):
        return list(model.model_fields)
    signature_parameters = {wire: name for name, wire in handling.aliases.items()}
    return [signature_parameters.get(wire, wire) for wire in handling.parameters.schema["properties"]]


def _defaults(tool: Tool, own: Sequence[str]) -> dict[str, Any]:
    """Return the defaults of the real function."""
    try:
        parameters = read_signature(tool.handling.function).parameters
    except (TypeError, ValueError):
        return {}
    return {name: p.default for name, p in parameters.items() if name in own and p.default is not p.empty}


def _has_whole_parameter(taken: list[Parameter], own: Sequence[str]) -> bool:
    """Return whether the function takes all arguments as one dict."""
    kinds = [p.kind for p in taken if p.name in _WHOLE_NAMES and p.name not in own]
    return len(taken) == 1 and kinds == [Parameter.POSITIONAL_OR_KEYWORD]


def _refuse_parameter(tool: Tool, parameter: Parameter, own: Sequence[str], defaults: Mapping[str, Any]) -> None:
    name, parameters = parameter.name, tool.handling.parameters
    wrong = f"fake: the answer of {tool.name!r} has a parameter {name!r}"
    optional = parameter.default is not parameter.empty
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise DefinitionError(f"{wrong} that has no name for a caller; leave out the /")
    if name not in own:
        schema = parameters.schema
        if optional and False not in (schema.get("additionalProperties"), schema.get("unevaluatedProperties")):
            return
        near = NameIndex(own).find_nearest(name, 1)
        has = f"has {', '.join(map(repr, own))}" if own else "has no parameters"
        hint = f"did you mean {near[0]!r}?" if near else f"the tool {has};"
        raise DefinitionError(
            f"{wrong}, and the tool has none of that name; {hint} Name the tool's own parameters, as many as are "
            "needed, or take all arguments as one dict: lambda arguments: …"
        )
    given = {*parameters.required, *parameters.defaults, *parameters.bound, *defaults}
    if not optional and isinstance(parameters, SchemaParameters) and name not in given:
        raise DefinitionError(f"{wrong}, which a call may leave out; give it a default, such as {name}=None")


def _values_by_name(values: object) -> Mapping[str, Any]:
    """Return the values for the handler by name."""
    if isinstance(values, BaseModel):
        return {name: getattr(values, name) for name in type(values).model_fields} | (values.model_extra or {})
    assert isinstance(values, Mapping)
    return values
