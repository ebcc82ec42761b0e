"""May this call run? The guards' decision, and the answer of whoever is asked.

guards     together: deny > ask > allow; changed arguments are validated and judged again by every guard, the one
│          that changed them too, at most eight rounds
approver   where they ask: allowed, denied, or suspended as a value
guards     once more after an answer: an ask no longer counts, a deny or a further change denies
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from ferrule.arguments.parameters import Invalid
from ferrule.arguments.schema_parameters import SchemaParameters
from ferrule.definition.handler import is_async
from ferrule.executors.threads import Raised, in_own_thread
from ferrule.pipeline.guards import BROKEN, LATE, broken, decision_of, name_of
from ferrule.pipeline.hiding import hide, hide_reason, log_raised
from ferrule.pipeline.plan import Plan
from ferrule.pipeline.results import NOTHING_RUN, Rejected, denied
from ferrule.pipeline.state import CallState, ancestors
from ferrule.pipeline.suspension import Answered, pending_record, recorded_arguments, take_up, without
from ferrule.pipeline.tasks import within_time
from ferrule.types import Approver, Coro, Guard, GuardFunction
from ferrule.values.call import ToolCall, judged_call, starred_call
from ferrule.values.content import clean, cut
from ferrule.values.context import bound_context
from ferrule.values.decision import ALLOW, Decision, ask, deny
from ferrule.values.event import emit
from ferrule.values.frozen import JsonObject, freeze, thaw
from ferrule.values.input import Answer, InputRequired
from ferrule.values.json_text import SECRET_STARS, same

log = logging.getLogger("ferrule")
ROUNDS = 8
VALUE_MISSING = "a value that only the program or a person can supply is missing"

GuardAnswer: TypeAlias = tuple[int, object]
"""The place of a guard that is not content, and what it answered or raised."""


def authorize(plan: Plan, state: CallState) -> Coro[None] | None:
    """Whether the call may run: nothing is left to do where every guard is content at once; else the coroutine that is
    returned asks whoever is to be asked, and waits. `state.call` is then the call that may run.

    Raises:
        Rejected: (the coroutine) where the call may not run, or is suspended.
    """
    guards = plan.guards
    found = next_answer(guards, state) if guards else None
    if found is not None or plan.hidden:
        return _authorize(plan, state, found)
    if guards and state.observers:
        emit(state.observers, "tool:decided", state.call, ALLOW)  # nothing of it is hidden
    return None


async def _authorize(plan: Plan, state: CallState, found: GuardAnswer | None) -> None:
    decision = await judge(plan, state, found)
    if plan.guards and state.observers:
        emit(state.observers, "tool:decided", state.told, decision)
    await _decide(plan, state, decision, plan.runner.approve)


async def resume(plan: Plan, state: CallState, answered: Answered) -> None:
    """Take up a suspended call: the answer is about what was recorded, whatever `around` makes of it now.

    Raises:
        Rejected: where it was taken up already, may not run, or is suspended again.
    """
    arguments = recorded_arguments(plan, answered)
    await take_up(plan, answered)
    state.call = judged_call(state.call, arguments)
    record = answered.record
    if record["kind"] == "input":
        state.executed = None  # it has run until it asked
        state.wanted = InputRequired(record["reason"], record["schema"], record["state"])
        await ask_for_input(plan, state, state.wanted, answered.approve)
    else:
        await _decide(plan, state, ask(record["reason"], into=record["into"]), answered.approve)


async def ask_for_input(plan: Plan, state: CallState, wanted: InputRequired, approve: Approver | None) -> None:
    """Ask for what a handler wants to know, whose slot is free meanwhile; `state.answer` is then what it is told.

    Raises:
        Rejected: where nobody answers, the answer does not fit, or the call may not run any more; or it is suspended.
    """
    await _decide(plan, state, Decision("ask", wanted.reason, schema=wanted.schema), approve)
    state.wanted = None


async def put_question(plan: Plan, state: CallState, wanted: InputRequired) -> JsonObject | None:
    """What a running handler is told, which keeps all that it has meanwhile; nothing where nobody answers."""
    approve = plan.runner.approve
    if approve is None:
        return None
    asked = Decision("ask", wanted.reason, schema=wanted.schema)
    answer = await _ask_approver(plan, approve, asked, state)
    if answer.kind == "allow":
        try:
            value: JsonObject = freeze(SchemaParameters(wanted.schema).decode("the answer", answer.arguments or {})[0])
        except Exception as error:
            answer = _refused_change(plan, state, "the answer's", error)
    if state.observers:
        emit(state.observers, "tool:decided", state.told, deny(answer.reason) if answer.kind != "allow" else ALLOW)
    return value if answer.kind == "allow" else None


async def _decide(plan: Plan, state: CallState, decision: Decision, approve: Approver | None) -> None:
    """Let the call go on where the decision, or the answer of whoever is to be asked, allows it.

    Raises:
        Rejected: where the call may not run, or is suspended.
    """
    if decision.kind == "ask":
        asked, decision = decision, hide_reason(state, await _ask(plan, state, decision, approve))
        if state.observers:
            by = None if state.answered is None else state.answered.by
            about = decision if by is None else {"decision": decision, "by": by}
            emit(state.observers, "tool:decided", state.told, about)
        if decision.kind == "ask":
            state.pending = pending_record(state, decision)
            waits_for = "a decision" if asked.schema is None else "input"
            what = f"{plan.name} waits for {waits_for}: {cut(clean(asked.reason), 500)}"
            raise Rejected("suspended", f"{what}. {NOTHING_RUN}")
    if decision.kind == "deny":
        raise denied(decision.reason)
    if plan.hidden and plan.parameters.missing(state.call.arguments):
        raise denied(VALUE_MISSING)


# -- guards ------------------------------------------------------------------------------------------------------------


def next_answer(
    guards: tuple[tuple[GuardFunction, Guard], ...], state: CallState, start: int = 0
) -> GuardAnswer | None:
    """Ask the guards in turn, from `start` on, until one is not content; for most calls that is all."""
    call, context, position = state.call, state.context, start
    try:
        for position in range(start, len(guards)):
            answer = guards[position][0](call, context)
            if answer is not None and answer is not ALLOW:
                return position, answer
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return position, Raised(error)
    return None


async def judge(plan: Plan, state: CallState, found: GuardAnswer | None) -> Decision:
    """What all guards say together, those before `found` being content; changed arguments are judged again by all."""
    decision, rounds = ALLOW, 0
    while found is not None:
        position, answer = found
        guard = plan.guards[position][1]
        answered = hide_reason(state, await _decision(plan, guard, answer, state))
        if answered.kind == "deny":
            return answered
        if answered.kind == "ask":
            decision = _both(decision, answered)
        elif answered.arguments is not None:
            try:
                changed = _with_arguments(plan, state, answered.arguments)
            except Exception as error:
                return _refused_change(plan, state, "a guard's", error)
            if changed is not None:
                rounds += 1
                if rounds == ROUNDS:
                    return deny(f"the guard {name_of(guard)} kept changing the arguments")
                state.call, decision, position = changed, ALLOW, -1
        found = next_answer(plan.guards, state, position + 1)
    return decision


async def _decision(plan: Plan, guard: Guard, answer: object, state: CallState) -> Decision:
    """What a guard's answer comes to; one that breaks or is late denies."""
    if not isinstance(answer, Decision | Mapping) and inspect.isawaitable(answer):
        answer = await within_time(answer, plan.runner)
    if not isinstance(answer, Raised):
        try:
            return decision_of(answer)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # of a mapping of the guard's own
            answer = Raised(error)
    decision = broken(answer.error, partial(hide, state))
    if decision in (BROKEN, LATE):
        log_raised(state, "the guard %r of tool %r broke", guard, plan.name, error=answer.error)
    return decision


