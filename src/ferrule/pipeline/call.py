"""The way of one call; every step is a function with its name.

receive      an id where there is none; names that are unknown or were not offered, and calls with a `problem`, are
             answered here
run_call     the outermost ring: its state, its events, and one sealed result
└ around…      middleware round the call as the model made it (not its id or name)
  └ core         what `around` goes round:
    ├ validate     text becomes arguments, strictly; then defaults and recorded repairs
    ├ known        where the journal has the call from before, it is judged, and answered with what came of it
    ├ authorize    guards and whoever is asked (authorize.py)
    ├ acquire      keys and slots, with a bounded wait (acquire.py)
    ├ invoke       deadline, middleware inside, handler (invoke.py); of a tool that changes things between the journal's
    │              intent and outcome (journaling.py)
    └ release
seal         binds, bounds, cleans and measures the result (results.py)
"""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ferrule.arguments.dumping import NoJudgedForm
from ferrule.arguments.parameters import Invalid
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError
from ferrule.pipeline import results
from ferrule.pipeline.acquire import Holdings, acquire, release
from ferrule.pipeline.authorize import ask_and_judge, authorize, judge_kept, question_of, resume
from ferrule.pipeline.call_key import TICKET, in_journal, is_claimed
from ferrule.pipeline.hiding import log_raised
from ferrule.pipeline.hooks import run_hooks
from ferrule.pipeline.invoke import (
    begin_attempt,
    enter,
    extend_idle,
    give_up,
    invoke,
    leave,
    reject,
    take_back,
    told_as_kept,
)
from ferrule.pipeline.journaling import end, invoke_once, known, replay
from ferrule.pipeline.live_call import LiveCall
from ferrule.pipeline.plan import Plan
from ferrule.pipeline.results import NOTHING_RUN, RESUMED_ALREADY, Rejected, seal
from ferrule.pipeline.state import NO_ORIGIN, RELIABLE_CANCELLING, CallState, Origin, ancestors, state_of
from ferrule.pipeline.suspension import Answered, recorded_arguments, take_up
from ferrule.scheduling.clock import end_of
from ferrule.types import Coro, Observer
from ferrule.values.arguments import Arguments
from ferrule.values.call import ToolCall, judged_call, new_id
from ferrule.values.content import clean, cut, sentence
from ferrule.values.context import CURRENT, ContextFields, ToolContext
from ferrule.values.event import EventKind, emit
from ferrule.values.input import Answer, InputRequired
from ferrule.values.result import Status, ToolResult, keep_told

if TYPE_CHECKING:
    from ferrule.pipeline.runner_state import RunnerState


def receive(runner: RunnerState, call: ToolCall, fields: ContextFields, origin: Origin = NO_ORIGIN) -> Coro[ToolResult]:
    """What is known at once is answered; all else goes its way."""
    if not call.id:
        call = call.replace(id=new_id())
    if call.problem is not None:
        return reject_at_once(runner, call, results.problem(call), fields, origin)
    plan, offered = runner.plans.get(call.name), origin.offered
    if plan is None or offered is not None:
        plan = find_plan(runner, call.name, offered)
        if plan is None:
            return reject_at_once(runner, call, unknown_tool(runner, call.name, offered), fields, origin)
    return run_call(plan, call, fields, origin)


def receive_again(
    runner: RunnerState, answered: Answered, fields: ContextFields, observers: tuple[Observer, ...]
) -> Coro[ToolResult]:
    """Take a suspended call in again."""
    call, kept = answered.call, answered.record["offered"]
    names = frozenset(kept or ())
    offered = None if kept is None else Toolset(tool for tool in runner.tools if tool.name in names)
    origin = Origin(observers=observers, answered=answered, offered=offered, turn=answered.record["turn"])
    plan = runner.plans.get(call.name)
    if plan is not None and plan.work is not None and call.id == TICKET + answered.record["idempotency_key"]:
        origin.entry = runner.works.get(call.id)
        return run_call(plan.work, call, fields, origin)
    return receive(runner, call, fields, origin)


