"""From what a developer wrote to a `Handler`: its parameters, and how it is called.

Each way of writing a tool is one function here: a function, a handler class, a function of an arguments model, an
`execute` with a JSON Schema.
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticUserError

from ferrule.arguments import core_schema
from ferrule.arguments.parameters import Parameters, SchemaParameters, TypedParameters
from ferrule.definition.docstring import parse
from ferrule.errors import DefinitionError
from ferrule.executors.chunks import whole, yields
from ferrule.values.context import ToolContext

_EMPTY = inspect.Parameter.empty
_UNKNOWN: Any = object()
_DATA = (int, float, str, bool, bytes, list, dict, tuple, set)


class Handler:
    """How one tool is called.

    Attributes:
        function: What the developer wrote.
        parameters: What it takes.
        call: `(values, context) -> value`, or an awaitable of it.
        is_async: Whether calling gives a coroutine; all else runs in a thread.
        streams: Whether calling gives an async generator, whose pieces together are the value.
        direct: The function itself, where the validated values are just its keyword arguments.
        description: From the docstring.
        returns: The return annotation, or `UNKNOWN`.
        instance: Whether the values are an object of the developer's class, which guards of seed a's form may change.
        wrap: What was put round it, for whoever makes the handler anew.
    """

    __slots__ = (
        "call",
        "description",
        "direct",
        "function",
        "instance",
        "is_async",
        "parameters",
        "returns",
        "streams",
        "wrap",
    )
    wrap: Callable[[Handler], Handler] | None

    def __init__(
        self,
        function: Any,
        parameters: Parameters,
        call: Callable[[Any, ToolContext[Any]], Any],
        *,
        is_async: bool,
        direct: Callable[..., Any] | None = None,
        description: str = "",
        returns: Any = _UNKNOWN,
        instance: bool = False,
        streams: bool = False,
    ) -> None:
        self.function = function
        self.parameters = parameters
        self.call = call
        self.is_async = is_async
        self.direct = direct
        self.description = description
        self.returns = whole(returns, _UNKNOWN) if streams else returns
        self.instance = instance
        self.streams = streams
        self.wrap = None


def is_async(function: Any) -> bool:
    """Whether calling `function` gives a coroutine."""
    while isinstance(function, functools.partial):
        function = function.func
    if not (inspect.isroutine(function) or inspect.isclass(function)):
        function = getattr(type(function), "__call__", function)  # noqa: B004
    return inspect.iscoroutinefunction(function)


def _refuse_generators(name: str, function: Any) -> None:
    if inspect.isgeneratorfunction(function):
        raise DefinitionError(f"tool {name!r} yields: make it an async generator (async def), or return a list")


def from_function(
    name: str, function: Callable[..., Any], *, private: frozenset[str] = frozenset(), drop_unknown: bool = False
) -> Handler:
    """A handler of a function, bound method or callable object: parameters from the type hints.

    Raises:
        DefinitionError: for `*args`, hints that cannot be resolved, types without a JSON form.
    """
    _refuse_generators(name, function)
    description, texts = parse(inspect.getdoc(_documented(function)))
    signature = _signature(name, function)
    hints = _hints(name, function)
    returns = hints.pop("return", _UNKNOWN)
    contexts: list[str] = []
    declared: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            raise DefinitionError(
                f"tool {name!r}: a model cannot fill *{parameter.name}; write a list parameter instead"
            )
        hint = hints.get(parameter.name, Any if parameter.annotation is _EMPTY else parameter.annotation)
        if _is_context(hint):
            contexts.append(parameter.name)
        else:
            declared.append(parameter.replace(annotation=hint))
    parameters = _typed(name, declared, texts, private, drop_unknown, frozenset(contexts))
    positional = tuple(p for p in signature.parameters.values() if p.kind is inspect.Parameter.POSITIONAL_ONLY)
    call = _caller(function, tuple(contexts), positional)
    return Handler(
        function,
        parameters,
        call,
        is_async=is_async(function),
        direct=None if contexts or positional else function,
        description=description,
        returns=returns,
        streams=yields(function),
    )


def _documented(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function):
        return function
    return function if inspect.getdoc(function) else type(function).__call__


def _signature(name: str, function: Any) -> inspect.Signature:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise DefinitionError(
            f"tool {name!r}: {function!r} has no signature ({error}); wrap it in a function"
        ) from None
    fixed: set[str] = set()
    inner = function
    while isinstance(inner, functools.partial):
        fixed |= inner.keywords.keys()
        inner = inner.func
    kept = [parameter for parameter in signature.parameters.values() if parameter.name not in fixed]
    return signature.replace(parameters=kept)


def _hints(name: str, function: Any) -> dict[str, Any]:
    while isinstance(function, functools.partial):
        function = function.func
    target = inspect.unwrap(getattr(function, "__func__", function))
    if not inspect.isroutine(target):
        target = type(target).__call__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except Exception:  # an annotation is any expression: whatever it raises is looked at one by one
        return _hints_one_by_one(name, target)


def _hints_one_by_one(name: str, function: Any) -> dict[str, Any]:
    """Each annotation by itself, with the local names of whoever defines the tool; the return type may fail."""
    found: dict[str, Any] = {}
    names = {**getattr(function, "__globals__", {}), **_caller_locals()}
    for parameter, annotation in getattr(function, "__annotations__", {}).items():
        holder = type("_Holder", (), {"__annotations__": {parameter: annotation}})
        try:
            found[parameter] = typing.get_type_hints(holder, names, names, include_extras=True)[parameter]
        except Exception as error:
            if parameter == "return":
                continue
            raise DefinitionError(
                f"tool {name!r}: the annotation {annotation!r} of {parameter!r} cannot be resolved ({error}); "
                "import what it names at run time, not under TYPE_CHECKING"
            ) from None
    return found


def _caller_locals() -> dict[str, Any]:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("ferrule."):
        frame = frame.f_back
    return dict(frame.f_locals)


def _is_context(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    origin = get_origin(hint) or hint
    if isinstance(origin, type) and issubclass(origin, ToolContext):
        return True
    return any(_is_context(item) for item in get_args(hint) if item is not hint) if _is_union(hint) else False


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in {typing.Union, type(int | str)}


def _is_field(value: Any) -> bool:
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
    arguments = core_schema.close(_arguments_core(name, declared))
    definitions: list[Any] = []
    if arguments["type"] == "definitions":
        definitions, arguments = arguments["definitions"], arguments["schema"]
    arguments = arguments["arguments_schema"]
    fields, made, nodes = {}, {}, {}
    hidden: set[str] = set()
    named = [parameter for parameter in declared if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
    for parameter, argument in zip(named, arguments["arguments_schema"], strict=True):
        field, wire, is_made = _field(parameter, argument, private)
        fields[parameter.name] = field
        if parameter.name in private:
            hidden.add(wire)
        nodes[wire] = field["schema"] if wire == parameter.name else {"type": "any"}  # its value has another key
        if is_made:
            made[wire] = parameter.name
            core_schema.keep_made(field)
    core = core_schema.typed_dict(fields, arguments.get("var_kwargs_schema"))
    exported = arguments
    if definitions:
        core = {"type": "definitions", "schema": core, "definitions": definitions}
        exported = {"type": "definitions", "schema": arguments, "definitions": definitions}
    schema = _exported(name, exported, declared)
    if arguments.get("var_kwargs_schema") is not None:
        schema.setdefault("additionalProperties", True)
        hidden |= contexts  # **kwargs would take a key of the context's name
    for wire, node in schema.get("properties", {}).items():
        if wire in texts and "description" not in node:
            node["description"] = texts[wire]
    return TypedParameters(core, schema, nodes, made=made, hidden=frozenset(hidden), drop_unknown=drop_unknown)


def _field(
    parameter: inspect.Parameter, argument: dict[str, Any], private: frozenset[str]
) -> tuple[dict[str, Any], str, bool]:
    """A parameter as a field of the keyword arguments, its name in JSON, and whether its default is made by Pydantic.

    A default that is Python's own is left to Python: what was not given is not passed.
    """
    node, alias = argument["schema"], argument.get("alias")
    wire = alias if isinstance(alias, str) else parameter.name
    optional = node["type"] == "default"
    is_made = optional and (parameter.default is _EMPTY or _is_field(parameter.default))
    if optional and not is_made:
        node = node["schema"]
    required = not optional and parameter.name not in private
    field: dict[str, Any] = {"type": "typed-dict-field", "schema": node, "required": required}
    if wire != parameter.name:
        field["validation_alias"] = alias
    return field, wire, is_made


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
    except core_schema.Errors as error:
        raise DefinitionError(_why(name, keyword, error)) from error


def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Pydantic's adapter; what is not defined for it is looked up where the tool is defined."""
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    try:
        len(adapter.core_schema)
    except PydanticUserError as error:
        if error.code != "class-not-fully-defined":
            raise
        adapter.rebuild(_types_namespace=_caller_locals())
    return adapter


