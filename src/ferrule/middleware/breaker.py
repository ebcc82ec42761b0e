"""`breaker(failures)`: what fails again and again is left alone for a while."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable
from typing import Any

from ferrule.core.clock import MONOTONIC, Clock
from ferrule.core.context import ToolContext
from ferrule.core.types import Next
from ferrule.core.values import ToolCall, ToolResult, limited
from ferrule.middleware._counted import By, function, keyed, number, rounded_up, ticking, whole

_KEYS_AT_MOST = 10_000
_NO_TIME = 0.01  # seconds: a timer may come a little before its time


def breaker(
    failures: int = 5,
    seconds: float = 30.0,
    *,
    probes: int = 1,
    when: Callable[[ToolResult], bool] | None = None,
    by: By = "tool",
    clock: Clock = MONOTONIC,
) -> Breaker:
    """A middleware that stops calling what has failed `failures` times in a row.

        closed     every call goes through; a success ends the row of failures
        open       every call is `limited`, with a `retry_after`, until `seconds` have passed
        half-open  `probes` calls at a time go through: one that succeeds closes it, one that fails opens it again

    What failed is a failure, and so is a deadline that comes before the tool is done. What was limited or came from a
    cache further in, or was cancelled from outside, is neither a failure nor a success.

    Args:
        failures: How many in a row, at least 1.
        seconds: How long it stays open.
        probes: How many calls at a time try whether it works again.
        when: Whether a result that is no success is a failure; left out, it is. With `lambda result: not
            isinstance(result.exception, LookupError)`, what was not found says nothing about the service.
        by: What has a breaker of its own: `"tool"`, `"principal"`, `"session"` or `"all"`; several; or a function of
            call and context that gives the key. Where it raises or gives no key, the call fails and nothing is run.
        clock: What tells the time.

    Raises:
        DefinitionError: for parameters that could not work.
    """
    return Breaker(failures, seconds, probes, when, by, clock)


class _Circuit:
    """One that has failed. Those that have not have none, so that a success costs a look into a dict."""

    __slots__ = ("failures", "probing", "until")

    def __init__(self) -> None:
        self.failures = 0
        self.probing: list[ToolContext[Any]] = []
        self.until: float | None = None  # when it becomes half-open; None while it is closed


class Breaker:
    """What `breaker` makes."""

    def __init__(self, failures: int, seconds: float, probes: int, when: Any, by: By, clock: Clock) -> None:
        self._most = whole("breaker(failures)", failures)
        self._seconds = number("breaker(seconds)", seconds)
        self._probes = whole("breaker(probes)", probes)
        self._when = function("breaker(when)", when)
        self._key = keyed("breaker", by)[0]
        self._time = ticking("breaker", clock).time
        self._circuits: dict[Hashable, _Circuit] = {}
        self._lock = threading.Lock()

    async def __call__(self, call: ToolCall, context: ToolContext[Any], next: Next) -> ToolResult:
        key = self._key(call, context)
        probe: _Circuit | None = None
        if key in self._circuits:
            entered = self._entered(key, call, context)
            if isinstance(entered, ToolResult):
                return entered
            probe = entered
        failed: bool | None = None
        try:
            result = await next(call, context)
            failed = False if result.status == "ok" and result.executed else self._judged(result)
            return result
        except asyncio.CancelledError:
            remaining = context.remaining()
            failed = True if remaining is not None and remaining < _NO_TIME else None
            raise
        except Exception:
            failed = True
            raise
        finally:
            if failed or key in self._circuits or probe is not None:
                self._ended(key, context, probe, failed)

    def _judged(self, result: ToolResult) -> bool | None:
        """Whether it is a failure; `None` where it tells nothing."""
        if result.status == "ok":
            return None if result.executed is False else False
        if result.status == "failed" or (result.status == "timeout" and result.executed is not False):
            return True if self._when is None or self._when(result) else None
        return None

    def _entered(self, key: Hashable, call: ToolCall, context: ToolContext[Any]) -> _Circuit | ToolResult | None:
        """`None` while it is closed, the circuit for a probe, or the answer that it is open."""
        with self._lock:
            circuit = self._circuits.get(key)
            if circuit is None or circuit.until is None:
                return None
            wait = circuit.until - self._time()
            circuit.probing = [one for one in circuit.probing if not _given_up(one)]
            if wait <= 0 and len(circuit.probing) < self._probes:
                circuit.probing.append(context)
                return circuit
            said = f"{call.name} is not called for the time being: {circuit.failures} calls in a row have failed."
            return limited(said, rounded_up(wait if wait > 0 else min(1.0, self._seconds)))

    def _ended(self, key: Hashable, context: ToolContext[Any], probe: _Circuit | None, failed: bool | None) -> None:
        with self._lock:
            circuit = self._circuits.get(key)
            if probe is not None:
                probe.probing = [one for one in probe.probing if one is not context]
                if circuit is not probe:  # closed meanwhile, by another probe or by `forget`
                    return
            elif circuit is not None and circuit.until is not None:
                return  # it began while it was closed: once open, only probes tell
            if failed is False:
                self._circuits.pop(key, None)
            elif failed:
                self._failed(key, circuit)

    def _failed(self, key: Hashable, circuit: _Circuit | None) -> None:
        if circuit is None:
            if len(self._circuits) >= _KEYS_AT_MOST:
                del self._circuits[next(iter(self._circuits))]
            circuit = self._circuits[key] = _Circuit()
        circuit.failures += 1
        if circuit.failures >= self._most:  # as it is after every probe
            circuit.until = self._time() + self._seconds

    def is_open(self, key: Hashable) -> bool:
        """Whether calls for `key` (a tool's name, what `by` gives) are refused at present."""
        with self._lock:
            circuit = self._circuits.get(key)
            return circuit is not None and circuit.until is not None and circuit.until > self._time()

    def forget(self, key: Hashable) -> None:
        """Close it for `key`, as if nothing had failed."""
        with self._lock:
            self._circuits.pop(key, None)


def _given_up(context: ToolContext[Any]) -> bool:
    """Whether the call has its result already: a handler that outlived its deadline may never end."""
    return context._state is not None and context._state.ended
