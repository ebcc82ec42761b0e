"""Run a call that changes something once, and write it to the journal.

find_earlier_entry   look the call up before the guards judge it; wait if an earlier run of it is in progress
replay               return the journaled result without running anything; if nobody knows the outcome, ask the tool's
                     `reconcile` first
commit_intent        commit the intent before the handler runs
commit_outcome       commit the outcome before anybody sees the result, `around` middleware included
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Mapping
from functools import partial
from math import inf
from os import urandom
from typing import Any

from ferrule.executors.threads import Raised
from ferrule.kernel.deadline import wait_deadline
from ferrule.kernel.journal_status import get_reference, is_recognisable, journal_status, ticket_result
from ferrule.kernel.plan import Plan
from ferrule.kernel.redact import get_log_facts, log_exception, redact, redacting
from ferrule.kernel.results import (
    NOTHING_RUN,
    RESUMED_ALREADY,
    Rejected,
    busy,
    copy_result,
    limit_size,
    result_of_value,
    unsuccessful,
)
from ferrule.kernel.state import CallState
from ferrule.kernel.tasks import run_within
from ferrule.scheduling.clock import waiter_for_end
from ferrule.types import Begun, Journal
from ferrule.values.call import format_run_id
from ferrule.values.content import to_jsonable
from ferrule.values.context import set_current
from ferrule.values.frozen import JsonObject, freeze, thaw
from ferrule.values.journal_entry import Intent, JournalEntry, is_unknown, outcome_from_result, result_from_outcome
from ferrule.values.log import write_log
from ferrule.values.result import ToolResult

MAY_GO_ON = "may_go_on"
"""The mark of an outcome whose work goes on elsewhere."""

# -- before ------------------------------------------------------------------------------------------------------------


async def find_earlier_entry(plan: Plan, state: CallState) -> JournalEntry | None:
    """Return the journal's entry of an earlier run of this call, or None if the call may run.

    Waits while an earlier run is in progress. Calls without a session are never recognised.

    Raises:
        Rejected: The wait took too long, or the journal cannot be read.
    """
    if not is_recognisable(state) or journal_status(state).intent is not None:
        return None
    return await _wait_for_earlier_run(
        plan, state, await _call_journal(state, _get_journal(plan).find, journal_status(state).call_key)
    )


async def _wait_for_earlier_run(plan: Plan, state: CallState, entry: JournalEntry | None) -> JournalEntry | None:
    """Wait until the earlier run has ended. Return its entry, or None if the call may run.

    Raises:
        Rejected: The wait took too long, or the journal cannot be read.
    """
    if plan.job is not None:  # the entry belongs to the background job, which is not waited for
        if entry is None or entry.state != "cut_off":
            return entry
        journal_status(state).replaced_entry, state.attempt.ran_before = entry, True
        return None
    if entry is not None and entry.state == "running":
        until, timer, waiting = wait_deadline(state), plan.runner.timer, plan.runner.waiting
        waiting.add(state)
        late = busy(plan, "this call came before, and is still under way")
        try:
            left = inf if until is None else until - timer.time()
            find = partial(_get_journal(plan).find, journal_status(state).call_key, wait=True)
            entry = await _call_journal(state, find, seconds=left, late=late)
        finally:
            waiting.discard(state)
    if entry is None or entry.state == "running":  # the earlier run has withdrawn its intent: nothing was run
        return None
    if entry.state == "cut_off" and is_repeatable(plan, state.call.arguments, entry):
        journal_status(state).replaced_entry, state.attempt.ran_before = entry, True
        return None
    resumed, pending = state.origin.resumed, (entry.outcome or {}).get("pending")
    if pending and resumed is not None and pending["key"] == resumed.record["key"]:  # this very entry is resumed
        journal_status(state).replaced_entry, journal_status(state).intent = entry, entry.intent
        return None
    return entry


def is_repeatable(plan: Plan, arguments: JsonObject, entry: JournalEntry) -> bool:
    """Return whether a call that was cut off may run again: the same harmless tool, and surely over."""
    tool = plan.tool
    is_harmless = tool.recorded or tool.trait("read_only", arguments) or tool.trait("idempotent", arguments)
    return is_harmless and not entry.may_go_on and entry.intent.fingerprint == plan.fingerprint


async def replay(plan: Plan, state: CallState, entry: JournalEntry) -> ToolResult | None:
    """Return the journaled result of an earlier run, or None if the call may run after all."""
    outcome = entry.outcome
    if is_unknown(entry):
        found = await reconcile(plan, state)
        if found is not None and not found.executed:
            if not (can_still_happen(plan, outcome) or entry.may_go_on):
                journal_status(state).replaced_entry = entry
                return None
        elif found is not None:
            outcome = freeze(_to_outcome(state, found))
            if not await _call_journal(state, _get_journal(plan).settle, entry, outcome):  # another process was first
                now = await _wait_for_earlier_run(
                    plan, state, await _call_journal(state, _get_journal(plan).find, entry.intent.key)
                )
                return None if now is None else await replay(plan, state, now)
    if plan.job is not None:
        result = result_of_value(plan, state, ticket_result(entry.intent.key))
    else:
        result = make_unknown_result(state) if outcome is None else _restore_result(plan, state, outcome)
    result = result.replace(metadata={**result.metadata, "replayed": True})
    state.attempt.result, state.attempt.executed = result, result.executed
    return result


def _restore_result(plan: Plan, state: CallState, outcome: Mapping[str, Any]) -> ToolResult:
    """Make the result of this call from a journaled outcome."""
    try:
        result = result_from_outcome(outcome, state.sent, plan.name)
    except (TypeError, LookupError, ValueError) as error:
        log_exception(state, "the journal entry of a call of tool %r cannot be read", plan.name, error=error)
        return make_unknown_result(state)
    state.attempt.pending = result.pending
    return result


def make_unknown_result(state: CallState) -> ToolResult:
    """Return the result of a call whose outcome nobody knows."""
    return unsuccessful(state, "unknown", describe_unknown(state.plan.name), executed=None)


def describe_unknown(name: str, *, repeatable: bool = False) -> str:
    """Return the error of a call whose outcome nobody knows."""
    if repeatable:
        return f"{name} was cut off by a crash, and may have done a part of its work. The same call may be sent again."
    return (
        f"{name} was called before, and it is not known what came of that: its effect may have happened. "
        "Nothing was run now. Do not repeat it; find out whether it happened, or ask."
    )


async def reconcile(plan: Plan, state: CallState) -> ToolResult | None:
    """Ask the tool for the outcome of a call. Return its result, or None if the tool does not know.

    A result with `executed=False` says that the call did not happen. It does not count if the call `can_still_happen`.
    """
    function = plan.tool.reconcile
    if function is None:
        return None
    found = await run_within(plan.runner, partial(_call_reconcile, function, state))
    if isinstance(found, Raised):
        log_exception(state, "reconcile of tool %r raised", plan.name, error=found.error)
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
    write_log(logging.ERROR, get_log_facts(state), "reconcile of tool %r gave %r: %s", plan.name, gave, wanted)
    return None


async def _call_reconcile(function: Any, state: CallState) -> object:
    set_current(state)  # in a task of its own
    found = function(state.call, state.context)
    return await found if inspect.isawaitable(found) else found


async def commit_outcome(plan: Plan, state: CallState, result: ToolResult) -> ToolResult:
    """Commit the outcome of a run, and return its result. If the outcome is unknown, ask the tool's `reconcile` first.

    The call keeps its slots and keys until the outcome is written, so that the next call finds it in the journal.
    """
    result = _adopt_result(state, result)
    if result.executed is None and result.status != "suspended":
        result = await _reconcile_unknown(plan, state, result)
    return await write_outcome(plan, state, result)


async def _reconcile_unknown(plan: Plan, state: CallState, result: ToolResult) -> ToolResult:
    """Return the result that `reconcile` gives for a call with an unknown outcome, or else the result as it is."""
    attempt, replaced_entry = state.attempt, journal_status(state).replaced_entry
    was_deferred = replaced_entry is not None and replaced_entry.state == "deferred"
    goes_on = was_deferred or state.is_still_running or can_still_happen(plan, {"status": result.status})
    found = await reconcile(plan, state)
    if found is None or (goes_on and not found.executed):
        return result
    attempt.executed = found.executed
    attempt.result = copy_result(state, found)
    return attempt.result


def can_still_happen(plan: Plan, outcome: Mapping[str, object] | None) -> bool:
    """Return whether some effect of a call with an unknown outcome can still happen.

    Nothing can if a crash cut the call off, or if its handler itself raised `UnknownOutcomeError`. A call stopped by
    its deadline, for instance, may have begun work in a thread or on a server, and that goes on. A handler on another
    machine (`isolation=` an object) goes on even after a crash of this program.
    """
    if plan.tool.isolation not in (None, "process"):
        return True
    return outcome is not None and (outcome.get("status") != "unknown" or bool(outcome.get(MAY_GO_ON)))


async def commit_intent(plan: Plan, state: CallState) -> ToolResult | None:
    """Commit the intent. Return the result of another run if that was first, else None.

    The other run has its slots already, so it does not wait for this call.

    Raises:
        Rejected: The intent could not be written, the other run does not end in time, or a nested call with a fixed id
            was another one before.
    """
    status, journal = journal_status(state), _get_journal(plan)
    if status.replaced_entry is not None and status.replaced_entry.state == "deferred":
        return None  # the handler only looks at its earlier work
    intent = status.intent = _make_intent(plan, state)
    while True:
        status.is_open = True  # it may be committed even if this task is cancelled meanwhile
        begun: Begun = await _call_journal(state, partial(journal.begin, after=status.replaced_entry), intent)
        if begun.earlier is None:
            if begun.other_arguments and state.origin.has_fixed_id:
                own_id = state.sent.id.removeprefix(f"{state.sent.parent}.")
                text = f"{plan.name} was not run: the id {own_id!r} belongs to another nested call of this call."
                raise Rejected("failed", text)
            return None
        status.is_open, status.replaced_entry = False, None
        entry = await _wait_for_earlier_run(plan, state, begun.earlier)
        if entry is not None and (result := await replay(plan, state, entry)) is not None:
            return result


def _make_intent(plan: Plan, state: CallState) -> Intent:
    fields, status = state.fields, journal_status(state)
    return Intent(
        key=status.call_key,
        reference=get_reference(state),
        claim=urandom(16).hex() if status.intent is None else status.intent.claim,
        call_id=state.sent.id,
        tool_name=plan.name,
        principal=fields.principal,
        session=fields.session,
        parent=state.call.parent,
        fingerprint=plan.fingerprint,
        arguments=redact(state, to_jsonable(state.redacted_call.arguments.to_dict())),
        at=plan.runner.clock.now(),
        run=format_run_id(state.run_id),
    )


# -- after -------------------------------------------------------------------------------------------------------------


async def write_missing_outcome(
    plan: Plan, state: CallState, result: ToolResult, interruption: BaseException | None
) -> tuple[ToolResult, BaseException | None]:
    """Write the outcome of a call interrupted after its intent. Return its result and the interruption.

    If the call is cancelled again meanwhile, the write goes on.
    """
    loop = asyncio.get_running_loop()

    def start_write() -> asyncio.Task[ToolResult]:
        return loop.create_task(write_outcome(plan, state, result))

    write = start_write()
    plan.runner.track_write(write, start_write)
    if interruption is None:
        try:
            await waiter_for_end(write)
            if write.result().metadata.get("unrecorded"):
                result = write.result()
        except asyncio.CancelledError as error:
            interruption = error
    return result, interruption


async def write_outcome(plan: Plan, state: CallState, result: ToolResult) -> ToolResult:
    """Commit the outcome of the call, and return the result.

    If nothing was run, the intent is withdrawn, and the call may be made again. The result says if somebody else
    resumed the call meanwhile. Its metadata says `unrecorded` if the journal could not be written. If the caller is
    cancelled, the write goes on.
    """
    attempt, status = state.attempt, journal_status(state)
    journal, status.is_open, replaced_entry = _get_journal(plan), False, status.replaced_entry
    is_deferred = attempt.pending is not None and attempt.pending["kind"] == "work"
    was_deferred = replaced_entry is not None and replaced_entry.state == "deferred"
    # Deferred work stays open if the look at it took too long.
    stays_open = result.status == "suspended" or (was_deferred and result.status in ("limited", "timeout"))
    has_outcome = is_deferred or (attempt.executed is not False and not stays_open)  # middleware may say otherwise
    outcome = _to_outcome(state, result) if has_outcome else None
    attempt.journaled = result if has_outcome else None
    if was_deferred:
        if outcome is None:
            return result
        outcome[MAY_GO_ON] = True
    write: Any = journal.settle if was_deferred else journal.end
    target = replaced_entry if was_deferred else status.intent
    with redacting(state):
        written = await run_within(plan.runner, write, target, outcome, survives_cancellation=True)
    if isinstance(written, Raised):
        message = "the journal could not take the outcome of a call of tool %r"
        log_exception(state, message, plan.name, error=written.error)
        if has_outcome:
            result = result.replace(metadata={**result.metadata, "unrecorded": True})
            attempt.result = attempt.journaled = result
    elif was_deferred and not written:
        result = attempt.result = attempt.journaled = unsuccessful(state, "invalid", RESUMED_ALREADY, executed=None)
    return result


def _to_outcome(state: CallState, result: ToolResult) -> dict[str, Any]:
    """Return the outcome to write for a result."""
    outcome = outcome_from_result(limit_size(state, result))
    return outcome if state.attempt.pending is None else {**outcome, "pending": thaw(state.attempt.pending)}


def _adopt_result(state: CallState, result: ToolResult) -> ToolResult:
    """Return the kernel's own copy of a result that an `inside` middleware made.

    A handler that waits for input runs again, so its result stays as it is.
    """
    attempt = state.attempt
    if result is attempt.result or (attempt.wanted is not None and getattr(result, "status", None) == "suspended"):
        return result
    made = attempt.result = copy_result(state, result)
    return made


def _get_journal(plan: Plan) -> Journal:
    journal = plan.runner.journal
    assert journal is not None
    return journal


async def _call_journal(
    state: CallState, function: Any, *given: object, seconds: float | None = None, late: Rejected | None = None
) -> Any:
    """Call a method of the journal before a run, and return its value.

    Args:
        seconds: The bound; None for the usual one.
        late: The rejection if it takes longer; None for the general one.

    Raises:
        Rejected: The journal failed or took too long.
    """
    plan = state.plan
    with redacting(state):
        found = await run_within(plan.runner, function, *given, seconds=seconds)
    if not isinstance(found, Raised):
        return found
    if late is not None and isinstance(found.error, TimeoutError):
        raise late
    log_exception(state, "the journal could not be asked about a call of tool %r", plan.name, error=found.error)
    raise Rejected("failed", f"{plan.name} could not be run: the journal cannot be read or written. {NOTHING_RUN}")
