"""Suspended calls: the sealed record of one, and the answer that takes it up again.

What a record says is believed only where its seal, an HMAC over all of it, is by a key of the runner's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

from ferrule.arguments.parameters import Invalid
from ferrule.errors import DefinitionError
from ferrule.executors.threads import Raised
from ferrule.pipeline.call_key import call_key, in_journal
from ferrule.pipeline.hiding import hide, log_raised
from ferrule.pipeline.plan import Plan
from ferrule.pipeline.results import NOTHING_RUN, Rejected
from ferrule.pipeline.state import CallState
from ferrule.pipeline.tasks import within_time
from ferrule.values.arguments import Arguments
from ferrule.values.call import ToolCall, run_id
from ferrule.values.content import clean, jsonable
from ferrule.values.context import JUDGED_TRAITS, ToolContext
from ferrule.values.decision import ALLOW, Decision, deny
from ferrule.values.deferred import Deferred
from ferrule.values.frozen import FrozenDict, JsonObject, freeze, thaw
from ferrule.values.json_text import same
from ferrule.values.result import ToolResult, pending_of

_VERSION = 1
_PENDING = f"pending {_VERSION}"
_NOT_KEPT = ("deps", "secrets")
_KEY_BYTES = 32
NOT_SEALED = (
    "The record of the suspended call was changed, or another runner has sealed it: give both the same resume_key. "
    "Without one, only the runner that suspended a call and its replacements resume it."
)


class Answered(NamedTuple):
    """A suspended call with its answer, on its way to the place where the question was asked.

    Attributes:
        record: What was sealed.
        signed_with: The key of the seal.
        answer: What a person has decided; of work that ended elsewhere perhaps what it came to.
        by: Who answers.
        at: When, by `perf_counter`.
    """

    record: dict[str, Any]
    signed_with: bytes
    answer: Decision | bool | ToolResult
    by: str | None
    at: float

    @property
    def call(self) -> ToolCall:
        """The call, with the arguments as they were judged."""
        sent = self.record["call"]
        return ToolCall(sent["id"], sent["name"], self.record["arguments"], data=sent["data"], parent=sent["parent"])

    @property
    def ends_work(self) -> bool:
        """Whether it says what work came to that ended elsewhere, or gives that up, and nothing is run."""
        looks = self.answer is True or (isinstance(self.answer, Decision) and self.answer.kind == "allow")
        return self.record["kind"] == "work" and not looks

    async def run(self, values: object, call: CallState) -> object:
        """What stands in the place of the handler that has run already: what its work came to."""
        return self.answer

    async def approve(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision | bool:
        """The approver that gives this answer."""
        answer: Any = self.answer
        if isinstance(answer, bool):
            answer = ALLOW if answer else refused(decision)
        return replace(answer, by=answer.by or self.by) if isinstance(answer, Decision) else answer


def refused(asked: Decision) -> Decision:
    """The deny for a question that was answered with no; why it was asked may name what to do instead."""
    why = f" ({asked.reason})" if asked.reason else ""
    return deny(f"refused by the person who was asked{why}")


def resume_keys(given: object) -> tuple[bytes, ...]:
    """The keys of `Runner(resume_key=…)`, the first of which signs; a random one where none is given.

    Raises:
        DefinitionError: for anything but bytes, at least 32 of them, or a list of such keys.
    """
    if given is None:
        return (os.urandom(_KEY_BYTES),)
    keys = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not keys or not all(isinstance(key, bytes) and len(key) >= _KEY_BYTES for key in keys):
        raise DefinitionError(
            f"resume_key must be at least {_KEY_BYTES} bytes, such as secrets.token_bytes({_KEY_BYTES}) made once, or "
            "a list of such keys: the first signs, all verify"
        )
    return keys


def work_record(state: CallState, work: Deferred) -> FrozenDict:
    """The record of a call whose work ends elsewhere."""
    poll_at = None if work.poll_after is None else state.plan.runner.clock.now() + work.poll_after
    kept = {"ticket": work.ticket, "poll_at": poll_at}
    return pending_record(state, "work", Decision("ask", hide(state, work.reason)), kept, work.expires_in)


def pending_record(
    state: CallState, kind: str, decision: Decision, of_handler: Any, within: float | None = None
) -> FrozenDict:
    """All, as plain JSON, that is needed to take the call up again that waits for somebody, sealed; good for `within`
    seconds, where the runner does not say."""
    plan, sent, call, fields = state.plan, state.sent, state.call, state.fields
    key, asked_at, secret = os.urandom(16).hex(), plan.runner.clock.now(), plan.runner.resume_keys[0]
    offered = state.origin.offered
    judged = without(plan.parameters.hidden, call.arguments)
    kept = {
        "version": _VERSION,
        "kind": kind,
        "key": key,
        "call": jsonable({"id": sent.id, "name": sent.name, "data": sent.data, "parent": call.parent}),
        "listed": plan.is_listed,
        "arguments": judged,
        "supplied": sorted(supplied_names(plan, call.arguments)),
        "context": jsonable({name: value for name, value in fields._asdict().items() if name not in _NOT_KEPT}),
        "noted": dict(state.attempt.noted),
        "reason": clean(decision.reason),
        "into": decision.into,
        "rule": decision.rule,
        "schema": thaw(decision.schema),
        "state": thaw(of_handler),
        "asked_at": asked_at,
        "expires_at": asked_at + (plan.runner.resume_within if within is None else within),
        "offered": None if offered is None else [tool.name for tool in offered],
        "turn": state.origin.turn,
        "run": run_id(state.run),
        "idempotency_key": in_journal(state).key,
        "sent": call_key((), without(plan.parameters.hidden, sent.raw) if isinstance(sent.raw, Mapping) else sent.raw),
        "tool": _tool_digest(plan, judged, key, secret),
    }
    return freeze({**kept, "seal": _mac(secret, _PENDING, _canonical_json(kept))})  # type: ignore[no-any-return]


def supplied_names(plan: Plan, arguments: JsonObject) -> set[str]:
    """The private parameters whose values somebody has given, which no record holds."""
    of, kept = plan.parameters, {**plan.parameters.defaults, **plan.parameters.bound}
    given = of.hidden & arguments.keys()
    return {name for name in given if name not in kept or not same(thaw(kept[name]), thaw(arguments[name]))}


def answered_call(
    record: object, keys: Iterable[bytes], answer: Decision | bool | ToolResult, by: str | None
) -> Answered | None:
    """The suspended call that a record keeps, with its answer; `None` where none of the keys has sealed it.

    Raises:
        DefinitionError: where it is the record of no suspended call, or this is no answer to it.
    """
    given = pending_of("resume", record)
    try:
        from hmac import compare_digest  # loads OpenSSL, which most programs never need

        seal = str(given.get("seal")).encode("utf-8", "replace")
        text = _canonical_json({name: value for name, value in thaw(given).items() if name != "seal"})
    except Exception:  # no JSON, or a mapping of somebody's own that may raise anything
        return None
    signed_with = [key for key in keys if compare_digest(_mac(key, _PENDING, text).encode(), seal)]
    if not signed_with:
        return None
    kept = json.loads(text)  # what was sealed, and nothing that only looks like it
    is_work, said = kept["kind"] == "work", getattr(answer, "kind", None)
    if not is_work and isinstance(answer, ToolResult):
        raise DefinitionError("a ToolResult is what deferred work came to, and this call waits for a decision")
    if is_work and not (isinstance(answer, ToolResult | bool) or said in ("allow", "deny")):
        raise DefinitionError(
            "deferred work is resumed with the ToolResult that it came to, with True, which looks, or with False, "
            f"which gives it up; not with {answer!r}"
        )
    return Answered(kept, signed_with[0], answer, by, perf_counter())


def recorded_arguments(plan: Plan, answered: Answered) -> Arguments:
    """The arguments of a suspended call, with values made anew of what was judged.

    Raises:
        Rejected: where the tool has changed since, or they are not what was judged.
    """
    record = answered.record
    if record["kind"] == "background":
        return record["arguments"]  # type: ignore[no-any-return]
    if _tool_digest(plan, record["arguments"], record["key"], answered.signed_with) != record["tool"]:
        what = "its schema, its traits, its server or what is bound in it has changed"
        raise Rejected("invalid", f"{plan.name} is not what it was when this was asked: {what}. {NOTHING_RUN}")
    try:
        plan.check_input(record["arguments"])
        arguments = plan.parameters.restored(plan.name, record["arguments"])
    except Invalid as invalid:
        raise Rejected("invalid", str(invalid)) from None
    if not same(without(plan.parameters.hidden, arguments), record["arguments"]):
        what = f"{plan.name} could not be run: its arguments come out otherwise than they were judged"
        raise Rejected("failed", f"{what}. {NOTHING_RUN}")
    return arguments


async def take_up(plan: Plan, state: CallState, answered: Answered) -> bool:
    """Take a suspended call up, which is done once: in the runner's memory, or where the journal can, there; whether
    that is the first time. Deferred work that the journal has is never taken up: it stays as it is until its outcome
    takes its place in one step, so that a crash loses no more than the look at it.

    Raises:
        Rejected: where it has expired, or it is not known.
    """
    record, runner = answered.record, plan.runner
    if record["kind"] == "background":
        return True
    taken: object = False
    if record["kind"] != "work" or not plan.journaled:
        take = (runner.journal or runner.taken_up).take
        taken = await within_time(runner, take, record["key"], record["expires_at"])
    if isinstance(taken, Raised):
        log_raised(state, "it could not be noted that a call of tool %r is resumed", plan.name, error=taken.error)
        raise Rejected("failed", f"It could not be noted that this call is resumed. {NOTHING_RUN}")
    if record["expires_at"] <= runner.clock.now():  # looked at last: by now who keeps the key may have forgotten it
        raise Rejected("invalid", f"The answer came too late, the call can no longer be resumed. {NOTHING_RUN}")
    return taken is True


def without(names: frozenset[str], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments but for `names`; no record holds what is bound or private."""
    return {name: thaw(value) for name, value in arguments.items() if name not in names}


def _tool_digest(plan: Plan, judged: Mapping[str, Any], key: str, secret: bytes) -> str:
    """Of the tool's name, server, schema, traits and bound values; `key` makes it another one for each record."""
    tool, parameters = plan.tool, plan.parameters
    arguments = freeze({**parameters.bound, **judged})
    facts = {
        "key": key,
        "name": tool.name,
        "listed": plan.is_listed,
        "mounted": [mount.name for mount in tool.mounts],
        "schema": thaw(parameters.schema),
        "hidden": sorted(parameters.hidden),
        "bound": thaw(parameters.bound),
        "traits": {name: tool.trait(name, arguments) for name in JUDGED_TRAITS},
        **({} if tool.server is None else {"server": tool.server}),
    }
    return _mac(secret, "tool", _canonical_json(facts))


def _canonical_json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _mac(key: bytes, purpose: str, text: str) -> str:
    from hmac import digest  # loads OpenSSL, which most programs never need

    return digest(key, f"ferrule {purpose} {text}".encode(), "sha256").hex()
