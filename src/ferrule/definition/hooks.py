"""`before` and `after` hooks: middleware without `next`, for the call before the steps or the result after them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from ferrule.types import Coro, Middleware, Next
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    Seen = TypeVar("Seen", ToolCall, ToolResult)
    HookFunction: TypeAlias = Callable[[Seen, ToolContext], Seen | Awaitable[Seen | None] | None]
    """Return another call or result to use, or None to keep the one given."""
    Before: TypeAlias = HookFunction[ToolCall]
    After: TypeAlias = HookFunction[ToolResult]


class Hook:
    """The middleware that `before` and `after` make.

    The kernel runs the innermost `before` of `around` and `after` of `inside` itself, without a coroutine for each,
    which would cost an eighth of a call.
    """

    __slots__ = ("after", "before")

    def __init__(self, *, before: Before | None = None, after: After | None = None) -> None:
        self.before = before
        self.after = after

    @property
    def only_around(self) -> str | None:
        """The reason why the hook belongs in `around` only, or None."""
        return "before(…) belongs in `around`: in `inside`, the arguments are judged and stay" if self.before else None

    async def __call__(self, call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        if self.before is not None:
            changed = run_hook(self.before, call, context)
            call = changed if isinstance(changed, ToolCall) else await changed
        result = await next(call, context)
        if self.after is None:
            return result
        replaced = run_hook(self.after, result, context)
        return replaced if isinstance(replaced, ToolResult) else await replaced


def run_hook(hook: HookFunction[Seen], seen: Seen, context: ToolContext) -> Seen | Coro[Seen]:
    """Run a hook. Return the call or result that it leaves, or a coroutine of it if the hook is async."""
    changed = hook(seen, context)
    if changed is None:
        return seen
    return changed if isinstance(changed, seen.__class__) else _wait_for(changed, seen)  # type: ignore[arg-type]


async def _wait_for(changed: Awaitable[Seen | None], seen: Seen) -> Seen:
    return await changed or seen


def split_chain(middleware: list[Middleware], side: Literal["before", "after"]) -> tuple[list[Middleware], Any]:
    """Split the innermost hook of that side off the chain. Return the rest, and the hook or None."""
    last = middleware[-1] if middleware else None
    hook = getattr(last, side) if isinstance(last, Hook) else None
    return (middleware if hook is None else middleware[:-1]), hook
