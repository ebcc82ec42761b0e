"""What a crash has left behind, and work that ends elsewhere: calls that were cut off are settled, each once for all
who share the journal, and deferred ones looked at."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ferrule.errors import DefinitionError
from ferrule.pipeline.call import receive_again
from ferrule.pipeline.call_key import InJournal
from ferrule.pipeline.journaling import MAY_GO_ON, is_over, reconciled, repeatable, unknown
from ferrule.pipeline.live_call import LiveCall
from ferrule.pipeline.results import seal, unsuccessful
from ferrule.pipeline.state import CallState
from ferrule.pipeline.suspension import NOT_SEALED, answered_call
from ferrule.types import Journal
from ferrule.values.call import ToolCall
from ferrule.values.context import ContextFields
from ferrule.values.event import EventKind, emit
from ferrule.values.frozen import JsonObject
from ferrule.values.kept import Kept, stored
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.pipeline.runner_state import RunnerState

log = logging.getLogger("ferrule")
_AT_ONCE = 64
"""How many calls are settled side by side: a journal commits together what comes at the same time."""


async def recover(runner: RunnerState) -> list[ToolResult]:
    """Settle what was cut off or deferred of the calls of this runner's tools, and say what each came to.

    Raises:
        DefinitionError: where the runner has no journal.
        JournalError: where that cannot be read or written.
    """
    left, found = await _journal_of(runner).unfinished(), list[ToolResult]()
    while left:
        part, left = left[:_AT_ONCE], left[_AT_ONCE:]
        recovered = await asyncio.gather(*(_recovered(runner, kept) for kept in part), return_exceptions=True)
        for kept, result in zip(part, recovered, strict=True):
            if isinstance(result, LookupError | TypeError | ValueError | AttributeError):  # of another version's row
                log.error("a call of tool %r cannot be settled", kept.intent.tool_name, exc_info=result)
            elif isinstance(result, BaseException):
                raise result
            elif result is not None:
                found.append(result)
    return found


async def _recovered(runner: RunnerState, kept: Kept) -> ToolResult | None:
    """What the call came to; `None` where it is not due yet, of a tool that is not here, or settled by others."""
    pending = kept.outcome and kept.outcome.get("pending")
    if not pending or pending["expires_at"] <= runner.clock.now():
        return await _settled(runner, kept)
    at = pending["state"]["poll_at"]
    return None if at is None or at > runner.clock.now() else await _looked_at(runner, kept, pending)


async def deferred_record(runner: RunnerState, ticket: str) -> JsonObject | None:
    """The record of the one deferred work that this runner's journal has under a ticket; `None` for none or several.

    Raises:
        DefinitionError: where the runner has no journal.
        JournalError: where that cannot be read.
    """
    found = await _journal_of(runner).unfinished(ticket=ticket)
    return found[0].outcome if len(found) == 1 else None


def _journal_of(runner: RunnerState) -> Journal:
    if runner.journal is None:
        raise DefinitionError("there is no journal here: give the runner one, as Runner(tools, journal=…)")
    return runner.journal


async def _looked_at(runner: RunnerState, kept: Kept, pending: JsonObject) -> ToolResult | None:
    """What the handler says of work that ends elsewhere; `None` where it is of a tool that is not here."""
    answered = answered_call({"pending": pending}, runner.resume_keys, True, None)
    if answered is None:
        log.warning("deferred work of tool %r is not looked at: %s", kept.intent.tool_name, NOT_SEALED)
    if answered is None or kept.intent.tool_name not in runner.plans:
        return None
    return await receive_again(runner, answered, ContextFields(**answered.record["context"]), ())


async def _settled(runner: RunnerState, kept: Kept) -> ToolResult | None:
    """What the call came to; `None` where it is of a tool that is not here, or somebody else has settled it."""
    intent, journal = kept.intent, runner.journal
    plan = runner.plans.get(intent.tool_name)
    if plan is None or journal is None:
        return None
    call = ToolCall(intent.call_id, plan.name, intent.arguments, parent=intent.parent)
    state = LiveCall(plan, ContextFields(intent.session, intent.principal), call, call, None)
    state.attempt.in_journal = InJournal(intent.key)
    found = await reconciled(plan, state)
    cut_off = kept.state == "cut_off"
    if found is not None and not (found.executed or is_over(plan, kept.outcome)):
        found = None
    runs_again = cut_off and found is None and repeatable(plan, state, kept)
    unsaid = _to_be_repeated if runs_again else unknown if cut_off else _expired
    result = seal(state, found or unsaid(state))
    state.task = None
    if runs_again:
        return result.replace(metadata={**result.metadata, "runs_again": True})
    outcome = stored(result) if cut_off else {**stored(result), MAY_GO_ON: True}
    happened = found is None or found.executed
    if not await journal.settle(kept, outcome if happened else None):
        return None
    kind: EventKind = "tool:post" if result.success else "tool:error"
    emit(state.observers, kind, state.told, result, state.fields, intent.run)
    return result


def _to_be_repeated(state: CallState) -> ToolResult:
    """The result of a call that was cut off and may run again."""
    text = f"{state.plan.name} was cut off. It runs again when the call comes again; nothing was run now."
    return unsuccessful(state, "unknown", text, executed=None)


def _expired(state: CallState) -> ToolResult:
    """The result of work that nobody waits for any more."""
    text = f"{state.plan.name} has begun what ends elsewhere, and it was not said in time what came of that."
    return unsuccessful(state, "unknown", f"{text} Its effect may have happened.", executed=None)
