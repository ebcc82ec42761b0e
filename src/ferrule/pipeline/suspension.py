"""Suspended calls: the sealed record of one, and the answer that takes it up again.

What a record says is believed only where its seal, an HMAC over all of it, is by a key of the runner's.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Iterable, Mapping
from time import time as now
from typing import Any, NamedTuple

from ferrule.errors import DefinitionError
from ferrule.pipeline.plan import Plan
from ferrule.pipeline.state import CallState
from ferrule.values.call import ToolCall
from ferrule.values.content import clean, jsonable
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, ask
from ferrule.values.frozen import FrozenDict, freeze, thaw
from ferrule.values.json_text import loads

_FORMAT = {"version": 1, "kind": "approval"}
_NOT_KEPT = ("deps", "secrets")
_KEY_BYTES = 32
NOT_SEALED = (
    "The record of the suspended call was changed, or another runner has sealed it: give both the same resume_key. "
    "Without one, only the runner that suspended a call and its replacements resume it."
)
_SEALED_TRAITS = ("read_only", "destructive", "idempotent", "open_world", "parallel")


class Answered(NamedTuple):
    """A suspended call with its answer, on its way to the place where the question was asked.

    Attributes:
        record: What was sealed.
        signed_with: The key of the seal.
        by: Who answers.
    """

    record: dict[str, Any]
    signed_with: bytes
    answer: Decision | bool
    by: str | None

    @property
    def call(self) -> ToolCall:
        """The call, with the arguments as they were received."""
        sent = self.record["call"]
        return ToolCall(sent["id"], sent["name"], self.record["received"], data=sent["data"], parent=sent["parent"])

    @property
    def asked(self) -> Decision:
        """The decision that asks."""
        return ask(self.record["reason"], into=self.record["into"])

    @property
    def expired(self) -> bool:
        """Whether it can no longer be taken up."""
        return bool(self.record["expires_at"] <= now())

    def is_of(self, plan: Plan) -> bool:
        """Whether the tool, and what is bound in it, is the one that the call was judged for."""
        digest = _tool_digest(plan, self.record["arguments"], self.record["key"], self.signed_with)
        return hmac.compare_digest(digest, self.record["tool"])

    async def approve(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision | bool:
        """The approver that gives this answer."""
        return self.answer


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


def pending_record(call: ToolCall, state: CallState, decision: Decision) -> FrozenDict:
    """All, as plain JSON, that is needed to take the call up again, sealed."""
    plan, sent, fields = state.plan, state.sent, state.fields
    key, asked_at, secret = os.urandom(16).hex(), now(), plan.runner.resume_keys[0]
    judged = visible(plan, call.arguments)
    kept = {
        **_FORMAT,
        "key": key,
        "call": jsonable({"id": sent.id, "name": sent.name, "data": sent.data, "parent": call.parent}),
        "arguments": judged,
        "received": visible(plan, loads(call.arguments.raw)),
        "context": jsonable({name: value for name, value in fields._asdict().items() if name not in _NOT_KEPT}),
        "reason": clean(decision.reason),
        "into": decision.into,
        "asked_at": asked_at,
        "expires_at": asked_at + plan.runner.resume_within,
        "tool": _tool_digest(plan, judged, key, secret),
    }
    return freeze({**kept, "seal": _mac(secret, "pending", _canonical_json(kept))})  # type: ignore[no-any-return]


def answered_call(record: object, keys: Iterable[bytes], answer: Decision | bool, by: str | None) -> Answered | None:
    """The suspended call that a record keeps, with its answer; `None` where none of the keys has sealed it.

    Raises:
        DefinitionError: where it is the record of no suspended call, or of another version.
    """
    given = record.get("pending") if isinstance(record, Mapping) else None
    if not isinstance(given, Mapping):
        raise DefinitionError("resume takes the .record() of a suspended result, and this is none")
    try:
        seal = str(given.get("seal")).encode("utf-8", "replace")
        text = _canonical_json({name: value for name, value in thaw(given).items() if name != "seal"})
    except Exception:  # no JSON, or a mapping of somebody's own that may raise anything
        return None
    signed_with = [key for key in keys if hmac.compare_digest(_mac(key, "pending", text).encode(), seal)]
    if not signed_with:
        return None
    kept = json.loads(text)  # what was sealed, and nothing that only looks like it
    if {name: kept.get(name) for name in _FORMAT} != _FORMAT:
        raise DefinitionError("this call was suspended by another version of Ferrule: resume it there")
    return Answered(kept, signed_with[0], answer, by)


def visible(plan: Plan, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments without what is bound or private, which no record holds."""
    return {name: thaw(value) for name, value in arguments.items() if name not in plan.parameters.hidden}


def _tool_digest(plan: Plan, judged: Mapping[str, Any], key: str, secret: bytes) -> str:
    """Of the tool's name, schema, traits and bound values; `key` makes it another one for each record."""
    tool, parameters = plan.tool, plan.parameters
    arguments = freeze({**parameters.bound, **judged})
    facts = {
        "key": key,
        "name": tool.name,
        "schema": thaw(parameters.schema),
        "hidden": sorted(parameters.hidden),
        "bound": thaw(parameters.bound),
        "traits": {name: tool.trait(name, arguments) for name in _SEALED_TRAITS},
    }
    return _mac(secret, "tool", _canonical_json(facts))


def _canonical_json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _mac(key: bytes, purpose: str, text: str) -> str:
    return hmac.digest(key, f"ferrule {purpose} {text}".encode(), "sha256").hex()
