"""A tool to read large results in pages, for `limit_output(…, artifacts=…)`.

    artifacts = Artifacts()
    Runner([query, read_artifact(artifacts)], around=[limit_output(16_000, artifacts=artifacts)])

It reads only the artifacts of its caller's principal and session. For others it answers as for an unknown id. See
docs/guides/large-results.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Annotated, Final

from pydantic import Field

from ferrule.definition.decorator import tool
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError, ToolError
from ferrule.security.patterns import BUDGET, Pattern, PatternError
from ferrule.stores.artifacts import Artifacts
from ferrule.stores.text_rows import TextRows, read_text_rows
from ferrule.values.content import truncate_text
from ferrule.values.context import ToolContext
from ferrule.values.count import format_count
from ferrule.values.result import ToolResult

PAGE: Final = 14_500
"""The most characters of a page, with its last line below 16,000, the usual limit of an output."""
_LEAST_PAGE: Final = 500
_LAST_LINE: Final = 300
"""Room for the last line of a page, in characters."""
_MAX_MATCHED_ROW: Final = 300
_ROW_COST: Final = 100  # of each row beside its own length, in characters
_SEARCH_SECONDS = 2.0  # of one search: the next call goes on


def read_artifact(artifacts: Artifacts, *, page: int = PAGE) -> Tool:
    """Return the tool `read_artifact` for these artifacts.

    Args:
        page: The most characters that one call returns, without its last line. A smaller `limit_output` for these
            artifacts makes pages smaller.

    Raises:
        DefinitionError: `artifacts` or `page` is not valid.
    """
    given: object = artifacts
    if not isinstance(given, Artifacts):
        raise DefinitionError(f"read_artifact(artifacts) must be made by ferrule.stores.Artifacts(…), not {given!r}")
    number: object = page
    if isinstance(number, bool) or not isinstance(number, int) or number < _LEAST_PAGE:
        raise DefinitionError(f"read_artifact(page) must be a whole number of at least {_LEAST_PAGE}, not {page!r}")

    @tool(name="read_artifact", read_only=True, idempotent=True, open_world=False)
    def read(
        id: str,
        context: ToolContext,
        start: Annotated[int, Field(ge=0)] = 0,
        rows: Annotated[int | None, Field(ge=1)] = None,
        length: Annotated[int | None, Field(ge=1)] = None,
        grep: Annotated[str | None, Field(min_length=1, max_length=1000)] = None,
    ) -> ToolResult:
        """Read a part of a large result that was cut. By default, you read its rows from `start` on.

        Args:
            id: The id of the artifact, as the cut result gave it.
            start: The first row to read or search, counted from 0; with `length`, the first character.
            rows: How many rows, items or lines at most.
            length: How many characters, in place of rows.
            grep: A regular expression: only rows that match, each with its number. `(?i)` at its beginning ignores
                case.
        """
        if length is not None and (rows is not None or grep is not None):
            raise ToolError("Give either length, or rows and grep.")
        artifact = artifacts.get(id, context)
        if artifact is None:
            raise ToolError(f"There is no artifact {id[:80]!r} in this session. It may have expired.")
        text = artifact.text
        if not text:
            raise ToolError(f"Only the program can open it: {artifact.shape}.")
        room = min(page, artifacts.page_limit - _LAST_LINE)
        if length is not None:
            shown = _read_characters(text, start, min(length, room))
        elif grep is not None:
            shown = _search_rows(read_text_rows(text), room, start, rows, _compile_pattern(grep), context)
        else:
            shown = _read_rows(read_text_rows(text), room, start, rows)
        return ToolResult(shown, metadata={"artifact": {"id": id}})

    return read


def _read_characters(text: str, start: int, length: int) -> str:
    _check_start(start, len(text), "characters")
    end = min(start + length, len(text))
    return f"{text[start:end]}\n{_format_end('characters', start, end, len(text))}"


def _read_rows(found: TextRows, page: int, start: int, most: int | None) -> str:
    _check_start(start, len(found.rows), found.unit)
    header = [truncate_text(found.header, page // 4)] if found.header else []
    lines = _fill_page(islice(found.iterate(start), most), page - len("".join(header)))
    end = _format_end(found.unit, start, start + len(lines), len(found.rows))
    if lines[0] != next(found.iterate(start)):
        place = f", start={_find_line(found.rows, start)}" if found.format == "text" else ""
        end = f"[cut: read its characters with length={page}{place}]\n{end}"
    return "\n".join([*header, *lines, end])


def _find_line(lines: Sequence[str], number: int) -> int:
    """Return the position of a line in its text."""
    return sum(len(line) + 1 for line in lines[:number])


def _check_start(start: int, count: int, unit: str) -> None:
    if start >= count:
        raise ToolError(f"It has {format_count(count, unit.removesuffix('s'))}, so start is at most {count - 1}.")


def _format_end(unit: str, start: int, end: int, count: int) -> str:
    more = f"; go on with start={end}" if end < count else ""
    return f"[{unit} {start} to {end - 1} of {count:,}{more}]"


def _fill_page(rows: Iterable[str], room: int) -> list[str]:
    """Return as many rows as there is room for, at least one. If that is too long, it is cut."""
    page: list[str] = []
    for row in rows:
        room -= len(row) + 1
        if room < 0:
            return page or [truncate_text(row, room + len(row))]
        page.append(row)
    return page


def _search_rows(
    found: TextRows, page: int, start: int, most: int | None, pattern: Pattern, context: ToolContext
) -> str:
    """Return the rows that match, up to the length of a page, the deadline, or the time of one search.

    The time is looked at each time the engine may have been busy for some hundredths of a second.
    """
    _check_start(start, len(found.rows), found.unit)
    matches: list[str] = []
    number, room, spent, unsearched, stopped = start, page, 0, 0, ""
    end_at = time.monotonic() + _SEARCH_SECONDS
    for number, row in enumerate(found.iterate(start), start):
        if most is not None and len(matches) == most:
            stopped = "these are as many as you asked for"
        elif spent > BUDGET and (time.monotonic() > end_at or context.remaining() == 0):
            stopped = "there was no more time"
        elif len(row) > pattern.max_length:
            unsearched += 1
        else:
            spent = (0 if spent > BUDGET else spent) + pattern.size * (len(row) + _ROW_COST)
            if pattern.matches(row):
                matches.append(f"{number}: {truncate_text(row, _MAX_MATCHED_ROW)}")
                room -= len(matches[-1]) + 1
                if room < 0:
                    del matches[-1]
                    stopped = "the page is full"
        if stopped:
            break
    end = number if stopped else len(found.rows)
    note = (
        f"{format_count(len(matches), 'match', 'matches')} in {found.unit} {start} to {end - 1} of {len(found.rows):,}"
    )
    if unsearched:
        note += f"; {found.unit} over {pattern.max_length:,} characters, not searched: {unsearched}"
    if stopped:
        note += f"; stopped, because {stopped}; go on with start={end}"
    return "\n".join([*matches, f"[{note}]"])


def _compile_pattern(text: str) -> Pattern:
    try:
        return Pattern(text, unicode=True)
    except PatternError as error:
        raise ToolError(f"{text[:100]!r} is not searched: {error}.") from None
