"""Conversions of calls and events to rows of the tables, and of rows to calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from pydantic_core import to_json

from ferrule.values.arguments import Arguments
from ferrule.values.content import to_jsonable
from ferrule.values.decision import Decision
from ferrule.values.event import Event
from ferrule.values.frozen import JsonObject, thaw
from ferrule.values.journal_entry import EntryState, Intent, JournalEntry
from ferrule.values.json_text import loads_finite
from ferrule.values.result import ToolResult

Row: TypeAlias = Sequence[Any]
Column: TypeAlias = str | bytes | int | float | None
INTENT_COLUMNS = "key, reference, claim, call_id, tool_name, principal, session, parent, fingerprint, arguments, at"
CALL_COLUMNS = f"{INTENT_COLUMNS}, outcome, state, owner, run"
EVENT_COLUMNS = "at, kind, call_id, tool_name, principal, session, parent, owner, run, data"
OPEN = ("cut_off", "deferred")
"""The states of a call that can still be settled by others."""
MOST_CHARACTERS = 100_000_000
"""The largest number of characters in the data of one event. SQLite's own limit is ten times that."""
_MOST_UNENDED = 10_000
"""The largest number of unended calls with remembered arguments.

A decision about another call records all arguments.
"""
_OF_PENDING = ("kind", "expires_at", "reason", "idempotency_key")
LOST = "journal:lost"
"""The kind of the row with the number of events that are missing at its place."""


def json_text(value: object) -> str:
    """Return the JSON of a value in one fixed form, so equal values are equal texts.

    Raises:
        TypeError, ValueError: The value has no JSON form.
    """
    return _encode(value)


def column(text: str | None) -> str | bytes | None:
    """Return a text for SQLite. SQLite's texts are valid Unicode, so any other text becomes its bytes."""
    if text is None or text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def columns(*texts: str | None) -> tuple[str | bytes | None, ...]:
    """Return `column` of several texts, mostly with a single check."""
    return texts if "".join(filter(None, texts)).isascii() else tuple(map(column, texts))


def read_column(column: Any) -> Any:
    """Return the text from which `column` made this value."""
    return column.decode("utf-8", "surrogatepass") if isinstance(column, bytes) else column


def intent_row(intent: Intent) -> tuple[Column, ...]:
    """Return the values of `INTENT_COLUMNS`."""
    texts = columns(
        intent.key,
        intent.reference,
        intent.claim,
        intent.call_id,
        intent.tool_name,
        intent.principal,
        intent.session,
        intent.parent,
        intent.fingerprint,
    )
    return (*texts, _encode_as_shown(intent.arguments), intent.at)


def entry_from_row(row: Row, *, lives: bool, is_abandoned: bool) -> JournalEntry:
    """Return the call of the values of `CALL_COLUMNS`.

    Args:
        lives: Whether its process lives.
        is_abandoned: Whether its loop was closed before it ended.
    """
    key, reference, claim, call_id, tool_name, principal, session, parent, fingerprint = map(read_column, row[:9])
    intent = Intent(
        key=key,
        reference=reference,
        claim=claim,
        call_id=call_id,
        tool_name=tool_name,
        principal=principal,
        session=session,
        parent=parent,
        fingerprint=fingerprint,
        arguments=loads_finite(row[9]),
        at=row[10],
        run=row[14],
    )
    state: EntryState = row[12]
    is_cut_off = state == "running" and (is_abandoned or not lives)
    return JournalEntry(
        intent=intent,
        state="cut_off" if is_cut_off else state,
        outcome=None if row[11] is None else loads_finite(row[11]),
        may_go_on=is_cut_off and lives,
    )


def find_state(outcome: JsonObject) -> EntryState:
    """Return `"deferred"` if the outcome is still to come, else `"ended"`."""
    return "deferred" if outcome.get("status") == "suspended" else "ended"


def find_ticket(outcome: JsonObject) -> str | None:
    """Return the ticket of a deferred outcome, or None."""
    if find_state(outcome) != "deferred":
        return None
    found: Any = outcome
    for name in ("pending", "state", "ticket"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) else None


class EventRows:
    """A maker of rows from events, in their order. `owner` is the process."""

    def __init__(self, owner: int) -> None:
        self._owner = owner
        self._inputs: dict[tuple[str | None, ...], int] = {}  # hashes, of calls that have not ended

    def make_row(self, event: Event) -> tuple[Column, ...]:
        """Return the values of `EVENT_COLUMNS`."""
        call = event.call
        text = self._format_data(event)
        if len(text) > MOST_CHARACTERS:
            text = json_text({"characters": len(text)})
        texts = columns(call.id, call.name, event.principal, event.session, call.parent)
        return (event.at, event.kind, *texts, self._owner, event.run, text)

    def make_lost_row(self, count: int, at: float) -> tuple[Column, ...]:
        """Return the row that reports `count` missing events before it."""
        return (at, LOST, "", "", None, None, None, self._owner, "", json_text({"count": count}))

    def _format_data(self, event: Event) -> str:
        """Return the data of an event besides its columns, as JSON."""
        if event.kind == "tool:started":  # it has no further data
            return "null"
        data, inputs = event.data, self._inputs
        identity = (event.call.id, event.call.name, event.principal, event.session)
        if event.kind == "tool:pre":
            text = _input_text(data)
            if len(inputs) >= _MOST_UNENDED:  # the ends of some were lost
                del inputs[next(iter(inputs))]
            inputs[identity] = hash(text)
            turn = data.get("turn")
            return text if turn is None else f'{text[:-1]},"turn":{json_text(turn)}}}'
        decision, result = data.get("decision"), data.get("result")
        if isinstance(decision, Decision):
            said = {"kind": decision.kind, "reason": decision.reason, "rule": decision.rule}
            unchanged = inputs.get(identity) == hash(_input_text(data))
            changed = {} if unchanged else {"input": to_jsonable(data["input"])}
            return json_text({**said, "by": to_jsonable(data.get("by", decision.by)), **changed})
        if isinstance(result, ToolResult):
            inputs.pop(identity, None)
            record, pending = result.record(), result.pending
            record["pending"] = pending and {name: to_jsonable(pending.get(name)) for name in _OF_PENDING}
            return _rendered_text(record)
        more = {name: to_jsonable(value) for name, value in data.items() if name not in ("tool_name", "input")}
        return json_text(more or None)


def _input_text(data: Mapping[str, Any]) -> str:
    try:
        return json_text({"input": data["input"]})  # mostly JSON already, and `to_jsonable` takes as long again
    except (TypeError, ValueError):
        return json_text({"input": to_jsonable(data["input"])})


def _rendered_text(value: object) -> str:
    """Return the JSON of a value from `to_jsonable`, mostly in a fifth of the time of `json_text`."""
    try:
        return to_json(value, inf_nan_mode="constants").decode()
    except ValueError:  # half of a surrogate pair
        return json_text(value)


def _json_mapping(value: object) -> Any:
    if isinstance(value, Arguments):
        return value.to_dict()
    if isinstance(value, Mapping):
        return thaw(value)
    raise TypeError(f"a {type(value).__name__} is no JSON")


_encode_as_shown = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_json_mapping).encode
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False, default=_json_mapping).encode
