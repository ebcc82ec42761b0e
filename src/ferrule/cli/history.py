"""The history of one call of a journal, as values: its moments with their texts, and its phases.

`ferrule explain` prints them, and the page of `ferrule inspect` draws them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ferrule.cli.journal_calls import find_author, format_duration, format_time, is_answer, to_dict
from ferrule.cli.text import format_arguments, format_json, format_progress, format_value
from ferrule.journal.reading import UNFINISHED, LoggedCall, LoggedEvent

VALUE_LENGTH = 400
_REASON = 300
_REPORTS = 20
_DECISIONS = {"ask": "asked", "allow": "allowed", "deny": "denied"}
_UNFINISHED = {
    "running": "it still runs",
    "asked": "it waits for a person",
    "cut_off": "its process ended before it did",
    "suspended": "it waits for an answer",
    "deferred": "it runs elsewhere",
}


class Moment(NamedTuple):
    """One line of a history.

    Attributes:
        at: Seconds since the epoch.
        key: The kind of the event or the status, for its sign; `"more"` for reports that are left out.
        text: The text, in one line, with printable characters only.
    """

    at: float
    key: str
    text: str


class Phase(NamedTuple):
    """An activity of a call and its time span, in seconds since the call arrived."""

    name: str
    start: float
    end: float


def list_history(call: LoggedCall, now: float) -> Iterator[Moment]:
    """Yield the moments of a call, in order. `now` is the time of the last one of a call that still runs."""
    before: LoggedEvent | None = None
    decision: Any = None
    received = judged = call.events[0].data.get("input")
    for event in _shorten_reports(call.events):
        if isinstance(event, int):
            yield Moment(before.at if before else 0.0, "more", f"{event:,} more reports")
            continue
        key, text = _describe_event(event, before, decision)
        if event.kind == "tool:decided":
            text += _format_changes(judged, judged := event.data.get("input", received))
            decision = event.data
        yield Moment(event.at, key, text)
        before = event
    if call.status in UNFINISHED:
        yield Moment(_find_end(call, now), call.status, describe_unfinished(call))


def describe_unfinished(call: LoggedCall) -> str:
    """Return why a call has no end."""
    text = _UNFINISHED[call.status]
    if call.status == "cut_off":
        if call.intent is not None:  # the journal has one for each tool that may change something
            return f"{text}: its effect may have happened"
        has_started = any(event.kind == "tool:started" for event in call.events)
        return f"{text}: its handler had {'' if has_started else 'not '}started"
    expires_at = to_dict(call.result.get("pending")).get("expires_at")
    return f"{text}, until {format_time(expires_at)}" if isinstance(expires_at, int | float) else text


def _find_end(call: LoggedCall, now: float) -> float:
    """Return the time of an unfinished call's last line: now, or the time of its last event."""
    last = call.events[-1].at
    return last if call.status == "cut_off" else max(now, last)


def list_phases(call: LoggedCall, now: float) -> list[Phase]:
    """Return the activities of a call, up to its end or until now. Equal neighbours are one."""
    return _list_phases(call.events, None if call.ended_at else _find_end(call, now))


def _describe_event(event: LoggedEvent, before: LoggedEvent | None, decision: Any) -> tuple[str, str]:
    """Return the key of the sign and the text of an event. The others are the event and the decision before it."""
    data, kind = event.data, event.kind
    if kind == "tool:pre":
        return kind, "arrived"
    if kind == "tool:decided":
        return kind, _format_decision(data, decision)
    if kind == "tool:started":
        waited = 0.0 if before is None else event.at - before.at
        is_wait = before is not None and before.kind in ("tool:pre", "tool:decided") and waited >= 0.001
        return kind, f"started, after a wait of {format_duration(waited)}" if is_wait else "started"
    if kind == "tool:progress":
        return "attempt" if "attempt" in data else kind, _format_report(data)
    status = "suspended" if kind == "tool:suspended" else format_value(data.get("status"), _REASON)
    error = "" if data.get("error") is None else format_value(data["error"], _REASON)
    text = error.removeprefix(f"{status.capitalize()}: ")  # the model reads "Denied: …"
    if to_dict(decision).get("kind") == "deny" and (reason := format_value(decision.get("reason") or "", _REASON)):
        text = text.removeprefix(f"{reason}. ")  # the line of the decision says it
    return kind if kind == "tool:suspended" else status, f"{status}: {text}" if text else status


