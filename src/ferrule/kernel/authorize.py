"""Decide whether a call may run: ask the guards, then a person if a guard says so.

guards     the strictest decision wins: deny, then ask, then allow. Changed arguments are validated and judged again by
│          all guards; the eighth change denies.
approver   answers an ask: approve, deny or suspend
guards     judge once more after an answer. Another ask does not count; a deny or another change denies the call.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from ferrule.arguments.parameters import Invalid
from ferrule.definition.guard_forms import BROKEN, LATE, decision_for_error, guard_name, to_decision
from ferrule.definition.handler import is_async
from ferrule.errors import NotStartedError, ToolError
from ferrule.executors.threads import Raised, run_in_thread, start_job
from ferrule.kernel.plan import Plan
from ferrule.kernel.redact import get_log_facts, log_exception, redact, redact_question
from ferrule.kernel.results import Suspended, denial
from ferrule.kernel.state import CallState, ancestors
from ferrule.kernel.suspension import ResumedCall, find_supplied_names, omit_names, refusal_by_person
from ferrule.kernel.tasks import run_within
from ferrule.types import Approver, Coro, Guard, GuardFunction
from ferrule.values.arguments import redact_hidden
from ferrule.values.call import ToolCall, make_judged_call, redact_call
from ferrule.values.content import safe_str
from ferrule.values.context import ToolContext, make_context
from ferrule.values.decision import ALLOW, Decision, deny, deny_unreadable_answer
from ferrule.values.frozen import FrozenDict, JsonObject, freeze, thaw
from ferrule.values.json_text import SECRET_STARS, is_same_json
from ferrule.values.log import write_log

if TYPE_CHECKING:
    from ferrule.values.input import Answer, InputRequired

MAX_ROUNDS = 8
VALUE_MISSING = "a value that only the program or a person can supply is missing"

GuardVerdict: TypeAlias = tuple[int, object]
"""The position of a guard, and a verdict that needs handling: anything but a plain allow. `Raised` if it raised."""


def authorize(plan: Plan, state: CallState) -> Coro[None] | None:
    """Ask the guards. Return None if all allow the call at once, else a coroutine for the rest.

    At its end, `state.call` has the arguments to run with.

    Raises:
        Rejected: (by the coroutine) The call may not run, or is suspended.
    """
    guards = plan.guards
    found = find_verdict(guards, state) if guards else None
    if found is not None or plan.hidden:
        return _authorize(plan, state, found)
    if guards and state.observers:
        state.emit("tool:decided", ALLOW)
    return None


async def _authorize(plan: Plan, state: CallState, found: GuardVerdict | None) -> None:
    decision = _emit_decision(plan, state, await judge(plan, state, found))
    if decision.kind == "ask" and (problem := await _find_problem(plan, state, decision)) is not None:
        decision = _emit_decision(plan, state, replace(deny(problem), rule=decision.rule))
    if decision.kind == "ask":
        await ask_and_judge(plan, state, decision, plan.runner.approve)
    else:
        _check_allowed(plan, state, decision)


async def judge_replayed_call(plan: Plan, state: CallState) -> None:
    """Judge a call whose outcome is known. Nobody is asked again.

    Raises:
        Rejected: A guard denies it.
    """
    decision = _emit_decision(plan, state, await judge(plan, state, find_verdict(plan.guards, state)))
    if decision.kind == "deny":
        raise denial(decision.reason)


def _emit_decision(plan: Plan, state: CallState, decision: Decision) -> Decision:
    """Emit the decision of the guards, and return it."""
    if plan.guards and state.observers:
        state.emit("tool:decided", decision)
    return decision


async def judge_resumed_call(plan: Plan, state: CallState, resumed: ResumedCall) -> Answer | None:
    """Judge a resumed call with its answer. Return the answer if the handler had asked for input, else None.

    The answer is about the recorded call, whatever `around` middleware makes of it now.

    Raises:
        Rejected: The call may not run, or is suspended again.
    """
    from ferrule.values.input import Answer  # for programs that resume calls

    record, kind = resumed.record, resumed.record["kind"]
    is_for_nested = record.get("question") is not None  # the answer is for the nested call, which judges it
    has_run = record.get("executed", False if kind in ("approval", "background") else None) is not False
    if is_for_nested or has_run or state.attempt.ran_before:
        state.attempt.executed = None  # the handler ran until it asked, or until it was cut off
        state.attempt.ran_before = kind != "work"  # a look that was not made leaves the work as it is
    if is_for_nested or kind in ("background", "work"):
        state.attempt.answered_by = None if is_for_nested else resumed.by
        if not resumed.answer_is_result:
            _check_allowed(plan, state, _emit_decision(plan, state, await _judge_again(plan, state, frozenset())))
        return None if kind == "background" else Answer(FrozenDict(), freeze(record["state"]))
    asked = Decision("ask", record["reason"], into=record["into"], schema=freeze(record["schema"]), rule=record["rule"])
    answer = await ask_and_judge(plan, state, asked, resumed.approve, freeze(record["state"]))
    if not find_supplied_names(plan, state.call.arguments).issuperset(record["supplied"]):
        raise denial(VALUE_MISSING)
    return answer


def _check_allowed(plan: Plan, state: CallState, decision: Decision) -> None:
    """Check that the decision allows the call, and that no hidden value is missing.

    Raises:
        Rejected: It does not, or a value is missing.
    """
    if decision.kind == "deny":
        raise denial(decision.reason)
    if plan.hidden and plan.parameters.find_missing_hidden(state.call.arguments):
        raise denial(VALUE_MISSING)


# -- guards ------------------------------------------------------------------------------------------------------------


def find_verdict(
    guards: tuple[tuple[GuardFunction, Guard], ...], state: CallState, start: int = 0
) -> GuardVerdict | None:
    """Ask the guards in turn, from `start` on. Return the first verdict that needs handling, or None if all allow."""
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
    """Return the decision of each guard about the call as it was sent."""
    decisions = []
    for function, guard in plan.guards:
        found = find_verdict(((function, guard),), state)
        one = ALLOW if found is None else await _read_verdict(plan, guard, found[1], state)
        arguments = one.arguments and redact_hidden(one.arguments, plan.parameters.hidden)
        decisions.append(replace(one, arguments=arguments, rule=one.rule or guard_name(guard)))
    return decisions


async def judge(plan: Plan, state: CallState, found: GuardVerdict | None) -> Decision:
    """Return the decision of all guards, beginning at the verdict `found`. All guards judge changed arguments again."""
    decision, rounds = ALLOW, 0
    while found is not None:
        position, verdict = found
        guard = plan.guards[position][1]
        one = await _read_verdict(plan, guard, verdict, state)
        if one.kind == "deny":
            return one
        if one.arguments is None:
            decision = _combine_decisions(decision, one)
        else:
            try:
                changed = _replace_arguments(plan, state, one.arguments)
            except Exception as error:
                return _deny_bad_arguments(plan, state, "a guard's", one.arguments, error)
            if changed is not None:
                rounds += 1
                if rounds == MAX_ROUNDS:
                    return deny(f"the guard {guard_name(guard)} kept changing the arguments")
                state.call, decision, position = changed, ALLOW, -1
        found = find_verdict(plan.guards, state, position + 1)
    return decision


async def _read_verdict(plan: Plan, guard: Guard, verdict: object, state: CallState) -> Decision:
    """Return the decision for a guard's verdict, with its rule. A guard that raises or is late denies."""
    if not isinstance(verdict, Decision | Mapping) and inspect.isawaitable(awaited := verdict):
        verdict = await run_within(plan.runner, lambda: awaited)
    if not isinstance(verdict, Raised):
        try:
            verdict = to_decision(verdict)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an answer of an unknown form, or a mapping that raises
            verdict = Raised(error)
    if isinstance(verdict, Raised):
        raised, verdict = verdict.error, decision_for_error(verdict.error, partial(redact, state))
        if verdict in (BROKEN, LATE):
            log_exception(state, "the guard %r of tool %r broke", guard, plan.name, error=raised)
    if verdict is ALLOW:
        return verdict
    return redact_question(state, replace(verdict, rule=verdict.rule or guard_name(guard)))


