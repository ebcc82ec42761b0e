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
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from ferrule.arguments.parameters import Invalid
from ferrule.arguments.schema_parameters import SchemaParameters
from ferrule.definition.handler import is_async
from ferrule.errors import NotStartedError
from ferrule.executors.threads import Raised, begin
from ferrule.pipeline.call_key import in_journal
from ferrule.pipeline.guards import BROKEN, LATE, broken, decision_of, name_of
from ferrule.pipeline.hiding import facts_of, hide, hide_question, log_raised
from ferrule.pipeline.plan import Plan
from ferrule.pipeline.results import Suspended, denied
from ferrule.pipeline.state import CallState, ancestors
from ferrule.pipeline.suspension import Answered, refused, supplied_names, without
from ferrule.pipeline.tasks import within_time
from ferrule.types import Approver, Coro, Guard, GuardFunction
from ferrule.values.arguments import starred
from ferrule.values.call import ToolCall, judged_call, starred_call
from ferrule.values.context import ToolContext, bound_context
from ferrule.values.decision import ALLOW, Decision, deny
from ferrule.values.event import emit
from ferrule.values.frozen import FrozenDict, JsonObject, freeze, thaw
from ferrule.values.input import Answer, InputRequired
from ferrule.values.json_text import SECRET_STARS, same
from ferrule.values.logged import write_log

ROUNDS = 8
VALUE_MISSING = "a value that only the program or a person can supply is missing"

Found: TypeAlias = tuple[int, object]
"""The place of a guard that is not content, and what it gave or raised."""


def authorize(plan: Plan, state: CallState) -> Coro[None] | None:
    """Whether the call may run: nothing is left to do where every guard is content at once; else the coroutine that is
    returned asks whoever is to be asked, and waits. `state.call` is then the call that may run.

    Raises:
        Rejected: (the coroutine) where the call may not run, or is suspended.
    """
    guards = plan.guards
    found = next_found(guards, state) if guards else None
    if found is not None or plan.hidden:
        return _authorize(plan, state, found)
    if guards and state.observers:
        emit(state.observers, "tool:decided", state.call, ALLOW, state.fields, state.run)  # nothing of it is hidden
    return None


async def _authorize(plan: Plan, state: CallState, found: Found | None) -> None:
    decision = _told_decision(plan, state, await judge(plan, state, found))
    if decision.kind == "ask":
        await ask_and_judge(plan, state, decision, plan.runner.approve)
    else:
        _check_allowed(plan, state, decision)


async def judge_kept(plan: Plan, state: CallState) -> None:
    """Judge a call that is not to be run, as what came of it is known: nobody is asked again.

    Raises:
        Rejected: where a guard denies it.
    """
    decision = _told_decision(plan, state, await judge(plan, state, next_found(plan.guards, state)))
    if decision.kind == "deny":
        raise denied(decision.reason)


def _told_decision(plan: Plan, state: CallState, decision: Decision) -> Decision:
    """What the guards have decided, which the observers are told."""
    if plan.guards:
        state.tell("tool:decided", decision)
    return decision


async def resume(plan: Plan, state: CallState, answered: Answered) -> Answer | None:
    """Go on with a call that was taken up: the answer is about what was recorded, whatever `around` makes of it now.
    What a handler that has run wanted to know is returned.

    Raises:
        Rejected: where it may not run, or is suspended again.
    """
    record, kind = answered.record, answered.record["kind"]
    if kind in ("input", "work") or in_journal(state).after is not None:
        state.attempt.executed = None  # it has run until it asked, or was cut off; what it has begun goes on
    if kind in ("background", "work"):
        state.attempt.answered_by = answered.by
        if not answered.ends_work:
            _check_allowed(plan, state, _told_decision(plan, state, await _judge_again(plan, state, frozenset())))
        return Answer(FrozenDict(), freeze(record["state"])) if kind == "work" else None
    asked = Decision("ask", record["reason"], into=record["into"], schema=freeze(record["schema"]), rule=record["rule"])
    answer = await ask_and_judge(plan, state, asked, answered.approve, freeze(record["state"]))
    if not supplied_names(plan, state.call.arguments).issuperset(record["supplied"]):
        raise denied(VALUE_MISSING)
    return answer


