"""What a crash has left behind: the calls that were cut off are settled, each once for all who share the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ferrule.errors import DefinitionError
from ferrule.pipeline.journaling import reconciled, repeatable, unknown
from ferrule.pipeline.live_call import LiveCall
from ferrule.pipeline.results import seal
from ferrule.values.call import ToolCall
from ferrule.values.context import ContextFields
from ferrule.values.kept import Kept, stored
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.pipeline.runner_state import RunnerState


async def recover(runner: RunnerState) -> list[ToolResult]:
    """Settle what was cut off of the calls of this runner's tools, and say what each came to.

    Raises:
        DefinitionError: where the runner has no journal.
        JournalError: where that cannot be read or written.
    """
    if runner.journal is None:
        raise DefinitionError("recover() reads the journal: give the runner one, as Runner(tools, journal=…)")
    found = [await _settled(runner, kept) for kept in await runner.journal.unfinished() if kept.state == "cut_off"]
    return [result for result in found if result is not None]


async def _settled(runner: RunnerState, kept: Kept) -> ToolResult | None:
    """What the call came to; `None` where it is of a tool that is not here, or somebody else has settled it."""
    intent, journal = kept.intent, runner.journal
    plan = runner.plans.get(intent.tool_name)
    if plan is None or journal is None:
        return None
    call = ToolCall(intent.call_id, plan.name, intent.arguments, parent=intent.parent)
    state = LiveCall(plan, ContextFields(intent.session, intent.principal), call, call, None)
    state.attempt.key = intent.key
    found = await reconciled(plan, state)
    known = isinstance(found, ToolResult)
    made = found if isinstance(found, ToolResult) else unknown(state)
    result = seal(state, made)
    state.task = None
    if not known and (found is False or repeatable(plan, state, kept)):
        return result.replace(metadata={**result.metadata, "runs_again": True})
    if not await journal.settle(kept, stored(result)):
        return None
    state.tell("tool:post" if result.success else "tool:error", result)
    return result
