"""Handler classes: the fields of a Pydantic model are the parameters."""

from __future__ import annotations

from pydantic import BaseModel

from ferrule.arguments.typed_parameters import TypedParameters
from ferrule.definition.docstring import parse
from ferrule.definition.function import closed
from ferrule.definition.handler import UNKNOWN, Handler
from ferrule.definition.options import ToolOptions
from ferrule.definition.signature import is_context, read_signature, type_hints
from ferrule.errors import DefinitionError


def from_handler_class(cls: type[BaseModel], options: ToolOptions) -> Handler:
    """A handler of a class whose fields are the parameters: a new instance for each call, which is then called.

    Raises:
        DefinitionError: where it has no `__call__` of its own.
    """
    if getattr(cls.__call__, "__module__", None) in {None, "ferrule.definition.handler_class"}:
        raise DefinitionError(f"{cls.__name__} needs `async def __call__(self)`, which does the work")
    run = cls.__call__
    contexts = tuple(key for key, hint in type_hints(run).items() if key != "return" and is_context(hint))
    try:
        read_signature(run).bind(None, **dict.fromkeys(contexts))
    except TypeError as error:
        raise DefinitionError(
            f"{cls.__name__}.__call__ takes no parameters but a `context: ToolContext` ({error}): make them fields"
        ) from None
    own = cls.__dict__.get("__doc__")
    return Handler(
        function=cls,
        parameters=model_parameters(cls, options),
        call=lambda values, context: values(**dict.fromkeys(contexts, context)),
        description=parse(own)[0],
        returns=type_hints(run).get("return", UNKNOWN),
        makes_instance=True,
        runs=run,
    )


def model_parameters(model: type[BaseModel], options: ToolOptions) -> TypedParameters:
    """The fields of a model, as the parameters of a tool.

    Raises:
        DefinitionError: where JSON cannot carry one, or what is private has no default.
    """
    core, schema = closed(model)
    schema.pop("description", None)
    private = frozenset(options.get("private", ()))
    required = [key for key, field in model.model_fields.items() if key in private and field.is_required()]
    if required:
        raise DefinitionError(f"private fields of a model need a default: {required!r}")
    return TypedParameters(core, schema, hidden=private, drop_unknown=options.get("unknown") == "drop")
