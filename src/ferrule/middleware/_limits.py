"""Shared parts of the limits: keys to count by, turns within a period (in one program or several), argument checks."""

from __future__ import annotations

import inspect
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from ferrule.definition import options
from ferrule.definition.handler import is_async
from ferrule.errors import DefinitionError
from ferrule.scheduling.clock import MONOTONIC, Clock
from ferrule.stores.limits import SharedLimits, wait_for_answer
from ferrule.stores.store import StoreError
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult

log = logging.getLogger("ferrule")
Key: TypeAlias = Callable[[ToolCall, ToolContext], Hashable]
By: TypeAlias = str | Iterable[str] | Key
"""`"tool"`, `"principal"`, `"session"` or `"all"`, several of these, or a function of call and context."""

_NAMED_KEYS: dict[str, tuple[Key, str]] = {
    "tool": (lambda call, context: call.name, "this tool"),
    "principal": (lambda call, context: context.principal, "this principal"),
    "session": (lambda call, context: context.session, "this session"),
    "all": (lambda call, context: None, "all calls together"),
}


def make_key(name: str, by: Any) -> tuple[Key, str]:
    """Return the key function of a limit, and the scope of the limit in words.

    Raises:
        DefinitionError: `by` is neither one of the names, nor several of them, nor a plain function.
    """
    if callable(by):
        if is_async(by):
            raise DefinitionError(f"{name}: by must be a plain function of (call, context), not an async one")
        return _check_key(name, by), "this key"
    names = (by,) if isinstance(by, str) else tuple(by) if isinstance(by, Iterable) else ()
    if not names or not all(isinstance(one, str) and one in _NAMED_KEYS for one in names):
        known = ", ".join(map(repr, _NAMED_KEYS))
        raise DefinitionError(
            f"{name}: by must be one or several of {known}, or a function of (call, context), not {by!r}"
        )
    if len(names) == 1:
        return _NAMED_KEYS[names[0]]
    keys = [_NAMED_KEYS[one][0] for one in names]
    words = " and ".join(_NAMED_KEYS[one][1] for one in names)
    return lambda call, context: tuple([key(call, context) for key in keys]), words


def _check_key(name: str, function: Key) -> Key:
    """Return the user's key function with a check of its key.

    A key unequal to itself, such as NaN, would make the limit ineffective.
    """

    def key(call: ToolCall, context: ToolContext) -> Hashable:
        answer: Any = function(call, context)
        if inspect.isawaitable(answer) or answer != answer:
            raise TypeError(f"{name}: by returned {answer!r}, which is no key")
        hash(answer)
        return answer  # type: ignore[no-any-return]

    return key


class Windows:
    """At most `limit` turns in any `seconds`, for each key. Threads may share it.

    A key without a turn for `seconds` is forgotten, at the latest when the number of keys has doubled.
    """

    __slots__ = ("_limit", "_lock", "_rounding", "_seconds", "_sweep_at", "_times")

    def __init__(self, limit: int, seconds: float, rounding: float = 1e-9) -> None:
        self._limit = limit
        self._rounding = rounding  # seconds: a caller that waited for `retry_after` gets through in spite of rounding
        self._seconds = seconds
        self._times: dict[Hashable, deque[float]] = {}
        self._sweep_at = _FIRST_SWEEP
        self._lock = threading.Lock()

    def take(self, key: Hashable, now: float, longest: float = 0.0) -> float:
        """Take the next turn and return the seconds until it comes: 0 if there is room now.

        If the wait is longer than `longest`, no turn is taken.
        """
        with self._lock:
            times = self._times.get(key)
            if times is None:
                times = self._add_key(key, now)
            while times and times[0] <= now - self._seconds:
                times.popleft()
            wait = times[0] + self._seconds - now if len(times) == self._limit else 0.0
            if wait <= self._rounding:
                wait = 0.0
            if wait <= longest:
                times.append(now + wait)
            return wait

    def give_back(self, key: Hashable, turn: float) -> None:
        """Remove the turn at the time `turn` from the count."""
        with self._lock, suppress(KeyError, ValueError):  # the key or the turn was forgotten meanwhile
            times = self._times[key]
            times.remove(turn)
            if not times:
                del self._times[key]

    def _add_key(self, key: Hashable, now: float) -> deque[float]:
        if len(self._times) >= self._sweep_at:
            since = now - self._seconds
            self._times = {one: times for one, times in self._times.items() if times[-1] > since}
            self._sweep_at = max(_FIRST_SWEEP, 2 * len(self._times))
        times = self._times[key] = deque(maxlen=self._limit)
        return times

    def set_times(self, key: Hashable, times: Iterable[float]) -> None:
        """Set the times of the earlier turns of this key."""
        self._times[key] = deque(times, maxlen=self._limit)

    def forget(self, key: Hashable) -> None:
        """Restart the count of this key."""
        with self._lock:
            self._times.pop(key, None)

    def __len__(self) -> int:
        return len(self._times)


