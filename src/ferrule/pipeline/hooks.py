"""A middleware with fewer powers: it sees the call before the rest, or the result after it, and has no `next`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

from ferrule.types import Middleware, Next
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult

Ahead: TypeAlias = Callable[[ToolCall, ToolContext[Any]], ToolCall | Awaitable[ToolCall | None] | None]
"""The call that goes on instead, or `None` for the same."""

Behind: TypeAlias = Callable[[ToolResult, ToolContext[Any]], ToolResult | Awaitable[ToolResult | None] | None]
"""The result that goes back instead, or `None` for the same."""


class Half:
    """What `before` and `after` make. Anywhere it is a middleware like any other; the innermost ones of a chain are run
    by the kernel itself, without a coroutine for each, which is an eighth of the whole path."""

    __slots__ = ("ahead", "behind")

    def __init__(self, *, ahead: Ahead | None = None, behind: Behind | None = None) -> None:
        self.ahead = ahead
        self.behind = behind

    async def __call__(self, call: ToolCall, context: ToolContext[Any], next: Next) -> ToolResult:
        if self.ahead is not None:
            call = await settled(self.ahead(call, context), call)
        result = await next(call, context)
        return result if self.behind is None else await settled(self.behind(result, context), result)


async def settled(answer: Any, same: Any) -> Any:
    """What a half answered, awaited where it must be; `same` where it said nothing."""
    if answer is not None and not isinstance(answer, ToolCall | ToolResult):
        answer = await answer
    return same if answer is None else answer


def parted(middleware: Iterable[Middleware]) -> tuple[tuple[Middleware, ...], tuple[Ahead, ...], tuple[Behind, ...]]:
    """The chain without the halves at its inner end; what these do ahead, and what behind, each in its order."""
    chain = list(middleware)
    halves: list[Half] = []
    while chain and isinstance(chain[-1], Half):
        halves.insert(0, chain[-1])
        del chain[-1]
    ahead = tuple(half.ahead for half in halves if half.ahead is not None)
    behind = tuple(half.behind for half in reversed(halves) if half.behind is not None)
    return tuple(chain), ahead, behind
