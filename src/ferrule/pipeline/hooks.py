"""`before` and `after` hooks: middleware with fewer powers, which sees the call before the rest, or the result after
it, and has no `next`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from ferrule.types import Coro, Middleware, Next
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult

Before: TypeAlias = Callable[[ToolCall, ToolContext], ToolCall | Awaitable[ToolCall | None] | None]
"""The call that goes on instead, or `None` for the same."""

After: TypeAlias = Callable[[ToolResult, ToolContext], ToolResult | Awaitable[ToolResult | None] | None]
"""The result that goes back instead, or `None` for the same."""


class Hook:
    """What `before` and `after` make. Anywhere it is a middleware like any other; the innermost ones of a chain are run
    by the kernel itself, without a coroutine for each, which is an eighth of the whole way of a call."""

    __slots__ = ("after", "before")

    def __init__(self, *, before: Before | None = None, after: After | None = None) -> None:
        self.before = before
        self.after = after

    async def __call__(self, call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        if self.before is not None:
            changed = run_before((self.before,), call, context)
            call = changed if isinstance(changed, ToolCall) else await changed
        result = await next(call, context)
        if self.after is not None:
            replaced = run_after((self.after,), result, context)
            result = replaced if isinstance(replaced, ToolResult) else await replaced
        return result


def run_before(hooks: Sequence[Before], call: ToolCall, context: ToolContext) -> ToolCall | Coro[ToolCall]:
    """The call as the hooks leave it: at once, or a coroutine of it where one of them has to be awaited."""
    for position, hook in enumerate(hooks):
        changed = hook(call, context)
        if isinstance(changed, ToolCall):
            call = changed
        elif changed is not None:
            return _go_on_before(changed, hooks[position + 1 :], call, context)
    return call


async def _go_on_before(
    changed: Awaitable[ToolCall | None], hooks: Sequence[Before], call: ToolCall, context: ToolContext
) -> ToolCall:
    rest = run_before(hooks, await changed or call, context)
    return rest if isinstance(rest, ToolCall) else await rest


def run_after(hooks: Sequence[After], result: ToolResult, context: ToolContext) -> ToolResult | Coro[ToolResult]:
    """The result as the hooks leave it: at once, or a coroutine of it where one of them has to be awaited."""
    for position, hook in enumerate(hooks):
        replaced = hook(result, context)
        if isinstance(replaced, ToolResult):
            result = replaced
        elif replaced is not None:
            return _go_on_after(replaced, hooks[position + 1 :], result, context)
    return result


async def _go_on_after(
    replaced: Awaitable[ToolResult | None], hooks: Sequence[After], result: ToolResult, context: ToolContext
) -> ToolResult:
    rest = run_after(hooks, await replaced or result, context)
    return rest if isinstance(rest, ToolResult) else await rest


class Chain(NamedTuple):
    """Middleware without the hooks at its inner end, and these hooks in the order in which they run."""

    outer: tuple[Middleware, ...]
    before: tuple[Before, ...]
    after: tuple[After, ...]


def split_chain(middleware: Iterable[Middleware]) -> Chain:
    """The chain, with the hooks at its inner end taken out."""
    outer = list(middleware)
    hooks: list[Hook] = []
    while outer and isinstance(outer[-1], Hook):
        hooks.insert(0, outer.pop())  # type: ignore[arg-type]
    before = tuple(hook.before for hook in hooks if hook.before is not None)
    after = tuple(hook.after for hook in reversed(hooks) if hook.after is not None)
    return Chain(tuple(outer), before, after)
