"""A read-only analyst: a model answers questions about a SQLite database, and cannot change anything in it.

Start it with the SDK of your model (`pip install "ferrule[anthropic]"`) and its key in the environment:

    python examples/sqlite_analyst.py sales.db "Which month was best?" "And why?" --model anthropic:claude-sonnet-5-5

Each question is asked in the same conversation. Nobody has to be asked, because there is nothing to decide:

- The file is opened read-only, and SQLite asks `may` about each part of a statement: what is not reading is refused.
- A query runs in a process that is killed after `SECONDS`, whatever it is at. It shows `ROWS` rows of at most
  `COLUMNS`, makes no value larger than `LARGEST` bytes, and SQLite holds no more than `MEMORY` bytes for it.
- What is in the database may be anybody's words: it is marked as data (`untrusted`) where the model reads it.

The tools are in `sqlite_tools.py`, which the processes import. Each call has a connection of its own that is made, used
and closed there. That is why queries of one turn can run side by side.

What to change first:

- `READABLE` in `sqlite_tools.py`: the tables that may be read, if not all of them.
- `TASK`: what the model has to know of your data: units, what a status means, when a year begins.
- `ask`: answer in a chat or on a page instead of on the terminal.
"""

from __future__ import annotations

import argparse
import asyncio
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sqlite_tools import query, schema

from ferrule import DefinitionError, Event, Runner, models
from ferrule.approval import printable
from ferrule.loop import run
from ferrule.middleware import limit_output, untrusted

TASK = """You answer questions about a SQLite database. Look at its schema first, then query it; it cannot be changed.
Let the database count and add up, and say in one sentence how you came to a figure. Do not guess.

The question: {question}"""


def analyst(database: Path) -> Runner:
    """The tools over one database. There is no guard: both tools read, and can do nothing else."""
    tools = [one.replace(context={"database": str(database)}) for one in (schema, query)]
    return Runner(tools, around=[untrusted, limit_output(16_000)], concurrency=4)


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
        return models.model_from_name(text)
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
