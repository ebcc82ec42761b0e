"""`retry(attempts)`: repeat a failed call when this can do no harm."""

from __future__ import annotations

import fnmatch
import math
import random
from collections.abc import Callable, Iterable
from typing import Any

from ferrule.errors import DefinitionError
from ferrule.middleware._limits import (
    MiddlewareClock,
    Windows,
    check_number,
    check_whole_number,
    find_executed,
    function,
)
from ferrule.scheduling.clock import Clock
from ferrule.types import Next
from ferrule.values.call import ToolCall
from ferrule.values.content import clean_text, truncate_text
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult

_RETRYABLE_STATUSES = frozenset({"failed", "limited", "timeout"})
_NOTHING_RUN = "Nothing was run."
_LONGEST_WAIT = 1e12  # an integer may be larger than any float


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
            makes the wait shorter, and a wait that the tool asks for longer.
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
        self._attempts = check_whole_number("retry(attempts)", attempts)
        self._wait = check_number("retry(wait)", wait, zero=True)
        self._longest = check_number("retry(longest)", longest, zero=True)
        self._jitter = check_number("retry(jitter)", jitter, zero=True, limit=1)
        self._per_minute = check_whole_number("retry(per_minute)", per_minute)
        self._extra_attempts = Windows(self._per_minute, 60.0)
        self._safe = _read_safe_names(safe)
        self._when: Callable[[ToolResult], bool] = _is_retryable if when is None else function("retry(when)", when)
        self._clock = MiddlewareClock("retry", clock)

    async def __call__(self, call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        if not context.inside:
            raise DefinitionError(self.only_inside)
        before = context.runs
        result = await next(call, context)
        return result if result.status == "ok" else await self._run_again(call, context, next, result, before)

    async def _run_again(
        self, call: ToolCall, context: ToolContext, next: Next, result: ToolResult, before: int
    ) -> ToolResult:
        attempts: list[dict[str, Any]] = []
        has_run = find_executed(result, context, before)
        while isinstance(pause := self._pause(call, context, result, len(attempts) + 1, has_run), float):
            attempts.append(self._make_record(result, len(attempts) + 1, pause))
            context.announce(attempts[-1])
            # If no other attempt is possible, `next` returns the reason.
            await context.pause(pause, self._clock.get(context).sleep)
            result = await next(call, context)
            has_run = find_executed(result, context, before) if has_run is False else has_run
        if pause:
            result = result.replace(metadata={**result.metadata, "not_retried": pause})
        return self._finish(result, attempts, has_run) if attempts else result

    def _pause(
        self, call: ToolCall, context: ToolContext, result: ToolResult, attempt: int, has_run: bool | None
    ) -> float | str:
        """Return the seconds until the next attempt, or the reason why there is none: empty if none was expected."""
        may_retry = attempt < self._attempts and result.status in _RETRYABLE_STATUSES and not context.cancelled
        if not may_retry or not self._when(result):
            return ""
        if has_run is not False and not self._is_safe(call, context):
            return f"{call.name} may have run, and is neither read_only nor idempotent nor in retry(safe=…)"
        if context.chunks:
            return "a part of its output was already sent"
        pause, remaining = self._choose_pause(result, attempt), context.remaining()
        if pause > self._longest:
            return f"the wait of {pause:g} s is longer than retry(longest={self._longest:g})"
        if remaining is not None and pause >= remaining:
            return f"the wait of {pause:g} s would end after the deadline"
        if result.status != "limited" and self._extra_attempts.take(call.name, self._clock.get(context).time()):
            return f"{call.name} has used its retry(per_minute={self._per_minute}) attempts"
        return pause

    def _is_safe(self, call: ToolCall, context: ToolContext) -> bool:
        is_marked = context.call is not None and (context.tool.read_only or context.tool.idempotent)
        return is_marked or any(fnmatch.fnmatchcase(call.name, one) for one in self._safe)

    def _choose_pause(self, result: ToolResult, attempt: int) -> float:
        backoff = min(math.ldexp(self._wait, min(attempt - 1, 60)), self._longest)
        chance = random.random() * self._jitter
        requested = _requested_wait(result)
        if requested is None:
            return backoff * (1 - chance)
        return requested if requested > self._longest else min(requested + backoff * chance, self._longest)

    def _make_record(self, result: ToolResult, attempt: int, pause: float | None) -> dict[str, Any]:
        error = None if result.error is None else truncate_text(clean_text(result.error), 500)
        return {"attempt": attempt, "of": self._attempts, "status": result.status, "error": error, "wait": pause}

    def _finish(self, result: ToolResult, attempts: list[dict[str, Any]], has_run: bool | None) -> ToolResult:
        attempts.append(self._make_record(result, len(attempts) + 1, None))
        result = result.replace(metadata={**result.metadata, "attempts": attempts})
        if result.executed is not False or has_run is False:
            return result
        # The last attempt ran nothing, but an earlier one did. This counts for the call as a whole.
        result = result.replace(executed=has_run)
        if result.error is None or _NOTHING_RUN not in result.error:
            return result
        return result.replace(error=result.error.replace(_NOTHING_RUN, "An earlier attempt ran."))


def _read_safe_names(safe: Any) -> tuple[str, ...]:
    if isinstance(safe, str) or not isinstance(safe, Iterable) or not all(isinstance(one, str) for one in safe):
        raise DefinitionError(f"retry(safe) must be a list of tool names, such as safe=['search'], not {safe!r}")
    return tuple(safe)


def _is_retryable(result: ToolResult) -> bool:
    if result.retryable is not None:
        return result.retryable
    return result.status == "failed" or (result.status == "limited" and _requested_wait(result) is not None)


def _requested_wait(result: ToolResult) -> float | None:
    seconds = result.metadata.get("retry_after")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        return None
    return float(min(seconds, _LONGEST_WAIT))
