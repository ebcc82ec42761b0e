"""`breaker(failures)`: what fails again and again is left alone for a while."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Hashable
from typing import Any

from ferrule.middleware._counted import By, Ticking, function, keyed, limited, number, replayed, rounded_up, whole
from ferrule.scheduling.clock import Clock
from ferrule.types import Next
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult

_KEYS_AT_MOST = 10_000
_NO_TIME = 0.01  # seconds: a timer may come a little before its time


def breaker(
    failures: int = 5,
    seconds: float = 30.0,
    *,
    probes: int = 1,
    when: Callable[[ToolResult], bool] | None = None,
    by: By = "tool",
    clock: Clock | None = None,
) -> Breaker:
    """A middleware that stops calling what has failed `failures` times in a row. See docs/limits.md.

        closed     every call goes through; a success ends the row of failures
        open       every call is `limited`, with a `retry_after`, until `seconds` have passed
        half-open  `probes` calls at a time go through: one that succeeds closes it, one that fails opens it again

    What failed is a failure, and so is a deadline that comes before the tool is done, whatever its handler makes of
    that; it counts when the handler ends, which is later where that takes no notice of being cancelled. What was
    limited, came from a cache further in (a failure that was shared there counts once), or was cancelled from outside,
    is neither a failure nor a success. A probe that is given up, at its deadline or from outside, makes room for
    another, also where its handler runs on.

    Put it in `inside`, where each attempt of a `retry` counts; in `around`, a call counts once with all its attempts.

    It remembers 10,000 keys that have failed. For one more it forgets one that is closed, else one whose time is up;
    where all are open, calls for keys that it could not remember are refused too, until the first of them is half-open.

    Args:
        failures: How many in a row, at least 1.
        seconds: How long it stays open.
        probes: How many calls at a time try whether it works again.
        when: Whether a result that is no success is a failure; left out, it is. With `lambda result: not
            isinstance(result.exception, LookupError)`, what was not found says nothing about the service.
        by: What has a breaker of its own: `"tool"`, `"principal"`, `"session"` or `"all"`; several; or a function of
            call and context that gives the key. Where it raises or gives no key, the call fails and nothing is run.
        clock: What tells the time; left out, what the runner goes by that calls it first.

    Raises:
        DefinitionError: for parameters that could not work.
    """
    return Breaker(failures, seconds, probes, when, by, clock)


class _Circuit:
    """One that has failed. Those that have not have none, so that a success costs a look into a dict."""

    __slots__ = ("failures", "probes", "until")

    def __init__(self) -> None:
        self.failures = 0
        self.probes: list[_Probe] = []
        self.until = -math.inf  # when it becomes half-open


class _Probe:
    """A call that tries whether it works again."""

    __slots__ = ("_cancels", "_task", "circuit")

    def __init__(self, circuit: _Circuit) -> None:
        self.circuit = circuit
        self._task = asyncio.current_task()
        self._cancels = 0 if self._task is None else self._task.cancelling()

    @property
    def given_up(self) -> bool:
        """Whether nobody waits for it any more: its deadline came, it was cancelled, or its loop is closed. What its
        handler makes of that may take for ever."""
        task = self._task
        return task is not None and (task.cancelling() > self._cancels or task.get_loop().is_closed())


class Breaker:
    """What `breaker` makes."""

    def __init__(self, failures: int, seconds: float, probes: int, when: Any, by: By, clock: Clock | None) -> None:
        self._most = whole("breaker(failures)", failures)
        self._seconds = number("breaker(seconds)", seconds)
        self._probes = whole("breaker(probes)", probes)
        self._when = function("breaker(when)", when)
        self._key = keyed("breaker", by)[0]
        self._clock = Ticking("breaker", clock)
        self._closed: dict[Hashable, _Circuit] = {}  # the first that failed is the first
        self._open: dict[Hashable, _Circuit] = {}  # and half-open; the first whose time is up is the first
        self._lock = threading.Lock()

    async def __call__(self, call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        key = self._key(call, context)
        probe: _Probe | None = None
        self._clock.of(context)
        if key in self._open or len(self._open) >= _KEYS_AT_MOST:
            entered = self._entered(key, call)
            if isinstance(entered, ToolResult):
                return entered
            probe = entered
        failed: bool | None = None
        before = context.runs
        try:
            result = await next(call, context)
            failed = None if replayed(result, context, before) else self._judged(result, context)
            return result
        except asyncio.CancelledError:
            remaining = context.remaining()
            failed = True if remaining is not None and remaining < _NO_TIME else None
            raise
        except Exception:
            failed = True
            raise
        finally:
            if failed or probe is not None or key in self._closed:
                self._ended(key, probe, failed)

    def _judged(self, result: ToolResult, context: ToolContext) -> bool | None:
        """Whether it is a failure; `None` where it tells nothing."""
        if result.executed is False and result.status == "ok":
            return None
        if result.status == "ok":
            return context.remaining(own=True) == 0  # its deadline came first
        if result.status == "failed" or (result.status == "timeout" and result.executed is not False):
            return True if self._when is None or self._when(result) else None
        return None

    def _entered(self, key: Hashable, call: ToolCall) -> _Probe | ToolResult | None:
        """`None` while it is closed, the probe, or the answer that it is not called."""
        with self._lock:
            circuit = self._open.get(key)
            if circuit is None:
                wait = self._without_room(key)
                said = f"{call.name} is not called for the time being: {_KEYS_AT_MOST} others have failed too often."
                return limited(said, rounded_up(wait)) if wait > 0 else None
            wait = circuit.until - self._clock.time()
            circuit.probes = [one for one in circuit.probes if not one.given_up]
            if wait <= 0 and len(circuit.probes) < self._probes:
                probe = _Probe(circuit)
                circuit.probes.append(probe)
                return probe
            said = f"{call.name} is not called for the time being: {circuit.failures} calls in a row have failed."
            return limited(said, rounded_up(wait if wait > 0 else min(1.0, self._seconds)))

    def _ended(self, key: Hashable, probe: _Probe | None, failed: bool | None) -> None:
        with self._lock:
            circuit = self._open.get(key)
            if probe is not None:
                probe.circuit.probes = [one for one in probe.circuit.probes if one is not probe]
                if circuit is not probe.circuit:  # closed meanwhile, by another probe or by `forget`
                    return
            elif circuit is not None:
                return  # it began while it was closed: once open, only probes tell
            if failed is False:
                self._open.pop(key, None)
                self._closed.pop(key, None)
            elif failed:
                self._failed(key)

    def _failed(self, key: Hashable) -> None:
        circuit = self._open.pop(key, None) or self._closed.pop(key, None)
        if circuit is None:
            if self._without_room(key) > 0:
                return
            if len(self._closed) + len(self._open) >= _KEYS_AT_MOST:
                forgotten = self._closed or self._open
                del forgotten[next(iter(forgotten))]
            circuit = _Circuit()
        circuit.failures += 1
        if circuit.failures < self._most:
            self._closed[key] = circuit
        else:  # as it is after every probe
            circuit.until = self._clock.time() + self._seconds
            self._open[key] = circuit

    def _without_room(self, key: Hashable) -> float:
        """Seconds until a failure for `key` can be remembered; 0 where it can be now."""
        if len(self._open) < _KEYS_AT_MOST or key in self._open:
            return 0.0
        return max(0.0, next(iter(self._open.values())).until - self._clock.time())

    def is_open(self, key: Hashable) -> bool:
        """Whether calls for `key` (a tool's name, what `by` gives) are refused at present."""
        with self._lock:
            circuit = self._open.get(key)
            return self._without_room(key) > 0 if circuit is None else circuit.until > self._clock.time()

    def forget(self, key: Hashable) -> None:
        """Close it for `key`, as if nothing had failed."""
        with self._lock:
            self._open.pop(key, None)
            self._closed.pop(key, None)