def _why(name: str, parameters: Sequence[inspect.Parameter], error: BaseException) -> str:
    reason = str(error).partition("\n")[0]
    for parameter in parameters:
        try:
            core_schema.json_schema(_adapter(parameter.annotation).core_schema)  # type: ignore[arg-type]
        except core_schema.Errors as inner:
            reason = f"parameter {parameter.name!r}: {str(inner).partition(chr(10))[0]}"
            break
    return f"tool {name!r}: {reason}; use types that JSON can carry"


def _exported(name: str, core: dict[str, Any], declared: Sequence[inspect.Parameter] = ()) -> dict[str, Any]:
    try:
        return core_schema.json_schema(core)
    except core_schema.Errors as error:
        raise DefinitionError(_why(name, declared, error)) from error


def _caller(
    function: Callable[..., Any], contexts: tuple[str, ...], positional: tuple[inspect.Parameter, ...]
) -> Callable[[Any, ToolContext[Any]], Any]:
    if not contexts and not positional:
        return lambda values, context: function(**values)
    if len(contexts) == 1 and not positional:
        (only,) = contexts
        return lambda values, context: function(**values, **{only: context})

    def call(values: dict[str, Any], context: ToolContext[Any]) -> Any:
        given = {**values, **dict.fromkeys(contexts, context)}
        while_given = max((place for place, p in enumerate(positional, 1) if p.name in given), default=0)
        leading = [given.pop(p.name, p.default) for p in positional[:while_given]]
        return function(*leading, **given)

    return call


