"""`Tool`: everything that a developer can write ends as one of these; frozen."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, cast, overload

from pydantic import BaseModel

from ferrule.definition import function as handlers
from ferrule.definition.function import Handler
from ferrule.definition.importable import importable
from ferrule.definition.output import Output
from ferrule.errors import DefinitionError
from ferrule.scheduling.limiter import Limiter
from ferrule.types import Guard, Middleware
from ferrule.values.context import UNSET
from ferrule.values.frozen import FrozenDict, freeze, thaw

Trait: TypeAlias = bool | Callable[[Mapping[str, Any]], bool]
"""A fact about a tool, or a function of a call's arguments that tells it."""

_TRAITS = ("read_only", "destructive", "idempotent", "open_world", "parallel")
_MAKING = frozenset(
    ("handler", "unknown", "private", "isolation", "transfer", "args_model", "input_schema", "output_schema")
)
"""What a tool is made of anew when it changes."""
_WIRE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


class Tool:
    """One tool: name, description, input schema, handler, and what it does to the world.

    Unmarked means "changes things, runs alone". `await some_tool(**arguments)` validates, asks the tool's own guards,
    keeps its concurrency and deadline, runs, and returns the raw value.

    Args:
        name: As guards, records and policies see it; unique in a toolset.
        handler: A sync or async function or bound method, or a handler class.
        description: For the model; from the docstring where it is left out.
        guards: The tool's own guards, asked together with the runner's.
        around: Middleware round the call as the model made it, inside the runner's.
        inside: Middleware round the run itself, inside the runner's.
        concurrency: How many calls may run at once, shared by all copies and runners.
        timeout: Seconds that a call may take, from when it has its slot.
        context: What `CONTEXT.get()` gives inside the handler.
        unknown: `"refuse"` arguments that are not declared, or `"drop"` them, recorded.
        read_only, destructive, idempotent, open_world: MCP's annotations, with MCP's meanings.
        parallel: Whether it may run beside others; what `read_only` says where it is left out.
        resources: The keys that a call locks, a function of its arguments.
        private: Parameters that the model neither sees nor fills.
        isolation: `"process"` for a handler that runs in a process of its own, which is killed with all that it has
            started at the deadline; it must be importable.
        transfer: How arguments and results cross to that process: as `"json"`, or by `"pickle"`.
        expose: Kinds of exceptions whose text the model may see, instead of the runner's.
        args_model: The model of the arguments, for a handler that takes them as one object.
        input_schema: A JSON Schema, for a handler that takes a payload.
        output_schema: A JSON Schema of what the handler returns; from the return type where it is left out.

    Raises:
        DefinitionError: for whatever could not work, saying what to change.
    """

    __slots__ = (
        "_alone",
        "_exports",
        "_handling",
        "_kinds",
        "_limiters",
        "_method",
        "_mounted",
        "_output",
        "_said",
        "around",
        "concurrency",
        "context",
        "description",
        "destructive",
        "examples",
        "expose",
        "guards",
        "handler",
        "idempotent",
        "input_schema",
        "inside",
        "isolation",
        "metadata",
        "name",
        "open_world",
        "parallel",
        "private",
        "read_only",
        "resources",
        "tags",
        "timeout",
        "title",
        "transfer",
        "unknown",
        "version",
        "wire_name",
    )
    name: str
    """As guards, records and policies see it."""
    wire_name: str
    """As every provider takes it; a pure function of `name`."""
    input_schema: FrozenDict
    """What the model is shown; read-only (`copy.deepcopy` gives a plain dict)."""
    description: str
    handler: Any
    """The plain function, or the handler class."""
    guards: tuple[Guard, ...]
    around: tuple[Middleware, ...]
    inside: tuple[Middleware, ...]
    concurrency: int | None
    timeout: float | None
    context: Any
    unknown: str
    read_only: Trait
    destructive: Trait
    idempotent: Trait
    open_world: Trait
    parallel: Trait
    resources: Any
    private: tuple[str, ...]
    isolation: Literal["process"] | None
    transfer: Literal["json", "pickle"]
    expose: tuple[type[BaseException], ...] | None
    tags: tuple[str, ...]
    title: str | None
    version: str | None
    examples: tuple[Mapping[str, Any], ...]
    metadata: Mapping[str, Any]
    _handling: Handler
    _output: Output
    _limiters: tuple[Limiter, ...]
    _mounted: Any
    _method: bool
    _said: frozenset[str]
    _alone: Any
    _exports: dict[Any, Any]
    _kinds: dict[str, Any]

    def __init__(
        self,
        name: str,
        handler: Any = None,
        description: str | None = None,
        *,
        guards: Iterable[Guard] = (),
        around: Iterable[Middleware] = (),
        inside: Iterable[Middleware] = (),
        concurrency: int | None = None,
        timeout: float | None = None,
        context: Any = UNSET,
        unknown: Literal["refuse", "drop"] = "refuse",
        read_only: Trait = False,
        destructive: Trait | None = None,
        idempotent: Trait = False,
        open_world: Trait = True,
        parallel: Trait | None = None,
        resources: Callable[[Mapping[str, Any]], Iterable[str]] | None = None,
        private: Iterable[str] = (),
        isolation: Literal["process"] | None = None,
        transfer: Literal["json", "pickle"] = "json",
        expose: tuple[type[BaseException], ...] | None = None,
        tags: Iterable[str] = (),
        title: str | None = None,
        version: str | None = None,
        examples: Iterable[Mapping[str, Any]] = (),
        metadata: Mapping[str, Any] | None = None,
        args_model: type[BaseModel] | None = None,
        input_schema: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
    ) -> None:
        fill = partial(object.__setattr__, self)
        fill("name", _checked_name(name))
        fill("wire_name", wire_name(name))
        fill("handler", handler)
        fill("unknown", _one_of("unknown", unknown, ("refuse", "drop"), name))
        fill("private", _strings("private", private, name))
        fill("isolation", _isolation(isolation, transfer, handler, args_model, name))
        fill("transfer", transfer)
        handling = _handling(self, args_model, input_schema)
        fill("_handling", handling)
        fill("_output", Output(name, handling.returns, output_schema))
        fill("description", handling.description if description is None else _text("description", description, name))
        fill("input_schema", handling.parameters.exported)
        fill("guards", _callables("guards", guards, name, attribute="check"))
        fill("around", _callables("around", around, name))
        fill("inside", _callables("inside", inside, name))
        fill("concurrency", _count("concurrency", concurrency, name))
        fill("timeout", _seconds("timeout", timeout, name))
        fill("_limiters", () if concurrency is None else (Limiter(concurrency),))
        fill("context", context)
        fill("read_only", _trait("read_only", read_only, name))
        fill("destructive", _trait("destructive", _default_destructive(read_only, destructive), name))
        fill("idempotent", _trait("idempotent", idempotent, name))
        fill("open_world", _trait("open_world", open_world, name))
        fill("parallel", _trait("parallel", read_only if parallel is None else parallel, name))
        fill("resources", _function("resources", resources, name))
        fill("expose", _kinds("expose", expose, name))
        fill("tags", _strings("tags", tags, name))
        fill("title", _optional_text("title", title, name))
        fill("version", _optional_text("version", version, name))
        fill("examples", _mappings("examples", examples, name))
        fill("metadata", _mapping("metadata", metadata or {}, name))
        fill("_kinds", {"args_model": args_model, "input_schema": input_schema, "output_schema": output_schema})
        fill("_said", frozenset(k for k, v in (("parallel", parallel), ("destructive", destructive)) if v is not None))
        fill("_mounted", None)
        fill("_alone", None)
        fill("_exports", {})
        fill("_method", False)

    @property
    def output_schema(self) -> Mapping[str, Any] | None:
        """The JSON Schema of what the handler returns; `None` where nothing is known of it."""
        return self._output.schema

    def trait(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """`read_only`, `destructive`, `idempotent`, `open_world` or `parallel` for these arguments.

        A function that breaks gives the careful answer: it changes things and runs alone.
        """
        value = getattr(self, name)
        if callable(value):
            try:
                value = value(arguments) is True
            except Exception:
                return name in {"destructive", "open_world"}
        return bool(value)

    def replace(self, **changes: Any) -> Tool:
        """A changed copy; `changes` are the constructor's arguments. Copies share their concurrency limit, unless it
        is what is changed."""
        kept: dict[str, Any] = {
            key: getattr(self, key)
            for key in ("name", "handler", "description", "guards", "around", "inside", "concurrency", "timeout",
                        "context", "unknown", *_TRAITS, "resources", "private", "isolation", "transfer", "expose",
                        "tags", "title", "version", "examples", "metadata")
        }  # fmt: skip
        kept |= self._kinds
        said = self._said | ({"parallel", "destructive"} & changes.keys())
        derived = {"parallel", "destructive"} - said
        kept |= dict.fromkeys(derived)
        if "read_only" in changes:  # what was left out follows what is said of it now
            read_only = changes["read_only"]
            follow = {"parallel": read_only, "destructive": _default_destructive(read_only, None)}
            changes = {**{key: follow[key] for key in derived}, **changes}
        if not changes.keys() - {*kept, "args_model", "input_schema", "output_schema"}:
            unchanged = _MAKING.isdisjoint(changes)
            copy = self._copied(changes) if unchanged else self._rebuilt({**kept, **changes})
            object.__setattr__(copy, "_said", said)
            if "concurrency" not in changes:
                object.__setattr__(copy, "_limiters", self._limiters)
            return copy
        unknown = sorted(changes.keys() - kept.keys())
        raise DefinitionError(f"tool {self.name!r}: replace() knows no {unknown!r}")

    def _rebuilt(self, options: Mapping[str, Any]) -> Tool:
        """A tool made anew, with what is no option of the constructor's taken over: fixed arguments and runners."""
        made = Tool(**options)
        object.__setattr__(made, "_mounted", self._mounted)
        object.__setattr__(made, "_method", self._method)
        if self._handling.wrap is not None:
            object.__setattr__(made, "_handling", self._handling.wrap(made._handling))
        fixed = self._handling.parameters.bound
        return made.bind(**thaw(fixed)) if fixed else made

    def _copied(self, changes: Mapping[str, Any]) -> Tool:
        """A copy that keeps handler and schema as they are; what is changed is checked as in the constructor."""
        copy = object.__new__(Tool)
        for slot in Tool.__slots__:
            object.__setattr__(copy, slot, None if slot == "_alone" else getattr(self, slot))
        object.__setattr__(copy, "_exports", {})
        checks: dict[str, Callable[[str, Any, str], Any]] = {
            "description": _text,
            "guards": partial(_callables, attribute="check"),
            "around": _callables,
            "inside": _callables,
            "concurrency": _count,
            "timeout": _seconds,
            "resources": _function,
            "expose": _kinds,
            "tags": _strings,
            "title": _optional_text,
            "version": _optional_text,
            "examples": _mappings,
            "metadata": _mapping,
            **dict.fromkeys(_TRAITS, _trait),
        }
        for key, value in changes.items():
            if key == "name":
                object.__setattr__(copy, "name", _checked_name(value))
                object.__setattr__(copy, "wire_name", wire_name(value))
            else:
                object.__setattr__(copy, key, checks[key](key, value, self.name) if key in checks else value)
            if key == "concurrency":
                object.__setattr__(copy, "_limiters", () if value is None else (Limiter(value),))
        return copy

    def bind(self, /, **values: Any) -> Tool:
        """A copy in which these arguments are fixed and hidden from the model.

        Raises:
            DefinitionError: for a parameter that the tool does not have, or a value that does not fit.
        """
        parameters = self._handling.parameters
        unknown = sorted(values.keys() - parameters.schema["properties"].keys())
        if unknown:
            raise DefinitionError(f"tool {self.name!r} has no parameter {', '.join(map(repr, unknown))} to bind")
        try:
            bound = parameters.with_bound(values)
        except ValueError as error:
            raise DefinitionError(f"tool {self.name!r}: bind: {error}") from None
        bound.check_bound(self.name)
        return self._with(_handling=_rehandled(self._handling, bound), input_schema=bound.exported)

    def _with(self, **slots: Any) -> Tool:
        copy = self._copied({})
        for slot, value in slots.items():
            object.__setattr__(copy, slot, value)
        return copy

    @property
    def fingerprint(self) -> str:
        """A hash of what a model is shown, and of the version; the same in every run and process."""
        shown = [self.name, self.description, self.input_schema, self.version]
        return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:32]

    def __call__(*args: Any, **arguments: Any) -> Awaitable[Any]:
        """Run it directly: validated, judged by its own guards, within its limits; the raw value.

        Raises:
            ValidationError, GuardError, HandlerError, ToolTimeoutError, ToolError: as the names say. An "ask" is a
                `GuardError` here, as there is nobody to ask.
        """
        self, *rest = args  # an argument may be called `self`
        if rest:
            raise TypeError(f"tool {self.name!r} takes its arguments by name")
        return cast("Awaitable[Any]", _direct[0](self, arguments))

    def __set_name__(self, owner: type, name: str) -> None:
        within = getattr(self.handler, "__qualname__", "").rpartition(".")[0]
        if within == owner.__qualname__:  # defined there, and not only kept there
            object.__setattr__(self, "_method", True)

    def __get__(self, instance: Any, owner: type | None = None) -> Tool:
        """The tool bound to `instance`, where it was defined on a method."""
        if instance is None or not self._method or not inspect.isfunction(self.handler):
            return self
        return self.replace(handler=self.handler.__get__(instance, owner))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Tool is frozen: use .replace({name}=…) for a changed copy")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("a Tool is frozen")

    def __copy__(self) -> Tool:
        return self

    def __deepcopy__(self, memo: Any) -> Tool:
        return self

    def __repr__(self) -> str:
        return f"<Tool {self.name}>"


