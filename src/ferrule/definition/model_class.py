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
from ferrule.definition.function import exported_schema
from ferrule.definition.handler import UNKNOWN, Handler, doc_of
from ferrule.definition.options import ToolOptions
from ferrule.definition.signature import contexts_of, is_context, signature_of, taking_whole, type_hints
from ferrule.errors import DefinitionError

_DATA = (int, float, str, bool, bytes, list, dict, tuple, set)


def from_handler_class(name: str, cls: type[BaseModel], options: ToolOptions) -> Handler:
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
            f"tool {name!r}: {cls.__name__}.__call__ takes no parameters but a `context: ToolContext` ({error}): make "
            "them fields"
        ) from None
    own = cls.__dict__.get("__doc__")
    return Handler(
        function=cls,
        parameters=_model_parameters(name, cls, options),
        call=lambda values, context: values(**dict.fromkeys(contexts, context)),
        description=parse(own)[0],
        returns=type_hints(name, run).get("return", UNKNOWN),
        makes_instance=True,
        runs=run,
    )


def from_args_model(name: str, function: Callable[..., object], options: ToolOptions) -> Handler:
    """A handler of `fn(args)`, `fn(args, ctx)` or `fn(ctx, args)`, where `args` is an `args_model`.

    Raises:
        DefinitionError: for any other signature.
    """
    model: object = options["args_model"]
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise DefinitionError(f"tool {name!r}: args_model must be a Pydantic model, not {model!r}")
    hints = type_hints(name, function)
    parameters = list(signature_of(name, function).parameters.values())
    # A hint that is neither for the arguments nor for the context means another kind of function.
    strange = any((get_origin(hints.get(p.name)) or hints.get(p.name)) in _DATA for p in parameters)
    contexts = contexts_of(parameters, hints) or parameters[1:]
    if strange or len(parameters) not in (1, 2) or len(contexts) == len(parameters):
        raise DefinitionError(
            f"tool {name!r}: with args_model the function takes (args), (args, ctx) or (ctx, args), "
            f"where args is a {model.__name__}, and this one takes ({', '.join(p.name for p in parameters)})"
        )
    return Handler(
        function=function,
        parameters=_model_parameters(name, model, options),
        call=taking_whole(function, parameters, contexts),
        description=parse(doc_of(function))[0],
        returns=hints.get("return", UNKNOWN),
    )


def _model_parameters(name: str, model: type[BaseModel], options: ToolOptions) -> TypedParameters:
    try:
        core = close(dict(TypeAdapter(model).core_schema))
    except UNEXPORTABLE as error:
        raise DefinitionError(f"tool {name!r}: {error}") from error
    schema = exported_schema(name, core)
    schema.pop("description", None)
    private = frozenset(options.get("private", ()))
    required = [key for key, field in model.model_fields.items() if key in private and field.is_required()]
    if required:
        raise DefinitionError(f"tool {name!r}: private fields of a model need a default: {required!r}")
    return TypedParameters(core, schema, hidden=private, drop_unknown=options.get("unknown") == "drop")