def _combine_decisions(one: Decision, other: Decision) -> Decision:
    """Combine two decisions that do not deny. Two of one kind give one with both reasons and rules."""
    if one is ALLOW or other is ALLOW:
        return other if one is ALLOW else one
    if one.kind != other.kind:
        return one.stricter(other)
    reasons = "; ".join(filter(None, dict.fromkeys((one.reason, other.reason))))
    return replace(one, reason=reasons, into=one.into or other.into, rule=f"{one.rule}; {other.rule}")


def _replace_arguments(plan: Plan, state: CallState, arguments: JsonObject) -> ToolCall | None:
    """Return the call with other, validated arguments, or None if they are the ones it has.

    Raises:
        Invalid: They do not fit.
        Exception: A foreign mapping raised it.
    """
    plan.check_input(arguments)
    made = plan.parameters.validate_change(plan.name, arguments)
    return None if is_same_json(thaw(made), thaw(state.call.arguments)) else make_judged_call(state.call, made)


def _deny_bad_arguments(plan: Plan, state: CallState, whose: str, given: JsonObject, error: Exception) -> Decision:
    """Return the deny for bad arguments of a guard or a person. It shows no hidden value."""
    if not isinstance(error, Invalid):
        log_exception(state, "%s arguments for tool %r cannot be read", whose, plan.name, error=error)
        return deny(f"{whose} arguments cannot be read")
    text = redact(state, str(error), given).partition(" Nothing was run")[0]  # that is for a model
    write_log(logging.ERROR, get_log_facts(state), "%s arguments for tool %r do not fit: %r", whose, plan.name, text)
    misfit = "" if plan.hidden else f": {text}"
    return deny(f"{whose} arguments do not fit{misfit}")


