"""Several calls of one turn: what may run side by side does, the rest waits its turn, and every call has a result."""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ferrule.arguments.parameters import Invalid
from ferrule.arguments.repair import same_call
from ferrule.definition.toolset import Toolset
from ferrule.pipeline.acquire import resource_keys
from ferrule.pipeline.call import find_plan, receive, reject_at_once
from ferrule.pipeline.live_call import LiveCall
from ferrule.pipeline.results import CANCELLED, NOTHING_RUN, Rejected
from ferrule.pipeline.runner_state import RunnerState
from ferrule.pipeline.state import CallState, Origin
from ferrule.pipeline.tasks import start
from ferrule.scheduling.clock import end_of
from ferrule.scheduling.locks import Hold, KeyLocks
from ferrule.types import Coro, Observer
from ferrule.values.call import ToolCall, new_id
from ferrule.values.content import clean, cut
from ferrule.values.context import ContextFields
from ferrule.values.result import ToolResult

_Task = asyncio.Task[Any]
_AT_ONCE = 32


@dataclass(eq=False, kw_only=True)
class Entry:
    """A call's place in its batch.

    Attributes:
        call: The call, with an id.
        twin: The entry of the same call, where it came before; the call runs once.
        reused: Whether another call came before under the same id; then this one is answered, and never run.
        admitted: Whether its batch began before the runner was left, which then waits for it.
        beside: Whether the arguments as sent are why the call runs beside others.
        stopping: Whether its batch starts nothing more.
        state: The state of the call, once it has begun.
        task: Where it runs.
        result: What it came to; there before its task ends, which may be cut off while it writes the journal.
        listeners: Called with the entry when it has its result.
    """

    call: ToolCall
    listeners: Sequence[Callable[[Entry], object]]
    admitted: bool
    twin: Entry | None = None
    reused: bool = False
    beside: bool = False
    stopping: bool = False
    state: CallState | None = None
    task: asyncio.Task[ToolResult] | None = None
    result: ToolResult | None = None

    @property
    def runs(self) -> bool:
        """Whether the call has come to its handler."""
        return self.state is not None and self.state.attempt.executed is not False

    def end(self, result: ToolResult) -> None:
        """Keep what the call came to."""
        self.result = result
        for listener in self.listeners:
            listener(self)


class Lane(NamedTuple):
    """What a call may run beside.

    Attributes:
        alone: Nothing: it is a barrier.
        keys: What it shares with others.
        shared: Whether it goes beside others that share a key and go beside others.
    """

    alone: bool = False
    keys: tuple[str, ...] = ()
    shared: bool = True


ALONE = Lane(alone=True)
BESIDE = Lane()