def _check_allowed(plan: Plan, state: CallState, decision: Decision) -> None:
    """Let the call go on where the decision allows it.

    Raises:
        Rejected: where it does not, or a value is missing.
    """
    if decision.kind == "deny":
        raise denied(decision.reason)
    if plan.hidden and plan.parameters.missing(state.call.arguments):
        raise denied(VALUE_MISSING)


# -- guards ------------------------------------------------------------------------------------------------------------


def next_found(guards: tuple[tuple[GuardFunction, Guard], ...], state: CallState, start: int = 0) -> Found | None:
    """Ask the guards in turn, from `start` on, until one is not content; for most calls that is all."""
    call, context, position = state.call, state.context, start
    try:
        for position in range(start, len(guards)):
            verdict = guards[position][0](call, context)
            if verdict is not None and verdict is not ALLOW:
                return position, verdict
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return position, Raised(error)
    return None


async def explain(plan: Plan, state: CallState) -> list[Decision]:
    """What each guard says of the call as it was sent, whatever the others say."""
    said = []
    for function, guard in plan.guards:
        found = next_found(((function, guard),), state)
        one = ALLOW if found is None else await _decision(plan, guard, found[1], state)
        arguments = one.arguments and starred(one.arguments, plan.parameters.hidden)
        said.append(replace(one, arguments=arguments, rule=one.rule or name_of(guard)))
    return said


async def judge(plan: Plan, state: CallState, found: Found | None) -> Decision:
    """What all guards say together, those before `found` being content; changed arguments are judged again by all."""
    decision, rounds = ALLOW, 0
    while found is not None:
        position, verdict = found
        guard = plan.guards[position][1]
        one = await _decision(plan, guard, verdict, state)
        if one.kind == "deny":
            return one
        if one.arguments is None:
            decision = _both(decision, one)
        else:
            try:
                changed = _with_arguments(plan, state, one.arguments)
            except Exception as error:
                return _misfit(plan, state, "a guard's", one.arguments, error)
            if changed is not None:
                rounds += 1
                if rounds == ROUNDS:
                    return deny(f"the guard {name_of(guard)} kept changing the arguments")
                state.call, decision, position = changed, ALLOW, -1
        found = next_found(plan.guards, state, position + 1)
    return decision


async def _decision(plan: Plan, guard: Guard, verdict: object, state: CallState) -> Decision:
    """What a guard's verdict comes to, and by which rule; one that breaks or is late denies."""
    if not isinstance(verdict, Decision | Mapping) and inspect.isawaitable(awaited := verdict):
        verdict = await within_time(plan.runner, lambda: awaited)
    if not isinstance(verdict, Raised):
        try:
            verdict = decision_of(verdict)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # of a mapping of the guard's own
            verdict = Raised(error)
    if isinstance(verdict, Raised):
        raised, verdict = verdict.error, broken(verdict.error, partial(hide, state))
        if verdict in (BROKEN, LATE):
            log_raised(state, "the guard %r of tool %r broke", guard, plan.name, error=raised)
    return verdict if verdict is ALLOW else hide_question(state, replace(verdict, rule=verdict.rule or name_of(guard)))


def _both(one: Decision, other: Decision) -> Decision:
    """Two decisions of which none denies; of two asks, a person has to see both, of two that allow both are told."""
    if one is ALLOW or other is ALLOW:
        return other if one is ALLOW else one
    if one.kind != other.kind:
        return one.stricter(other)
    reasons = "; ".join(filter(None, dict.fromkeys((one.reason, other.reason))))
    return replace(one, reason=reasons, into=one.into or other.into, rule=f"{one.rule}; {other.rule}")


