"""`breaker(failures)`: stop calling a failing tool for a while."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Hashable
from typing import Any

from ferrule.middleware._limits import (
    By,
    MiddlewareClock,
    check_number,
    check_whole_number,
    function,
    is_replay,
    make_key,
    make_limited_result,
    round_up,
)
from ferrule.scheduling.clock import Clock
from ferrule.types import Next
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.count import format_count
from ferrule.values.result import ToolResult

_MOST_KEYS = 10_000
_NO_TIME = 0.01  # seconds: a timer may fire a little early


def breaker(
    failures: int = 5,
    seconds: float = 30.0,
    *,
    probes: int = 1,
    when: Callable[[ToolResult], bool] | None = None,
    by: By = "tool",
    clock: Clock | None = None,
) -> Breaker:
    """Return a middleware that stops calling a tool after `failures` failures in a row. See docs/limits.md.

        closed     every call goes through; a success ends the row of failures
        open       every call is `limited`, with a `retry_after`, until `seconds` have passed
        half-open  `probes` calls at a time go through: one that succeeds closes it, one that fails opens it again

    A failed call is a failure. So is a deadline before the tool is done, whatever the handler does about it; this
    counts when the handler ends, which is later if it ignores its cancellation. A call is neither a failure nor a
    success if it was limited, came from a cache further in (a shared failure counts once) or was cancelled from
    outside. An abandoned probe, at its deadline or from outside, makes room for another, even if its handler runs on.

    Put it in `inside` to count each attempt of a `retry`. In `around`, a call counts once with all its attempts.

    It remembers 10,000 keys with failures. For one more it forgets a closed one, else one whose time is up. If all are
    open, calls for further keys are refused too, until the first of them is half-open.

    Args:
        failures: The failures in a row that open it, at least 1.
        seconds: The time for which it stays open.
        probes: The number of calls at a time that test whether the tool works again.
        when: Whether a result without success is a failure. By default it is. With `lambda result: not
            isinstance(result.exception, LookupError)`, a missing item says nothing about the service.
        by: The scope of one breaker: `"tool"`, `"principal"`, `"session"` or `"all"`; several; or a function of call
            and context that returns the key. If the function raises or returns no key, the call fails and nothing is
            run.
        clock: The clock; by default that of the first runner to call it.

    Raises:
        DefinitionError: A parameter is not valid.
    """
    return Breaker(failures, seconds, probes, when, by, clock)


class _Circuit:
    """The state of a key with failures. Other keys have no circuit, so a success costs only a look into a dict."""

    __slots__ = ("failures", "probes", "until")

    def __init__(self) -> None:
        self.failures = 0
        self.probes: list[_Probe] = []
        self.until = -math.inf  # the time when it becomes half-open


class _Probe:
    """A call that tests whether the tool works again."""

    __slots__ = ("_cancels", "_task", "circuit")

    def __init__(self, circuit: _Circuit) -> None:
        self.circuit = circuit
        self._task = asyncio.current_task()
        self._cancels = 0 if self._task is None else self._task.cancelling()

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits for it any more: its deadline came, it was cancelled, or its loop is closed.

        The handler may take forever to react to that.
        """
        task = self._task
        return task is not None and (task.cancelling() > self._cancels or task.get_loop().is_closed())


