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
from ferrule.cli import logged
from ferrule.cli.bars import counted
from ferrule.cli.screen import screen
from ferrule.cli.text import one_line, short, told
from ferrule.cli.timeline import arguments
from ferrule.cli.usage import UsageError, choices
from ferrule.journal.reading import UNFINISHED, LoggedCall, LoggedEvent, Reader

_CALLS = 5
_VALUE_SHOWN = 400
_REASON = 300
_REPORTS = 20
_OUTPUT = 4000
_OUTPUT_LINES = 40
_BAR = 40
_SAID = {"ask": "asked", "allow": "allowed", "deny": "denied"}
_LEFT = {
    "running": "it is under way",
    "cut_off": "its process ended in between",
    "suspended": "it waits for an answer",
    "deferred": "it is done elsewhere, and its outcome is still to come",
}


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the call's id, and filters for several calls of one id."""
    logged.add_filters(parser)
    parser.add_argument("id", metavar="ID", help="the call's id, or how it begins")


def command(options: argparse.Namespace) -> int:
    """Draw the call, or print its record. If several calls have the id, do so for each of them."""
    reader = Reader(options.path)
    found = reader.newest(logged.filter_of(options, _id_meant(reader, options.id)))
    if not found:
        raise UsageError(f"no call of the id {options.id!r} fits the other options")
    if options.json:
        for call in reader.load_calls(found):
            print(logged.as_json(call))
        return 0
    console = screen()
    shown = found[-_CALLS:]
    if len(found) > 1:
        these = "" if len(shown) == len(found) else f"; these are the last {len(shown)}"
        narrower = "--session, --principal, --tool, --status, --since and --until say which"
        console.print(Text(f"{len(found):,} calls have this id{these}: {narrower}\n", style="yellow"), soft_wrap=True)
    for number, call in enumerate(reader.load_calls(shown), len(found) - len(shown) + 1):
        if number > len(found) - len(shown) + 1:
            console.print()
        _Drawing(console, call).draw(f" ({number} of {len(found)})" if len(found) > 1 else "")
    return 0


def _id_meant(reader: Reader, given: str) -> str:
    """Return the full id.

    Raises:
        UsageError: No call has the id, or several begin with it.
    """
    beginning = given.removesuffix("…")
    known = reader.ids(beginning)
    if given in known or beginning in known:
        return given if given in known else beginning
    if len(known) == 1:
        return known[0]
    if known:
        raise UsageError(f"several ids begin so; {choices('', known)}")
    raise UsageError(f"there is no call {given!r}: ferrule log shows the ids")


class _Phase(NamedTuple):
    """An activity of a call and its time span, in seconds since the call came."""

    name: str
    start: float
    end: float


