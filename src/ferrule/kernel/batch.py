"""Run several calls of one turn: in parallel if they may, else one after the other. Every call gets a result."""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ferrule.arguments.parameters import Invalid
from ferrule.definition.toolset import Toolset
from ferrule.kernel.acquire import can_share_keys, find_resource_keys
from ferrule.kernel.begin import find_plan, reject_at_once
from ferrule.kernel.live_call import LiveCall
from ferrule.kernel.receive import receive
from ferrule.kernel.results import CANCELLED, NOTHING_RUN, Rejected
from ferrule.kernel.runner_state import RunnerState
from ferrule.kernel.state import CallState, Origin
from ferrule.kernel.tasks import start_eagerly
from ferrule.scheduling.clock import waiter_for_end
from ferrule.scheduling.locks import Hold, KeyLocks
from ferrule.types import Coro, Observer
from ferrule.values.call import ToolCall, new_id
from ferrule.values.content import clean_text, truncate_text
from ferrule.values.context import ContextFields
from ferrule.values.result import ToolResult

_Task = asyncio.Task[Any]
_BURST = 32


@dataclass(eq=False, kw_only=True)
class Entry:
    """The entry of a call in its batch.

    Attributes:
        call: The call, with an id.
        reuses_id: Whether a call came before under the same id. Then this one is rejected.
        admitted: Whether the batch began before the runner was left, which then waits for it.
        stopping: Whether the batch starts nothing more.
        state: The state of the call, once it has begun.
        task: The task of the call.
        result: The result, set before the task ends: the task may be cancelled while it writes the journal.
        listeners: Called with the entry when it has its result.
    """

    call: ToolCall
    listeners: Sequence[Callable[[Entry], object]]
    admitted: bool
    reuses_id: bool = False
    stopping: bool = False
    state: CallState | None = None
    task: asyncio.Task[ToolResult] | None = None
    result: ToolResult | None = None

    @property
    def has_started(self) -> bool:
        """Whether the handler of the call has started."""
        return self.state is not None and self.state.attempt.executed is not False

    def end(self, result: ToolResult) -> None:
        """Set the result."""
        self.result = result
        for listener in self.listeners:
            listener(self)


class Lane(NamedTuple):
    """The place of a call in the order of its batch.

    Attributes:
        alone: Whether the call is a barrier: it runs beside no other call.
        resource_keys: Its keys. It waits for earlier calls with one of them.
        shared: Whether it may share its keys with other calls that only read.
    """

    alone: bool = False
    resource_keys: tuple[str, ...] = ()
    shared: bool = True


ALONE = Lane(alone=True)
PARALLEL = Lane()


