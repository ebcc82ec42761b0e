"""Handlers whose arguments are one Pydantic model: handler classes, and functions with `args_model`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import get_origin

from pydantic import BaseModel, TypeAdapter

from ferrule.arguments.closing import close
from ferrule.arguments.exporting import UNEXPORTABLE
from ferrule.arguments.typed_parameters import TypedParameters
from ferrule.definition.docstring import parse
from ferrule.definition.factories import with_factories
from ferrule.definition.function import exported_schema
from ferrule.definition.handler import UNKNOWN, Handler, doc_of
from ferrule.definition.signature import is_context, signature_of, type_hints
from ferrule.errors import DefinitionError
from ferrule.values.context import ToolContext

_DATA = (int, float, str, bool, bytes, list, dict, tuple, set)


def from_handler_class(name: str, cls: type[BaseModel], private: frozenset[str], drop_unknown: bool) -> Handler:
    """A handler of a class whose fields are the parameters: a new instance for each call, which is then called.

    Raises:
        DefinitionError: where it has no `__call__` of its own.
    """
    if getattr(cls.__call__, "__module__", None) in {None, "ferrule.definition.handler_class"}:
        raise DefinitionError(f"tool {name!r}: {cls.__name__} needs `async def __call__(self)`, which does the work")
    run = cls.__call__
    contexts = tuple(key for key, hint in type_hints(name, run).items() if key != "return" and is_context(hint))
    try:
        inspect.signature(run).bind(None, **dict.fromkeys(contexts))
    except TypeError as error:
        raise DefinitionError(
            f"tool {name!r}: {cls.__name__}.__call__ takes no parameters ({error}): make them fields"
        ) from None
    own = cls.__dict__.get("__doc__")
    return Handler(
        function=cls,
        parameters=_model_parameters(name, cls, private, drop_unknown),
        call=lambda values, context: values(**dict.fromkeys(contexts, context)) if contexts else values(),
        description=parse(own)[0],
        returns=type_hints(name, run).get("return", UNKNOWN),
        makes_instance=True,
        runs=run,
    )


def from_args_model(
    name: str, function: Callable[..., object], model: object, private: frozenset[str], drop_unknown: bool
) -> Handler:
    """A handler of `fn(args)`, `fn(args, ctx)` or `fn(ctx, args)`, where `args` is a `model`.

    Raises:
        DefinitionError: for any other signature.
    """
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise DefinitionError(f"tool {name!r}: args_model must be a Pydantic model, not {model!r}")
    hints = type_hints(name, function)
    names = list(signature_of(name, function).parameters)
    # A hint that is neither for the arguments nor for the context means another kind of function.
    strange = any((get_origin(hints.get(key)) or hints.get(key)) in _DATA for key in names)
    if strange or len(names) not in (1, 2):
        raise DefinitionError(
            f"tool {name!r}: with args_model the function takes (args), (args, ctx) or (ctx, args), "
            f"where args is a {model.__name__}, and this one takes ({', '.join(names)})"
        )
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
        description=parse(doc_of(function))[0],
        returns=hints.get("return", UNKNOWN),
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