class _Drawing:
    """One call on the terminal. Untrusted text is reduced to printable characters, and cut."""

    def __init__(self, console: Console, call: LoggedCall) -> None:
        self._console = console
        self._call = call
        self._now = time.time()

    def draw(self, which: str) -> None:
        """Draw all of it."""
        call = self._call
        mark, style = logged.sign(call.status, self._console.encoding)
        head = Text.assemble(
            (one_line(call.tool_name, _VALUE_SHOWN), "bold"), "  ", (f"{mark} {call.status}", style), which
        )
        self._print(head)
        self._facts()
        self._print(Text())
        for at, sign, colour, text in self._lines():
            self._line(at, sign, colour, text)
        self._phases()
        self._outcome()

    # -- facts --------------------------------------------------------------------------------------------------------

    def _facts(self) -> None:
        call, first = self._call, self._call.events[0]
        process = logged.mapping(call.process)
        facts = {
            "id": call.call_id,
            "principal": first.principal,
            "session": first.session,
            "parent": first.parent,
            "came": logged.when(call.began_at, exact=True),
            "took": logged.took(call, self._now),
            "process": f"{process['pid']} on {process['host']}" if process else None,
            "key": None if call.intent is None else call.intent.key,
        }
        for label, text in facts.items():
            if text:
                self._fact(label, one_line(text, _VALUE_SHOWN))
        arguments = call.input
        if not isinstance(arguments, dict):
            self._fact("arguments", told("" if arguments is None else arguments, _VALUE_SHOWN))
        for name, value in logged.mapping(arguments).items():
            self._fact(
                "argument", f"{told(name, _VALUE_SHOWN)} = {told(json.dumps(value, ensure_ascii=False), _VALUE_SHOWN)}"
            )
        for repair in call.result.get("repairs") or ():
            self._fact("repaired", told(repair, _VALUE_SHOWN))

    def _fact(self, label: str, text: str) -> None:
        self._behind(Text(f"  {label:<10}", style="dim"), text)

    def _behind(self, start: Text, text: str) -> None:
        """Print a text in as many lines as it needs. They all begin in one column."""
        for line in Text(self._writable(text)).wrap(self._console, max(self._console.width - start.cell_len, 20)):
            line.rstrip()
            self._print(start + line)
            start = Text(" " * start.cell_len)

    # -- history ------------------------------------------------------------------------------------------------------

    def _lines(self) -> Iterator[tuple[float, str, str, str]]:
        """Yield the time, a sign, its colour, and the text of each line."""
        before: LoggedEvent | None = None
        decided: Any = None
        came = judged = self._call.events[0].data.get("input")
        for event in _without_many(self._call.events):
            if isinstance(event, int):
                yield before.at if before else 0.0, "…", "dim", f"{event:,} more reports"
                continue
            sign, colour, text = self._told(event, before, decided)
            if event.kind == "tool:decided":
                text += _arguments_changed(judged, judged := event.data.get("input", came))
                decided = event.data
            yield event.at, sign, colour, text
            before = event
        if self._call.status in UNFINISHED:
            colour = "red" if self._call.status == "cut_off" else "yellow"
            yield self._until(), logged.SIGNS[self._call.status][0], colour, self._left()

    def _told(self, event: LoggedEvent, before: LoggedEvent | None, decided: Any) -> tuple[str, str, str]:
        data, kind = event.data, event.kind
        if kind == "tool:pre":
            return "→", "cyan", "came"
        if kind == "tool:decided":
            return "?", "yellow", _decision_said(data, decided)
        if kind == "tool:started":
            waited = 0.0 if before is None else event.at - before.at
            is_wait = before is not None and before.kind in ("tool:pre", "tool:decided") and waited >= 0.001
            return "▸", "cyan", f"started, after it had waited for {logged.span(waited)}" if is_wait else "started"
        if kind == "tool:progress":
            sign = "↻" if "attempt" in data else "…"
            return sign, "yellow" if "attempt" in data else "cyan", _reported(data)
        if kind == "tool:suspended":
            return "‖", "yellow", f"suspended: {told(data.get('error') or '', _REASON)}"
        status = told(data.get("status"), _REASON)
        sign, colour = logged.SIGNS.get(status, logged.FAILED)
        return sign, colour, status if data.get("error") is None else f"{status}: {told(data['error'], _REASON)}"

    def _left(self) -> str:
        """Return the text for a call that has not ended."""
        call = self._call
        text = _LEFT[call.status]
        if call.status == "cut_off":
            if call.intent is not None:  # the journal has one for each tool that may change something
                return f"{text}: its effect may have happened"
            began = any(event.kind == "tool:started" for event in call.events)
            return f"{text}: it had {'' if began else 'not '}begun"
        pending = logged.mapping(call.result.get("pending"))
        expires_at = pending.get("expires_at")
        return f"{text}, until {logged.when(expires_at)}" if isinstance(expires_at, int | float) else text

    def _until(self) -> float:
        """Return the time of an unfinished call's last line: now, or the time of its last event."""
        last = self._call.events[-1].at
        return last if self._call.status == "cut_off" else max(self._now, last)

    def _line(self, at: float, sign: str, colour: str, text: str) -> None:
        offset = f"+{at - self._call.began_at:.3f}s"
        start = Text(f"{offset:>12} ", style="dim").append(self._writable(sign), style=f"not dim {colour}").append(" ")
        self._behind(start, text)

    # -- durations ----------------------------------------------------------------------------------------------------

    def _phases(self) -> None:
        """Print bars for the activities of the call, over its whole time."""
        phases = _phases_of(self._call.events, None if self._call.ended_at else self._until())
        whole = max((phase.end for phase in phases), default=0.0)
        if whole <= 0 or len(phases) < 2:
            return
        self._print(Text())
        for phase in phases:
            start = min(round(phase.start / whole * _BAR), _BAR - 1)
            length = max(round((phase.end - phase.start) / whole * _BAR), 1)
            bar = " " * start + self._writable("━") * min(length, _BAR - start)
            label = Text(f"  {phase.name:<10}", style="dim")
            self._print(
                label.append(f"{bar:<{_BAR}}", "green").append(f"  {logged.span(phase.end - phase.start)}", "none")
            )

    # -- outcome ------------------------------------------------------------------------------------------------------

    def _outcome(self) -> None:
        result = self._call.result
        if self._call.status in UNFINISHED or not result:
            return
        executed, metadata = result.get("executed"), logged.mapping(result.get("metadata"))
        self._print(Text())
        self._fact("executed", "yes" if executed is True else "no" if executed is False else "not known")
        if self._call.is_replayed:
            self._fact("replayed", "this is what the call that had come before came to; nothing was run for this one")
        if metadata:
            self._fact("metadata", told(json.dumps(metadata, ensure_ascii=False), _VALUE_SHOWN))
        output = result.get("output")
        if output is not None:
            self._fact("output", "")
            for line in _output(output):
                self._print(Text(f"    {self._writable(line)}"))

    def _writable(self, text: str) -> str:
        return logged.writable(text, self._console.encoding)

    def _print(self, line: Text) -> None:
        line.rstrip()
        self._console.print(line, soft_wrap=True)


