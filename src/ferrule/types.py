"""The contract in one file: what a guard, a middleware, an approver, an observer and a journal are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, Never, Protocol, TypeAlias, TypeVar, runtime_checkable

from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision
from ferrule.values.event import Event
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from pydantic import BaseModel

    from ferrule.definition.tool import Tool
    from ferrule.definition.toolset import Toolset
    from ferrule.executors import Executor

_T = TypeVar("_T")
Coro: TypeAlias = Coroutine[Any, Any, _T]
"""A coroutine of something. See docs/middleware.md."""

Verdict: TypeAlias = Decision | Mapping[str, object] | None
"""What a guard says: a decision, changed arguments, or nothing. See docs/guards.md."""

GuardFunction: TypeAlias = Callable[[ToolCall, ToolContext[Any]], Verdict | Awaitable[Verdict]]
"""A guard as a function of the call and its context, sync or async. See docs/guards.md."""

ChecksCall: TypeAlias = Callable[[ToolCall, ToolContext[Any]], Verdict | bool | Awaitable[Verdict | bool]]
"""It gets the call and its context, as a guard that is a function does. See docs/guards.md."""

ChecksHandler: TypeAlias = (
    "Callable[[Never], Decision | bool | BaseModel | Awaitable[Decision | bool | BaseModel | None] | None]"
)
"""It gets an instance of the tool that it guards, whatever its class is, and gives it back changed, or decides.
See docs/guards.md."""

ChecksArguments: TypeAlias = "Callable[Concatenate[Tool, ...], Verdict | bool | Awaitable[Verdict | bool]]"
"""It knows the arguments of its tools by name. See docs/guards.md."""


class GuardObject(Protocol):
    """A guard as an object with `check`, which is asked by its signature. See docs/guards.md.

    - `check(call, context)` is asked about the call.
    - `check(handler)` is asked about an instance of the handler class, and may change its fields; the runner refuses
      it for other tools.
    - `check(tool, **arguments)` is asked about the tool and, by name, its arguments.

    `True` says what `None` does, and `False` denies. What the last two raise denies with its text.
    """

    @property
    def check(self) -> ChecksCall | ChecksHandler | ChecksArguments: ...


Guard: TypeAlias = GuardFunction | GuardObject
"""May this call run? A function of call and context, or an object with `check`. Breaking means deny.
See docs/guards.md."""

Next: TypeAlias = Callable[[ToolCall, ToolContext[Any]], Awaitable[ToolResult]]
"""What a middleware goes round. See docs/middleware.md."""

Middleware: TypeAlias = Callable[[ToolCall, ToolContext[Any], Next], Awaitable[ToolResult]]
"""Goes round a call; the first in a list is the outermost. See docs/middleware.md."""

Approver: TypeAlias = Callable[[ToolCall, Decision, ToolContext[Any]], Decision | bool | Awaitable[Decision | bool]]
"""Answers an ask: `allow(…)` or `True` allows, `ask(…)` suspends, everything else denies. See docs/approvals.md."""

Observer: TypeAlias = Callable[[Event], object]
"""Sees every event; cannot change a call and cannot break one. See docs/events.md."""


class Isolation(Protocol):
    """Where the handlers of tools run, for `isolation=`: on other machines, in processes of your own. See
    docs/long-work.md."""

    def executor(self, tool: Tool) -> Executor:
        """What runs the handler of `tool`; made once for each runner that has it.

        Raises:
            DefinitionError: where it cannot run there.
        """
        ...


class Executable(Protocol):
    """Any object with a `name` and an `execute(payload)` or `execute(payload, context)`. See docs/forms.md."""

    @property
    def name(self) -> str: ...

    @property
    def execute(self) -> Callable[..., object]: ...


ToolForm: TypeAlias = "Tool | Callable[..., object] | Mapping[str, object] | Executable"
"""The forms of one tool: a `Tool`, a function, a handler class, a definition as a dict, an object with `execute`.
See docs/forms.md."""

ToolInput: TypeAlias = "ToolForm | Toolset"
"""What a list of tools may hold. See docs/forms.md."""


@runtime_checkable
class Journal(Protocol):
    """Where what happened is kept. See docs/events.md.

    The runner awaits `intent` before it runs a tool that changes things, and runs nothing if that raises; it awaits
    `result` for every result of such a call. Both records are plain JSON.

    A journal may also have `async take(key, expires_at) -> bool`: note that the suspended call of this key is taken up,
    and say whether it had not been, in one step for all who share the journal. The key is kept until `expires_at`, in
    seconds since the epoch. Without it a runner remembers in its own memory.
    """

    async def intent(self, record: dict[str, object]) -> None: ...

    async def result(self, record: dict[str, object]) -> None: ...
