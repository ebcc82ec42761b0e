"""`rate(calls, seconds)`: bound the calls in any period of that length."""

from __future__ import annotations

import math
from collections.abc import Hashable

from ferrule.middleware._limits import (
    By,
    MiddlewareClock,
    SharedWindows,
    Windows,
    check_number,
    check_shared_limits,
    check_whole_number,
    is_replay,
    make_key,
    make_limited_result,
    make_uncounted_result,
    round_up,
)
from ferrule.scheduling.clock import Clock
from ferrule.stores.limits import SharedLimits
from ferrule.stores.store import StoreError
from ferrule.types import Next
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.count import format_count
from ferrule.values.result import ToolResult


def rate(
    calls: int,
    seconds: float = 60.0,
    *,
    by: By = ("tool", "principal"),
    wait: float = 0.0,
    limits: SharedLimits | None = None,
    clock: Clock | None = None,
) -> Rate:
    """Return a middleware that lets at most `calls` through in any `seconds`. See docs/limits.md.

    A call beyond that waits for its turn, if `wait` allows it. Calls get their turns in the order of their arrival, and
    the deadline of a call is paused while it waits. Any other call is `limited`, with a `retry_after` in seconds, and
    is not run. A call counts when it gets its turn, whatever its result, even if it is cancelled before; a result from
    the journal does not count. Loops and threads that share the middleware share the count.

    Put it in `inside` so denied calls do not count. Put one with a `wait` in `around`: there a waiting call has no slot
    yet, and the journal knows that it has not begun.

    Args:
        calls: The number of calls; at least 1.
        seconds: The length of the period; above 0.
        by: The scope of one count: `"tool"`, `"principal"`, `"session"`, or `"all"` for one count; several; or a
            function of call and context that returns the key. If the function raises or returns no key, the call fails
            and nothing is run. To protect a service from all callers together, choose `"tool"`.
        limits: The counters of several programs: `ferrule.stores.share_limits(…)`. All rates of as many seconds and
            the same `by` count together there. Keys are texts, whole numbers, `None` and tuples of these. See
            docs/limits.md#among-several-programs.
        wait: The most seconds that a call waits for its turn; `math.inf` for as long as it takes.
        clock: The clock; by default that of the first runner to call it. Several programs use its `now()`.

    Raises:
        DefinitionError: A parameter is not valid.
    """
    return Rate(calls, seconds, by, wait, limits, clock)


class Rate:
    """The middleware of `rate`."""

    __slots__ = ("_clock", "_error", "_key", "_shared", "_wait", "_windows")

    def __init__(
        self,
        calls: int,
        seconds: float,
        by: By,
        wait: float = 0.0,
        limits: SharedLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        limit, period = check_whole_number("rate(calls)", calls), check_number("rate(seconds)", seconds)
        self._wait = math.inf if wait == math.inf else check_number("rate(wait)", wait, zero=True)
        self._key, scope = make_key("rate", by)
        self._clock = MiddlewareClock("rate", clock)
        self._windows = Windows(limit, period)
        limits = check_shared_limits("rate", limits)
        self._shared = None if limits is None else SharedWindows(limits, limit, period, scope)
        most = format_count(limit, "call")
        self._error = f"could not be called: the limit of {most} in {period:g} s for {scope} is reached."

    async def __call__(self, call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        clock, key, before = self._clock.get(context), self._key(call, context), context.runs
        now = clock.time() if self._shared is None else clock.now()
        if self._shared is None:
            wait = self._windows.take(key, now, self._wait)
        else:
            try:
                wait = await self._shared.take(key, now, self._wait)
            except StoreError as error:
                return make_uncounted_result("rate", call, error)
        if wait > self._wait:
            return make_limited_result(f"{call.name} {self._error}", round_up(wait))
        if wait:
            await context.pause(wait, clock.sleep, timed=False)
        result = await next(call, context)
        if is_replay(result, context, before):
            (self._shared or self._windows).give_back(key, now + wait)
        return result

    def forget(self, key: Hashable) -> None:
        """Restart the count of `key`: by default the tool's name and the principal, `("search", "ada")`.

        This is never necessary: a key without a call for `seconds` is forgotten anyhow.
        """
        (self._shared or self._windows).forget(key)