def _both(one: Decision, other: Decision) -> Decision:
    """Two decisions of which none denies; of two asks, a person has to see both."""
    if one.kind == other.kind == "ask" and one.reason != other.reason:
        return ask(f"{one.reason}; {other.reason}", into=one.into or other.into)
    return one.stricter(other)


def _with_arguments(plan: Plan, state: CallState, arguments: JsonObject) -> ToolCall | None:
    """The call with other arguments, validated; `None` where they are those that it has.

    Raises:
        Exception: `Invalid` where they do not fit; a mapping of somebody's own may raise anything when it is read.
    """
    plan.check_input(arguments)
    before = state.call.arguments
    made = plan.parameters.changed(plan.name, arguments, before)
    return None if same(thaw(made), thaw(before)) else judged_call(state.call, made)


def _refused_change(plan: Plan, state: CallState, whose: str, error: Exception) -> Decision:
    """The deny for arguments that a guard or a person gave; with nothing of a value that the model is not to see."""
    if not isinstance(error, Invalid):
        log_raised(state, "%s arguments for tool %r cannot be read", whose, plan.name, error=error)
        return deny(f"{whose} arguments cannot be read")
    log.error("%s arguments for tool %r do not fit: %r", whose, plan.name, hide(state, str(error)))
    misfit = "" if plan.hidden else f": {str(error).partition(' Nothing was run')[0]}"
    return deny(f"{whose} arguments do not fit{misfit}")


