"""`rate(calls, seconds)`: not more than so many calls in any such while."""

from __future__ import annotations

from collections.abc import Hashable

from ferrule.middleware._counted import By, Ticking, Windows, keyed, limited, number, rounded_up, whole
from ferrule.scheduling.clock import Clock
from ferrule.types import Next
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult


def rate(calls: int, seconds: float = 60.0, *, by: By = "tool", clock: Clock | None = None) -> Rate:
    """A middleware that lets through at most `calls` in any `seconds`, wherever these begin. See docs/limits.md.

    A call beyond that is not run but `limited`, with a `retry_after` in seconds; a `retry` further out waits for it. A
    call counts when it is let through, whatever it comes to. Loops and threads that share the middleware share the
    count.

    Put it in `inside`, where what guards deny does not count; in `around`, every call of the model does.

    Args:
        calls: How many; at least 1.
        seconds: In how long; above 0.
        by: What has a count of its own: `"tool"`, `"principal"`, `"session"`, or `"all"` for one count; several, such
            as `("tool", "principal")`; or a function of call and context that gives the key. Where the function raises
            or gives no key, the call fails and nothing is run.
        clock: What tells the time; left out, what the runner goes by that calls it first.

    Raises:
        DefinitionError: for parameters that could not work.
    """
    return Rate(calls, seconds, by, clock)


class Rate:
    """What `rate` makes."""

    __slots__ = ("_clock", "_key", "_said", "_windows")

    def __init__(self, calls: int, seconds: float, by: By, clock: Clock | None) -> None:
        most, per = whole("rate(calls)", calls), number("rate(seconds)", seconds)
        self._key, who = keyed("rate", by)
        self._clock = Ticking("rate", clock)
        self._windows = Windows(most, per)
        self._said = f"could not be called: the limit of {most} calls in {per:g} s for {who} is reached."

    async def __call__(self, call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        wait = self._windows.take(self._key(call, context), self._clock.of(context).time())
        if wait:
            return limited(f"{call.name} {self._said}", rounded_up(wait))
        return await next(call, context)

    def forget(self, key: Hashable) -> None:
        """Count anew for `key`: a tool's name, a principal, what `by` gives. It is no need: a key that is not met for
        `seconds` is forgotten anyhow."""
        self._windows.forget(key)
