"""A data desk: a model queries a table of 5 MB, pages through the rows and draws a chart. You open the whole result.

Start it with the SDK of your model (`pip install "ferrule[anthropic,examples]"`) and its key in the environment:

    python examples/data_desk.py "Which month was best?" --keep ~/desk --model anthropic:claude-sonnet-5-5

You see each call, the answer, and the files with the whole results:

    → query {'sql': 'SELECT * FROM orders'}
    → read_artifact {'id': '7be1…', 'start': 20000, 'rows': 3}
    → chart {'sql': 'SELECT month, sum(euros) FROM orders GROUP BY month'}
    May was best. I added up the euros of each month.
    The whole result: /home/ada/desk/7be1…-1.json

The model reads at most 16,000 characters of a result. Whatever is cut is kept for a day, for this person and this
conversation alone, and `read_artifact` reads any part of it.

What to change first:

- `make_orders`: connect to your database here. `sqlite_analyst.py` shows how to bound the queries of a model.
- `Artifacts(…)`: pass `Journal.open("calls.db")` to share the results among the processes of your service.
"""

from __future__ import annotations

import argparse
import asyncio
import runpy
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from ferrule import DefinitionError, Event, Runner, ToolContext, models, tool
from ferrule.approval import printable
from ferrule.loop import run
from ferrule.middleware import limit_output, untrusted
from ferrule.stores import Artifacts
from ferrule.tools.artifacts import read_artifact

ROWS = 41_203
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


def make_orders(path: Path) -> None:
    """Write the table of orders to a new SQLite file."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE orders (id INTEGER, month TEXT, customer TEXT, euros INTEGER, note TEXT)")
        rows = (
            (
                number,
                MONTHS[number % 12],
                f"customer {number % 997}",
                10 + number % 83 + 9 * (number % 12 == 4),
                "paid by credit card on the day of the order",
            )
            for number in range(ROWS)
        )
        database.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", rows)


def read_rows(path: Path, sql: str) -> list[dict[str, Any]]:
    """Run a query that can only read."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
        database.row_factory = sqlite3.Row
        return [dict(row) for row in database.execute(sql)]


@tool(read_only=True, timeout=30)
def query(sql: str, context: ToolContext[Path]) -> list[dict[str, Any]]:
    """Run one SELECT over orders (id, month, customer, euros, note)."""
    return read_rows(context.deps, sql)


@tool(read_only=True, timeout=30)
def chart(sql: str, context: ToolContext[Path]) -> Any:
    """Draw bars from a SELECT of two columns: a label and a number."""
    from matplotlib.figure import Figure

    rows = [list(row.values()) for row in read_rows(context.deps, sql)]
    figure = Figure()
    figure.subplots().bar([str(label) for label, _ in rows], [number for _, number in rows])
    return figure  # Ferrule makes an image of it


def desk(orders: Path, artifacts: Artifacts) -> Runner:
    """Return the runner of the desk."""
    around = [untrusted, limit_output(16_000, artifacts=artifacts)]
    return Runner([query, chart, read_artifact(artifacts)], around=around, deps=orders, expose=(sqlite3.Error,))


def say(text: str) -> None:
    """Print text of models and tools without characters that affect a terminal."""
    print(printable(text), flush=True)


async def ask(model: Any, question: str, folder: Path | None, show: Callable[[str], object] = say) -> str:
    """Ask a question and return the answer. Whole results are kept in the folder, or in memory."""
    with tempfile.TemporaryDirectory() as place:
        orders = Path(place) / "orders.db"
        make_orders(orders)
        async with model, desk(orders, Artifacts(folder)) as runner:
            async with run(model, model.user(question), runner, principal="ada", session="s1") as events:
                async for event in events:
                    if isinstance(event, Event) and event.kind == "tool:pre":
                        show(f"→ {event.call.name} {event.data['input']}")
    result = events.result
    answer = result.text if result.status == "done" else f"[{result.status}: {result.reason}]"
    show(answer)
    kept = [one.metadata["artifact"]["id"] for one in result.results if one.tool_name == "query" and one.metadata]
    for file in find_files(folder, kept):
        show(f"The whole result: {file}")
    return answer


def find_files(folder: Path | None, ids: list[str]) -> list[Path]:
    """Return the files of these artifacts."""
    return [file for id in ids for file in sorted(folder.glob(f"{id}-*"))] if folder else []


def parse_model(text: str) -> Any:
    """Return the model of `anthropic:claude-sonnet-5-5`, or one that follows the list `steps` of `scripted:FILE`."""
    try:
        if text.startswith("scripted:"):
            return models.Scripted(runpy.run_path(text.removeprefix("scripted:"))["steps"])
        return models.model_from_name(text)
    except DefinitionError as error:  # no such model, or the SDK or its key is missing
        raise argparse.ArgumentTypeError(str(error)) from None


def main() -> int:
    parser = argparse.ArgumentParser(description="Ask a model about a large table.")
    parser.add_argument("question")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="a folder for the whole results")
    parser.add_argument("--model", type=parse_model, default="anthropic:claude-sonnet-5-5", metavar="PROVIDER:NAME")
    options = parser.parse_args()
    try:
        asyncio.run(ask(options.model, options.question, options.keep))
    except models.ModelError as error:
        raise SystemExit(printable(f"The model's API: {error}")) from None
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
