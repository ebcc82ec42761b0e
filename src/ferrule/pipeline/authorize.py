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
from collections.abc import Awaitable, Mapping
from typing import Any, NamedTuple, TypeAlias

from ferrule.arguments.parameters import Invalid
from ferrule.definition.handler import is_async
from ferrule.executors import threads
from ferrule.pipeline.guards import GuardFunction, broken, decision_of
from ferrule.pipeline.plan import Plan
from ferrule.pipeline.results import NOTHING_RUN, Rejected, denied
from ferrule.pipeline.state import CallState
from ferrule.pipeline.suspension import resume_data
from ferrule.pipeline.tasks import start
from ferrule.types import Approver, Coro, Guard
from ferrule.values.call import ToolCall, judged_call
from ferrule.values.content import clean, cut
from ferrule.values.decision import ALLOW, Decision, ask, deny
from ferrule.values.event import emit

log = logging.getLogger("ferrule")
ROUNDS = 8
GUARD_SECONDS = 10.0
VALUE_MISSING = "a value that only the program or a person can supply is missing"
_NOT_OURS = (KeyboardInterrupt, GeneratorExit)

Authorized: TypeAlias = tuple[ToolCall, Any]
"""The call as it was judged, and the values that its handler gets."""


class Verdict(NamedTuple):
    """A decision, with the call and the values that it is about."""

    decision: Decision
    call: ToolCall
    values: object


class FirstAnswer(NamedTuple):
    """The first guard that was not content, by its place, and what it answered or raised."""

    position: int
    answer: object


def authorize(plan: Plan, call: ToolCall, values: object, state: CallState) -> Authorized | Coro[Authorized]:
    """The call that may run: at once where every guard is content at once, else by the coroutine that is returned,
    which asks whoever is to be asked and waits.

    Raises:
        Rejected: (the coroutine) where the call may not run, or is suspended.
    """
    if not plan.guards:
        return (call, values) if not plan.hidden else _authorize(plan, call, values, state, None)
    first = _first_answer(plan, call, state)
    if first is not None or plan.hidden:
        return _authorize(plan, call, values, state, first)
    if state.observers:
        emit(state.observers, "tool:decided", call, ALLOW)
    return call, values


def _first_answer(plan: Plan, call: ToolCall, state: CallState) -> FirstAnswer | None:
    """Ask the guards in turn, until one is not content; most calls are done with this."""
    context = state.context
    position = 0
    try:
        for guard, _ in plan.guards:
            answer: Any = guard(call, context)
            if answer is not None and answer is not ALLOW:
                return FirstAnswer(position, answer)
            position += 1
    except _NOT_OURS:
        raise
    except BaseException as error:
        return FirstAnswer(position, threads.Raised(error))
    return None


async def _authorize(
    plan: Plan, call: ToolCall, values: object, state: CallState, first: FirstAnswer | None
) -> Authorized:
    verdict = await judge(plan, call, values, state, first)
    if plan.guards and state.observers:
        emit(state.observers, "tool:decided", verdict.call, verdict.decision)
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
            emit(state.observers, "tool:decided", verdict.call, verdict.decision)
        if verdict.decision.kind == "ask":
            raise Rejected(
                "suspended",
                f"{plan.name} waits for a decision: {cut(clean(asked.reason), 500)}. {NOTHING_RUN}",
                metadata={"resume": resume_data(verdict.call, state, verdict.decision)},
            )
    if verdict.decision.kind == "deny":
        raise denied(verdict.decision.reason)
    if plan.hidden and plan.parameters.missing(verdict.call.arguments):
        raise denied(VALUE_MISSING)
    state.call = verdict.call
    return verdict.call, verdict.values


# -- guards ------------------------------------------------------------------------------------------------------------


async def judge(
    plan: Plan, call: ToolCall, values: object, state: CallState, first: FirstAnswer | None = None
) -> Verdict:
    """What all guards say together; changed arguments are judged again.

    Those before `first` are content, and that one is not asked twice.
    """
    changed_by = -1
    for _ in range(ROUNDS):
        decision = ALLOW
        for position, (function, guard) in enumerate(plan.guards):
            if position == changed_by or (first is not None and position < first.position):
                continue
            answer, first = (_NOT_ASKED if first is None else first.answer), None
            answered = await _evaluate_guard(plan, function, guard, call, state, answer)
            if answered.kind == "deny":
                return Verdict(answered, call, values)
            if answered.kind == "ask":
                decision = _both(decision, answered)
            elif answered.arguments is not None:
                changed_by = position
                try:
                    call, values = _with_arguments(plan, call, answered.arguments, state)
                except Invalid as invalid:
                    log.error("a guard of tool %r changed the arguments to what does not fit: %s", plan.name, invalid)
                    what = f"a guard changed the arguments to what does not fit{_misfit(plan, invalid)}"
                    return Verdict(deny(what), call, values)
                except Exception as error:  # a mapping of the guard's own may raise anything when it is read
                    return Verdict(_guard_broke(plan, guard, error), call, values)
                break
        else:
            return Verdict(decision, call, values)
    return Verdict(deny("the guards kept changing the arguments"), call, values)


_NOT_ASKED: Any = object()


