"""`ferrule run`: a model works on a task, and every event is shown as it happens."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.table import Column
from rich.text import Text

from ferrule import ToolResult
from ferrule.cli import chat
from ferrule.cli.interrupt import CODE, Stages
from ferrule.cli.model_runs import Setup, add_model, open_setup, print_failure
from ferrule.cli.models import ModelFailed
from ferrule.cli.screen import make_table, number, print_table
from ferrule.cli.text import has_traceback, to_line
from ferrule.cli.timeline import NAME_WIDTH
from ferrule.cli.usage import VERBOSE_HINT, UsageError

_EXECUTED = {True: "yes", False: "no", None: "unknown"}
_ERROR = 1_000


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the task and the model."""
    parser.add_argument("task", nargs="?", help="the task for the model, in quotes; without it, this is `ferrule chat`")
    add_model(parser)


def command(options: argparse.Namespace) -> int:
    """Run the task. Return 0 if the model ends it."""
    if options.task is None:
        return chat.command(options)
    if not options.task.strip():
        raise UsageError("the task is empty")
    with open_setup(options) as setup:
        return _run_task(setup, options.task)


def _run_task(setup: Setup, task: str) -> int:
    options, running = setup.options, setup.start(setup.model.user(task))
    stages = Stages(setup.timeline.aside)
    try:
        result = setup.watch(running, stages, running.cancel)
    except ModelFailed as error:
        print_failure(error)
        return CODE if stages.pressed else 1
    finally:  # show the calls that ran, even without an answer
        _print_results(running.results)
        if not options.verbose and any(map(has_traceback, running.results)):
            setup.console.print(Text(f"\n{VERBOSE_HINT} of a tool that failed", style="dim"))
    if stages.pressed:
        return CODE
    return 0 if result.status == "done" else 1


def _print_results(results: Sequence[ToolResult]) -> None:
    if not results:
        return
    print()
    table = make_table(number("#"), "tool", "status", "executed", number("ms"), Column("error"))
    for count, record in enumerate((result.record() for result in results), 1):
        name = to_line(record["tool_name"], NAME_WIDTH)
        error = Text(to_line(record["error"] or "", _ERROR), no_wrap=True, overflow="ellipsis")
        executed, duration = _EXECUTED[record["executed"]], f"{record['duration_ms']:.0f}"
        table.add_row(str(count), name, record["status"], executed, duration, error)
    print_table(table)
