"""One call as a drawing: its steps, its moments, its phases and its result. A run and a journaled call look alike."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from ferrule.cli.history import describe_unfinished, list_history, list_phases
from ferrule.cli.journal_calls import format_call_duration, format_duration, format_time, to_dict
from ferrule.journal.reading import NOT_STARTED, UNFINISHED, LoggedCall
from ferrule.web.shown import Part, show_value

State: TypeAlias = Literal["done", "failed", "current", "waiting", "skipped"]
TONES: Final = {
    "ok": "good",
    "allow": "good",
    "running": "live",
    "asked": "wait",
    "suspended": "wait",
    "deferred": "wait",
    "ask": "wait",
    "invalid": "warn",
    "not_found": "warn",
    "limited": "warn",
    NOT_STARTED: "warn",
    "denied": "stop",
    "deny": "stop",
    "tool:pre": "plain",
    "tool:decided": "wait",
    "tool:started": "live",
    "tool:progress": "plain",
    "tool:suspended": "wait",
    "attempt": "warn",
    "more": "plain",
}
"""The tone of a status, a decision or a moment. Everything else is `bad`."""
_MOST_MOMENTS = 400


def tone(key: str) -> str:
    """Return the tone of a status, a decision or a moment: the class that colours it."""
    return TONES.get(key, "bad")


class Step(NamedTuple):
    """One step of the path of a call, with what is known about it."""

    name: str
    state: State
    text: str


class Bar(NamedTuple):
    """A phase as a bar: percentages of the whole time, and the duration."""

    name: str
    left: str
    width: str
    duration: str


class Line(NamedTuple):
    """A moment: the seconds since the arrival, its tone and its text."""

    offset: str
    tone: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Everything that a page shows about one call."""

    status: str
    unfinished: str
    steps: tuple[Step, ...]
    lines: tuple[Line, ...]
    bars: tuple[Bar, ...]
    facts: tuple[tuple[str, str], ...]
    arguments: tuple[Part, ...]
    repairs: tuple[str, ...]
    error: str
    output: tuple[Part, ...]
    metadata: tuple[Part, ...]


def draw_call(call: LoggedCall) -> Drawing:
    """Return the drawing of a call as it is now."""
    now, unfinished = time.time(), ""
    if call.status in UNFINISHED:
        text = describe_unfinished(call)
        unfinished = f"{text[:1].upper()}{text[1:]}."
    result = call.result if call.status not in UNFINISHED else {}
    metadata, output = to_dict(result.get("metadata")), result.get("output")
    arguments = {} if call.input is None else call.input
    return Drawing(
        status=call.status,
        unfinished=unfinished,
        steps=tuple(list_steps(call)),
        lines=_draw_lines(call, now),
        bars=_draw_bars(call, now),
        facts=tuple(_list_facts(call, now)),
        arguments=tuple(show_value(arguments)),
        repairs=tuple(map(str, result.get("repairs") or ())),
        error=str(result.get("error") or ""),
        output=() if output is None else tuple(show_value(output)),
        metadata=tuple(show_value(metadata)) if metadata else (),
    )


def _draw_lines(call: LoggedCall, now: float) -> tuple[Line, ...]:
    moments = list(list_history(call, now))
    return tuple(
        Line(f"+{moment.at - call.began_at:.3f} s", tone(moment.key), moment.text) for moment in moments[:_MOST_MOMENTS]
    )


def _draw_bars(call: LoggedCall, now: float) -> tuple[Bar, ...]:
    phases = list_phases(call, now)
    whole = max((phase.end for phase in phases), default=0.0)
    if whole <= 0:
        return ()
    return tuple(
        Bar(
            phase.name,
            f"{min(phase.start / whole, 0.99) * 100:.2f}%",
            f"{max((phase.end - phase.start) / whole, 0.01) * 100:.2f}%",
            format_duration(phase.end - phase.start),
        )
        for phase in phases
    )


def _list_facts(call: LoggedCall, now: float) -> list[tuple[str, str]]:
    process, executed = to_dict(call.process), call.executed
    ended = call.status not in UNFINISHED
    facts: dict[str, str | None] = {
        "Principal": call.principal,
        "Session": call.session,
        "Arrived": format_time(call.began_at, exact=True),
        "Took": format_call_duration(call, now),
        "Ran": None if not ended else "yes" if executed is True else "no" if executed is False else "nobody knows",
        "Answered by": call.result.get("answered_by"),
        "Replayed": "the result of an earlier run; nothing ran again" if call.is_replayed else None,
        "Attempts": str(call.attempts) if call.attempts > 1 else None,
        "Replays": str(call.replays) if call.replays else None,
        "Call id": call.call_id,
        "Made by call": call.parent,
        "Process": f"{process['pid']} on {process['host']}" if process else None,
        "Key": None if call.intent is None else call.intent.key,
    }
    return [(label, str(text)) for label, text in facts.items() if text]


def list_steps(call: LoggedCall) -> list[Step]:
    """Return the steps of the path of a call, each with its state."""
    kinds = [event.kind for event in call.events]
    decision: Mapping[str, Any] = call.decisions[-1].data if call.decisions else {}
    started = "tool:started" in kinds
    status, ended = call.status, call.status not in UNFINISHED
    repairs = call.result.get("repairs") or ()
    attempts = sum("attempt" in event.data for event in call.events if event.kind == "tool:progress")
    reached: list[tuple[str, bool, Sequence[str], str]] = [
        ("received", True, ("not_found",), ""),
        ("validated", bool(call.decisions) or started, ("invalid",), f"{len(repairs)} repaired" if repairs else ""),
        ("authorized", started or decision.get("kind") == "allow", ("denied",), _describe_decision(decision)),
        ("scheduled", started, ("limited",), ""),
        ("ran", ended and call.executed is not False, ("failed", "timeout", "cancelled", "unknown", "cut_off"), ""),
        ("ended", ended, (), f"{attempts} failed attempts" if attempts else ""),
    ]
    steps: list[Step] = []
    for name, done, failures, text in reached:
        over = any(step.state in ("failed", "current", "waiting") for step in steps)
        if over:
            state: State = "done" if name == "ended" and ended else "skipped"
        elif status in failures and (status != "invalid" or not started):
            state = "failed"
        elif done or (ended and status == "ok"):
            state = "done"
        elif ended:
            state = "skipped"
        else:
            state = "waiting" if status in ("suspended", "deferred") or decision.get("kind") == "ask" else "current"
        label = {"failed": status.replace("_", " "), "waiting": "waiting"}.get(state, name)
        steps.append(Step(label, state, text if state != "skipped" else ""))
    return steps


def _describe_decision(decision: Mapping[str, Any]) -> str:
    """Return who or what decided."""
    if decision.get("kind") == "ask":
        return f"asks: {decision.get('rule') or decision.get('reason') or ''}"
    return str(decision.get("by") or decision.get("rule") or "")