# -- the approver ------------------------------------------------------------------------------------------------------


async def ask_and_judge(
    plan: Plan, state: CallState, asked: Decision, approve: Approver | None, handler_state: Any = None
) -> Answer | None:
    """Ask the approver, and have the guards judge the answer. Return it if the handler had asked for input, else None.

    The call holds nothing while the approver is asked. A running handler asks by `ask_during_run` and keeps its slots.

    Args:
        handler_state: The handler's own data, to get back with the answer.

    Raises:
        Rejected: The answer is no or does not fit, nobody answers, a guard denies, or the call is suspended.
    """
    answer = await _get_answer(plan, state, asked, approve)
    if asked.schema is None or answer.by:
        state.attempt.answered_by = answer.by
    decision, given = answer, answer.arguments or FrozenDict()
    if answer.kind == "ask":
        decision = replace(asked, reason=answer.reason or asked.reason, into=answer.into or asked.into)
    elif answer.kind == "allow":
        decision = await _judge_again(plan, state, frozenset(given if asked.schema is None else ()))
    if decision.kind != "ask":
        decision = replace(decision, by=answer.by, rule=decision.rule or answer.rule or asked.rule)
    decision = redact_question(state, decision)  # a handler may have written the question
    by = answer.by and redact(state, answer.by)
    if decision != asked or asked.schema is not None:  # the guards' own ask was emitted before
        state.emit("tool:decided", decision if by is None else {"decision": decision, "by": by})
    if decision.kind == "ask":
        raise Suspended(plan, decision, handler_state)
    _check_allowed(plan, state, decision)
    if asked.schema is None:
        return None
    from ferrule.values.input import Answer  # for a tool that asks for input

    return Answer(given, handler_state)