def find_plan(runner: RunnerState, name: str, offered: Toolset | None = None) -> Plan | None:
    """The tool of that name, or the one that can only be meant; of those that were offered, where that is said."""
    plan = runner.plans.get(name)
    if plan is None and (tool := runner.tools.meant(name)) is not None:
        plan = runner.plans[tool.name]
    return plan if plan is None or offered is None or plan.tool in offered else None


def unknown_tool(runner: RunnerState, name: str, offered: Toolset | None = None) -> Rejected:
    """What is wrong with the name, and what would be right. With `offered` it names none but these tools, and says the
    same of a name that no tool has."""
    shown, tools = repr(cut(clean(name), 80)), runner.tools
    if tools.put_aside(name) is not None:
        return results.denied(f"{shown} is not available")
    wrong = f"There is no tool {shown}."
    if offered is not None:
        wrong, tools = f"{shown} was not offered.", offered
        if (search := next((tool for tool in offered.searches if tool in runner.tools), None)) is not None:
            return Rejected("not_found", f"{wrong} Find it with {search.wire_name!r} first. {NOTHING_RUN}")
    near = [one for one in tools.nearest(name) if tools.get(one) in runner.tools]
    names = ", ".join(map(repr, near or [tool.name for tool in islice(tools, 12) if tool in runner.tools]))
    others = f"Did you mean {names}?" if near else f"There are {names}." if names else "There are none."
    return Rejected("not_found", f"{wrong} {others} {NOTHING_RUN}")


async def reject_at_once(
    runner: RunnerState, call: ToolCall, rejection: Rejected, fields: ContextFields, origin: Origin = NO_ORIGIN
) -> ToolResult:
    """The end of a call that goes no further, with its two events; one that was suspended has had the first."""
    plan = find_plan(runner, call.name, origin.offered)
    named = call if plan is None or call.name == plan.name else call.replace(name=plan.name)
    result = ToolResult(None, rejection.error, call=call, tool_name=named.name, status=rejection.status, executed=False)
    observers = (*runner.observers, *origin.observers)
    run = perf_counter() if origin.answered is None else origin.answered.record["run"]
    if origin.answered is None:
        emit(observers, "tool:pre", named, None, fields, run)
    keep_told(result, (named, fields.session, fields.principal, runner.clock.now(), None, None))
    emit(observers, "tool:error", named, result, fields, run)
    if origin.entry is not None:
        origin.entry.end(result)
    return result


async def run_call(plan: Plan, sent: ToolCall, fields: ContextFields, origin: Origin = NO_ORIGIN) -> ToolResult:
    """The whole way of one call: its state, its events, and one sealed result."""
    runner = plan.runner
    loop = get_running_loop()
    if loop is not runner.loop:
        runner.move_to(loop)
    try:
        parent = _live_parent(runner, origin)
    except Rejected as rejection:
        return await reject_at_once(runner, sent, rejection, fields, origin)
    call = sent
    if parent is not None or sent.raw.__class__ is not str or sent.name != plan.name:
        call = _own_form(plan, sent, parent)
    state = LiveCall(plan, fields, sent, call, parent, origin)
    if parent is not None:
        extend_idle(parent)
    if origin is not NO_ORIGIN or call is not sent:
        _note_origin(state, origin)
    ends_task: BaseException | None = None
    runner.live.add(state)
    try:
        try:
            if state.observers and origin.answered is None:
                emit(state.observers, "tool:pre", state.told if plan.hidden else call, None, fields, state.run)
            if plan.around is not None:
                found: Any = await plan.around(call, state.context)
            elif plan.before_hooks:
                found = await core(plan, call, state)
            else:  # `core` with nothing to do of its own, for a third of the floor less
                found = await _admit_and_invoke(plan, call, state)
            result = seal(state, found)
            if state.task.cancelling() > state.cancels:
                result, ends_task = _end_of(state, result)
        except BaseException as error:
            result, ends_task = _end_of(state, error)
    finally:
        runner.live.discard(state)
        state.bound = state.task = None  # no cycle is left for the collector
        if state.attempt.given_up:
            _put_back(state, parent)
        if parent is not None:
            extend_idle(parent)
        if runner.idle is not None:
            runner.tell_idle()
    if plan.journaled and is_claimed(state) and not isinstance(ends_task, GeneratorExit):

        def write() -> asyncio.Task[ToolResult]:
            return loop.create_task(end(plan, state, result))

        writing = write()
        runner.go_on_writing(writing, write)
        if ends_task is None:
            try:
                await end_of(writing)
                if writing.result().metadata.get("unrecorded"):
                    result = writing.result()
            except asyncio.CancelledError as error:  # the call has its end all the same
                ends_task = error
    if state.observers:
        told = state.told if plan.hidden else state.call
        emit(state.observers, _END_KINDS.get(result.status, "tool:error"), told, result, fields, state.run)
    if origin.entry is not None:
        state.origin = NO_ORIGIN  # no cycle is left for the collector
        origin.entry.end(result)  # which the batch keeps, should the rest be cut off
    if ends_task is not None:
        raise ends_task from None
    return result


