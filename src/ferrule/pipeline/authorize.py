"""May this call run? The guards' decision, and the answer of whoever is asked.

guards     together: deny > ask > allow; changed arguments are validated and judged again by every guard but the
│          one that changed them, at most eight rounds
approver   where they ask: allowed, denied, or suspended as a value
guards     once more after an answer: an ask no longer counts, a deny or a further change denies
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from ferrule.arguments.parameters import Invalid
from ferrule.definition.handler import is_async
from ferrule.executors.threads import Raised, in_own_thread
from ferrule.pipeline.guards import broken, decision_of
from ferrule.pipeline.plan import Plan
from ferrule.pipeline.results import NOTHING_RUN, Rejected, denied
from ferrule.pipeline.state import CallState
from ferrule.pipeline.suspension import Answered, pending_record
from ferrule.pipeline.tasks import within_time
from ferrule.types import Approver, Coro, Guard, GuardFunction
from ferrule.values.call import ToolCall, judged_call, starred_call
from ferrule.values.content import clean, cut
from ferrule.values.decision import ALLOW, Decision, ask, deny
from ferrule.values.event import About, emit
from ferrule.values.frozen import JsonObject, thaw
from ferrule.values.json_text import SECRET_STARS, same

log = logging.getLogger("ferrule")
ROUNDS = 8
GUARD_SECONDS = 10.0
VALUE_MISSING = "a value that only the program or a person can supply is missing"

Authorized: TypeAlias = tuple[ToolCall, Any]
"""The call as it was judged, and the values that its handler gets."""


class Verdict(NamedTuple):
    """A decision, with the call and the values that it is about."""

    decision: Decision
    call: ToolCall
    values: object


GuardAnswer: TypeAlias = tuple[int, object]
"""The place of a guard that is not content, and what it answered or raised."""


def authorize(plan: Plan, call: ToolCall, values: object, state: CallState) -> Authorized | Coro[Authorized]:
    """The call that may run: at once where every guard is content at once, else by the coroutine that is returned,
    which asks whoever is to be asked and waits.

    Raises:
        Rejected: (the coroutine) where the call may not run, or is suspended.
    """
    guards = plan.guards
    found = next_answer(guards, call, state) if guards else None
    if found is not None or plan.hidden:
        return _authorize(plan, call, values, state, found)
    if guards and state.observers:
        emit(state.observers, "tool:decided", call, ALLOW)  # nothing of it is hidden
    return call, values


async def _authorize(
    plan: Plan, call: ToolCall, values: object, state: CallState, found: GuardAnswer | None
) -> Authorized:
    verdict = await _judge(plan, call, values, state, found)
    if plan.guards and state.observers:
        emit(state.observers, "tool:decided", state.told, verdict.decision)
    return await decide(plan, verdict, state, plan.runner.approve)


async def decide(plan: Plan, verdict: Verdict, state: CallState, approve: Approver | None) -> Authorized:
    """What a verdict comes to, once whoever is to be asked has answered.

    Raises:
        Rejected: where the call may not run, or is suspended.
    """
    if verdict.decision.kind == "ask":
        asked = verdict.decision
        verdict = await _ask(plan, verdict, state, approve)
        if state.observers:
            emit(state.observers, "tool:decided", state.told, _told_decision(verdict.decision, state))
        if verdict.decision.kind == "ask":
            state.pending = pending_record(verdict.call, state, verdict.decision)
            what = f"{plan.name} waits for a decision: {cut(clean(asked.reason), 500)}"
            raise Rejected("suspended", f"{what}. {NOTHING_RUN}")
    if verdict.decision.kind == "deny":
        raise denied(verdict.decision.reason)
    if plan.hidden and plan.parameters.missing(verdict.call.arguments):
        raise denied(VALUE_MISSING)
    state.call = verdict.call
    return verdict.call, verdict.values


def _told_decision(decision: Decision, state: CallState) -> About:
    if state.answered is None or state.answered.by is None:
        return decision
    return {"decision": decision, "by": state.answered.by}


async def take_up(plan: Plan, answered: Answered) -> None:
    """Take a suspended call up, which is done once: in the runner's memory, or where the journal can, there.

    Raises:
        Rejected: where it was taken up before, has expired, or it is not known.
    """
    keeper: Any = plan.runner.journal
    if not callable(getattr(keeper, "take", None)):
        keeper = plan.runner.taken_up

    async def take() -> object:
        return await keeper.take(answered.record["key"], answered.record["expires_at"])

    _refuse_expired(answered)
    answer = await within_time(take(), GUARD_SECONDS, plan.runner)
    if isinstance(answer, Raised):
        log.error("it could not be noted that a call of tool %r is resumed", plan.name, exc_info=answer.error)
        raise Rejected("failed", f"It could not be noted that this call is resumed. {NOTHING_RUN}")
    _refuse_expired(answered)  # by now who keeps it may have forgotten it
    if answer is not True:
        raise Rejected("invalid", f"This call was resumed already. {NOTHING_RUN}")


def _refuse_expired(answered: Answered) -> None:
    if answered.expired:
        raise Rejected("invalid", f"The answer came too late, the call can no longer be resumed. {NOTHING_RUN}")


# -- guards ------------------------------------------------------------------------------------------------------------


async def judge(plan: Plan, call: ToolCall, values: object, state: CallState) -> Verdict:
    """What all guards say together; changed arguments are judged again."""
    return await _judge(plan, call, values, state, next_answer(plan.guards, call, state))


def next_answer(
    guards: tuple[tuple[GuardFunction, Guard], ...], call: ToolCall, state: CallState, start: int = 0, passed: int = -1
) -> GuardAnswer | None:
    """Ask the guards in turn, from `start` on and without that at `passed`, until one is not content; for most calls
    that is all."""
    context, position = state.context, start
    try:
        for position in range(start, len(guards)):
            if position != passed:
                answer = guards[position][0](call, context)
                if answer is not None and answer is not ALLOW:
                    return position, answer
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return position, Raised(error)
    return None


async def _judge(plan: Plan, call: ToolCall, values: object, state: CallState, found: GuardAnswer | None) -> Verdict:
    """What all guards say together, those before `found` being content."""
    decision, changes, changed_by = ALLOW, 0, -1
    while found is not None:
        position, answer = found
        guard = plan.guards[position][1]
        answered = await _decision(plan, guard, answer, call)
        if answered.kind == "deny":
            return Verdict(answered, call, values)
        if answered.kind == "ask":
            decision = _both(decision, answered)
        elif answered.arguments is not None:
            changes += 1
            if changes == ROUNDS:
                return Verdict(deny("the guards kept changing the arguments"), call, values)
            try:
                call, values = _with_arguments(plan, call, answered.arguments, state)
            except Invalid as invalid:
                log.error("a guard of tool %r changed the arguments to what does not fit: %r", plan.name, str(invalid))
                what = f"a guard changed the arguments to what does not fit{_misfit(plan, invalid)}"
                return Verdict(deny(what), call, values)
            except Exception as error:  # a mapping of the guard's own may raise anything when it is read
                return Verdict(_guard_broke(plan, guard, error), call, values)
            decision, changed_by, position = ALLOW, position, -1
        found = next_answer(plan.guards, call, state, position + 1, changed_by)
    return Verdict(decision, call, values)


async def _decision(plan: Plan, guard: Guard, answer: object, call: ToolCall) -> Decision:
    """What a guard's answer comes to; one that breaks or is late denies."""
    if not isinstance(answer, Decision | Mapping) and inspect.isawaitable(answer):
        answer = await within_time(answer, GUARD_SECONDS, plan.runner)
    if not isinstance(answer, Raised):
        try:
            return decision_of(answer, call)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # of a mapping of the guard's own
            answer = Raised(error)
    return _guard_broke(plan, guard, answer.error)


