"""Make a handler of a class: the fields of a Pydantic model are the parameters."""

from __future__ import annotations

from pydantic import BaseModel

from ferrule.arguments.typed_parameters import TypedParameters
from ferrule.definition.docstring import parse_docstring
from ferrule.definition.function import close_type
from ferrule.definition.handler import UNANNOTATED, Handler
from ferrule.definition.options import ToolOptions
from ferrule.definition.signature import is_context, read_signature, read_type_hints
from ferrule.errors import DefinitionError


def from_handler_class(cls: type[BaseModel], options: ToolOptions) -> Handler:
    """Return a handler that makes and calls a new instance for each call.

    Raises:
        DefinitionError: The class has no `__call__` of its own, or one with parameters.
    """
    if getattr(cls.__call__, "__module__", None) in {None, "ferrule.definition.handler_class"}:
        raise DefinitionError(f"{cls.__name__} needs `async def __call__(self)`, which does the work")
    run = cls.__call__
    contexts = tuple(key for key, hint in read_type_hints(run).items() if key != "return" and is_context(hint))
    try:
        read_signature(run).bind(None, **dict.fromkeys(contexts))
    except TypeError as error:
        raise DefinitionError(
            f"{cls.__name__}.__call__ takes no parameters but a `context: ToolContext` ({error}): make them fields"
        ) from None
    own = cls.__dict__.get("__doc__")
    return Handler(
        function=cls,
        parameters=build_model_parameters(cls, options),
        call=lambda values, context: values(**dict.fromkeys(contexts, context)),
        description=parse_docstring(own)[0],
        returns=read_type_hints(run).get("return", UNANNOTATED),
        makes_instance=True,
        target=run,
    )


def build_model_parameters(model: type[BaseModel], options: ToolOptions) -> TypedParameters:
    """Return the parameters of a tool with the fields of a model.

    Raises:
        DefinitionError: A field has no JSON form, or a private field has no default.
    """
    core, schema = close_type(model)
    schema.pop("description", None)
    private = frozenset(options.get("private", ()))
    required = [key for key, field in model.model_fields.items() if key in private and field.is_required()]
    if required:
        raise DefinitionError(f"private fields of a model need a default: {required!r}")
    return TypedParameters(core, schema, hidden=private)
