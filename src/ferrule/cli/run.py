"""`ferrule run`: a model works on a task, and every event is shown as it happens."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ferrule import Event, FerruleError, Runner, ToolContext
from ferrule.cli import find
from ferrule.cli.screen import lay, printable, screen
from ferrule.cli.timeline import Timeline
from ferrule.cli.usage import UsageError
from ferrule.loop import Finished, LoopResult, ModelText, TurnStarted
from ferrule.loop import run as loop
from ferrule.models.scripted import Scripted, scripted

NAME = "run"
HELP = "let a model work on a task with the tools"
_log = logging.getLogger("ferrule.cli")
_AVAILABLE = "available now is scripted:FILE, a Python file that defines `steps`"


def options(parser: argparse.ArgumentParser) -> None:
    """What to do, and who does it."""
    parser.add_argument("task", help="what the model is asked to do")
    parser.add_argument("--model", required=True, metavar="MODEL", help=_AVAILABLE)


def command(options: argparse.Namespace) -> int:
    """Run the task; 0 where the model came to an end of its own."""
    model = _model(options.model)
    runner = find.runner(options.tools)
    console = screen()
    _head(console, options.task, options.model, runner)
    try:
        result = asyncio.run(_watched(model, options.task, runner, Timeline(console, time.monotonic)))
    except FerruleError:
        raise
    except Exception as error:
        _log.debug("the model failed", exc_info=True)
        print(printable(f"ferrule: the model failed: {type(error).__name__}: {error}"), file=sys.stderr)
        return 1
    _foot(console, result)
    return 0 if result.status == "done" else 1


def _model(name: str) -> Scripted:
    kind, _, file = name.partition(":")
    if kind != "scripted" or not file:
        raise UsageError(f"there is no model {name!r}; {_AVAILABLE}")
    module = find.load_file(file)
    steps = getattr(module, "steps", None)
    if steps is None:
        raise UsageError(f"{file!r} defines no `steps`: a list of what the model says and calls, turn by turn")
    return scripted(steps)


def _head(console: Console, task: str, model: str, runner: Runner) -> None:
    console.print(Text.assemble(("task   ", "dim"), printable(task)))
    note = "the model is SCRIPTED: its turns were written in advance, the tools and their results are real"
    console.print(Text.assemble(("model  ", "dim"), printable(model), "  ", (f"({note})", "yellow")))
    console.print(Text.assemble(("tools  ", "dim"), printable(", ".join(tool.name for tool in runner.tools))))


async def _watched(model: Scripted, task: str, runner: Runner, timeline: Timeline) -> LoopResult:
    running = loop(model, [{"role": "user", "content": task}], runner, context=ToolContext(session="cli"))
    said = ""  # held back, because the last words are the answer, which is shown below
    async with running as events:
        async for happened in events:
            if isinstance(happened, ModelText):
                said = happened.text
            elif isinstance(happened, Finished):
                break
            else:
                _show(timeline, said, happened)
                said = ""
    return running.result


def _show(timeline: Timeline, said: str, happened: Event | TurnStarted) -> None:
    if said:
        timeline.words(said)
    if isinstance(happened, Event):
        timeline.event(happened)
    else:
        timeline.heading(f"turn {happened.number}")


def _foot(console: Console, result: LoopResult) -> None:
    console.print()
    console.print(Text("answer" if result.status == "done" else f"the run ended: {result.status}", style="bold"))
    if result.text:
        console.print(Text(printable(result.text.strip())))
    console.print()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("#", "tool", "status", "executed", "ms"):
        table.add_column(name, no_wrap=True, justify="right" if name in {"#", "ms"} else "left")
    table.add_column("error")
    for number, record in enumerate(result.tool_executions, 1):
        table.add_row(*_row(number, record))
    lay(console, table)


def _row(number: int, record: dict[str, Any]) -> list[str | Text]:
    executed = {True: "yes", False: "no", None: "not known"}[record["executed"]]
    error = Text(" ".join(printable(record["error"] or "").split()), no_wrap=True, overflow="ellipsis")
    return [
        str(number),
        printable(record["tool_name"]),
        record["status"],
        executed,
        f"{record['latency_ms']:.0f}",
        error,
    ]
