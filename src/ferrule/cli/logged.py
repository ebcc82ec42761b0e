"""The common part of `ferrule log` and `ferrule explain`: the choice of calls, and a call in a few words."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import time
from datetime import datetime
from typing import Any, get_args

from ferrule import Status
from ferrule.approval import printable
from ferrule.cli.journals import file_of
from ferrule.cli.text import one_line, told
from ferrule.cli.timeline import arguments
from ferrule.cli.usage import UsageError, choices
from ferrule.journal.reading import NOT_STARTED, UNFINISHED, Filter, LoggedCall

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
STATUSES = sorted({*get_args(Status), *UNFINISHED, NOT_STARTED})
ANY_UNFINISHED = "unfinished"
SIGNS = {
    "ok": ("✓", "green"),
    "invalid": ("!", "yellow"),
    "not_found": ("!", "yellow"),
    "denied": ("⊘", "magenta"),
    "running": ("▸", "cyan"),
    "suspended": ("‖", "yellow"),
    "deferred": ("‖", "yellow"),
    "cut_off": ("?", "red"),
    NOT_STARTED: ("!", "yellow"),
    "unknown": ("?", "red"),
}
FAILED = ("✗", "red")
_ASCII = str.maketrans("→…↻‖✓⊘✗▸━", ">~^=+-x>#")
_NAME_LENGTH = 200
_RULE = 60


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose calls."""
    parser.add_argument(
        "path", type=_existing_file, metavar="FILE", help="the journal, as --journal names it, or a copy of it"
    )
    parser.add_argument("--tool", metavar="GLOB", help="of the tools whose names fit, such as 'refund*'")
    parser.add_argument("--principal", metavar="NAME", help="made on whose behalf")
    parser.add_argument("--session", metavar="NAME", help="of this conversation")
    parser.add_argument(
        "--status",
        action="append",
        metavar="STATUS",
        help=f"what it came to ({', '.join(STATUSES)}), or {ANY_UNFINISHED}; unknown finds cut_off too, whose effect "
        "may have happened; may be repeated",
    )
    when = "an age such as 90s, 15m, 2h, 7d, 2w, or a time such as 2026-11-23 or 2026-11-23T10:00"
    parser.add_argument("--since", metavar="WHEN", help=f"something happened to it then or later: {when}")
    parser.add_argument("--until", metavar="WHEN", help="it came then or before")
    parser.add_argument("--json", action="store_true", help="print the whole record of each call as a line of JSON")


def _existing_file(path: str) -> str:
    """Return the journal to read; the path as it is written if there is none."""
    file = file_of(path)
    return file if os.path.lexists(file) else path


def filter_of(options: argparse.Namespace, call_id: str | None = None) -> Filter:
    """Return the filter that the options describe.

    Raises:
        UsageError: A status or a time is unknown.
    """
    wrong = [one for one in options.status or () if one not in (*STATUSES, ANY_UNFINISHED)]
    if wrong:
        raise UsageError(f"--status: there is no {wrong[0]!r}; {choices(wrong[0], [*STATUSES, ANY_UNFINISHED])}")
    statuses = {*(options.status or ())}
    if ANY_UNFINISHED in statuses:
        statuses |= UNFINISHED
    if "unknown" in statuses:
        statuses.add("cut_off")
    return Filter(
        call_id=call_id,
        tool=options.tool,
        principal=options.principal,
        session=options.session,
        status=statuses or None,
        since=None if options.since is None else moment("--since", options.since),
        until=None if options.until is None else moment("--until", options.until),
        every=getattr(options, "every", True),
    )


def age(option: str, text: str) -> float:
    """Return the seconds of `90s`, `15m`, `2h`, `7d` or `2w`.

    Raises:
        UsageError: It is anything else.
    """
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw])", text, re.ASCII)
    if found is None:
        raise UsageError(f"{option}: {text!r} is no age: write a number and s, m, h, d or w, such as 90d")
    return float(found[1]) * SECONDS[found[2]]