def _decision_said(data: Any, before: Any) -> str:
    """Return the decision as text, with its author.

    Args:
        before: The decision before it. The decision after an ask is its answer.
    """
    by, rule, reason = logged.answerer(data, before), data.get("rule"), data.get("reason")
    if logged.is_answer(data, before):
        rule = None
    said = _SAID.get(str(data.get("kind")), "decided")
    whose = f" by {told(by, _REASON)}" if by else ""
    why = f": {told(reason, _REASON)}" if reason else ""
    return f"{said}{whose}{why}{f' ({told(rule, _REASON)})' if rule else ''}"


def _arguments_changed(before: Any, after: Any) -> str:
    """Return text about the arguments that are shown otherwise than before. A filled-in default is not one of them."""
    old, new = logged.mapping(before), logged.mapping(after)
    shown = {name: arguments({name: value}) for name, value in old.items()}
    changed = {name: value for name, value in new.items() if name in old and arguments({name: value}) != shown[name]}
    gone = [name for name in old if name not in new]
    said = [*([arguments(changed)] if changed else []), *(f"without {name}" for name in gone)]
    return f"; with {told(', '.join(said), _VALUE_SHOWN)}" if said else ""


def _reported(data: Any) -> str:
    if "attempt" in data:
        wait = data.get("wait")
        pause = f" (the next in {logged.span(wait)})" if isinstance(wait, int | float) and wait else ""
        what = f"{told(data.get('status') or '', _REASON)}: {told(data.get('error') or '', _REASON)}"
        return f"attempt {told(data['attempt'], 20)} of {told(data.get('of'), 20)} came to {what}{pause}"
    if "done" in data:
        return f"{counted(data['done'], data.get('total'))} {told(data.get('message') or '', _REASON)}".rstrip()
    if "chunk" in data:
        chunk = data["chunk"]
        return told(chunk if isinstance(chunk, str) else json.dumps(chunk, ensure_ascii=False), _REASON)
    return told(json.dumps(data, ensure_ascii=False), _REASON)


def _without_many(events: Sequence[LoggedEvent]) -> Iterator[LoggedEvent | int]:
    """Yield the events. A long row of reports is reduced to its first and last ones, with the number of those
    between.
    """
    for is_report, run in itertools.groupby(events, key=_is_report):
        some = list(run)
        if is_report and len(some) > 2 * _REPORTS:
            yield from some[:_REPORTS]
            yield len(some) - 2 * _REPORTS
            yield from some[-_REPORTS:]
        else:
            yield from some


def _is_report(event: LoggedEvent) -> bool:
    return event.kind == "tool:progress" and "attempt" not in event.data


def _phases_of(events: Sequence[LoggedEvent], until: float | None) -> list[_Phase]:
    """Return the activities from each event to the next, up to the call's end or `until`. Equal neighbours are
    merged.
    """
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


def _output(output: object) -> list[str]:
    """Return the output in a few lines."""
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, indent=2)
    lines = printable(short(text, _OUTPUT)).replace("\t", "    ").split("\n")
    more = len(lines) - _OUTPUT_LINES
    return lines if more <= 0 else [*lines[:_OUTPUT_LINES], f"… {more:,} more lines"]