def _put_back(state: CallState, before: CallState | None) -> None:
    """Let who goes on in this task not be taken for a part of the call, or of one that it made."""
    current: Any = CURRENT.get()
    if current is state or (current and state in ancestors(current)):
        CURRENT.set(before)  # type: ignore[arg-type]


MOST_NESTED = 32


def _live_parent(runner: RunnerState, origin: Origin) -> CallState | None:
    """The nearest call that made this one and is under way; what outlived an ordinary end is a call of its own.

    Raises:
        Rejected: where a call above it was stopped, or too many are, or the runner takes no calls of their own.
    """
    current: Any = CURRENT.get()
    above, found, deep = origin.parent, None, 0
    if above is None:
        if current.__class__ is not LiveCall:  # in a worker process it is none of this program
            current = None
        elif current.task is None and current.parent is None and not current.attempt.given_up:
            current = None  # what ran before in this task, and came to an ordinary end
        if current is None and not runner.leaving:
            return None
        above = current
    elif above.ended:
        raise Rejected("cancelled", f"The call that made this one has ended. {NOTHING_RUN}")
    while above is not None:
        if not above.ended:
            found = found or above
            deep += 1
        elif above.attempt.given_up:
            raise Rejected("cancelled", f"The call that made this one was stopped. {NOTHING_RUN}")
        above = above.parent
    if deep > MOST_NESTED:
        raise Rejected("limited", f"Calls that are made by calls nest at most {MOST_NESTED} deep. {NOTHING_RUN}")
    if found is None and runner.leaving and (runner.leaving == 2 or not (origin.entry and origin.entry.admitted)):
        raise Rejected("cancelled", f"The runner is closing. {NOTHING_RUN}")
    return found


_END_KINDS: dict[Status, EventKind] = {"ok": "tool:post", "suspended": "tool:suspended"}


def _own_form(plan: Plan, sent: ToolCall, parent: CallState | None) -> ToolCall:
    """The call under the tool's own name, as a child of the call that made it, and with its arguments as text: the
    sender's own mapping may change, and what is judged and told must not."""
    made_by = sent.parent or (None if parent is None else parent.call.id)
    call = sent
    if made_by != sent.parent or sent.name != plan.name:
        call = sent.replace(name=plan.name, parent=made_by)
    if call.raw is None or isinstance(call.raw, str):
        return call
    try:
        text = plan.parameters.write(call.raw)
    except Exception:  # answered by `validate`
        return call
    return judged_call(call, Arguments(text))


def _note_origin(state: LiveCall, origin: Origin) -> None:
    """Where the call came from: a batch, a record, or a name that had to be read."""
    name = state.sent.name
    if name not in (state.plan.name, state.plan.tool.wire_name):
        state.repairs = (f"read the name {cut(clean(name), 80)!r} as {state.plan.name!r}",)
    state.observers = (*state.observers, *origin.observers)
    if origin.answered is not None:
        state.run = origin.answered.record["run"]
    if origin.entry is not None:
        origin.entry.state = state


