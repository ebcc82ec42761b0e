"""The state of one call."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from ferrule.errors import DefinitionError
from ferrule.executors import Job, NotStarted
from ferrule.pipeline.hiding import hide_within
from ferrule.scheduling.limiter import Limiter
from ferrule.scheduling.locks import Hold, KeyLocks
from ferrule.scheduling.loops import running_loop, wake
from ferrule.types import Coro
from ferrule.values.call import ToolCall, new_id, starred_call
from ferrule.values.content import jsonable
from ferrule.values.context import ContextFields, ToolContext, bound_context
from ferrule.values.event import emit
from ferrule.values.frozen import FrozenDict, JsonObject, freeze
from ferrule.values.input import Answer, InputRequired
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool
    from ferrule.definition.toolset import Toolset
    from ferrule.pipeline.batch import Entry
    from ferrule.pipeline.plan import Plan
    from ferrule.pipeline.results import Rejected
    from ferrule.pipeline.suspension import Answered

RELIABLE_CANCELLING = sys.version_info >= (3, 13)
"""Whether `Task.cancelling()` tells of cancellations from outside alone.

Before Python 3.13 an `asyncio.TaskGroup` that cancelled its own task while it waited for its children leaves that
task's `cancelling()` raised (CPython issue 116720).
"""


class Origin(NamedTuple):
    """Where a call comes from, and with what."""

    parent: CallState | None = None
    """The call whose `context.run` made it."""
    timeout: float | None = None
    """Seconds that it may take."""
    entry: Entry | None = None
    """Its place in a batch."""
    answered: Answered | None = None
    """The suspended call that it is, and the answer to that."""
    offered: Toolset | None = None
    """The tools that the model was offered; `None` where all may be called."""


NO_ORIGIN = Origin()


@dataclass
class _Asking:
    """The questions that a running handler has put: how many are open, since when, and the deadline until then."""

    since: float
    deadline: float | None
    questions: int = 0


class CallState:
    """What the kernel keeps of one call while it runs; a `ToolContext` is the part of it that others see.

    Attributes:
        plan: The compiled tool.
        fields: What the caller gave as context.
        sent: The call as the model made it.
        call: The call under the tool's own name; once judged, with the judged arguments and the validated values.
        parent: The call whose handler made this one.
        observers: Who sees its events.
        task: The task that the call runs in; `None` after its end.
        cancels: How often that task had been cancelled before.
        started: When the call arrived, by `perf_counter`.
        executed: Whether the handler was started (`None`) and has ended (`True`).
        runs: How often it was started, which no middleware can say otherwise.
        inside: Whether it has its slot and its deadline.
        ended: Whether the call has.
        made: The result that the kernel made, which nobody else has.
        held: The slots that it runs with.
        entered: Whether a middleware's `next` is under way.
        timeout: Seconds that it may take once it has its slot.
        offered: The tools that the model was offered; `None` where all may be called.
        entry: Its place in a batch.
        answered: The suspended call that it is, and the answer to that.

    And what few calls need:

    Attributes:
        repairs: What was repaired, in words.
        deadline: In the loop's time.
        waiter: Who waits for the handler's own task to end.
        holds: The keys that it runs with.
        below: The limits that apply anew among the calls that it makes, by the limit that each stands for.
        locks_below: The same for keys.
        abandoned: What still runs after it was given up, of the calls beneath it too.
        counted: How many of these the runner counts already, with what an earlier attempt had.
        raised: What the handler made of a cancellation from outside.
        pending: What it takes to take the call up again, while it is suspended.
        beside: Whether its batch lets it run beside others because of its arguments.
        chunks: What the handler has yielded so far.
        own_task: The task of its own in which the handler, or what goes round it inside, runs at present.
        stopped: The tasks of its own that the kernel has cancelled, one for each attempt.
        refusal: The result that says, in the kernel's words alone, why nothing was run.
        rejection: The answer with which the runner has stopped the call from outside, until that is taken back.
        stopping: Whether its batch starts nothing more.
        pausing: What to wake it by where it waits between two runs of its handler.
        given_up: Whether a run of it was stopped: what goes on of it may run nothing more once the call has ended.
        handlers: How many runs of the handler, and of what goes round it inside, are under way.
        when_idle: What to do once none is.
        refused: What the executor raised when it did not start the handler.
        wanted: What the handler wants to know before it goes on.
        answer: What it was told, for its next run.
        asking: The questions that its handler has put while it runs.
        asked: Whether a person was asked for it, or for a call that it made.
    """

    repairs: tuple[str, ...] = ()
    holds: tuple[Hold, ...] = ()
    below: dict[Limiter, Limiter] | None = None
    locks_below: KeyLocks | None = None
    abandoned: tuple[Job, ...] = ()
    counted: int = 0
    raised: BaseException | None = None
    entry: Entry | None = None
    answered: Answered | None = None
    beside: bool = False
    pending: FrozenDict | None = None
    chunks: Any = ()
    stopped: tuple[asyncio.Task[Any], ...] = ()
    refusal: ToolResult | None = None
    rejection: Rejected | None = None
    stopping: bool = False
    pausing: asyncio.Future[None] | None = None
    given_up: bool = False
    handlers: int = 0
    when_idle: tuple[Callable[[], object], ...] = ()
    refused: NotStarted | None = None
    wanted: InputRequired | None = None
    answer: Answer | None = None
    asking: _Asking | None = None
    asked: bool = False

    def __init__(
        self,
        plan: Plan,
        fields: ContextFields,
        sent: ToolCall,
        call: ToolCall,
        parent: CallState | None,
        task: Any,
        origin: Origin = NO_ORIGIN,
    ) -> None:
        self.started = perf_counter()
        self.plan = plan
        self.fields = fields
        self.sent = sent
        self.call = call
        self.parent = parent
        self.task: Any = task
        self.cancels: int = 0 if task is None else task.cancelling()
        self.observers = plan.runner.observers
        self.timeout = origin.timeout
        self.offered = origin.offered
        self.executed: bool | None = False
        self.runs = 0
        self.inside = self.ended = self.entered = False
        self.held: tuple[Limiter, ...] = ()
        self.made: ToolResult | None = None
        self.bound: ToolContext | None = None
        self.deadline: float | None = None
        self.waiter: asyncio.Future[None] | None = None
        self.own_task: asyncio.Task[Any] | None = None

    @property
    def context(self) -> ToolContext:
        """What guards, middleware and the handler see of it; made when somebody wants it."""
        context = self.bound
        if context is None:
            context = self.bound = bound_context(self.plan.fields(self.fields), self)
        return context

    @property
    def told(self) -> ToolCall:
        """The call as observers and the journal see it."""
        return starred_call(self.call, self.plan.parameters.hidden) if self.plan.hidden else self.call

    # -- what a context asks ------------------------------------------------------------------------------------------

    @property
    def tool(self) -> Tool:
        return self.plan.tool

    @property
    def cancelled(self) -> bool:
        task = self.task
        outside = task is not None and task.cancelling() > self.cancels
        stopped = self.own_task in self.stopped
        return stopped or self.ended or outside or self.rejection is not None

    @property
    def may_run_again(self) -> bool:
        """Whether there may be another attempt."""
        plan = self.plan
        closing = plan.runner.closing and self.parent is None
        return not (plan.disabled is not None or self.stopping or closing or self.ended)

    def remaining(self, *, own: bool) -> float | None:
        loop, above = self.plan.runner.loop, self.deadline_above
        first = min(above, inf if self.deadline is None else self.deadline)
        if loop is None or first == inf or (own and first == above):  # a call that inherits its deadline has none
            return None
        return max(0.0, first - loop.time())

    @property
    def deadline_above(self) -> float:
        """The first deadline of the calls that made this one; what goes round one of them is not within its."""
        deadlines = [call.deadline for call in ancestors(self) if call.inside and call.deadline is not None]
        return min(deadlines, default=inf)

    def run_nested(
        self, name: str, arguments: Mapping[str, object] | str | None, level: int | None
    ) -> Coro[ToolResult]:
        """Run another call as a child of this one: of a tool of the runner that who asks belongs to."""
        runner = self.plan.runner.view_of(self.plan, level)
        call = ToolCall(new_id(), name, arguments, parent=self.call.id)
        return runner.receive(runner, call, self.fields, Origin(parent=self))

    async def pause(self, sleeping: Awaitable[object]) -> bool:
        woken = self.pausing = asyncio.get_running_loop().create_future()
        sleeper = asyncio.ensure_future(sleeping)
        try:
            if self.may_run_again:
                await asyncio.wait({sleeper, woken}, return_when=asyncio.FIRST_COMPLETED)
            if sleeper.done():
                sleeper.result()
        finally:
            self.pausing = None
            sleeper.cancel()
        return self.may_run_again

    def waits_for_input(self, result: object) -> bool:
        """Whether its handler is to be run again with what it wants to know; a middleware may have made `result`."""
        return self.pending is None and isinstance(result, ToolResult) and result.status == "suspended"

    def begin_anew(self) -> None:
        """Forget what the handler wanted to know in an attempt before this one."""
        self.wanted = None

    async def ask(self, wanted: InputRequired) -> JsonObject | None:
        """Put a question of the running handler; its deadline stands still meanwhile."""
        if self.ended or not self.inside:
            return None
        time = asyncio.get_running_loop().time
        if self.asking is None:
            self.asking = _Asking(time(), self.deadline)
            self._move_deadline(None if self.deadline is None else inf)
        asking = self.asking
        asking.questions += 1
        try:
            return await self.plan.runner.put_question(self.plan, self, wanted)
        finally:
            asking.questions -= 1
            if not asking.questions:
                self.asking = None
                self._move_deadline(None if asking.deadline is None else asking.deadline + time() - asking.since)

    def _move_deadline(self, deadline: float | None) -> None:
        self.deadline = deadline
        if self.waiter is not None:
            wake(self.waiter)

    def announce(self, data: Mapping[str, object]) -> None:
        """Emit a `tool:progress` while the call runs, on the loop's own thread."""
        loop = self.plan.runner.loop
        if not self.observers or self.ended or loop is None:
            return
        told = freeze(hide_within(self, jsonable(data)))  # the handler may change a chunk, and no observer may

        def tell() -> None:
            if not self.ended:
                emit(self.observers, "tool:progress", self.told, told)

        if running_loop() is loop:
            tell()
        else:
            loop.call_soon_threadsafe(tell)

    def note_started(self) -> None:
        self.executed = None

    def failure(self, error: BaseException) -> ToolResult:
        return self.plan.runner.failure(self.plan, self, error)

    # -- what an executor asks ----------------------------------------------------------------------------------------

    @property
    def nested(self) -> bool:
        return self.parent is not None

    @property
    def group(self) -> tuple[str, str | None]:
        return self.plan.name, self.fields.principal

    def not_started(self) -> None:
        """The handler was not started after all; earlier runs of it count still."""
        self.runs -= 1
        self.executed = None if self.runs else False

    def abandon(self, job: Job) -> None:
        """The handler goes on after it was given up; who made the call keeps its keys and slots as long, too."""
        for call in (self, *ancestors(self)):
            if call.plan.runner is self.plan.runner:
                call.abandoned = (*call.abandoned, job)

    # -- what goes on of it --------------------------------------------------------------------------------------------

    def note_end(self, wakes: bool) -> None:
        """A run of the handler, or of what goes round it inside, has ended; whether that ends the task of its own."""
        if wakes and self.waiter is not None:
            wake(self.waiter)
        self.handlers -= 1
        if self.when_idle and not self.handlers:
            callbacks, self.when_idle = self.when_idle, ()
            for callback in callbacks:
                callback()

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` once no run of it is under way, also one that a middleware has shielded."""
        if self.handlers:
            self.when_idle = (*self.when_idle, callback)
        else:
            callback()

    @property
    def alone(self) -> bool:
        """Whether the handler's task runs nothing else: what a deadline has made where no middleware stands inside."""
        return self.plan.inside is None and self.deadline is not None

    # -- cancellation -------------------------------------------------------------------------------------------------

    def is_cancelled(self) -> bool:
        """Whether the present task, the call's or its handler's own, was cancelled by the kernel or from outside."""
        try:
            task = asyncio.current_task()
        except RuntimeError:  # its loop was closed, and it is collected
            return False
        if task is None:
            return False
        if task is self.task:
            return bool(task.cancelling() > self.cancels)
        return task in self.stopped or ((RELIABLE_CANCELLING or not self.alone) and task.cancelling() > 0)

    def is_closing(self, error: BaseException) -> bool:
        """Whether a `GeneratorExit` closes the call's coroutine, whose loop was left; else somebody has raised it."""
        return isinstance(error, GeneratorExit) and (self.task is None or self.task.get_loop() is not running_loop())

    def interrupt(self, rejection: Rejected) -> None:
        """Stop the call from outside: its task is cancelled, and it takes that back and answers with `rejection`."""
        if self.rejection is None and not self.ended and self.task is not asyncio.current_task():
            self.rejection = rejection
            self.task.cancel()

    def take_back(self) -> Rejected | None:
        """Take back the cancellation by which the runner has stopped the call; its answer, where nobody else cancelled
        the task."""
        rejection, self.rejection = self.rejection, None
        if rejection is not None:
            self.task.uncancel()
        return rejection if self.task.cancelling() <= self.cancels else None

    def wake_pausing(self) -> None:
        """Let it look again whether there may be another attempt."""
        if self.pausing is not None:
            wake(self.pausing)


def ancestors(state: CallState) -> Iterator[CallState]:
    """The calls whose handlers made it, the nearest first."""
    parent = state.parent
    while parent is not None:
        yield parent
        parent = parent.parent


def state_of(plan: Plan, context: ToolContext) -> CallState:
    """The state of the call that a middleware's context belongs to.

    Raises:
        DefinitionError: where that is another call, or none.
    """
    state = context.running
    if not isinstance(state, CallState) or state.plan is not plan:
        raise DefinitionError("a middleware gave `next` a context of its own making; give it the one that it got")
    return state
