"""The state shared by the calls of one runner."""

from __future__ import annotations

import asyncio
import copy
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from weakref import WeakSet

from ferrule.definition.bounds import Waits
from ferrule.definition.tool import Tool
from ferrule.definition.toolset import Toolset
from ferrule.executors import Job
from ferrule.executors.threads import Raised
from ferrule.kernel.cancel import interrupt
from ferrule.kernel.invoke import run_handler_as_next
from ferrule.kernel.path import run_core
from ferrule.kernel.plan import Mount, Plan, Settings
from ferrule.kernel.results import NOTHING_RUN, Rejected
from ferrule.kernel.state import CallState, Origin, find_state
from ferrule.kernel.tasks import get_task_outcome
from ferrule.scheduling.clock import MONOTONIC, Clock, Timer, wait_in_real_time
from ferrule.scheduling.limiter import Limiter
from ferrule.scheduling.locks import KeyLocks
from ferrule.types import Approver, Coro, Journal, Observer
from ferrule.values.call import ToolCall
from ferrule.values.context import ContextFields, ToolContext, find_running_call
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.kernel.background import BackgroundJob

log = logging.getLogger("ferrule")
_CANCELLATION_SECONDS = 0.05
"""Seconds that a cancelled handler has to end, besides the grace."""

Receive: TypeAlias = Callable[["RunnerState", ToolCall, ContextFields, Origin], Coro[ToolResult]]


