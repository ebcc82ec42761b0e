"""A handler of a function, bound method or callable object."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, get_origin

import typing_extensions
from pydantic import TypeAdapter

from ferrule.arguments.closing import CoreSchema, close, typed_dict
from ferrule.arguments.exporting import UNEXPORTABLE, json_schema
from ferrule.arguments.typed_parameters import TypedParameters
from ferrule.definition.defaults import keep_defaults
from ferrule.definition.docstring import parse
from ferrule.definition.handler import UNKNOWN, Handler, doc_of
from ferrule.definition.handler import whole as partial_of
from ferrule.definition.options import ToolOptions
from ferrule.definition.signature import CONTEXT_NAMES, all_names, caller_locals, is_context, signature_of, type_hints
from ferrule.errors import DefinitionError

_NO_HINT = inspect.Parameter.empty
# `inspect.ismethoddescriptor` is true of more: all that has a `__get__`, such as a cached function and, since Python
# 3.14, a `functools.partial`.
_METHODS_OF_CLASSES_IN_C = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)


def from_function(function: Callable[..., object], options: ToolOptions) -> Handler:
    """A handler of a function, bound method or callable object: parameters from the type hints.

    Raises:
        DefinitionError: for parameters that no caller can name, hints that cannot be resolved, types without a JSON
            form.
    """
    if isinstance(function, _METHODS_OF_CLASSES_IN_C):
        raise DefinitionError(
            "nobody fills the first parameter of a method that was taken off its class; take it off an instance, or "
            "use Toolset.of(instance)"
        )
    description, texts = parse(doc_of(function))
    signature = signature_of(function)
    hints = type_hints(function)
    returns = hints.pop("return", UNKNOWN)
    contexts: list[str] = []
    declared: list[inspect.Parameter] = []
    fixed = inspect.isbuiltin(partial_of(function))  # it is written in C, where nobody can leave out a /
    for parameter in signature.parameters.values():
        hint = hints.get(parameter.name, parameter.annotation)
        _check_parameter(parameter, hint, fixed)
        if is_context(hint):
            contexts.append(parameter.name)
        else:
            declared.append(parameter.replace(annotation=Any if hint is _NO_HINT else hint))
    parameters, names = _typed(declared, texts, all_names(function), options)
    run = _with_first_by_position(function, [p for p in declared if p.kind is p.POSITIONAL_ONLY])
    return Handler(
        function=function,
        parameters=parameters,
        call=lambda values, context: run(**values, **dict.fromkeys(contexts, context)),
        by_keywords=None if contexts else run,
        description=description,
        returns=returns,
        positional=tuple(names[p.name] for p in declared if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)),
        aliases={name: wire for name, wire in names.items() if name != wire},
    )


def _check_parameter(parameter: inspect.Parameter, hint: object, fixed: bool) -> None:
    name = parameter.name
    if parameter.kind is parameter.VAR_POSITIONAL or (parameter.kind is parameter.POSITIONAL_ONLY and not fixed):
        raise DefinitionError(
            f"a model fills parameters by name, and {name!r} has none for a caller; write a list parameter for *args, "
            "and leave out the /"
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


def _with_first_by_position(function: Callable[..., object], first: list[inspect.Parameter]) -> Callable[..., object]:
    """The function as one that takes all by keyword."""
    if not first:
        return function
    return lambda **values: function(*[values.pop(p.name, p.default) for p in first], **values)


def _typed(
    declared: list[inspect.Parameter],
    texts: Mapping[str, str],
    filled: frozenset[str],
    options: ToolOptions,
) -> tuple[TypedParameters, dict[str, str]]:
    """The parameters, and their names in JSON by those in Python."""
    whole, schema = closed(_by_keyword(declared))
    call = whole["schema"] if whole["type"] == "definitions" else whole
    arguments = call["arguments_schema"]
    private = frozenset(options.get("private", ()))
    fields: dict[str, dict[str, Any]] = {}
    names: dict[str, str] = {}
    named = [parameter for parameter in declared if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
    for parameter, argument in zip(named, arguments["arguments_schema"], strict=True):
        field = fields[parameter.name] = _field(parameter, argument, private)
        wire = names[parameter.name] = field.get("validation_alias", parameter.name)
        if parameter.name in texts:
            schema["properties"][wire].setdefault("description", texts[parameter.name])
    core = typed_dict(fields, arguments.get("var_kwargs_schema"))
    hidden = {wire for key, wire in names.items() if key in private}
    if arguments.get("var_kwargs_schema") is not None:
        schema.setdefault("additionalProperties", True)
        hidden |= filled - fields.keys()  # **kwargs would take a key of the name that is filled already
    core = core if call is whole else {**whole, "schema": core}
    drop_unknown = options.get("unknown") == "drop"
    own = {parameter.name: parameter.default for parameter in named}
    keep_defaults(fields, own, schema["properties"], core, private)
    return TypedParameters(core, schema, hidden=frozenset(hidden), drop_unknown=drop_unknown), names


def _field(parameter: inspect.Parameter, argument: dict[str, Any], private: frozenset[str]) -> CoreSchema:
    """A parameter as a field of the keyword arguments."""
    node, alias = argument["schema"], argument.get("alias")
    required = node["type"] != "default" and parameter.name not in private
    field: CoreSchema = {"type": "typed-dict-field", "schema": node, "required": required}
    if isinstance(alias, str) and alias != parameter.name:
        field["validation_alias"] = alias
    return field


def _by_keyword(declared: list[inspect.Parameter]) -> Callable[[], None]:
    """A function with these parameters, all by keyword, that carries the resolved hints: the developer's own may have
    parameters that a model never sees, and hints that only a type checker resolves."""

    def shim() -> None: ...

    keyword = [
        p if p.kind is inspect.Parameter.VAR_KEYWORD else p.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for p in declared
    ]
    shim.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
    shim.__annotations__ = {p.name: p.annotation for p in keyword}
    return shim


def closed(kind: Any) -> tuple[CoreSchema, dict[str, Any]]:
    """Pydantic's core schema of a type, closed, and the JSON Schema of that. What is not defined for it is looked up
    where the tool is defined.

    Raises:
        DefinitionError: for what JSON cannot carry.
    """
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        if not adapter.pydantic_complete:
            adapter.rebuild(_types_namespace=caller_locals())
        core = close(dict(adapter.core_schema))
        return core, json_schema(core)
    except UNEXPORTABLE as error:
        if getattr(error, "code", None) == "typed-dict-version":
            raise DefinitionError("import TypedDict from typing_extensions: that of typing needs Python 3.12") from None
        reason = str(error).partition("\n")[0]
        raise DefinitionError(f"{reason}; use types that JSON can carry") from error