def _format_decision(data: Any, before: Any) -> str:
    """Return the decision as text, with its author. The decision after an ask is its answer.

    Args:
        before: The decision before it.
    """
    author, rule, reason = find_author(data, before), data.get("rule"), data.get("reason")
    if data.get("kind") == "ask" and is_answer(data, before):
        return "put off, until somebody answers"
    text = _DECISIONS.get(str(data.get("kind")), "decided")
    text += f" by {format_value(author, _REASON)}" if author else ""
    text += f": {format_value(reason, _REASON)}" if reason else ""
    return f"{text} ({format_value(rule, _REASON)})" if rule and not is_answer(data, before) else text


def _format_changes(before: Any, after: Any) -> str:
    """Return text about the arguments that changed between two decisions. A default that was filled in is no change."""
    old, new = to_dict(before), to_dict(after)
    changed = {
        name: new[name]
        for name, value in old.items()
        if name in new and format_arguments({name: new[name]}) != format_arguments({name: value})
    }
    parts = [format_arguments(changed)] if changed else []
    parts += [f"without {name}" for name in old if name not in new]
    return f"; with {format_value(', '.join(parts), VALUE_LENGTH)}" if parts else ""


def _format_report(data: Any) -> str:
    if "attempt" in data:
        wait = data.get("wait")
        pause = f" (the next in {format_duration(wait)})" if isinstance(wait, int | float) and wait else ""
        error = f"{format_value(data.get('status') or '', _REASON)}: {format_value(data.get('error') or '', _REASON)}"
        return f"attempt {format_value(data['attempt'], 20)} of {format_value(data.get('of'), 20)}: {error}{pause}"
    if "done" in data:
        message = format_value(data.get("message") or "", _REASON)
        return f"{format_progress(data['done'], data.get('total'))} {message}".rstrip()
    chunk = data.get("chunk", data)
    return format_value(chunk if isinstance(chunk, str) else format_json(chunk), _REASON)


def _shorten_reports(events: Sequence[LoggedEvent]) -> Iterator[LoggedEvent | int]:
    """Yield the events. Of many reports in a row, yield the first and last ones, and the number of the others."""
    for is_report, run in itertools.groupby(events, key=_is_report):
        reports = list(run)
        if is_report and len(reports) > 2 * _REPORTS:
            yield from reports[:_REPORTS]
            yield len(reports) - 2 * _REPORTS
            yield from reports[-_REPORTS:]
        else:
            yield from reports


def _is_report(event: LoggedEvent) -> bool:
    return event.kind == "tool:progress" and "attempt" not in event.data


def _list_phases(events: Sequence[LoggedEvent], until: float | None) -> list[Phase]:
    """Return the activities between the events, up to the call's end or `until`. Merge equal neighbours."""
    start, phases = events[0].at, list[Phase]()
    ends = [event.at for event in events[1:]] + ([] if until is None else [until])
    for event, end in zip(events, ends, strict=False):
        name = _phase(event)
        if name is None:
            break
        paused_until = min(event.at + _pause(event), end)
        for part, begin, over in (("paused", event.at, paused_until), (name, paused_until, end)):
            if phases and phases[-1].name == part:
                phases[-1] = phases[-1]._replace(end=over - start)
            elif part == name or over > begin:
                phases.append(Phase(part, begin - start, over - start))
    return phases


def _pause(event: LoggedEvent) -> float:
    """Return the seconds without activity after a failed attempt."""
    wait = event.data.get("wait") if event.kind == "tool:progress" else None
    return max(wait, 0.0) if isinstance(wait, int | float) else 0.0


def _phase(event: LoggedEvent) -> str | None:
    """Return the activity of a call after an event and its pause; `None` after the call's end."""
    if event.kind == "tool:decided":
        return {"ask": "asked", "deny": None}.get(str(event.data.get("kind")), "waited")
    names = {"tool:pre": "checked", "tool:started": "ran", "tool:progress": "ran", "tool:suspended": "suspended"}
    return names.get(event.kind)
