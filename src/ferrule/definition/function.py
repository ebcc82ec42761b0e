"""A handler of a function, bound method or callable object."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from ferrule.arguments.closing import close, typed_dict
from ferrule.arguments.exporting import UNEXPORTABLE, json_schema
from ferrule.arguments.typed_parameters import TypedParameters
from ferrule.definition.docstring import parse
from ferrule.definition.factories import with_factories
from ferrule.definition.handler import UNKNOWN, Call, Handler, is_async, is_async_generator
from ferrule.definition.signature import caller_locals, is_context, refuse_generators, signature_of, type_hints
from ferrule.errors import DefinitionError
from ferrule.values.context import ToolContext

_EMPTY = inspect.Parameter.empty


def from_function(
    name: str, function: Callable[..., object], *, private: frozenset[str] = frozenset(), drop_unknown: bool = False
) -> Handler:
    """A handler of a function, bound method or callable object: parameters from the type hints.

    Raises:
        DefinitionError: for `*args`, hints that cannot be resolved, types without a JSON form.
    """
    refuse_generators(name, function)
    description, texts = parse(inspect.getdoc(_documented(function)))
    signature = signature_of(name, function)
    hints = type_hints(name, function)
    returns = hints.pop("return", UNKNOWN)
    contexts: list[str] = []
    declared: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            raise DefinitionError(
                f"tool {name!r}: a model cannot fill *{parameter.name}; write a list parameter instead"
            )
        hint = hints.get(parameter.name, Any if parameter.annotation is _EMPTY else parameter.annotation)
        if is_context(hint):
            contexts.append(parameter.name)
        else:
            declared.append(parameter.replace(annotation=hint))
    parameters = _typed(name, declared, texts, private, drop_unknown, frozenset(contexts))
    only_positional = tuple(p for p in signature.parameters.values() if p.kind is inspect.Parameter.POSITIONAL_ONLY)
    call = _caller(function, tuple(contexts), only_positional)
    # The schema has the parameters in their order, under the names that they have in JSON.
    named = [parameter.name for parameter in declared if parameter.kind is not parameter.VAR_KEYWORD]
    names = dict(zip(named, parameters.schema["properties"], strict=True))
    return Handler(
        function=function,
        parameters=parameters,
        call=call,
        is_async=is_async(function),
        by_keywords=None if contexts or only_positional else function,
        description=description,
        returns=returns,
        streams=is_async_generator(function),
        positional=tuple(names[p.name] for p in declared if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)),
        aliases={name: wire for name, wire in names.items() if name != wire},
    )


def _documented(function: object) -> object:
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function):
        return function
    return function if inspect.getdoc(function) else type(function).__call__


def _is_field(value: object) -> bool:
    # `pydantic.fields` takes a tenth of the whole import, and defining the first tool loads it anyway.
    fields = sys.modules.get("pydantic.fields")
    return fields is not None and isinstance(value, fields.FieldInfo)


def _typed(
    name: str,
    declared: list[inspect.Parameter],
    texts: Mapping[str, str],
    private: frozenset[str],
    drop_unknown: bool,
    contexts: frozenset[str],
) -> TypedParameters:
    unknown = private - {parameter.name for parameter in declared}
    if unknown:
        raise DefinitionError(f"tool {name!r}: private={sorted(unknown)!r} names no parameter of the function")
    arguments = close(_arguments_core(name, declared))
    definitions: list[Any] = []
    if arguments["type"] == "definitions":
        definitions, arguments = arguments["definitions"], arguments["schema"]
    arguments = arguments["arguments_schema"]
    fields: dict[str, dict[str, Any]] = {}
    hidden: set[str] = set()
    named = [parameter for parameter in declared if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
    for parameter, argument in zip(named, arguments["arguments_schema"], strict=True):
        field = fields[parameter.name] = _field(parameter, argument, private)
        if parameter.name in private:
            hidden.add(field.get("validation_alias", parameter.name))
    core = typed_dict(fields, arguments.get("var_kwargs_schema"))
    exported = arguments
    if definitions:
        core = {"type": "definitions", "schema": core, "definitions": definitions}
        exported = {"type": "definitions", "schema": arguments, "definitions": definitions}
    schema = exported_schema(name, exported, declared)
    if arguments.get("var_kwargs_schema") is not None:
        schema.setdefault("additionalProperties", True)
        hidden |= contexts  # **kwargs would take a key of the context's name
    for wire, node in schema.get("properties", {}).items():
        if wire in texts and "description" not in node:
            node["description"] = texts[wire]
    return with_factories(name, core, schema, frozenset(hidden), drop_unknown)


def _field(parameter: inspect.Parameter, argument: dict[str, Any], private: frozenset[str]) -> dict[str, Any]:
    """A parameter as a field of the keyword arguments.

    A default that is Python's own is left to Python: what was not given is not passed.
    """
    node, alias = argument["schema"], argument.get("alias")
    optional = node["type"] == "default"
    if optional and parameter.default is not _EMPTY and not _is_field(parameter.default):
        node = node["schema"]
    required = not optional and parameter.name not in private
    field: dict[str, Any] = {"type": "typed-dict-field", "schema": node, "required": required}
    if isinstance(alias, str) and alias != parameter.name:
        field["validation_alias"] = alias
    return field


def _arguments_core(name: str, declared: list[inspect.Parameter]) -> dict[str, Any]:
    """Pydantic's core schema of a call with these parameters, all by keyword.

    A function made for it carries the resolved hints: the developer's own may have parameters that a model never
    sees, and hints that only a type checker resolves.
    """

    def shim() -> None: ...

    keyword = [
        p if p.kind is inspect.Parameter.VAR_KEYWORD else p.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for p in declared
    ]
    shim.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
    shim.__annotations__ = {p.name: p.annotation for p in keyword}
    shim.__name__ = name
    try:
        return dict(_adapter(shim).core_schema)
    except UNEXPORTABLE as error:
        raise DefinitionError(_why(name, keyword, error)) from error


def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Pydantic's adapter; what is not defined for it is looked up where the tool is defined."""
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    try:
        len(adapter.core_schema)
    except PydanticUserError as error:
        if error.code != "class-not-fully-defined":
            raise
        adapter.rebuild(_types_namespace=caller_locals())
    return adapter