_direct: list[Callable[[Tool, dict[str, Any]], Any]] = []
"""How a tool is run by itself: put here by the runner, which is a ring further out."""


def wire_name(name: str) -> str:
    """The name that every provider takes, `^[A-Za-z_][A-Za-z0-9_-]{0,63}$`; a pure function of the tool's name.

    A name that fits already stays; another keeps what fits and gets a hash of the whole, so that two names which
    differ only in what does not fit stay two.
    """
    if _WIRE.fullmatch(name):
        return name
    kept = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    if not re.match(r"[A-Za-z_]", kept):
        kept = f"_{kept}"
    return f"{kept[:55]}_{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def _handling(tool: Tool, args_model: Any, input_schema: Any) -> Handler:
    name, handler = tool.name, tool.handler
    options: dict[str, Any] = {"private": frozenset(tool.private), "drop_unknown": tool.unknown == "drop"}
    if args_model is not None:
        _require_function(name, handler)
        return handlers.from_args_model(name, handler, args_model, **options)
    if input_schema is not None:
        return handlers.from_execute(name, handler, input_schema, **options)
    if isinstance(handler, type):
        if issubclass(handler, BaseModel):
            return handlers.from_handler_class(name, handler, **options)
        raise DefinitionError(
            f"tool {name!r}: the class {handler.__name__} is no ToolHandler; derive it from ferrule.ToolHandler, "
            f"or use Toolset.of({handler.__name__}(...)) for its methods"
        )
    _require_function(name, handler)
    return handlers.from_function(name, handler, **options)


