"""`ferrule explain`: one call, with its whole history, drawn as a time line."""

from __future__ import annotations

import argparse
import json
import time

from rich.console import Console
from rich.text import Text

from ferrule.approval import printable
from ferrule.cli.event_lines import format_start, get_sign, to_encoding, wrap_after
from ferrule.cli.history import VALUE_LENGTH, list_history, list_phases
from ferrule.cli.journal_calls import (
    add_filters,
    format_call_duration,
    format_duration,
    format_time,
    make_filter,
    to_dict,
    to_json,
)
from ferrule.cli.screen import make_console
from ferrule.cli.text import format_json, format_value, shorten, to_line
from ferrule.cli.usage import UsageError, suggest
from ferrule.journal.reading import UNFINISHED, LoggedCall, Reader
from ferrule.values.count import format_count

_CALLS = 5
_OUTPUT = 4000
_OUTPUT_LINES = 40
_BAR = 40


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
        self._print(Text.assemble((to_line(call.tool_name, VALUE_LENGTH), "bold"), "  ", (status, style), number))
        self._print_facts()
        self._print(Text())
        for moment in list_history(call, self._now):
            start = format_start(moment.at - call.began_at, 12, *get_sign(moment.key), self._console)
            self._print_wrapped(start, moment.text)
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
                self._print_fact(label, to_line(text, VALUE_LENGTH))
        arguments = call.input
        if not isinstance(arguments, dict):
            self._print_fact("arguments", format_value("" if arguments is None else arguments, VALUE_LENGTH))
        for name, value in to_dict(arguments).items():
            self._print_fact(
                "argument",
                f"{format_value(name, VALUE_LENGTH)} = {format_value(format_json(value), VALUE_LENGTH)}",
            )
        for repair in call.result.get("repairs") or ():
            self._print_fact("repaired", format_value(repair, VALUE_LENGTH))

    def _print_fact(self, label: str, text: str) -> None:
        self._print_wrapped(Text(f"  {label:<10}", style="dim"), text)

    def _print_wrapped(self, start: Text, text: str) -> None:
        for line in wrap_after(start, Text(to_encoding(text, self._console)), self._console):
            self._print(line)

    # -- durations ----------------------------------------------------------------------------------------------------

    def _print_phases(self) -> None:
        """Print bars for the activities of the call, over its whole time."""
        phases = list_phases(self._call, self._now)
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
            self._print_fact("metadata", format_value(format_json(metadata), VALUE_LENGTH))
        if output is not None:
            self._print_fact("output", "")
            for line in _output_lines(output):
                self._print(Text(f"    {to_encoding(line, self._console)}"))

    def _print(self, line: Text) -> None:
        line.rstrip()
        self._console.print(line, soft_wrap=True)


def _output_lines(output: object) -> list[str]:
    """Return the output in a few lines."""
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, indent=2)
    lines = printable(shorten(text, _OUTPUT)).replace("\t", "    ").split("\n")
    more = len(lines) - _OUTPUT_LINES
    return lines if more <= 0 else [*lines[:_OUTPUT_LINES], f"… {format_count(more, 'more line')}"]