async def _evaluate_guard(
    plan: Plan, function: GuardFunction, guard: Guard, call: ToolCall, state: CallState, answer: object
) -> Decision:
    """One guard's answer as a decision; one that breaks or is late denies."""
    try:
        if answer is _NOT_ASKED:
            answer = function(call, state.context)
        if isinstance(answer, threads.Raised):
            raise answer.error
        if answer is not None and not isinstance(answer, Decision | Mapping) and inspect.isawaitable(answer):
            answer = await _within_time(answer)
        return decision_of(answer, call)
    except _NOT_OURS:
        raise
    except _Cancelled:
        raise asyncio.CancelledError from None
    except BaseException as error:
        return _guard_broke(plan, guard, error)


def _both(one: Decision, other: Decision) -> Decision:
    """Two decisions of which none denies; of two asks, a person has to see both."""
    if one.kind == other.kind == "ask" and one.reason != other.reason:
        return ask(f"{one.reason}; {other.reason}", into=one.into or other.into)
    return one.stricter(other)


def _misfit(plan: Plan, invalid: Invalid) -> str:
    """What does not fit, for the model, which cannot mend it; nothing of a value that it is not to see."""
    return "" if plan.hidden else f": {str(invalid).partition(' Nothing was run')[0]}"


class _Cancelled(BaseException):
    """A cancellation from outside while a guard was awaited, told from one that the guard raised."""


def _guard_broke(plan: Plan, guard: Guard, error: BaseException) -> Decision:
    decision = broken(guard, error)
    if decision.reason.startswith("a guard"):
        log.error("the guard %r of tool %r broke", guard, plan.name, exc_info=error)
    return decision


async def _within_time(answer: Awaitable[object]) -> Any:
    """A guard's awaited answer, within its time; a late one is cancelled and not waited for.

    Raises:
        TimeoutError: where it is late.
    """

    async def waited() -> Any:
        try:
            return await answer
        except _NOT_OURS:
            raise
        except BaseException as error:
            return threads.Raised(error)

    task = start(waited(), asyncio.get_running_loop())
    if not task.done():
        try:
            await asyncio.wait({task}, timeout=GUARD_SECONDS)
        except asyncio.CancelledError as error:
            task.cancel()
            raise _Cancelled from error
    if not task.done():
        task.cancel()
        raise TimeoutError
    outcome = task.result()
    if isinstance(outcome, threads.Raised):
        raise outcome.error
    return outcome


def _with_arguments(plan: Plan, call: ToolCall, arguments: Mapping[str, object], state: CallState) -> Authorized:
    """The call with other arguments, validated."""
    values, text, _ = plan.parameters.judge(plan.name, arguments)
    state.call = changed = judged_call(call, text, values, plan.parameters)
    return changed, values


# -- whoever is asked --------------------------------------------------------------------------------------------------


async def _ask(plan: Plan, verdict: Verdict, state: CallState, approve: Approver | None) -> Verdict:
    """The verdict once somebody has answered the ask; still an ask where it is put off."""
    asked, call, values = verdict
    if approve is None:
        return Verdict(deny(f"nobody is there to ask ({asked.reason})"), call, values)
    answer = await _ask_approver(plan, approve, call, asked, state)
    if answer.kind == "ask":
        return Verdict(ask(answer.reason or asked.reason, into=answer.into or asked.into), call, values)
    if answer.kind == "deny":
        return Verdict(answer, call, values)
    if answer.arguments is not None:
        try:
            edited = {**call.arguments, **answer.arguments} if asked.into else answer.arguments
            call, values = _with_arguments(plan, call, edited, state)
        except Invalid as invalid:
            log.warning("an answer for tool %r does not fit: %s", plan.name, invalid)
            return Verdict(deny(f"the answer's arguments do not fit{_misfit(plan, invalid)}"), call, values)
        except Exception as error:
            log.error("the answer's arguments for tool %r cannot be read", plan.name, exc_info=error)
            return Verdict(deny("the answer's arguments cannot be read"), call, values)
    final = await judge(plan, call, values, state)
    if final.decision.kind == "deny":
        return final
    if final.call is not call:
        return Verdict(deny("a guard would change the arguments after they were approved"), call, values)
    return Verdict(ALLOW, call, values)


async def _ask_approver(plan: Plan, approve: Approver, call: ToolCall, asked: Decision, state: CallState) -> Decision:
    task, context = asyncio.current_task(), state.context
    cancels = task.cancelling() if task is not None else 0
    try:
        if is_async(approve):
            answer: Any = await approve(call, asked, context)  # type: ignore[misc]
        else:
            answer = await threads.in_own_thread(lambda: approve(call, asked, context))
            if isinstance(answer, threads.Raised):
                raise answer.error
            if inspect.isawaitable(answer):
                answer = await answer
    except GeneratorExit:
        raise
    except BaseException as error:
        if task is not None and task.cancelling() > cancels:
            raise
        log.error("the approver broke on tool %r", plan.name, exc_info=error)
        return deny("the question could not be asked")
    if answer is True:
        return ALLOW
    if isinstance(answer, Decision):
        return answer if answer.kind != "deny" or answer.reason else deny("refused")
    return deny("refused by the person who was asked" if answer is False else "refused")