def _isolation(value: Any, transfer: Any, handler: Any, args_model: Any, name: str) -> Any:
    _one_of("isolation", value, (None, "process"), name)
    _one_of("transfer", transfer, ("json", "pickle"), name)
    if value is not None:
        for target in (handler, args_model):
            if target is not None:
                importable(target, name)
    elif transfer != "json":
        raise DefinitionError(f"tool {name!r}: transfer={transfer!r} is for a tool with isolation='process'")
    return value


def _require_function(name: str, handler: Any) -> None:
    if isinstance(handler, Tool):
        raise DefinitionError(f"tool {name!r}: its handler is a Tool already; use .replace(name={name!r})")
    if not callable(handler):
        raise DefinitionError(
            f"tool {name!r}: the handler must be a function or a ToolHandler class, not {type(handler).__name__}"
        )


def _rehandled(handling: Handler, parameters: Any) -> Handler:
    made = Handler(
        handling.function,
        parameters,
        handling.call,
        is_async=handling.is_async,
        direct=handling.direct,
        description=handling.description,
        returns=handling.returns,
        instance=handling.instance,
        streams=handling.streams,
    )
    made.wrap = handling.wrap
    return made


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not name.strip():
        raise DefinitionError(f"a tool's name must be a text that is not empty, not {name!r}")
    if len(name) > 128 or re.search(r"[\x00-\x1f\x7f\ud800-\udfff]", name):
        raise DefinitionError(f"the tool name {name[:140]!r} must have at most 128 characters, none of them control")
    return name


