"""`Tool`: one tool with its options and handler; frozen."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from threading import local
from typing import Any, Concatenate, Generic, Literal, Unpack, cast, overload

from pydantic import BaseModel

# Defaults of type variables come with Python 3.13; Pydantic requires typing_extensions.
from typing_extensions import ParamSpec, TypeVar

from ferrule.definition.forms import call_interop
from ferrule.definition.function import from_function
from ferrule.definition.handler import Handler
from ferrule.definition.options import (
    DEFAULTS,
    HANDLER_OPTIONS,
    OPTIONS,
    Preview,
    Resources,
    RunOptions,
    ToolOptions,
    Trait,
    refuse_unknown,
)
from ferrule.definition.output import TICKET_OUTPUT, Output
from ferrule.definition.signature import has_unfilled_self
from ferrule.errors import DefinitionError
from ferrule.scheduling.limiter import Limiter
from ferrule.types import Guard, Isolation, Middleware, Reconcile
from ferrule.values.context import ToolContext
from ferrule.values.frozen import FrozenDict, JsonObject, thaw
from ferrule.values.result import ToolResult

P = ParamSpec("P", default=...)
R_co = TypeVar("R_co", default=Any, covariant=True)
_Rest = ParamSpec("_Rest")
_Instance = TypeVar("_Instance")

_WIRE = r"[A-Za-z_][A-Za-z0-9_-]{0,63}"
# A text and not `re.compile`, which takes half a millisecond. Most names are ASCII.
_UNSEEN_LETTERS = "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
"""Invisible characters that Python accepts in an identifier."""


class Tool(Generic[P, R_co]):
    """One tool: name, description, input schema, handler and traits. See docs/forms.md.

    An unmarked tool changes things and runs alone. `await some_tool(...)` validates, asks the tool's own guards, keeps
    its concurrency and deadline, runs, and returns the raw value. `Tool[P, R]` has the handler's parameters without the
    context, and its return type; plain `Tool` is any tool.

    Args:
        name: The name for guards, records and policies; unique in a toolset.
        handler: A sync or async function or bound method, or a handler class.
        description: For the model; from the docstring if not given.
        guards: The tool's own guards, asked together with the runner's.
        ask: Whether a person is asked about every call: `True`, or the reason as a text.
        around: Middleware around the call as the model made it, inside the runner's.
        inside: Middleware around the run itself, inside the runner's.
        concurrency: How many calls may run at once, shared by all copies and runners.
        timeout: Seconds for one call, from the moment it has its slot.
        idle_timeout: Seconds for one call without progress. Progress extends them, up to `timeout`.
        context: The value of `CONTEXT.get()` inside the handler.
        read_only, destructive, idempotent, open_world: MCP's annotations, with MCP's meanings.
        sandboxed: Whether a sandbox of the operating system contains calls, so a policy may allow them. See
            docs/shell.md.
        recorded: Whether all that a call does is to run other tools by `context.run(…, id=…)`. `ask_before_changes` and
            policies judge only these. With a journal, a call that was cut off runs again, and repeats none of them.
        parallel: Whether calls may run beside others; the value of `read_only` if not given.
        resources: A function of the arguments that returns the keys to lock. Calls that are `read_only` and `parallel`
            share them with each other.
        reconcile: Finds the outcome of an unknown call: a function of the call and its context that returns its
            `ToolResult`, False if it did not happen, or None if that is unknown. See docs/journal.md.
        background: Whether an approved call returns a ticket at once and continues as a job; direct calls do not. See
            docs/long-work.md#in-the-background.
        private: Parameters that the model neither sees nor fills.
        preview: A function of the arguments that returns the effect of a call, as a text or a `Diff` for the person who
            is asked. If it raises `ToolError`, the call cannot work, and nobody is asked.
        isolation: `"process"` to run the handler in its own process, which is killed at the deadline with all its
            children; the handler must be importable. Or an object with `executor(tool)`, to run it elsewhere.
        examples: Arguments of good calls, for the APIs that accept examples.
        provider: Additions to the definition for one API, by the provider module's name, such as
            `{"anthropic": {"eager_input_streaming": True}}`.
        metadata: Anything else, for guards and observers. MCP clients show its `"title"` and `"icons"`. A change of its
            `"version"` changes the fingerprint.
        input_schema: A JSON Schema for a handler with a payload, or a Pydantic model for a handler that takes its
            instance.
        output_schema: A JSON Schema of the output; from the return type if not given.

    Raises:
        DefinitionError: The tool could not work. The message says how to change it.
    """

    name: str
    """The name for guards, records and policies."""
    wire_name: str
    """The name for every provider; a pure function of `name`."""
    description: str
    handler: Callable[..., Any]
    """The plain function, or the handler class."""
    guards: tuple[Guard, ...]
    ask: bool | str
    around: tuple[Middleware, ...]
    inside: tuple[Middleware, ...]
    concurrency: int | None
    timeout: float | None
    idle_timeout: float | None
    context: Any
    read_only: Trait
    destructive: Trait
    idempotent: Trait
    open_world: Trait
    sandboxed: Trait
    recorded: bool
    parallel: Trait
    resources: Resources | None
    reconcile: Reconcile | None
    background: bool
    preview: Preview | None
    private: tuple[str, ...]
    isolation: Literal["process"] | Isolation | None
    tags: tuple[str, ...]
    examples: tuple[FrozenDict, ...]
    provider: FrozenDict
    metadata: FrozenDict

    # For the kernel and for adapters:
    options: ToolOptions
    """The developer's options after their checks."""
    handling: Handler
    """The way to call the handler, and its parameters."""
    output: Output
    """The schema of the handler's output, and its check."""
    limiter: Limiter | None
    """The slots of `concurrency`, shared by copies."""
    mounts: tuple[Any, ...]
    """The runners between this tool and its own runner, from `Runner.as_tools`; the outermost first."""
    adapter: Callable[[Handler], Handler] | None
    """A function applied to the handler, and to every new one."""
    server: str | None
    """The server of the calls, such as its address or a digest, or None. A suspended call is not resumed with another
    one."""
    quarantine: str | None
    """The reason of `Toolset.with_lock` not to offer or run the tool, or None; also in copies."""
    in_this_thread: local
    """The runners of `await some_tool(...)`, by thread."""

    def __init__(
        self: Tool[..., Any], name: str, handler: Callable[..., object] | None = None, **options: Unpack[ToolOptions]
    ) -> None:
        refuse_unknown(options, OPTIONS, f"tool {name!r}")
        vars(self).update(
            handler=handler, options={}, adapter=None, server=None, quarantine=None, limiter=None, mounts=()
        )
        vars(self)["in_this_thread"] = local()
        self._define(name, options, anew=True)

    @property
    def input_schema(self) -> FrozenDict:
        """The JSON Schema for the model; read-only (`copy.deepcopy` returns a plain dict)."""
        return self.handling.parameters.exported

    @property
    def hidden(self) -> frozenset[str]:
        """The parameters hidden from the model: private and bound ones."""
        return self.handling.parameters.hidden

    @property
    def title(self) -> str | None:
        """The name for people, `metadata["title"]`, or None."""
        title = self.metadata.get("title")
        return title if isinstance(title, str) else None

    @property
    def version(self) -> str | None:
        """`metadata["version"]` as text, or None."""
        version = self.metadata.get("version")
        return str(version) if isinstance(version, str | int | float) else None

    @property
    def output_schema(self) -> FrozenDict | None:
        """The JSON Schema of a call's output, or of its ticket; None if any value fits."""
        return (TICKET_OUTPUT if self.background else self.output).schema

    def trait(self, name: str, arguments: JsonObject) -> bool:
        """Return `read_only`, `destructive`, `idempotent`, `open_world`, `sandboxed` or `parallel` for these arguments.

        If the trait's function raises, the answer is the careful one: the tool changes things and runs alone.
        """
        value = getattr(self, name)
        if callable(value):
            try:
                value = value(arguments) is True
            except Exception:
                return name in {"destructive", "open_world"}
        return bool(value)

    @overload
    def replace(self, *, name: str = ..., **changes: Unpack[ToolOptions]) -> Tool[P, R_co]: ...
    @overload
    def replace(self, *, handler: Callable[..., object], name: str = ..., **changes: Unpack[ToolOptions]) -> Tool: ...
    def replace(self, **changes: Any) -> Tool:
        """Return a changed copy; `changes` are the constructor's arguments.

        Copies share their concurrency limit, unless it is changed.

        Raises:
            DefinitionError: The changed tool could not work.
        """
        refuse_unknown(changes, ("name", "handler", *OPTIONS), f"tool {self.name!r}: replace")
        name, handler = changes.pop("name", self.name), changes.pop("handler", self.handler)
        made: Tool = self._copy_with(handler=handler)
        if handler is self.handler and HANDLER_OPTIONS.isdisjoint(changes):
            made._define(name, changes, anew=False)
            return made
        made._define(name, {"description": self.description, **changes}, anew=True)
        bound = self.handling.parameters.bound
        return made.bind(**thaw(bound)) if bound else made

    def _copy_with(self, **changes: object) -> Tool[P, R_co]:
        """Return a copy with these attributes. Its direct calls have their own runners."""
        copy = cast("Tool[P, R_co]", object.__new__(Tool))
        vars(copy).update({**vars(self), "in_this_thread": local(), **changes})
        return copy

    def _define(self: Any, name: str, changes: JsonObject, *, anew: bool) -> None:
        """Check the changes and store all options. Fill in the description, and the traits that follow `read_only`.

        With `anew`, make the handler, too."""
        vars(self).update(name=_check_name(name), wire_name=to_wire_name(name))
        try:
            vars(self)["options"] = {**self.options, **{key: OPTIONS[key].check(key, changes[key]) for key in changes}}
            vars(self).update({key: self.options.get(key, default) for key, default in DEFAULTS.items()})
            if anew:
                handling = _build_handler(self)
                output = Output(handling.returns, self.options.get("output_schema"))
                vars(self).update(handling=handling if self.adapter is None else self.adapter(handling), output=output)
        except DefinitionError as error:
            raise DefinitionError(f"tool {name!r}: {error}") from error
        if "concurrency" in changes:
            named = f"tool {self.name}"
            vars(self)["limiter"] = None if self.concurrency is None else Limiter(self.concurrency, named)
        read_only: Trait = self.read_only
        changing = (lambda arguments: read_only(arguments) is not True) if callable(read_only) else not read_only
        derived = {"description": self.handling.description, "parallel": read_only, "destructive": changing}
        vars(self).update({key: value for key, value in derived.items() if getattr(self, key) is None})
        if anew or "examples" in changes:
            self.handling.parameters.check_examples(name, self.examples)

    def bind(self, /, **values: object) -> Tool[..., R_co]:
        """Return a copy with these arguments fixed and hidden from the model.

        Raises:
            DefinitionError: The tool has no such parameter, or a value does not fit.
        """
        parameters = self.handling.parameters
        known = parameters.schema["properties"]
        unknown = [key for key in values if key not in known]
        if unknown:
            names = ", ".join(map(repr, known))
            raise DefinitionError(
                f"tool {self.name!r} has no parameter {unknown[0]!r} to bind; its parameters are {names}"
            )
        try:
            bound = parameters.bind(values)
        except ValueError as error:
            raise DefinitionError(f"tool {self.name!r}: bind: {error}") from None
        bound.check_bound(self.name)
        return self._copy_with(handling=replace(self.handling, parameters=bound))

    def with_adapter(self, adapter: Callable[[Handler], Handler]) -> Tool[P, R_co]:
        """Return a copy with `adapter` applied to the handler, and to every new one."""
        return self._copy_with(adapter=adapter, handling=adapter(self.handling))

    def with_mount(self, mount: object) -> Tool[P, R_co]:
        """Return a copy with the settings of one more runner, outside those of earlier ones."""
        return self._copy_with(mounts=(mount, *self.mounts))

    def with_server(self, server: str) -> Tool[P, R_co]:
        """Return a copy with calls that go to this server, for a source of tools."""
        return self._copy_with(server=server)

    def with_quarantine(self, reason: str) -> Tool[P, R_co]:
        """Return a copy that is never offered and never runs, for this reason."""
        return self._copy_with(quarantine=reason)

    @property
    def fingerprint(self) -> str:
        """A hash of the definition for the model and the version; the same in every run and process."""
        from hashlib import sha256  # loads OpenSSL

        shown = [self.name, self.description, self.input_schema, self.version, *self.examples]
        return sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:32]

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, object, R_co]:
        """Run the tool directly: validate, ask its own guards, keep its limits, and return the raw value.

        Raises:
            TypeError: There are too many positional arguments, or one is given twice.
            ValidationError, GuardError, HandlerError, ToolTimeoutError, ToolError: The call failed. An "ask" is a
                `GuardError` here, as there is nobody to ask.
        """
        from ferrule.runner import call_directly  # by a runner, which imports tools

        return call_directly(self, self.handling.collect_arguments(self.name, args, kwargs))

    def run(
        self,
        arguments: JsonObject | str | None = None,
        context: ToolContext[Any] | None = None,
        **options: Unpack[RunOptions],
    ) -> Coroutine[object, object, ToolResult]:
        """Run the tool by itself through the whole path of a call, and return the result.

        Example: `await some_tool.run({...}, deps=database)`. The arguments are those of `Runner.run`. The tool's own
        guards judge. There is nobody to ask, so an "ask" is denied. The tool's failures raise nothing.
        """
        from ferrule.runner import run_directly

        return run_directly(self, arguments, context, options)

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Tool[P, R_co]: ...
    @overload
    def __get__(
        self: Tool[Concatenate[_Instance, _Rest], R_co], instance: _Instance, owner: type | None = None
    ) -> Tool[_Rest, R_co]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Tool[P, R_co]: ...
    def __get__(self, instance: object, owner: type | None = None) -> Tool:
        """Return the tool bound to `instance`, if it was defined on a method."""
        bind = getattr(self.handler, "__get__", None)
        if instance is None or bind is None or not has_unfilled_self(self.handler):
            return self
        return self.replace(handler=bind(instance, owner))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Tool is frozen: use .replace({name}=…) for a changed copy")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("a Tool is frozen")

    def __copy__(self) -> Tool[P, R_co]:
        return self

    def __deepcopy__(self, memo: object) -> Tool[P, R_co]:
        return self

    def __repr__(self) -> str:
        return f"<Tool {self.name}>"


