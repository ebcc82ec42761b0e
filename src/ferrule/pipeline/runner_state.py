"""What the calls of one runner share."""

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
from typing import Any, Literal, TypeAlias
from weakref import WeakSet

from ferrule.definition.tool import Tool
from ferrule.definition.toolset import Toolset
from ferrule.executors import Job
from ferrule.executors.threads import Raised, ThreadJob
from ferrule.pipeline.background import Work, begins, find_work
from ferrule.pipeline.call import enter_core
from ferrule.pipeline.invoke import handle_judged, interrupt
from ferrule.pipeline.plan import Mount, Plan, Settings
from ferrule.pipeline.results import NOTHING_RUN, Rejected, denied
from ferrule.pipeline.state import CallState, Origin
from ferrule.pipeline.tasks import result_of
from ferrule.scheduling.clock import MONOTONIC, Clock, Timer, wait_by_machine
from ferrule.scheduling.limiter import Limiter
from ferrule.scheduling.locks import KeyLocks
from ferrule.types import Approver, Coro, Journal, Observer
from ferrule.values.call import ToolCall
from ferrule.values.context import ContextFields, running
from ferrule.values.result import ToolResult

log = logging.getLogger("ferrule")
_CANCELLING = 0.05  # seconds for a handler that was cancelled to come to its end, where there is no grace

Receive: TypeAlias = Callable[["RunnerState", ToolCall, ContextFields, Origin], Coro[ToolResult]]


