"""Several calls of one turn: what may run side by side does, the rest waits its turn, and every call has a result."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ferrule.arguments.parameters import Invalid
from ferrule.arguments.repair import same_call
from ferrule.pipeline import invoke as execution
from ferrule.pipeline.acquire import resource_keys
from ferrule.pipeline.plan import Plan
from ferrule.pipeline.results import NOTHING_RUN
from ferrule.scheduling.timer import wake
from ferrule.types import Observer
from ferrule.values.call import ToolCall
from ferrule.values.content import clean, cut
from ferrule.values.context import CallState, ToolContext, new_state, running
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.runner import Runner

_Task = asyncio.Task[Any]
_AT_ONCE = 32


class Seat:
    """A call's place in its batch.

    Attributes:
        call: The call, with an id.
        observers: See the events of this batch only.
        twin: The place of the same call, where it came before; the call runs once.
        reused: Whether another call came before under the same id; then this one is answered, and never run.
        beside: Whether the arguments as sent are why the call runs beside others.
        started: Whether it has been.
        state: What the runner keeps of the call, once it has begun.
        task: Where it runs.
        result: What it came to.
    """

    __slots__ = ("beside", "call", "observers", "result", "reused", "started", "state", "task", "twin")

    def __init__(self, call: ToolCall, observers: tuple[Observer, ...]) -> None:
        self.call = call
        self.observers = observers
        self.twin: Seat | None = None
        self.reused = self.beside = self.started = False
        self.state: CallState | None = None
        self.task: _Task | None = None
        self.result: ToolResult | None = None

    @property
    def runs(self) -> bool:
        """Whether the call has come to its handler."""
        return self.state is not None and self.state.executed is not False

    def outcome(self) -> ToolResult | None:
        """The result that was kept when the call was cut off, or that its task came to; `None` before its end."""
        if self.result is None:
            task = self.task
            if task is not None and task.done() and not task.cancelled() and task.exception() is None:
                self.result = task.result()
        return self.result


class Batch:
    """A handle on several calls: await it for the list of results, in call order.

    Calls start in order. One that may not run in parallel waits for all before it, and all after it wait for it;
    `resources` narrow that to the calls that share a key. What a call may run beside is told from its arguments as
    the model sent them; key locks and limits go by the judged ones, and a call that a guard made one to run alone is
    not run.
    """

    def __init__(
        self,
        runner: Runner,
        calls: list[ToolCall],
        context: ToolContext[Any],
        observers: tuple[Observer, ...],
    ) -> None:
        self._runner = runner
        self._context = context
        self._observers = observers
        self._seats: list[Seat] = []
        first: dict[str, Seat] = {}
        for call in calls:
            seat = Seat(call if call.id else call.replace(id=runner._new_id()), observers)
            self._seats.append(seat)
            before = first.setdefault(seat.call.id, seat)
            if before is not seat:
                if same_call(before.call, call):
                    seat.twin = before
                else:
                    seat.reused = True
        self._cancelled = self._now = False
        self._done: asyncio.Future[list[ToolResult]] | None = None

    @property
    def results(self) -> list[ToolResult]:
        """One result for every call, at any time: of one that has not ended, that it has not."""
        found = []
        for seat in self._seats:
            place = seat.twin or seat
            found.append(place.outcome() or self._open(seat.call, started=place.started))
        return found

    def _open(self, call: ToolCall, *, started: bool) -> ToolResult:
        plan = self._runner._plan_of(call.name)
        return ToolResult(
            None,
            "The call has not ended; its effect may have happened."
            if started
            else "The call has not been started. Nothing was run.",
            call=call,
            tool_name=plan.name if plan is not None else call.name,
            status="unknown" if started else "cancelled",
            executed=None if started else False,
        )

    def cancel(self, *, now: bool = False) -> None:
        """Start nothing new, and let finish what runs; the second time, or with `now=True`, stop that too.

        Each call still has its one result and its one terminal event: a call that had not come to its handler is
        `cancelled`, and so is one that is stopped. In the thread of the loop.
        """
        self._now = now or self._cancelled
        self._cancelled = True
        for seat in self._seats:
            if seat.task is None:
                continue
            if seat.state is not None:
                seat.state.stopping = True  # no further attempt of what runs
                if seat.state.pausing is not None:
                    wake(seat.state.pausing)
            if self._now or not seat.runs:
                seat.task.cancel()

    def _stopped(self) -> bool:
        return self._cancelled

    def __await__(self) -> Generator[Any, None, list[ToolResult]]:
        return self._awaited().__await__()

    async def _awaited(self) -> list[ToolResult]:
        if self._done is not None:
            return await asyncio.shield(self._done)
        self._done = asyncio.get_running_loop().create_future()
        try:
            await self._run()
        except BaseException:
            self._done.set_result(self.results)
            raise
        results = self.results
        self._done.set_result(results)
        return results

    async def _run(self) -> None:
        lanes = _Lanes()
        begun = 0
        try:
            for seat in self._seats:
                if seat.twin is not None:
                    continue
                begun += 1
                if begun % _AT_ONCE == 0:  # or a thousand begin before the first can go on
                    await asyncio.sleep(0)
                if self._cancelled:
                    break
                lane = BESIDE if seat.reused else self._lane(self._runner._plan_of(seat.call.name), seat.call)
                if self._stopped():  # by what a tool says about its own arguments
                    break
                if not lane.alone:
                    before = lanes.before(lane)
                    seat.beside = lane.chosen
                    lanes.add(self._begin(seat, before), lane)
                    continue
                await _all(lanes.open)
                lanes.clear()
                if not self._stopped():
                    await _all([self._begin(seat)])
            await _all(lanes.open)
        except asyncio.CancelledError:
            self.cancel(now=True)
            await _all([seat.task for seat in self._seats if seat.task is not None])
            raise
        finally:
            await self._complete()

    def _lane(self, plan: Plan | None, call: ToolCall) -> Lane:
        if plan is None or call.problem is not None:
            return BESIDE
        tool = plan.tool
        if isinstance(tool.parallel, bool) and not plan.locks:
            return BESIDE if tool.parallel else ALONE
        try:
            arguments = plan.parameters.foreseen(plan.name, call.raw)
        except Invalid:
            return BESIDE  # it is answered, and nothing runs
        try:
            parallel = tool.trait("parallel", arguments)
            if not plan.locks:
                return Lane(alone=not parallel, chosen=parallel)
            state = new_state(self._context._given, plan, call, call, running(), 0.0)
            return Lane(keys=tuple(resource_keys(state, arguments)), shared=parallel)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException:
            return ALONE  # what it touches is not known

    def _begin(self, seat: Seat, before: Sequence[_Task] = ()) -> _Task:
        coroutine = self._after(before, seat) if before else self._way(seat)
        seat.started = True
        task = seat.task = execution.start(coroutine, asyncio.get_running_loop())
        if self._cancelled and not task.done() and (self._now or not seat.runs):
            task.cancel()  # what began at once has cancelled its own batch
        return task

    def _way(self, seat: Seat) -> Coroutine[Any, Any, ToolResult]:
        if seat.reused:
            error = f"The id {cut(clean(seat.call.id), 80)!r} was used for another call before. {NOTHING_RUN}"
            return self._runner._answered(seat.call, "invalid", error, seat)
        return self._runner._started(seat.call, self._context, seat=seat)

    async def _after(self, before: Sequence[_Task], seat: Seat) -> ToolResult:
        await _all(before)
        return await self._way(seat)

    async def _complete(self) -> None:
        """Answer what never started, and raise what was a programmer's mistake."""
        mistakes: list[BaseException] = []
        for seat in self._seats:
            if seat.twin is not None or seat.outcome() is not None:
                continue
            task = seat.task
            if task is not None and task.done() and not task.cancelled() and task.exception() is not None:
                mistakes.append(task.exception())  # type: ignore[arg-type]
            elif task is None or task.done():
                error = f"The call was cancelled. {NOTHING_RUN}"
                seat.result = await self._runner._answered(seat.call, "cancelled", error, seat)
        for seat in self._seats:
            if seat.task is not None and seat.task.done() and not seat.task.cancelled():
                seat.task.exception()  # marked as seen: the result tells it
        if mistakes:
            raise mistakes[0]