def _text(key: str, value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise DefinitionError(f"tool {name!r}: {key} must be a text, not {value!r}")
    return inspect.cleandoc(value)


def _optional_text(key: str, value: Any, name: str) -> str | None:
    return None if value is None else _text(key, value, name)


def _mapping(key: str, value: Any, name: str) -> FrozenDict:
    if not isinstance(value, Mapping):
        raise DefinitionError(f"tool {name!r}: {key} must be a dict, not {value!r}")
    return cast("FrozenDict", freeze(value))


def _mappings(key: str, value: Any, name: str) -> tuple[FrozenDict, ...]:
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        raise DefinitionError(f"tool {name!r}: {key} must be a list of dicts, not {value!r}")
    return tuple(_mapping(key, item, name) for item in value)


def _one_of(key: str, value: Any, allowed: tuple[Any, ...], name: str) -> Any:
    if value not in allowed:
        raise DefinitionError(f"tool {name!r}: {key} must be one of {allowed!r}, not {value!r}")
    return value


def _strings(key: str, value: Any, name: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable) or not all(isinstance(v, str) for v in value):
        raise DefinitionError(f"tool {name!r}: {key} must be a tuple of texts, such as {key}=('one',), not {value!r}")
    return tuple(value)


def _callables(key: str, value: Any, name: str, attribute: str | None = None) -> tuple[Any, ...]:
    owner = f"tool {name!r}: " if name else ""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise DefinitionError(f"{owner}{key} must be a list, such as {key}=[...], not {value!r}")
    items = tuple(value)
    for item in items:
        if not callable(item) and not (attribute and callable(getattr(item, attribute, None))):
            also = f" or have {attribute}()" if attribute else ""
            raise DefinitionError(f"{owner}{key} holds {item!r}; each must be callable{also}")
    return items


def _count(key: str, value: Any, name: str) -> int | None:
    owner = f"tool {name!r}: " if name else ""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise DefinitionError(f"{owner}{key} must be a whole number of at least 1, or None for no limit, not {value!r}")
    return value


def _seconds(key: str, value: Any, name: str) -> float | None:
    owner = f"tool {name!r}: " if name else ""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not (value > 0 and math.isfinite(value)):
        raise DefinitionError(f"{owner}{key} must be a positive number of seconds, or None, not {value!r}")
    return float(value)


def _trait(key: str, value: Any, name: str) -> Trait:
    if not isinstance(value, bool) and not callable(value):
        raise DefinitionError(f"tool {name!r}: {key} must be True, False or a function of the arguments, not {value!r}")
    if callable(value) and handlers.is_async(value):
        raise DefinitionError(f"tool {name!r}: {key} must be a plain function of the arguments, not an async one")
    return cast("Trait", value)


def _default_destructive(read_only: Any, destructive: Trait | None) -> Trait:
    if destructive is not None:
        return destructive
    if callable(read_only):
        return lambda arguments: read_only(arguments) is not True
    return not read_only


def _function(key: str, value: Any, name: str) -> Any:
    if value is not None and not callable(value):
        raise DefinitionError(f"tool {name!r}: {key} must be a function of the arguments, not {value!r}")
    if value is not None and handlers.is_async(value):
        raise DefinitionError(f"tool {name!r}: {key} must be a plain function of the arguments, not an async one")
    return value


def _kinds(key: str, value: Any, name: str) -> tuple[type[BaseException], ...] | None:
    if value is None:
        return None
    owner = f"tool {name!r}: " if name else ""
    kinds = tuple(value) if isinstance(value, Iterable) and not isinstance(value, type) else (value,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise DefinitionError(f"{owner}{key} must be a tuple of exception classes, not {value!r}")
    return kinds


class ToolOptions(TypedDict, total=False):
    """The keyword arguments of `Tool`, for `@tool(...)`."""

    description: str | None
    guards: Iterable[Guard]
    around: Iterable[Middleware]
    inside: Iterable[Middleware]
    concurrency: int | None
    timeout: float | None
    context: Any
    unknown: Literal["refuse", "drop"]
    read_only: Trait
    destructive: Trait | None
    idempotent: Trait
    open_world: Trait
    parallel: Trait | None
    resources: Callable[[Mapping[str, Any]], Iterable[str]] | None
    private: Iterable[str]
    isolation: Literal["process"] | None
    transfer: Literal["json", "pickle"]
    expose: tuple[type[BaseException], ...] | None
    tags: Iterable[str]
    title: str | None
    version: str | None
    examples: Iterable[Mapping[str, Any]]
    metadata: Mapping[str, Any] | None
    args_model: type[BaseModel] | None
    input_schema: Mapping[str, Any] | None
    output_schema: Mapping[str, Any] | None


@overload
def tool(handler: Callable[..., Any], /, name: str | None = None, **options: Unpack[ToolOptions]) -> Tool: ...
@overload
def tool(
    handler: None = None, /, name: str | None = None, **options: Unpack[ToolOptions]
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    handler: Callable[..., Any] | None = None, /, name: str | None = None, **options: Unpack[ToolOptions]
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function or a handler class: `@tool`, `@tool(read_only=True)`, or `tool(fn, name="…")`.

    `options` are the arguments of `Tool`.

    Raises:
        DefinitionError: for whatever could not work, saying what to change.
    """
    if handler is None:
        return lambda function: _tool(function, name, dict(options))
    return _tool(handler, name, dict(options))


def _tool(handler: Any, name: str | None, options: dict[str, Any]) -> Tool:
    if isinstance(handler, Tool):
        raise DefinitionError(f"{handler!r} is a tool already; use .replace(...) for a changed copy")
    if isinstance(handler, staticmethod | classmethod):
        raise DefinitionError("put @staticmethod above @tool's function, or use Toolset.of(...) for a class's methods")
    if not callable(handler):
        raise DefinitionError(f"@tool goes on a function or a ToolHandler class, not on {handler!r}")
    found = name if name is not None else _name_of(handler)
    try:
        return Tool(found, handler, **options)
    except TypeError as error:
        if "unexpected keyword argument" in str(error):
            raise DefinitionError(f"tool {found!r}: {str(error).partition('() ')[2]}") from None
        raise


def _name_of(handler: Any) -> str:
    while isinstance(handler, partial):
        handler = handler.func
    name = getattr(handler, "__name__", None) or type(handler).__name__
    if name == "<lambda>":
        raise DefinitionError("a lambda has no name: use tool(fn, name='…')")
    return str(name)