async def ask_during_run(plan: Plan, state: CallState, wanted: InputRequired) -> JsonObject | None:
    """Ask a question of a running handler, which keeps its slots. Return None if it gets no answer.

    Raises:
        DefinitionError: The schema of the question is invalid.
    """
    check_question(wanted)
    if too_many := state.attempt.count_input():
        state.emit("tool:decided", deny(f"it {too_many}"))
        return None
    answer = await _get_answer(plan, state, make_question(state, wanted), plan.runner.approve)
    allowed = answer.kind == "allow"
    state.emit("tool:decided", ALLOW if allowed else deny(answer.reason))
    return answer.arguments if allowed else None


def check_question(wanted: InputRequired) -> None:
    """Check that an answer can fit a question of a handler, before anybody is asked.

    Raises:
        DefinitionError: The schema is invalid.
    """
    if wanted.schema:
        from ferrule.arguments.schema_parameters import SchemaParameters  # for a tool that asks for input

        SchemaParameters(wanted.schema, what="InputRequired(schema=…)")


def make_question(state: CallState, wanted: InputRequired) -> Decision:
    """Return the question of a handler for the approver, without secrets."""
    return redact_question(state, Decision("ask", wanted.reason, schema=wanted.schema))


async def _find_problem(plan: Plan, state: CallState, asked: Decision) -> str | None:
    """Return the text of the `ToolError` that the tool's preview raises: the call cannot work, and nobody is asked.

    An approver with an `answer` method makes the preview by itself.
    """
    preview, approve = plan.tool.preview, plan.runner.approve
    if preview is None or asked.schema is not None or approve is None or hasattr(approve, "answer"):
        return None
    shown = redact_hidden(state.call.arguments, {*plan.parameters.hidden, *((asked.into,) if asked.into else ())})
    made = await run_within(plan.runner, lambda: run_in_thread(lambda: preview(shown)))
    if not isinstance(made, Raised) or not isinstance(made.error, ToolError):
        return None
    return redact(state, safe_str(made.error))


async def _get_answer(plan: Plan, state: CallState, asked: Decision, approve: Approver | None) -> Decision:
    """Ask the approver. An allow comes with the call's new arguments, or with the input for the handler.

    A misfit answer denies.
    """
    answer = await _ask_approver(plan, approve, asked, state)
    if answer.kind != "allow":
        return redact_question(state, answer)
    given = answer.arguments
    try:
        if asked.schema is not None:
            from ferrule.arguments.schema_parameters import SchemaParameters  # for a tool that asks for input

            given = freeze(SchemaParameters(asked.schema).validate_with_repairs("the answer", given or {})[0])
        elif given is not None:
            hidden = plan.parameters.hidden  # a person may return the stars that were shown for these
            given = {name: value for name, value in given.items() if name not in hidden or value != SECRET_STARS}
            state.call = (
                _replace_arguments(plan, state, _merge_edits(plan, state.call, given, asked.into)) or state.call
            )
        return replace(answer, arguments=given)
    except Exception as error:
        if given is None and asked.schema is not None and isinstance(error, Invalid):
            return _deny_plain_yes(plan, state, asked.schema)
        return _deny_bad_arguments(plan, state, "the answer's", FrozenDict() if given is None else given, error)


def _deny_plain_yes(plan: Plan, state: CallState, schema: JsonObject) -> Decision:
    """Return the deny for a yes to a question that wants values. A yes is no value, not even for one true or false."""
    wanted = redact(state, ", ".join(map(repr, schema.get("required", ()))) or "a value")
    text = "the question of tool %r wants %s, and the answer was a plain yes: answer it with allow({…})"
    write_log(logging.ERROR, get_log_facts(state), text, plan.name, wanted)
    return deny(f"the question wants {wanted}, and the answer was a plain yes")


