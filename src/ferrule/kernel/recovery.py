"""Settle the calls that a crash cut off, and look at deferred work that is due."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ferrule.errors import DefinitionError
from ferrule.kernel.journal_status import JournalStatus
from ferrule.kernel.journaling import MAY_GO_ON, can_still_happen, is_repeatable, make_unknown_result, reconcile
from ferrule.kernel.live_call import LiveCall
from ferrule.kernel.receive import resume_call
from ferrule.kernel.redact import redacting
from ferrule.kernel.results import unsuccessful
from ferrule.kernel.seal import finish_result
from ferrule.kernel.state import CallState
from ferrule.kernel.suspension import NOT_SEALED, open_suspended_record
from ferrule.types import Journal
from ferrule.values.call import ToolCall
from ferrule.values.context import ContextFields
from ferrule.values.frozen import JsonObject
from ferrule.values.journal_entry import JournalEntry, outcome_from_result
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.kernel.runner_state import RunnerState

log = logging.getLogger("ferrule")
_CONCURRENCY = 64
"""Calls that are settled at once. A journal commits the writes of a moment together."""


async def recover(runner: RunnerState) -> list[ToolResult]:
    """Settle the unfinished calls of this runner's tools, and return their results.

    Raises:
        DefinitionError: The runner has no journal.
        JournalError: The journal cannot be read or written.
    """
    left, found = await _require_journal(runner).unfinished(), list[ToolResult]()
    while left:
        part, left = left[:_CONCURRENCY], left[_CONCURRENCY:]
        recovered = await asyncio.gather(*(_recover_one(runner, entry) for entry in part), return_exceptions=True)
        for entry, result in zip(part, recovered, strict=True):
            if isinstance(result, LookupError | TypeError | ValueError | AttributeError):  # an entry of another version
                log.error("a call of tool %r cannot be settled", entry.intent.tool_name, exc_info=result)
            elif isinstance(result, BaseException):
                raise result
            elif result is not None:
                found.append(result)
    return found


async def _recover_one(runner: RunnerState, entry: JournalEntry) -> ToolResult | None:
    """Return the result of an unfinished call, or None if it was not settled now."""
    pending = entry.outcome and entry.outcome.get("pending")
    if not pending or pending["expires_at"] <= runner.clock.now():
        return await _settle(runner, entry)
    at = pending["state"]["poll_at"]
    return None if at is None or at > runner.clock.now() else await _look_at_deferred(runner, entry, pending)


async def find_deferred_record(runner: RunnerState, ticket: str) -> JsonObject | None:
    """Return the record of the deferred work with this ticket, or None unless there is exactly one.

    Raises:
        DefinitionError: The runner has no journal.
        JournalError: The journal cannot be read.
    """
    found = await _require_journal(runner).unfinished(ticket=ticket)
    return found[0].outcome if len(found) == 1 else None


def _require_journal(runner: RunnerState) -> Journal:
    if runner.journal is None:
        raise DefinitionError("there is no journal here: give the runner one, as Runner(tools, journal=…)")
    return runner.journal


async def _look_at_deferred(runner: RunnerState, entry: JournalEntry, pending: JsonObject) -> ToolResult | None:
    """Let the handler look at deferred work. Return its result, or None if the tool is unknown."""
    resumed = open_suspended_record({"pending": pending}, runner.resume_keys, True, None)
    if resumed is None:
        log.warning("deferred work of tool %r is not looked at: %s", entry.intent.tool_name, NOT_SEALED)
    if resumed is None or entry.intent.tool_name not in runner.plans:
        return None
    return await resume_call(runner, resumed, ContextFields(**resumed.record["context"]), ())


async def _settle(runner: RunnerState, entry: JournalEntry) -> ToolResult | None:
    """Settle a call, and return its result. Return None if it may go on or run again, or others settled it."""
    intent, journal = entry.intent, runner.journal
    plan = runner.plans.get(intent.tool_name)
    if plan is None or journal is None or entry.may_go_on:
        return None
    call = ToolCall(intent.call_id, plan.name, intent.arguments, parent=intent.parent)
    state = LiveCall(plan, ContextFields(intent.session, intent.principal), call, call, None)
    state.attempt.in_journal = JournalStatus(intent.key)
    found = await reconcile(plan, state)
    state.task = None
    cut_off = entry.state == "cut_off"
    if found is not None and not found.executed and can_still_happen(plan, entry.outcome):
        found = None
    if cut_off and found is None and is_repeatable(plan, state.call.arguments, entry):  # it runs when it comes again
        return None
    result = finish_result(state, found or (make_unknown_result if cut_off else _make_expired_result)(state))
    outcome = outcome_from_result(result) if cut_off else {**outcome_from_result(result), MAY_GO_ON: True}
    happened = found is None or found.executed
    with redacting(state):
        if not await journal.settle(entry, outcome if happened else None):
            return None
    state.run_id = intent.run
    state.emit("tool:post" if result.success else "tool:error", result)
    return result


def _make_expired_result(state: CallState) -> ToolResult:
    """Return the result of expired deferred work."""
    text = f"{state.plan.name} has begun what ends elsewhere, and it was not said in time what came of that."
    return unsuccessful(state, "unknown", f"{text} Its effect may have happened.", executed=None)
