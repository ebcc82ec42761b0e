"""`before` and `after` hooks: middleware without `next`, for the call before the steps or the result after them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from ferrule.types import Coro, Middleware, Next
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult

Seen = TypeVar("Seen", ToolCall, ToolResult)
HookFunction: TypeAlias = Callable[[Seen, ToolContext], Seen | Awaitable[Seen | None] | None]
"""Return another call or result to use, or None to keep the one given."""
Before: TypeAlias = HookFunction[ToolCall]
After: TypeAlias = HookFunction[ToolResult]


class Hook:
    """The middleware that `before` and `after` make.

    The kernel runs the innermost `before` hooks of `around` and `after` hooks of `inside` itself, without a coroutine
    for each, which would cost an eighth of a call.
    """

    __slots__ = ("after", "before")

    def __init__(self, *, before: Before | None = None, after: After | None = None) -> None:
        self.before = () if before is None else (before,)
        self.after = () if after is None else (after,)

    @property
    def only_around(self) -> str | None:
        """The reason why the hook belongs in `around` only, or None."""
        return "before(…) belongs in `around`: in `inside`, the arguments are judged and stay" if self.before else None

    async def __call__(self, call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        changed = run_hooks(self.before, call, context)
        result = await next(changed if isinstance(changed, ToolCall) else await changed, context)
        replaced = run_hooks(self.after, result, context)
        return replaced if isinstance(replaced, ToolResult) else await replaced


def run_hooks(hooks: Sequence[HookFunction[Seen]], seen: Seen, context: ToolContext) -> Seen | Coro[Seen]:
    """Run the hooks. Return the call or result that they leave, or a coroutine of it if a hook is async."""
    rest = iter(hooks)
    for hook in rest:
        changed = hook(seen, context)
        if changed is None:
            continue
        if isinstance(changed, seen.__class__):
            seen = changed
        else:
            return _go_on(changed, tuple(rest), seen, context)  # type: ignore[arg-type]
    return seen


async def _go_on(
    changed: Awaitable[Seen | None],
    hooks: Sequence[HookFunction[Seen]],
    seen: Seen,
    context: ToolContext,
) -> Seen:
    rest = run_hooks(hooks, await changed or seen, context)
    return rest if isinstance(rest, seen.__class__) else await rest  # type: ignore[misc]


def split_chain(
    middleware: Iterable[Middleware], side: Literal["before", "after"]
) -> tuple[list[Middleware], tuple[Any, ...]]:
    """Split the innermost hooks of that side off the chain. Return the rest, and the hooks, the outermost first."""
    outer, hooks = list(middleware), ()
    while outer and isinstance(outer[-1], Hook) and getattr(outer[-1], side):
        hooks = (*getattr(outer.pop(), side), *hooks)
    return outer, hooks
