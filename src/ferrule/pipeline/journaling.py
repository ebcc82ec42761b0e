"""Once for each call that may change something: what the journal keeps of it before it runs, and what it came to.

known      what is kept of the call from before, looked up before the guards judge it; while another one of it runs,
           that is waited for
replay     its result from what is kept, and nothing is run; of what a crash cut off, what the tool's `reconcile` says
begin      the intent, committed before the handler runs
end        the outcome, committed before anybody is told, `around` too
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from functools import partial
from math import inf
from os import urandom
from typing import Any

from ferrule.executors.threads import Raised
from ferrule.pipeline.acquire import end_of_wait
from ferrule.pipeline.call_key import in_journal, reference_of, ticket_result
from ferrule.pipeline.hiding import facts_of, hide, log_raised
from ferrule.pipeline.invoke import invoke, still_runs
from ferrule.pipeline.plan import Plan
from ferrule.pipeline.results import (
    NOTHING_RUN,
    RESUMED_ALREADY,
    Rejected,
    bounded,
    busy,
    copied,
    handler_returned,
    unsuccessful,
)
from ferrule.pipeline.state import CallState
from ferrule.pipeline.tasks import within_time
from ferrule.types import Begun, Journal
from ferrule.values.call import run_id
from ferrule.values.content import jsonable
from ferrule.values.context import CURRENT
from ferrule.values.frozen import freeze, thaw
from ferrule.values.input import Answer
from ferrule.values.kept import Intent, Kept, is_unknown, restored, stored
from ferrule.values.logged import write_log
from ferrule.values.result import ToolResult

MAY_GO_ON = "may_go_on"
"""Of an outcome: work elsewhere may still happen."""

# -- before ------------------------------------------------------------------------------------------------------------


async def known(plan: Plan, state: CallState) -> Kept | None:
    """What is kept of the call from before and answers it, once nothing of it runs any more.

    Raises:
        Rejected: where that takes too long, or the journal cannot say.
    """
    named = state.fields.session or state.origin.answered is not None
    if not named or in_journal(state).intent is not None:
        return None
    return await _ended(plan, state, await _journal_says(state, _journal(plan).find, in_journal(state).key))


async def _ended(plan: Plan, state: CallState, kept: Kept | None) -> Kept | None:
    """What is kept of the call once it runs no more; `None` where it may be run.

    Raises:
        Rejected: where that takes too long, or the journal cannot say.
    """
    if plan.work is not None:  # it is this one's work that is kept
        if kept is None or kept.state != "cut_off":
            return kept
        in_journal(state).after = kept
        return None
    if kept is not None and kept.state == "running":
        until, timer, waiting = end_of_wait(state), plan.runner.timer, plan.runner.waiting
        waiting.add(state)
        late = busy(plan, "this call came before, and is still under way")
        try:
            left = inf if until is None else until - timer.time()
            find = partial(_journal(plan).find, in_journal(state).key, wait=True)
            kept = await _journal_says(state, find, seconds=left, late=late)
        finally:
            waiting.discard(state)
    if kept is None or kept.state == "running":  # it was forgotten: it was not run
        return None
    if kept.state == "cut_off" and repeatable(plan, state, kept):
        in_journal(state).after = kept
        return None
    answered, pending = state.origin.answered, (kept.outcome or {}).get("pending")
    if pending and answered is not None and pending["key"] == answered.record["key"]:
        in_journal(state).after, in_journal(state).intent = kept, kept.intent  # deferred still, as the record says
        return None
    return kept


def repeatable(plan: Plan, state: CallState, kept: Kept) -> bool:
    """Whether a call that was cut off may be run again: it is the same tool, and twice is as once."""
    tool, arguments = plan.tool, state.call.arguments
    twice_is_once = tool.trait("read_only", arguments) or tool.trait("idempotent", arguments)
    return twice_is_once and kept.intent.fingerprint == plan.fingerprint


async def replay(plan: Plan, state: CallState, kept: Kept) -> ToolResult | None:
    """The result of the call from what is kept of it; `None` where it may be run after all."""
    outcome = kept.outcome
    if is_unknown(kept):
        found = await reconciled(plan, state)
        if found is not None and not found.executed:
            if is_over(plan, outcome):
                in_journal(state).after = kept
                return None
        elif found is not None:
            outcome = freeze(_outcome_to_keep(state, found))
            if not await _journal_says(state, _journal(plan).settle, kept, outcome):  # somebody else was first
                now = await _ended(plan, state, await _journal_says(state, _journal(plan).find, kept.intent.key))
                return None if now is None else await replay(plan, state, now)
    if plan.work is not None:
        result = handler_returned(plan, state, ticket_result(kept.intent.key))
    else:
        result = unknown(state) if outcome is None else _replayed(plan, state, outcome)
    result = result.replace(metadata={**result.metadata, "replayed": True})
    state.attempt.result, state.attempt.executed = result, result.executed
    return result


def _replayed(plan: Plan, state: CallState, outcome: Mapping[str, Any]) -> ToolResult:
    """What was kept, as the result of this call."""
    try:
        result = restored(outcome, state.sent, plan.name)
    except (TypeError, LookupError, ValueError) as error:
        log_raised(state, "what the journal keeps of a call of tool %r cannot be read", plan.name, error=error)
        return unknown(state)
    state.attempt.pending = result.pending
    return result


def unknown(state: CallState) -> ToolResult:
    """The result of a call that was cut off."""
    return unsuccessful(state, "unknown", unknown_text(state.plan.name), executed=None)


def unknown_text(name: str) -> str:
    """What is said of a call that was cut off."""
    return (
        f"{name} was called before, and it is not known what came of that: its effect may have happened. "
        "Nothing was run now. Do not repeat it; find out whether it happened, or ask."
    )


async def reconciled(plan: Plan, state: CallState) -> ToolResult | None:
    """Ask the tool what came of a call: its result, or `None` if the tool does not know.

    A result with `executed=False` says that the call did not happen. It counts only if nothing of the call can happen
    any more, see `is_over`.
    """
    function = plan.tool.reconcile
    if function is None:
        return None
    found = await within_time(plan.runner, partial(_reconcile, function, state))
    if isinstance(found, Raised):
        log_raised(state, "reconcile of tool %r raised", plan.name, error=found.error)
        return None
    if found is None:
        return None
    if found is False or (isinstance(found, ToolResult) and found.success and found.executed is False):
        text = f"{plan.name} did not happen. Nothing was run; the call may be sent again."
        return unsuccessful(state, "failed", text, executed=False)
    if isinstance(found, ToolResult) and found.status != "suspended":
        return None if found.executed is None else found
    gave = type(found).__name__
    wanted = "it is a ToolResult of what has ended, False or None"
    write_log(logging.ERROR, facts_of(state), "reconcile of tool %r gave %r: %s", plan.name, gave, wanted)
    return None


async def _reconcile(function: Any, state: CallState) -> object:
    CURRENT.set(state)  # type: ignore[arg-type]  # in a task of its own
    found = function(state.call, state.context)
    return await found if inspect.isawaitable(found) else found


async def invoke_once(plan: Plan, values: object, state: CallState, answer: Answer | None) -> ToolResult:
    """What the handler comes to, between its intent and its outcome; or what came of it, where another one of the call
    was first. The slot is held meanwhile, and so are the keys: who works on the same has to find it in the journal.

    Raises:
        Rejected: where the intent could not be written, or the other one does not end in time.
    """
    begun = await _begin_once(plan, state)
    if isinstance(begun, ToolResult):
        return begun
    handling = invoke(plan, values, state, answer)
    result = _of_kernel(state, handling if isinstance(handling, ToolResult) else await handling)
    if result.executed is None and result.status != "suspended":
        result = await _find_out(plan, state, result)
    if begun.other_arguments:
        what = "a call of tool %r came under an id that another call with other arguments had"
        write_log(logging.WARNING, facts_of(state), what, plan.name)
        result = state.attempt.result = result.replace(metadata={**result.metadata, "other_arguments": True})
    return await end(plan, state, result)


async def _find_out(plan: Plan, state: CallState, result: ToolResult) -> ToolResult:
    """Return what `reconcile` says of a call whose outcome is unknown, or the result as it is."""
    attempt, after = state.attempt, in_journal(state).after
    is_deferred = after is not None and after.state == "deferred"
    has_ended = not (is_deferred or still_runs(state)) and is_over(plan, {"status": result.status})
    found = await reconciled(plan, state)
    if found is None or not (found.executed or has_ended):
        return result
    attempt.executed = found.executed
    attempt.result = copied(state, found)
    return attempt.result


def is_over(plan: Plan, outcome: Mapping[str, object] | None) -> bool:
    """Whether nothing of a call that may have happened can still happen: it was cut off, and has no outcome, or its
    handler itself said that nobody knows.

    If the call was stopped, by its deadline for instance, what the handler had begun in another thread or on a server
    goes on. A handler on another machine (`isolation=` an object) goes on also if this program is killed.
    """
    if plan.tool.isolation not in (None, "process"):
        return False
    return outcome is None or (outcome.get("status") == "unknown" and not outcome.get(MAY_GO_ON))


async def _begin_once(plan: Plan, state: CallState) -> Begun | ToolResult:
    """Commit that the call is about to run; what came of it, where another one of it was first, which has a slot and
    waits for nothing that this call has.

    Raises:
        Rejected: where it could not be written, or the other one does not end in time.
    """
    entry, journal = in_journal(state), _journal(plan)
    if entry.after is not None and entry.after.state == "deferred":  # it is begun, and looked at
        return Begun(None)
    intent = entry.intent = _intent(plan, state)
    while True:
        entry.claimed = True  # it may be committed though this task is cancelled meanwhile
        begun: Begun = await _journal_says(state, partial(journal.begin, after=entry.after), intent)
        if begun.kept is None:
            return begun
        entry.claimed, entry.after = False, None
        kept = await _ended(plan, state, begun.kept)
        if kept is not None and (result := await replay(plan, state, kept)) is not None:
            return result


def _intent(plan: Plan, state: CallState) -> Intent:
    fields, entry = state.fields, in_journal(state)
    return Intent(
        key=entry.key,
        reference=reference_of(state),
        claim=urandom(16).hex() if entry.intent is None else entry.intent.claim,
        call_id=state.sent.id,
        tool_name=plan.name,
        principal=fields.principal,
        session=fields.session,
        parent=state.call.parent,
        fingerprint=plan.fingerprint,
        arguments=hide(state, jsonable(state.told.arguments.plain())),
        at=plan.runner.clock.now(),
        run=run_id(state.run),
    )


# -- after -------------------------------------------------------------------------------------------------------------


async def end(plan: Plan, state: CallState, result: ToolResult) -> ToolResult:
    """Commit what the call came to, and return it. Nothing is kept where nothing was run: the call may be made again as
    if it never had been. If somebody else resumed the call meanwhile, the result says so; if the journal could not be
    written, its metadata does (`unrecorded`). A caller that is cut off leaves the outcome to be written."""
    attempt, entry = state.attempt, in_journal(state)
    intent, entry.claimed, after = entry.intent, False, entry.after
    deferred = attempt.pending is not None and attempt.pending["kind"] == "work"
    looked = after is not None and after.state == "deferred"  # and stays so where the look was late
    waits = result.status == "suspended" or (looked and result.status in ("limited", "timeout"))
    kept = deferred or (attempt.executed is not False and not waits)  # what was run, not what somebody says of it
    outcome = _outcome_to_keep(state, result) if kept else None
    if outcome is not None and looked:  # what it has begun elsewhere goes on
        outcome[MAY_GO_ON] = True
    attempt.kept = result if kept else None
    try:
        if not looked:
            await _journal_says(state, _journal(plan).end, intent, outcome, surely=True)
        elif outcome and not await _journal_says(state, _journal(plan).settle, after, outcome, surely=True):
            result = attempt.result = attempt.kept = unsuccessful(state, "invalid", RESUMED_ALREADY, executed=None)
    except Rejected:  # which was logged: what was done is told as it is
        if kept:
            result = result.replace(metadata={**result.metadata, "unrecorded": True})
            attempt.result = attempt.kept = result
    return result


def _outcome_to_keep(state: CallState, result: ToolResult) -> dict[str, Any]:
    """What is kept of a result."""
    kept = stored(bounded(state, result))
    return kept if state.attempt.pending is None else {**kept, "pending": thaw(state.attempt.pending)}


def _of_kernel(state: CallState, result: ToolResult) -> ToolResult:
    """The result as the kernel takes it from a middleware inside, which may have made another one; not where the
    handler waits for input, and is run again."""
    attempt = state.attempt
    if result is attempt.result or (attempt.wanted is not None and getattr(result, "status", None) == "suspended"):
        return result
    made = attempt.result = copied(state, result)
    return made


def _journal(plan: Plan) -> Journal:
    journal = plan.runner.journal
    assert journal is not None
    return journal


async def _journal_says(
    state: CallState,
    function: Any,
    *given: object,
    seconds: float | None = None,
    late: Rejected | None = None,
    surely: bool = False,
) -> Any:
    """What the journal says; `surely` also where who waits is cut off.

    Raises:
        Rejected: where it cannot say; `late` where it takes more than `seconds`.
    """
    plan = state.plan
    found = await within_time(plan.runner, function, *given, seconds=seconds, surely=surely)
    if not isinstance(found, Raised):
        return found
    if late is not None and isinstance(found.error, TimeoutError):
        raise late
    log_raised(state, "the journal could not be asked about a call of tool %r", plan.name, error=found.error)
    raise Rejected("failed", f"{plan.name} could not be run: the journal cannot be read or written. {NOTHING_RUN}")
