"""`faults(tools)`: the same tools, which are sometimes slow, sometimes fail and sometimes hang, by a seed."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any, NoReturn, TypeAlias

from ferrule.definition import options
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError, ToolError
from ferrule.scheduling.clock import MONOTONIC, Clock
from ferrule.testing.fake import format_seed, make_exception, make_salt, to_toolset
from ferrule.types import Next
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.frozen import FrozenDict
from ferrule.values.result import ToolResult

Latency: TypeAlias = float | tuple[float, float] | Callable[[Random], float]
"""Seconds: a fixed number, a range, or a function that draws them."""

_COMMON_ERRORS = (ConnectionError("the connection was lost"), OSError("the service is not available"))


def faults(
    tools: Toolset | Iterable[Any] | Any,
    *,
    seed: int | str = 0,
    latency: Latency = 0.0,
    errors: float = 0.0,
    timeouts: float = 0.0,
    before: float = 0.5,
    kinds: Iterable[Exception | type[Exception]] = _COMMON_ERRORS,
    clock: Clock | None = None,
) -> Toolset:
    """Return the same tools, with faults made by the seed. They are the innermost middleware of each, next to its
    handler. See docs/testing.md.

    A call is slow first (`latency`), then it may fail or hang, before its handler runs or after: the model reads the
    same in both cases, as in life. An error has the same effect as an error of the handler. A hang ends at the call's
    deadline or by its cancellation; a call without a deadline fails, and says that it would hang for ever. The fault
    depends on the seed, the tool's name, the arguments and the number of earlier attempts of that very call: not on
    other calls, nor on the process. A higher rate keeps the faults that a lower one made.

    Observers see each fault when it is made, in a `tool:progress` event with `data["fault"]`. The result has
    its last fault in `metadata["fault"]`, unless the call was stopped from outside, such as by its deadline. A fault is
    a dict with `kind` (`"latency"`, `"error"` or `"timeout"`), `seconds` (the latency), and for the latter two `ran`
    (whether the handler was run) and `error` (the raised error as text, or `None`).
    Args:
        tools: A toolset, a list of anything that makes one, or one tool.
        seed: Other seeds make other faults.
        latency: Seconds before the handler: a number, a range `(least, most)`, or a function of a `random.Random` that
            is seeded for the call, such as `lambda draw: draw.expovariate(2)`.
        errors: The share of calls that fail, 0 to 1.
        timeouts: The share of calls that hang, 0 to 1; with `errors`, at most 1.
        before: The share of errors and hangs that come before the handler is run, 0 to 1; the others come after it, if
            it did not fail by itself.
        kinds: The exceptions to fail with, or classes that need no arguments.
        clock: The clock of the latency: `ferrule.testing.ManualClock` if a test moves it by hand; if left out, the
            clock of the runner.

    Raises:
        DefinitionError: The rates, the latency, the seed or the kinds are impossible.
    """
    maker = _Faults(format_seed("faults", seed), latency, errors, timeouts, before, kinds, clock)
    return to_toolset(tools).map(lambda tool: tool.replace(inside=(*tool.inside, maker)))


class _Faults:
    """The middleware that makes the faults. It counts the attempts of each call."""

    def __init__(
        self,
        seed: str,
        latency: Latency,
        errors: float,
        timeouts: float,
        before: float,
        kinds: Iterable[Exception | type[Exception]],
        clock: Clock | None,
    ) -> None:
        self._seed = seed
        self._latency = _latency(latency)
        self._errors = _check_share("errors", errors)
        self._timeouts = _check_share("timeouts", timeouts)
        self._before = _check_share("before", before)
        self._kinds = _make_exceptions(kinds)
        self._clock = options.check_clock("faults(clock)", clock)
        self._tried: dict[str, itertools.count[int]] = {}
        if errors + timeouts > 1:
            raise DefinitionError(
                f"faults: errors={errors!r} and timeouts={timeouts!r} are shares of all calls, and their sum exceeds 1"
            )
        if errors and not self._kinds:
            raise DefinitionError("faults: kinds is empty although errors > 0; pass the exceptions to fail with")

    async def __call__(self, call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        fault, error = self._draw_fault(call)
        seconds = fault["seconds"]
        slow = FrozenDict(kind="latency", seconds=seconds) if seconds else None
        if slow:
            _announce(context, slow)
            await (self._clock or context.clock or MONOTONIC).sleep(seconds)
        if fault["kind"] == "latency":
            return _mark_fault(await next(call, context), slow)
        if fault["ran"]:
            result = await next(call, context)
            if not result.success:
                return _mark_fault(result, slow)
        _announce(context, fault)
        if error is None:
            await _hang(context)
        return _mark_fault(context.failure(error), fault)

    def _draw_fault(self, call: ToolCall) -> tuple[FrozenDict, Exception | None]:
        """Return the fault of this attempt, and the error to raise."""
        key = make_salt(self._seed, call)
        salt = f"{key} {next(self._tried.setdefault(key, itertools.count()))}"
        draw = Random(salt)
        which, when, kind = draw.random(), draw.random(), draw.random()
        seconds = _check_seconds(self._latency(Random(f"{salt} latency")))
        ran = when >= self._before
        if which < self._errors:
            error = self._kinds[int(kind * len(self._kinds))]
            error_text = f"{type(error).__name__}: {error}"
            return FrozenDict(kind="error", seconds=seconds, ran=ran, error=error_text), error
        if which >= 1 - self._timeouts:  # from the other end, so that neither rate moves the faults of the other
            return FrozenDict(kind="timeout", seconds=seconds, ran=ran, error=None), None
        return FrozenDict(kind="latency", seconds=seconds), None


def _announce(context: ToolContext, fault: FrozenDict) -> None:
    context.mark_started()  # a call that is stopped here may have had its effect, as far as anybody knows
    context.announce({"fault": fault})


def _mark_fault(result: ToolResult, fault: Mapping[str, Any] | None) -> ToolResult:
    return result.replace(metadata={**result.metadata, "fault": fault}) if fault else result


async def _hang(context: ToolContext) -> NoReturn:
    """Never end by itself.

    Raises:
        ToolError: Nothing else would end it.
    """
    if context.remaining() is None:
        raise ToolError(
            "a fault made it hang, and it has no deadline that would end that; give the runner, the tool or the call "
            "a timeout=…"
        )
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody sets this future")


def _check_share(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise DefinitionError(f"faults: {name} must be a share from 0 to 1, not {value!r}")
    return float(value)


def _check_seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (0 <= value < math.inf):
        raise DefinitionError(f"faults: latency must be in seconds from 0 upwards, not {value!r}")
    return float(value)


def _latency(value: Any) -> Callable[[Random], float]:
    if callable(value):
        return value  # type: ignore[no-any-return]
    least, most = map(_check_seconds, value if isinstance(value, tuple | list) and len(value) == 2 else (value, value))
    if least > most:
        raise DefinitionError(f"faults: latency is (least, most) in seconds, and {least!r} is more than {most!r}")
    return lambda draw: least + (most - least) * draw.random()


def _make_exceptions(kinds: Any) -> tuple[Exception, ...]:
    if not isinstance(kinds, Iterable):
        raise DefinitionError(f"faults: kinds must be a tuple of exceptions, such as (OSError('gone'),), not {kinds!r}")
    return tuple(make_exception("faults: one of kinds", kind) for kind in kinds)
