"""Run thousands of independent calls, some at once, with results as they end and bounded memory.

    batch = run_many(runner, calls, concurrency=32, session="2026-11-29")
    async for result in batch: ...
    print(batch.summary)

See docs/long-work.md#many-calls.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import sys
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Generator,
    Iterable,
    Sized,
)
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, TypeAlias, Unpack

from ferrule.definition.options import ContextOptions, build_context, check_count, check_observers
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError
from ferrule.runner import Runner
from ferrule.types import Coro, Observer
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.count import format_count
from ferrule.values.result import ToolResult

Calls: TypeAlias = Iterable[ToolCall] | AsyncIterable[ToolCall]
_MOST_UNKNOWN_IDS = 1000
_IDS_IN_TEXT = 3
_DRAWS_PER_SECOND = 10


def run_many(
    runner: Runner,
    calls: Calls,
    context: ToolContext[Any] | None = None,
    *,
    concurrency: int,
    observers: Iterable[Observer] = (),
    offered: Toolset | None = None,
    turn: str | None = None,
    progress: bool = False,
    **given: Unpack[ContextOptions],
) -> LongBatch:
    """Return a handle on independent calls from any iterable, also an async one.

    The calls begin when you read the handle: iterate over it for the results as they come, or await it for a summary.

    See docs/long-work.md#many-calls.

    Args:
        concurrency: Calls that run at once. The batch holds no more calls and results than that.
        progress: Show the progress on standard error, if that is a terminal.
        observers, offered, turn: As in `Runner.run`, for each call.

    Raises:
        DefinitionError: An option is not valid.
    """
    names = ("concurrency", "observers", "offered", "turn", "progress")
    context = build_context(context, given, "run_many", names)
    at_once = check_count("concurrency", concurrency)
    if at_once is None:
        raise DefinitionError("run_many needs concurrency=…, the number of calls that run at once, such as 32")
    seen_by = check_observers("observers", observers)
    run = partial(runner.run, context=context, observers=seen_by, offered=offered, turn=turn)
    return LongBatch(calls, run, at_once, needs_ids=runner.journal is not None, progress=progress)


@dataclass
class BatchSummary:
    """The results of a long batch so far, counted. See docs/long-work.md#many-calls.

    Attributes:
        counts: How many calls came to each status.
        replayed: How many results came from the journal.
        unknown: The ids of the first 1,000 calls whose outcome is unknown.
        seconds: Seconds since the batch began.
    """

    counts: Counter[str] = field(default_factory=Counter)
    replayed: int = 0
    unknown: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, result: ToolResult) -> None:
        """Count one result."""
        self.counts[result.status] += 1
        self.replayed += result.is_replayed
        if result.status == "unknown" and len(self.unknown) < _MOST_UNKNOWN_IDS:
            self.unknown.append(result.call_id)

    def __str__(self) -> str:
        parts = [f"{count:,} {status}" for status, count in self.counts.most_common()]
        if self.replayed:
            parts.append(f"{self.replayed:,} of them from the journal")
        text = f"{format_count(self.counts.total(), 'call')} in {self.seconds:.1f} s: {', '.join(parts) or 'none'}"
        if self.unknown:
            more = ", …" if len(self.unknown) > _IDS_IN_TEXT else ""
            text += f" (unknown: {', '.join(self.unknown[:_IDS_IN_TEXT])}{more})"
        return text


class LongBatch:
    """A handle on many independent calls, made by `run_many`.

    Iterate over it by `async for` for each result as it comes, or await it for the summary. It takes the next call when
    fewer than `concurrency` run or wait to be read, so it holds no more than that many calls and results. Calls wait
    only for the slots, keys and rates that they share. See docs/long-work.md#many-calls.

    If you are cancelled while you wait for a result, its calls are cancelled too. If you leave the iteration by
    `break`, it takes no further call, and the running calls finish.

    Attributes:
        summary: The results so far, counted.
    """

    def __init__(
        self,
        calls: Calls,
        run: partial[Coro[ToolResult]],
        concurrency: int,
        *,
        needs_ids: bool,
        progress: bool,
    ) -> None:
        self.summary = BatchSummary()
        self._calls = calls
        self._run = run
        self._room = asyncio.Semaphore(concurrency)
        self._results: asyncio.Queue[ToolResult | None] = asyncio.Queue()
        self._running: set[asyncio.Task[None]] = set()
        self._needs_ids = needs_ids
        self._bar = _Bar(calls) if progress and sys.stderr.isatty() else None
        self._failure: Exception | None = None
        self._pulling: asyncio.Task[None] | None = None
        self._begun = self._cancelled = self._stopped = False

    def cancel(self, *, now: bool = False) -> None:
        """Take no further call, and let running calls finish. With `now=True`, cancel them too. Call it in the loop."""
        self._cancelled = True
        self._stopped = self._stopped or now
        for task in self._running if now else ():
            task.cancel()
        if self._pulling is not None:  # it waits for the source, or for room
            self._pulling.cancel()

    def __await__(self) -> Generator[Any, None, BatchSummary]:
        return self._read_all().__await__()

    async def _read_all(self) -> BatchSummary:
        async for _ in self:
            pass
        return self.summary

    async def __aiter__(self) -> AsyncIterator[ToolResult]:
        if self._begun:
            raise RuntimeError("a long batch is read once: call run_many(...) again")
        self._begun, began = True, monotonic()
        starting = self._pulling = asyncio.ensure_future(self._start_calls())
        _STARTING.add(starting)
        starting.add_done_callback(self._end_results)
        try:
            while (result := await self._next_result(starting)) is not None:
                self._room.release()
                self.summary.add(result)
                self.summary.seconds = monotonic() - began
                if self._bar is not None:
                    self._bar.draw(self.summary)
                yield result
            if not starting.cancelled():  # it was, if the batch was cancelled before its first call
                await starting
        finally:
            self.cancel()
            if self._bar is not None:
                self._bar.erase()

    async def _next_result(self, starting: asyncio.Task[None]) -> ToolResult | None:
        try:
            return await self._results.get()
        except asyncio.CancelledError:
            self.cancel(now=True)
            await asyncio.wait({starting})
            raise

    def _end_results(self, starting: asyncio.Task[None]) -> None:
        _STARTING.discard(starting)
        self._results.put_nowait(None)

    async def _start_calls(self) -> None:
        """Start each call when there is room, and wait for all."""
        if self._cancelled:
            return
        try:
            async with aclosing(self._checked_calls()) as calls:
                async for call in calls:
                    await self._room.acquire()
                    task = asyncio.ensure_future(self._run_one(call))
                    self._running.add(task)
                    task.add_done_callback(self._running.discard)
        except asyncio.CancelledError:
            if not self._cancelled:
                raise
        finally:
            self._pulling = None
            while self._running:
                await asyncio.wait(self._running)
        if self._failure is not None:
            raise self._failure

    async def _run_one(self, call: ToolCall) -> None:
        try:
            self._results.put_nowait(await self._run(call))
        except Exception as error:
            if not self._stopped:  # a mistake of the program; a call that is stopped may raise anything
                self._failure = error
                self.cancel()

    async def _checked_calls(self) -> AsyncGenerator[ToolCall, None]:
        number = 0
        async for call in _iterate(self._calls):
            number += 1
            if not isinstance(call, ToolCall):
                raise DefinitionError(f"call {number} of the batch must be a ToolCall(id, name, {{…}}), not {call!r}")
            if self._needs_ids and not call.id:
                raise DefinitionError(
                    f"call {number} of the batch has no id. With a journal each call needs one, such as the number of "
                    "an invoice: by its id Ferrule finds it again when you send the batch again"
                )
            yield call


_STARTING: set[asyncio.Task[None]] = set()  # the loop itself holds no task


async def _iterate(calls: Calls) -> AsyncIterator[Any]:
    if isinstance(calls, AsyncIterable):
        async for call in calls:
            yield call
    else:
        for call in calls:
            yield call


class _Bar:
    """One line on the terminal with the progress of a batch."""

    def __init__(self, calls: Calls) -> None:
        self._total = f"of {len(calls):,}: " if isinstance(calls, Sized) else ""
        self._drawn_at = -math.inf

    def draw(self, summary: BatchSummary) -> None:
        """Show the summary, if it was not shown just now."""
        if summary.seconds - self._drawn_at >= 1 / _DRAWS_PER_SECOND:
            self._drawn_at = summary.seconds
            self._write(f"{self._total}{summary}")

    def erase(self) -> None:
        """Erase the line."""
        self._write("")

    def _write(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        with suppress(OSError, ValueError):  # the terminal is gone
            print(f"\r\x1b[K{text[:width]}", end="", file=sys.stderr, flush=True)
