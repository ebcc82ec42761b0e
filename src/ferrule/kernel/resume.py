"""Go on with a call that is in the journal or was suspended, or whose handler asks for input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ferrule.kernel.authorize import ask_and_judge, judge_replayed_call, judge_resumed_call, make_question
from ferrule.kernel.journal_status import journal_status
from ferrule.kernel.plan import Plan
from ferrule.kernel.results import NOTHING_RUN, RESUMED_ALREADY, RESUMED_WITHOUT_EFFECT, Rejected
from ferrule.kernel.state import CallState
from ferrule.kernel.suspension import ResumedCall, mark_as_resumed, restore_arguments
from ferrule.kernel.validate import validate
from ferrule.values.call import ToolCall, make_judged_call
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.values.input import Answer, InputRequired


async def replay_earlier_run(plan: Plan, state: CallState, *, resumed_before: bool = False) -> ToolResult | None:
    """Return the journal's result of an earlier run of this call, or None if the call may run.

    Raises:
        Rejected: A guard now denies the call, the earlier run does not end in time, or the journal failed.
    """
    from ferrule.kernel.journaling import find_earlier_entry, replay  # for the programs with a journal

    entry = await find_earlier_entry(plan, state)
    if entry is None:
        return None
    await judge_replayed_call(plan, state)
    result = await replay(plan, state, entry)
    if result is not None and resumed_before and entry.state != "cut_off":  # whoever resumed it may still be at it
        result = state.attempt.result = result.replace(metadata={**result.metadata, "resumed_already": True})
    return result


async def continue_suspended(plan: Plan, state: CallState, resumed: ResumedCall) -> Answer | ToolResult | None:
    """Judge a resumed call with its answer. Return the answer for the handler, or the result if nothing is to run.

    Raises:
        Rejected: The call may not run, or was resumed already.
    """
    if not resumed.answer_is_result:
        state.call = make_judged_call(state.call, restore_arguments(plan, resumed))
    is_first = await mark_as_resumed(plan, state, resumed)
    if plan.journaled and (result := await replay_earlier_run(plan, state, resumed_before=not is_first)) is not None:
        return result
    if not is_first and journal_status(state).replaced_entry is None:
        raise Rejected("invalid", RESUMED_WITHOUT_EFFECT if plan.journaled else RESUMED_ALREADY)
    return await judge_resumed_call(plan, state, resumed)


async def ask_for_input(plan: Plan, call: ToolCall, state: CallState, wanted: InputRequired) -> Answer | None:
    """Ask for the input that the handler wants, and return the answer.

    Raises:
        Rejected: The answer is no, the call is suspended, or the handler asked too often.
    """
    if too_many := state.attempt.count_input():
        raise Rejected("failed", f"{plan.name} {too_many}. {NOTHING_RUN}")
    if not plan.needs_judged_arguments:
        validate(plan, call, state, judged=True)
    return await ask_and_judge(plan, state, make_question(state, wanted), plan.runner.approve, wanted.state)