def _guard_broke(plan: Plan, guard: Guard, error: BaseException) -> Decision:
    decision = broken(guard, error)
    if decision.reason.startswith("a guard"):
        log.error("the guard %r of tool %r broke", guard, plan.name, exc_info=error)
    return decision


def _both(one: Decision, other: Decision) -> Decision:
    """Two decisions of which none denies; of two asks, a person has to see both."""
    if one.kind == other.kind == "ask" and one.reason != other.reason:
        return ask(f"{one.reason}; {other.reason}", into=one.into or other.into)
    return one.stricter(other)


def _misfit(plan: Plan, invalid: Invalid) -> str:
    """What does not fit, for the model, which cannot mend it; nothing of a value that it is not to see."""
    return "" if plan.hidden else f": {str(invalid).partition(' Nothing was run')[0]}"


def _with_arguments(plan: Plan, call: ToolCall, arguments: Mapping[str, object], state: CallState) -> Authorized:
    """The call with other arguments, validated."""
    plan.check_input(arguments)
    found = plan.parameters.judge(plan.name, arguments, call.arguments)
    state.call = changed = judged_call(call, found)
    return changed, found.validated


# -- whoever is asked --------------------------------------------------------------------------------------------------


async def _ask(plan: Plan, verdict: Verdict, state: CallState, approve: Approver | None) -> Verdict:
    """The verdict once somebody has answered the ask; still an ask where it is put off."""
    asked, call, values = verdict
    given: frozenset[str] = frozenset()
    if approve is None:
        return Verdict(deny(f"nobody is there to ask ({asked.reason})"), call, values)
    shown = starred_call(call, plan.parameters.hidden - {asked.into}) if plan.hidden else call
    answer = await _ask_approver(plan, approve, shown, asked, state)
    if answer.kind == "ask":
        return Verdict(ask(answer.reason or asked.reason, into=answer.into or asked.into), call, values)
    if answer.kind == "deny":
        return Verdict(answer, call, values)
    if answer.arguments is not None:
        try:
            edited, given = _edited(plan, call, answer.arguments, asked.into)
            call, values = _with_arguments(plan, call, edited, state)
        except Invalid as invalid:
            log.warning("an answer for tool %r does not fit: %r", plan.name, str(invalid))
            return Verdict(deny(f"the answer's arguments do not fit{_misfit(plan, invalid)}"), call, values)
        except Exception as error:
            log.error("the answer's arguments for tool %r cannot be read", plan.name, exc_info=error)
            return Verdict(deny("the answer's arguments cannot be read"), call, values)
    final = await judge(plan, call, values, state)
    if final.decision.kind == "deny":
        return final
    # No record holds what is hidden: on resuming, guards supply theirs again, but for what a person gave.
    free = frozenset() if state.answered is None else plan.parameters.hidden - given
    if final.call is not call and not _differs_only_in(free, call.arguments, final.call.arguments):
        return Verdict(deny("a guard would change the arguments after they were approved"), call, values)
    return Verdict(ALLOW, final.call, final.values)


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


def _differs_only_in(names: frozenset[str], one: JsonObject, other: JsonObject) -> bool:
    first, second = ({key: thaw(value[key]) for key in value if key not in names} for value in (one, other))
    return same(first, second)


async def _ask_approver(plan: Plan, approve: Approver, call: ToolCall, asked: Decision, state: CallState) -> Decision:
    task, context = asyncio.current_task(), state.context
    cancels = task.cancelling() if task is not None else 0
    try:
        if is_async(approve):
            answer: Any = await approve(call, asked, context)  # type: ignore[misc]
        else:
            answer = await _ask_in_thread(lambda: approve(call, asked, context), plan, state)
            if isinstance(answer, Raised):
                raise answer.error
            if inspect.isawaitable(answer):
                answer = await answer
    except BaseException as error:
        if state.is_closing(error) or (task is not None and task.cancelling() > cancels):
            raise
        log.error("the approver broke on tool %r", plan.name, exc_info=error)
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
