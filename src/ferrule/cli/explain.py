"""`ferrule explain`: one call, with its whole history, drawn as a time line."""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from ferrule.approval import printable
from ferrule.cli.bars import format_progress
from ferrule.cli.event_lines import format_start, get_sign, to_encoding, wrap_after
from ferrule.cli.journal_calls import (
    add_filters,
    find_author,
    format_call_duration,
    format_duration,
    format_time,
    is_answer,
    make_filter,
    to_dict,
    to_json,
)
from ferrule.cli.screen import make_console
from ferrule.cli.text import format_value, shorten, to_line
from ferrule.cli.timeline import format_arguments
from ferrule.cli.usage import UsageError, suggest
from ferrule.journal.reading import UNFINISHED, LoggedCall, LoggedEvent, Reader
from ferrule.values.count import format_count

_CALLS = 5
_VALUE = 400
_REASON = 300
_REPORTS = 20
_OUTPUT = 4000
_OUTPUT_LINES = 40
_BAR = 40
_DECISIONS = {"ask": "asked", "allow": "allowed", "deny": "denied"}
_UNFINISHED = {
    "running": "it still runs",
    "cut_off": "its process ended before it did",
    "suspended": "it waits for an answer",
    "deferred": "it runs elsewhere",
}


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the call's id, and filters for several calls with one id."""
    add_filters(parser)
    parser.add_argument("id", metavar="ID", help="the call's id, or its first characters")


def command(options: argparse.Namespace) -> int:
    """Draw the call, or print its record. If several calls have the id, do so for each of them."""
    reader = Reader(options.path)
    found = reader.newest(make_filter(options, _resolve_id(reader, options.id)))
    if not found:
        raise UsageError(f"no call with the id {options.id!r} matches the other options")
    if options.json:
        for call in reader.load_calls(found):
            print(to_json(call))
        return 0
    console = make_console()
    last = found[-_CALLS:]
    if len(found) > 1:
        text = (
            f"{len(found):,} calls have this id{'' if len(last) == len(found) else f'; these are the last {len(last)}'}"
        )
        hint = "choose with --session, --principal, --tool, --status, --since and --until"
        console.print(Text(f"{text}: {hint}\n", style="yellow"), soft_wrap=True)
    first = len(found) - len(last) + 1
    for number, call in enumerate(reader.load_calls(last), first):
        if number > first:
            console.print()
        _Drawing(console, call).draw(f" ({number} of {len(found)})" if len(found) > 1 else "")
    return 0


def _resolve_id(reader: Reader, text: str) -> str:
    """Return the full id.

    Raises:
        UsageError: No call has the id, or several ids begin with the text.
    """
    beginning = text.removesuffix("…")
    ids = reader.ids(beginning)
    if text in ids or beginning in ids:
        return text if text in ids else beginning
    if len(ids) == 1:
        return ids[0]
    if ids:
        raise UsageError(f"several ids begin with {beginning!r}; {suggest('', ids)}")
    raise UsageError(f"there is no call {text!r}; ferrule log lists the ids")


class _Phase(NamedTuple):
    """An activity of a call and its time span, in seconds since the call arrived."""

    name: str
    start: float
    end: float


