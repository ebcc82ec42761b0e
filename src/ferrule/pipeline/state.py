"""The state of one call."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ferrule.errors import DefinitionError
from ferrule.executors import Job, NotStarted
from ferrule.scheduling.limiter import Limiter
from ferrule.scheduling.locks import Hold, KeyLocks
from ferrule.scheduling.timer import wake
from ferrule.types import Coro, Observer
from ferrule.values.call import ToolCall, new_id, starred_call
from ferrule.values.content import jsonable
from ferrule.values.context import ContextFields, ToolContext, bound_context
from ferrule.values.event import emit
from ferrule.values.frozen import FrozenDict, freeze
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool
    from ferrule.pipeline.plan import Plan
    from ferrule.pipeline.results import Rejected
    from ferrule.pipeline.suspension import Answered

RELIABLE_CANCELLING = sys.version_info >= (3, 13)
"""Whether `Task.cancelling()` tells of cancellations from outside alone.

Before Python 3.13 an `asyncio.TaskGroup` that cancelled its own task while it waited for its children leaves that
task's `cancelling()` raised (CPython issue 116720).
"""


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

    And what few calls need:

    Attributes:
        repairs: What was repaired, in words.
        timeout: Seconds that it may take once it has its slot.
        deadline: In the loop's time.
        waiter: Who waits for the handler's own task to end.
        holds: The keys that it runs with.
        below: The limits that apply anew among the calls that it makes, by the limit that each stands for.
        locks_below: The same for keys.
        abandoned: What still runs after it was given up, of the calls beneath it too.
        counted: How many of these the runner counts already, with what an earlier attempt had.
        raised: What the handler made of a cancellation from outside.
        answered: The answer to a suspended call.
        pending: What it takes to take the call up again, while it is suspended.
        beside: Whether its batch lets it run beside others because of its arguments.
        chunks: What the handler has yielded so far.
        own_task: The task of its own in which the handler, or what goes round it inside, runs at present.
        stopped: The tasks of its own that the kernel has cancelled, one for each attempt.
        refusal: The result that says, in the kernel's words alone, why nothing was run.
        rejection: The answer with which the runner has stopped the call from outside.
        uncancelled: Whether the cancellation by which it did so has been taken back.
        stopping: Whether its batch starts nothing more.
        pausing: What to wake it by where it waits between two runs of its handler.
        inherits: Whether its deadline is that of a call which made it.
        given_up: Whether a run of it was stopped: what goes on of it may run nothing more once the call has ended.
        handlers: How many runs of the handler, and of what goes round it inside, are under way.
        when_idle: What to do once none is.
        refused: What the executor raised when it did not start the handler.
    """

    repairs: tuple[str, ...] = ()
    holds: tuple[Hold, ...] = ()
    below: dict[Limiter, Limiter] | None = None
    locks_below: KeyLocks | None = None
    abandoned: tuple[Job, ...] = ()
    counted: int = 0
    raised: BaseException | None = None
    answered: Answered | None = None
    pending: FrozenDict | None = None
    chunks: Any = ()
    stopped: tuple[asyncio.Task[Any], ...] = ()
    refusal: ToolResult | None = None
    rejection: Rejected | None = None
    uncancelled: bool = False
    stopping: bool = False
    pausing: asyncio.Future[None] | None = None
    given_up: bool = False
    inherits: bool = False
    handlers: int = 0
    when_idle: tuple[Callable[[], object], ...] = ()
    refused: NotStarted | None = None

    def __init__(
        self,
        plan: Plan,
        fields: ContextFields,
        sent: ToolCall,
        call: ToolCall,
        parent: CallState | None,
        task: Any,
        observers: tuple[Observer, ...] = (),
        timeout: float | None = None,
    ) -> None:
        self.started = perf_counter()
        self.plan = plan
        self.fields = fields
        self.sent = sent
        self.call = call
        self.parent = parent
        self.task: Any = task
        self.cancels: int = 0 if task is None else task.cancelling()
        self.observers = observers
        self.timeout = timeout
        self.executed: bool | None = False
        self.runs = 0
        self.inside = self.ended = self.entered = self.beside = False
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
            context = self.bound = bound_context(self.fields, self)
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
        loop = self.plan.runner.loop
        if own and self.inherits:
            return None
        calls = (self,) if own else (self, *ancestors(self))
        deadlines = [call.deadline for call in calls if call.deadline is not None]
        return max(0.0, min(deadlines) - loop.time()) if deadlines and loop is not None else None

    def run_nested(self, name: str, arguments: Mapping[str, object] | str | None) -> Coro[ToolResult]:
        """Run another call as a child of this one: of a tool of the runner that this one belongs to."""
        runner = self.plan.runner.view_of(self.plan.tool.mounts)
        return runner.receive(runner, ToolCall(new_id(), name, arguments, parent=self.call.id), self.fields, self)

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

    def announce(self, data: Mapping[str, object]) -> None:
        """Emit a `tool:progress` while the call runs, on the loop's own thread."""
        loop = self.plan.runner.loop
        if not self.observers or self.ended or loop is None:
            return
        told = freeze(jsonable(data))  # the handler may change a chunk, and no observer may

        def tell() -> None:
            if not self.ended:
                emit(self.observers, "tool:progress", self.told, told)

        try:
            here = asyncio.get_running_loop() is loop
        except RuntimeError:
            here = False
        if here:
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
        reliable = RELIABLE_CANCELLING or self.plan.inside is not None or self.deadline is None
        return task in self.stopped or (reliable and task.cancelling() > 0)

    def is_closing(self, error: BaseException) -> bool:
        """Whether a `GeneratorExit` closes the call's coroutine, whose loop was left; else somebody has raised it."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        return isinstance(error, GeneratorExit) and (self.task is None or self.task.get_loop() is not here)

    def interrupt(self, rejection: Rejected) -> None:
        """Stop the call from outside: its task is cancelled, and it takes that back and answers with `rejection`."""
        if self.rejection is None and not self.ended and self.task is not asyncio.current_task():
            self.rejection = rejection
            self.task.cancel()

    def took_back(self) -> bool:
        """Whether it was the runner, and nobody else, that cancelled the task; that is taken back once."""
        if self.rejection is None:
            return False
        if not self.uncancelled:
            self.uncancelled = True
            self.task.uncancel()
        return bool(self.task.cancelling() <= self.cancels)

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


def release_all(state: CallState) -> None:
    """Give back the slots and keys of a call."""
    held, state.held = state.held, ()
    for limiter in held:
        limiter.release()
    if state.holds:
        holds, state.holds = state.holds, ()
        give_back((), holds)


def give_back(held: tuple[Limiter, ...], holds: tuple[Hold, ...]) -> None:
    """Let others have these slots and keys."""
    for limiter in held:
        limiter.release()
    for hold in holds:
        hold.release()


def state_of(plan: Plan, context: ToolContext) -> CallState:
    """The state of the call that a middleware's context belongs to.

    Raises:
        DefinitionError: where that is another call, or none.
    """
    state = context.running
    if not isinstance(state, CallState) or state.plan is not plan:
        raise DefinitionError("a middleware gave `next` a context of its own making; give it the one that it got")
    return state
