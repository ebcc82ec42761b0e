"""`ferrule run`: a model works on a task, and every event is shown as it happens."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ferrule import DefinitionError, Event, FerruleError, Runner, ToolContext, ToolResult, Toolset
from ferrule.cli import find
from ferrule.cli.screen import lay, printable, screen
from ferrule.cli.timeline import NAME_WIDTH, Timeline, short
from ferrule.cli.usage import UsageError
from ferrule.loop import Finished, LoopResult, ModelText, Run, TurnStarted
from ferrule.loop import run as loop
from ferrule.models import Model, Reply
from ferrule.models.scripted import scripted

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
    running = loop(model, [{"role": "user", "content": options.task}], runner, context=ToolContext(session="cli"))
    try:
        result = asyncio.run(_watched(running, Timeline(console, time.monotonic)))
        _answer(console, result)
    except _ModelFailed as error:
        _log.debug("the model failed", exc_info=True)
        print(printable(f"ferrule: the model failed: {error}"), file=sys.stderr)
        return 1
    finally:  # what has run has run, whatever became of the answer
        _table(console, running.results)
    return 0 if result.status == "done" else 1


class _ModelFailed(Exception):
    """The model raised; the program's own faults look otherwise."""


class _Asked:
    """A model whose exceptions say that they are its own."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.results = model.results

    async def __call__(self, messages: Sequence[dict[str, Any]], toolset: Toolset, /) -> Reply:
        try:
            return await self._model(messages, toolset)
        except FerruleError:
            raise
        except Exception as error:
            raise _ModelFailed(f"{type(error).__name__}: {error}") from error


def _model(name: str) -> Model:
    kind, _, file = name.partition(":")
    if kind != "scripted" or not file:
        raise UsageError(f"there is no model {name!r}; {_AVAILABLE}")
    module = find.load_file(file)
    steps = getattr(module, "steps", None)
    if steps is None:
        raise UsageError(f"{file!r} defines no `steps`: a list of what the model says and calls, turn by turn")
    try:
        return _Asked(scripted(steps))
    except DefinitionError as error:
        raise UsageError(f"{file!r}: {error}") from None


def _head(console: Console, task: str, model: str, runner: Runner) -> None:
    console.print(Text.assemble(("task   ", "dim"), printable(task)))
    note = "the model is SCRIPTED: its turns were written in advance, the tools and their results are real"
    console.print(Text.assemble(("model  ", "dim"), printable(model), "  ", (f"({note})", "yellow")))
    console.print(Text.assemble(("tools  ", "dim"), printable(", ".join(tool.name for tool in runner.tools))))


async def _watched(running: Run, timeline: Timeline) -> LoopResult:
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


def _answer(console: Console, result: LoopResult) -> None:
    console.print()
    console.print(Text("answer" if result.status == "done" else f"the run ended: {result.status}", style="bold"))
    if result.text:
        console.print(Text(printable(result.text.strip())))


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
        f"{record['latency_ms']:.0f}",
        error,
    ]