async def _all(tasks: Sequence[_Task]) -> None:
    for task in tasks:
        if not task.done():
            await _ended(task)


async def _ended(task: _Task) -> None:
    """Wait for the end of a task, whatever it is; a fifth of the cost of `asyncio.wait`."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ended(_: _Task) -> None:
        wake(waiter)

    task.add_done_callback(ended)
    try:
        await waiter
    finally:
        task.remove_done_callback(ended)


class Lane(NamedTuple):
    """What a call may run beside.

    Attributes:
        alone: Nothing: it is a barrier.
        keys: What it shares with others.
        shared: Whether it goes beside others that share a key and go beside others.
        chosen: Whether it runs beside others because of its arguments.
    """

    alone: bool = False
    keys: tuple[str, ...] = ()
    shared: bool = True
    chosen: bool = False


ALONE = Lane(alone=True)
BESIDE = Lane()


class _Lanes:
    """Which of the calls that run now a later one has to wait for."""

    def __init__(self) -> None:
        self.open: list[_Task] = []
        self._writers: dict[str, _Task] = {}
        self._readers: dict[str, list[_Task]] = {}

    def before(self, lane: Lane) -> list[_Task]:
        found = [self._writers[key] for key in lane.keys if key in self._writers]
        if not lane.shared:
            found += [task for key in lane.keys for task in self._readers.get(key, ())]
        return found

    def add(self, task: _Task, lane: Lane) -> None:
        if not task.done():
            self.open.append(task)
        for key in lane.keys:
            if lane.shared:
                self._readers.setdefault(key, []).append(task)
            else:
                self._writers[key] = task
                self._readers[key] = []

    def clear(self) -> None:
        self.open.clear()
        self._writers.clear()
        self._readers.clear()
