"""`ToolContext`: the surroundings of a call, and how any code finds the context of the running call."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol

# TypeVar with a default comes with Python 3.13; Pydantic requires typing_extensions.
from typing_extensions import TypeVar

from ferrule.errors import DefinitionError
from ferrule.values.arguments import FoundPath
from ferrule.values.call import ToolCall
from ferrule.values.content import clean_text
from ferrule.values.frozen import FrozenDict, JsonObject, make_frozen_class
from ferrule.values.input import Answer, InputRequired
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool
    from ferrule.kernel.background import BackgroundJob
    from ferrule.scheduling.clock import Clock
    from ferrule.values.event import Event

Deps = TypeVar("Deps", covariant=True, default=object)
UNSET: Any = type("Unset", (), {"__repr__": lambda self: "<not given>"})()
_EMPTY: Mapping[str, Any] = FrozenDict()


class ContextFields(NamedTuple):
    """The context as plain fields; see `ToolContext`."""

    session: str | None = None
    principal: str | None = None
    working_directory: str | None = None
    deps: Any = None
    metadata: Mapping[str, Any] = _EMPTY
    secrets: Mapping[str, Any] = _EMPTY


class AttemptFacts(Protocol):
    """The present run of the handler, as a context shows it; see the properties of `ToolContext`."""

    runs: int
    answer: Answer | None
    asked: bool
    approved_by: str | None
    refusal: ToolResult | None

    @property
    def chunks(self) -> Sequence[Any]: ...


class RunningCall(Protocol):
    """The call of a context, as the context needs it; the kernel's `LiveCall` implements it."""

    call: ToolCall

    @property
    def attempt(self) -> AttemptFacts: ...

    @property
    def ended(self) -> bool: ...

    @property
    def inside(self) -> bool: ...

    @property
    def parent(self) -> RunningCall | None: ...

    @property
    def context(self) -> ToolContext: ...

    @property
    def tool(self) -> Tool: ...

    @property
    def cancelled(self) -> bool: ...

    @property
    def clock(self) -> Clock | None: ...

    @property
    def may_run_again(self) -> bool: ...

    @property
    def key(self) -> str: ...

    def pause_deadline(self) -> AbstractContextManager[None]: ...

    def announce(self, data: Mapping[str, Any]) -> None: ...

    def remaining(self, *, own: bool) -> float | None: ...

    def run_nested_call(
        self, name: str, arguments: Mapping[str, Any] | str | None, level: int | None
    ) -> Awaitable[ToolResult]: ...

    def find_job(self, ticket: str) -> Awaitable[BackgroundJob | None]: ...

    def ask(self, wanted: InputRequired) -> Awaitable[JsonObject | None]: ...

    def observe(self, observer: Callable[[Event], object]) -> None: ...

    def store_note(self, name: str, text: str) -> None: ...

    def read_note(self, name: str) -> str | None: ...

    def mark_started(self) -> None: ...

    def failure(self, error: BaseException) -> ToolResult: ...


JUDGED_TRAITS = ("read_only", "destructive", "idempotent", "open_world", "parallel")
"""The traits that may depend on the arguments."""


class Traits:
    """The tool of a call, with its traits for the arguments of this call.

    It has the tool's `name`, `description`, `title`, `version`, `tags`, `metadata`, `private`, `hidden`, `preview`,
    `input_schema` and `fingerprint`; `read_only`, `destructive`, `idempotent`, `open_world` and `parallel` as bools;
    and the tool itself as `definition`.
    """

    __slots__ = ("_arguments", "definition")

    def __init__(self, tool: Tool, arguments: Mapping[str, Any]) -> None:
        self.definition = tool
        self._arguments = arguments

    def __getattr__(self, name: str) -> Any:
        if name in JUDGED_TRAITS:
            return self.definition.trait(name, self._arguments)
        if name.startswith("_") or name == "definition":  # while it is copied, there is none
            raise AttributeError(name)
        return getattr(self.definition, name)


class _ContextFields:
    """The slots of a context. A class without `__init__` is filled a third faster (Python 3.13)."""

    __slots__ = ("fields", "level", "running_call")