class Breaker:
    """The middleware of `breaker`."""

    def __init__(self, failures: int, seconds: float, probes: int, when: Any, by: By, clock: Clock | None) -> None:
        self._limit = check_whole_number("breaker(failures)", failures)
        self._seconds = check_number("breaker(seconds)", seconds)
        self._probes = check_whole_number("breaker(probes)", probes)
        self._when = function("breaker(when)", when)
        self._key = make_key("breaker", by)[0]
        self._clock = MiddlewareClock("breaker", clock)
        self._closed: dict[Hashable, _Circuit] = {}  # in order of the first failure
        self._open: dict[Hashable, _Circuit] = {}  # and half-open; in the order in which their time ends
        self._lock = threading.Lock()

    async def __call__(self, call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        key = self._key(call, context)
        probe: _Probe | None = None
        self._clock.get(context)
        if key in self._open or len(self._open) >= _MOST_KEYS:
            admitted = self._admit(key, call)
            if isinstance(admitted, ToolResult):
                return admitted
            probe = admitted
        is_failure: bool | None = None
        before = context.runs
        try:
            result = await next(call, context)
            is_failure = None if is_replay(result, context, before) else self._find_failure(result, context)
            return result
        except asyncio.CancelledError:
            remaining = context.remaining()
            is_failure = True if remaining is not None and remaining < _NO_TIME else None
            raise
        except Exception:
            is_failure = True
            raise
        finally:
            if is_failure or probe is not None or key in self._closed:
                self._on_end(key, probe, is_failure)

    def _find_failure(self, result: ToolResult, context: ToolContext) -> bool | None:
        """Return whether the result is a failure, or None if it is neither failure nor success."""
        if result.executed is False and result.status == "ok":
            return None
        if result.status == "ok":
            return context.remaining(own=True) == 0  # its deadline came first
        if result.status == "failed" or (result.status == "timeout" and result.executed is not False):
            return True if self._when is None or self._when(result) else None
        return None

    def _admit(self, key: Hashable, call: ToolCall) -> _Probe | ToolResult | None:
        """Return None if the circuit is closed, a probe if one may go through, else the result of the refused call."""
        with self._lock:
            circuit = self._open.get(key)
            if circuit is None:
                wait = self._seconds_until_room(key)
                error = f"{call.name} is not called for now: {_MOST_KEYS} other breakers are open."
                return make_limited_result(error, round_up(wait)) if wait > 0 else None
            wait = circuit.until - self._clock.time()
            circuit.probes = [one for one in circuit.probes if not one.is_abandoned]
            if wait <= 0 and len(circuit.probes) < self._probes:
                probe = _Probe(circuit)
                circuit.probes.append(probe)
                return probe
            error = f"{call.name} is not called for now: {format_count(circuit.failures, 'call')} in a row failed."
            return make_limited_result(error, round_up(wait if wait > 0 else min(1.0, self._seconds)))

    def _on_end(self, key: Hashable, probe: _Probe | None, is_failure: bool | None) -> None:
        with self._lock:
            circuit = self._open.get(key)
            if probe is not None:
                probe.circuit.probes = [one for one in probe.circuit.probes if one is not probe]
                if circuit is not probe.circuit:  # closed meanwhile, by another probe or by `forget`
                    return
            elif circuit is not None:
                return  # the call began while it was closed: once open, only probes count
            if is_failure is False:
                self._open.pop(key, None)
                self._closed.pop(key, None)
            elif is_failure:
                self._count_failure(key)

    def _count_failure(self, key: Hashable) -> None:
        circuit = self._open.pop(key, None) or self._closed.pop(key, None)
        if circuit is None:
            if self._seconds_until_room(key) > 0:
                return
            if len(self._closed) + len(self._open) >= _MOST_KEYS:
                circuits = self._closed or self._open
                del circuits[next(iter(circuits))]
            circuit = _Circuit()
        circuit.failures += 1
        if circuit.failures < self._limit:
            self._closed[key] = circuit
        else:  # also after a failed probe
            circuit.until = self._clock.time() + self._seconds
            self._open[key] = circuit

    def _seconds_until_room(self, key: Hashable) -> float:
        """Return the seconds until a failure for `key` can be remembered: 0 if it can be now."""
        if len(self._open) < _MOST_KEYS or key in self._open:
            return 0.0
        return max(0.0, next(iter(self._open.values())).until - self._clock.time())

    def is_open(self, key: Hashable) -> bool:
        """Return whether calls for `key` (a tool's name, or the key from `by`) are refused at present."""
        with self._lock:
            circuit = self._open.get(key)
            return self._seconds_until_room(key) > 0 if circuit is None else circuit.until > self._clock.time()

    def forget(self, key: Hashable) -> None:
        """Close it for `key`, as if nothing had failed."""
        with self._lock:
            self._open.pop(key, None)
            self._closed.pop(key, None)
