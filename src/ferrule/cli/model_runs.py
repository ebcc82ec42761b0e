"""The common part of `ferrule run` and `ferrule chat`: a model at work, each event shown as it happens."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from ferrule import Event, Runner, ToolContext
from ferrule.approval import printable
from ferrule.cli import find, journals, models, openapi, policies, servers, settings
from ferrule.cli.bars import Bars
from ferrule.cli.interrupt import Stages
from ferrule.cli.screen import screen
from ferrule.cli.selectors import selector_at
from ferrule.cli.text import one_line
from ferrule.cli.timeline import Timeline
from ferrule.cli.usage import at_least_one
from ferrule.loop.agent_loop import Finished, LoopResult, ModelText, Run, TurnStarted
from ferrule.loop.agent_loop import run as loop
from ferrule.models import Message
from ferrule.policy import Policy
from ferrule.selection import Ranker, search_tool
from ferrule.selection.keyword import Keyword
from ferrule.selection.search_tool import finds_tools
from ferrule.values.content import truncate_text
from ferrule.values.log import make_logger

_log = make_logger("ferrule.cli")
_LONGEST_FAILURE = 2_000


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the options of the commands in which a model works."""
    parser.add_argument("--model", metavar="MODEL", help=models.MODEL_HELP)
    parser.add_argument("--base-url", metavar="URL", help=models.ADDRESS_HELP)
    parser.add_argument(
        "--max-turns",
        type=at_least_one,
        default=20,
        metavar="N",
        help="how often the model is asked at most (default: 20); calls that it makes in the last turn are not run",
    )
    parser.add_argument(
        "--select",
        metavar="SELECTOR",
        help="offer the model a part of the tools, and a search tool to find the others: keyword:8, pinned:NAMES, "
        "by_budget:TOKENS, a plug-in, or MODULE_OR_FILE:ATTRIBUTE",
    )
    find.add_yes(parser)
    find.add_lock(parser)
    find.add_session(parser)
    policies.add_policy(parser)
    policies.add_shadow(parser)
    journals.add_journal(parser)


@dataclass(frozen=True, slots=True)
class Setup:
    """The setup of a model, for one task or for a conversation."""

    options: argparse.Namespace
    work: asyncio.Runner
    console: Console
    timeline: Timeline
    bars: Bars
    model: models.Named
    runner: Runner
    selector: Any
    context: ToolContext

    def start(self, messages: Iterable[Message], state: Mapping[str, Any] | None = None) -> Run:
        """Return a run that goes on from these messages."""
        given = {"context": self.context, "max_turns": self.options.max_turns, "selector": self.selector}
        return loop(self.model, messages, self.runner, state=state, **given)

    def watch(self, running: Run, stages: Stages, cancel: Callable[[], object]) -> LoopResult:
        """Show the events of a run until it ends, and its outcome. Each ctrl-C calls `cancel`.

        Raises:
            ModelFailed: The model raised.
        """
        with stages, closing(self.timeline):
            result = self.work.run(_watched(self, running, stages, cancel))
        _print_answer(self.console, result, self.options.max_turns)
        return result


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Setup]:
    """Yield the setup that the command line and the settings describe. It is open while the model works with it."""
    settings.fill_in(options)
    with servers.connected(options, None if options.select else openapi.BUDGET) as (work, more):
        console = screen()
        bars = Bars(console)
        model = models.named(options.model, options.base_url)
        timeline = Timeline(console, time.monotonic, bars)
        selector = None if options.select is None else selector_at("--select", options.select)
        runner = find.runner(
            options.tools,
            timeline.paused,
            options.yes,
            more,
            lock=options.lock,
            policy=policies.of(options),
            remember=find.scope_of(options),
            secrets=openapi.secrets(options),
        )
        if selector is not None and not any(map(finds_tools, runner.tools)):
            ranker = selector if isinstance(selector, Ranker) and not isinstance(selector, Keyword) else None
            taken = {tool.name for tool in (*runner.tools, *runner.tools.quarantined)}
            name = "search_tools" if "search_tools" not in taken else "search_all_tools"  # a server's own
            runner = runner.replace(tools=runner.tools.register(search_tool(runner.tools, ranker, name=name)))
        _print_header(console, getattr(options, "task", None), model, runner, options.select)
        context = ToolContext(session=options.session or f"cli-{secrets.token_hex(4)}")
        with journals.kept(work, runner, options.journal) as journaled:
            try:
                yield Setup(options, work, console, timeline, bars, model, journaled, selector, context)
            finally:
                work.run(model.aclose())
                if options.shadow is not None:
                    _print_differences(console, journaled)


def say_failure(error: Exception) -> None:
    """Report in one line why the model gave no answer."""
    _log.debug("the model failed", exc_info=error)
    print(f"ferrule: the model failed: {one_line(str(error), _LONGEST_FAILURE)}", file=sys.stderr)


def _print_header(console: Console, task: str | None, model: models.Named, runner: Runner, select: str | None) -> None:
    if task is not None:
        console.print(Text.assemble(("task   ", "dim"), printable(task)))
    note = "the model is SCRIPTED: its turns were written in advance, the tools and their results are real"
    told = ("  ", (f"({note})", "yellow")) if model.is_scripted else ()
    console.print(Text.assemble(("model  ", "dim"), printable(model.name), *told))
    if select is None:
        names = printable(", ".join(tool.name for tool in runner.tools))
        console.print(Text.assemble(("tools  ", "dim"), truncate_text(names, 1000)))


def _offered(turn: TurnStarted, of: int) -> str:
    return f"{len(turn.offered)} of {of} offered: {truncate_text(printable(', '.join(turn.offered)), 1000)}"


async def _watched(setup: Setup, running: Run, stages: Stages, cancel: Callable[[], object]) -> LoopResult:
    stages.steer(cancel)
    timeline, selecting_from = setup.timeline, 0 if setup.selector is None else len(setup.runner.tools)
    said = ""  # held back, because the last words are the answer, which is shown below
    async with running as events:
        async for happened in events:
            if isinstance(happened, ModelText):  # its end is shown as it comes, the whole of it in a line afterwards
                said += happened.text
                setup.bars.show("", "model", {"chunk": happened.text})
                continue
            setup.bars.drop("")
            if isinstance(happened, Finished):
                break
            if isinstance(happened, TurnStarted) and happened.number == 1 and selecting_from:
                timeline.note("tools  ", _offered(happened, selecting_from))
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


def _print_answer(console: Console, result: LoopResult, max_turns: int) -> None:
    console.print()
    console.print(Text("answer" if result.status == "done" else f"the run ended: {result.status}", style="bold"))
    if result.reason:
        console.print(Text(printable(result.reason), style="yellow"))
    if result.status == "limited" and result.turns == max_turns:
        note = f"that was turn {max_turns} of at most {max_turns}: --max-turns allows more"
        console.print(Text(note, style="yellow"))
    if result.text:
        console.print(Text(printable(result.text.strip())))


def _print_differences(console: Console, runner: Runner) -> None:
    """Print the decisions that the policy in shadow would have changed."""
    found = [one for guard in runner.guards if isinstance(guard, Policy) for one in guard.differences()]
    console.print(Text("\nin shadow", style="bold"))
    if not found:
        console.print("It would have decided the same.")
    for one in found:
        rules = f"{one.now_rule or 'no rule'}; in shadow {one.shadow_rule or 'no rule'}"
        counted = f"{one.count} {'call' if one.count == 1 else 'calls'} of {one.tool}"
        console.print(Text(printable(f"{counted}: {one.now}, in shadow {one.shadow} ({rules})")))