class TakenUp:
    """The records of suspended calls that were taken up, each until it and those before it expire. Runners of the same
    settings share it, perhaps in several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._expiries: OrderedDict[str, float] = OrderedDict()

    async def take(self, key: str, expires_at: float) -> bool:
        """Note that a record is taken up; whether it had not been."""
        with self._lock:
            while self._expiries and next(iter(self._expiries.values())) <= self._clock.now():
                self._expiries.popitem(last=False)
            if key in self._expiries:
                return False
            self._expiries[key] = expires_at
            return True


@dataclass(eq=False, repr=False, kw_only=True)
class RunnerState:
    """What the calls of one runner share.

    Attributes:
        settings: What it gives to each of its tools.
        observers: Who sees every event, the journal last.
        tools: What there is to call.
        questions: How many questions to an approver that is a plain function may be open.
        resume_keys: What seals suspended calls, the first, and what their seals are compared with, all.
        resume_within: Seconds in which a suspended call can be taken up.
        receive: Takes a call in; see `pipeline/call.py`, for calls that are made by calls.
        clock: What deadlines, waits and expiries go by.
        views: This runner as mounted tools see it, by the settings of the runners that they come from.
        leaving: 0 while it takes every call, 1 once it takes those alone of batches that began before, 2 once none.
        taken_up: The suspended calls that were.
        works: The calls in the background.
        abandoned: What still runs after it was given up, and what to do once it has ended.
        replacements: The runners that were made of it, which are left with it.

    And of the one event loop on which calls run at present:

    Attributes:
        loop: It; `None` while none runs.
        process: The process whose loop it is, by number: a forked one has none of its parent's threads.
        timer: What calls there count their time by: the clock or, where that is the machine's, the loop itself.
        live: The calls that are under way.
        locks: By the keys of `resources`.
        waiting: The calls that wait for a slot or a key.
        writing: The journal's writes of calls that were cut off.
        batches: The batches that run, kept from the collector, and the calls in the background.
        idle: Who waits for the last call to end.
    """

    settings: Settings
    tools: Toolset
    observers: tuple[Observer, ...]
    approve: Approver | None
    journal: Journal | None
    grace: float
    queue_timeout: float | None
    drain: float | None
    questions: Limiter
    resume_keys: tuple[bytes, ...]
    resume_within: float
    receive: Receive
    clock: Clock
    taken_up: TakenUp
    works: dict[str, Work] = field(default_factory=dict)
    plans: dict[str, Plan] = field(default_factory=dict)
    views: dict[tuple[int, ...], RunnerState] = field(default_factory=dict)
    leaving: Literal[0, 1, 2] = 0
    abandoned: dict[Job, tuple[Callable[[], object], ...]] = field(default_factory=dict)
    replacements: WeakSet[RunnerState] = field(default_factory=WeakSet)

    def __post_init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.process = 0
        self.timer: Timer = self.clock
        self.live: set[CallState] = set()
        self.locks = KeyLocks()
        self.waiting: set[CallState] = set()
        self.writing: set[asyncio.Task[Any]] = set()
        self.batches: set[object] = set()
        self.idle: asyncio.Future[None] | None = None
        if self.journal is not None:
            self.observers = (*self.observers, self.journal.note)

    def compile(self, tool: Tool) -> Plan:
        """How this runner runs a tool."""
        plan = Plan(tool, self, self.settings, enter_core, handle_judged)
        return begins(Plan(tool, self, self.settings, enter_core, handle_judged), plan) if tool.background else plan

    @property
    def given_observers(self) -> tuple[Observer, ...]:
        """Who sees every event, but for the journal."""
        return self.observers if self.journal is None else self.observers[:-1]

    def like_this(self, **changes: Any) -> RunnerState:
        """One that has the same settings, keys and records of what was taken up, but for `changes`, and runs nothing
        yet."""
        changes = {"observers": self.given_observers, **changes}
        made = replace(self, plans={}, views={}, abandoned={}, replacements=WeakSet(), **changes)
        made.locks = self.locks
        self.replacements.add(made)
        return made

    def view_of(self, plan: Plan, level: int | None) -> RunnerState:
        """This runner for what belongs to the first `level` runners that a tool is mounted by (`None` for all, as its
        handler does): what it calls are the tools of the innermost of these, mounted like itself."""
        mounts: tuple[Mount, ...] = plan.tool.mounts[:level]
        if not mounts:
            return self
        path = tuple([id(mount.settings) for mount in mounts])
        view = self.views.get(path)
        if view is None:
            view = copy.copy(self)
            view.tools, view.plans = mounts[-1].tools, {}
            for tool in view.tools:
                view.plans[tool.name] = view.plans[tool.wire_name] = self.compile(self._mounted(tool, mounts))
            self.views[path] = view
        return view

    def _mounted(self, tool: Tool, mounts: Sequence[Mount]) -> Tool:
        """A tool of the innermost of these runners as this one runs it: under its own name here, where it has one."""
        around = [self.tools, *(mount.tools for mount in mounts)]
        for level in range(len(mounts) - 1, -1, -1):
            mounted = tool.mounted(mounts[level]._replace(name=tool.name))
            tool = next((known for known in around[level] if known.mounts == mounted.mounts), mounted)
        return tool

    def find_work(self, fields: ContextFields, ticket: str) -> Coro[Work | None]:
        """See `find_work` in `pipeline/background.py`."""
        return find_work(self, fields, ticket)

    def tell_idle(self) -> None:
        """Tell who waits for it that nothing runs any more, where that is so."""
        if self.idle is not None and not self.live and not self.batches and not self.idle.done():
            self.idle.set_result(None)

    @property
    def busy_loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop that calls run on now, in this process; nothing else has one to run them on."""
        loop = self.loop if self.live or self.batches else None
        return None if loop is None or loop.is_closed() or self.process != os.getpid() else loop

    def move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run calls on `loop` from now on.

        Raises:
            RuntimeError: where calls run on another one, ran on one that was closed, or ran when this process was
                forked.
        """
        if self.live or self.batches:  # a batch may be between two calls
            raise RuntimeError(
                "this runner is busy on another event loop: await it there, or make a runner anew here (also where "
                "that loop was closed under its calls, or this process was forked while they ran)"
            )
        if self.loop is not None and self.loop.is_closed():
            self._end_abandoned()
        self.loop, self.idle, self.process = loop, None, os.getpid()
        self.timer = loop if self.clock is MONOTONIC else self.clock

    def _end_abandoned(self) -> None:
        """What was abandoned on a loop that is closed has ended with it; threads say so themselves when they end."""
        for job, when_done in list(self.abandoned.items()):
            if not isinstance(job, ThreadJob) or job.done:
                for ended in when_done:
                    ended()

    def go_on_writing(self, writing: asyncio.Task[Any], write: Callable[[], asyncio.Task[Any]] | None = None) -> None:
        """Go on writing what a call that was cut off cannot wait for; once more by `write` if that is cancelled."""
        if writing.get_loop().is_closed():  # then the journal alone goes on
            return
        self.writing.add(writing)
        writing.add_done_callback(partial(self._on_written, write))

    def _on_written(self, write: Callable[[], asyncio.Task[Any]] | None, writing: asyncio.Task[Any]) -> None:
        self.writing.discard(writing)
        found = result_of(writing)
        if not isinstance(found, Raised):
            return
        if write is not None and isinstance(found.error, asyncio.CancelledError):
            self.go_on_writing(write())  # `asyncio.run` cancels all tasks at its end, this one perhaps before it began
        else:
            log.error("the journal could not be told what a call came to that was cut off", exc_info=found.error)

    # -- leaving ------------------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """What entering the runner's `async with` does."""
        for runner in self._with_replacements():
            runner.leaving = 0

    async def leave(self) -> None:
        """What leaving the runner's `async with` does.

        Raises:
            RuntimeError: where a call of the runner leaves it, or its calls run on another event loop.
        """
        every = self._with_replacements()
        for runner in every:
            runner.leaving = 1
        for runner in every:
            runner._check_leaving()
        await asyncio.gather(*[runner._drain() for runner in every])

    def _with_replacements(self) -> list[RunnerState]:
        return [self, *(further for made in self.replacements for further in made._with_replacements())]

    async def _drain(self) -> None:
        if not await self._emptied(self.drain):
            self.leaving, left = 2, set(self.live)
            log.warning("%d calls still ran %s s after the runner was left: cancelled", len(left), self.drain)
            closed = Rejected("cancelled", f"The runner was closed before the call had ended. {NOTHING_RUN}")
            for call in left:
                interrupt(call, closed)
            await self._emptied(self.grace + _CANCELLING)
        written_here: set[asyncio.Future[Any]] = {task for task in self.writing if task.get_loop() is self.loop}
        if written_here:
            await wait_by_machine(written_here, self.drain)

    def _check_leaving(self) -> None:
        if self.loop is not None and self.loop.is_closed():
            self.move_to(asyncio.get_running_loop())
        here = asyncio.current_task()
        inner: Any = running()
        if inner in self.live or any(call.task is here for call in self.live):
            raise RuntimeError("a call cannot leave the runner that runs it: leave it where it was entered")
        if (self.live or self.batches or self.writing) and self.loop is not asyncio.get_running_loop():
            raise RuntimeError("the calls of this runner run on another event loop: leave it there, or once they ended")

    async def _emptied(self, seconds: float | None) -> bool:
        """Wait until no call and no batch runs, at most that long; whether that is so."""
        if not self.live and not self.batches:
            return True
        if self.idle is None or self.idle.done():
            self.idle = asyncio.get_running_loop().create_future()
        idle = self.idle
        await wait_by_machine({idle}, seconds)
        return idle.done()

    # -- turning tools off --------------------------------------------------------------------------------------------

    def tell_disabled(self) -> None:
        """Stop what waits to run tools that are turned off, here or where they are mounted from; from any thread."""
        if self.live and self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.stop_waiting)

    def stop_waiting(self) -> None:
        """Stop what has not begun and may not begin any more."""
        for call in list(self.live):
            reason = call.plan.disabled
            if reason is not None and call.attempt.executed is False:
                interrupt(call, denied(reason))
