"""The state of one call, and of each attempt to run its handler."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ferrule.errors import DefinitionError
from ferrule.kernel.redact import redacting
from ferrule.scheduling.clock import running_loop
from ferrule.types import Observer
from ferrule.values.call import ToolCall, redact_call
from ferrule.values.context import ContextFields, ToolContext, make_context
from ferrule.values.event import About, EventKind, emit
from ferrule.values.frozen import FrozenDict, JsonObject
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool
    from ferrule.definition.toolset import Toolset
    from ferrule.kernel.acquire import HeldSlots
    from ferrule.kernel.background import BackgroundJob
    from ferrule.kernel.batch import Entry
    from ferrule.kernel.deadline import Deadline
    from ferrule.kernel.journal_status import JournalStatus
    from ferrule.kernel.plan import Plan
    from ferrule.kernel.results import Rejected
    from ferrule.kernel.suspension import ResumedCall
    from ferrule.values.input import Answer, InputRequired

RELIABLE_CANCELLING = sys.version_info >= (3, 13)
"""Whether `Task.cancelling()` counts only cancellations from outside.

Before Python 3.13 an `asyncio.TaskGroup` whose children fail leaves the count raised (CPython issue 116720). On those
versions a cancellation comes from outside only if a `CancelledError` leaves the handler while the count has risen.
"""


@dataclass(slots=True, eq=False, repr=False)
class Origin:
    """The origin of a call. A named tuple would be four times slower to read, and each call reads it nine times."""

    parent: CallState | None = None
    """The call whose `context.run` made this one."""
    timeout: float | None = None
    """Seconds for the call, in place of the tool's limit."""
    owner: Entry | BackgroundJob | None = None
    """The entry of the call in its batch, or its background job. It gets the result."""
    observers: tuple[Observer, ...] = ()
    """Observers of this call, besides those of the runner."""
    resumed: ResumedCall | None = None
    """For a call that was suspended: its record and the answer."""
    offered: Toolset | None = None
    """The tools offered to the model; None allows all."""
    turn: str | None = None
    """The turn of a loop, if ids may repeat in another turn; for a nested call with a fixed id, its parent's key."""
    has_fixed_id: bool = False
    """Whether a handler has given a nested call its id, so that it is the same call if the handler runs again."""

    @property
    def arrival_facts(self) -> About:
        """The facts of the event that reports the call's arrival."""
        return None if self.turn is None else {"turn": self.turn}


NO_ORIGIN = Origin()
_MAX_INPUTS = 16


class Attempt:
    """The facts of one attempt to run the handler. Each attempt has a new object, so no fact has to be reset.

    Attributes:
        abandoned: Whether a run was stopped. Code of it that goes on may make no calls once the call has ended.
        answer: The answer to the handler's question, for this run.
        answered_by: The name of the person who answered, if the answer has one.
        asked: Whether a person was asked about the call, or about one that it made.
        cancels_left_over: The count of `cancelling()` after earlier runs, before Python 3.13.
        chunks: The values yielded so far.
        deadline: The deadline of the run; None if it has no limit.
        executed: Whether the handler has run. `False` before its start, `None` while it runs, then as its result says:
            `True` if it ran, `None` if its effect is not known, `False` if it did nothing.
        idle_deadlines: The deadlines that progress of this run extends: its own, and those of the calls that made it.
        in_journal: The call key, and the status of the call in the journal; None until a step asks for it.
        in_next: Whether a middleware's `next` is in progress.
        inputs: How often the handler has asked for input.
        journaled: The result in the journal, or on its way there.
        left_running: Whether code of an abandoned run still ran.
        not_started: The exception with which the executor did not start the handler.
        pending: The sealed record of the call while it is suspended.
        raised: The exception that the handler made from a cancellation from outside.
        ran_before: Whether the handler ran before the call was suspended or cut off, and may have done something.
        record_notes: Texts by middleware for the record of the suspended call.
        refusal: The kernel's own result if nothing was run.
        result: The kernel's result of this attempt.
        runner_rejection: The rejection with which the runner stopped the call, until the cancellation is undone.
        runs: How often the handler was started.
        wanted: The input that the handler asks for.
    """

    # Class attributes are defaults that few calls overwrite. A store that each call makes is faster in `__init__`.
    abandoned: bool = False
    answer: Answer | None = None
    answered_by: str | None = None
    asked: bool = False
    cancels_left_over: int = 0
    chunks: Any = ()
    idle_deadlines: tuple[Deadline, ...] = ()
    inputs: int = 0
    in_journal: JournalStatus | None = None
    journaled: ToolResult | None = None
    left_running: bool = False
    not_started: BaseException | None = None
    in_next: bool = False
    pending: JsonObject | None = None
    raised: BaseException | None = None
    ran_before: bool = False
    record_notes: Mapping[str, str] = FrozenDict()
    refusal: ToolResult | None = None
    runner_rejection: Rejected | None = None
    wanted: InputRequired | None = None

    def __init__(self) -> None:
        self.runs = 0
        self.executed: bool | None = False
        self.result: ToolResult | None = None
        self.deadline: Deadline | None = None

    def count_input(self) -> str:
        """Count a question of the handler. Return an error if there were too many, else an empty text."""
        self.inputs += 1
        return f"asked for input more than {_MAX_INPUTS} times" if self.inputs > _MAX_INPUTS else ""

    def undo_start(self, error: BaseException | None) -> None:
        """Take back the start of the handler. Its earlier runs still count."""
        self.not_started = error
        self.runs -= 1
        self.executed = None if self.runs or self.ran_before else False


