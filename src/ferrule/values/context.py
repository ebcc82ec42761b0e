"""What a run may use besides its arguments, and how code that was not handed it finds it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Mapping
from contextvars import ContextVar
from typing import Any, Generic

# TypeVar with a default comes with Python 3.13; Pydantic requires typing_extensions.
from typing_extensions import TypeVar

from ferrule.values.call import ToolCall
from ferrule.values.content import clean
from ferrule.values.frozen import FrozenDict, frozen
from ferrule.values.result import ToolResult

Deps = TypeVar("Deps", default=Any)
UNSET: Any = type("Unset", (), {"__repr__": lambda self: "<not given>"})()
_EMPTY: Mapping[str, Any] = FrozenDict()


class Traits:
    """What the tool of a call is and does, for the arguments of that very call.

    It has the tool's `name`, `description`, `title`, `tags`, `metadata`, `private`, `input_schema` and `fingerprint`,
    and `read_only`,
    `destructive`, `idempotent`, `open_world` and `parallel` as bools.
    """

    __slots__ = ("_arguments", "_tool")

    def __init__(self, tool: Any, arguments: Mapping[str, Any]) -> None:
        self._tool = tool
        self._arguments = arguments

    def __getattr__(self, name: str) -> Any:
        if name in {"read_only", "destructive", "idempotent", "open_world", "parallel"}:
            return self._tool.trait(name, self._arguments)
        if name in {"name", "description", "title", "tags", "metadata", "private", "input_schema", "fingerprint"}:
            return getattr(self._tool, name)
        raise AttributeError(f"a tool's traits have no {name!r}")


class CallState:
    """What the kernel keeps of one call while it runs; a `ToolContext` is the part that others see.

    Attributes:
        given: The fields of the context that the caller gave.
        plan: The compiled tool.
        sent: The call as the model made it.
        call: The call under the tool's own name; once judged, with the judged arguments.
        parent: The state of the call whose handler made this one.
        observers: Who sees its events.
        cancels: How often the task that the call runs in had been cancelled before.
        started: When the call arrived, by `perf_counter`.
        task: The task that the call runs in.
        values: What the handler gets; `None` once it has them.
        executed: Whether the handler was started (`None`) and has ended (`True`).
        runs: How often it was started, which no middleware can say otherwise.
        ended: Whether the call has.
        made: The result that the kernel made, which nobody else has.
        repairs: What was repaired, in words.
        timeout: The call's own time-out in seconds.
        deadline: In the loop's time.
        held: The keys and slots that it runs with.
        entered: Whether a middleware's `next` is under way.
        left: What still runs after it was given up.
        cut: What the handler made of a cancellation from outside.
        resumed: The answer to a suspended call.
        waiter: Who waits for the handler's own task to end.
        beside: Whether its batch lets it run beside others because of its arguments.
        pieces: What the handler has yielded so far.
        halt: The answer with which the runner has stopped it from outside.
        stopping: Whether its batch starts nothing more.
        pausing: What to wake it by where it waits between two runs of its handler, and there is to be no other.
        loans: The slots that it lends to its children, one of each limiter.
        taken_back: Whether the cancellation by which it did so has been taken back.
    """

    __slots__ = (
        "__dict__",  # for what few calls need, which costs nothing until it is set
        "_context",
        "call",
        "cancels",
        "deadline",
        "ended",
        "executed",
        "given",
        "held",
        "made",
        "observers",
        "parent",
        "plan",
        "repairs",
        "runs",
        "sent",
        "started",
        "task",
        "values",
        "waiter",
    )

    given: tuple[Any, ...]
    plan: Any
    sent: ToolCall
    call: ToolCall
    parent: CallState | None
    observers: tuple[Any, ...]
    cancels: int
    started: float
    task: Any
    values: Any
    executed: bool | None
    runs: int
    ended: bool
    made: ToolResult | None
    repairs: tuple[str, ...]
    held: Any
    deadline: float | None
    waiter: Any
    _context: ToolContext[Any] | None

    timeout: float | None = None
    entered: bool = False
    left: tuple[Any, ...] = ()
    cut: BaseException | None = None
    resumed: Any = None
    beside: bool = False
    pieces: tuple[Any, ...] | list[Any] = ()
    halt: Any = None
    taken_back: bool = False
    loans: Any = ()
    stopping: bool = False
    pausing: Any = None

    def cancelled_in(self, task: Any) -> bool:
        """Whether `task`, the call's or its handler's own, was cancelled since the call began."""
        return task is not None and task.cancelling() > (self.cancels if task is self.task else 0)

    def take_back_start(self) -> None:
        """The handler was not started after all; earlier runs of it count still."""
        self.runs -= 1
        self.executed = None if self.runs else False

    @property
    def context(self) -> ToolContext[Any]:
        """What guards, middleware and the handler see of it; made when somebody wants it."""
        context = self._context
        if context is None:
            context = object.__new__(ToolContext)
            context._given = self.given
            context._state = self
            context.__class__ = _FrozenContext
            self._context = context
        return context


class ToolContext(Generic[Deps]):
    """What a run may use besides its arguments; frozen.

    Args:
        session: The conversation that this call belongs to.
        principal: On whose behalf it runs.
        working_directory: Where relative paths start; the process's own where it is left out.
        deps: Whatever the handlers need: a database, a client.
        metadata: Anything else, for guards, middleware and observers.
        secrets: Values for handlers, which are never shown or recorded.
    """

    __slots__ = ("_given", "_state")

    def __init__(
        self,
        session: str | None = None,
        principal: str | None = None,
        working_directory: str | os.PathLike[str] | None = None,
        deps: Deps = None,  # type: ignore[assignment]
        metadata: Mapping[str, Any] | None = None,
        secrets: Mapping[str, Any] | None = None,
    ) -> None:
        directory = None if working_directory is None else os.fspath(working_directory)
        self._given: tuple[Any, ...] = (session, principal, directory, deps, metadata or _EMPTY, secrets or _EMPTY)
        self._state: CallState | None = None
        self.__class__ = _FrozenContext

    @property
    def session(self) -> str | None:
        """The conversation that this call belongs to."""
        return self._given[0]  # type: ignore[no-any-return]

    @property
    def principal(self) -> str | None:
        """On whose behalf it runs."""
        return self._given[1]  # type: ignore[no-any-return]

    @property
    def working_directory(self) -> str:
        """Where relative paths start."""
        return self._given[2] or os.getcwd()

    @property
    def deps(self) -> Deps:
        """Whatever the handlers need."""
        return self._given[3]  # type: ignore[no-any-return]

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Anything else."""
        return self._given[4]  # type: ignore[no-any-return]

    @property
    def secrets(self) -> Mapping[str, Any]:
        """Values for handlers, which are never shown or recorded."""
        return self._given[5]  # type: ignore[no-any-return]

    @property
    def call(self) -> ToolCall | None:
        """The call that is being judged or run; `None` where the context belongs to no call."""
        return None if self._state is None else self._state.call

    @property
    def tool(self) -> Traits | None:
        """What the tool of this call is and does; `None` where the context belongs to no call."""
        state = self._state
        return None if state is None else Traits(state.plan.tool, state.call.arguments)

    def replace(self, **changes: Any) -> ToolContext[Deps]:
        """A changed copy that belongs to no call; `changes` are the constructor's arguments."""
        names = ("session", "principal", "working_directory", "deps", "metadata", "secrets")
        return ToolContext(**{**dict(zip(names, self._given, strict=True)), **changes})

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Say how far the work is: `done` of `total`, in any unit. May be called from any thread; costs nothing
        where nobody observes, and says nothing once the call has ended."""
        if self._state is not None:
            self.announce({"done": done, "total": total, "message": clean(str(message))[:500]})

    def announce(self, what: Mapping[str, Any]) -> None:
        """Emit a `tool:progress` with `what` as its data, for a middleware that has something of its own to say."""
        if self._state is not None:
            self._state.plan.announce(self._state, what)

    @property
    def pieces(self) -> tuple[Any, ...]:
        """What the handler, an async generator, has yielded so far; others have seen it."""
        return () if self._state is None else tuple(self._state.pieces)

    def run(self, name: str, arguments: Mapping[str, Any] | str | None = None) -> Awaitable[ToolResult]:
        """Run another tool of the same runner as a child of this call: judged like any other, and it does not wait
        for what this call holds.

        Raises:
            RuntimeError: where this context belongs to no call.
        """
        if self._state is None:
            raise RuntimeError("context.run(...) works inside a call; outside, use runner.run(...)")
        return self._state.plan.run_nested(self._state, name, arguments)  # type: ignore[no-any-return]

    def remaining(self) -> float | None:
        """Seconds until the deadline, its own or that of the call it is a child of, at least 0; `None` where there is
        no deadline, or before it is counted."""
        state, deadlines = self._state, []
        while state is not None:
            if state.deadline is not None:
                deadlines.append(state.deadline)
            state = state.parent
        if self._state is None or not deadlines:
            return None
        return self._state.plan.remaining(min(deadlines))  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<ToolContext session={self.session!r} principal={self.principal!r} call={self.call!r}>"


def new_state(
    given: tuple[Any, ...],
    plan: Any,
    sent: ToolCall,
    call: ToolCall,
    parent: CallState | None,
    started: float,
    task: Any = None,
    cancels: int = 0,
    observers: tuple[Any, ...] = (),
) -> CallState:
    """The state of a call that has just arrived. A function and not `__init__`, which costs half as much again."""
    state = object.__new__(CallState)
    state.given = given
    state.plan = plan
    state.sent = sent
    state.call = call
    state.parent = parent
    state.started = started
    state.task = task
    state.cancels = cancels
    state.observers = observers
    state.values = state.made = state.deadline = state.waiter = state._context = None
    state.executed = state.ended = False
    state.runs = 0
    state.repairs = state.held = ()
    return state


def running() -> CallState | None:
    """The call whose handler the present code belongs to. Nobody resets `CURRENT`: what has ended is passed over."""
    state = CURRENT.get()
    while state is not None and state.ended:
        state = state.parent
    return state


_FrozenContext = frozen(ToolContext)
NO_CONTEXT: ToolContext[Any] = ToolContext()
CURRENT: ContextVar[CallState | None] = ContextVar("ferrule.current", default=None)
"""The call that the running code belongs to, or belonged to: read it by `running()`."""


class _ToolOwnContext:
    """`CONTEXT.get()`: the `context=` of the tool that is running, an empty mapping where it has none.

    It reaches helpers that cannot be handed anything, in threads too.
    """

    def get(self) -> Any:
        state = running()
        own = UNSET if state is None else state.plan.tool.context
        return _EMPTY if own is UNSET else own


CONTEXT = _ToolOwnContext()
