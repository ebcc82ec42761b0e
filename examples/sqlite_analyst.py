"""A read-only analyst: a model answers questions about a SQLite database, and cannot change anything in it.

Start it with the SDK of your model (`pip install "ferrule[anthropic]"`) and its key in the environment:

    python examples/sqlite_analyst.py sales.db "Which month was best?" "And why?" --model anthropic:claude-sonnet-5-5

Each question is asked in the same conversation. Nobody has to be asked, because there is nothing to decide:

- The file is opened read-only, and SQLite asks `may` about each part of a statement: what is not reading is refused.
- A query has `SECONDS` and ends by itself; it shows `ROWS` rows, and makes no value larger than `LARGEST` bytes.
- What is in the database may be anybody's words: it is marked as data (`untrusted`) where the model reads it.

The tools are plain functions, so each call runs in a thread of its own, with a connection of its own that is made, used
and closed there. That is why queries of one turn can run side by side.

What to change first:

- `READABLE`: the tables that may be read, if not all of them.
- `TASK`: what the model has to know of your data: units, what a status means, when a year begins.
- `ask`: answer in a chat or on a page instead of on the terminal.
"""

from __future__ import annotations

import argparse
import asyncio
import runpy
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ferrule import DefinitionError, Event, Runner, ToolContext, ToolError, models, tool
from ferrule.approval import printable
from ferrule.loop import run
from ferrule.middleware import limit_output, untrusted

TASK = """You answer questions about a SQLite database. Look at its schema first, then query it; it cannot be changed.
Let the database count and add up, and say in one sentence how you came to a figure. Do not guess.

The question: {question}"""

READABLE: Collection[str] | None = None
"""The tables and views that may be read, those that a view reads too; all of them where it is None."""
SECONDS = 10.0
ROWS = 200
LARGEST = 1_000_000
LONGEST_CELL = 300
STEPS_BETWEEN_LOOKS = 10_000

Cell = str | int | float | None


@dataclass
class Table:
    """What a query gave."""

    columns: list[str]
    rows: list[list[Cell]]
    complete: bool
    """Whether these are all rows."""


def may(action: int, first: str | None, second: str | None, database: str | None, inside: str | None) -> int:
    """SQLite's question about each part of a statement: reading is allowed, and nothing else."""
    if action == sqlite3.SQLITE_READ:
        # `inside` is the view that reads, or a name that WITH gave, which may be that of a view: it decides nothing.
        return sqlite3.SQLITE_OK if is_readable(first) else sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION:
        return sqlite3.SQLITE_DENY if second == "load_extension" else sqlite3.SQLITE_OK
    return sqlite3.SQLITE_OK if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE) else sqlite3.SQLITE_DENY


def is_readable(name: str | None) -> bool:
    return READABLE is None or name in READABLE


@contextmanager
def opened(context: ToolContext[Path]) -> Iterator[sqlite3.Connection]:
    """A connection for one call, in the thread of that call: it reads, and stops by itself."""
    ends = time.monotonic() + SECONDS

    def is_over() -> bool:
        return context.cancelled or time.monotonic() > ends  # of this thread's query; nobody else can stop a thread

    file = f"{context.deps.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(file, uri=True, timeout=SECONDS / 2)) as connection:
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST)
        connection.set_progress_handler(is_over, STEPS_BETWEEN_LOOKS)
        yield connection


def cell(value: Any) -> Cell:
    """A value as the model reads it."""
    if isinstance(value, bytes):
        return f"[{len(value)} bytes]"
    if isinstance(value, str) and len(value) > LONGEST_CELL:
        return f"{value[:LONGEST_CELL]}… [{len(value)} characters]"
    return str(value) if isinstance(value, float) and abs(value) == float("inf") else value  # JSON has no infinity


@tool(read_only=True, idempotent=True, open_world=False, timeout=2 * SECONDS)
def schema(context: ToolContext[Path]) -> list[str]:
    """Show the tables and views, as the statements that made them."""
    with opened(context) as connection:
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name")
        return [sql for name, sql in rows if sql and is_readable(name)]


@tool(read_only=True, idempotent=True, open_world=False, timeout=2 * SECONDS)
def query(sql: str, context: ToolContext[Path]) -> Table:
    """Run one SELECT, and show its first 200 rows.

    Args:
        sql: One statement in SQLite's dialect. Aggregate and sort in it, rather than read many rows.
    """
    with opened(context) as connection:
        connection.set_authorizer(may)
        try:
            cursor = connection.execute(sql)
            found = cursor.fetchmany(ROWS + 1)
        except (sqlite3.Error, sqlite3.Warning) as error:
            if "interrupted" in str(error):
                raise ToolError(f"it took longer than {SECONDS:.0f} seconds and was stopped: narrow it") from None
            raise ToolError(f"SQLite says: {error}. Only one SELECT of what the schema shows runs here") from None
        columns = [column[0] for column in cursor.description or ()]
    return Table(columns, [list(map(cell, row)) for row in found[:ROWS]], complete=len(found) <= ROWS)


def analyst(database: Path) -> Runner:
    """The tools over one database. There is no guard: both tools read, and can do nothing else."""
    return Runner([schema, query], deps=database, around=[untrusted, limit_output(16_000)], concurrency=4)


def say(text: str) -> None:
    """Print what models, tools and servers say, without what could move a terminal's cursor or hide a question."""
    print(printable(text), flush=True)


async def ask(model: Any, questions: Sequence[str], database: Path, show: Callable[[str], object] = say) -> list[str]:
    """The answers to questions that are asked one after the other, in one conversation."""
    answers: list[str] = []
    messages: list[Any] = []
    state: Any = None
    async with model, analyst(database) as runner:
        for question in questions:
            messages = [*messages, *model.user(question if messages else TASK.format(question=question))]
            async with run(model, messages, runner, max_turns=20, state=state) as events:
                async for event in events:
                    if isinstance(event, Event) and event.kind == "tool:pre":
                        show(f"→ {event.call.name} {event.data['input']}")
            result = events.result
            answers.append(result.text if result.status == "done" else f"[{result.status}: {result.reason}]")
            messages, state = result.messages, result.state
            show(answers[-1])
    return answers


def model_named(text: str) -> Any:
    """`anthropic:claude-sonnet-5-5`, `ollama:qwen3`, …; `scripted:FILE` is a model that says the list `steps` of it."""
    try:
        if text.startswith("scripted:"):
            return models.Scripted(runpy.run_path(text.removeprefix("scripted:"))["steps"])
        return models.named(text)
    except DefinitionError as error:  # no such model, or the SDK or its key is missing
        raise argparse.ArgumentTypeError(str(error)) from None


def database_named(text: str) -> Path:
    """A database that is there: SQLite would say so only when the model asks for something."""
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is no file")
    with Path(text).open("rb") as file:
        if file.read(16) not in (b"SQLite format 3\0", b""):  # https://sqlite.org/fileformat.html; empty is no tables
            raise argparse.ArgumentTypeError(f"{text!r} is no SQLite database")
    return Path(text)


def main() -> int:
    parser = argparse.ArgumentParser(description="Ask a model about a SQLite database.")
    parser.add_argument("database", type=database_named)
    parser.add_argument("questions", nargs="+", metavar="question")
    parser.add_argument("--model", type=model_named, default="anthropic:claude-sonnet-5-5", metavar="PROVIDER:NAME")
    given = parser.parse_args()
    try:
        asyncio.run(ask(given.model, given.questions, given.database))
    except models.ModelError as error:
        raise SystemExit(printable(f"The model's API: {error}")) from None
    except KeyboardInterrupt:
        print("\nStopped.")
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
