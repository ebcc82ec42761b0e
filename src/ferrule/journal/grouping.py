"""Which rows of a journal's events are those of one call: no column says so.

The rows of a call have its id, session, principal and tool, and begin with its `tool:pre`; several calls may have all
of that in common, one after the other or at once. A `Grouping` is given the rows of one such identity, in order:

    tool:pre                     begins a call
    any other belongs to         a call of the same process that is under way: a result to the one that arrived when the
                                 result says, all else to the oldest that it can be of
                                 else one that is suspended: it is resumed here
                                 else one of another process, which a crash cut off: it is settled here
                                 else the call that ended last: somebody took it up once more
                                 else a call whose first rows are not there
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

ENDS = frozenset({"tool:post", "tool:error"})
"""The kinds of terminal events."""
_WITH_RESULT = ENDS | {"tool:suspended"}

ResultOf: TypeAlias = Callable[["Row"], Mapping[str, Any]]
"""The record of the result that a row has, as `ToolResult.record()` makes it."""


class Row(NamedTuple):
    """What decides to which call an event belongs.

    Attributes:
        owner: The process that noted it.
    """

    seq: int
    at: float
    kind: str
    owner: int


class Group:
    """The rows of one call, as far as they have come.

    Attributes:
        rows: In order.
        owner: The process that is or was at it.
        began_at: Of the first row; of a call that was suspended, and is taken up, of the first one since.
        has_started: Whether there is a `tool:started` since.
        is_suspended: Whether it waits for an answer.
        ends: Its terminal events; where there are several, somebody took up what was taken up already, or settled what
            was still under way.
    """

    __slots__ = ("began_at", "ends", "has_started", "is_suspended", "owner", "rows")

    def __init__(self, first: Row) -> None:
        self.rows: list[Row] = []
        self.ends: list[Row] = []
        self.owner, self.began_at = first.owner, first.at
        self.has_started = self.is_suspended = False

    @property
    def last(self) -> Row:
        """Its newest row."""
        return self.rows[-1]

    def add(self, row: Row) -> None:
        """Take one more row."""
        if row.kind in ENDS:
            self.ends.append(row)
        elif not self.ends:
            if row.owner != self.owner or self.is_suspended:
                self.owner, self.began_at, self.has_started = row.owner, row.at, False
            self.has_started = self.has_started or row.kind == "tool:started"
            self.is_suspended = row.kind == "tool:suspended"
        self.rows.append(row)

    def end(self, result_of: ResultOf) -> Row | None:
        """The terminal event that says what the call came to: of several, the first that arrived of those that may have
        had an effect."""
        if len(self.ends) < 2:
            return self.ends[0] if self.ends else None
        effective = [row for row in self.ends if result_of(row).get("executed") is not False]
        return min(effective or self.ends, key=lambda row: arrived_at(row, result_of))


class Grouping:
    """Puts the rows of one identity together. See the head of this file."""

    def __init__(self, result_of: ResultOf) -> None:
        self.open: list[Group] = []
        """Those that have not ended, the oldest first."""
        self._result_of = result_of
        self._ended: Group | None = None

    def add(self, row: Row) -> Group:
        """The call that the row, which is newer than all before, belongs to."""
        group = None if row.kind == "tool:pre" else self._of(row)
        if group is None:
            group = Group(row)
            self.open.append(group)
        group.add(row)
        if group.ends and group is not self._ended:
            self.open.remove(group)
            self._ended = group
        return group

    def _of(self, row: Row) -> Group | None:
        mine = [group for group in self.open if group.owner == row.owner and not group.is_suspended]
        if mine:
            return mine[0] if len(mine) == 1 else self._among(mine, row)
        suspended = (group for group in self.open if group.is_suspended)
        return next(suspended, None) or next(iter(self.open), None) or self._ended

    def _among(self, groups: list[Group], row: Row) -> Group:
        """The one of several under way in this process."""
        if row.kind in _WITH_RESULT:
            at = arrived_at(row, self._result_of)
            return min(groups, key=lambda group: abs(group.began_at - at))
        is_run = row.kind == "tool:progress"
        return next((group for group in groups if group.has_started is is_run), groups[0])


def arrived_at(row: Row, result_of: ResultOf) -> float:
    """When the call of a row with a result arrived, or was resumed. The clock of the record may be any runner's own."""
    took = result_of(row).get("latency_ms")
    return row.at - took / 1000 if isinstance(took, int | float) else row.at


def grouped(rows: Iterable[Row], result_of: ResultOf) -> list[Group]:
    """The calls of one identity, by their first rows."""
    grouping, found = Grouping(result_of), []
    for row in rows:
        group = grouping.add(row)
        if group.rows[0] is row:
            found.append(group)
    return found
