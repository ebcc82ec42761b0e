"""Read a journal's file beside the programs that write it, or read a copy of one. Nothing is written.

    reader = Reader("calls.db")
    for call in reader.calls(Filter(tool="refund*", status={"unknown", "cut_off"})):
        print(call.call_id, call.status, call.input)

See docs/journal.md#looking-into-it.
"""

from __future__ import annotations

import fnmatch
import functools
import json
import math
import os
import re
import sqlite3
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args
from urllib.parse import quote

from ferrule.errors import DefinitionError, JournalError
from ferrule.journal._lockfile import open_lock_file
from ferrule.journal._rows import LOST, column, read_column
from ferrule.journal._tables import APPLICATION_ID, BUSY_SECONDS, STEPS
from ferrule.stores.store import BrokenRow, read_row
from ferrule.values.call import ToolCall
from ferrule.values.frozen import JsonObject, thaw
from ferrule.values.json_text import SECRET_STARS, loads_finite
from ferrule.values.result import Status

if TYPE_CHECKING:
    from ferrule.definition.toolset import Toolset

__all__ = ["UNFINISHED", "Filter", "Following", "LoggedCall", "LoggedEvent", "LoggedIntent", "Reader"]

UNFINISHED = frozenset({"running", "asked", "cut_off", "deferred", "suspended"})
"""The states of a call that has not ended. See docs/journal.md#looking-into-it."""
NOT_STARTED = "not_started"
"""The state of a call whose process ended before the handler began."""
STATUSES = tuple(sorted({*get_args(Status), *UNFINISHED, NOT_STARTED}))
ANY_UNFINISHED = "unfinished"
"""Stands for each of `UNFINISHED` in a filter."""

