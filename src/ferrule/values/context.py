"""`ToolContext`: the surroundings of a call. `find_running_call` finds the call of the running code."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol

# Before Python 3.13, `typing.TypeVar` takes no default.
from typing_extensions import TypeVar

from ferrule.errors import DefinitionError
from ferrule.values.arguments import FoundPath
from ferrule.values.call import ToolCall
from ferrule.values.content import clean_text
from ferrule.values.frozen import FrozenDict, JsonObject, make_frozen_class
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool
    from ferrule.kernel.background import BackgroundJob
    from ferrule.scheduling.clock import Clock
    from ferrule.values.event import Event
    from ferrule.values.input import Answer, InputRequired

Deps = TypeVar("Deps", covariant=True, default=object)
UNSET: Any = type("Unset", (), {"__repr__": lambda self: "<not given>"})()
_EMPTY: Mapping[str, Any] = FrozenDict()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ContextFields:
    """The context as plain fields; see `ToolContext`."""

    session: str | None = None
    principal: str | None = None
    working_directory: str | None = None
    deps: Any = None
    metadata: Mapping[str, Any] = field(default_factory=FrozenDict)
    secrets: Mapping[str, Any] = field(default_factory=FrozenDict)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {name: getattr(self, name) for name in self.__slots__}


class AttemptFacts(Protocol):
    """The present run of the handler; see the properties of `ToolContext`."""

    runs: int
    answer: Answer | None
    asked: bool
    answered_by: str | None
    refusal: ToolResult | None

    @property
    def chunks(self) -> Sequence[Any]: ...


class RunningCall(Protocol):
    """The call of a context; see the methods of `ToolContext`. The kernel's `LiveCall` implements it."""

    call: ToolCall
    run_id: float | str

    @property
    def attempt(self) -> AttemptFacts: ...

    @property
    def ended(self) -> bool: ...

    @property
    def holds_slots(self) -> bool: ...

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
    def is_trial(self) -> bool: ...

    @property
    def is_job(self) -> bool: ...

    @property
    def may_run_again(self) -> bool: ...

    @property
    def call_key(self) -> str: ...

    def pause_deadline(self) -> AbstractContextManager[None]: ...

    def announce(self, data: Mapping[str, Any]) -> None: ...

    def remaining(self, *, own: bool) -> float | None: ...

    def run_nested_call(
        self, name: str, arguments: Mapping[str, Any] | str | None, level: int | None, id: str | None
    ) -> Awaitable[ToolResult]: ...

    def find_job(self, ticket: str) -> Awaitable[BackgroundJob | None]: ...

    def ask(self, question: InputRequired) -> Awaitable[JsonObject | None]: ...

    def observe(self, observer: Callable[[Event], object]) -> None: ...

    def store_note(self, name: str, text: str) -> None: ...

    def read_note(self, name: str) -> str | None: ...

    def mark_started(self) -> None: ...

    def failure(self, error: BaseException) -> ToolResult: ...


JUDGED_TRAITS = ("read_only", "destructive", "idempotent", "open_world", "sandboxed", "parallel")
"""The traits whose value may depend on the arguments."""