_FIRST_SWEEP = 1000


class SharedWindows:
    """`Windows` for several programs, in seconds since the epoch.

    The store has the times of the last `seconds` of each key.
    """

    def __init__(self, limits: SharedLimits, limit: int, seconds: float, scope: str) -> None:
        self._limits = limits
        self._limit = limit
        self._seconds = seconds
        self._kind = f"rate/{seconds:g} s/{scope}"
        self._new_keys = 0

    async def take(self, key: Hashable, now: float, longest: float = 0.0) -> float:
        """Take a turn as `Windows.take` does.

        Raises:
            StoreError: The store cannot say whether there is room.
            TypeError: The key cannot be stored.
        """
        wait, new = await wait_for_answer(
            self._limits.order(self._limits.place(self._kind, key), partial(self._take_turn, now, longest))
        )
        if new:
            self._new_keys += 1
            if self._new_keys % _SWEEP_AFTER == 1:
                self._limits.sweep(self._kind, lambda times: times[-1] <= now - self._seconds)
        return wait

    def _take_turn(
        self, now: float, longest: float, value: list[float] | None
    ) -> tuple[list[float], tuple[float, bool]]:
        times = value or []
        windows = Windows(self._limit, self._seconds, _MICROSECOND)
        windows.set_times(None, times[-self._limit :])
        wait = round(windows.take(None, now, longest), 6)
        if wait > longest:
            return times, (wait, False)
        counted = sorted([*(time for time in times if time > now - self._seconds), round(now + wait, 6)])
        return counted, (wait, value is None)

    def give_back(self, key: Hashable, turn: float) -> None:
        """Remove the turn as `Windows.give_back` does, without waiting for the store."""
        place, at = self._limits.place(self._kind, key), round(turn, 6)
        self._limits.order(place, lambda times: ([time for time in times or () if time != at] or None, None))

    def forget(self, key: Hashable) -> None:
        """Restart the count of this key, without waiting for the store."""
        self._limits.order(self._limits.place(self._kind, key), lambda value: (None, None))


_SWEEP_AFTER = 256  # new keys: the first of them starts a sweep of expired keys, and so does every 256th after it
_MICROSECOND = 1e-6  # the precision of a float for today's seconds since the epoch


def find_executed(result: ToolResult, context: ToolContext, before: int) -> bool | None:
    """Return whether anything ran since the count of handler starts was `before`, or None if this is unknown.

    The kernel's count wins over an inner middleware: that may claim `executed=False` although it called `next`. For a
    result from the journal, `executed` describes the earlier run, so it does not count.
    """
    if context.runs == before:
        return False if is_replay(result, context, before) else result.executed
    return result.executed or None


def is_replay(result: ToolResult, context: ToolContext, before: int) -> bool:
    """Return whether the result came from the journal and nothing ran since the count of handler starts was `before`.

    The count matters because a handler may claim anything about itself.
    """
    return context.runs == before and result.is_replayed


