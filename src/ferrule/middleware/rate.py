"""`rate(calls, seconds)`: not more than so many calls in any such while."""

from __future__ import annotations

from collections.abc import Hashable

from ferrule.limits import SharedLimits
from ferrule.middleware._counted import (
    By,
    SharedWindows,
    Ticking,
    Windows,
    keyed,
    limited,
    number,
    rounded_up,
    shared_limits,
    uncounted,
    whole,
)
from ferrule.scheduling.clock import Clock
from ferrule.store import StoreError
from ferrule.types import Next
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult


def rate(
    calls: int,
    seconds: float = 60.0,
    *,
    by: By = "tool",
    limits: SharedLimits | None = None,
    clock: Clock | None = None,
) -> Rate:
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
        limits: Where it is counted among several programs, `ferrule.limits.shared(…)`: all rates of as many seconds
            and the same `by` count together there. Keys are texts, whole numbers, `None` and tuples of these. See
            docs/limits.md#among-several-programs.
        clock: What tells the time; left out, what the runner goes by that calls it first. Several programs go by its
            `now()`.

    Raises:
        DefinitionError: for parameters that could not work.
    """
    return Rate(calls, seconds, by, limits, clock)


class Rate:
    """What `rate` makes."""

    __slots__ = ("_clock", "_key", "_said", "_shared", "_windows")

    def __init__(
        self, calls: int, seconds: float, by: By, limits: SharedLimits | None = None, clock: Clock | None = None
    ) -> None:
        most, per = whole("rate(calls)", calls), number("rate(seconds)", seconds)
        self._key, who = keyed("rate", by)
        self._clock = Ticking("rate", clock)
        self._windows = Windows(most, per)
        limits = shared_limits("rate", limits)
        self._shared = None if limits is None else SharedWindows(limits, most, per, who)
        self._said = f"could not be called: the limit of {most} calls in {per:g} s for {who} is reached."

    async def __call__(self, call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        if self._shared is None:
            wait = self._windows.take(self._key(call, context), self._clock.of(context).time())
        else:
            try:
                wait = await self._shared.take(self._key(call, context), self._clock.of(context).now())
            except StoreError as error:
                return uncounted("rate", call, error)
        if wait:
            return limited(f"{call.name} {self._said}", rounded_up(wait))
        return await next(call, context)

    def forget(self, key: Hashable) -> None:
        """Count anew for `key`: a tool's name, a principal, what `by` gives. It is no need: a key that is not met for
        `seconds` is forgotten anyhow."""
        (self._shared or self._windows).forget(key)
