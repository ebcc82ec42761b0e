"""`Tool`: everything that a developer can write ends as one of these; frozen."""

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

from ferrule.definition.forms import of_others
from ferrule.definition.function import from_function
from ferrule.definition.handler import Handler
from ferrule.definition.model_class import from_handler_class
from ferrule.definition.options import (
    KEPT,
    MAKES_HANDLER,
    OPTIONS,
    Preview,
    Resources,
    RunOptions,
    ToolOptions,
    Trait,
    refuse_unknown,
)
from ferrule.definition.output import TICKET_OUTPUT, Output
from ferrule.definition.signature import unfilled_self
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
# A text and not `re.compile`: to compile it takes half a millisecond, and most names are ASCII.
_UNSEEN_LETTERS = "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
"""What Python takes in an identifier and nobody sees."""


class Tool(Generic[P, R_co]):
    """One tool: name, description, input schema, handler, and what it does to the world. See docs/forms.md.

    Unmarked means "changes things, runs alone". `await some_tool(...)` validates, asks the tool's own guards,
    keeps its concurrency and deadline, runs, and returns the raw value. `Tool[P, R]` has the parameters of the handler,
    without the context, and the type of what it returns; plain `Tool` is any of them.

    Args:
        name: As guards, records and policies see it; unique in a toolset.
        handler: A sync or async function or bound method, or a handler class.
        description: For the model; from the docstring where it is left out.
        guards: The tool's own guards, asked together with the runner's.
        ask: Whether a person is asked about every call, as a guard's `ask(…)` does: `True`, or the reason as a text.
        around: Middleware round the call as the model made it, inside the runner's.
        inside: Middleware round the run itself, inside the runner's.
        concurrency: How many calls may run at once, shared by all copies and runners.
        timeout: Seconds that a call may take, from when it has its slot.
        idle_timeout: Seconds that a call may take without progress. Progress extends it, up to `timeout`.
        max_input: Characters of JSON that are read as its arguments, instead of the runner's; `None` for no limit.
        context: What `CONTEXT.get()` gives inside the handler.
        unknown: `"refuse"` arguments that are not declared, or `"drop"` them, recorded.
        read_only, destructive, idempotent, open_world: MCP's annotations, with MCP's meanings.
        parallel: Whether it may run beside others; what `read_only` says where it is left out.
        resources: The keys that a call locks, a function of its arguments.
        reconcile: What came of a call whose outcome is unknown: a function of the call and its context that returns its
            `ToolResult`, `False` if it did not happen, or `None` if that is not known. See docs/journal.md.
        background: Whether a call ends at once with a ticket, once it is approved, and its work goes on as a call of
            its own; not where the tool is called by itself. See docs/long-work.md#in-the-background.
        private: Parameters that the model neither sees nor fills.
        preview: What a call would do, a function of its arguments that gives a text or a `Diff`: shown by who asks a
            person. A `ToolError` that it raises says that the call cannot work: then nobody is asked.
        isolation: `"process"` for a handler that runs in a process of its own, which is killed with all that it has
            started at the deadline; it must be importable. Or an object that says where it runs, by `executor(tool)`.
        transfer: How arguments and results cross to there: as `"json"`, or by `"pickle"`.
        expose: Kinds of exceptions whose text the model may see, instead of the runner's.
        server: What serves its calls elsewhere, such as an address or a digest of it: where that is another one, no
            suspended call is resumed.
        examples: Arguments of calls as a model should make them, for the APIs that take examples.
        provider: What goes into the definition for one API alone, by the provider module's name, such as
            `{"anthropic": {"eager_input_streaming": True}}`.
        args_model: The model of the arguments, for a handler that takes them as one object.
        input_schema: A JSON Schema, for a handler that takes a payload.
        output_schema: A JSON Schema of what the handler returns; from the return type where it is left out.

    Raises:
        DefinitionError: for whatever could not work, saying what to change.
    """

    name: str
    """As guards, records and policies see it."""
    wire_name: str
    """As every provider takes it; a pure function of `name`."""
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
    max_input: Any
    context: Any
    unknown: Literal["refuse", "drop"]
    read_only: Trait
    destructive: Trait
    idempotent: Trait
    open_world: Trait
    parallel: Trait
    resources: Resources | None
    reconcile: Reconcile | None
    background: bool
    preview: Preview | None
    private: tuple[str, ...]
    isolation: Literal["process"] | Isolation | None
    transfer: Literal["json", "pickle"]
    expose: tuple[type[BaseException], ...] | None
    tags: tuple[str, ...]
    title: str | None
    version: str | None
    server: str | None
    examples: tuple[FrozenDict, ...]
    provider: FrozenDict
    metadata: FrozenDict

    # For the kernel, and for what makes tools of tools:
    options: ToolOptions
    """What the developer gave, as it is kept."""
    handling: Handler
    """How the handler is called, and what it takes."""
    output: Output
    """What the handler returns: its schema, and the check of it."""
    limiter: Limiter | None
    """The slots of `concurrency`, which copies share."""
    mounts: tuple[Any, ...]
    """The runners that it is mounted from, as `Runner.as_tools` noted them, the outermost first."""
    adapt: Callable[[Handler], Handler] | None
    """What was done to its handler, and is done again wherever the handler is made anew."""
    quarantine: str | None
    """Why it is offered to nobody and never runs, as `Toolset.locked` found; copies have it too."""
    in_this_thread: local
    """Where the runner keeps what `await some_tool(...)` runs on."""

    def __init__(
        self: Tool[..., Any],
        name: str,
        handler: Callable[..., object] | None = None,
        **options: Unpack[ToolOptions],
    ) -> None:
        refuse_unknown(options, OPTIONS, f"tool {name!r}")
        vars(self).update(handler=handler, options={}, adapt=None, limiter=None, mounts=(), in_this_thread=local())
        vars(self).update(quarantine=None)
        self._define(name, options, anew=True)

    @property
    def input_schema(self) -> FrozenDict:
        """What the model is shown; read-only (`copy.deepcopy` gives a plain dict)."""
        return self.handling.parameters.exported

    @property
    def hidden(self) -> frozenset[str]:
        """The parameters that no model sees or fills: what is private, and what is bound."""
        return self.handling.parameters.hidden

    @property
    def output_schema(self) -> FrozenDict | None:
        """The JSON Schema of what a call gives: what the handler returns, or a ticket; `None` where nothing is known
        of it."""
        return (TICKET_OUTPUT if self.background else self.output).schema

    def trait(self, name: str, arguments: JsonObject) -> bool:
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

    @overload
    def replace(self, *, name: str = ..., **changes: Unpack[ToolOptions]) -> Tool[P, R_co]: ...
    @overload
    def replace(self, *, handler: Callable[..., object], name: str = ..., **changes: Unpack[ToolOptions]) -> Tool: ...
    def replace(self, **changes: Any) -> Tool:
        """A changed copy; `changes` are the constructor's arguments. Copies share their concurrency limit, unless it
        is what is changed.

        Raises:
            DefinitionError: as the constructor does.
        """
        refuse_unknown(changes, ("name", "handler", *OPTIONS), f"tool {self.name!r}: replace")
        name, handler = changes.pop("name", self.name), changes.pop("handler", self.handler)
        made: Tool = self._copied(handler=handler)
        if handler is self.handler and MAKES_HANDLER.isdisjoint(changes):
            made._define(name, changes, anew=False)
            return made
        made._define(name, {"description": self.description, **changes}, anew=True)
        bound = self.handling.parameters.bound
        return made.bind(**thaw(bound)) if bound else made

    def _copied(self, **changes: object) -> Tool[P, R_co]:
        """A copy that differs in these attributes; its direct calls have runners of their own."""
        copy = cast("Tool[P, R_co]", object.__new__(Tool))
        vars(copy).update({**vars(self), "in_this_thread": local(), **changes})
        return copy

    def _define(self: Any, name: str, changes: JsonObject, *, anew: bool) -> None:
        """Check the changes, keep all options as they are then, and fill what was left out: the description, and the
        traits that follow `read_only`. The handler is made `anew`, or still there."""
        vars(self).update(name=_checked_name(name), wire_name=wire_name(name))
        try:
            vars(self)["options"] = {**self.options, **{key: OPTIONS[key].check(key, changes[key]) for key in changes}}
            vars(self).update({key: self.options.get(key, default) for key, default in KEPT.items()})
            if anew:
                handling = _handling(self)
                output = Output(handling.returns, self.options.get("output_schema"))
                vars(self).update(handling=handling if self.adapt is None else self.adapt(handling), output=output)
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
        """A copy in which these arguments are fixed and hidden from the model.

        Raises:
            DefinitionError: for a parameter that the tool does not have, or a value that does not fit.
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
            bound = parameters.with_bound(values)
        except ValueError as error:
            raise DefinitionError(f"tool {self.name!r}: bind: {error}") from None
        bound.check_bound(self.name)
        return self._copied(handling=replace(self.handling, parameters=bound))

    def adapted(self, adapt: Callable[[Handler], Handler]) -> Tool[P, R_co]:
        """A copy whose handler is what `adapt` makes of it, now and wherever it is made anew."""
        return self._copied(adapt=adapt, handling=adapt(self.handling))

    def mounted(self, mount: object) -> Tool[P, R_co]:
        """A copy that carries the settings of a runner with it, outside those that it carries already."""
        return self._copied(mounts=(mount, *self.mounts))

    def quarantined(self, why: str) -> Tool[P, R_co]:
        """A copy that is offered to nobody and never runs, for that reason."""
        return self._copied(quarantine=why)

    @property
    def fingerprint(self) -> str:
        """A hash of what a model is shown, and of the version; the same in every run and process."""
        from hashlib import sha256  # loads OpenSSL

        shown = [self.name, self.description, self.input_schema, self.version, *self.examples]
        return sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:32]

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, object, R_co]:
        """Run it directly: validated, judged by its own guards, within its limits; the raw value.

        Raises:
            TypeError: for more arguments by position than the handler takes, or one that is given twice.
            ValidationError, GuardError, HandlerError, ToolTimeoutError, ToolError: as the names say. An "ask" is a
                `GuardError` here, as there is nobody to ask.
        """
        from ferrule.direct_calls import call_directly  # by a runner, which imports tools

        return call_directly(self, self.handling.arguments(self.name, args, kwargs))

    def run(
        self,
        arguments: JsonObject | str | None = None,
        context: ToolContext[Any] | None = None,
        **options: Unpack[RunOptions],
    ) -> Coroutine[object, object, ToolResult]:
        """Run it by itself, the whole way of a call, for its result: `await some_tool.run({...}, deps=database)`.

        It takes what `Runner.run` takes. Its own guards judge; nobody is there to ask, so an "ask" is denied. It never
        raises for what the tool does.
        """
        from ferrule.direct_calls import run_directly

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
        """The tool bound to `instance`, where it was defined on a method."""
        bind = getattr(self.handler, "__get__", None)
        if instance is None or bind is None or not unfilled_self(self.handler):
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


def _checked_name(name: object) -> str:
    """A name that can be told from others, and be written in a policy, a log, an address and the name of a file."""
    if isinstance(name, str) and len(name) <= 128 and (name.isascii() or not re.search(_UNSEEN_LETTERS, name)):
        parts = re.split("[./:]", name)
        if all(part and part[0] != "-" and f"_{part.replace('-', '_')}".isidentifier() for part in parts):
            return name
    raise DefinitionError(
        "a tool's name is 1 to 128 letters, digits, '_' and '-', in parts between '.', '/' or ':' where it has "
        f"several, not {name!r:.140}; give it another by name="
    )


def wire_name(name: str) -> str:
    """The name that every provider takes, `^[A-Za-z_][A-Za-z0-9_-]{0,63}$`; a pure function of the tool's name.

    A name that fits already stays; another keeps what fits and gets a hash of the whole, so that two names which
    differ only in what does not fit stay two.
    """
    if re.fullmatch(_WIRE, name):
        return name
    from hashlib import sha256

    kept = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    if not re.match(r"[A-Za-z_]", kept):
        kept = f"_{kept}"
    return f"{kept[:55]}_{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def _handling(tool: Tool) -> Handler:
    """How the tool's handler is called, by the way in which it was written."""
    if tool.isolation is None and tool.transfer != "json":
        raise DefinitionError(f"transfer={tool.transfer!r} is for a tool with isolation='process'")
    handling = _maker(tool.handler, tool.options)(tool.handler, tool.options)
    if inspect.isgeneratorfunction(handling.runs):
        raise DefinitionError("it yields: make it an async generator (async def), or return a list")
    wire = set(handling.aliases.values())  # what is private goes by its name in Python
    properties = handling.parameters.schema.get("properties", ())
    known = {key for key in properties if key not in wire} | handling.aliases.keys()
    if unknown := [key for key in tool.private if key not in known]:
        raise DefinitionError(f"private={unknown!r} names no parameter, field or property")
    return handling


def _maker(handler: object, options: ToolOptions) -> Callable[[Any, ToolOptions], Handler]:
    if isinstance(handler, Tool):
        raise DefinitionError("its handler is a Tool already; use .replace(...) for a changed copy")
    if not callable(handler):
        raise DefinitionError(f"the handler, or execute, must be a function or a ToolHandler class, not {handler!r}")
    if options.get("args_model") is not None:
        return partial(of_others, "from_args_model")
    if options.get("input_schema") is not None:
        return partial(of_others, "from_execute")
    if not isinstance(handler, type):
        return from_function
    if issubclass(handler, BaseModel):
        return from_handler_class
    raise DefinitionError(
        f"the class {handler.__name__} is no ToolHandler; derive it from ferrule.ToolHandler, pass an instance that "
        f"has execute(), or use Toolset.of({handler.__name__}(...)) for its methods"
    )
