"""The tools of `sqlite_analyst.py`: show the schema of a SQLite database, and run one SELECT.

They run in worker processes of Ferrule, which are killed at the deadline. Nothing else ends every query: SQLite checks
a clock only between the steps of a query, and one step may compare long texts for minutes. A worker imports the module
of its tool and never the script, so the tools need their own file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ferrule import CONTEXT, ToolError, tool

READABLE: Collection[str] | None = None
"""The tables and views that may be read, including those inside a view. None allows all."""
SECONDS = 10.0
ROWS = 200
COLUMNS = 100
LARGEST = 1_000_000
LONGEST_CELL = 300
MEMORY = 200_000_000

Cell = str | int | float | None


@dataclass
class Table:
    """The result of a query."""

    columns: list[str]
    rows: list[list[Cell]]
    complete: bool
    """Whether these are all rows."""


def authorize(action: int, first: str | None, second: str | None, database: str | None, inside: str | None) -> int:
    """Answer SQLite's question about each part of a statement: allow reading, deny everything else."""
    if action == sqlite3.SQLITE_READ:
        # `inside` is a view or a name of WITH, which may imitate a view, so it decides nothing.
        return sqlite3.SQLITE_OK if is_readable(first) else sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION:
        return sqlite3.SQLITE_DENY if second == "load_extension" else sqlite3.SQLITE_OK
    return sqlite3.SQLITE_OK if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE) else sqlite3.SQLITE_DENY


def is_readable(name: str | None) -> bool:
    return READABLE is None or name in READABLE


@contextmanager
def open_database() -> Iterator[sqlite3.Connection]:
    """Yield a read-only connection with limits, for one call in its own process."""
    file = f"{Path(CONTEXT.get()['database']).absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(file, uri=True, timeout=SECONDS / 2)) as connection:
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        connection.execute(f"PRAGMA hard_heap_limit = {MEMORY}")  # for the whole process, which serves one call
        connection.execute("PRAGMA temp_store = MEMORY")  # sorting uses this memory too, and no disk
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST)
        connection.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, COLUMNS)
        yield connection


def to_cell(value: Any) -> Cell:
    """Return a value as the model reads it."""
    if isinstance(value, bytes):
        return f"[{len(value)} bytes]"
    if isinstance(value, str) and len(value) > LONGEST_CELL:
        return f"{value[:LONGEST_CELL]}… [{len(value)} characters]"
    return str(value) if isinstance(value, float) and abs(value) == float("inf") else value  # JSON has no infinity


@tool(read_only=True, idempotent=True, open_world=False, isolation="process", timeout=SECONDS)
def schema() -> list[str]:
    """Show the tables and views, as the statements that created them."""
    with open_database() as connection:
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name")
        return [sql for name, sql in rows if sql and is_readable(name)]


@tool(read_only=True, idempotent=True, open_world=False, isolation="process", timeout=SECONDS)
def query(sql: str) -> Table:
    """Run one SELECT, and show its first 200 rows.

    Args:
        sql: One statement in SQLite's dialect. Aggregate and sort in it, rather than read many rows.
    """
    with open_database() as connection:
        connection.set_authorizer(authorize)
        try:
            cursor = connection.execute(sql)
            rows = [
                list(map(to_cell, row)) for row in islice(cursor, ROWS + 1)
            ]  # shorten each row before the next is read
        except MemoryError:
            raise ToolError(f"the query needs more than {MEMORY:,} bytes of memory: narrow it") from None
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise ToolError(f"SQLite says: {error}. Only one SELECT over the tables of the schema runs here") from None
        columns = [column[0] for column in cursor.description or ()]
    return Table(columns, rows[:ROWS], complete=len(rows) <= ROWS)
