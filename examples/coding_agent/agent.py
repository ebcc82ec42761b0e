"""A coding agent: a model works on a task in one folder, and a person is asked before anything changes.

What it may do stands in a file, `examples/policies/coding_agent.toml`: it reads, lists and searches files by itself,
and runs the tests, `git status`, `git diff` and `git log`. Before it edits or writes a file it shows the difference and
asks, and before any other command it asks too. It removes nothing, pushes nothing, and reaches nothing in `.git`. Its
file tools reach nothing outside the folder. All else in the folder the model may read without asking, a `.env` too.

Start it with the SDK of your model (`pip install "ferrule[anthropic]" pytest`) and its key in the environment:

    python examples/coding_agent/agent.py "Mend the failing test" --folder ~/project --model anthropic:claude-sonnet-5-5
    python examples/coding_agent/agent.py "…" --yes edit_file       # these edits are not asked about
    ferrule policy test examples/policies/coding_agent.toml         # what the policy says, with its own tests

An answer may be given for always: `ferrule grants` lists what was, and `ferrule grants revoke` takes it back. Who
allowed what, by which rule, is written to `--log`: a line of JSON for each decision and each call.

The tests and commands run with your rights, and what they do is not held in the folder: whoever says yes to an edit
lets the model's code run in the tests. With edits in `--yes`, start the program in a container.

What to change first:

- `TASK`: the instructions, such as the style of your project.
- The policy: copy it, and give yours as `--policy`.
- `tests_tool.py`: how your tests are started, if not by pytest.
- `agent`: more tools and guards, or an approver that asks in a chat instead of at the terminal.
- To go on talking: `run(model, [*result.messages, *model.user("…")], runner, context=context, state=result.state)`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import runpy
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from shell_tool import shell
from tests_tool import run_tests

from ferrule import Decision, DefinitionError, Event, FerruleError, Runner, ToolCall, ToolContext, deny, models
from ferrule.approval import Answer, Asked, Grants, console, printable, remembered
from ferrule.cli.kept import Kept
from ferrule.guards import rules, within
from ferrule.journal import events
from ferrule.loop import LoopResult, ModelText, run
from ferrule.middleware import limit_output
from ferrule.tools import files

TASK = """You work on the project in the working directory, with tools that start there.
Look before you change anything, change as little as the task needs, and run the tests after it.
A change that was refused stays refused: do not try it in another way. At the end say what you changed, and why.

