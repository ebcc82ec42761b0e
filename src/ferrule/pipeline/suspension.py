"""Suspended calls: what a record keeps of one, and the answer that takes it up again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from ferrule.errors import DefinitionError
from ferrule.pipeline.state import CallState
from ferrule.values.call import ToolCall
from ferrule.values.content import jsonable
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, ask


class Suspended(NamedTuple):
    """What a record keeps of a suspended call."""

    key: str
    call: ToolCall
    arguments: dict[str, object]
    decision: Decision
    context: dict[str, object]

    def with_context(self, given: ToolContext) -> ToolContext:
        """The context of the suspended call, with the `deps` and `secrets` of this process."""
        kept = {key: self.context.get(key) for key in ("session", "principal", "working_directory", "metadata")}
        return given.replace(**kept)


class Answered(NamedTuple):
    """A suspended call with its answer, on its way to the place where the question was asked."""

    suspended: Suspended
    answer: Decision | bool

    async def approve(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision | bool:
        """The approver that gives this answer."""
        return self.answer


def resume_data(call: ToolCall, state: CallState, decision: Decision) -> dict[str, object]:
    """All, as plain JSON, that another process needs to take the call up again."""
    sent, fields = state.sent, state.fields
    kept: dict[str, object] = jsonable(
        {
            "id": sent.id,
            "name": sent.name,
            "arguments": _without_bound(call.arguments, state.plan.parameters.bound),
            "data": sent.data,
            "parent": call.parent,
            "decision": {"reason": decision.reason, "into": decision.into},
            "context": {
                "session": fields.session,
                "principal": fields.principal,
                "working_directory": fields.working_directory,
                "metadata": dict(fields.metadata),
            },
        }
    )
    return {"key": os.urandom(16).hex(), **kept}


def _without_bound(arguments: Mapping[str, object], bound: Mapping[str, object]) -> dict[str, object]:
    """The arguments without those that the program fixes by itself, here as there."""
    return {name: value for name, value in arguments.items() if name not in bound or value != bound[name]}


def suspended_call(record: Mapping[str, Any]) -> Suspended:
    """The suspended call that a record keeps.

    Raises:
        DefinitionError: where it keeps none.
    """
    try:
        kept = record["metadata"]["resume"]
        arguments = dict(kept["arguments"])
        call = ToolCall(str(kept["id"]), str(kept["name"]), arguments, data=kept["data"], parent=kept["parent"])
        decision = ask(str(kept["decision"]["reason"]), into=kept["decision"]["into"])
        return Suspended(str(kept["key"]), call, arguments, decision, dict(kept["context"]))
    except (KeyError, TypeError, ValueError) as error:
        raise DefinitionError(f"resume takes the .record() of a suspended result; this is none ({error!r})") from None