def moment(option: str, text: str) -> float:
    """Return seconds since the epoch: an age ago, or at a time. A time without a zone is in this machine's zone.

    Raises:
        UsageError: It is anything else.
    """
    if re.fullmatch(r"[\d.]+[a-z]", text, re.ASCII):
        return time.time() - age(option, text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"{option}: {text!r} is no time: write an age such as 2h, or a time such as 2026-11-23 or 2026-11-23T10:00"
        ) from None


def as_json(call: LoggedCall) -> str:
    """Return the record of a call in a line, in ASCII: nothing in it affects a terminal."""
    return json.dumps(call.record())


def when(at: float, *, exact: bool = False, today: datetime | None = None) -> str:
    """Return a time in this machine's zone; without the day if it is `today`."""
    try:
        moment = datetime.fromtimestamp(at).astimezone()
    except (ValueError, OverflowError, OSError):
        return told(at, _NAME_LENGTH)
    if exact:
        return moment.isoformat(" ", "milliseconds")[:23]
    text = moment.isoformat(" ", "seconds")[:19]
    return text[11:] if today is not None and moment.date() == today.date() else text


def span(seconds: float) -> str:
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


def took(call: LoggedCall, now: float) -> str:
    """Return the time from the call's arrival to its end, or until now."""
    if call.ended_at is not None:
        return span(call.ended_at - call.began_at)
    return "" if call.status not in UNFINISHED or call.status == "cut_off" else f"{span(now - call.began_at)} …"


def sign(status: str, encoding: str) -> tuple[str, str]:
    """Return the sign of a status and its style."""
    mark, style = SIGNS.get(status, FAILED)
    return writable(mark, encoding), style


def writable(text: str, encoding: str) -> str:
    """Return the text with signs that the encoding can write."""
    return text if encoding.lower().startswith("utf") else text.translate(_ASCII)


def whose(call: LoggedCall) -> str:
    """Return the principal and the session of the call."""
    first = call.events[0]
    return "/".join(one_line(name, _NAME_LENGTH) for name in (first.principal or "", first.session or "")).strip("/")


def is_answer(decision: Any, before: Any) -> bool:
    """Return whether a decision is the answer of an asked person. It has the rule that asked, unless a grant
    answered.
    """
    return bool(before) and before.get("kind") == "ask" and decision.get("rule") == before.get("rule")


def answerer(decision: Any, before: Any) -> str | None:
    """Return the author of a decision, if it names one or was an approver's; `before` is the decision before it."""
    is_unnamed = is_answer(decision, before) and decision.get("kind") == "allow"
    return decision.get("by") or ("somebody unnamed" if is_unnamed else None)


def allowed_by(call: LoggedCall) -> str:
    """Return the person who answered, or the last rule; with the numbers of attempts and replays."""
    said = [decision.data for decision in call.decisions]
    answers = map(answerer, said[::-1], [*said[-2::-1], None])
    person = call.result.get("approved_by") or next(filter(None, answers), None)
    rule = next((one["rule"] for one in reversed(said) if one.get("rule")), None)
    if (rule or "").startswith("grant "):  # the author of the grant was not asked now
        person = None
    again = [f"{call.attempts} attempts"] if call.attempts > 1 else []
    if call.is_replayed:
        again.append("replayed")
    elif call.replays:
        again.append(f"{call.replays} {'replay' if call.replays == 1 else 'replays'}")
    return ", ".join([*([told(person or rule, _RULE)] if person or rule else []), *again])


def in_a_line(call: LoggedCall) -> str:
    """Return its arguments."""
    return printable("" if call.input is None else " ".join(arguments(call.input).split()))


def mapping(value: Any) -> dict[str, Any]:
    """Return a value of a file that anybody may have written if it is an object, else an empty dict."""
    return value if isinstance(value, dict) else {}