class CallState:
    """The state of one call while it runs.

    Set when the call arrives:

    Attributes:
        plan: The compiled tool.
        fields: The caller's context, as plain fields.
        sent: The call as the model made it.
        parent: The call whose handler made this one.
        origin: The origin of the call.
        observers: The observers of its events.
        run_id: Identifies the call in its events: its arrival time by `perf_counter`. A resumed call keeps its own.
        task: The task that runs the call; None after its end.
        cancels_before: The count of `cancelling()` of that task before the call.

    Written by the steps:

    Attributes:
        call: The call under the tool's own name; from `validate` on, with judged arguments and validated values.
        repairs: The repairs, in words (`validate`).
        held: The slots and keys of the call while its handler may run (`acquire`).
        attempt: The facts of the present attempt to run its handler (`invoke`).
        cached_context: The context of the call, made at its first use.
        has_secrets: Whether the call, or one that made it, has secrets or hidden values.
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
        self.run_id: float | str = perf_counter()
        self.plan = plan
        self.fields = fields
        self.sent = sent
        self.call = call
        self.parent = parent
        self.origin = origin
        self.observers = plan.runner.observers
        self.task: Any = asyncio.current_task()
        self.cancels_before: int = self.task.cancelling()  # type: ignore[union-attr]
        self.repairs: tuple[str, ...] = ()
        self.held: HeldSlots | None = None
        self.attempt = Attempt()
        self.cached_context: ToolContext | None = None
        self.has_secrets: bool = bool(plan.hidden or plan.secrets or fields.secrets or (parent and parent.has_secrets))

    @property
    def tool(self) -> Tool:
        return self.plan.tool

    @property
    def ended(self) -> bool:
        return self.task is None

    @property
    def holds_slots(self) -> bool:
        """Whether the call has its slots, so its handler may run."""
        return self.held is not None

    @property
    def is_still_running(self) -> bool:
        """Whether code of the handler, or of the middleware inside, still runs."""
        held = self.held
        return self.attempt.left_running or (held is not None and bool(held.active_runs or held.abandoned_jobs))

    @property
    def context(self) -> ToolContext:
        """The context for guards, middleware and the handler."""
        context = self.cached_context
        if context is None:
            context = self.cached_context = make_context(self.plan.fields(self.fields), self)  # type: ignore[arg-type]
        return context

    @property
    def redacted_call(self) -> ToolCall:
        """The call for observers and the journal, with stars for hidden values."""
        return redact_call(self.call, self.plan.parameters.hidden) if self.plan.hidden else self.call

    @property
    def may_run_again(self) -> bool:
        """Whether the handler may run once more."""
        owner, runner = self.origin.owner, self.plan.runner
        stopping = (runner.leaving and self.parent is None) or (owner is not None and owner.stopping)
        return not (stopping or self.ended)

    def emit(self, kind: EventKind, about: About = None) -> None:
        """Emit an event of this call."""
        if not self.has_secrets:  # so no value is hidden
            emit(self.observers, kind, self.call, about, self.fields, self.run_id)
            return
        with redacting(self, expires=True):
            emit(self.observers, kind, self.redacted_call, about, self.fields, self.run_id)
        if self.ended:
            self.cached_context = None  # a look at the secrets may have made it

    # -- cancellation -------------------------------------------------------------------------------------------------

    def is_cancelled(self, error: BaseException | None) -> bool:
        """Return whether the kernel or somebody outside has cancelled the present task.

        Args:
            error: The exception that the handler raised; None if it has not started.
        """
        task: Any = asyncio.current_task()
        deadline = self.attempt.deadline
        if deadline is not None and deadline.stopped and task is deadline.task:
            return True
        if not (RELIABLE_CANCELLING or error is None or isinstance(error, asyncio.CancelledError)):
            return False
        before = self.cancels_before if task is self.task else 0
        return bool(task.cancelling() > max(before, self.attempt.cancels_left_over))

    def is_closing(self, error: BaseException) -> bool:
        """Return whether a `GeneratorExit` closes the call's coroutine because its loop has ended."""
        return isinstance(error, GeneratorExit) and (self.task is None or self.task.get_loop() is not running_loop())


def ancestors(state: CallState) -> Iterator[CallState]:
    """Yield the calls whose handlers made this one, the nearest first."""
    parent = state.parent
    while parent is not None:
        yield parent
        parent = parent.parent


def find_state(plan: Plan, context: ToolContext) -> CallState:
    """Return the state of the call that a middleware's context belongs to.

    Raises:
        DefinitionError: The context is not the one that the middleware got.
    """
    state: object = context.running_call
    if not isinstance(state, CallState) or state.plan is not plan:
        raise DefinitionError("a middleware gave `next` a context of its own making; give it the one that it got")
    return state
