"""`retry(attempts)`: repeat a failed call when this can do no harm."""

from __future__ import annotations

import fnmatch
import math
import random
from collections.abc import Callable, Iterable
from typing import Any

from ferrule.errors import DefinitionError
from ferrule.middleware._counted import Ticking, Windows, function, number, ran, whole
from ferrule.scheduling.clock import Clock
from ferrule.types import Next
from ferrule.values.call import ToolCall
from ferrule.values.content import clean_text, truncate_text
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult

_MAY = frozenset({"failed", "limited", "timeout"})
_NOTHING_RUN = "Nothing was run."
_NEVER = 1e12  # an integer may be larger than any float


def retry(
    attempts: int = 3,
    *,
    wait: float = 0.5,
    longest: float = 30.0,
    jitter: float = 0.5,
    per_minute: int = 60,
    safe: Iterable[str] = (),
    when: Callable[[ToolResult], bool] | None = None,
    clock: Clock | None = None,
) -> Retry:
    """Return a middleware that repeats a failed call when another attempt can do no harm. See docs/limits.md.

    An attempt is harmless if the tool is `read_only` or `idempotent` for this call, if `safe` names it, or if nothing
    has run (`executed` is `False`); and only while no part of the output has been shown. The wait between attempts is
    `metadata["retry_after"]` of the result (seconds), else `wait`, doubled each time.

    It belongs in `inside`, as the first: the deadline is for all attempts together, and no wait goes beyond it. Each
    attempt with another after it is a `tool:progress` with `attempt`, `of`, `status`, `error` and `wait`. A result
    after several attempts has a list of these, its own included, in `metadata["attempts"]`. If there were fewer than
    `attempts` although the result deserves another, `metadata["not_retried"]` gives the reason.

    Args:
        attempts: The largest number of attempts, including the first.
        wait: Seconds before the second attempt.
        longest: The most seconds of one wait; if the tool wants longer there is no other attempt. To wait for a rate,
            give the rate a `wait`.
        jitter: The random share of the wait, 0 to 1, so calls that failed together do not all come back together. It
            makes the wait shorter, but never shorter than the tool wants.
        per_minute: The largest number of attempts beyond the first in any minute, for each tool, over all calls; those
            after `limited` do not count.
        safe: Names or globs of tools that may be repeated although they are not marked so.
        when: Whether a result (`failed`, `limited` or `timeout`) deserves another attempt. By default its `retryable`
            decides; if that is `None`, `failed` results do, and so do `limited` ones with a `retry_after`.
        clock: The clock for time and waits; by default that of the first runner to call it.

    Raises:
        DefinitionError: A parameter is not valid, or the middleware is in `around`.
    """
    return Retry(attempts, wait, longest, jitter, per_minute, safe, when, clock)


