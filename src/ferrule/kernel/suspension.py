"""Suspended calls: seal the record of a call, and open it again with an answer.

The seal is an HMAC over the whole record. A record without the seal of one of the runner's keys is not read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from ferrule.arguments.parameters import Invalid
from ferrule.errors import DefinitionError
from ferrule.executors.threads import Raised
from ferrule.kernel.journal_status import journal_status
from ferrule.kernel.plan import Plan
from ferrule.kernel.redact import log_exception, redact
from ferrule.kernel.results import NOTHING_RUN, Rejected
from ferrule.kernel.state import CallState
from ferrule.kernel.tasks import run_within
from ferrule.values.arguments import Arguments
from ferrule.values.call import ToolCall, format_run_id
from ferrule.values.call_key import make_call_key
from ferrule.values.content import clean_text, to_jsonable
from ferrule.values.context import JUDGED_TRAITS, ToolContext
from ferrule.values.decision import ALLOW, Decision, deny
from ferrule.values.frozen import FrozenDict, JsonObject, freeze, thaw
from ferrule.values.json_text import is_same_json
from ferrule.values.result import ToolResult, find_pending
from ferrule.values.sealed import canonical_json, open_sealed, seal, sign

if TYPE_CHECKING:
    from ferrule.values.deferred import Deferred, WaitingFor

_VERSION = 1
_PENDING = f"pending {_VERSION}"
_NOT_KEPT = ("deps", "secrets")
NOT_SEALED = (
    "The record of the suspended call was changed, or another runner has sealed it: give both the same resume_key. "
    "Without one, only the runner that suspended a call and its replacements resume it."
)


class ResumedCall(NamedTuple):
    """A suspended call that goes on, with its answer.

    Attributes:
        record: The sealed record.
        signing_key: The key of its seal.
        answer: The decision of a person, or the result of deferred work.
        by: The name of the person.
        at: The time of the answer, by `perf_counter`.
    """

    record: dict[str, Any]
    signing_key: bytes
    answer: Decision | bool | ToolResult
    by: str | None
    at: float

    @property
    def call(self) -> ToolCall:
        """The call, with its judged arguments."""
        sent = self.record["call"]
        return ToolCall(sent["id"], sent["name"], self.record["arguments"], data=sent["data"], parent=sent["parent"])

    @property
    def answer_is_result(self) -> bool:
        """Whether the answer ends deferred work, so no handler runs: it is the result, or gives the work up."""
        runs_handler = self.answer is True or (isinstance(self.answer, Decision) and self.answer.kind == "allow")
        return self.record["kind"] == "work" and not runs_handler

    async def run(self, values: object, call: CallState) -> object:
        """Return the answer in place of running the handler."""
        return self.answer

    async def approve(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision | bool:
        """Give this answer, as an approver."""
        answer: Any = self.answer
        if isinstance(answer, bool):
            answer = ALLOW if answer else refusal_by_person(decision)
        return replace(answer, by=answer.by or self.by) if isinstance(answer, Decision) else answer


def refusal_by_person(asked: Decision) -> Decision:
    """Return the deny of a person. It quotes the reason of the question, because that may name a way out."""
    reason = f" ({asked.reason})" if asked.reason else ""
    return deny(f"refused by the person who was asked{reason}")


def make_deferred_record(state: CallState, work: Deferred) -> FrozenDict:
    """Return the record of a call whose work ends elsewhere."""
    poll_at = None if work.poll_after is None else state.plan.runner.clock.now() + work.poll_after
    kept = {"ticket": work.ticket, "poll_at": poll_at}
    return make_suspended_record(state, "work", Decision("ask", redact(state, work.reason)), kept, work.expires_in)


def make_waiting_record(state: CallState, waiting: WaitingFor) -> FrozenDict:
    """Return the record of a call that waits for the question of a nested call."""
    question: Any = waiting.result.pending
    shown = {name: question[name] for name in ("into", "schema", "rule")}
    asked = Decision("ask", redact(state, waiting.reason), **shown)
    return make_suspended_record(state, question["kind"], asked, waiting.state, question=question)


def make_suspended_record(
    state: CallState,
    kind: str,
    decision: Decision,
    handler_state: Any,
    within: float | None = None,
    question: JsonObject | None = None,
) -> FrozenDict:
    """Return the sealed record of a suspended call, as plain JSON.

    Args:
        kind: `"approval"`, `"input"` or `"work"`.
        handler_state: The handler's own data, to get back with the answer.
        within: Seconds until the record expires; None for the runner's `waits.resume`.
        question: The record of the nested call that the answer is for; None if it is for this one.
    """
    plan, sent, call, fields = state.plan, state.sent, state.call, state.fields
    record_id, asked_at, signing_key = os.urandom(16).hex(), plan.runner.clock.now(), plan.runner.resume_keys[0]
    offered = state.origin.offered
    judged = omit_names(plan.parameters.hidden, call.arguments)
    kept = {
        "version": _VERSION,
        "kind": kind,
        "key": record_id,
        "call": to_jsonable({"id": sent.id, "name": sent.name, "data": sent.data, "parent": call.parent}),
        "listed": plan.is_listed,
        "arguments": judged,
        "supplied": sorted(find_supplied_names(plan, call.arguments)),
        "context": to_jsonable({name: value for name, value in fields.to_dict().items() if name not in _NOT_KEPT}),
        "notes": dict(state.attempt.record_notes),
        "reason": clean_text(decision.reason),
        "into": decision.into,
        "rule": decision.rule,
        "schema": thaw(decision.schema),
        "state": thaw(handler_state),
        "executed": state.attempt.executed,
        "question": thaw(question),
        "asked_at": asked_at,
        "expires_at": asked_at + (plan.runner.waits.resume if within is None else within),
        "offered": None if offered is None else [tool.name for tool in offered],
        "turn": state.origin.turn,
        "run": format_run_id(state.run_id),
        "idempotency_key": journal_status(state).call_key,
        "sent": make_call_key(
            (), omit_names(plan.parameters.hidden, sent.raw) if isinstance(sent.raw, Mapping) else sent.raw
        ),
        "tool": _tool_digest(plan, judged, record_id, signing_key),
    }
    return freeze(seal(kept, signing_key, _PENDING))  # type: ignore[no-any-return]


def find_supplied_names(plan: Plan, arguments: JsonObject) -> set[str]:
    """Return the hidden parameters whose values somebody supplied. No record holds these values."""
    fixed = {**plan.parameters.defaults, **plan.parameters.bound}
    present = plan.parameters.hidden & arguments.keys()
    return {name for name in present if name not in fixed or not is_same_json(thaw(fixed[name]), thaw(arguments[name]))}


def open_suspended_record(
    record: object, signing_keys: Iterable[bytes], answer: Decision | bool | ToolResult, by: str | None
) -> ResumedCall | None:
    """Return the suspended call of a record with its answer, or None if no key has sealed the record.

    Raises:
        DefinitionError: It is no record of a suspended call, or the answer does not fit it.
    """
    opened = open_sealed(find_pending("resume", record), signing_keys, _PENDING)
    if opened is None:
        return None
    kept, signing_key = opened
    if kept["kind"] == "work":
        if not isinstance(answer, ToolResult | bool) and getattr(answer, "kind", None) not in ("allow", "deny"):
            raise DefinitionError(
                "deferred work is resumed with the ToolResult that it came to, with True, which looks, or with False, "
                f"which gives it up; not with {answer!r}"
            )
    elif isinstance(answer, ToolResult):
        raise DefinitionError("a ToolResult is what deferred work came to, and this call waits for a decision")
    elif not isinstance(answer, Decision | bool):
        raise DefinitionError(
            "a suspended call is resumed with True, False, allow(…), ask(…) or deny(…), not with "
            f"{type(answer).__name__}; values go into allow({{…}})"
        )
    return ResumedCall(kept, signing_key, answer, by, perf_counter())


def open_question(signing_keys: Iterable[bytes], resumed: ResumedCall | None, call_id: str) -> ResumedCall | None:
    """Return the nested call that a resumed call waited for, with the answer. Return None for any other `call_id`."""
    question = None if resumed is None else resumed.record.get("question")
    if resumed is None or question is None or question["call"]["id"] != call_id:
        return None
    return open_suspended_record(question, signing_keys, resumed.answer, resumed.by)


def restore_arguments(plan: Plan, resumed: ResumedCall) -> Arguments:
    """Return the judged arguments of a suspended call, with values validated anew.

    Raises:
        Rejected: The tool has changed since, or validation does not give the judged arguments again.
    """
    record = resumed.record
    if record["kind"] == "background":
        return record["arguments"]  # type: ignore[no-any-return]
    if _tool_digest(plan, record["arguments"], record["key"], resumed.signing_key) != record["tool"]:
        what = "its schema, its traits, its server or what is bound in it has changed"
        raise Rejected("invalid", f"{plan.name} is not what it was when this was asked: {what}. {NOTHING_RUN}")
    try:
        plan.check_input(record["arguments"])
        arguments = plan.parameters.restore_arguments(plan.name, record["arguments"])
    except Invalid as invalid:
        raise Rejected("invalid", str(invalid)) from None
    if not is_same_json(omit_names(plan.parameters.hidden, arguments), record["arguments"]):
        what = f"{plan.name} could not be run: its arguments come out otherwise than they were judged"
        raise Rejected("failed", f"{what}. {NOTHING_RUN}")
    return arguments


async def mark_as_resumed(plan: Plan, state: CallState, resumed: ResumedCall) -> bool:
    """Mark a suspended call as resumed, in the journal or else in memory. Return False if it was resumed before.

    Deferred work in the journal is not marked: its outcome replaces its entry in one step, so a crash loses nothing.

    Raises:
        Rejected: The record has expired, or the mark could not be made.
    """
    record, runner = resumed.record, plan.runner
    if record["kind"] == "background":
        return True
    taken: object = False
    if record["kind"] != "work" or not plan.journaled:
        take = (runner.journal or runner.resumed_records).take
        taken = await run_within(runner, take, record["key"], record["expires_at"])
    if isinstance(taken, Raised):
        log_exception(state, "it could not be noted that a call of tool %r is resumed", plan.name, error=taken.error)
        raise Rejected("failed", f"It could not be noted that this call is resumed. {NOTHING_RUN}")
    if record["expires_at"] <= runner.clock.now():  # checked last: an expired mark may be forgotten by now
        raise Rejected("invalid", f"The answer came too late, the call can no longer be resumed. {NOTHING_RUN}")
    return taken is True


def omit_names(names: frozenset[str], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments without `names`, as plain JSON."""
    return {name: thaw(value) for name, value in arguments.items() if name not in names}


def _tool_digest(plan: Plan, judged: Mapping[str, Any], record_id: str, signing_key: bytes) -> str:
    """Return a digest of the tool's name, server, schema, traits and bound values, different for each record."""
    tool, parameters = plan.tool, plan.parameters
    arguments = freeze({**parameters.bound, **judged})
    facts = {
        "key": record_id,
        "name": tool.name,
        "listed": plan.is_listed,
        "mounted": [mount.name for mount in tool.mounts],
        "schema": thaw(parameters.schema),
        "hidden": sorted(parameters.hidden),
        "bound": thaw(parameters.bound),
        "traits": {name: tool.trait(name, arguments) for name in JUDGED_TRAITS},
        **({} if tool.server is None else {"server": tool.server}),
    }
    return sign(signing_key, "tool", canonical_json(facts))