def _why(name: str, parameters: Sequence[inspect.Parameter], error: BaseException) -> str:
    reason = str(error).partition("\n")[0]
    for parameter in parameters:
        try:
            json_schema(_adapter(parameter.annotation).core_schema)  # type: ignore[arg-type]
        except UNEXPORTABLE as inner:
            reason = f"parameter {parameter.name!r}: {str(inner).partition(chr(10))[0]}"
            break
    return f"tool {name!r}: {reason}; use types that JSON can carry"


def exported_schema(name: str, core: dict[str, Any], declared: Sequence[inspect.Parameter] = ()) -> dict[str, Any]:
    try:
        return json_schema(core)
    except UNEXPORTABLE as error:
        raise DefinitionError(_why(name, declared, error)) from error


def _caller(
    function: Callable[..., object], contexts: tuple[str, ...], positional: tuple[inspect.Parameter, ...]
) -> Call:
    if not contexts and not positional:
        return lambda values, context: function(**values)
    if len(contexts) == 1 and not positional:
        (only,) = contexts
        return lambda values, context: function(**values, **{only: context})

    def call(values: dict[str, object], context: ToolContext) -> object:
        given = {**values, **dict.fromkeys(contexts, context)}
        while_given = max((place for place, p in enumerate(positional, 1) if p.name in given), default=0)
        leading = [given.pop(p.name, p.default) for p in positional[:while_given]]
        return function(*leading, **given)

    return call
