"""A handler of `execute(payload)` or `execute(payload, context)`, whose arguments are described by a JSON Schema."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from ferrule.arguments.schema_parameters import SchemaParameters
from ferrule.definition.docstring import parse
from ferrule.definition.handler import Handler, doc_of
from ferrule.definition.signature import is_context, signature_of, takes_two, type_hints
from ferrule.errors import DefinitionError
from ferrule.values.frozen import JsonObject


def from_execute(
    name: str, execute: Callable[..., object], schema: JsonObject, private: frozenset[str], drop_unknown: bool
) -> Handler:
    """A handler of `execute(payload)` or `execute(payload, context)` with a JSON Schema.

    Raises:
        DefinitionError: for a wrong schema or signature.
    """
    takes_context = _takes_context(name, execute)
    parameters = SchemaParameters(schema, hidden=private, drop_unknown=drop_unknown)
    missing = private - set(parameters.schema["properties"])
    if missing:
        raise DefinitionError(f"tool {name!r}: private={sorted(missing)!r} names no property of the schema")
    return Handler(
        function=execute,
        parameters=parameters,
        call=execute if takes_context else lambda values, context: execute(values),
        description=parse(doc_of(execute))[0],
    )


def _takes_context(name: str, execute: Callable[..., object]) -> bool:
    """Whether `execute` has a second parameter for the context, and not one that is its author's own business."""
    if not takes_two(name, "execute", execute):
        return False
    second = list(signature_of(name, execute).parameters.values())[1:2]
    return (
        not second
        or second[0].default is inspect.Parameter.empty
        or second[0].name in {"context", "ctx"}
        or is_context(type_hints(name, execute).get(second[0].name))
    )
