"""From the text of a call to judged arguments."""

from __future__ import annotations

from typing import Any

from ferrule.arguments.dumping import NotJudgeable
from ferrule.arguments.parameters import Invalid
from ferrule.errors import DefinitionError
from ferrule.kernel.plan import Plan
from ferrule.kernel.redact import log_exception
from ferrule.kernel.results import NOTHING_RUN, Rejected, problem
from ferrule.kernel.state import CallState
from ferrule.values.call import ToolCall, make_judged_call
from ferrule.values.content import to_sentence
from ferrule.values.json_text import format_arguments


def validate(plan: Plan, call: ToolCall, state: CallState, *, judged: bool) -> Any:
    """Return the validated values. If `judged`, give the call its judged arguments, with the values beside them.

    Raises:
        Rejected: The arguments cannot be read or do not fit, or their JSON form does not make the same values again.
    """
    text: Any = call.raw
    values: Any = None
    try:
        if text.__class__ is not str:
            text = format_arguments(text)
        if plan.max_input is None or len(text) <= plan.max_input:
            values = plan.quick(text)
    except Exception:  # `_repair` reports it
        pass
    if values is None:
        values, text = _repair(plan, call, state)
    try:
        if judged:
            state.call = make_judged_call(state.call, plan.parameters.judged_arguments(text, values))
    except NotJudgeable as error:
        log_exception(state, "the arguments of tool %r cannot be judged", plan.name, error=error)
        raise Rejected("failed", f"{plan.name} could not be run: {to_sentence(str(error))} {NOTHING_RUN}") from None
    return values


def _repair(plan: Plan, call: ToolCall, state: CallState) -> tuple[Any, str]:
    """Return the values of the repaired arguments, and their text.

    Raises:
        Rejected: They do not fit.
    """
    try:
        plan.check_input(call.raw)
        values, text, repairs = plan.parameters.validate_with_repairs(plan.name, call.raw)
    except Invalid as invalid:
        raise Rejected("invalid", str(invalid)) from None
    state.repairs = tuple(dict.fromkeys((*state.repairs, *repairs)))  # `around` may call `next` twice
    return values, text


def check_replacement(plan: Plan, call: ToolCall, state: CallState) -> None:
    """Check the call that a middleware or a hook gave in place of the one that arrived.

    Raises:
        DefinitionError: It has another id or name.
        Rejected: It cannot be read.
    """
    if (call.id, call.name) != (state.call.id, plan.name):
        raise DefinitionError("a middleware gave `next` a call with another id or name")
    if call.problem is not None:
        raise problem(call)