# -- whoever is asked --------------------------------------------------------------------------------------------------


async def _ask(plan: Plan, state: CallState, asked: Decision, approve: Approver | None) -> Decision:
    """What somebody has answered to the ask, and the guards to that; still an ask where it is put off."""
    given: frozenset[str] = frozenset()
    if approve is None:
        return deny(f"nobody is there to ask ({asked.reason})")
    answer = await _ask_approver(plan, approve, asked, state)
    if answer.kind == "ask":
        return Decision("ask", answer.reason or asked.reason, into=answer.into or asked.into, schema=asked.schema)
    if answer.kind == "deny":
        return answer
    if asked.schema is not None:
        try:
            value = SchemaParameters(asked.schema).decode("the answer", answer.arguments or {})[0]
        except Exception as error:
            return _refused_change(plan, state, "the answer's", error)
        state.answer = Answer(freeze(value), None if state.wanted is None else state.wanted.state)
    elif answer.arguments is not None:
        try:
            edited, given = _edited(plan, state.call, answer.arguments, asked.into)
            state.call = _with_arguments(plan, state, edited) or state.call
        except Exception as error:
            return _refused_change(plan, state, "the answer's", error)
    approved = state.call
    decision = await judge(plan, state, next_answer(plan.guards, state))
    if decision.kind == "deny":
        return decision
    # No record holds what is hidden: on resuming, guards supply theirs again, but for what a person gave.
    free = frozenset() if state.answered is None else plan.parameters.hidden - given
    changed = state.call is not approved
    if changed and not same(without(free, approved.arguments), without(free, state.call.arguments)):
        return deny("a guard would change the arguments after they were approved")
    return ALLOW


def _edited(plan: Plan, call: ToolCall, answer: JsonObject, into: str | None) -> tuple[dict[str, Any], frozenset[str]]:
    """The arguments as a person wants them, who was shown stars: what is hidden stays as it was, unless it is given;
    and the names that are given.

    Raises:
        Invalid: for another value of what is bound, which the program fixes.
    """
    hidden = plan.parameters.hidden
    given = {name: value for name, value in answer.items() if name not in hidden or value != SECRET_STARS}
    for name in (given.keys() & plan.parameters.bound.keys()) - {into}:
        if not same(thaw(given[name]), thaw(call.arguments[name])):
            raise Invalid(f"{name} is bound, and an answer cannot change it")
    kept = {name: value for name, value in call.arguments.items() if into or name in hidden}
    return {**kept, **given}, frozenset(given)


async def _ask_approver(plan: Plan, approve: Approver, asked: Decision, state: CallState) -> Decision:
    for one in (state, *ancestors(state)):
        one.asked = True
    call = starred_call(state.call, plan.parameters.hidden - {asked.into})
    context = bound_context(state.context.fields, state, 0)
    try:
        if is_async(approve):
            answer: Any = await approve(call, asked, context)  # type: ignore[misc]
        else:
            answer = await _ask_in_thread(lambda: approve(call, asked, context), plan, state)
            if isinstance(answer, Raised):  # no `KeyboardInterrupt` comes from a thread, but what says it is one
                raise RuntimeError("raised in its thread") from answer.error
            if inspect.isawaitable(answer):
                answer = await answer
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or state.is_closing(error) or state.is_cancelled():
            raise
        log_raised(state, "the approver broke on tool %r", plan.name, error=error)
        return deny("the question could not be asked")
    if answer is True:
        return ALLOW
    if isinstance(answer, Decision):
        return answer if answer.kind != "deny" or answer.reason else deny("refused")
    return deny("refused by the person who was asked" if answer is False else "refused")


async def _ask_in_thread(question: Callable[[], object], plan: Plan, state: CallState) -> object:
    """The answer of a plain function, or `Raised`, from a thread of its own; so many at once, and the others wait."""
    places = plan.runner.asking
    await places.acquire(None, state.group)

    def ask_and_leave() -> object:
        try:
            return question()
        finally:
            places.release()

    try:
        answer = in_own_thread(ask_and_leave)
    except RuntimeError:  # no thread can be started
        places.release()
        raise
    return await answer
