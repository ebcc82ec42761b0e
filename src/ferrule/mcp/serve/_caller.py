"""The caller of a call: its identity by its token, and the call that runs at present, for the approver that asks its
client. This module imports nothing of `mcp`."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from typing import Any, Protocol, TypeAlias

from ferrule import Decision, DefinitionError, InputRequired, ToolCall, ToolContext, deny
from ferrule.definition.handler import is_async
from ferrule.mcp.visits import format_visit, make_visit_schema
from ferrule.types import Approver
from ferrule.values.frozen import get_fields

TokenOwner: TypeAlias = str | ToolContext | None
"""The owner of a bearer token: a principal, the context of its calls, or nobody."""
Tokens: TypeAlias = Callable[[str], TokenOwner | Awaitable[TokenOwner]]


def make_identity(name: str, context: ToolContext) -> str:
    """Return the identity of a caller: the principal, and a digest of the other contents of its token's context.

    Two contexts of one principal differ if their session, working directory, metadata, secrets or deps differ. A
    dataclass or a Pydantic model counts by its fields, in deps if it has a hash, an object of a class with a hash of
    its own by its texts, and any other object by its type.
    """
    fields = replace(context.fields, principal=None)
    others = fields.session, fields.working_directory, fields.deps
    if all(one is None for one in others) and not (fields.metadata or fields.secrets or "#" in name):
        return name
    digestible = name, _digestible(replace(fields, deps=None)), _digestible(fields.deps, mutable=False)
    return f"{name}#{hashlib.sha256(json.dumps(digestible).encode()).hexdigest()}"


def _digestible(value: Any, mutable: bool = True) -> Any:
    """Return JSON data that is the same for equal values, in every process.

    Args:
        mutable: Whether dataclasses and models count by their fields although these may change.
    """
    if hasattr(value, "get_secret_value"):
        value = value.get_secret_value()
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    class_hash: Any = type(value).__hash__
    is_value = class_hash not in (None, object.__hash__) and not callable(value)
    digestible = partial(_digestible, mutable=mutable)
    if (fields := get_fields(value)) is not None and (mutable or is_value):
        return [kind, digestible(fields)]
    if isinstance(value, Mapping):
        return [
            "mapping",
            sorted(([digestible(key), digestible(inner)] for key, inner in value.items()), key=json.dumps),
        ]
    if isinstance(value, list | tuple | deque):
        return ["list", [digestible(inner) for inner in value]]
    if isinstance(value, set | frozenset):
        return ["set", sorted(map(digestible, value), key=json.dumps)]
    if isinstance(value, str):
        return [kind, str.__str__(value)]  # a class may write stars of its own
    texts = [repr(value), str(value)] if is_value or isinstance(value, bytearray) else []  # one may hide a password
    return [kind] if any(" at 0x" in text for text in texts) else [kind, *texts]


class Caller(Protocol):
    """The client of one call."""

    async def ask(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision | bool:
        """Return the answer of the client's person; an ask, if the result of the call is to ask."""

    def on_answer(self, call: ToolCall, context: ToolContext, answer: object) -> None:
        """Receive the approver's answer, no matter whom it asked."""


CALLER: ContextVar[Caller | None] = ContextVar("ferrule.mcp.serve.caller", default=None)


async def ask_client(call: ToolCall, decision: Decision, context: ToolContext) -> Decision | bool:
    """Ask the client of the call: an approver. See docs/serving-mcp.md#who-is-asked.

    A runner without an approver is served with this one. Another approver may pass its open questions on:

        async def approve(call, decision, context):
            return True if call.name == "note" else await serve.ask_client(call, decision, context)

    It has to return the answer of this function unchanged: a client of 2026-07-28 is asked afterwards, by the result of
    its call.

    The answer is a denial if the call came from no client, if the client has declared no elicitation, or if the value
    of a private parameter is wanted. If the client is asked by the result of its call (2026-07-28), it is also a denial
    if another call made this call, or the tool already runs.
    """
    caller = CALLER.get()
    if caller is None:
        return deny("nobody can be asked: this call came from no client")
    if decision.into is not None:
        return deny(f"Ferrule never asks a client for the value of {decision.into!r}")
    return await caller.ask(call, decision, context)


def ask_to_visit(url: str, reason: str) -> InputRequired:
    """Return a question that sends a person to an address, for secrets and payments that no client should see. See
    docs/serving-mcp.md#an-address-to-visit.

    Return it from a handler, or ask it by `context.ask`. A yes means that the person agreed to go there: find out by
    yourself what they did.

    Args:
        url: An `https:` address, or an `http:` one of this machine.
        reason: Why.

    Raises:
        DefinitionError: A person cannot be sent to the address.
    """
    try:
        return InputRequired(f"{reason}\n{format_visit(url)}", make_visit_schema(url))
    except ValueError as error:
        raise DefinitionError(f"ask_to_visit: {error}") from None


def report_answers(approve: Any) -> Approver:
    """Return the same approver, but report its answers to the client of the call. A plain function stays one, for the
    runner to call in a thread."""

    def report(call: ToolCall, context: ToolContext, answer: Any) -> Any:
        if (caller := CALLER.get()) is not None:
            caller.on_answer(call, context, answer)
        return answer

    async def report_awaited(call: ToolCall, context: ToolContext, answering: Any) -> Any:
        return report(call, context, await answering)

    async def reporting(call: ToolCall, decision: Decision, context: ToolContext) -> Any:
        return report(call, context, await approve(call, decision, context))

    def reporting_in_thread(call: ToolCall, decision: Decision, context: ToolContext) -> Any:
        answer = approve(call, decision, context)
        return report_awaited(call, context, answer) if isawaitable(answer) else report(call, context, answer)

    return reporting if is_async(approve) else reporting_in_thread
