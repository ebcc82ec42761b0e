"""The state of one call: fourteen facts, and who writes each; and of each run of its handler."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ferrule.errors import DefinitionError
from ferrule.scheduling.clock import running_loop
from ferrule.types import Observer
from ferrule.values.call import ToolCall, starred_call
from ferrule.values.context import ContextFields, ToolContext, bound_context
from ferrule.values.event import About, EventKind, emit
from ferrule.values.frozen import FrozenDict, JsonObject
from ferrule.values.input import Answer, InputRequired
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool
    from ferrule.definition.toolset import Toolset
    from ferrule.pipeline.acquire import Holdings
    from ferrule.pipeline.background import Work
    from ferrule.pipeline.batch import Entry
    from ferrule.pipeline.call_key import InJournal
    from ferrule.pipeline.invoke import Deadline
    from ferrule.pipeline.plan import Plan
    from ferrule.pipeline.results import Rejected
    from ferrule.pipeline.suspension import Answered

RELIABLE_CANCELLING = sys.version_info >= (3, 13)
"""Whether `Task.cancelling()` tells of cancellations from outside alone.

Before Python 3.13 an `asyncio.TaskGroup` that cancelled its own task while it waited for its children leaves that
task's `cancelling()` raised (CPython issue 116720). There only a `CancelledError` that leaves the handler while the
count has risen comes from outside; every other outcome is the handler's.
"""


@dataclass(slots=True, eq=False)
class Origin:
    """Where a call comes from, and with what. No named tuple: a call reads it nine times, which takes 240 instructions
    there and 60 here."""

    parent: CallState | None = None
    """The call whose `context.run` made it."""
    timeout: float | None = None
    """Seconds that it may take."""
    entry: Entry | Work | None = None
    """Its place in a batch, or in the background."""
    observers: tuple[Observer, ...] = ()
    """Who sees its events, besides the runner's."""
    answered: Answered | None = None
    """The suspended call that it is, and the answer to that."""
    offered: Toolset | None = None
    """The tools that the model was offered; `None` where all may be called."""
    brief_log: bool = False
    """Whether the log gets one line for an exception, and its traceback at DEBUG only."""
    turn: str | None = None
    """Which turn of which run of a loop it belongs to, where ids may come again in another one."""


NO_ORIGIN = Origin()
_MOST_INPUTS = 16


class Attempt:
    """What is known of one run of the handler; a new one is made for each, so that nothing has to be forgotten.

    Attributes:
        noted: Texts of middleware that the record of the call has, where it is suspended.
        open: Whether a middleware's `next` is under way.
        runs: How often the handler of the call was started, which no middleware can say otherwise.
        executed: Whether it was started (`None`) and has ended (`True`), now or before.
        result: The result that the kernel made, which nobody else has.
        refusal: The result that says, in the kernel's words alone, why nothing was run.
        pending: What it takes to take the call up again, while it is suspended.
        wanted: What the handler wants to know before it goes on.
        answer: What it was told, for this run.
        asked: Whether a person was asked for the call, or for one that it made.
        inputs: How often its handlers have wanted to know something, in whichever way.
        answered_by: Who approved it, where that was said.
        chunks: What it has yielded so far.
        not_started: What the executor raised when it did not start it.
        deadline: It, and the task that has it; `None` where there is none.
        raised: What the handler made of a cancellation from outside.
        cancels: What earlier runs have left of `cancelling()` of its task, before Python 3.13.
        idle_deadlines: Those that progress of this run extends: its own, and those of the calls that made it.
        given_up: Whether a run was stopped: what goes on of it may run nothing more once the call has ended.
        left_running: Whether something of it went on after that.
        stop: The answer with which the runner has stopped the call from outside, until that is taken back.
        in_journal: What the call is known by and how far the journal has it, once somebody wanted to know.
        kept: The result that the journal has, or is being given.
    """

    # What few calls write is kept at the class. What each writes is not: such stores are not specialised.
    answer: Answer | None = None
    answered_by: str | None = None
    asked: bool = False
    cancels: int = 0
    chunks: Any = ()
    given_up: bool = False
    idle_deadlines: tuple[Deadline, ...] = ()
    inputs: int = 0
    in_journal: InJournal | None = None
    kept: ToolResult | None = None
    left_running: bool = False
    not_started: BaseException | None = None
    noted: Mapping[str, str] = FrozenDict()
    open: bool = False
    pending: JsonObject | None = None
    raised: BaseException | None = None
    refusal: ToolResult | None = None
    stop: Rejected | None = None
    wanted: InputRequired | None = None

    def __init__(self) -> None:
        self.runs = 0
        self.executed: bool | None = False
        self.result: ToolResult | None = None
        self.deadline: Deadline | None = None

    def count_input(self) -> str:
        """Count that the handler wants to know something; why nobody may be asked for it, or nothing."""
        self.inputs += 1
        return f"asked for input more than {_MOST_INPUTS} times" if self.inputs > _MOST_INPUTS else ""

    def note_not_started(self, error: BaseException | None) -> None:
        """The handler was not started after all; earlier runs of it count still."""
        self.not_started = error
        self.runs -= 1
        self.executed = None if self.runs else False


