"""Make a handler of a function, a bound method or a callable object."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, get_origin

import typing_extensions
from pydantic import TypeAdapter

from ferrule.arguments.closed_schema import CoreSchema, close_schema, make_typed_dict
from ferrule.arguments.exporting import EXPORT_ERRORS, export_schema
from ferrule.arguments.typed_parameters import TypedParameters
from ferrule.definition.defaults import renew_defaults
from ferrule.definition.docstring import parse_docstring
from ferrule.definition.handler import UNANNOTATED, Handler, get_docstring
from ferrule.definition.options import ToolOptions
from ferrule.definition.signature import (
    CONTEXT_NAMES,
    find_caller_locals,
    find_fixed_names,
    is_context,
    read_tool_signature,
    read_type_hints,
)
from ferrule.errors import DefinitionError

_NO_HINT = inspect.Parameter.empty


def from_function(function: Callable[..., object], options: ToolOptions) -> Handler:
    """Return a handler with the parameters of the function's type hints.

    Raises:
        DefinitionError: A parameter has no name for callers, a hint cannot be resolved, or a type has no JSON form.
    """
    description, texts = parse_docstring(get_docstring(function))
    signature = read_tool_signature(function)
    hints = read_type_hints(function)
    returns = hints.pop("return", UNANNOTATED)
    contexts: list[str] = []
    declared: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        hint = hints.get(parameter.name, parameter.annotation)
        _check_parameter(parameter, hint)
        if is_context(hint):
            contexts.append(parameter.name)
        else:
            declared.append(parameter.replace(annotation=Any if hint is _NO_HINT else hint))
    parameters, names = _build_parameters(declared, texts, {*contexts, *find_fixed_names(function)}, options)
    return Handler(
        function=function,
        parameters=parameters,
        call=lambda values, context: function(**values, **dict.fromkeys(contexts, context)),
        kwargs_call=None if contexts else function,
        description=description,
        returns=returns,
        positional=tuple(names[p.name] for p in declared if p.kind is p.POSITIONAL_OR_KEYWORD),
        aliases={name: wire for name, wire in names.items() if name != wire},
    )


def _check_parameter(parameter: inspect.Parameter, hint: object) -> None:
    name = parameter.name
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
        raise DefinitionError(
            f"a model fills parameters by name, and {name!r} has none for a caller; write a list parameter for *args, "
            "leave out the /, and wrap a function in C in a function of your own"
        )
    if hint is _NO_HINT and name in CONTEXT_NAMES:
        raise DefinitionError(
            f"a model would fill {name!r}: for the context of the call annotate it, {name}: ToolContext; for an "
            "argument give it that argument's type, or Any"
        )
    if get_origin(hint) in (typing.Unpack, typing_extensions.Unpack):
        raise DefinitionError(
            f"**{name} has its keys from a TypedDict; write them as parameters of the function, or take the TypedDict "
            "as one parameter"
        )


def _build_parameters(
    declared: list[inspect.Parameter], texts: Mapping[str, str], filled: set[str], options: ToolOptions
) -> tuple[TypedParameters, dict[str, str]]:
    """Return the parameters, and their wire names by Python name."""
    closed, schema = close_type(_make_keyword_function(declared))
    root = closed["schema"] if closed["type"] == "definitions" else closed
    arguments = root["arguments_schema"]
    private = frozenset(options.get("private", ()))
    fields: dict[str, dict[str, Any]] = {}
    names: dict[str, str] = {}
    named = [parameter for parameter in declared if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
    for parameter, argument in zip(named, arguments["arguments_schema"], strict=True):
        field = fields[parameter.name] = _make_field(parameter, argument, private)
        wire = names[parameter.name] = field.get("validation_alias", parameter.name)
        if parameter.name in texts:
            schema["properties"][wire].setdefault("description", texts[parameter.name])
    core = make_typed_dict(fields, arguments.get("var_kwargs_schema"))
    hidden = {wire for key, wire in names.items() if key in private}
    if arguments.get("var_kwargs_schema") is not None:
        schema.setdefault("additionalProperties", True)
        hidden |= filled - fields.keys()  # **kwargs would accept a name that is filled already
    core = core if root is closed else {**closed, "schema": core}
    own = {parameter.name: parameter.default for parameter in named}
    renew_defaults(fields, own, schema["properties"], core, private)
    return TypedParameters(core, schema, hidden=frozenset(hidden)), names


def _make_field(parameter: inspect.Parameter, argument: dict[str, Any], private: frozenset[str]) -> CoreSchema:
    """Return a parameter as a field of the keyword arguments."""
    node, alias = argument["schema"], argument.get("alias")
    required = node["type"] != "default" and parameter.name not in private
    field: CoreSchema = {"type": "typed-dict-field", "schema": node, "required": required}
    if isinstance(alias, str) and alias != parameter.name:
        field["validation_alias"] = alias
    return field


def _make_keyword_function(declared: list[inspect.Parameter]) -> Callable[[], None]:
    """Return an empty function with these parameters as keywords, and with their resolved hints.

    The developer's function may have other parameters, and unresolved hints.
    """

    def shim() -> None: ...

    keyword = [
        p if p.kind is inspect.Parameter.VAR_KEYWORD else p.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for p in declared
    ]
    shim.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
    shim.__annotations__ = {p.name: p.annotation for p in keyword}
    return shim


def close_type(kind: Any) -> tuple[CoreSchema, dict[str, Any]]:
    """Return Pydantic's core schema of a type, closed, and its JSON Schema.

    Names without a definition are looked up at the place of the tool's definition.

    Raises:
        DefinitionError: The type has no JSON form.
    """
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        if not adapter.pydantic_complete:
            adapter.rebuild(_types_namespace=find_caller_locals())
        core = close_schema(dict(adapter.core_schema))
        return core, export_schema(core)
    except EXPORT_ERRORS as error:
        if getattr(error, "code", None) == "typed-dict-version":
            raise DefinitionError("import TypedDict from typing_extensions: that of typing needs Python 3.12") from None
        reason = str(error).partition("\n")[0]
        raise DefinitionError(f"{reason}; use types that JSON can carry") from error