class Retry:
    """The middleware of `retry`."""

    only_inside = "retry(…) belongs in `inside`: in `around`, no deadline would cover all attempts"

    def __init__(
        self,
        attempts: int,
        wait: float,
        longest: float,
        jitter: float,
        per_minute: int,
        safe: Iterable[str],
        when: Callable[[ToolResult], bool] | None,
        clock: Clock | None,
    ) -> None:
        self._attempts = whole("retry(attempts)", attempts)
        self._wait = number("retry(wait)", wait, zero=True)
        self._longest = number("retry(longest)", longest, zero=True)
        self._jitter = number("retry(jitter)", jitter, zero=True, most=1)
        self._per_minute = whole("retry(per_minute)", per_minute)
        self._spare = Windows(self._per_minute, 60.0)
        self._safe = _safe_names(safe)
        self._when: Callable[[ToolResult], bool] = _worth_another if when is None else function("retry(when)", when)
        self._clock = Ticking("retry", clock)

    async def __call__(self, call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        if not context.inside:
            raise DefinitionError(self.only_inside)
        before = context.runs
        result = await next(call, context)
        return result if result.status == "ok" else await self._again(call, context, next, result, before)

    async def _again(
        self, call: ToolCall, context: ToolContext, next: Next, result: ToolResult, before: int
    ) -> ToolResult:
        made: list[dict[str, Any]] = []
        ever = ran(result, context, before)
        while isinstance(pause := self._pause(call, context, result, len(made) + 1, ever), float):
            made.append(self._record(result, len(made) + 1, pause))
            context.announce(made[-1])
            # If no other attempt is possible, `next` returns the reason.
            await context.pause(pause, self._clock.of(context).sleep)
            result = await next(call, context)
            ever = ran(result, context, before) if ever is False else ever
        if pause:
            result = result.replace(metadata={**result.metadata, "not_retried": pause})
        return self._last(result, made, ever) if made else result

    def _pause(
        self, call: ToolCall, context: ToolContext, result: ToolResult, attempt: int, ever: bool | None
    ) -> float | str:
        """Return the seconds until the next attempt, or the reason why there is none: empty if none was expected."""
        if attempt >= self._attempts or result.status not in _MAY or context.cancelled or not self._when(result):
            return ""
        if ever is not False and not self._is_safe(call, context):
            return f"{call.name} may have run, and is neither read_only nor idempotent nor in retry(safe=…)"
        if context.chunks:
            return "a part of its output had been shown"
        pause, remaining = self._chosen(result, attempt), context.remaining()
        if pause > self._longest:
            return f"it was to wait for {pause:g} s, and retry(longest={self._longest:g}) waits no longer than that"
        if remaining is not None and pause >= remaining:
            return f"it was to wait for {pause:g} s, and the deadline, which is for all attempts, came before that"
        if result.status != "limited" and self._spare.take(call.name, self._clock.of(context).time()):
            return f"the retry(per_minute={self._per_minute}) further attempts of {call.name} in a minute were made"
        return pause

    def _is_safe(self, call: ToolCall, context: ToolContext) -> bool:
        marked = context.call is not None and (context.tool.read_only or context.tool.idempotent)
        return marked or any(fnmatch.fnmatchcase(call.name, one) for one in self._safe)

    def _chosen(self, result: ToolResult, attempt: int) -> float:
        backoff = min(math.ldexp(self._wait, min(attempt - 1, 60)), self._longest)
        chance = random.random() * self._jitter
        asked = _wait_asked_for(result)
        if asked is None:
            return backoff * (1 - chance)
        return asked if asked > self._longest else min(asked + backoff * chance, self._longest)

    def _record(self, result: ToolResult, attempt: int, pause: float | None) -> dict[str, Any]:
        error = None if result.error is None else truncate_text(clean_text(result.error), 500)
        return {"attempt": attempt, "of": self._attempts, "status": result.status, "error": error, "wait": pause}

    def _last(self, result: ToolResult, made: list[dict[str, Any]], ever: bool | None) -> ToolResult:
        made.append(self._record(result, len(made) + 1, None))
        result = result.replace(metadata={**result.metadata, "attempts": made})
        if result.executed is not False or ever is False:
            return result
        # The last attempt ran nothing, but an earlier one did. This counts for the call as a whole.
        result = result.replace(executed=ever)
        if result.error is None or _NOTHING_RUN not in result.error:
            return result
        return result.replace(error=result.error.replace(_NOTHING_RUN, "It was not run again; it had been run before."))


def _safe_names(safe: Any) -> tuple[str, ...]:
    if isinstance(safe, str) or not isinstance(safe, Iterable) or not all(isinstance(one, str) for one in safe):
        raise DefinitionError(f"retry(safe) must be a list of tool names, such as safe=['search'], not {safe!r}")
    return tuple(safe)


def _worth_another(result: ToolResult) -> bool:
    if result.retryable is not None:
        return result.retryable
    return result.status == "failed" or (result.status == "limited" and _wait_asked_for(result) is not None)


def _wait_asked_for(result: ToolResult) -> float | None:
    seconds = result.metadata.get("retry_after")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        return None
    return float(min(seconds, _NEVER))