class CallState:
    """What the kernel keeps of one call while it runs.

    Set when it arrives, by `run_call`:

    Attributes:
        plan: The compiled tool.
        fields: What the caller gave as context.
        sent: The call as the model made it.
        parent: The call whose handler made this one.
        origin: Where it comes from.
        observers: Who sees its events.
        run: When the call arrived, by `perf_counter`, which its events have and those of no other call in this process;
            of one that is taken up, what they had before.
        task: The task that the call runs in; `None` after its end.
        cancels: How often that task had been cancelled before.

    Written on the way:

    Attributes:
        call: The call under the tool's own name; once judged, with the judged arguments and the validated values
            (`core` and `authorize`).
        repairs: What was repaired, in words (`validate`).
        holdings: The slots and keys that it runs with; `None` outside (`acquire.py`).
        attempt: What is known of the present run of its handler (`invoke.py`).
        bound: The context that others see, made when somebody wants it.
    """

    def __init__(
        self,
        plan: Plan,
        fields: ContextFields,
        sent: ToolCall,
        call: ToolCall,
        parent: CallState | None,
        origin: Origin = NO_ORIGIN,
    ) -> None:
        self.run: float | str = perf_counter()
        self.plan = plan
        self.fields = fields
        self.sent = sent
        self.call = call
        self.parent = parent
        self.origin = origin
        self.observers = plan.runner.observers
        self.task: Any = asyncio.current_task()
        self.cancels: int = self.task.cancelling()  # type: ignore[union-attr]
        self.repairs: tuple[str, ...] = ()
        self.holdings: Holdings | None = None
        self.attempt = Attempt()
        self.bound: ToolContext | None = None

    @property
    def tool(self) -> Tool:
        return self.plan.tool

    @property
    def ended(self) -> bool:
        return self.task is None

    @property
    def inside(self) -> bool:
        """Whether it has its slot and its deadline."""
        return self.holdings is not None

    @property
    def context(self) -> ToolContext:
        """What guards, middleware and the handler see of it."""
        context = self.bound
        if context is None:
            context = self.bound = bound_context(self.plan.fields(self.fields), self)  # type: ignore[arg-type]
        return context

    @property
    def told(self) -> ToolCall:
        """The call as observers and the journal see it."""
        return starred_call(self.call, self.plan.parameters.hidden) if self.plan.hidden else self.call

    @property
    def may_run_again(self) -> bool:
        """Whether there may be another attempt."""
        entry, runner = self.origin.entry, self.plan.runner
        stopping = (runner.leaving and self.parent is None) or (entry is not None and entry.stopping)
        return not (stopping or self.ended or self.plan.disabled is not None)

    def tell(self, kind: EventKind, about: About = None) -> None:
        """Tell the observers, where there are any."""
        if self.observers:
            emit(self.observers, kind, self.told if self.plan.hidden else self.call, about, self.fields, self.run)

    # -- cancellation -------------------------------------------------------------------------------------------------

    def is_cancelled(self, error: BaseException | None) -> bool:
        """Whether the present task, the call's or its handler's own, was cancelled by the kernel or from outside, as
        far as what its handler raised tells; `None` where it is not started yet."""
        task: Any = asyncio.current_task()
        deadline = self.attempt.deadline
        if deadline is not None and deadline.stopped and task is deadline.task:
            return True
        if not (RELIABLE_CANCELLING or error is None or isinstance(error, asyncio.CancelledError)):
            return False
        return bool(task.cancelling() > max(self.cancels if task is self.task else 0, self.attempt.cancels))

    def is_closing(self, error: BaseException) -> bool:
        """Whether a `GeneratorExit` closes the call's coroutine, whose loop was left; else somebody has raised it."""
        return isinstance(error, GeneratorExit) and (self.task is None or self.task.get_loop() is not running_loop())


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
    state: object = context.running
    if not isinstance(state, CallState) or state.plan is not plan:
        raise DefinitionError("a middleware gave `next` a context of its own making; give it the one that it got")
    return state