def _end_of(state: CallState, found: Any) -> tuple[ToolResult, BaseException | None]:
    """What a call comes to whose middleware raised what was found, or whose task was cancelled whatever was made of
    that: its result, and what ends the task once that has its event and its record."""
    ends_task: BaseException | None = None
    cancelled = isinstance(found, asyncio.CancelledError)
    if isinstance(found, KeyboardInterrupt) or state.is_closing(found):
        ends_task = found
    elif state.task.cancelling() > state.cancels:
        stop = take_back(state)
        if cancelled and stop is not None:
            found = told_as_kept(state) or reject(state, stop)
        elif stop is None and (cancelled or RELIABLE_CANCELLING):
            ends_task = state.attempt.raised or (found if cancelled else asyncio.CancelledError())
    if ends_task is not None:
        found = give_up(state, found)
    elif isinstance(found, BaseException):
        found = results.middleware_raised(state, found)
    return seal(state, found), ends_task


def enter_core(plan: Plan, call: ToolCall, context: ToolContext) -> Coro[ToolResult]:
    """`core` as the end of the chain of `around`."""
    return core(plan, call, state_of(plan, context))


async def core(plan: Plan, call: ToolCall, state: CallState) -> ToolResult:
    """All that `around` goes round: validate, authorize, acquire, invoke; again where the handler asks for input."""
    if plan.around is not None:
        enter(state)
    try:
        if plan.before_hooks:
            changed = run_hooks(plan.before_hooks, call, state.context)
            call = changed if isinstance(changed, ToolCall) else await changed
        return await _admit_and_invoke(plan, call, state)
    finally:
        if plan.around is not None:
            leave(state)


async def _admit_and_invoke(
    plan: Plan, call: ToolCall, state: CallState, wanted: InputRequired | None = None
) -> ToolResult:
    """What the handler comes to, with the input that it asks for, or the reason why it is not run; `wanted` is what the
    run before wants to know."""
    answer: Answer | None = None
    answered = state.origin.answered
    try:
        if call is not state.call:
            _check_changed(plan, call, state)
        if plan.disabled is not None:
            raise results.denied(plan.disabled)
        if wanted is not None:
            values, answer = None, await _supply_input(plan, call, state, wanted)
        elif answered is not None:
            values, taken_up = None, await _take_up(plan, state, answered)
            if isinstance(taken_up, ToolResult):
                return taken_up
            answer = taken_up
        else:
            values, text = validate(plan, call, state)
            if plan.judged:
                note_judged(plan, state, values, text)
                values = state.call.arguments.validated
                if plan.journaled and (result := await _seen_before(plan, state)) is not None:
                    return result
                authorizing = authorize(plan, state)
                if authorizing is not None:
                    await authorizing
                    values = state.call.arguments.validated
        found = acquire(plan, state)
        holdings = found if isinstance(found, Holdings) else await found
    except Rejected as rejection:
        return reject(state, rejection)
    except asyncio.CancelledError:
        stop = take_back(state)
        if stop is None:
            raise
        return reject(state, stop)
    before: Any = state.parent and CURRENT.get()
    try:
        if state.task is None:
            raise DefinitionError("a middleware called `next`, and its call ended before the handler began")
        if state.task.cancelling() > state.cancels and state.is_cancelled(None):
            raise asyncio.CancelledError  # somebody on the way here made nothing of it
        state.holdings = holdings
        if state.observers:
            told = state.told if plan.hidden else state.call
            emit(state.observers, "tool:started", told, None, state.fields, state.run)
        CURRENT.set(state)  # type: ignore[arg-type]
        handling = (invoke_once if plan.journaled and plan.work is None else invoke)(plan, values, state, answer)
        result = handling if isinstance(handling, ToolResult) else await handling
    except Rejected as rejection:  # a step within may find that it has to wait for somebody
        return reject(state, rejection)
    finally:
        release(state, holdings)
        if state.parent or state.attempt.given_up:  # else nothing comes of it, and it takes 0.2 µs
            _put_back(state, before)
    if state.attempt.wanted is None or getattr(result, "status", None) != "suspended":
        return result
    wanted = state.attempt.wanted
    begin_attempt(state)
    return await _admit_and_invoke(plan, call, state, wanted)