async def _judge_again(plan: Plan, state: CallState, given: frozenset[str]) -> Decision:
    """Have the guards judge an approved call. Another ask does not count; another change denies."""
    approved = state.call
    decision = await judge(plan, state, find_verdict(plan.guards, state))
    if decision.kind == "deny":
        return decision
    # Hidden values are not in the record, so guards may supply them again, unless a person gave one.
    ignored = frozenset() if state.origin.resumed is None else plan.parameters.hidden - given
    changed = state.call is not approved
    if changed and not is_same_json(omit_names(ignored, approved.arguments), omit_names(ignored, state.call.arguments)):
        return deny("a guard would change the arguments after they were approved")
    return ALLOW


def _merge_edits(plan: Plan, call: ToolCall, given: JsonObject, parameter: str | None) -> dict[str, Any]:
    """Return the arguments with a person's edits. Hidden ones stay as they were unless the person gave them.

    Args:
        parameter: The only parameter to fill, `Decision.into`. None if the edits replace all arguments.

    Raises:
        Invalid: The person changed a bound value.
    """
    for name in (given.keys() & plan.parameters.bound.keys()) - {parameter}:
        if not is_same_json(thaw(given[name]), thaw(call.arguments[name])):
            raise Invalid(f"{name} is bound, and an answer cannot change it")
    old = {name: value for name, value in call.arguments.items() if parameter or name in plan.parameters.hidden}
    return {**old, **given}


async def foresee(plan: Plan, state: CallState, asked: Decision) -> Decision:
    """Return the approver's answer if it needs to ask nobody for it, else `asked`."""
    function = getattr(plan.runner.approve, "foresee", None)
    if function is None:
        return asked
    answer = await run_within(plan.runner, function, *_make_approver_arguments(plan, state, asked))
    if isinstance(answer, Raised):
        log_exception(state, "the approver could not foresee its answer on tool %r", plan.name, error=answer.error)
    return answer if isinstance(answer, Decision) else asked


def _make_approver_arguments(plan: Plan, state: CallState, asked: Decision) -> tuple[ToolCall, Decision, ToolContext]:
    """Return the arguments for an approver."""
    call = redact_call(state.call, plan.parameters.hidden - {asked.into})
    return call, asked, make_context(state.context.fields, state.context.running_call, 0)


async def _ask_approver(plan: Plan, approve: Approver | None, asked: Decision, state: CallState) -> Decision:
    if approve is None:
        return deny(f"nobody is there to ask ({asked.reason})")
    for one in (state, *ancestors(state)):
        one.attempt.asked = True
    question = _make_approver_arguments(plan, state, asked)
    try:
        if is_async(approve):
            answer: Any = await approve(*question)  # type: ignore[misc]
        else:
            answer = await _ask_in_thread(lambda: approve(*question), plan, state)
            if isinstance(answer, Raised):  # a `KeyboardInterrupt` must not pass for one of this thread
                raise RuntimeError("raised in its thread") from answer.error
            if inspect.isawaitable(answer):
                answer = await answer
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or state.is_closing(error) or state.is_cancelled(error):
            raise
        log_exception(state, "the approver broke on tool %r", plan.name, error=error)
        return deny("the question could not be asked")
    if isinstance(answer, Decision):
        return answer
    if isinstance(answer, bool):
        return ALLOW if answer else refusal_by_person(asked)
    return deny_unreadable_answer(answer, plan.name, get_log_facts(state))


async def _ask_in_thread(question: Callable[[], object], plan: Plan, state: CallState) -> object:
    """Return the answer of a blocking approver, or `Raised`. Each question takes a thread; their number is limited."""
    limiter = plan.runner.questions
    await limiter.acquire(None, (plan.name, state.fields.principal))
    try:
        job = start_job(question)
    except NotStartedError:
        limiter.release()
        raise
    job.when_done(limiter.release)
    return await job.future
