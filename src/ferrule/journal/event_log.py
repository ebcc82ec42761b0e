"""The events of one call in memory, in the form in which a journal has them."""

from __future__ import annotations

from ferrule.journal._rows import EventRows
from ferrule.journal.reading import ENDS, LoggedCall, make_event
from ferrule.values.event import Event

_WITH_RESULT = ENDS | {"tool:suspended"}


class EventLog:
    """The events of one call, by an observer. `call` is the call as a `Reader` would return it."""

    def __init__(self) -> None:
        self._rows = EventRows(0)
        self._made: list[tuple[object, ...]] = []

    def note(self, event: Event) -> None:
        """Record an event."""
        at, kind, call_id, tool, principal, session, parent, owner, _, data = self._rows.make_row(event)
        row = (len(self._made) + 1, at, kind, call_id, tool, principal, session, parent, owner, data)
        self._made.append(row)

    def __len__(self) -> int:
        return len(self._made)

    @property
    def call(self) -> LoggedCall | None:
        """The call as far as it is known, or None before its first event."""
        if not self._made:
            return None
        events = tuple(map(make_event, self._made))
        last = next((event for event in reversed(events) if event.kind in _WITH_RESULT), None)
        is_open = last is None or events[-1].kind not in _WITH_RESULT
        return LoggedCall(
            events=events,
            status="running" if is_open or last is None else str(last.data.get("status", "failed")),
            result={} if last is None else last.data,
            ended_at=last.at if last is not None and last.kind in ENDS and not is_open else None,
            intent=None,
            is_replayed=False,
            attempts=1,
            replays=0,
            process=None,
        )