The task: {task}"""

TOOLS = [*files.tools, run_tests, shell]

HERE = Path(__file__).resolve().parent
POLICY = HERE.parent / "policies" / "coding_agent.toml"
LOG = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "ferrule/coding_agent.jsonl"
"""Outside the folder, so that no tool of the model reads or writes it."""


def no_repository_internals(call: ToolCall, context: ToolContext) -> Decision | None:
    """A hook that is written into .git would run at the next commit, with nobody asked. The policy says it of the .git
    of the folder; this, of those in folders below as well."""
    parts = Path(call.arguments.get("path", "")).parts  # every tool here calls its path so, and `within` made it real
    if ".git" in map(str.casefold, parts):
        return deny("what is in .git is not for this agent")
    return None


class Answering:
    """Runs the tools in `yes` without asking, and asks at the terminal about all others."""

    def __init__(self, yes: Collection[str]) -> None:
        self.approve = frozenset(yes)
        self.terminal = console()

    async def __call__(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        return (await self.answer(Asked.of(call, decision, context))).decision

    async def answer(self, asked: Asked) -> Answer:
        known = asked.call.name in self.approve and asked.decision.into is None
        return asked.approve(by="--yes") if known else await self.terminal.answer(asked)


def agent(folder: Path, yes: Collection[str] = (), policy: Path = POLICY, log: Path = LOG) -> Runner:
    """The tools, what may run, who is asked, what is remembered of the answers, and where it is written down."""
    grants = Grants(
        Kept([str(folder)], str(folder))
    )  # those of the command line: `ferrule grants` lists and revokes them
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Runner(
        TOOLS,
        guards=[within(folder), no_repository_internals, rules(policy, tools=TOOLS)],
        approve=remembered(Answering(yes), grants),
        around=[limit_output(16_000)],
        observers=[events.to_file(log, decisions=True)],
        timeout=60,
    )


async def work(model: Any, task: str, folder: Path, runner: Runner) -> LoopResult:
    """Let the model work on a task, and show what it says and does."""
    context = ToolContext(working_directory=str(folder), principal="terminal", session=secrets.token_hex(4))
    async with model, runner:
        messages = model.user(TASK.format(task=task))
        async with run(model, messages, runner, context=context, max_turns=50) as running:
            async for event in running:
                show(event)
        return running.result


def show(event: Any) -> None:
    """One event, as the person at the terminal reads it."""
    if isinstance(event, ModelText):
        print(printable(event.text), end="", flush=True)
    elif isinstance(event, Event) and event.kind == "tool:pre":
        print(printable(f"\n→ {event.call.name} {shortened(event.data['input'])}"), flush=True)
    elif isinstance(event, Event) and event.kind == "tool:post":
        print(printable(f"✓ {event.call.name}: {event.data['result'].text[:60]!a}"), flush=True)
    elif isinstance(event, Event) and event.kind == "tool:error":
        print(printable(f"✗ {event.call.name}: {event.data['error']}"), flush=True)


def shortened(arguments: Mapping[str, Any] | str) -> str:
    """What a call was made with, on one line: its text is the model's, and may hold anything."""
    if isinstance(arguments, str):  # what the model wrote is no JSON
        return f"{arguments[:60]!a}"
    return ", ".join(f"{name}={str(value)[:60]!a}" for name, value in arguments.items())


def model_named(text: str) -> Any:
    """`anthropic:claude-sonnet-5-5`, `ollama:qwen3`, …; `scripted:FILE` is a model that says the list `steps` of it."""
    try:
        if text.startswith("scripted:"):
            return models.Scripted(runpy.run_path(text.removeprefix("scripted:"))["steps"])
        return models.model_from_name(text)
    except DefinitionError as error:  # no such model, or the SDK or its key is missing
        raise argparse.ArgumentTypeError(str(error)) from None


def folder_named(text: str) -> Path:
    """A folder that is there, as a whole path."""
    folder = Path(text).expanduser().resolve()
    if not folder.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no folder")
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description="Let a model work on a task in a folder.")
    parser.add_argument("task")
    parser.add_argument("--folder", type=folder_named, default=".", help="what it works on (this one)")
    parser.add_argument("--model", type=model_named, default="anthropic:claude-sonnet-5-5", metavar="PROVIDER:NAME")
    names = [tool.name for tool in TOOLS]
    parser.add_argument("--yes", action="append", default=[], choices=names, metavar="TOOL", help="not asked about")
    parser.add_argument("--policy", type=Path, default=POLICY, metavar="FILE", help=f"what it may do ({POLICY})")
    parser.add_argument("--log", type=Path, default=LOG, metavar="FILE", help=f"who allowed what ({LOG})")
    given = parser.parse_args()
    try:
        runner = agent(given.folder, given.yes, given.policy, given.log)
        result = asyncio.run(work(given.model, given.task, given.folder, runner))
    except models.ModelError as error:
        raise SystemExit(printable(f"The model's API: {error}")) from None
    except (FerruleError, OSError) as error:  # the policy is wrong, grants cannot be kept, or the log not be written
        raise SystemExit(printable(str(error))) from None
    except KeyboardInterrupt:
        print("\nStopped. What was changed before stays changed.")
        return 130
    print()
    if result.status != "done":
        print(printable(f"It ended before it was done ({result.status}): {result.reason or 'no reason was given'}"))
    return 0 if result.status == "done" else 1


if __name__ == "__main__":
    raise SystemExit(main())
