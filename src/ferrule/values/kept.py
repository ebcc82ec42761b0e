"""What a journal keeps of one call: that it was about to run, and what it came to; as plain JSON."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ferrule.values.call import ToolCall
from ferrule.values.content import Block, Media, Text, as_output, jsonable
from ferrule.values.frozen import JsonObject, thaw
from ferrule.values.result import ToolResult, keep_pending

KeptState: TypeAlias = Literal["running", "cut_off", "deferred", "ended"]
"""How far a call is, as its journal has it. See docs/journal.md."""

RUN_NAME = "loop.run(key=…)"
"""The `tool_name` of a run with a key; no tool can have it. See docs/journal.md#a-request-that-is-sent-twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """That a call which may change something is about to run. See docs/journal.md.

    Attributes:
        key: What the call is known by: the same whenever it comes again, in any process.
        reference: The same for all calls under one id, whatever their arguments.
        claim: Who is about to run it: random, and the same for every attempt of one call.
        call_id: Its id, as the model sent it.
        tool_name: The tool's own name.
        principal: On whose behalf it runs.
        session: The conversation that it belongs to; a call without one is not known when it comes again.
        parent: The id of the call that made it.
        fingerprint: What the tool was: `Tool.fingerprint`.
        arguments: As they were judged, with stars for what is bound, private or known to be secret.
        at: When, in seconds since the epoch.
        run: `Event.run` of the events of the call.
    """

    key: str
    reference: str
    claim: str
    call_id: str
    tool_name: str
    principal: str | None
    session: str | None
    parent: str | None
    fingerprint: str
    arguments: JsonObject
    at: float
    run: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a journal has of one call. See docs/journal.md.

    Attributes:
        intent: That it was about to run.
        state: `"running"` where a process that lives is at it, `"cut_off"` where none is and nobody knows what it came
            to, `"deferred"` where it is done elsewhere and its outcome comes later, `"ended"` where it has an outcome.
        outcome: What `stored` made of its result; of a deferred one with what resumes it, its `"pending"`.
    """

    intent: Intent
    state: KeptState
    outcome: JsonObject | None = None


def is_unknown(kept: Kept) -> bool:
    """Whether nobody knows what came of a call: it was cut off, or ended without knowing whether it happened."""
    return kept.state == "cut_off" or (kept.state == "ended" and (kept.outcome or {}).get("executed", False) is None)


def stored(result: ToolResult) -> dict[str, Any]:
    """Return all of a result that a model or a program sees, as plain JSON from which `restored` makes it again.
    `output_is` says what an output was that is no JSON data."""
    output, output_is = _stored_output(result.output)
    return {
        "status": result.status,
        "output": output,
        **({"output_is": output_is} if output_is else {}),
        "content": [_stored_block(block) for block in result.content],
        "error": result.error,
        "executed": result.executed,
        "retryable": result.retryable,
        "metadata": jsonable(dict(result.metadata)),
        "repairs": list(result.repairs),
    }


def restored(outcome: JsonObject, call: ToolCall, tool_name: str) -> ToolResult:
    """Return the result that `stored` was given, of `call`; a suspended one with its `pending`.

    Raises:
        TypeError, LookupError, ValueError: for what `stored` did not make.
    """
    kept = thaw(outcome)
    result = ToolResult(
        _output_of(kept["output"], kept.get("output_is")),
        kept["error"],
        kept["metadata"],
        [_block_of(block) for block in kept["content"]],
        call=call,
        tool_name=tool_name,
        status=kept["status"],
        executed=kept["executed"],
        retryable=kept.get("retryable"),
        repairs=tuple(kept["repairs"]),
    )
    if result.status == "suspended":
        keep_pending(result, kept["pending"])
    return result


def _stored_output(output: Any) -> tuple[Any, Literal["bytes", "block", "blocks"] | None]:
    """Return the output as JSON, and what it was if it was bytes or blocks; see `as_output`."""
    shown = as_output(output, strict=False)
    if isinstance(shown, bytes):
        return b64encode(shown).decode(), "bytes"
    if isinstance(shown, Text | Media):
        return _stored_block(shown), "block"
    if isinstance(shown, list) and shown and isinstance(shown[0], Text | Media):
        return [_stored_block(one) for one in shown], "blocks"
    return shown, None


def _output_of(output: Any, output_is: str | None) -> Any:
    match output_is:
        case None:
            return output
        case "bytes":
            return b64decode(output, validate=True)
        case "block":
            return _block_of(output)
        case "blocks":
            return [_block_of(one) for one in output]
    raise ValueError(f"an output cannot be {output_is!r}")


def _stored_block(block: Block) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"text": block.text}
    return {name: jsonable(getattr(block, name)) for name in Media.__dataclass_fields__}


def _block_of(block: Mapping[str, Any]) -> Block:
    if "text" in block:
        return Text(block["text"])
    data = block["data"]
    return Media(**{**block, "data": None if data is None else b64decode(data, validate=True)})
