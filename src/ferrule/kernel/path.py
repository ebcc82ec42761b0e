"""The path of one call: the order of its steps.

run_call         emit the first and the last event, and return exactly one finished result
└ around…          middleware around the call; it may change the arguments, but not the id or the name
  └ run_core         everything that `around` middleware wraps: the `before` hooks, then the steps
    ├ validate         parse the text into arguments: strictly, then with recorded repairs
    ├ replay           if the journal knows the call, have the guards judge it and return its journaled result
    ├ authorize        ask the guards, then a person if a guard says so
    ├ acquire          take keys and slots, with a bounded wait
    ├ invoke           run the handler under its deadline; a journaled call commits its intent before, its outcome after
    └ release          give the keys and slots back
seal             bind the result to its call, limit its size, clean and measure it
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ferrule.definition.hooks import run_hook
from ferrule.kernel.acquire import HeldSlots, acquire, release
from ferrule.kernel.attempts import begin_attempt, begin_next, reject
from ferrule.kernel.authorize import authorize
from ferrule.kernel.begin import begin_call, reject_at_once, report_end
from ferrule.kernel.cancel import journaled_result, restore_current_call, result_of_interruption, undo_cancellation
from ferrule.kernel.deadline import report_progress
from ferrule.kernel.invoke import check_alive, invoke
from ferrule.kernel.journal_status import has_open_intent
from ferrule.kernel.plan import Plan
from ferrule.kernel.results import Rejected
from ferrule.kernel.resume import ask_for_input, continue_suspended, replay_earlier_run
from ferrule.kernel.seal import finish_result
from ferrule.kernel.state import NO_ORIGIN, CallState, Origin
from ferrule.kernel.validate import check_replacement, validate
from ferrule.values.call import ToolCall
from ferrule.values.context import ContextFields, get_current, set_current
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.values.input import Answer, InputRequired


async def run_call(plan: Plan, sent: ToolCall, fields: ContextFields, origin: Origin = NO_ORIGIN) -> ToolResult:
    """Run the call and return its finished result. An interruption is raised only after its event and its record."""
    try:
        state = begin_call(plan, sent, fields, origin)
    except Rejected as rejection:
        return await reject_at_once(plan.runner, sent, rejection, fields, origin)
    interruption: BaseException | None = None
    try:
        try:
            if state.observers and origin.resumed is None:
                state.emit("tool:pre", origin.arrival_facts)
            if plan.around is not None:
                found: Any = await plan.around(state.call, state.context)
            else:  # skip `run_core`, which has nothing to do here: a third of the bare call
                found = await _run_steps(plan, state.call, state)
            result = finish_result(state, found)
            if state.task.cancelling() > state.cancels_before:
                result, interruption = result_of_interruption(state, result)
        except BaseException as error:
            result, interruption = result_of_interruption(state, error)
    finally:
        plan.runner.live.discard(state)
        state.cached_context = state.task = None  # break the reference cycles
        if state.attempt.abandoned:
            restore_current_call(state, state.parent)
        if state.parent is not None:
            report_progress(state.parent)
        if plan.runner.idle is not None:
            plan.runner.notify_idle()
    if plan.journaled and has_open_intent(state) and not isinstance(interruption, GeneratorExit):
        from ferrule.kernel.journaling import write_missing_outcome

        result, interruption = await write_missing_outcome(plan, state, result, interruption)
    if state.observers or origin.owner is not None:
        report_end(state, result)
    if interruption is not None:
        raise interruption from None
    return result


async def run_core(plan: Plan, call: ToolCall, state: CallState) -> ToolResult:
    """Run everything that `around` middleware wraps: the `before` hooks, then the steps."""
    begin_next(state)
    try:
        return await _run_steps(plan, call, state)
    finally:
        state.attempt.in_next = False


async def _run_steps(plan: Plan, call: ToolCall, state: CallState, wanted: InputRequired | None = None) -> ToolResult:
    """Run the `before` hook and the steps from `validate` to `release`.

    With input `wanted` by the handler, start by asking for it.
    """
    resumed, values = state.origin.resumed, None
    answer: Any = None
    if plan.before_hook is not None and wanted is None:
        changed = run_hook(plan.before_hook, call, state.context)
        call = changed if isinstance(changed, ToolCall) else await changed
    try:
        if call is not state.call:
            check_replacement(plan, call, state)
        if wanted is not None:
            answer = await ask_for_input(plan, call, state, wanted)
        elif resumed is not None:
            if isinstance(answer := await continue_suspended(plan, state, resumed), ToolResult):
                return answer
        else:
            values = validate(plan, call, state, judged=plan.needs_judged_arguments)
            if plan.needs_judged_arguments:
                if plan.journaled and (earlier := await replay_earlier_run(plan, state)) is not None:
                    return earlier
                if (authorizing := authorize(plan, state)) is not None:
                    await authorizing
                values = state.call.arguments.validated
        answer_is_result = resumed is not None and resumed.answer_is_result  # no handler runs, so no slot is needed
        held = HeldSlots(()) if answer_is_result else acquire(plan, state)
        if not isinstance(held, HeldSlots):
            held = await held
    except Rejected as rejection:
        return reject(state, rejection)
    except asyncio.CancelledError:
        if (runner_rejection := undo_cancellation(state)) is None:
            raise
        return journaled_result(state) or reject(state, runner_rejection)
    current_before = state.parent and get_current()
    try:
        if state.task is None or state.task.cancelling() > state.cancels_before:
            check_alive(state)
        state.held = held
        if state.observers and not answer_is_result:
            state.emit("tool:started")
        set_current(state)
        result = (_invoke_once if plan.journaled and plan.job is None else invoke)(plan, values, state, answer)
        if not isinstance(result, ToolResult):
            result = await result
    except Rejected as rejection:  # an inner middleware may suspend the call
        return reject(state, rejection)
    finally:
        release(state, held)
        if state.parent or state.attempt.abandoned:  # for all other calls the context ends with the task
            restore_current_call(state, current_before)
    wanted = state.attempt.wanted
    if wanted is None or getattr(result, "status", None) != "suspended":
        return result
    begin_attempt(state)
    return await _run_steps(plan, call, state, wanted)


async def _invoke_once(plan: Plan, values: object, state: CallState, answer: Answer | None) -> ToolResult:
    """Run the handler between its intent and its outcome, or return the result of another run that was first."""
    from ferrule.kernel.journaling import commit_intent, commit_outcome  # 3 ms, for the programs with a journal

    if (earlier := await commit_intent(plan, state)) is not None:
        return earlier
    handling = invoke(plan, values, state, answer)
    return await commit_outcome(plan, state, handling if isinstance(handling, ToolResult) else await handling)
