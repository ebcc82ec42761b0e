"""Chooses and formats calls of a journal, for `ferrule log` and `ferrule explain`."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import time
from datetime import datetime
from typing import Any

from ferrule.approval import printable
from ferrule.cli.journals import find_journal
from ferrule.cli.text import format_arguments, format_value, to_line
from ferrule.cli.usage import UsageError, check_known
from ferrule.journal.reading import ANY_UNFINISHED, STATUSES, UNFINISHED, Filter, LoggedCall
from ferrule.values.count import format_count

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_NAME_LENGTH = 200
_RULE = 60


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose calls."""
    parser.add_argument(
        "path", type=_find_journal, metavar="FILE", help="the journal, as in --journal FILE, or a copy of it"
    )
    group = parser.add_argument_group("which calls")
    group.add_argument("--tool", metavar="GLOB", help="tools with matching names, such as 'refund*'")
    group.add_argument("--principal", metavar="NAME", help="calls of this principal")
    group.add_argument("--session", metavar="NAME", help="calls of this session")
    group.add_argument(
        "--status",
        action="append",
        metavar="STATUS",
        help=f"calls with this status ({', '.join(STATUSES)}), or {ANY_UNFINISHED}; may be repeated. unknown includes "
        "cut_off, whose effect may have happened",
    )
    when = "an age such as 90s, 15m, 2h, 7d or 2w, or a time such as 2026-11-23 or 2026-11-23T10:00"
    group.add_argument("--since", metavar="WHEN", help=f"calls with an event then or later: {when}")
    group.add_argument("--until", metavar="WHEN", help="calls that arrived then or before")
    parser.add_argument("--json", action="store_true", help="print the whole record of each call as a line of JSON")


def _find_journal(path: str) -> str:
    """Return the journal to read, or the path itself if there is none."""
    file = find_journal(path)
    return file if os.path.lexists(file) else path


def make_filter(options: argparse.Namespace, call_id: str | None = None) -> Filter:
    """Return the filter that the options describe.

    Raises:
        UsageError: A status or a time is unknown.
    """
    check_known("status", options.status or (), [*STATUSES, ANY_UNFINISHED], "--status")
    return Filter(
        call_id=call_id,
        tool=options.tool,
        principal=options.principal,
        session=options.session,
        status=options.status or None,
        since=None if options.since is None else parse_time("--since", options.since),
        until=None if options.until is None else parse_time("--until", options.until),
        every=getattr(options, "every", True),
    )


def parse_age(option: str, text: str) -> float:
    """Return the seconds of `90s`, `15m`, `2h`, `7d` or `2w`.

    Raises:
        UsageError: The text has another form.
    """
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw])", text, re.ASCII)
    if found is None:
        raise UsageError(f"{option}: {text!r} is not an age: write a number and s, m, h, d or w, such as 90d")
    return float(found[1]) * SECONDS[found[2]]


def parse_time(option: str, text: str) -> float:
    """Return seconds since the epoch: an age ago, or at a time. A time without a zone is in this machine's zone.

    Raises:
        UsageError: The text has another form.
    """
    if re.fullmatch(r"[\d.]+[a-z]", text, re.ASCII):
        return time.time() - parse_age(option, text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"{option}: {text!r} is not a time: write an age such as 2h, or 2026-11-23, or 2026-11-23T10:00"
        ) from None


def to_json(call: LoggedCall) -> str:
    """Return the record of a call in a line, in ASCII: nothing in it affects a terminal."""
    return json.dumps(call.record())


def format_time(at: float, *, exact: bool = False, today: datetime | None = None) -> str:
    """Return a time in this machine's zone; without the day if it is `today`."""
    try:
        moment = datetime.fromtimestamp(at).astimezone()
    except (ValueError, OverflowError, OSError):
        return format_value(at, _NAME_LENGTH)
    if exact:
        return moment.isoformat(" ", "milliseconds")[:23]
    text = moment.isoformat(" ", "seconds")[:19]
    return text[11:] if today is not None and moment.date() == today.date() else text


def format_duration(seconds: float) -> str:
    """Return a duration as text, in two units at most."""
    if not math.isfinite(seconds):
        return "?"
    milliseconds = max(seconds, 0.0) * 1000
    if milliseconds < 999.5:
        return f"{milliseconds:.{0 if milliseconds >= 9.95 else 1}f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, below, name, name_below in ((86_400, 3600, "d", "h"), (3600, 60, "h", "min"), (60, 1, "min", "s")):
        if whole >= unit:
            return f"{whole // unit:,} {name} {whole % unit // below} {name_below}"
    return f"{whole} s"


def format_call_duration(call: LoggedCall, now: float) -> str:
    """Return the time from the call's arrival to its end, or until now."""
    if call.ended_at is not None:
        return format_duration(call.ended_at - call.began_at)
    runs = call.status in UNFINISHED and call.status != "cut_off"
    return f"{format_duration(now - call.began_at)} …" if runs else ""


def format_owner(call: LoggedCall) -> str:
    """Return the principal and the session of the call."""
    first = call.events[0]
    return "/".join(to_line(name, _NAME_LENGTH) for name in (first.principal or "", first.session or "")).strip("/")


def is_answer(decision: Any, before: Any) -> bool:
    """Return whether a decision is the answer of a person. It names the rule that asked, unless a grant answered."""
    return bool(before) and before.get("kind") == "ask" and decision.get("rule") == before.get("rule")


def find_author(decision: Any, before: Any) -> str | None:
    """Return the author of a decision, if it names one or a person answered; `before` is the decision before it."""
    is_unnamed = is_answer(decision, before) and decision.get("kind") == "allow"
    return decision.get("by") or ("an unnamed person" if is_unnamed else None)


def format_approval(call: LoggedCall) -> str:
    """Return the person who answered, or the last rule; with the numbers of attempts and replays."""
    decisions = [decision.data for decision in call.decisions]
    pairs = zip(decisions[::-1], [*decisions[-2::-1], None], strict=False)
    authors = (find_author(one, before) for one, before in pairs if one.get("kind") == decisions[-1].get("kind"))
    person = call.result.get("answered_by") or next(filter(None, authors), None)
    rule = next((decision["rule"] for decision in reversed(decisions) if decision.get("rule")), None)
    if (rule or "").startswith("grant "):  # nobody asked the author of the grant this time
        person = None
    parts = [format_value(person or rule, _RULE)] if person or rule else []
    if call.attempts > 1:
        parts.append(f"{call.attempts} attempts")
    if call.is_replayed:
        parts.append("replayed")
    elif call.replays:
        parts.append(format_count(call.replays, "replay"))
    return ", ".join(parts)


def format_input(call: LoggedCall) -> str:
    """Return its arguments."""
    return printable("" if call.input is None else " ".join(format_arguments(call.input).split()))


def to_dict(value: Any) -> dict[str, Any]:
    """Return a value of the file if it is an object, else an empty dict: anybody may have written the file."""
    return value if isinstance(value, dict) else {}