def has_run_nothing(result: ToolResult | None, context: ToolContext, before: int) -> bool:
    """Return whether nothing ran since then. There may be no result, because the call was cancelled or raised."""
    if not isinstance(result, ToolResult):
        return context.runs == before
    return find_executed(result, context, before) is False


def round_up(seconds: float) -> float:
    """Return the seconds rounded up to whole milliseconds, so a rounding error makes no caller come too early."""
    return math.ceil(seconds * 1000) / 1000


def check_whole_number(name: str, value: Any) -> int:
    """Return the value if it is a whole number of at least 1.

    Raises:
        DefinitionError: The value is anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DefinitionError(f"{name} must be a whole number of at least 1, not {value!r}")
    return value


LARGEST_NUMBER = 1e200  # an integer may be larger than any float, and a product of it larger still


def check_number(name: str, value: Any, *, zero: bool = False, limit: float = math.inf) -> float:
    """Return the value as a float if it is a finite number above 0 and at most `limit`. With `zero`, 0 is valid too.

    Raises:
        DefinitionError: The value is anything else.
    """
    is_valid = not isinstance(value, bool) and isinstance(value, int | float) and 0 <= value < LARGEST_NUMBER
    if not is_valid or value > limit or (value == 0 and not zero):
        lower = "from 0" if zero else "above 0"
        upper = "" if limit == math.inf else f" up to {limit:g}"
        raise DefinitionError(f"{name} must be a number {lower}{upper}, not {value!r}")
    return float(value)


def function(name: str, value: Any) -> Any:
    """Return the value if it is a plain function or None.

    Raises:
        DefinitionError: The value is anything else.
    """
    if value is not None and (not callable(value) or is_async(value)):
        raise DefinitionError(f"{name} must be a plain function, not {value!r}")
    return value


class MiddlewareClock:
    """The clock of a middleware: its own, or that of the first runner to call it.

    Raises:
        DefinitionError: The argument is not a clock.
    """

    __slots__ = ("_clock",)

    def __init__(self, name: str, clock: Clock | None) -> None:
        self._clock = options.check_clock(f"{name}(clock)", clock)

    def get(self, context: ToolContext) -> Clock:
        """Return the clock for the call with this context."""
        clock = self._clock
        if clock is None:
            clock = self._clock = context.clock or MONOTONIC
        return clock

    def time(self) -> float:
        """Return the current seconds of the clock, when no call is at hand."""
        return (self._clock or MONOTONIC).time()


def make_limited_result(error: str, retry_after: float | None = None) -> ToolResult:
    """Return the result of a call that a limit stopped. Nothing was run.

    Args:
        error: A description of the limit. The time of the next try is added.
        retry_after: Seconds until another try may succeed, or None if waiting does not help.
    """
    suffix = "" if retry_after is None else f" Try again in {_format_wait(retry_after)}."
    metadata = None if retry_after is None else {"retry_after": retry_after}
    return ToolResult(None, f"{error} Nothing was run.{suffix}", metadata, status="limited", executed=False)


def check_shared_limits(name: str, value: Any) -> SharedLimits | None:
    """Return the value if it is from `share_limits(…)` or None.

    Raises:
        DefinitionError: The value is anything else.
    """
    if value is not None and not isinstance(value, SharedLimits):
        raise DefinitionError(f"{name}(limits) must be made by ferrule.stores.share_limits(…), not {value!r}")
    return value


def make_uncounted_result(name: str, call: ToolCall, error: StoreError) -> ToolResult:
    """Return the result of a call that was not run because the shared counts are unavailable."""
    log.error("%s: a call of tool %r was not run: the shared limits are unavailable: %s", name, call.name, error)
    return make_limited_result(f"{call.name} could not be called: the shared limits are unavailable.")


def _format_wait(seconds: float) -> str:
    return f"{math.ceil(seconds)} s" if seconds < 120 else f"{math.ceil(seconds / 60)} minutes"
