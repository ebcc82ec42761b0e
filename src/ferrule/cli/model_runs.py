"""Runs a model for `ferrule run` and `ferrule chat`, and shows each event as it happens."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from ferrule import Runner, ToolContext
from ferrule.approval import printable
from ferrule.cli import journals, models, runners, servers, settings
from ferrule.cli.bars import Bars
from ferrule.cli.interrupt import Stages
from ferrule.cli.screen import make_console
from ferrule.cli.selectors import load_selector
from ferrule.cli.shared_options import OPERATIONS_BUDGET, add_shared
from ferrule.cli.text import warn
from ferrule.cli.timeline import Timeline
from ferrule.loop.agent_loop import Finished, LoopResult, ModelText, Run, TurnStarted
from ferrule.loop.agent_loop import run as loop
from ferrule.models import Message
from ferrule.policy import Policy
from ferrule.selection import Ranker, search_tool
from ferrule.selection.keyword import Keyword
from ferrule.selection.search_tool import finds_tools
from ferrule.values.content import truncate_text
from ferrule.values.count import format_count
from ferrule.values.log import make_logger

_log = make_logger("ferrule.cli")


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the options of the commands in which a model works."""
    parser.add_argument(
        "--select",
        metavar="SELECTOR",
        help="offer the model some of the tools, and a search tool for the others: keyword:8, pinned:NAMES, "
        "by_budget:TOKENS, a plug-in, or MODULE_OR_FILE:NAME",
    )
    model = ("--model", "--base-url", "--max-turns")
    add_shared(parser, *model, "--yes", "--policy", "--shadow", "--lock", "--session", "--journal")


@dataclass(frozen=True, slots=True)
class Setup:
    """A model with its tools and its display, for one task or for a conversation."""

    options: argparse.Namespace
    work: asyncio.Runner
    console: Console
    timeline: Timeline
    bars: Bars
    model: models.NamedModel
    runner: Runner
    selector: Any
    context: ToolContext

    def start(self, messages: Iterable[Message], state: Mapping[str, Any] | None = None) -> Run:
        """Return a run that continues from these messages."""
        settings = {"context": self.context, "max_turns": self.options.max_turns, "selector": self.selector}
        return loop(self.model, messages, self.runner, state=state, **settings)

    def watch(self, running: Run, stages: Stages, cancel: Callable[[], object]) -> LoopResult:
        """Show the events of a run until it ends, and its outcome. Each ctrl-C calls `cancel`.

        Raises:
            ModelFailed: The model raised.
        """
        with stages, closing(self.timeline):
            result = self.work.run(_show_events(self, running, stages, cancel))
        _print_answer(self.console, result, self.options.max_turns)
        return result


@contextmanager
def open_setup(options: argparse.Namespace) -> Iterator[Setup]:
    """Yield the setup that the command line and the settings describe. Close its connections afterwards."""
    settings.apply_settings(options)
    with servers.connect_servers(options, None if options.select else OPERATIONS_BUDGET) as (work, extra):
        console = make_console()
        bars = Bars(console)
        model = models.make_model(options.model, options.base_url)
        timeline = Timeline(console, time.monotonic, bars)
        selector = None if options.select is None else load_selector("--select", options.select)
        runner = runners.make_runner(options, extra, pause=timeline.pause, remember=runners.grant_scope(options))
        if selector is not None and not any(map(finds_tools, runner.tools)):
            ranker = selector if isinstance(selector, Ranker) and not isinstance(selector, Keyword) else None
            names = {tool.name for tool in (*runner.tools, *runner.tools.quarantined)}
            name = "search_tools" if "search_tools" not in names else "search_all_tools"  # a server may have one
            runner = runner.replace(tools=runner.tools.register(search_tool(runner.tools, ranker, name=name)))
        _print_header(console, getattr(options, "task", None), model, runner, options.select)
        context = ToolContext(session=options.session or f"cli-{secrets.token_hex(4)}")
        with journals.open_journal(work, runner, options.journal) as journaled:
            try:
                yield Setup(options, work, console, timeline, bars, model, journaled, selector, context)
            finally:
                work.run(model.aclose())
                if options.shadow is not None:
                    _print_differences(console, journaled)


def print_failure(error: Exception) -> None:
    """Print in one line why the model gave no answer."""
    _log.debug("the model failed", exc_info=error)
    warn(f"the model failed: {error}")


def _print_header(
    console: Console, task: str | None, model: models.NamedModel, runner: Runner, select: str | None
) -> None:
    if task is not None:
        console.print(Text.assemble(("task   ", "dim"), printable(task)))
    note = "SCRIPTED: the model's turns come from a file; the tools and their results are real"
    suffix = ("  ", (f"({note})", "yellow")) if model.is_scripted else ()
    console.print(Text.assemble(("model  ", "dim"), printable(model.name), *suffix))
    if select is None:
        names = printable(", ".join(tool.name for tool in runner.tools))
        console.print(Text.assemble(("tools  ", "dim"), truncate_text(names, 1000)))


def _format_offer(turn: TurnStarted, count: int) -> str:
    return f"{len(turn.offered)} of {count} offered: {truncate_text(printable(', '.join(turn.offered)), 1000)}"


async def _show_events(setup: Setup, running: Run, stages: Stages, cancel: Callable[[], object]) -> LoopResult:
    stages.steer(cancel)
    timeline, tools = setup.timeline, 0 if setup.selector is None else len(setup.runner.tools)
    text = ""  # held back, because the last text is the answer, which is printed below
    async with running as events:
        async for event in events:
            if isinstance(event, ModelText):  # a row shows the end of the text while it comes
                text += event.text
                setup.bars.show("", "model", {"chunk": event.text})
                continue
            setup.bars.drop("")
            if isinstance(event, Finished):
                break
            if isinstance(event, TurnStarted) and event.number == 1 and tools:
                timeline.note("tools  ", _format_offer(event, tools))
            if text:
                timeline.model_text(text)
            text = ""
            if isinstance(event, TurnStarted):
                timeline.heading(f"turn {event.number}")
            else:
                timeline.event(event)
    return running.result


def _print_answer(console: Console, result: LoopResult, max_turns: int) -> None:
    console.print()
    console.print(Text("answer" if result.status == "done" else f"the run ended: {result.status}", style="bold"))
    note = result.reason
    if result.status == "limited" and result.turns == max_turns:
        note = f"the limit is {format_count(max_turns, 'turn')}; --max-turns sets another"
    if note:
        console.print(Text(printable(note), style="yellow"))
    if result.text:
        console.print(Text(printable(result.text.strip())))


def _print_differences(console: Console, runner: Runner) -> None:
    """Print the decisions that the shadow policy would change."""
    differences = [found for guard in runner.guards if isinstance(guard, Policy) for found in guard.differences()]
    console.print(Text("\nshadow policy", style="bold"))
    if not differences:
        console.print("It would make the same decisions.")
    for found in differences:
        calls = f"{format_count(found.count, 'call')} of {found.tool}"
        rules = f"{found.now_rule or 'no rule'}; shadow: {found.shadow_rule or 'no rule'}"
        console.print(Text(printable(f"{calls}: {found.now}, with the shadow policy {found.shadow} ({rules})")))
