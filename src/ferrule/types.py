"""The contract in one file: what a guard, a middleware, an approver, an observer, a selector and a journal are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision
from ferrule.values.event import Event
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool

Answer: TypeAlias = Decision | Mapping[str, Any] | None
"""What a guard says: a decision, changed arguments, or nothing."""

Guard: TypeAlias = Callable[[ToolCall, ToolContext[Any]], Answer | Awaitable[Answer]] | Any
"""May this call run? A function of call and context, or an object with `check`. Breaking means deny."""

Next: TypeAlias = Callable[[ToolCall, ToolContext[Any]], Awaitable[ToolResult]]
"""What a middleware goes round."""

Middleware: TypeAlias = Callable[[ToolCall, ToolContext[Any], Next], Awaitable[ToolResult]]
"""Goes round a call; the first in a list is the outermost."""

Approver: TypeAlias = Callable[[ToolCall, Decision, ToolContext[Any]], Decision | bool | Awaitable[Decision | bool]]
"""Answers an ask: `allow(…)` or `True` allows, `ask(…)` suspends, everything else denies."""

Observer: TypeAlias = Callable[[Event], object]
"""Sees every event; cannot change a call and cannot break one."""


@runtime_checkable
class ToolSelector(Protocol):
    """Chooses, before a turn, which tools the model is shown."""

    async def select(self, messages: Iterable[Any], tools: Iterable[Tool]) -> Iterable[Tool]: ...


@runtime_checkable
class Journal(Protocol):
    """Where what happened is kept.

    The runner awaits `intent` before it runs a tool that changes things, and runs nothing if that raises; it awaits
    `result` for every result of such a call. Both records are plain JSON.
    """

    async def intent(self, record: dict[str, Any]) -> None: ...

    async def result(self, record: dict[str, Any]) -> None: ...