def _model_parameters(
    name: str, model: type[BaseModel], private: frozenset[str], drop_unknown: bool
) -> TypedParameters:
    try:
        core = core_schema.close(dict(TypeAdapter(model).core_schema))
    except core_schema.Errors as error:
        raise DefinitionError(f"tool {name!r}: {error}") from error
    schema = _exported(name, core)
    schema.pop("description", None)
    made, closed = {}, []
    for field_name, field in model.model_fields.items():
        wire = field.validation_alias or field.alias or field_name
        if field.default_factory is not None and isinstance(wire, str):
            made[wire] = field_name
            core_schema.keep_made(core_schema.root(core)[0][field_name])
        if field_name in private and field.is_required():
            closed.append(field_name)
    if closed:
        raise DefinitionError(f"tool {name!r}: private fields of a model need a default: {closed!r}")
    if private - set(schema.get("properties", {})):
        raise DefinitionError(f"tool {name!r}: private={sorted(private)!r} names what is no field of {model.__name__}")
    return TypedParameters(core, schema, {}, made=made, hidden=private, drop_unknown=drop_unknown)


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
    _refuse_generators(name, run)
    contexts = tuple(key for key, hint in _hints(name, run).items() if key != "return" and _is_context(hint))
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
        cls,
        _model_parameters(name, cls, private, drop_unknown),
        lambda values, context: values(**dict.fromkeys(contexts, context)) if contexts else values(),
        is_async=inspect.iscoroutinefunction(run),
        description=parse(own)[0],
        returns=_hints(name, run).get("return", _UNKNOWN),
        instance=True,
        streams=yields(run),
    )


