"""What a run may use besides its arguments, and how code that was not handed it finds it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Mapping
from contextvars import ContextVar
from typing import Any, Generic, Protocol

# TypeVar with a default comes with Python 3.13; Pydantic requires typing_extensions.
from typing_extensions import TypeVar

from ferrule.core.frozen import FrozenDict
from ferrule.core.values import ToolCall, ToolResult, frozen

Deps = TypeVar("Deps", default=Any)
UNSET: Any = type("Unset", (), {"__repr__": lambda self: "<not given>"})()
_EMPTY: Mapping[str, Any] = FrozenDict()


class Kernel(Protocol):
    """What a bound context asks of the runner that runs it."""

    @property
    def tool(self) -> Any: ...

    def progress(self, context: ToolContext[Any], done: float, total: float | None, message: str) -> None: ...

    def run_nested(
        self, context: ToolContext[Any], name: str, arguments: Mapping[str, Any] | str | None
    ) -> Awaitable[ToolResult]: ...

    def remaining(self, deadline: float) -> float: ...


class Traits:
    """What the tool of a call is and does, for the arguments of that very call.

    It has the tool's `name`, `description`, `title`, `tags` and `metadata`, and `read_only`, `destructive`,
    `idempotent`, `open_world` and `parallel` as bools.
    """

    __slots__ = ("_arguments", "_tool")

    def __init__(self, tool: Any, arguments: Mapping[str, Any]) -> None:
        self._tool = tool
        self._arguments = arguments

    def __getattr__(self, name: str) -> Any:
        if name in {"read_only", "destructive", "idempotent", "open_world", "parallel"}:
            return self._tool.trait(name, self._arguments)
        if name in {"name", "description", "title", "tags", "metadata"}:
            return getattr(self._tool, name)
        raise AttributeError(f"a tool's traits have no {name!r}")


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

    __slots__ = (
        "_cut",
        "_deadline",
        "_ended",
        "_executed",
        "_given",
        "_kernel",
        "_left",
        "_observers",
        "_parent",
        "_repairs",
        "_resumed",
        "_sent",
        "_timeout",
        "_values",
        "call",
    )
    call: ToolCall | None
    """The call that is being judged or run; `None` before."""

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
        self._given = (session, principal, directory, deps, metadata or _EMPTY, secrets or _EMPTY)
        self.call = None
        self._kernel: Kernel | None = None
        self._deadline: float | None = None
        self.__class__ = _FrozenContext

    @property
    def tool(self) -> Traits | None:
        """What the tool of this call is and does; `None` where the context belongs to no call."""
        if self._kernel is None or self.call is None:
            return None
        return Traits(self._kernel.tool, self.call.arguments)

    @property
    def session(self) -> str | None:
        return self._given[0]

    @property
    def principal(self) -> str | None:
        return self._given[1]

    @property
    def working_directory(self) -> str:
        return self._given[2] or os.getcwd()

    @property
    def deps(self) -> Deps:
        return self._given[3]  # type: ignore[no-any-return]

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._given[4]

    @property
    def secrets(self) -> Mapping[str, Any]:
        return self._given[5]

    def replace(self, **changes: Any) -> ToolContext[Deps]:
        """A changed copy that belongs to no call; `changes` are the constructor's arguments."""
        names = ("session", "principal", "working_directory", "deps", "metadata", "secrets")
        return ToolContext(**{**dict(zip(names, self._given, strict=True)), **changes})

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Say how far the work is: `done` of `total`, in any unit. May be called from any thread; costs nothing
        where nobody observes, and says nothing once the call has ended."""
        if self._kernel is not None:
            self._kernel.progress(self, done, total, message)

    def run(self, name: str, arguments: Mapping[str, Any] | str | None = None) -> Awaitable[ToolResult]:
        """Run another tool of the same runner as a child of this call: judged like any other, and it does not wait
        for what this call holds.

        Raises:
            RuntimeError: where this context belongs to no call.
        """
        if self._kernel is None:
            raise RuntimeError("context.run(...) works inside a call; outside, use runner.run(...)")
        return self._kernel.run_nested(self, name, arguments)

    def remaining(self) -> float | None:
        """Seconds until the deadline, at least 0; `None` where there is no deadline, or before it is counted."""
        if self._kernel is None or self._deadline is None:
            return None
        return self._kernel.remaining(self._deadline)

    def __repr__(self) -> str:
        return f"<ToolContext session={self.session!r} principal={self.principal!r} call={self.call!r}>"


_FrozenContext = frozen(ToolContext)


def _setter(name: str) -> Any:
    return ToolContext.__dict__[name].__set__


set_call = _setter("call")
set_cut = _setter("_cut")
set_deadline = _setter("_deadline")
set_ended = _setter("_ended")
set_executed = _setter("_executed")
set_left = _setter("_left")
set_repairs = _setter("_repairs")
set_resumed = _setter("_resumed")
set_values = _setter("_values")


def bind_context(
    given: ToolContext[Any],
    kernel: Kernel,
    sent: ToolCall,
    call: ToolCall,
    parent: ToolContext[Any] | None,
    timeout: float | None,
    observers: Any,
) -> ToolContext[Any]:
    """`given` for one call. What the kernel keeps of a run travels in the slots that begin with an underscore:

    `_sent` is the call as the model made it, `_values` what the handler gets, `_executed` whether it was started and
    ended, `_left` what still runs after a deadline, `_cut` what a handler made of a cancellation from outside.
    """
    bound: ToolContext[Any] = object.__new__(ToolContext)
    bound._given = given._given
    bound._kernel = kernel
    bound._sent = sent
    bound.call = call
    bound._parent = parent
    bound._timeout = timeout
    bound._observers = observers
    bound._deadline = bound._values = bound._left = bound._cut = bound._resumed = None
    bound._executed = bound._ended = False
    bound._repairs = ()
    bound.__class__ = _FrozenContext
    return bound


NO_CONTEXT: ToolContext[Any] = ToolContext()
CURRENT: ContextVar[ToolContext[Any] | None] = ContextVar("ferrule.current", default=None)
"""The context of the call that the running code belongs to."""


class _ToolOwnContext:
    """`CONTEXT.get()`: the `context=` of the tool that is running, an empty mapping where it has none.

    It reaches helpers that cannot be handed anything, in threads too.
    """

    def get(self) -> Any:
        current = CURRENT.get()
        if current is None or current._kernel is None:
            return _EMPTY
        own = current._kernel.tool.context
        return _EMPTY if own is UNSET else own


CONTEXT = _ToolOwnContext()
