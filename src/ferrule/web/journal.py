"""The view of the journal: its calls by pages, one call, and two calls side by side."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from ferrule.cli.journal_calls import (
    format_approval,
    format_call_duration,
    format_input,
    parse_time,
)
from ferrule.cli.usage import UsageError
from ferrule.errors import JournalError
from ferrule.journal.reading import ANY_UNFINISHED, STATUSES, Filter, LoggedCall
from ferrule.values.frozen import thaw
from ferrule.web.checks import Refused
from ferrule.web.drawing import draw_call
from ferrule.web.shown import compare_values
from ferrule.web.state import Visit, parse_place

PAGE: Final = 50
"""The number of calls on one page."""
_FILTERS: Final = ("tool", "status", "principal", "session", "since", "until")


class Row(NamedTuple):
    """One call in the list."""

    seq: int
    call: LoggedCall
    took: str
    approval: str
    arguments: str


class Page(NamedTuple):
    """One page of the list.

    Attributes:
        rows: The calls, the newest first.
        next: The place before which the next page begins, or None.
        missing: The number of events that the journal lost.
    """

    rows: list[Row]
    next: int | None
    missing: int


def _read_filter(visit: Visit) -> Filter:
    """Return the filter of the address.

    Raises:
        UsageError: A time or a status is not one.
    """
    given = {name: visit.get(name).strip() or None for name in _FILTERS}
    status = given["status"]
    if status not in (None, ANY_UNFINISHED, *STATUSES):
        raise UsageError(f"there is no status {status!r}")
    return Filter(
        tool=given["tool"],
        principal=given["principal"],
        session=given["session"],
        status=None if status is None else {status},
        since=None if given["since"] is None else parse_time("since", given["since"]),
        until=None if given["until"] is None else parse_time("until", given["until"]),
    )


def _read_page(visit: Visit, wanted: Filter, before: int | None) -> Page:
    reader, now = visit.reader, time.time()
    found = reader.newest(wanted, PAGE + 1, before=before)
    shown = found[-PAGE:]
    rows = [
        Row(call.events[0].seq, call, format_call_duration(call, now), format_approval(call), format_input(call))
        for call in reader.load_calls(shown)
    ]
    return Page(rows[::-1], shown[0].place if len(found) > PAGE else None, reader.count_missing(wanted.since))


async def show_calls(visit: Visit) -> Response:
    """List the calls of the journal."""
    filters = {name: visit.get(name) for name in _FILTERS}
    values: dict[str, Any] = {
        "filters": filters,
        "statuses": [ANY_UNFINISHED, *STATUSES],
        "problem": "",
        "page": None,
    }
    before = visit.get_place("before")
    values["before"] = before
    if visit.inspector.reader is not None:
        try:
            values["page"] = await asyncio.to_thread(_read_page, visit, _read_filter(visit), before)
        except (UsageError, JournalError) as error:
            values["problem"] = str(error)
    return await visit.render("calls_part.html" if visit.is_part else "calls.html", **values)


def _find_call(visit: Visit, seq: int | None) -> LoggedCall:
    call = None if seq is None else visit.reader.call_at(seq)
    if call is None:
        raise Refused(404, "The journal has no such call. It may have been pruned.")
    return call


async def show_call(visit: Visit) -> Response:
    """Show one call of the journal."""
    call = await asyncio.to_thread(_find_call, visit, visit.get_place("at"))
    runner = visit.inspector.runner
    can_repeat = runner is not None and runner.tools.find(call.tool_name) is not None
    template = "call_part.html" if visit.is_part else "call.html"
    return await visit.render(
        template, call=call, drawing=draw_call(call), seq=call.events[0].seq, can_repeat=can_repeat
    )


async def compare_calls(visit: Visit) -> Response:
    """Show two calls side by side."""
    chosen = visit.request.query_params.getlist("at")
    if len(chosen) != 2:
        raise Refused(400, "Choose two calls to compare.")
    first, second = [await asyncio.to_thread(_find_call, visit, parse_place(text)) for text in chosen]
    drawings = (draw_call(first), draw_call(second))
    facts = [dict(drawing.facts) for drawing in drawings]
    names = list(dict.fromkeys([*facts[0], *facts[1]]))
    parts = {
        "Arguments": compare_values(first.input, second.input, "arguments"),
        "Decisions": compare_values(_list_decisions(first), _list_decisions(second), "decisions"),
        "Output": compare_values(first.output, second.output, "output"),
        "Error": compare_values(first.error or "", second.error or "", "error"),
    }
    return await visit.render(
        "compare.html",
        calls=(first, second),
        drawings=drawings,
        facts=[(name, facts[0].get(name, ""), facts[1].get(name, "")) for name in names],
        parts=parts,
    )


def _list_decisions(call: LoggedCall) -> list[Any]:
    names = ("kind", "rule", "reason", "by")
    return [{name: thaw(event.data.get(name)) for name in names} for event in call.decisions]