class _Drawing:
    """One call on the terminal. Untrusted text is reduced to printable characters, and cut."""

    def __init__(self, console: Console, call: LoggedCall) -> None:
        self._console = console
        self._call = call
        self._now = time.time()

    def draw(self, number: str) -> None:
        """Draw the whole call, with its number among several."""
        call = self._call
        mark, style = get_sign(call.status)
        status = f"{to_encoding(mark, self._console)} {call.status}"
        self._print(Text.assemble((to_line(call.tool_name, _VALUE), "bold"), "  ", (status, style), number))
        self._print_facts()
        self._print(Text())
        for at, sign, colour, text in self._list_history():
            start = format_start(at - call.began_at, 12, sign, colour, self._console)
            self._print_wrapped(start, text)
        self._print_phases()
        self._print_outcome()

    # -- facts --------------------------------------------------------------------------------------------------------

    def _print_facts(self) -> None:
        call, first = self._call, self._call.events[0]
        process = to_dict(call.process)
        facts = {
            "id": call.call_id,
            "principal": first.principal,
            "session": first.session,
            "parent": first.parent,
            "arrived": format_time(call.began_at, exact=True),
            "took": format_call_duration(call, self._now),
            "process": f"{process['pid']} on {process['host']}" if process else None,
            "key": None if call.intent is None else call.intent.key,
        }
        for label, text in facts.items():
            if text:
                self._print_fact(label, to_line(text, _VALUE))
        arguments = call.input
        if not isinstance(arguments, dict):
            self._print_fact("arguments", format_value("" if arguments is None else arguments, _VALUE))
        for name, value in to_dict(arguments).items():
            self._print_fact(
                "argument",
                f"{format_value(name, _VALUE)} = {format_value(_to_json(value), _VALUE)}",
            )
        for repair in call.result.get("repairs") or ():
            self._print_fact("repaired", format_value(repair, _VALUE))

    def _print_fact(self, label: str, text: str) -> None:
        self._print_wrapped(Text(f"  {label:<10}", style="dim"), text)

    def _print_wrapped(self, start: Text, text: str) -> None:
        for line in wrap_after(start, Text(to_encoding(text, self._console)), self._console):
            self._print(line)

    # -- history ------------------------------------------------------------------------------------------------------

    def _list_history(self) -> Iterator[tuple[float, str, str, str]]:
        """Yield the time, a sign, its colour, and the text of each line."""
        before: LoggedEvent | None = None
        decision: Any = None
        received = judged = self._call.events[0].data.get("input")
        for event in _shorten_reports(self._call.events):
            if isinstance(event, int):
                yield before.at if before else 0.0, "…", "dim", f"{event:,} more reports"
                continue
            sign, text = _describe_event(event, before, decision)
            if event.kind == "tool:decided":
                text += _format_changes(judged, judged := event.data.get("input", received))
                decision = event.data
            yield event.at, *get_sign(sign), text
            before = event
        if self._call.status in UNFINISHED:
            colour = "red" if self._call.status == "cut_off" else "yellow"
            yield self._end_time(), get_sign(self._call.status)[0], colour, self._describe_unfinished()

    def _describe_unfinished(self) -> str:
        call = self._call
        text = _UNFINISHED[call.status]
        if call.status == "cut_off":
            if call.intent is not None:  # the journal has one for each tool that may change something
                return f"{text}: its effect may have happened"
            has_started = any(event.kind == "tool:started" for event in call.events)
            return f"{text}: its handler had {'' if has_started else 'not '}started"
        expires_at = to_dict(call.result.get("pending")).get("expires_at")
        return f"{text}, until {format_time(expires_at)}" if isinstance(expires_at, int | float) else text

    def _end_time(self) -> float:
        """Return the time of an unfinished call's last line: now, or the time of its last event."""
        last = self._call.events[-1].at
        return last if self._call.status == "cut_off" else max(self._now, last)

    # -- durations ----------------------------------------------------------------------------------------------------

    def _print_phases(self) -> None:
        """Print bars for the activities of the call, over its whole time."""
        phases = _list_phases(self._call.events, None if self._call.ended_at else self._end_time())
        whole = max((phase.end for phase in phases), default=0.0)
        if whole <= 0 or len(phases) < 2:
            return
        self._print(Text())
        for phase in phases:
            start = min(round(phase.start / whole * _BAR), _BAR - 1)
            length = max(round((phase.end - phase.start) / whole * _BAR), 1)
            bar = " " * start + to_encoding("━", self._console) * min(length, _BAR - start)
            line = Text(f"  {phase.name:<10}", style="dim").append(f"{bar:<{_BAR}}", "green")
            self._print(line.append(f"  {format_duration(phase.end - phase.start)}", "none"))

    # -- outcome ------------------------------------------------------------------------------------------------------

    def _print_outcome(self) -> None:
        result = self._call.result
        if self._call.status in UNFINISHED or not result:
            return
        executed, metadata, output = result.get("executed"), to_dict(result.get("metadata")), result.get("output")
        self._print(Text())
        self._print_fact("executed", "yes" if executed is True else "no" if executed is False else "unknown")
        if self._call.is_replayed:
            self._print_fact("replayed", "the result of an earlier run of this call; nothing ran again")
        if metadata:
            self._print_fact("metadata", format_value(_to_json(metadata), _VALUE))
        if output is not None:
            self._print_fact("output", "")
            for line in _output_lines(output):
                self._print(Text(f"    {to_encoding(line, self._console)}"))

    def _print(self, line: Text) -> None:
        line.rstrip()
        self._console.print(line, soft_wrap=True)


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
    error = "" if data.get("error") is None else f": {format_value(data['error'], _REASON)}"
    if kind == "tool:suspended":
        return kind, f"suspended{error}"
    status = format_value(data.get("status"), _REASON)
    return status, status + error


def _format_decision(data: Any, before: Any) -> str:
    """Return the decision as text, with its author. The decision after an ask is its answer.

    Args:
        before: The decision before it.
    """
    author, rule, reason = find_author(data, before), data.get("rule"), data.get("reason")
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
    return f"; with {format_value(', '.join(parts), _VALUE)}" if parts else ""


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
    return format_value(chunk if isinstance(chunk, str) else _to_json(chunk), _REASON)


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


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


def _list_phases(events: Sequence[LoggedEvent], until: float | None) -> list[_Phase]:
    """Return the activities between the events, up to the call's end or `until`. Merge equal neighbours."""
    start, phases = events[0].at, list[_Phase]()
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
                phases.append(_Phase(part, begin - start, over - start))
    return phases


def _pause(event: LoggedEvent) -> float:
    """Return the seconds without activity after a failed attempt."""
    wait = event.data.get("wait") if event.kind == "tool:progress" else None
    return max(wait, 0.0) if isinstance(wait, int | float) else 0.0


def _phase(event: LoggedEvent) -> str | None:
    """Return the activity of a call after an event and its pause; `None` after the call's end."""
    if event.kind == "tool:decided":
        return "asked" if event.data.get("kind") == "ask" else "waited"
    names = {"tool:pre": "judged", "tool:started": "ran", "tool:progress": "ran", "tool:suspended": "suspended"}
    return names.get(event.kind)


def _output_lines(output: object) -> list[str]:
    """Return the output in a few lines."""
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, indent=2)
    lines = printable(shorten(text, _OUTPUT)).replace("\t", "    ").split("\n")
    more = len(lines) - _OUTPUT_LINES
    return lines if more <= 0 else [*lines[:_OUTPUT_LINES], f"… {format_count(more, 'more line')}"]
