"""What the calls of one runner share."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from ferrule.definition.toolset import Toolset
from ferrule.executors import Job
from ferrule.scheduling.locks import KeyLocks
from ferrule.types import Approver, Coro, Journal, Observer
from ferrule.values.call import ToolCall
from ferrule.values.context import ContextFields
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.pipeline.plan import Plan
    from ferrule.pipeline.state import CallState

_MOST_RESUMED = 10_000
Receive: TypeAlias = Callable[["RunnerState", ToolCall, ContextFields, "CallState"], Coro[ToolResult]]
Failure: TypeAlias = Callable[["Plan", "CallState", BaseException], ToolResult]


class RunnerState:
    """What the calls of one runner share.

    Attributes:
        tools: What there is to call.
        receive: Takes a call in; see `pipeline/call.py`, which imports this.
        failure: The result of a handler that raised; see `pipeline/results.py`.
        loop: The one event loop on which calls run at present; `None` while none does.
        live: The calls that are under way.
        locks: By the keys of `resources`.
        waiting: The calls that wait for a slot or a key.
        abandoned: What still runs after it was given up, and what to do once it has ended.
        writing: The journal's writes of calls that were cut off.
        closing: Whether no new calls are taken.
        idle: Who waits for the last call to end.
        resumed: The keys of suspended calls that were taken up.
    """

    def __init__(
        self,
        tools: Toolset,
        *,
        observers: tuple[Observer, ...],
        approve: Approver | None,
        journal: Journal | None,
        grace: float,
        queue_timeout: float | None,
        receive: Receive,
        failure: Failure,
    ) -> None:
        self.tools = tools
        self.observers = observers
        self.approve = approve
        self.journal = journal
        self.grace = grace
        self.queue_timeout = queue_timeout
        self.receive = receive
        self.failure = failure
        self.plans: dict[str, Plan] = {}
        self.closing = False
        self.resumed: dict[str, None] = {}
        self.abandoned: dict[Job, tuple[Callable[[], None], ...]] = {}
        self._have_no_loop()

    def _have_no_loop(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.live: set[CallState] = set()
        self.locks = KeyLocks()
        self.waiting: set[CallState] = set()
        self.writing: set[asyncio.Task[None]] = set()
        self.idle: asyncio.Future[None] | None = None

    def like_this(self) -> RunnerState:
        """One that has the same settings and the same records of what was taken up, and runs nothing yet."""
        made = copy.copy(self)
        made.plans, made.closing, made.abandoned = {}, False, {}
        made._have_no_loop()
        return made

    def move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run calls on `loop` from now on.

        Raises:
            RuntimeError: where calls run on another one, or ran when this process was forked.
        """
        if self.loop is not None and self.live:
            if not self.loop.is_closed():
                raise RuntimeError(
                    "this runner is busy on another event loop: await it there, or give this loop a runner of its own "
                    "(in a forked process: make the runner there, or fork while it runs nothing)"
                )
        if self.loop is not None and self.loop.is_closed():
            self._leave_closed_loop()
        self.loop = loop

    def _leave_closed_loop(self) -> None:
        """End the calls that went with their loop, which give back what they hold. Threads do so when they end."""
        for call in sorted(self.live, key=lambda call: bool(call.held)):  # who waits is not to be woken there
            call.waiter = None  # or its handler would wake it when it is collected
            for task in filter(None, (call.own_task, call.task)):
                with suppress(Exception):
                    task.get_coro().close()
        for job, when_done in list(self.abandoned.items()):
            if not getattr(job, "running", False):
                for ended in when_done:
                    ended()
        self._have_no_loop()

    def let_go_of_loop(self) -> None:
        """Keep no loop alive while nothing runs."""
        if not self.live and not self.abandoned:
            self.loop = None
            for plan in self.plans.values():
                plan.timer = None

    def remember_resumed(self, key: str) -> bool:
        """Note that a suspended call was taken up; whether it had not been."""
        if key in self.resumed:
            return False
        self.resumed[key] = None
        if len(self.resumed) > _MOST_RESUMED:
            del self.resumed[next(iter(self.resumed))]
        return True
