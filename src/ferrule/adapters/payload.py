"""Handlers with a JSON Schema for their arguments.

They are `execute(payload)`, `execute(payload, context)`, or a function with a parameter for each property.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from inspect import Parameter
from typing import cast, get_origin

from ferrule.adapters.args_model import call_with_object, find_context_parameters
from ferrule.arguments.schema_parameters import SchemaParameters
from ferrule.definition.docstring import parse_docstring
from ferrule.definition.handler import Call, Handler, get_docstring
from ferrule.definition.options import ToolOptions
from ferrule.definition.signature import find_fixed_names, has_unfilled_self, read_tool_signature, read_type_hints
from ferrule.errors import DefinitionError
from ferrule.security.schema_walk import declared_properties
from ferrule.values.frozen import JsonObject


def from_execute(execute: Callable[..., object], options: ToolOptions) -> Handler:
    """Return a handler of a function with an `input_schema`. See docs/forms.md.

    The function is `execute(payload)`, `execute(payload, context)` or `execute(one=…, other=…)`.

    Raises:
        DefinitionError: The schema or the signature is wrong.
    """
    hidden = frozenset(options.get("private", ()))
    schema = cast("JsonObject", options["input_schema"])
    parameters = SchemaParameters(schema, hidden=hidden)
    call, filled = _make_call(execute, parameters)
    named = declared_properties(parameters.schema)
    if filled and (named is None or filled & named):  # a key of that name would be a second value for the parameter
        parameters = SchemaParameters(schema, hidden=hidden | filled)
    return Handler(
        function=execute,
        parameters=parameters,
        call=call,
        description=parse_docstring(get_docstring(execute))[0],
    )


def _make_call(execute: Callable[..., object], parameters: SchemaParameters) -> tuple[Call, frozenset[str]]:
    """Return the call of the function, and the names of its parameters that no model fills."""
    try:
        hints = read_type_hints(execute)
    except DefinitionError:  # the schema has the types, so the function needs no resolvable hints
        hints = {}
    written = list(read_tool_signature(execute).parameters.values())
    written = written[1:] if has_unfilled_self(execute) else written
    properties = parameters.schema["properties"]
    by_name = written and written[0].name in properties  # then a `context` of the schema's is a property too
    context_parameters = find_context_parameters(written, hints, properties if by_name else ())
    taken = [p for p in written if p not in context_parameters and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    rest = [p for p in written if p.kind is p.VAR_POSITIONAL]
    if _takes_payload(taken, properties, hints) if taken else rest:
        return call_with_object(execute, written, context_parameters or rest), frozenset()
    _check_names(execute, context_parameters, parameters)
    for parameter in taken:
        if parameter.name in properties and not isinstance(parameter.default, Hashable):
            raise DefinitionError(
                f"the default of {parameter.name!r} would be the same object in all calls; write None, and fill it in "
                "the function"
            )
    filled_by_author = frozenset(
        p.name for p in (*context_parameters, *taken) if p.name not in properties
    ) | find_fixed_names(execute)
    return lambda values, context: execute(**values, **{p.name: context for p in context_parameters}), filled_by_author


def _takes_payload(
    taken: list[Parameter], properties: Mapping[str, Mapping[str, object]], hints: Mapping[str, object]
) -> bool:
    """Return whether the first parameter takes the whole payload, and the author fills the others."""
    first, *others = taken
    if first.kind is first.KEYWORD_ONLY or any(p.default is p.empty or p.name in properties for p in others):
        return False
    if first.name not in properties or first.kind is first.POSITIONAL_ONLY:
        return True
    kind = get_origin(hints.get(first.name)) or hints.get(first.name)
    takes_dict = isinstance(kind, type) and issubclass(kind, Mapping)
    return takes_dict and properties[first.name].get("type") != "object"


def _allows_other_keys(schema: JsonObject) -> bool:
    """Return whether keys other than the properties are allowed."""
    closed = False in (schema.get("additionalProperties"), schema.get("unevaluatedProperties"))
    return not closed or "patternProperties" in schema


def _check_names(
    execute: Callable[..., object], context_parameters: list[Parameter], parameters: SchemaParameters
) -> None:
    """Check that `execute` can be called by keyword with the least and with the most that the schema allows.

    Raises:
        DefinitionError: A call does not fit; the message names the keys.
    """
    schema, signature = parameters.schema, read_tool_signature(execute)
    properties, filled = schema["properties"], {*parameters.defaults, *parameters.hidden}
    least = [key for key in properties if key in filled or key in schema.get("required", ())]
    others = ["others"] if _allows_other_keys(schema) else []
    for names in ([*properties, *others], least):
        try:
            signature.bind(**dict.fromkeys(names), **{p.name: None for p in context_parameters})
        except TypeError as error:
            raise DefinitionError(
                f"{signature} does not fit the input schema: called with "
                f"{', '.join(names) or 'nothing'}, it says {str(error)!r}. Write a parameter for each property (with a "
                "default where it may be left out, and **others where the schema allows other names), or "
                "execute(payload) or execute(payload, context), which get them as a dict. An object of yours is "
                "bound with functools.partial(f, db), or comes from a parameter of type ToolContext"
            ) from None