class Batch:
    """A handle on several running calls.

    Await it for the list of results in call order, or iterate over it by `async for` for each result as it comes. If
    you are cancelled while you wait, so are the calls. If you leave the iteration by `break`, they go on. See
    docs/long-work.md.

    Calls start in order. A call that may not run in parallel waits for all before it, and all after it wait for it.
    `resources` narrow that to the calls that share a key. The order goes by the arguments as the model sent them. Key
    locks and limits go by the judged arguments.
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
        ids: set[str] = set()
        for call in calls:
            call = call if call.id else call.replace(id=new_id())
            entry = Entry(call=call, listeners=self._listeners, admitted=not runner.leaving, reuses_id=call.id in ids)
            self._entries.append(entry)
            ids.add(call.id)
        self._cancelled = self._now = False
        self._task: asyncio.Task[list[ToolResult]]

    @property
    def results(self) -> list[ToolResult]:
        """One result for every call, at any time. A call that has not ended has a result that says so."""
        return [entry.result or self._make_unfinished_result(entry) for entry in self._entries]

    def _make_unfinished_result(self, entry: Entry) -> ToolResult:
        call = entry.call
        plan = find_plan(self._runner, call.name, self._offered)
        name = call.name if plan is None else plan.name
        if entry.state is not None:
            changes = plan is None or plan.changes
            error = f"The call has not ended; {'its effect may have happened' if changes else 'it changes nothing'}."
            return ToolResult(None, error, call=call, tool_name=name, status="unknown", executed=None)
        error = f"The call has not been started. {NOTHING_RUN}"
        return ToolResult(None, error, call=call, tool_name=name, status="cancelled", executed=False)

    def cancel(self, *, now: bool = False) -> None:
        """Start no further call, and let running handlers finish. The second time, or with `now=True`, stop these too.

        Each call still has one result and one terminal event, `cancelled` if its handler had not started or was
        stopped. Call it in the thread of the loop.
        """
        self._now = now or self._cancelled
        self._cancelled = True
        for entry in self._entries:
            if entry.task is None:
                continue
            entry.stopping = True  # a running call makes no further attempt
            if self._now or not entry.has_started:
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
        while (first := await self._next(ended)) is not None:
            yield first.result  # type: ignore[misc]
        await self._task

    async def _next(self, ended: asyncio.Queue[Entry | None]) -> Entry | None:
        try:
            return await ended.get()
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait({self._task})
            raise

    def begin(self) -> Batch:
        """Run the calls in a task.

        Raises:
            RuntimeError: No event loop runs, or the runner is busy on another one.
        """
        loop = get_running_loop()
        if loop is not self._runner.loop:
            self._runner.move_to(loop)
        self._runner.unfinished_work.add(self)
        self._task = loop.create_task(self._run())
        self._task.add_done_callback(lambda _: self._end())
        return self

    def _end(self) -> None:
        self._runner.unfinished_work.discard(self)
        self._runner.notify_idle()

    async def _run(self) -> list[ToolResult]:
        locks = KeyLocks()
        running: list[_Task] = []
        try:
            for begun, entry in enumerate(self._entries, 1):
                if begun % _BURST == 0:  # let the first calls go on
                    await asyncio.sleep(0)
                lane = self._lane(entry)
                if lane.alone:
                    await _join_tasks(running)
                    running.clear()
                if self._cancelled:  # a tool may cancel the batch while it reads its arguments
                    break
                hold = locks.request(lane.resource_keys, shared=lane.shared) if lane.resource_keys else None
                task = self._begin(entry, hold)
                if lane.alone:
                    await _join_tasks([task])
                elif not task.done():
                    running.append(task)
            await _join_tasks(running)
        except asyncio.CancelledError:
            self.cancel(now=True)
            await _join_tasks([entry.task for entry in self._entries if entry.task is not None])
            raise
        finally:
            await self._reject_rest()
        return self.results

    def _lane(self, entry: Entry) -> Lane:
        call, plan = entry.call, find_plan(self._runner, entry.call.name, self._offered)
        if plan is None or entry.reuses_id or call.problem is not None:
            return PARALLEL
        tool = plan.tool
        if isinstance(tool.parallel, bool) and not plan.has_resources:
            return PARALLEL if tool.parallel else ALONE
        try:
            plan.check_input(call.raw)
            arguments = plan.parameters.parse_arguments(plan.name, call.raw)
        except Invalid:
            return PARALLEL  # it is rejected, and nothing runs
        try:
            if plan.has_resources:
                state = LiveCall(plan, self._fields, call, call, None)
                keys = tuple(find_resource_keys(state, arguments))
                return Lane(resource_keys=keys, shared=can_share_keys(tool, arguments))
            return PARALLEL if tool.trait("parallel", arguments) else ALONE
        except KeyboardInterrupt:
            raise
        except BaseException:
            return ALONE  # its resources are not known

    def _begin(self, entry: Entry, hold: Hold | None) -> _Task:
        coroutine = self._call(entry) if hold is None else self._with_keys(entry, hold)
        task = entry.task = start_eagerly(coroutine, loop=get_running_loop())
        if self._cancelled and not task.done() and (self._now or not entry.has_started):
            task.cancel()  # a call that began at once may have cancelled its own batch
        return task

    async def _with_keys(self, entry: Entry, hold: Hold) -> ToolResult:
        try:
            await hold.wait(None)
            return await self._call(entry)
        finally:
            hold.release()

    def _call(self, entry: Entry) -> Coro[ToolResult]:
        if entry.reuses_id:
            used = truncate_text(clean_text(entry.call.id), 80)
            error = f"The id {used!r} was used for a call before. {NOTHING_RUN}"
            rejection = Rejected("invalid", error)
            return reject_at_once(self._runner, entry.call, rejection, self._fields, self._origin(entry))
        return receive(self._runner, entry.call, self._fields, self._origin(entry))

    def _origin(self, entry: Entry) -> Origin:
        return Origin(owner=entry, observers=self._observers, offered=self._offered, turn=self._turn)

    async def _reject_rest(self) -> None:
        """Reject the calls that never started, and raise a programmer's mistake."""
        mistakes: list[BaseException] = []
        for entry in self._entries:
            task = entry.task
            error = None
            if task is not None and task.done() and not task.cancelled():
                error = task.exception()  # mark it as seen: the result has it
            if entry.result is not None:
                continue
            if error is not None:
                mistakes.append(error)
            elif task is None or task.done():
                cancelled = Rejected("cancelled", CANCELLED)
                await reject_at_once(self._runner, entry.call, cancelled, self._fields, self._origin(entry))
        if mistakes:
            raise mistakes[0]


async def _join_tasks(tasks: Sequence[_Task]) -> None:
    for task in tasks:
        if not task.done():
            await waiter_for_end(task)
