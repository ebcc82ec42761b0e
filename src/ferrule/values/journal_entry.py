"""The entry of a call in a journal: the intent before it runs and the outcome after it, as plain JSON."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ferrule.values.call import ToolCall
from ferrule.values.content import Block, Media, Text, to_jsonable, to_output
from ferrule.values.frozen import JsonObject, thaw
from ferrule.values.result import ToolResult, set_pending

EntryState: TypeAlias = Literal["running", "cut_off", "deferred", "ended"]
"""The state of a call in its journal. See docs/journal.md."""

KEYED_RUN_NAME = "loop.run(key=…)"
"""The `tool_name` of a run with a key; no tool can have it. See docs/journal.md#a-request-that-is-sent-twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """The intent to run a call that may change something. See docs/journal.md.

    Attributes:
        key: Identifies the call if it is sent again, in any process.
        reference: Identifies all calls under one id, whatever their arguments are.
        claim: Identifies the run: random, and the same for every attempt of one call.
        call_id: The id of the call, as the model sent it.
        tool_name: The tool's own name.
        principal: The principal on whose behalf it runs.
        session: The conversation of the call. A call without one is not recognised if it is sent again.
        parent: The id of the parent call.
        fingerprint: The `Tool.fingerprint`.
        arguments: The judged arguments, with stars for hidden values and known secrets.
        at: The time, in seconds since the epoch.
        run: The `Event.run` of the call's events.
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
class JournalEntry:
    """The entry of one call in a journal. See docs/journal.md.

    Attributes:
        intent: The intent to run it.
        state: `"running"` while a living process runs it, `"cut_off"` if that process died before the outcome,
            `"deferred"` if its work goes on elsewhere, `"ended"` if it has an outcome.
        outcome: The stored result; for a deferred call with `"pending"`, its record.
        may_go_on: Whether the handler of a cut-off call may still be at work, in a thread for instance: its loop was
            closed, and its process lives.
    """

    intent: Intent
    state: EntryState
    outcome: JsonObject | None = None
    may_go_on: bool = False


def is_unknown(entry: JournalEntry) -> bool:
    """Return whether the outcome of a call is unknown: it was cut off, or ended with `executed` None."""
    return entry.state == "cut_off" or (entry.state == "ended" and (entry.outcome or {}).get("executed", False) is None)


def outcome_from_result(result: ToolResult) -> dict[str, Any]:
    """Return a result as plain JSON, for `result_from_outcome`.

    If the output is bytes or blocks, `output_is` says so.
    """
    output, output_is = _split_output(result.output)
    return {
        "status": result.status,
        "output": output,
        **({"output_is": output_is} if output_is else {}),
        "content": [block_to_dict(block) for block in result.content],
        "error": result.error,
        "executed": result.executed,
        "retryable": result.retryable,
        "metadata": to_jsonable(dict(result.metadata)),
        "repairs": list(result.repairs),
    }


def result_from_outcome(outcome: JsonObject, call: ToolCall, tool_name: str) -> ToolResult:
    """Return the result of `call` from its stored outcome; a suspended one with its `pending`.

    Raises:
        TypeError, LookupError, ValueError: `outcome_from_result` did not make the outcome.
    """
    stored = thaw(outcome)
    result = ToolResult(
        _join_output(stored["output"], stored.get("output_is")),
        stored["error"],
        stored["metadata"],
        [block_from_dict(block) for block in stored["content"]],
        call=call,
        tool_name=tool_name,
        status=stored["status"],
        executed=stored["executed"],
        retryable=stored.get("retryable"),
        repairs=tuple(stored["repairs"]),
    )
    if result.status == "suspended":
        set_pending(result, stored["pending"])
    return result


def _split_output(output: Any) -> tuple[Any, Literal["bytes", "block", "blocks"] | None]:
    """Return the output as JSON, and its kind if it was bytes or blocks."""
    shown = to_output(output, strict=False)
    if isinstance(shown, bytes):
        return b64encode(shown).decode(), "bytes"
    if isinstance(shown, Text | Media):
        return block_to_dict(shown), "block"
    if isinstance(shown, list) and shown and isinstance(shown[0], Text | Media):
        return [block_to_dict(one) for one in shown], "blocks"
    return shown, None


def _join_output(output: Any, output_is: str | None) -> Any:
    if output_is is None:
        return output
    if output_is == "bytes":
        return b64decode(output, validate=True)
    return block_from_dict(output) if output_is == "block" else [block_from_dict(one) for one in output]


def block_to_dict(block: Block) -> dict[str, Any]:
    """Return a block as plain JSON, for `block_from_dict`."""
    if isinstance(block, Text):
        return {"text": block.text}
    return {name: to_jsonable(getattr(block, name)) for name in Media.__dataclass_fields__}


def block_from_dict(block: Mapping[str, Any]) -> Block:
    """Return the block of a mapping from `block_to_dict`.

    Raises:
        TypeError, LookupError, ValueError: `block_to_dict` did not make the mapping.
    """
    if "text" in block:
        return Text(block["text"])
    data = block["data"]
    return Media(**{**block, "data": None if data is None else b64decode(data, validate=True)})