def _with_arguments(plan: Plan, state: CallState, arguments: JsonObject) -> ToolCall | None:
    """The call with other arguments, validated; `None` where they are those that it has.

    Raises:
        Exception: `Invalid` where they do not fit; a mapping of somebody's own may raise anything when it is read.
    """
    plan.check_input(arguments)
    made = plan.parameters.changed(plan.name, arguments)
    return None if same(thaw(made), thaw(state.call.arguments)) else judged_call(state.call, made)


def _misfit(plan: Plan, state: CallState, whose: str, given: JsonObject, error: Exception) -> Decision:
    """The deny for arguments that a guard or a person gave; with nothing of a value that the model is not to see."""
    if not isinstance(error, Invalid):
        log_raised(state, "%s arguments for tool %r cannot be read", whose, plan.name, error=error)
        return deny(f"{whose} arguments cannot be read")
    text = hide(state, str(error), given)
    write_log(logging.ERROR, facts_of(state), "%s arguments for tool %r do not fit: %r", whose, plan.name, text)
    misfit = "" if plan.hidden else f": {text.partition(' Nothing was run')[0]}"
    return deny(f"{whose} arguments do not fit{misfit}")


# -- whoever is asked --------------------------------------------------------------------------------------------------


async def ask_and_judge(
    plan: Plan, state: CallState, asked: Decision, approve: Approver | None, kept: Any = None
) -> Answer | None:
    """Put a question, whether the call may run or for what its handler wants to know; no slot is held meanwhile. The
    call goes on where the answer, and the guards about it, allow that: with the answer for the handler, which has
    `kept` something for itself.

    Raises:
        Rejected: where they do not, nobody answers, or the answer does not fit; or it is put off.
    """
    answer = await _answer_to(plan, state, asked, approve)
    if asked.schema is None or answer.by:
        state.attempt.answered_by = answer.by
    decision, given = answer, answer.arguments or FrozenDict()
    if answer.kind == "ask":
        decision = replace(asked, reason=answer.reason or asked.reason, into=answer.into or asked.into)
    elif answer.kind == "allow":
        decision = await _judge_again(plan, state, frozenset(given if asked.schema is None else ()))
    if decision.kind != "ask":
        decision = replace(decision, by=answer.by, rule=decision.rule or answer.rule or asked.rule)
    decision = hide_question(state, decision)  # what is asked may be a handler's own words
    state.tell("tool:decided", decision if answer.by is None else {"decision": decision, "by": hide(state, answer.by)})
    if decision.kind == "ask":
        raise Suspended(plan, decision, kept)
    _check_allowed(plan, state, decision)
    return None if asked.schema is None else Answer(given, kept)


async def ask_running(plan: Plan, state: CallState, wanted: InputRequired) -> JsonObject | None:
    """What a running handler is told, which keeps all that it has meanwhile; nothing where nobody answers, or it has
    asked too often."""
    if too_many := state.attempt.count_input():
        state.tell("tool:decided", deny(f"it {too_many}"))
        return None
    answer = await _answer_to(plan, state, question_of(state, wanted), plan.runner.approve)
    allowed = answer.kind == "allow"
    state.tell("tool:decided", ALLOW if allowed else deny(answer.reason))
    return answer.arguments if allowed else None


def question_of(state: CallState, wanted: InputRequired) -> Decision:
    """What a handler wants to know, as whoever is asked sees it."""
    return hide_question(state, Decision("ask", wanted.reason, schema=wanted.schema))


async def _answer_to(plan: Plan, state: CallState, asked: Decision, approve: Approver | None) -> Decision:
    """The answer, of an allow with what was given: arguments that the call has now, or the object that the schema of
    the question describes. What does not fit denies."""
    answer = await _ask_approver(plan, approve, asked, state)
    if answer.kind != "allow":
        return hide_question(state, answer)
    given = answer.arguments
    try:
        if asked.schema is not None:
            given = freeze(SchemaParameters(asked.schema).decode("the answer", given or {})[0])
        elif given is not None:
            left = plan.parameters.hidden  # a person, who was shown stars for these, may have left them
            given = {name: value for name, value in given.items() if name not in left or value != SECRET_STARS}
            state.call = _with_arguments(plan, state, _edited(plan, state.call, given, asked.into)) or state.call
        return replace(answer, arguments=given)
    except Exception as error:
        return _misfit(plan, state, "the answer's", FrozenDict() if given is None else given, error)


