"""`ferrule run`: a model works on a task, and every event is shown as it happens."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ferrule import ToolResult
from ferrule.approval import printable
from ferrule.cli import chat
from ferrule.cli.interrupt import CODE, Stages
from ferrule.cli.model_runs import Setup, add_model, prepared, say_failure
from ferrule.cli.models import ModelFailed
from ferrule.cli.screen import lay
from ferrule.cli.text import short, traced
from ferrule.cli.timeline import NAME_WIDTH
from ferrule.cli.usage import VERBOSE_SHOWS


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the task and the model."""
    parser.add_argument(
        "task", nargs="?", help="what the model is asked to do; without it you talk with the model, as in ferrule chat"
    )
    add_model(parser)


def command(options: argparse.Namespace) -> int:
    """Run the task. Return 0 if the model came to an end of its own."""
    if options.task is None:
        return chat.command(options)
    with prepared(options) as setup:
        return _run_task(setup, options.task)


def _run_task(setup: Setup, task: str) -> int:
    options, running = setup.options, setup.start(setup.model.user(task))
    stages = Stages(setup.timeline.aside)
    try:
        result = setup.watch(running, stages, running.cancel)
    except ModelFailed as error:
        say_failure(error)
        return CODE if stages.pressed else 1
    finally:  # calls that have run have run, whether or not there is an answer
        _table(setup.console, running.results)
        if not options.verbose and any(map(traced, running.results)):
            setup.console.print(Text(f"\n{VERBOSE_SHOWS} of a tool that failed", style="dim"))
    if stages.pressed:
        return CODE
    return 0 if result.status == "done" else 1


def _table(console: Console, results: Sequence[ToolResult]) -> None:
    if not results:
        return
    console.print()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("#", "tool", "status", "executed", "ms"):
        table.add_column(name, no_wrap=True, justify="right" if name in {"#", "ms"} else "left")
    table.add_column("error")
    for number, result in enumerate(results, 1):
        table.add_row(*_row(number, result.record()))
    lay(console, table)


def _row(number: int, record: dict[str, Any]) -> list[str | Text]:
    executed = {True: "yes", False: "no", None: "not known"}[record["executed"]]
    error = Text(" ".join(printable(record["error"] or "").split()), no_wrap=True, overflow="ellipsis")
    return [
        str(number),
        printable(short(record["tool_name"], NAME_WIDTH)),
        record["status"],
        executed,
        f"{record['duration_ms']:.0f}",
        error,
    ]
