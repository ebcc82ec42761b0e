"""A handler whose arguments are described by a JSON Schema: `execute(payload)`, `execute(payload, context)`, or a
function with a parameter for each property."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import get_origin

from ferrule.arguments.schema_parameters import SchemaParameters
from ferrule.definition.docstring import parse
from ferrule.definition.handler import Call, Handler, doc_of
from ferrule.definition.signature import is_context, signature_of, type_hints, unfilled_self
from ferrule.errors import DefinitionError
from ferrule.values.frozen import JsonObject


def from_execute(
    name: str, execute: Callable[..., object], schema: JsonObject, private: frozenset[str], drop_unknown: bool
) -> Handler:
    """A handler of `execute(payload)`, `execute(payload, context)` or `execute(one=…, other=…)` with a JSON Schema.

    Raises:
        DefinitionError: for a wrong schema or signature.
    """
    parameters = SchemaParameters(schema, hidden=private, drop_unknown=drop_unknown)
    missing = private - set(parameters.schema["properties"])
    if missing:
        raise DefinitionError(f"tool {name!r}: private={sorted(missing)!r} names no property of the schema")
    return Handler(
        function=execute,
        parameters=parameters,
        call=_caller(name, execute, parameters),
        description=parse(doc_of(execute))[0],
    )


def _caller(name: str, execute: Callable[..., object], parameters: SchemaParameters) -> Call:
    try:
        hints = type_hints(name, execute)
    except DefinitionError:  # the schema says what the parameters are, so they need no hints that can be resolved
        hints = {}
    written = list(signature_of(name, execute).parameters.values())
    written = written[1:] if unfilled_self(execute) else written
    properties = parameters.schema["properties"]
    by_name = written and written[0].name in properties  # then a `context` of the schema's is a property too
    names = {"context", "ctx"} - (properties.keys() if by_name else set())
    contexts = [
        p for place, p in enumerate(written) if is_context(hints.get(p.name)) or (place > 0 and p.name in names)
    ]
    taken = [p for p in written if p not in contexts and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in written)
    if not (_takes_payload(taken, properties, hints) if taken else takes_any):
        _check_names(name, execute, contexts, parameters)
    elif written[0] in contexts:
        return lambda values, context: execute(context, values)
    elif takes_any or any(p.kind is p.POSITIONAL_ONLY for p in contexts):
        return lambda values, context: execute(values, context)
    else:
        return lambda values, context: execute(values, **{p.name: context for p in contexts})
    return lambda values, context: execute(**values, **{p.name: context for p in contexts})


def _takes_payload(
    taken: list[Parameter], properties: Mapping[str, Mapping[str, object]], hints: Mapping[str, object]
) -> bool:
    """Whether the first parameter takes the whole payload, and the others are the author's own business."""
    first, *others = taken
    if first.kind is first.KEYWORD_ONLY or any(p.default is p.empty or p.name in properties for p in others):
        return False
    if first.name not in properties or first.kind is first.POSITIONAL_ONLY:
        return True
    kind = get_origin(hints.get(first.name)) or hints.get(first.name)
    takes_dict = isinstance(kind, type) and issubclass(kind, Mapping)
    return takes_dict and properties[first.name].get("type") != "object"


def _check_names(
    name: str, execute: Callable[..., object], contexts: list[Parameter], parameters: SchemaParameters
) -> None:
    """Look whether `execute` can be called by keyword with the least and with the most that the schema allows.

    Raises:
        DefinitionError: naming what does not fit.
    """
    schema, signature = parameters.schema, signature_of(name, execute)
    properties, filled = schema["properties"], {*parameters.defaults, *parameters.hidden}
    least = [key for key in properties if key in filled or key in schema.get("required", ())]
    closed = False in (schema.get("additionalProperties"), schema.get("unevaluatedProperties"))
    others = [] if closed and "patternProperties" not in schema else ["others"]
    for given in ([*properties, *others], least):
        try:
            signature.bind(**dict.fromkeys(given), **{p.name: None for p in contexts})
        except TypeError as error:
            raise DefinitionError(
                f"tool {name!r}: {signature} does not fit the input schema: called with "
                f"{', '.join(given) or 'nothing'}, it says {str(error)!r}. Write a parameter for each property (with a "
                "default where it may be left out, and **others where the schema allows other names), or "
                "execute(payload) or execute(payload, context), which get them as a dict"
            ) from None