async def _judge_again(plan: Plan, state: CallState, given: frozenset[str]) -> Decision:
    """What the guards say once somebody has allowed the call: an ask no longer counts, a further change denies."""
    approved = state.call
    decision = await judge(plan, state, next_found(plan.guards, state))
    if decision.kind == "deny":
        return decision
    # No record holds what is hidden: on resuming, guards supply theirs again, but for what a person gave.
    free = frozenset() if state.origin.answered is None else plan.parameters.hidden - given
    changed = state.call is not approved
    if changed and not same(without(free, approved.arguments), without(free, state.call.arguments)):
        return deny("a guard would change the arguments after they were approved")
    return ALLOW


def _edited(plan: Plan, call: ToolCall, given: JsonObject, into: str | None) -> dict[str, Any]:
    """The arguments as a person wants them: what is hidden stays as it was, unless it is given.

    Raises:
        Invalid: for another value of what is bound, which the program fixes.
    """
    for name in (given.keys() & plan.parameters.bound.keys()) - {into}:
        if not same(thaw(given[name]), thaw(call.arguments[name])):
            raise Invalid(f"{name} is bound, and an answer cannot change it")
    kept = {name: value for name, value in call.arguments.items() if into or name in plan.parameters.hidden}
    return {**kept, **given}


async def foresee(plan: Plan, state: CallState, asked: Decision) -> Decision:
    """What the approver says it would answer without asking anybody, of which nothing is used up; `asked` where it
    says nothing of the kind, or breaks."""
    function = getattr(plan.runner.approve, "foresee", None)
    if function is None:
        return asked
    answer = await within_time(plan.runner, function, *_shown_to_approver(plan, state, asked))
    if isinstance(answer, Raised):
        log_raised(state, "what the approver would answer on tool %r is not known", plan.name, error=answer.error)
    return answer if isinstance(answer, Decision) else asked


def _shown_to_approver(plan: Plan, state: CallState, asked: Decision) -> tuple[ToolCall, Decision, ToolContext]:
    """What an approver is given."""
    call = starred_call(state.call, plan.parameters.hidden - {asked.into})
    return call, asked, bound_context(state.context.fields, state.context.running, 0)


async def _ask_approver(plan: Plan, approve: Approver | None, asked: Decision, state: CallState) -> Decision:
    if approve is None:
        return deny(f"nobody is there to ask ({asked.reason})")
    for one in (state, *ancestors(state)):
        one.attempt.asked = True
    question = _shown_to_approver(plan, state, asked)
    try:
        if is_async(approve):
            answer: Any = await approve(*question)  # type: ignore[misc]
        else:
            answer = await _ask_in_thread(lambda: approve(*question), plan, state)
            if isinstance(answer, Raised):  # no `KeyboardInterrupt` comes from a thread, but what says it is one
                raise RuntimeError("raised in its thread") from answer.error
            if inspect.isawaitable(answer):
                answer = await answer
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or state.is_closing(error) or state.is_cancelled(error):
            raise
        log_raised(state, "the approver broke on tool %r", plan.name, error=error)
        return deny("the question could not be asked")
    if isinstance(answer, Decision):
        return answer
    return ALLOW if answer is True else refused(asked)


async def _ask_in_thread(question: Callable[[], object], plan: Plan, state: CallState) -> object:
    """The answer of a plain function, or `Raised`, from a thread; so many at once, and the others wait."""
    places = plan.runner.questions
    await places.acquire(None, (plan.name, state.fields.principal))
    try:
        job = begin(question)
    except NotStartedError:
        places.release()
        raise
    job.when_done(places.release)
    return await job.future