class Batch:
    """A handle on several calls that run: await it for the list of results in call order, or iterate over it by
    `async for` for each result as it comes. Whoever is cancelled while awaiting it, or its next result, cancels the
    calls, as with a task; leaving the iteration by `break` lets them run. See docs/long-work.md.

    Calls start in order. One that may not run in parallel waits for all before it, and all after it wait for it;
    `resources` narrow that to the calls that share a key. What a call may run beside is told from its arguments as
    the model sent them; key locks and limits go by the judged ones, and a call that a guard made one to run alone is
    not run.
    """

    def __init__(
        self,
        runner: RunnerState,
        calls: list[ToolCall],
        fields: ContextFields,
        observers: tuple[Observer, ...],
        offered: Toolset | None,
        turn: str | None,
    ) -> None:
        self._runner = runner
        self._fields = fields
        self._observers = observers
        self._offered = offered
        self._turn = turn
        self._entries: list[Entry] = []
        self._listeners: list[Callable[[Entry], object]] = []
        first: dict[str, Entry] = {}
        for call in calls:
            call = call if call.id else call.replace(id=new_id())
            entry = Entry(call=call, listeners=self._listeners, admitted=not runner.leaving)
            self._entries.append(entry)
            before = first.setdefault(call.id, entry)
            if before is not entry:
                if same_call(before.call, call):
                    entry.twin = before
                else:
                    entry.reused = True
        self._cancelled = self._now = False
        self._task: asyncio.Task[list[ToolResult]]

    @property
    def results(self) -> list[ToolResult]:
        """One result for every call, at any time: of one that has not ended, that it has not."""
        found = []
        for entry in self._entries:
            first = entry.twin or entry
            found.append(first.result or self._open(entry.call, first.state is not None))
        return found

    def _open(self, call: ToolCall, started: bool) -> ToolResult:
        plan = find_plan(self._runner, call.name, self._offered)
        name = call.name if plan is None else plan.name
        if started:
            changes = plan is None or plan.changes
            error = f"The call has not ended; {'its effect may have happened' if changes else 'it changes nothing'}."
            return ToolResult(None, error, call=call, tool_name=name, status="unknown", executed=None)
        error = f"The call has not been started. {NOTHING_RUN}"
        return ToolResult(None, error, call=call, tool_name=name, status="cancelled", executed=False)

    def cancel(self, *, now: bool = False) -> None:
        """Start nothing new, and let finish what runs; the second time, or with `now=True`, stop that too.

        Each call still has its one result and its one terminal event: a call that had not come to its handler is
        `cancelled`, and so is one that is stopped. In the thread of the loop.
        """
        self._now = now or self._cancelled
        self._cancelled = True
        for entry in self._entries:
            if entry.task is None:
                continue
            entry.stopping = True  # no further attempt of what runs
            if self._now or not entry.runs:
                entry.task.cancel()

    def __await__(self) -> Generator[Any, None, list[ToolResult]]:
        return self._task.__await__()

    async def __aiter__(self) -> AsyncIterator[ToolResult]:
        ended: asyncio.Queue[Entry | None] = asyncio.Queue()
        for entry in self._entries:
            if entry.result is not None:
                ended.put_nowait(entry)
        self._listeners.append(ended.put_nowait)
        self._task.add_done_callback(lambda _: ended.put_nowait(None))
        calls = Counter(entry.twin or entry for entry in self._entries)
        while (first := await self._next(ended)) is not None:
            for _ in range(calls[first]):
                yield first.result  # type: ignore[misc]
        await self._task

    async def _next(self, ended: asyncio.Queue[Entry | None]) -> Entry | None:
        try:
            return await ended.get()
        except asyncio.CancelledError:  # as who awaits a task
            self._task.cancel()
            await asyncio.wait({self._task})
            raise

    def begin(self) -> Batch:
        """Run the calls in a task.

        Raises:
            RuntimeError: where no event loop runs, or the runner is busy on another one.
        """
        loop = get_running_loop()
        if loop is not self._runner.loop:
            self._runner.move_to(loop)
        self._runner.batches.add(self)
        self._task = loop.create_task(self._run())
        self._task.add_done_callback(lambda _: self._end())
        return self

    def _end(self) -> None:
        self._runner.batches.discard(self)
        self._runner.tell_idle()

    async def _run(self) -> list[ToolResult]:
        locks = KeyLocks()
        running: list[_Task] = []
        try:
            for begun, entry in enumerate([entry for entry in self._entries if entry.twin is None], 1):
                if begun % _AT_ONCE == 0:  # or a thousand begin before the first can go on
                    await asyncio.sleep(0)
                lane = self._lane(entry)
                if lane.alone:
                    await _all(running)
                    running.clear()
                if self._cancelled:  # also by what a tool says about its own arguments
                    break
                task = self._begin(entry, locks.join(lane.keys, shared=lane.shared) if lane.keys else None)
                if lane.alone:
                    await _all([task])
                elif not task.done():
                    running.append(task)
            await _all(running)
        except asyncio.CancelledError:
            self.cancel(now=True)
            await _all([entry.task for entry in self._entries if entry.task is not None])
            raise
        finally:
            await self._complete()
        return self.results

    def _lane(self, entry: Entry) -> Lane:
        call, plan = entry.call, find_plan(self._runner, entry.call.name, self._offered)
        if plan is None or entry.reused or call.problem is not None:
            return BESIDE
        tool = plan.tool
        if isinstance(tool.parallel, bool) and not plan.locks:
            return BESIDE if tool.parallel else ALONE
        try:
            plan.check_input(call.raw)
            arguments = plan.parameters.read_ahead(plan.name, call.raw)
        except Invalid:
            return BESIDE  # it is answered, and nothing runs
        try:
            parallel = tool.trait("parallel", arguments)
            if plan.locks:
                state = LiveCall(plan, self._fields, call, call, None)
                return Lane(keys=tuple(resource_keys(state, arguments)), shared=parallel)
            entry.beside = parallel
            return BESIDE if parallel else ALONE
        except KeyboardInterrupt:
            raise
        except BaseException:
            return ALONE  # what it touches is not known

    def _begin(self, entry: Entry, hold: Hold | None) -> _Task:
        coroutine = self._call(entry) if hold is None else self._with_keys(entry, hold)
        task = entry.task = start(coroutine, get_running_loop())
        if self._cancelled and not task.done() and (self._now or not entry.runs):
            task.cancel()  # what began at once has cancelled its own batch
        return task

    async def _with_keys(self, entry: Entry, hold: Hold) -> ToolResult:
        try:
            await hold.wait(None)
            return await self._call(entry)
        finally:
            hold.release()

    def _call(self, entry: Entry) -> Coro[ToolResult]:
        if entry.reused:
            error = f"The id {cut(clean(entry.call.id), 80)!r} was used for another call before. {NOTHING_RUN}"
            rejection = Rejected("invalid", error)
            return reject_at_once(self._runner, entry.call, rejection, self._fields, self._origin(entry))
        return receive(self._runner, entry.call, self._fields, self._origin(entry))

    def _origin(self, entry: Entry) -> Origin:
        return Origin(entry=entry, observers=self._observers, offered=self._offered, turn=self._turn)

    async def _complete(self) -> None:
        """Answer what never started, and raise what was a programmer's mistake."""
        mistakes: list[BaseException] = []
        for entry in self._entries:
            task = entry.task
            error = None
            if task is not None and task.done() and not task.cancelled():
                error = task.exception()  # marked as seen: the result tells it
            if entry.twin is not None or entry.result is not None:
                continue
            if error is not None:
                mistakes.append(error)
            elif task is None or task.done():
                cancelled = Rejected("cancelled", CANCELLED)
                await reject_at_once(self._runner, entry.call, cancelled, self._fields, self._origin(entry))
        if mistakes:
            raise mistakes[0]


async def _all(tasks: Sequence[_Task]) -> None:
    for task in tasks:
        if not task.done():
            await end_of(task)