class Traits:
    """The tool of a call, with its traits for the arguments of this call.

    It has the tool's `name`, `description`, `title`, `version`, `tags`, `metadata`, `private`, `hidden`, `preview`,
    `input_schema` and `fingerprint`; `read_only`, `destructive`, `idempotent`, `open_world`, `sandboxed` and `parallel`
    as bools; and the tool itself as `definition`.
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


class ToolContext(Generic[Deps]):
    """The surroundings of a call; frozen. See docs/dependencies.md.

    Args:
        session: The conversation of this call.
        principal: The principal on whose behalf it runs.
        working_directory: The start of relative paths; by default, the directory of the process.
        deps: The dependencies of the handlers: a database, a client.
        metadata: Anything else, for guards, middleware and observers.
        secrets: Values for handlers. Errors and the log have stars in their place, and so do results with `redact()`.

    Raises:
        DefinitionError: A session or a principal is not a text.

    Attributes:
        fields: The arguments as one value.
        running_call: For the kernel: the call of this context; `None` outside a call.
        level: For the kernel: the depth of the mounted runner whose tools `run` calls; `None` for the innermost.
    """

    __slots__ = ("fields", "level", "running_call")
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
        for name, value in (("session", session), ("principal", principal)):
            if not (value is None or isinstance(value, str)):  # records and journals compare it as JSON
                raise DefinitionError(f"{name} must be a text, or None, not {value!r}: for a number, give str(id)")
        directory = None if working_directory is None else os.fspath(working_directory)
        self.fields = ContextFields(session, principal, directory, deps, metadata or _EMPTY, secrets or _EMPTY)
        self.level = self.running_call = None
        self.__class__ = _FrozenContext

    @property
    def session(self) -> str | None:
        """The conversation of this call."""
        return self.fields.session

    @property
    def principal(self) -> str | None:
        """The principal on whose behalf it runs."""
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
        """Anything else, for guards, middleware and observers."""
        return self.fields.metadata

    @property
    def secrets(self) -> Mapping[str, Any]:
        """Values for handlers. Errors and the log have stars in their place, and so do results with `redact()`."""
        return self.fields.secrets

    def replace(self, **changes: Any) -> ToolContext[Deps]:
        """Return a changed copy without a call; `changes` are the constructor's arguments."""
        return ToolContext(**{**self.fields.to_dict(), **changes})

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

        These are all `os.PathLike` values and keys, and all texts with the format `path`, `file-path` or
        `directory-path` in their schema. Each has its `place`, such as `("files", 0, "to")`, its `text`, and `is_key`.

        Raises:
            RuntimeError: The context belongs to no call, or its arguments are not validated yet.
        """
        places = None if self.running_call is None else self.running_call.call.arguments.places
        if places is None:
            raise RuntimeError("context.paths works inside a call, once its arguments have been validated")
        return places.paths

    @property
    def runs(self) -> int:
        """The number of times that the handler of this call has started, since it arrived or was last resumed."""
        return 0 if self.running_call is None else self.running_call.attempt.runs

    @property
    def answer(self) -> Answer | None:
        """The answer to the handler's `InputRequired`; `None` in its first run."""
        return None if self.running_call is None else self.running_call.attempt.answer

    @property
    def answered_by(self) -> str | None:
        """The name of the person who answered the question about this call, from `allow(by=…)` or `resume(…, by=…)`."""
        return None if self.running_call is None else self.running_call.attempt.answered_by

    @property
    def idempotency_key(self) -> str:
        """The idempotency key of this call, for services that take one: 32 hexadecimal digits.

        It is the same for every attempt of the call. If the call has a session, it is also the same if the call is sent
        again. See docs/journal.md.

        Raises:
            AttributeError: The context belongs to no call.
        """
        if self.running_call is None:
            raise AttributeError("context.idempotency_key works inside a call, and this context belongs to none")
        return self.running_call.call_key

    @property
    def asked(self) -> bool:
        """Whether a person was asked about this call or a nested one. The result may depend on the answer."""
        return self.running_call is not None and self.running_call.attempt.asked

    @property
    def inside(self) -> bool:
        """Whether the call has its slot and its deadline: True for middleware `inside`, False for `around`.

        It is True outside a call, for instance in a test of a middleware by itself.
        """
        return self.running_call is None or self.running_call.holds_slots

    def is_refusal(self, result: ToolResult) -> bool:
        """Return whether the runner itself made `result` because nothing was run.

        It is False for a result of a tool, a middleware or a cache, and for a copy.
        """
        return self.running_call is not None and self.running_call.attempt.refusal is result

    @property
    def cancelled(self) -> bool:
        """Whether the call should end: it was cancelled, its deadline has passed, or its runner stops it.

        Any thread may read it. Nothing can stop a handler in a thread, so it should look now and then.
        """
        return self.running_call is not None and self.running_call.cancelled

    @property
    def clock(self) -> Clock | None:
        """The clock of the runner, for guards and middleware that read the time or wait; `None` outside a call."""
        return None if self.running_call is None else self.running_call.clock

    @property
    def is_trial(self) -> bool:
        """Whether nothing runs, whatever the guards decide: in `runner.decide` and `runner.explain`, and outside a
        call. A guard that counts calls does not count this one.
        """
        return self.running_call is None or self.running_call.is_trial

    @property
    def chunks(self) -> tuple[object, ...]:
        """The values yielded so far by a handler that is an async generator."""
        return () if self.running_call is None else tuple(self.running_call.attempt.chunks)

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Report that `done` of `total` is done, in any unit.

        Any thread may call this. After the end of the call it does nothing.
        """
        if self.running_call is not None:
            self.running_call.announce({"done": done, "total": total, "message": clean_text(str(message))})

    def announce(self, data: Mapping[str, Any]) -> None:
        """Emit a `tool:progress` with `data`, for middleware with facts of its own."""
        if self.running_call is not None:
            self.running_call.announce(data)

    def run(
        self, name: str, arguments: Mapping[str, Any] | str | None = None, *, id: str | None = None
    ) -> Awaitable[ToolResult]:
        """Run another tool of the same runner as a child of this call. Guards judge it like any other.

        It does not wait for slots and keys of this call. The handler, guards and middleware of a mounted tool call the
        tools of its own runner.

        Args:
            id: Names the nested call within this one, such as `"2"`. With it, the nested call is the same one if this
                call runs again: the journal gives its result, and a suspended one goes on with its answer.

        Raises:
            RuntimeError: The context belongs to no call.
            DefinitionError: A `recorded` tool gives no `id` to a call that changes something.
        """
        if self.running_call is None:
            raise RuntimeError("context.run(...) works inside a call; outside, use runner.run(...)")
        return self.running_call.run_nested_call(name, arguments, self.level, id)

    async def find_job(self, ticket: str) -> BackgroundJob | None:
        """Return the background job with this ticket, if it has this call's principal and session.

        With a journal, it may run in another process. See docs/long-work.md#in-the-background.

        Raises:
            RuntimeError: The context belongs to no call.
            JournalError: The journal cannot be read.
        """
        if self.running_call is None:
            raise RuntimeError("context.find_job(...) works inside a call; outside, look into runner.jobs")
        return await self.running_call.find_job(ticket)

    def remaining(self, *, own: bool = False) -> float | None:
        """Return the seconds until the deadline, at least 0; `None` without one, or before it has started.

        The deadline of a call above counts if it is earlier. With `own`, return `None` then.
        """
        return None if self.running_call is None else self.running_call.remaining(own=own)

    async def pause(
        self, seconds: float, sleep: Callable[[float], Awaitable[object]] | None = None, *, timed: bool = True
    ) -> bool:
        """Wait before another attempt. Return False if there may be none.

        There may be none if the batch starts nothing more, or the runner closes.

        Args:
            sleep: Waits in place of the runner's clock.
            timed: Whether the wait counts against the deadline of the call.
        """
        running = self.running_call
        with nullcontext() if timed or running is None else running.pause_deadline():
            await (sleep or (asyncio if self.clock is None else self.clock).sleep)(seconds)
        return running is None or running.may_run_again

    async def ask(self, question: InputRequired) -> JsonObject | None:
        """Ask a person while the handler runs. Return the answer, an object that fits the schema.

        Return `None` if nobody answers, or if the handler does not run. The call keeps its slot and keys meanwhile, and
        its deadline is paused; it cannot be suspended. If your handler can start again, return the `InputRequired`.

        Raises:
            RuntimeError: The context belongs to no call.
        """
        if self.running_call is None:
            raise RuntimeError("context.ask(...) works inside a call")
        return await self.running_call.ask(question)

    def observe(self, observer: Callable[[Event], object]) -> None:
        """Add an observer for the further events of this call.

        These tell middleware the decision, the start of the handler, and the result as it leaves the runner.
        """
        if self.running_call is not None:
            self.running_call.observe(observer)

    def store_note(self, name: str, text: str) -> None:
        """Store a text of at most 500 characters with this call, for middleware in `around`.

        If the call is suspended, its sealed record has the text, with stars for known secrets. After it is resumed,
        `read_note` returns it.

        Raises:
            RuntimeError: The handler runs.
        """
        if self.running_call is not None:
            self.running_call.store_note(name, text)

    def read_note(self, name: str) -> str | None:
        """Return the text stored under this name before the call was suspended, or `None`."""
        return None if self.running_call is None else self.running_call.read_note(name)

    def mark_started(self) -> None:
        """Report that the tool may have its effect from now on, for middleware that runs it elsewhere.

        Without a result, `executed` is then `None`: nobody knows whether the call had its effect.
        """
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


def find_running_call() -> RunningCall | None:
    """Return the call whose handler runs the present code, or `None`. Ended calls are skipped."""
    call = CURRENT.get()
    while call is not None and call.ended:
        call = call.parent
    return call


_FrozenContext = make_frozen_class(ToolContext)
_new_context = ToolContext.__new__
NO_CONTEXT: ToolContext = ToolContext()
CURRENT: ContextVar[RunningCall | None] = ContextVar("ferrule.current", default=None)
"""The call of the running code, perhaps ended. `find_running_call` reads it."""
get_current: Callable[[], Any] = CURRENT.get  # Python looks a method up anew in each module that imports its object
set_current: Callable[[Any], object] = CURRENT.set


def make_context(fields: ContextFields, call: RunningCall | None, level: int | None = None) -> ToolContext:
    """Return the context of a call. It is made faster than by the constructor."""
    context: Any = _new_context(ToolContext)
    context.fields = fields
    context.level = level
    context.running_call = call
    context.__class__ = _FrozenContext
    return context  # type: ignore[no-any-return]


class _ToolOwnContext:
    """The type of `CONTEXT`. It works in helpers without arguments, also in threads."""

    def get(self) -> Any:
        """Return the `context=` of the running tool; an empty mapping if it has none."""
        call = find_running_call()
        own = UNSET if call is None else call.tool.context
        return _EMPTY if own is UNSET else own


CONTEXT = _ToolOwnContext()
"""The `context=` of the running tool. See docs/dependencies.md."""
