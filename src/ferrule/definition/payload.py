"""A handler of `execute(payload)` or `execute(payload, context)`, whose arguments are described by a JSON Schema."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from ferrule.arguments.schema_parameters import SchemaParameters
from ferrule.definition.docstring import parse
from ferrule.definition.handler import Handler, is_async, is_async_generator
from ferrule.definition.signature import is_context, positional_count, refuse_generators, signature_of, type_hints
from ferrule.errors import DefinitionError
from ferrule.values.frozen import JsonObject


def from_execute(
    name: str,
    execute: Callable[..., object],
    input_schema: JsonObject | None,
    *,
    private: frozenset[str] = frozenset(),
    drop_unknown: bool = False,
) -> Handler:
    """A handler of `execute(payload)` or `execute(payload, context)` with a JSON Schema; none means any object.

    Raises:
        DefinitionError: for a wrong schema or signature.
    """
    if not callable(execute):
        raise DefinitionError(f"tool {name!r}: execute must be a function, not {execute!r}")
    refuse_generators(name, execute)
    takes_context = _takes_context(name, execute)
    parameters = SchemaParameters({"type": "object"} if input_schema is None else input_schema, hidden=private,
                                  drop_unknown=drop_unknown)  # fmt: skip
    missing = private - set(parameters.schema["properties"])
    if missing:
        raise DefinitionError(f"tool {name!r}: private={sorted(missing)!r} names no property of the schema")
    return Handler(
        function=execute,
        parameters=parameters,
        call=execute if takes_context else lambda values, context: execute(values),
        is_async=is_async(execute),
        description=parse(inspect.getdoc(execute))[0],
        streams=is_async_generator(execute),
    )


def _takes_context(name: str, execute: Callable[..., object]) -> bool:
    """Whether `execute` has a second parameter for the context, and not one that is its author's own business."""
    if positional_count(name, "execute", execute, 1, 2) == 1:
        return False
    second = list(signature_of(name, execute).parameters.values())[1:2]
    return (
        not second
        or second[0].default is inspect.Parameter.empty
        or second[0].name in {"context", "ctx"}
        or is_context(type_hints(name, execute).get(second[0].name))
    )