def from_args_model(
    name: str,
    function: Callable[..., Any],
    model: Any,
    *,
    private: frozenset[str] = frozenset(),
    drop_unknown: bool = False,
) -> Handler:
    """A handler of `fn(args)`, `fn(args, ctx)` or `fn(ctx, args)`, where `args` is a `model`.

    Raises:
        DefinitionError: for any other signature.
    """
    _refuse_generators(name, function)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise DefinitionError(f"tool {name!r}: args_model must be a Pydantic model, not {model!r}")
    hints = _hints(name, function)
    names = list(_signature(name, function).parameters)
    _refuse_strangers(name, {key: hints[key] for key in names if key in hints}, model)
    if len(names) == 1:
        call: Callable[[Any, ToolContext[Any]], Any] = lambda values, context: function(values)  # noqa: E731
    elif len(names) == 2:
        first = _is_context(hints.get(names[0])) or (
            not _is_context(hints.get(names[1])) and names[0] in {"ctx", "context"}
        )
        if first:
            call = lambda values, context: function(context, values)  # noqa: E731
        else:
            call = lambda values, context: function(values, context)  # noqa: E731
    else:
        raise DefinitionError(f"tool {name!r}: with args_model the function takes (args), (args, ctx) or (ctx, args)")
    return Handler(
        function,
        _model_parameters(name, model, private, drop_unknown),
        call,
        is_async=is_async(function),
        description=parse(inspect.getdoc(function))[0],
        returns=hints.get("return", _UNKNOWN),
        streams=yields(function),
    )


def _refuse_strangers(name: str, hints: Mapping[str, Any], model: type[BaseModel]) -> None:
    """A hint that is neither for the arguments nor for the context means another kind of function."""
    for key, hint in hints.items():
        if (get_origin(hint) or hint) in _DATA:
            raise DefinitionError(
                f"tool {name!r}: with args_model the function takes (args), (args, ctx) or (ctx, args), "
                f"and its {key!r} is neither a {model.__name__} nor a ToolContext"
            )


def from_execute(
    name: str,
    execute: Callable[..., Any],
    input_schema: Mapping[str, Any] | None,
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
    _refuse_generators(name, execute)
    takes_context = _takes_context(name, execute)
    parameters = SchemaParameters({"type": "object"} if input_schema is None else input_schema, hidden=private,
                                  drop_unknown=drop_unknown)  # fmt: skip
    missing = private - set(parameters.schema["properties"])
    if missing:
        raise DefinitionError(f"tool {name!r}: private={sorted(missing)!r} names no property of the schema")
    return Handler(
        execute,
        parameters,
        execute if takes_context else lambda values, context: execute(values),
        is_async=is_async(execute),
        description=parse(inspect.getdoc(execute))[0],
        streams=yields(execute),
    )


def _takes_context(name: str, execute: Callable[..., Any]) -> bool:
    """Whether `execute` has a second parameter for the context, and not one that is its author's own business."""
    if takes(name, "execute", execute, 1, 2) == 1:
        return False
    second = list(_signature(name, execute).parameters.values())[1:2]
    return (
        not second
        or second[0].default is _EMPTY
        or second[0].name in {"context", "ctx"}
        or _is_context(_hints(name, execute).get(second[0].name))
    )


def takes(name: str, what: str, function: Callable[..., Any], least: int, most: int) -> int:
    """How many positional arguments, `least` to `most`, the function takes at the most.

    Raises:
        DefinitionError: where it takes fewer, or needs more.
    """
    signature = _signature(name, function)
    for count in range(most, least - 1, -1):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return count
    raise DefinitionError(f"tool {name!r}: {what} must take {least} to {most} arguments, not {signature}")
