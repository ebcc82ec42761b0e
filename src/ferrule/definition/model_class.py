"""Handlers whose arguments are one Pydantic model: handler classes, and functions with `args_model`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import get_origin

from pydantic import BaseModel, TypeAdapter

from ferrule.arguments.closing import close
from ferrule.arguments.exporting import UNEXPORTABLE
from ferrule.arguments.typed_parameters import TypedParameters
from ferrule.definition.docstring import parse
from ferrule.definition.factories import with_factories
from ferrule.definition.function import exported_schema
from ferrule.definition.handler import UNKNOWN, Handler, is_async, is_async_generator
from ferrule.definition.signature import is_context, refuse_generators, signature_of, type_hints
from ferrule.errors import DefinitionError
from ferrule.values.context import ToolContext

_EMPTY = inspect.Parameter.empty
_FORMS = "with args_model the function takes (args), (args, ctx) or (ctx, args)"
_DATA = (int, float, str, bool, bytes, list, dict, tuple, set)


def from_handler_class(
    name: str, cls: type[BaseModel], *, private: frozenset[str] = frozenset(), drop_unknown: bool = False
) -> Handler:
    """A handler of a class whose fields are the parameters: a new instance for each call, which is then called.

    Raises:
        DefinitionError: where it has no `__call__` of its own.
    """
    if getattr(cls.__call__, "__module__", None) in {None, "ferrule.definition.handler_class"}:
        raise DefinitionError(f"tool {name!r}: {cls.__name__} needs `async def __call__(self)`, which does the work")
    run = cls.__call__
    refuse_generators(name, run)
    contexts = tuple(key for key, hint in type_hints(name, run).items() if key != "return" and is_context(hint))
    spare = [
        p.name
        for p in list(inspect.signature(run).parameters.values())[1:]
        if p.name not in contexts and p.default is _EMPTY
    ]
    if spare:
        raise DefinitionError(
            f"tool {name!r}: {cls.__name__}.__call__ takes no parameters ({spare!r}): make them fields"
        )
    own = cls.__dict__.get("__doc__")
    return Handler(
        function=cls,
        parameters=_model_parameters(name, cls, private, drop_unknown),
        call=lambda values, context: values(**dict.fromkeys(contexts, context)) if contexts else values(),
        is_async=inspect.iscoroutinefunction(run),
        description=parse(own)[0],
        returns=type_hints(name, run).get("return", UNKNOWN),
        makes_instance=True,
        streams=is_async_generator(run),
    )


def from_args_model(
    name: str,
    function: Callable[..., object],
    model: object,
    *,
    private: frozenset[str] = frozenset(),
    drop_unknown: bool = False,
) -> Handler:
    """A handler of `fn(args)`, `fn(args, ctx)` or `fn(ctx, args)`, where `args` is a `model`.

    Raises:
        DefinitionError: for any other signature.
    """
    refuse_generators(name, function)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise DefinitionError(f"tool {name!r}: args_model must be a Pydantic model, not {model!r}")
    hints = type_hints(name, function)
    names = list(signature_of(name, function).parameters)
    _refuse_strangers(name, {key: hints[key] for key in names if key in hints}, model)
    if len(names) not in (1, 2):
        raise DefinitionError(f"tool {name!r}: {_FORMS}")
    first, second = is_context(hints.get(names[0])), is_context(hints.get(names[-1]))
    leads = len(names) == 2 and (first or (not second and names[0] in {"ctx", "context"}))

    def call(values: object, context: ToolContext) -> object:
        if len(names) == 1:
            return function(values)
        return function(context, values) if leads else function(values, context)

    return Handler(
        function=function,
        parameters=_model_parameters(name, model, private, drop_unknown),
        call=call,
        is_async=is_async(function),
        description=parse(inspect.getdoc(function))[0],
        returns=hints.get("return", UNKNOWN),
        streams=is_async_generator(function),
    )


def _refuse_strangers(name: str, hints: Mapping[str, object], model: type[BaseModel]) -> None:
    """A hint that is neither for the arguments nor for the context means another kind of function."""
    for key, hint in hints.items():
        if (get_origin(hint) or hint) in _DATA:
            raise DefinitionError(
                f"tool {name!r}: {_FORMS}, and its {key!r} is neither a {model.__name__} nor a ToolContext"
            )


def _model_parameters(
    name: str, model: type[BaseModel], private: frozenset[str], drop_unknown: bool
) -> TypedParameters:
    try:
        core = close(dict(TypeAdapter(model).core_schema))
    except UNEXPORTABLE as error:
        raise DefinitionError(f"tool {name!r}: {error}") from error
    schema = exported_schema(name, core)
    schema.pop("description", None)
    required = [key for key, field in model.model_fields.items() if key in private and field.is_required()]
    if required:
        raise DefinitionError(f"tool {name!r}: private fields of a model need a default: {required!r}")
    if private - set(schema.get("properties", {})):
        raise DefinitionError(f"tool {name!r}: private={sorted(private)!r} names what is no field of {model.__name__}")
    return with_factories(name, core, schema, private, drop_unknown)