def _check_name(name: object) -> str:
    """Return a name that is safe in a policy, a log, an address and a file name.

    Raises:
        DefinitionError: The name is not.
    """
    if isinstance(name, str) and len(name) <= 128 and (name.isascii() or not re.search(_UNSEEN_LETTERS, name)):
        parts = re.split("[./:]", name)
        if all(part and part[0] != "-" and f"_{part.replace('-', '_')}".isidentifier() for part in parts):
            return name
    raise DefinitionError(
        "a tool's name is 1 to 128 letters, digits, '_' and '-', in parts between '.', '/' or ':' where it has "
        f"several, not {name!r:.140}; give it another by name="
    )


def to_wire_name(name: str) -> str:
    """Return the name for every provider, `^[A-Za-z_][A-Za-z0-9_-]{0,63}$`; a pure function of the tool's name.

    A name that fits stays the same. Any other gets `_` for each wrong character, and a hash of the whole name, so that
    different names stay different.
    """
    if re.fullmatch(_WIRE, name):
        return name
    from hashlib import sha256

    kept = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    if not re.match(r"[A-Za-z_]", kept):
        kept = f"_{kept}"
    return f"{kept[:55]}_{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def _build_handler(tool: Tool) -> Handler:
    """Return the handler for the form of the tool's definition."""
    handling = _choose_builder(tool.handler, tool.options)(tool.handler, tool.options)
    if inspect.isgeneratorfunction(handling.target):
        raise DefinitionError("it yields: make it an async generator (async def), or return a list")
    wire = set(handling.aliases.values())  # private parameters have their Python name
    properties = handling.parameters.schema.get("properties", ())
    known = {key for key in properties if key not in wire} | handling.aliases.keys()
    if unknown := [key for key in tool.private if key not in known]:
        raise DefinitionError(f"private={unknown!r} names no parameter, field or property")
    return handling


def _choose_builder(handler: object, options: ToolOptions) -> Callable[[Any, ToolOptions], Handler]:
    if isinstance(handler, Tool):
        raise DefinitionError("its handler is a Tool already; use .replace(...) for a changed copy")
    if not callable(handler):
        raise DefinitionError(f"the handler, or execute, must be a function or a ToolHandler class, not {handler!r}")
    if (schema := options.get("input_schema")) is not None:
        return partial(call_interop, "from_args_model" if isinstance(schema, type) else "from_execute")
    if not isinstance(handler, type):
        return from_function
    if issubclass(handler, BaseModel):
        from ferrule.definition.model_class import from_handler_class  # for programs with handler classes

        return from_handler_class
    raise DefinitionError(
        f"the class {handler.__name__} is no ToolHandler; derive it from ferrule.ToolHandler, pass an instance that "
        f"has execute(), or use Toolset.of({handler.__name__}(...)) for its methods"
    )