async def _seen_before(plan: Plan, state: CallState, *, taken_up_before: bool = False) -> ToolResult | None:
    """What the journal has of the call from before, where it is not to be run.

    Raises:
        Rejected: where a guard denies it by now, or it cannot be said.
    """
    kept = await known(plan, state)
    if kept is None:
        return None
    await judge_kept(plan, state)
    result = await replay(plan, state, kept)
    if result is not None and taken_up_before and kept.state != "cut_off":  # who took it up may live, and go on with it
        result = state.attempt.result = result.replace(metadata={**result.metadata, "resumed_already": True})
    return result


async def _take_up(plan: Plan, state: CallState, answered: Answered) -> Answer | ToolResult | None:
    """Go on with a call that was judged before: the answer for its handler, or what came of it already.

    Raises:
        Rejected: where it may not be run.
    """
    if not answered.ends_work:
        state.call = judged_call(state.call, recorded_arguments(plan, answered))
    first = await take_up(plan, state, answered)
    if plan.journaled and (result := await _seen_before(plan, state, taken_up_before=not first)) is not None:
        return result
    if not first and in_journal(state).after is None:
        raise Rejected("invalid", RESUMED_ALREADY)
    answer = await resume(plan, state, answered)
    if not answered.ends_work:
        return answer
    state.holdings = holdings = Holdings(())  # it waits for no slot
    try:
        handling = (invoke_once if plan.journaled else invoke)(plan, None, state, None)
        return handling if isinstance(handling, ToolResult) else await handling
    finally:
        release(state, holdings)


async def _supply_input(plan: Plan, call: ToolCall, state: CallState, wanted: InputRequired) -> Answer | None:
    """Ask for what the handler wants to know; then it is run again, with values that are validated anew.

    Raises:
        Rejected: where it is not told, or has asked too often.
    """
    if too_many := state.attempt.count_input():
        raise Rejected("failed", f"{plan.name} {too_many}. {NOTHING_RUN}")
    if not plan.judged:
        note_judged(plan, state, *validate(plan, call, state))
    return await ask_and_judge(plan, state, question_of(state, wanted), plan.runner.approve, wanted.state)


def _check_changed(plan: Plan, call: ToolCall, state: CallState) -> None:
    """Look at the call that a middleware or a hook gave instead of the one that came.

    Raises:
        DefinitionError: where it is another one.
        Rejected: where it must not run.
    """
    if (call.id, call.name) != (state.call.id, plan.name):
        raise DefinitionError("a middleware gave `next` a call with another id or name")
    if call.problem is not None:
        raise results.problem(call)


def validate(plan: Plan, call: ToolCall, state: CallState) -> tuple[Any, str]:
    """The validated values of what was sent, and the text that they were read from.

    Raises:
        Rejected: where the arguments cannot be read or do not fit.
    """
    text: Any = call.raw
    try:
        if text.__class__ is not str:
            text = plan.parameters.write(text)
        if plan.max_input is None or len(text) <= plan.max_input:
            return plan.quick(text), text
    except Exception:  # `decode` says what is wrong, or repairs it
        pass
    try:
        plan.check_input(call.raw)
        values, text, repairs = plan.parameters.decode(plan.name, call.raw)
    except Invalid as invalid:
        raise Rejected("invalid", str(invalid)) from None
    state.repairs = tuple(dict.fromkeys((*state.repairs, *repairs)))  # `around` may come here twice
    return values, text


def note_judged(plan: Plan, state: CallState, values: object, text: str) -> None:
    """From now on the call has its arguments as they are judged, with the values that run.

    Raises:
        Rejected: where a value has no form to be judged by, or that does not make it again.
    """
    try:
        state.call = judged_call(state.call, plan.parameters.judged(text, values))
    except NoJudgedForm as error:
        log_raised(state, "the arguments of tool %r cannot be judged", plan.name, error=error)
        raise Rejected("failed", f"{plan.name} could not be run: {sentence(str(error))} {NOTHING_RUN}") from None