class ToolContext(_ContextFields, Generic[Deps]):
    """The surroundings of a call; frozen. See docs/dependencies.md.

    Args:
        session: The conversation that this call belongs to.
        principal: The principal on whose behalf it runs.
        working_directory: The start of relative paths; without it, that of the process.
        deps: The dependencies of the handlers: a database, a client.
        metadata: Anything else, for guards, middleware and observers.
        secrets: Values for handlers. They are never shown or recorded.

    Raises:
        DefinitionError: A session or a principal is no text.

    Attributes:
        fields: The arguments, as a named tuple.
        running_call: For the kernel: the call of this context; `None` outside a call.
        level: For the kernel: the depth of the mounted runner in which `run` looks a name up; `None` for the
            innermost.
    """

    __slots__ = ()
    fields: ContextFields
    level: int | None
    running_call: RunningCall | None

    def __init__(
        self,
        *,
        session: str | None = None,
        principal: str | None = None,
        working_directory: str | os.PathLike[str] | None = None,
        deps: Deps = None,  # type: ignore[assignment]
        metadata: Mapping[str, Any] | None = None,
        secrets: Mapping[str, Any] | None = None,
    ) -> None:
        if not (session is None or isinstance(session, str)):
            raise _not_text_error("session", session)
        if not (principal is None or isinstance(principal, str)):
            raise _not_text_error("principal", principal)
        directory = None if working_directory is None else os.fspath(working_directory)
        self.fields = ContextFields(session, principal, directory, deps, metadata or _EMPTY, secrets or _EMPTY)
        self.level = self.running_call = None
        self.__class__ = _FrozenContext

    @property
    def session(self) -> str | None:
        """The conversation that this call belongs to."""
        return self.fields.session

    @property
    def principal(self) -> str | None:
        """On whose behalf it runs."""
        return self.fields.principal

    @property
    def working_directory(self) -> str:
        """The start of relative paths."""
        return self.fields.working_directory or os.getcwd()

    @property
    def deps(self) -> Deps:
        """The dependencies of the handlers."""
        return self.fields.deps  # type: ignore[no-any-return]

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Anything else."""
        return self.fields.metadata

    @property
    def secrets(self) -> Mapping[str, Any]:
        """Values for handlers, which are never shown or recorded."""
        return self.fields.secrets

    def replace(self, **changes: Any) -> ToolContext[Deps]:
        """A changed copy that belongs to no call; `changes` are the constructor's arguments."""
        return ToolContext(**{**self.fields._asdict(), **changes})

    # -- inside a call ------------------------------------------------------------------------------------------------

    @property
    def call(self) -> ToolCall | None:
        """The present call; `None` outside a call."""
        return None if self.running_call is None else self.running_call.call

    @property
    def tool(self) -> Traits:
        """The tool of this call, with its traits.

        Raises:
            AttributeError: The context belongs to no call.
        """
        if self.running_call is None:
            raise AttributeError("context.tool works inside a call, and this context belongs to none")
        return Traits(self.running_call.tool, self.running_call.call.arguments)

    @property
    def paths(self) -> tuple[FoundPath, ...]:
        """The paths in the arguments of this call, for guards.

        These are all `os.PathLike` values and keys, and all texts whose schema has the format `path`, `file-path` or
        `directory-path`. Each has its `place`, such as `("files", 0, "to")`, its `text`, and `is_key`.

        Raises:
            RuntimeError: The context belongs to no call, or its arguments are not validated yet.
        """
        places = None if self.running_call is None else self.running_call.call.arguments.places
        if places is None:
            raise RuntimeError("context.paths works inside a call, once its arguments have been validated")
        return places.paths

    @property
    def runs(self) -> int:
        """How often the handler of this call has been started, which no middleware can say otherwise."""
        return 0 if self.running_call is None else self.running_call.attempt.runs

    @property
    def answer(self) -> Answer | None:
        """The answer to the `InputRequired` that the handler returned; `None` in its first run."""
        return None if self.running_call is None else self.running_call.attempt.answer

    @property
    def approved_by(self) -> str | None:
        """The name of the person who approved this call, from `allow(by=…)` or `resume(…, by=…)`."""
        return None if self.running_call is None else self.running_call.attempt.approved_by

    @property
    def idempotency_key(self) -> str:
        """The idempotency key of this call, for services that take one: 32 hexadecimal digits.

        It is the same for every attempt of the call. If the call has a session, it is also the same when the call
        comes again. See docs/journal.md.

        Raises:
            AttributeError: The context belongs to no call.
        """
        if self.running_call is None:
            raise AttributeError("context.idempotency_key works inside a call, and this context belongs to none")
        return self.running_call.key

    @property
    def asked(self) -> bool:
        """Whether a person was asked about this call or one that it made. The result may depend on the answer."""
        return self.running_call is not None and self.running_call.attempt.asked

    @property
    def inside(self) -> bool:
        """Whether the call has its slot and its deadline: True for middleware `inside`, False for `around`.

        It is True outside a call, for instance in a test of a middleware by itself.
        """
        return self.running_call is None or self.running_call.inside

    def is_refusal(self, result: ToolResult) -> bool:
        """Whether `result` is the runner's own word on this call, that nothing was run: no tool, no middleware and no
        cache had a hand in it, and a copy is none."""
        return self.running_call is not None and self.running_call.attempt.refusal is result

    @property
    def cancelled(self) -> bool:
        """Whether the call is to end: it was cancelled, its deadline has come, or its runner stops it. May be read
        from any thread; a handler in a thread, which nothing can stop, does well to look now and then."""
        return self.running_call is not None and self.running_call.cancelled

    @property
    def clock(self) -> Clock | None:
        """The clock of the runner, for middleware that waits; `None` for the machine's clock and outside a call."""
        return None if self.running_call is None else self.running_call.clock

    @property
    def chunks(self) -> tuple[object, ...]:
        """The values that the handler, an async generator, has yielded so far."""
        return () if self.running_call is None else tuple(self.running_call.attempt.chunks)

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Say how far the work is: `done` of `total`, in any unit. May be called from any thread; costs nothing
        where nobody observes, and says nothing once the call has ended."""
        if self.running_call is not None:
            self.running_call.announce({"done": done, "total": total, "message": clean_text(str(message))})

    def announce(self, data: Mapping[str, Any]) -> None:
        """Emit a `tool:progress` with `data`, for a middleware that has something of its own to say."""
        if self.running_call is not None:
            self.running_call.announce(data)

    def run(self, name: str, arguments: Mapping[str, Any] | str | None = None) -> Awaitable[ToolResult]:
        """Run another tool of the same runner as a child of this call. Guards judge it like any other.

        It does not wait for slots and keys of this call. The handler of a mounted tool calls tools of its own runner;
        so does a guard or a middleware of that runner.

        Raises:
            RuntimeError: The context belongs to no call.
        """
        if self.running_call is None:
            raise RuntimeError("context.run(...) works inside a call; outside, use runner.run(...)")
        return self.running_call.run_nested_call(name, arguments, self.level)

    async def find_job(self, ticket: str) -> BackgroundJob | None:
        """The call in the background of that ticket, where it is of this call's principal and session; with a journal,
        perhaps of another process. See docs/long-work.md#in-the-background.

        Raises:
            RuntimeError: where this context belongs to no call.
            JournalError: where the journal cannot be read.
        """
        if self.running_call is None:
            raise RuntimeError("context.find_job(...) works inside a call; outside, look into runner.jobs")
        return await self.running_call.find_job(ticket)

    def remaining(self, *, own: bool = False) -> float | None:
        """Seconds until the deadline, at least 0: its own or that of a call that it is a child of, whichever is first;
        with `own`, its own alone. `None` where there is no deadline, or before it is counted."""
        return None if self.running_call is None else self.running_call.remaining(own=own)

    async def pause(
        self, seconds: float, sleep: Callable[[float], Awaitable[object]] | None = None, *, timed: bool = True
    ) -> bool:
        """Wait before another attempt. Return False if there may be none.

        There may be none if the tool was disabled, the batch starts nothing more, or the runner is left.

        Args:
            sleep: Waits, instead of the runner's clock.
            timed: Whether the wait counts against the deadline of the call.
        """
        running = self.running_call
        with nullcontext() if timed or running is None else running.pause_deadline():
            await (sleep or (asyncio if self.clock is None else self.clock).sleep)(seconds)
        return running is None or running.may_run_again

    async def ask(self, wanted: InputRequired) -> JsonObject | None:
        """Ask a person while the handler runs, and wait: the object that fits the schema, or `None` where nobody gives
        one, or the handler does not run. The call keeps its slot and its keys meanwhile, and its deadline stands still;
        it cannot be suspended. A handler that can begin anew returns the `InputRequired` instead.

        Raises:
            RuntimeError: where this context belongs to no call.
        """
        if self.running_call is None:
            raise RuntimeError("context.ask(...) works inside a call")
        return await self.running_call.ask(wanted)

    def observe(self, observer: Callable[[Event], object]) -> None:
        """Let `observer` see the events of this call from now on, besides the runner's own observers.

        Middleware learns from them the decision, the start of the handler, and the result as it leaves the runner.
        """
        if self.running_call is not None:
            self.running_call.observe(observer)

    def store_note(self, name: str, text: str) -> None:
        """Keep a text of at most 500 characters with this call, for a middleware in `around`: where the call is
        suspended, its sealed record has it, with stars for what is known to be secret, and `kept` once it is taken up.

        Raises:
            RuntimeError: while the handler runs.
        """
        if self.running_call is not None:
            self.running_call.store_note(name, text)

    def read_note(self, name: str) -> str | None:
        """Return the text that `keep` stored under this name before the call was suspended, or `None`."""
        return None if self.running_call is None else self.running_call.read_note(name)

    def mark_started(self) -> None:
        """Say that the tool may have its effect from now on, for a middleware that runs it elsewhere itself: without a
        result, the call is not known to have done nothing (`executed` is `None`)."""
        if self.running_call is not None:
            self.running_call.mark_started()

    def failure(self, error: BaseException) -> ToolResult:
        """Return the result of this call as if its handler had raised `error`.

        Raises:
            RuntimeError: The context belongs to no call.
            CancelledError: The call was cancelled meanwhile.
        """
        if self.running_call is None:
            raise RuntimeError("context.failure(...) works inside a call")
        return self.running_call.failure(error)

    def __repr__(self) -> str:
        return f"<ToolContext session={self.session!r} principal={self.principal!r} call={self.call!r}>"


def _not_text_error(name: str, given: object) -> DefinitionError:
    """Records and journals keep it as JSON, and it is compared with what they give back."""
    return DefinitionError(f"{name} must be a text, or None, not {given!r}: of a number that is an id, give str(id)")


def find_running_call() -> RunningCall | None:
    """Return the call whose handler runs the present code; ended calls are skipped."""
    call = CURRENT.get()
    while call is not None and call.ended:
        call = call.parent
    return call


_FrozenContext = make_frozen_class(ToolContext)
NO_CONTEXT: ToolContext = ToolContext()
CURRENT: ContextVar[RunningCall | None] = ContextVar("ferrule.current", default=None)
"""The call that the running code belongs to, or belonged to: read it by `find_running_call()`."""


def make_context(fields: ContextFields, call: RunningCall | None, level: int | None = None) -> ToolContext:
    """The context of a call, as the constructor makes it."""
    context: Any = _ContextFields()
    context.fields = fields
    context.level = level
    context.running_call = call
    context.__class__ = _FrozenContext
    return context  # type: ignore[no-any-return]


class _ToolOwnContext:
    """`CONTEXT.get()`: the `context=` of the running tool; an empty mapping if it has none.

    It works in helpers that get no arguments, also in threads.
    """

    def get(self) -> Any:
        call = find_running_call()
        own = UNSET if call is None else call.tool.context
        return _EMPTY if own is UNSET else own


CONTEXT = _ToolOwnContext()
"""The `context=` of the running tool. See docs/dependencies.md."""
