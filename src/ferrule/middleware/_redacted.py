"""Observers and journals that get everything redacted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Protocol

from ferrule.stores.store import Store
from ferrule.types import Begun, Journal, Observer
from ferrule.values.call import ToolCall
from ferrule.values.decision import Decision
from ferrule.values.event import Event
from ferrule.values.frozen import JsonObject, thaw
from ferrule.values.journal_entry import KEYED_RUN_NAME, Intent, JournalEntry, outcome_from_result, result_from_outcome
from ferrule.values.result import ToolResult

_ENDS = ("tool:post", "tool:error", "tool:suspended")


class _Stream(Protocol):
    def feed(self, piece: str) -> str: ...


class _Redaction(Protocol):
    """The part of `Redaction` that is used here."""

    def value(self, value: Any) -> Any: ...
    def stream(self) -> _Stream: ...


def redact_event(event: Event, redaction: _Redaction, about: Any = None) -> Event:
    """Return the event with its call and `about`, or its own facts, redacted. It has no exception."""
    call = _redact_call(event.call, redaction)
    facts = event.facts if about is None else about
    if isinstance(facts, ToolResult):
        sent = None if facts.call is None else _redact_call(facts.call, redaction)
        shown = facts.replace(call=sent, tool_name=redaction.value(facts.tool_name), exception=None)
        facts = redaction.value(shown).copy_with_call(call)
    elif isinstance(facts, Decision):
        facts = _redact_decision(facts, redaction)
    elif facts is not None and isinstance(decision := facts.get("decision"), Decision):
        facts = {**facts, "decision": _redact_decision(decision, redaction)}
    elif facts is not None:
        facts = redaction.value(dict(facts))
    return event.copy_with(call, facts)


def _redact_decision(decision: Decision, redaction: _Redaction) -> Decision:
    arguments = None if decision.arguments is None else redaction.value(thaw(decision.arguments))
    return replace(decision, reason=redaction.value(decision.reason), arguments=arguments)


def _redact_call(call: ToolCall, redaction: _Redaction) -> ToolCall:
    raw = call.raw if isinstance(call.raw, str) and not call.arguments else thaw(call.arguments)
    name, redacted = redaction.value([call.name, raw])  # a model may have invented the name
    return call if [name, redacted] == [call.name, raw] else call.replace(name=name, arguments=redacted)


class RedactedEvents:
    """The observer of `Redaction.events`."""

    def __init__(self, observer: Observer, redaction: _Redaction) -> None:
        self._observer = observer
        self._redaction = redaction
        self._streams: dict[str, _Stream] = {}

    def __call__(self, event: Event) -> None:
        chunk = event.data.get("chunk") if event.kind == "tool:progress" else None
        if isinstance(chunk, str):
            shown = self._streams.setdefault(event.run, self._redaction.stream()).feed(chunk)
            if shown:
                self._observer(redact_event(event, self._redaction, {"chunk": shown}))
            return
        if event.kind in _ENDS:  # the result has the rest of the text
            self._streams.pop(event.run, None)
        self._observer(redact_event(event, self._redaction))


class RedactedJournal(Journal):
    """The journal of `Redaction.journal`. Attributes of the inner journal, such as `path`, are here, too."""

    def __init__(self, journal: Journal, redaction: _Redaction) -> None:
        self._inner = journal
        self._redaction = redaction
        self._note = RedactedEvents(journal.note, redaction)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def note(self, event: Event) -> None:
        self._note(event)

    async def find(self, key: str, *, wait: bool = False) -> JournalEntry | None:
        return await self._inner.find(key, wait=wait)

    async def begin(self, intent: Intent, *, after: JournalEntry | None = None) -> Begun:
        return await self._inner.begin(self._redact_intent(intent), after=after)

    async def end(self, intent: Intent, outcome: JsonObject | None) -> None:
        await self._inner.end(self._redact_intent(intent), self._redact_outcome(intent, outcome))

    async def unfinished(self, *, ticket: str | None = None) -> list[JournalEntry]:
        return await self._inner.unfinished(ticket=ticket)

    async def settle(self, entry: JournalEntry, outcome: JsonObject | None) -> bool:
        return await self._inner.settle(entry, self._redact_outcome(entry.intent, outcome))

    async def take(self, key: str, expires_at: float) -> bool:
        return await self._inner.take(key, expires_at)

    @property
    def store(self) -> Store:
        return self._inner.store

    def check_reach(self, roots: Iterable[str]) -> None:
        self._inner.check_reach(roots)

    async def flush(self) -> None:
        await self._inner.flush()

    def close(self) -> None:
        self._inner.close()

    def _redact_intent(self, intent: Intent) -> Intent:
        if intent.tool_name == KEYED_RUN_NAME:
            return intent
        return replace(intent, arguments=self._redaction.value(thaw(intent.arguments)))

    def _redact_outcome(self, intent: Intent, outcome: JsonObject | None) -> JsonObject | None:
        """Return the outcome redacted, except the sealed record in `pending`."""
        if outcome is None or intent.tool_name == KEYED_RUN_NAME:
            return outcome
        result = result_from_outcome(outcome, ToolCall("", ""), intent.tool_name)
        return {**outcome, **outcome_from_result(self._redaction.value(result))}
