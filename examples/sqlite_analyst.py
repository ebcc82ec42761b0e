"""A read-only analyst: a model answers questions about a SQLite database, and cannot change anything in it.

Start it with the SDK of your model (`pip install "ferrule[anthropic]"`) and its key in the environment:

    python examples/sqlite_analyst.py sales.db "Which month was best?" "And why?" --model anthropic:claude-sonnet-5-5

All questions belong to one conversation. You see each query and each answer:

    → query {'sql': 'SELECT month, sum(amount) FROM sales GROUP BY month ORDER BY 2 DESC LIMIT 1'}
    March was best, with sales of 1,240. I added up the amounts of each month.

No approval is needed, because the tools can only read:

- The file is opened read-only, and `authorize` refuses every part of a statement that does not read.
- Each query runs in a process that is killed after `SECONDS`. It returns at most `ROWS` rows and `COLUMNS` columns,
  makes no value larger than `LARGEST` bytes, and uses at most `MEMORY` bytes.
- The texts in the database may come from anybody, so `untrusted` marks them as data for the model.

The tools are in `sqlite_tools.py`, which the processes import. Each call opens its own connection, so queries of one
turn can run at the same time.

What to change first:

- `READABLE` in `sqlite_tools.py`: the tables that may be read.
- `TASK`: facts about your data, such as units, the meaning of a status, or the start of a year.
- `ask`: answer in a chat or on a page instead of at the terminal.
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
    """Return the runner for one database. It needs no guard, because both tools can only read."""
    tools = [tool.replace(context={"database": str(database)}) for tool in (schema, query)]
    return Runner(tools, around=[untrusted, limit_output(16_000)], concurrency=4)


def say(text: str) -> None:
    """Print text of models, tools and servers without characters that affect a terminal."""
    print(printable(text), flush=True)


async def ask(model: Any, questions: Sequence[str], database: Path, show: Callable[[str], object] = say) -> list[str]:
    """Ask the questions in one conversation, and return the answers."""
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


def parse_model(text: str) -> Any:
    """Return the model of `anthropic:claude-sonnet-5-5`, or one that follows the list `steps` of `scripted:FILE`."""
    try:
        if text.startswith("scripted:"):
            return models.Scripted(runpy.run_path(text.removeprefix("scripted:"))["steps"])
        return models.model_from_name(text)
    except DefinitionError as error:  # no such model, or the SDK or its key is missing
        raise argparse.ArgumentTypeError(str(error)) from None


def parse_database(text: str) -> Path:
    """Return the path of an existing database. SQLite itself would report an error only at the first query."""
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is not a file")
    with Path(text).open("rb") as file:
        if file.read(16) not in (b"SQLite format 3\0", b""):  # https://sqlite.org/fileformat.html; empty is no tables
            raise argparse.ArgumentTypeError(f"{text!r} is not a SQLite database")
    return Path(text)


def main() -> int:
    parser = argparse.ArgumentParser(description="Ask a model about a SQLite database.")
    parser.add_argument("database", type=parse_database)
    parser.add_argument("questions", nargs="+", metavar="question")
    parser.add_argument("--model", type=parse_model, default="anthropic:claude-sonnet-5-5", metavar="PROVIDER:NAME")
    options = parser.parse_args()
    try:
        asyncio.run(ask(options.model, options.questions, options.database))
    except models.ModelError as error:
        raise SystemExit(printable(f"The model's API: {error}")) from None
    except KeyboardInterrupt:
        print("\nStopped.")
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