class ResumedRecords:
    """The records that were resumed already. Each is forgotten when it and all earlier ones have expired.

    A runner and its replacements share this object, perhaps in several threads.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._expiries: OrderedDict[str, float] = OrderedDict()

    async def take(self, record_id: str, expires_at: float) -> bool:
        """Mark a record as resumed. Return False if it was resumed before."""
        with self._lock:
            while self._expiries and next(iter(self._expiries.values())) <= self._clock.now():
                self._expiries.popitem(last=False)
            if record_id in self._expiries:
                return False
            self._expiries[record_id] = expires_at
            return True


@dataclass(eq=False, repr=False, kw_only=True)
class RunnerState:
    """The state shared by the calls of one runner.

    Attributes:
        settings: The settings for each of its tools.
        tools: The toolset.
        observers: The observers of every event, the journal last.
        questions: Limits how many questions to a blocking approver are open.
        resume_keys: The keys that seal suspended calls: the first signs, all verify.
        waits: The seconds that it waits for slots, handlers, calls and people.
        receive: `receive` of `kernel/receive.py`, for nested calls.
        clock: The clock of deadlines, waits and expiries.
        resumed_records: The records that were resumed already.
        jobs: The background jobs, by ticket.
        plans: The compiled tools, by name.
        views: Copies of this runner for the tools of mounted runners, by the settings of these.
        leaving: `None` while it takes every call; `"draining"` when it takes only calls of batches that began before;
            `"closed"` when it takes none.
        abandoned: Jobs of abandoned calls that still run.
        replacements: The runners that `replace` made, which are left together with this one.

    The state of the event loop that calls run on at present:

    Attributes:
        loop: The loop; None before the first call.
        process: The id of the process that the loop belongs to: a fork has none of its parent's threads.
        timer: Tells the time of a call: the clock or, for the machine's clock, the loop.
        live: The calls in progress.
        locks: The locks of resource keys.
        waiting: The calls that wait for a slot or a key.
        writes: The journal writes of calls that were cancelled.
        unfinished_work: The batches and background jobs in progress. The set keeps them alive.
        idle: The future of `_wait_until_idle`.
    """

    settings: Settings
    tools: Toolset
    observers: tuple[Observer, ...]
    approve: Approver | None
    journal: Journal | None
    waits: Waits
    questions: Limiter
    resume_keys: tuple[bytes, ...]
    receive: Receive
    clock: Clock
    resumed_records: ResumedRecords
    jobs: dict[str, BackgroundJob] = field(default_factory=dict)
    plans: dict[str, Plan] = field(default_factory=dict)
    views: dict[tuple[int, ...], RunnerState] = field(default_factory=dict)
    leaving: Literal["draining", "closed"] | None = None
    abandoned: set[Job] = field(default_factory=set)
    replacements: WeakSet[RunnerState] = field(default_factory=WeakSet)

    def __post_init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.process = 0
        self.timer: Timer = self.clock
        self.live: set[CallState] = set()
        self.locks = KeyLocks()
        self.waiting: set[CallState] = set()
        self.writes: set[asyncio.Task[Any]] = set()
        self.unfinished_work: set[object] = set()
        self.idle: asyncio.Future[None] | None = None
        if self.journal is not None:
            self.observers = (*self.observers, self.journal.note)

    def compile(self, tool: Tool) -> Plan:
        """Compile a tool for this runner."""
        compile_tool = partial(Plan, tool, self, self.settings, _run_core_as_next, run_handler_as_next)
        plan = compile_tool()
        if not tool.background:
            return plan
        from ferrule.kernel.background import make_starting_plan  # for the programs with such tools

        return make_starting_plan(compile_tool(), plan)

    @property
    def own_observers(self) -> tuple[Observer, ...]:
        """The observers of every event, without the journal."""
        return self.observers if self.journal is None else self.observers[:-1]

    def copy_with(self, **changes: Any) -> RunnerState:
        """Return a copy with `changes` applied and no running calls."""
        changes = {"observers": self.own_observers, **changes}
        made = replace(self, plans={}, views={}, abandoned=set(), replacements=WeakSet(), **changes)
        made.locks = self.locks
        self.replacements.add(made)
        return made

    def view_for_mount(self, plan: Plan, level: int | None) -> RunnerState:
        """Return a copy of this runner whose tools are those of the mounted runner at depth `level`, None for the last.

        A mounted tool calls tools of its own runner. In this runner they are mounted like the tool itself. The journal
        takes all calls that a `recorded` tool makes.
        """
        mounts: tuple[Mount, ...] = plan.tool.mounts[:level]
        recording = plan.tool.recorded
        if not mounts and not recording:
            return self
        path = (recording, *[id(part) for mount in mounts for part in (mount.settings, mount.tools)])
        view = self.views.get(path)
        if view is None:
            view = copy.copy(self)
            view.tools, view.plans = mounts[-1].tools if mounts else self.tools, {}
            for tool in view.tools:
                nested = self.compile(self._mount_tool(tool, mounts))
                view.plans[tool.name] = view.plans[tool.wire_name] = nested
                for one in (nested, nested.job):
                    if recording and one is not None:
                        one.record_calls()
            self.views[path] = view
        return view

    def _mount_tool(self, tool: Tool, mounts: Sequence[Mount]) -> Tool:
        """Return a tool of the innermost mounted runner as this runner runs it, under its name here if it has one."""
        around = [self.tools, *(mount.tools for mount in mounts)]
        for level in range(len(mounts) - 1, -1, -1):
            mounted = tool.with_mount(mounts[level]._replace(name=tool.name))
            tool = next((known for known in around[level] if known.mounts == mounted.mounts), mounted)
        return tool

    def find_job(self, fields: ContextFields, ticket: str) -> Coro[BackgroundJob | None]:
        """Return a background job by its ticket. See `find_job` in `kernel/background.py`."""
        from ferrule.kernel.background import find_job

        return find_job(self, fields, ticket)

    def notify_idle(self) -> None:
        """Wake `_wait_until_idle`, if no call, batch or job runs."""
        if self.idle is not None and not self.live and not self.unfinished_work and not self.idle.done():
            self.idle.set_result(None)

    @property
    def busy_loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop that calls of this process run on now; None if none runs."""
        loop = self.loop if self.live or self.unfinished_work else None
        return None if loop is None or loop.is_closed() or self.process != os.getpid() else loop

    def move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run calls on `loop` from now on.

        Raises:
            RuntimeError: Calls run on another loop, ran on one that was closed, or ran when this process was forked.
        """
        if self.live or self.unfinished_work:  # a batch may be between two calls
            raise RuntimeError(
                "this runner is busy on another event loop: await it there, or make a runner anew here (also where "
                "that loop was closed under its calls, or this process was forked while they ran)"
            )
        self.loop, self.idle, self.process = loop, None, os.getpid()
        self.timer = loop if self.clock is MONOTONIC else self.clock

    def track_write(self, write: asyncio.Task[Any], repeat: Callable[[], asyncio.Task[Any]] | None = None) -> None:
        """Keep a journal write alive whose call was cancelled. If the write is cancelled too, start it once more."""
        if write.get_loop().is_closed():  # the journal's own thread goes on
            return
        self.writes.add(write)
        write.add_done_callback(partial(self._on_write_end, repeat))

    def _on_write_end(self, repeat: Callable[[], asyncio.Task[Any]] | None, write: asyncio.Task[Any]) -> None:
        self.writes.discard(write)
        outcome = get_task_outcome(write)
        if not isinstance(outcome, Raised):
            return
        if repeat is not None and isinstance(outcome.error, asyncio.CancelledError):
            self.track_write(repeat())  # `asyncio.run` cancels all tasks at its end, this one perhaps before it began
        else:
            log.error("the outcome of a cancelled call could not be written to the journal", exc_info=outcome.error)

    # -- leaving ------------------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Take calls again: the runner's `async with` begins."""
        for runner in self._all_replacements():
            runner.leaving = None

    async def leave(self) -> None:
        """Wait for the calls in progress, and cancel those that take too long: the runner's `async with` ends.

        Raises:
            RuntimeError: A call of the runner leaves it, or its calls run on another event loop.
        """
        every = self._all_replacements()
        for runner in every:
            runner.leaving = "draining"
        for runner in every:
            runner._check_leaving()
        await asyncio.gather(*[runner._drain() for runner in every])

    def _all_replacements(self) -> list[RunnerState]:
        return [self, *(further for made in self.replacements for further in made._all_replacements())]

    async def _drain(self) -> None:
        if not await self._wait_until_idle(self.waits.drain):
            self.leaving, left = "closed", set(self.live)
            log.warning("%d calls still ran %s s after the runner was left: cancelled", len(left), self.waits.drain)
            closed = Rejected("cancelled", f"The runner was closed before the call had ended. {NOTHING_RUN}")
            for call in left:
                interrupt(call, closed)
            await self._wait_until_idle(self.waits.grace + _CANCELLATION_SECONDS)
        written_here: set[asyncio.Future[Any]] = {task for task in self.writes if task.get_loop() is self.loop}
        if written_here:
            await wait_in_real_time(written_here, self.waits.drain)

    def _check_leaving(self) -> None:
        if self.loop is not None and self.loop.is_closed():
            self.move_to(asyncio.get_running_loop())
        here = asyncio.current_task()
        inner: Any = find_running_call()
        if inner in self.live or any(call.task is here for call in self.live):
            raise RuntimeError("a call cannot leave the runner that runs it: leave it where it was entered")
        if (self.live or self.unfinished_work or self.writes) and self.loop is not asyncio.get_running_loop():
            raise RuntimeError("the calls of this runner run on another event loop: leave it there, or once they ended")

    async def _wait_until_idle(self, seconds: float | None) -> bool:
        """Wait until no call, batch or job runs, at most that long. Return whether none runs."""
        if not self.live and not self.unfinished_work:
            return True
        if self.idle is None or self.idle.done():
            self.idle = asyncio.get_running_loop().create_future()
        idle = self.idle
        await wait_in_real_time({idle}, seconds)
        return idle.done()


def _run_core_as_next(plan: Plan, call: ToolCall, context: ToolContext) -> Coro[ToolResult]:
    """Run the core of a call as the innermost `next` of its `around` middleware."""
    return run_core(plan, call, find_state(plan, context))