_T = TypeVar("_T")
_ROWS_AT_ONCE = 500  # rows or values of one statement
_SORTED_ROWS = 20_000  # SQLite sorts them in about 6 ms
_TRIES = 5
_EVENT_COLUMNS = "seq, at, kind, call_id, tool_name, principal, session, parent, owner, data"
_OF_KEY = "call_id = ? AND run = ?"
_INTENT_COLUMNS = "c.key, c.fingerprint, c.arguments, c.at, c.state, c.outcome, c.ended_at"
_GET_INTENT = f"SELECT {_INTENT_COLUMNS} FROM calls c WHERE {_OF_KEY}"
_GET_REPLAYED = f"""
SELECT {_INTENT_COLUMNS} FROM events e JOIN calls c USING (call_id, tool_name)
WHERE e.seq = ? AND c.principal IS e.principal AND c.session IS e.session
ORDER BY EXISTS (
    SELECT 1 FROM events p WHERE p.call_id = c.call_id AND p.run = c.run AND p.kind = e.kind AND p.data = e.data
) DESC, c.arguments = ? DESC, c.at <= e.at DESC, c.at DESC LIMIT 1
"""
"""Among several calls with one id, it prefers those that arrived with the same turn and arguments, then those with the
same judged arguments, then those not after the event, then the newest.
"""
_GET_RECORDS = """
SELECT e.run, d.key FROM events n JOIN events e USING (call_id, tool_name, kind, data)
LEFT JOIN calls d ON d.call_id = e.call_id AND d.run = e.run
WHERE n.seq = ? AND n.kind = 'tool:pre' AND +e.principal IS n.principal AND +e.session IS n.session
AND e.parent IS n.parent AND (n.session <> '' OR n.parent IS NOT NULL OR e.run = n.run) ORDER BY e.seq DESC
"""
"""The records with the id, turn and arguments of the one with this first row, and their keys.

Without a session, each call is another one. The `+` keeps SQLite from an index that finds many more rows than the id.
"""
_COUNT_DECISIONS = """
SELECT json_extract(data, '$.kind'), json_extract(data, '$.rule'), json_extract(data, '$.by'),
count(DISTINCT call_id || ' ' || run) FROM events
WHERE kind = 'tool:decided' AND json_valid(data) GROUP BY 1, 2, 3 ORDER BY 4 DESC
"""
OF_CALLS = "kind GLOB 'tool:*'"
"""The condition for rows of calls. Rows about missing events, deleted calls or changed tools do not meet it."""
_NO_RESULT: JsonObject = {}
ENDS = frozenset({"tool:post", "tool:error"})
_WITH_RESULT = ENDS | {"tool:suspended"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """The conditions for calls to find; an omitted one fits all. See docs/journal.md#looking-into-it.

    Attributes:
        call_id: Its id, as the model sent it.
        tool: A pattern for the name of its tool, as in `fnmatch`.
        principal: The principal on whose behalf it was made.
        session: The conversation of the call.
        status: Some of its statuses, as a set, such as `{"failed", "suspended"}`. As for `ferrule log`, `"unknown"`
            includes `"cut_off"`, and `"unfinished"` is each of `UNFINISHED`.
        since: Seconds since the epoch: something happened to it then or later.
        until: It arrived then or before.
        every: Whether to return each record by itself. Otherwise the records of one call (the same session, principal,
            turn, parent, id, tool and arguments) count as one: the last that ran, or else the last, with the counts of
            all. A denied one, or a waiting one of another run, stands alone.

    Raises:
        DefinitionError: A condition has another type, or there is no such status.
    """

    call_id: str | None = None
    tool: str | None = None
    principal: str | None = None
    session: str | None = None
    status: Collection[str] | None = None
    since: float | None = None
    until: float | None = None
    every: bool = False

    def __post_init__(self) -> None:
        for names, kind, wanted in _KINDS_OF_CONDITIONS:
            for name in names:
                if not isinstance(value := getattr(self, name), kind):
                    raise DefinitionError(f"Filter({name}) must be {wanted}, not {value!r}")
        if self.status is not None:
            object.__setattr__(self, "status", _read_statuses(self.status))


_KINDS_OF_CONDITIONS: tuple[tuple[tuple[str, ...], Any, str], ...] = (
    (("call_id", "tool", "principal", "session"), str | None, "a text or None"),
    (("since", "until"), int | float | None, "seconds since the epoch, such as time.time() - 7200, or None"),
)


def _read_statuses(given: Collection[str]) -> frozenset[str]:
    """Return the statuses of a filter, with those that others stand for."""
    if isinstance(given, str) or not isinstance(given, Collection):
        raise DefinitionError(f"Filter(status) must be a set, such as {{'failed'}}, not {given!r}")
    for status in given:
        if status not in (*STATUSES, ANY_UNFINISHED):
            known = ", ".join(STATUSES)
            raise DefinitionError(f"Filter(status): there is no status {status!r}, but {known} and {ANY_UNFINISHED}")
    unfinished = UNFINISHED if ANY_UNFINISHED in given else frozenset[str]()
    return frozenset(given) | unfinished | ({"cut_off"} if "unknown" in given else set[str]())


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEvent:
    """One event in the journal. See docs/journal.md#looking-into-it.

    Attributes:
        seq: Its place in the file.
        at: Seconds since the epoch.
        kind: As `Event.kind`; `journal:lost` if `data["count"]` events are missing, and `journal:pruned` if calls were
            deleted that ended before `data["before"]`.
        owner: The process of the event, a number of the journal's own.
        data: For `tool:pre` the `input`, and the `turn` if there is one; for `tool:decided` the decision's `kind`,
            `reason` and `rule`, and `by`, the name of the person who answered; for `tool:progress` the report; for
            events with a result its record.
    """

    seq: int
    at: float
    kind: str
    call_id: str
    tool_name: str
    principal: str | None
    session: str | None
    parent: str | None
    owner: int
    data: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedIntent:
    """The journal's entry of a call that may change something. See docs/journal.md#looking-into-it.

    Attributes:
        key: Identifies the call if it is sent again; `context.idempotency_key`.
        fingerprint: The fingerprint of the tool.
        arguments: The judged arguments.
        at: The time just before it ran, by its runner's clock.
        state: `running`, `deferred` or `ended`, as it was written.
        outcome: Its outcome.
        ended_at: The time of the outcome, in seconds since the epoch.
    """

    key: str
    fingerprint: str
    arguments: JsonObject
    at: float
    state: str
    outcome: JsonObject | None
    ended_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedCall:
    """One call with all its events. See docs/journal.md#looking-into-it.

    Attributes:
        events: In order.
        status: The status of its result; or one of `UNFINISHED`: `running` in a process that lives, `asked` while a
            person is asked there, `cut_off` if that process ended while the handler ran, `deferred` if the work is done
            elsewhere, `suspended` until somebody answers; or `not_started` if the process ended before the handler
            began.
        result: The record of its result, or of its suspension; empty if there is none.
        ended_at: The time of its result, in seconds since the epoch.
        intent: The entry of a call that may change something, if it began.
        is_replayed: Whether it has the result of an earlier call, and did not run itself.
        attempts: The number of its runs with an `executed` other than `False`. With `every=True` it is 1 or 0.
        replays: The number of records that are replays.
        process: The place of its present or last run: the system's number of the process (`pid`), and its `host`.
    """

    events: tuple[LoggedEvent, ...]
    status: str
    result: JsonObject
    ended_at: float | None
    intent: LoggedIntent | None
    is_replayed: bool
    attempts: int
    replays: int
    process: JsonObject | None

    @property
    def call_id(self) -> str:
        """Its id, as the model sent it."""
        return self.events[0].call_id

    @property
    def tool_name(self) -> str:
        """The tool's own name."""
        return self.events[0].tool_name

    @property
    def principal(self) -> str | None:
        """The principal on whose behalf it was made."""
        return self.events[0].principal

    @property
    def session(self) -> str | None:
        """The conversation of the call."""
        return self.events[0].session

    @property
    def output(self) -> Any:
        """The return value of the handler, as plain JSON; `None` if the call has no result."""
        return None if self.status in UNFINISHED else self.result.get("output")

    @property
    def error(self) -> str | None:
        """The error text for the model, if it was no success."""
        return self.result.get("error")

    @property
    def executed(self) -> bool | None:
        """Whether the effect may have happened: `True`, `False`, or `None` if that is not known."""
        return False if self.status == NOT_STARTED else self.result.get("executed")

    @property
    def answered_by(self) -> str | None:
        """The name of the person who said yes or no, if the answer has one."""
        people = [event.data.get("by") for event in self.decisions if event.data.get("kind") == "allow"]
        given: str | None = self.result.get("answered_by") or (
            next(filter(None, people), None) if self.attempts else None
        )
        return given

    @property
    def retryable(self) -> bool | None:
        """Whether the same call may succeed later; `None` if its source does not say."""
        return self.result.get("retryable")

    @property
    def metadata(self) -> JsonObject:
        """The additions of the handler or a middleware."""
        return self.result.get("metadata", {})  # type: ignore[no-any-return]

    @property
    def parent(self) -> str | None:
        """The id of the call that made it."""
        return self.events[0].parent

    @property
    def began_at(self) -> float:
        """The time of its arrival, in seconds since the epoch."""
        return self.events[0].at

    @property
    def input(self) -> Any:
        """Its judged arguments, or the arguments as they came; a text if the model sent no JSON object."""
        if self.result.get("input") is not None:
            return self.result["input"]
        return self.intent.arguments if self.intent is not None else self.events[0].data.get("input")

    def to_call(self, tools: Toolset | None = None) -> ToolCall:
        """Return the call again. With `tools`, it omits the bound and private arguments of its tool, which no model
        fills.

        Raises:
            DefinitionError: Its arguments are incomplete, because the journal has stars in place of secrets.
        """
        given, tool = thaw(self.input), None if tools is None else tools.find(self.tool_name)
        if tool is not None and isinstance(given, dict):
            given = {name: value for name, value in given.items() if name not in tool.hidden}
        if SECRET_STARS in json.dumps(given, ensure_ascii=False):
            raise DefinitionError(
                f"the call {self.call_id!r} of {self.tool_name!r} cannot be made again: the journal has stars in its "
                "arguments. Give tools=… where they stand for what is bound or private, and leave out other such calls"
            )
        return ToolCall(self.call_id, self.tool_name, given)

    @property
    def decisions(self) -> list[LoggedEvent]:
        """The decisions, in order."""
        return [event for event in self.events if event.kind == "tool:decided"]

    def record(self) -> dict[str, Any]:
        """Return all of it as plain JSON. For the fields, see docs/journal.md#export."""
        first, result, intent = self.events[0], self.result, self.intent
        return {
            "tool_name": first.tool_name,
            "call_id": first.call_id,
            "parent": first.parent,
            "principal": first.principal,
            "session": first.session,
            "status": self.status,
            "at": first.at,
            "ended_at": self.ended_at,
            "duration_ms": None if self.ended_at is None else round((self.ended_at - first.at) * 1000, 3),
            "input": self.input,
            "output": self.output,
            "error": self.error,
            "executed": self.executed,
            "retryable": self.retryable,
            "is_replayed": self.is_replayed,
            "attempts": self.attempts,
            "replays": self.replays,
            "repairs": result.get("repairs", []),
            "metadata": self.metadata,
            "answered_by": self.answered_by,
            "idempotency_key": None if intent is None else intent.key,
            "fingerprint": None if intent is None else intent.fingerprint,
            "process": self.process,
            "events": [
                {"seq": event.seq, "at": event.at, "kind": event.kind, "data": _to_record(event)}
                for event in self.events
            ],
        }


def _to_record(event: LoggedEvent) -> JsonObject | None:
    """Return the data of an event without the call's own fields."""
    if event.kind in ("tool:post", "tool:error"):
        return {"status": event.data.get("status"), "error": event.data.get("error")}
    return event.data or None


@dataclass(frozen=True, slots=True)
class DecisionCount:
    """The number of calls with one decision.

    Attributes:
        kind: `"allow"`, `"ask"` or `"deny"`.
        rule: The rule or the guard, or None. For the answer of a person, the rule that asked.
        by: The person who answered, or None.
        calls: The number of calls.
    """

    kind: str
    rule: str | None
    by: str | None
    calls: int


class Reader:
    """A reader of a journal's file. See docs/journal.md#looking-into-it.

    You can use it while programs write, on a copy, and on a read-only disk. Each method reads the current state of the
    file; it waits for nobody, and nobody waits for it.

    Args:
        path: The file.

    Raises:
        JournalError: A method finds no file, or the file is no journal, has the version of a newer or older Ferrule, is
            damaged, or cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.realpath(path)
        """The real path of the file."""
        self._named = os.fspath(path)

    def events(self, wanted: Filter = Filter(), *, after: int = 0) -> Iterator[LoggedEvent]:
        """Yield the events of the matching calls behind the place `after`, in order. `status` and `until` have no
        effect.

        Without a filter, events of no call are among them, such as `journal:lost` and `journal:pruned`.
        """
        where, values = _make_condition(wanted)
        fits = _make_tool_filter(wanted)
        kinds = "1" if wanted == Filter() else OF_CALLS
        query = (
            f"SELECT {_EVENT_COLUMNS} FROM events WHERE seq > ? AND {kinds}{where} ORDER BY seq LIMIT {_ROWS_AT_ONCE}"
        )
        while True:
            rows = self.look(lambda look, after=after: look.rows(query, (after, *values)))  # type: ignore[misc]
            yield from (event for event in map(make_event, rows) if fits(event.tool_name))
            if len(rows) < _ROWS_AT_ONCE:
                return
            after = rows[-1][0]

    def calls(self, wanted: Filter = Filter(), *, newest: int | None = None) -> Iterator[LoggedCall]:
        """Yield each matching call once, in the order of the last events; at most the `newest`."""
        yield from self.load_calls(self.newest(wanted, newest))

    def call(self, call_id: str) -> list[LoggedCall]:
        """Return the records of calls with that id, the oldest first.

        Ids are the model's, and not all servers make new ones.
        """
        return sorted(self.calls(Filter(call_id=call_id, every=True)), key=lambda call: call.events[0].seq)

    def follow(self, wanted: Filter = Filter(), *, newest: int | None = None) -> Following:
        """Return the matching calls, at most the `newest`, and then new ones. See docs/journal.md#looking-into-it."""
        return Following(self, wanted, newest)

    def newest(self, wanted: Filter = Filter(), limit: int | None = None, *, before: int | None = None) -> list[Found]:
        """Return the places of the newest matching calls, in the order of their last events.

        `load_calls` reads their content.

        Args:
            before: Only calls whose last event lies before this place, for one page after another.
        """
        return self.look(lambda look: look.newest(wanted, limit, before))

    def call_at(self, seq: int) -> LoggedCall | None:
        """Return the record of a call with an event at this place, or None if there is none."""
        query = f"SELECT call_id, run FROM events WHERE seq = ? AND {OF_CALLS}"
        found = self.look(lambda look: [Found(look.group(Key(*row))) for row in look.rows(query, (seq,))])
        return next(self.load_calls(found), None)

    def count_decisions(self) -> list[DecisionCount]:
        """Return about how many calls each rule, guard or person decided, the most frequent first."""
        rows = self.look(lambda look: look.rows(_COUNT_DECISIONS, ()))
        return [
            DecisionCount(str(kind), None if rule is None else str(rule), None if by is None else str(by), calls)
            for kind, rule, by, calls in rows
        ]

    def ids(self, beginning: str, most: int = 12) -> list[str]:
        """Return the ids of calls with this beginning."""
        query = f"SELECT DISTINCT call_id FROM events WHERE substr(call_id, 1, ?) = ? AND {OF_CALLS} LIMIT ?"
        prefix = column(beginning) or ""
        values = (len(prefix), prefix, most)
        return self.look(lambda look: [read_column(found) for found in look.column(query, *values)])

    def count_missing(self, since: float | None = None) -> int:
        """Return the number of events missing since then, because the disk was slower than they came."""
        query = "SELECT data FROM events WHERE call_id = '' AND kind = ? AND +at >= ?"  # the index by id finds fewer
        found = self.look(lambda look: look.column(query, LOST, -math.inf if since is None else since))
        return sum(_read_object(data).get("count", 0) for data in found)

    def load_calls(self, found: Sequence[Found]) -> Iterator[LoggedCall]:
        """Yield the calls with all the content of their rows.

        It reads some at once, so no checkpoint waits for the consumer.
        """
        for start in range(0, len(found), _ROWS_AT_ONCE):
            some = found[start : start + _ROWS_AT_ONCE]
            yield from self.look(lambda look, some=some: look.load_calls(some))  # type: ignore[misc]

    def look(self, query: Callable[[Snapshot], _T]) -> _T:
        """Return the answer of `query`, from one moment.

        Without a write-ahead log, SQLite cannot read a file of this kind unless it makes one. So it opens the file as
        immutable, and if the file has changed meanwhile, the query runs once more.

        Raises:
            JournalError: The file cannot be read.
        """
        for _ in range(_TRIES):
            unchanged = self._read_file_state()
            try:
                # The locks are closed last: closing them drops SQLite's, and an ending process may then write during
                # the query.
                with _open_locks(self.path) as lives, closing(self._connect(still=unchanged is not None)) as connection:
                    _check_marks(connection, self._named)
                    processes = _read_processes(connection, lives)
                    connection.execute("BEGIN")
                    found = query(Snapshot(connection, processes))
            except sqlite3.Error as error:
                if unchanged is None or unchanged == self._read_file_state():
                    raise JournalError(_describe_error(self._named, error)) from error
            except (LookupError, TypeError, ValueError) as error:
                raise JournalError(f"{self._named!r} is damaged: {type(error).__name__}: {error}") from error
            else:
                if unchanged is None or unchanged == self._read_file_state():
                    return found
        raise JournalError(f"{self._named!r} changes too often to be read")

    def _read_file_state(self) -> tuple[int, int, int] | None:
        """Return the identity, size and change time of the file, or None if there is a write-ahead log beside it.

        Raises:
            JournalError: There is no file.
        """
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise JournalError(f"there is no journal at {self._named!r}: {error.strerror}") from error
        if not stat.S_ISREG(found.st_mode) or not found.st_size:  # reading some files of /proc blocks forever
            raise JournalError(f"there is no journal at {self._named!r}: it is empty, or no file")
        if os.path.exists(f"{self.path}-wal"):
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _connect(self, *, still: bool) -> sqlite3.Connection:
        address = f"file:{quote(self.path)}?mode=ro{'&immutable=1' if still else ''}"
        connection = sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            connection.execute("PRAGMA trusted_schema=0")
            connection.execute("PRAGMA query_only=1")
        except BaseException:
            connection.close()
            raise
        return connection


class Following:
    """The calls of a journal as they come. See docs/journal.md#looking-into-it."""

    def __init__(self, reader: Reader, wanted: Filter, newest: int | None) -> None:
        self._reader = reader
        self._wanted = wanted
        self._newest = newest
        self._after: int | None = None
        self._shown: dict[int, tuple[str, Found]] = {}  # by the first row of a call that has not ended

    def news(self) -> list[LoggedCall]:
        """Return all matching calls the first time; later the new ones, and those with a changed status.

        Earlier rows are read again only for unfinished calls that it has returned.
        """
        found = {call.group.rows[0].seq: call for call in self._reader.look(self._look)}
        fresh = []
        for call in self._reader.load_calls(list(found.values())):
            first = call.events[0].seq
            if first not in found or call.status == self._shown.get(first, ("",))[0]:
                continue  # a call without its first row is being deleted
            if call.status in UNFINISHED:
                self._shown[first] = (call.status, found[first])
            else:
                self._shown.pop(first, None)
            fresh.append(call)
        return [call for call in fresh if self._wanted.status is None or call.status in self._wanted.status]

    def _look(self, look: Snapshot) -> list[Found]:
        if self._after is None:
            self._after = look.last()
            return look.newest(self._wanted, self._newest)
        changed: dict[int, Found] = {}
        for key in look.find_changes(self._after, self._wanted):
            group = look.group(key)
            changed[group.rows[0].seq] = Found(group)
            self._after = max(self._after, group.last.seq)
        for status, call in self._shown.values():
            if status in ("running", "asked") and not look.lives(call.group.owner):
                changed.setdefault(call.group.rows[0].seq, call)
        return [look.add_status(call) for call in changed.values() if _is_in_time(call.group, self._wanted)]


class Key(NamedTuple):
    """The common key of all events of one call, and of no other."""

    call_id: str | bytes
    run: str


class Row(NamedTuple):
    """The fields of an event that tell how far its call is."""

    seq: int
    at: float
    kind: str
    owner: int


class Group:
    """The rows of one call.

    Attributes:
        rows: In order.
        owner: The process that runs or ran it.
        is_suspended: Whether it waits for an answer.
        ends: Its terminal events. There are several if somebody resumed it twice, or settled it while it still ran.
    """

    def __init__(self, key: Key, rows: list[Row]) -> None:
        self.key, self.rows = key, rows
        self.ends = [row for row in rows if row.kind in ENDS]
        first_end = next((at for at, row in enumerate(rows) if row.kind in ENDS), None)
        last = (rows[:first_end] or rows)[-1]
        self.owner, self.is_suspended = last.owner, last.kind == "tool:suspended"

    @property
    def last(self) -> Row:
        """Its newest row."""
        return self.rows[-1]


class Found(NamedTuple):
    """A call with known rows, and its status and counts when they were read."""

    group: Group
    status: str | None = None
    attempts: int | None = None
    replays: int = 0
    place: int = 0
    """The place of the last event of all its records, for `Reader.newest(before=…)`."""


class Process(NamedTuple):
    """A process that has written.

    Attributes:
        pid: Its number in its system.
        host: The machine.
        lives: Whether it is still there.
    """

    pid: int
    host: str
    lives: bool


class Snapshot:
    """Queries on a connection that sees the file at one moment.

    Args:
        processes: The processes known shortly before.
    """

    def __init__(self, connection: sqlite3.Connection, processes: Mapping[int, Process]) -> None:
        self._execute = connection.execute
        self._read_processes = processes

    def lives(self, owner: int) -> bool:
        """Return whether a process is still there. A process that appeared since is."""
        return owner not in self._read_processes or self._read_processes[owner].lives

    def rows(self, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the rows of a statement."""
        return self._execute(query, values).fetchall()

    def column(self, query: str, *values: Any) -> list[Any]:
        """Return the first column of a statement's rows."""
        return [found[0] for found in self._execute(query, values)]

    def last(self) -> int:
        """Return the place of the newest event."""
        return self._execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0]  # type: ignore[no-any-return]

    def group(self, key: Key) -> Group:
        """Return the rows of a call."""
        query = f"SELECT seq, at, kind, owner FROM events WHERE {_OF_KEY} AND {OF_CALLS} ORDER BY seq"
        return Group(key, [Row(*found) for found in self._execute(query, key)])

    def before(self, before: float) -> Iterator[Found]:
        """Yield the calls with a row from before then."""
        # for DISTINCT, SQLite would read the whole index by id
        query = f"SELECT DISTINCT call_id, run FROM events INDEXED BY events_by_time WHERE at < ? AND {OF_CALLS}"
        return (Found(self.group(Key(*found))) for found in self._execute(query, (before,)).fetchall())

    def find_changes(self, seq: int, wanted: Filter) -> dict[Key, None]:
        """Return the keys of the matching calls with a row behind a place."""
        where, values = _make_condition(wanted)
        query = f"SELECT call_id, run, tool_name FROM events WHERE seq > ? AND {OF_CALLS}{where} ORDER BY seq"
        fits = _make_tool_filter(wanted)
        return {Key(*key): None for *key, name in self._execute(query, (seq, *values)).fetchall() if fits(name)}

    def newest(self, wanted: Filter, limit: int | None, before: int | None = None) -> list[Found]:
        """Return the newest matching calls, in the order of their last rows; with `before`, those before this row."""
        found: list[Found] = []
        merged: set[Key] = set()
        behind = math.inf if before is None else before
        for call in self._iterate_newest(wanted, behind):
            if len(found) == limit:
                break
            if call.group.key in merged or call.group.last.seq >= behind or not _is_in_time(call.group, wanted):
                continue
            call = call._replace(place=call.group.last.seq) if wanted.every else self._merge(call, merged)
            if call.place >= behind:  # a later record of the call is on an earlier page
                continue
            call = self.add_status(call) if wanted.status is not None or not call.group.ends else call
            if wanted.status is None or call.status in wanted.status:
                found.append(call)
        return found[::-1]

    def _merge(self, newest: Found, merged: set[Key]) -> Found:
        """Return the decisive record of a call, with the counts of all its records; `merged` gets their keys."""
        found = self.rows(_GET_RECORDS, (newest.group.rows[0].seq,))
        keys = [newest.group.key._replace(run=run) for run, _ in found]
        if len(keys) < 2:
            return newest._replace(place=newest.group.last.seq)
        groups = [newest.group if key == newest.group.key else self.group(key) for key in keys]
        results = [self._last_result(group) for group in groups]
        origins = [self._find_origin(*each) for each in zip(groups, results, (key for _, key in found), strict=True)]
        keyed = {origin for origin in origins if isinstance(origin, str)}
        if len(keyed) == 1:  # the records without a key belong to the only one
            origins = [origin or min(keyed) for origin in origins]
        mine = origins[keys.index(newest.group.key)]
        chosen = [(group, result) for group, result, of in zip(groups, results, origins, strict=True) if of == mine]
        merged.update(group.key for group, _ in chosen)
        effective = [group for group, result in chosen if _is_attempt(group, result)]
        replays = sum(is_replay(result) for _, result in chosen)
        decisive = [group for group, result in chosen if not is_replay(result) and result.get("executed") is not False]
        place = max(group.last.seq for group, _ in chosen)
        return Found(next(iter(decisive), newest.group), newest.status, len(effective), replays, place)

    def _find_origin(self, group: Group, result: JsonObject, key: str | None) -> str | Key | None:
        """Return the key of a record, or of the call whose result it has or that waits. Each denial stands alone."""
        if key is None and is_replay(result):
            replayed = self.read_intent(Found(group))
            return None if replayed is None else replayed.key
        if key is None and group.is_suspended:
            waiting = get_field(result, "pending", "idempotency_key")
            return waiting if isinstance(waiting, str) else group.key
        is_alone = result.get("status") == "denied" or (not group.ends and self.lives(group.owner))
        return group.key if key is None and is_alone else key

    def _last_result(self, group: Group) -> JsonObject:
        row = self.end(group) or group.last
        return self.read_result(row) if row.kind in _WITH_RESULT else _NO_RESULT

    def _iterate_newest(self, wanted: Filter, behind: float) -> Iterator[Found]:
        """Yield each call at its last row before `behind`, the newest first."""
        table = "events"
        where, values = _make_condition(wanted)
        fits = _make_tool_filter(wanted)
        if values == [wanted.since] and self._has_few_recent_rows(values[0]):  # SQL has no other condition
            table, where = "events INDEXED BY events_by_time", " AND at >= ?"
        query = f"SELECT call_id, run, tool_name FROM {table} WHERE seq < ? AND {OF_CALLS}{where} ORDER BY seq DESC"
        seen: set[Key] = set()
        for *columns, name in self._execute(query, (behind, *values)):
            key = Key(*columns)
            if key not in seen and fits(name):
                seen.add(key)
                yield Found(self.group(key))

    def _has_few_recent_rows(self, since: float) -> bool:
        """Return whether there are so few rows since then that it is cheap to find them by time and to sort them.

        To sort many costs more than to read all rows from the newest on, because the caller may stop after a few calls.
        """
        query = "SELECT 1 FROM events WHERE at >= ? LIMIT 1 OFFSET ?"
        return self._execute(query, (since, _SORTED_ROWS)).fetchone() is None

    def add_status(self, found: Found) -> Found:
        """Return the call with its status at this moment."""
        group, end = found.group, self.end(found.group)
        if end is not None:
            status = "ok" if end.kind == "tool:post" else self.read_result(end).get("status", "failed")
            return found._replace(status=str(status))
        intent = self.read_intent(found)
        if intent is not None and intent.state != "running":
            ended = intent.state == "ended" and intent.outcome is not None
            return found._replace(status=str(intent.outcome.get("status")) if ended else "deferred")  # type: ignore[union-attr]
        if group.is_suspended:
            is_job = get_field(self.read_result(group.last), "pending", "kind") == "work"
            return found._replace(status="deferred" if is_job else "suspended")
        if self.lives(group.owner):
            is_asked = group.last.kind == "tool:decided" and self.read_result(group.last).get("kind") == "ask"
            return found._replace(status="asked" if is_asked else "running")
        has_begun = intent is not None or any(row.kind == "tool:started" for row in group.rows)
        return found._replace(status="cut_off" if has_begun else NOT_STARTED)

    def end(self, group: Group) -> Row | None:
        """Return the decisive terminal event: among several, the first that may have had an effect."""
        if len(group.ends) < 2:
            return group.ends[0] if group.ends else None
        effective = (row for row in group.ends if self.read_result(row).get("executed") is not False)
        return next(effective, group.ends[0])

    def load_calls(self, found: Iterable[Found]) -> list[LoggedCall]:
        """Return the calls with all the content of their rows, without those deleted meanwhile."""
        calls = (self._load_call(call) for call in found)
        return [call for call in calls if call is not None]

    def _load_call(self, found: Found) -> LoggedCall | None:
        group = found.group
        query = f"SELECT {_EVENT_COLUMNS} FROM events WHERE {_OF_KEY} AND {OF_CALLS} AND seq <= ? ORDER BY seq"
        events = tuple(map(make_event, self.rows(query, (*group.key, group.last.seq))))
        if not events:
            return None
        intent, end = self.read_intent(found), self.end(group)
        status = found.status or self.add_status(found).status or ""
        last = end or (group.last if group.is_suspended else None)
        result = next((event.data for event in events if last is not None and event.seq == last.seq), _NO_RESULT)
        ended_at = None if end is None else end.at
        if end is None and status not in UNFINISHED and intent is not None and intent.outcome is not None:
            result, ended_at = intent.outcome, intent.ended_at
        process = self._read_processes.get(group.owner)
        return LoggedCall(
            events=events,
            status=status,
            result=result,
            ended_at=ended_at,
            intent=intent,
            is_replayed=is_replay(result),
            attempts=int(_is_attempt(group, result)) if found.attempts is None else found.attempts,
            replays=found.replays if found.attempts is not None else int(is_replay(result)),
            process=None if process is None else {"pid": process.pid, "host": process.host},
        )

    def read_result(self, row: Row) -> JsonObject:
        """Return the record in a row, such as that of a result."""
        found = self._execute("SELECT data FROM events WHERE seq = ?", (row.seq,)).fetchone()
        return _NO_RESULT if found is None else _read_object(found[0])

    def read_intent(self, found: Found) -> LoggedIntent | None:
        """Return the entry of a call that may change something, or of the call whose result it has."""
        row = self._execute(_GET_INTENT, found.group.key).fetchone() or self._find_replayed(found.group)
        if row is None:
            return None
        return LoggedIntent(
            key=read_column(row[0]),
            fingerprint=read_column(row[1]),
            arguments=_read_object(row[2]),
            at=row[3],
            state=row[4],
            outcome=None if row[5] is None else _read_object(row[5]),
            ended_at=row[6],
        )

    def _find_replayed(self, group: Group) -> tuple[Any, ...] | None:
        result = self._last_result(group)
        if not is_replay(result):
            return None
        values = (group.rows[0].seq, json.dumps(result.get("input"), separators=(",", ":")))
        return self._execute(_GET_REPLAYED, values).fetchone()  # type: ignore[no-any-return]


def make_event(columns: Sequence[Any]) -> LoggedEvent:
    """Return the event of the values of `_EVENT_COLUMNS`."""
    seq, at, kind, call_id, tool_name, principal, session, parent, owner, data = columns
    return LoggedEvent(
        seq=seq,
        at=at,
        kind=kind,
        call_id=read_column(call_id),
        tool_name=read_column(tool_name),
        principal=read_column(principal),
        session=read_column(session),
        parent=read_column(parent),
        owner=owner,
        data=_read_object(data),
    )


def _read_object(text: str) -> JsonObject:
    """Return the JSON object of a column, or the reason why nobody can read it: that hides no other row."""
    found = read_row(text, loads_finite)
    if isinstance(found, BrokenRow):
        return {"unreadable": found.problem}
    return found if isinstance(found, dict) else _NO_RESULT


def _is_attempt(group: Group, result: JsonObject) -> bool:
    """Return whether the handler began in this record."""
    has_begun = any(row.kind == "tool:started" for row in group.rows)
    return has_begun and not is_replay(result) and result.get("executed") is not False


def is_replay(result: JsonObject) -> bool:
    """Return whether a result came from the journal, so nothing was run for it."""
    return get_field(result, "metadata", "replayed") is True


def get_field(record: Mapping[str, Any], name: str, field: str) -> Any:
    """Return a field of one of a record's objects."""
    found = record.get(name)
    return found.get(field) if isinstance(found, dict) else None


def _make_condition(wanted: Filter) -> tuple[str, list[Any]]:
    """Return the SQL condition for rows of matching calls, as far as SQL can express it, and the values.

    `+` keeps SQLite from all indexes but that of the first column, which usually finds the fewest rows.
    """
    columns = {"call_id": wanted.call_id, "session": wanted.session, "principal": wanted.principal}
    given = {name: column(text) for name, text in columns.items() if text is not None}
    where = "".join(f" AND {'+' if place else ''}{name} = ?" for place, name in enumerate(given))
    since = [] if wanted.since is None else [wanted.since]
    return where + " AND +at >= ?" * len(since), [*given.values(), *since]


def _make_tool_filter(wanted: Filter) -> Callable[[str | bytes], bool]:
    """Return a function that tells whether the tool of a name matches."""
    if wanted.tool is None:
        return lambda name: True
    fits = re.compile(fnmatch.translate(wanted.tool)).match
    return functools.cache(lambda name: fits(read_column(name)) is not None)


def _is_in_time(group: Group, wanted: Filter) -> bool:
    return wanted.until is None or group.rows[0].at <= wanted.until


def _check_marks(connection: sqlite3.Connection, named: str) -> None:
    """Check that the file is a journal of the current version.

    Raises:
        JournalError: The file is no journal, or its version is newer or older.
    """
    application, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    if application == version == 0 and not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
        raise JournalError(f"{named!r} is no journal, or the copy of one without its {os.path.basename(named)}-wal")
    if application != APPLICATION_ID:
        raise JournalError(f"{named!r} is no journal, but an SQLite file of another program")
    if version > len(STEPS):
        raise JournalError(
            f"{named!r} is a journal of version {version}, written by a newer Ferrule; this one knows versions up to "
            f"{len(STEPS)}: update it"
        )
    if version < len(STEPS):
        raise JournalError(
            f"{named!r} is a journal of version {version}, and this Ferrule reads version {len(STEPS)}: open it once "
            "with Journal.open, or by a command with --journal, which brings it up to date"
        )


def _read_processes(connection: sqlite3.Connection, lives: Callable[[int], bool]) -> dict[int, Process]:
    """Return the processes that have written.

    It checks which ones live before the calls are read, so the read sees everything that a dead process has written.
    """
    rows = connection.execute("SELECT owner, pid, host FROM owners").fetchall()
    return {owner: Process(pid, read_column(host), lives(owner)) for owner, pid, host in rows}


@contextmanager
def _open_locks(path: str) -> Iterator[Callable[[int], bool]]:
    """Yield a function that tells whether a process lives."""
    try:
        lock = open_lock_file(path, make=False)
    except FileNotFoundError:  # a copy has no lock file
        yield lambda owner: False
    except OSError:  # unknown: all count as alive
        yield lambda owner: True
    else:
        try:
            yield lock.lives
        finally:
            lock.close()


def _describe_error(named: str, error: sqlite3.Error) -> str:
    code = getattr(error, "sqlite_errorname", "")
    if code == "SQLITE_NOTADB":
        return f"{named!r} is no journal"
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return f"{named!r} is in use by a program that lets nobody else read it"
    return f"the journal {named!r} cannot be read: {error}"
