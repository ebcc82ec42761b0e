"""A coding agent: a model works on a task in one folder, and you are asked when it needs something outside.

The shell runs every line in a sandbox of the operating system (Linux, bubblewrap): a line may change the folder, and
reaches no network, no other folder, no key of yours and no other program. So the agent runs tests, edits files and
commits without a question. It asks you before a line that needs the network, another folder or no sandbox, and before
it changes settings that your editor, git or other agents would run. The policy file
`examples/policies/coding_agent.toml` says so; it also denies `git push`. The model may read everything in the folder
without asking, even a `.env` file.

Start it with the SDK of your model (`pip install "ferrule[anthropic,sandbox]"`) and its key in the environment:

    python examples/coding_agent/agent.py "Mend the failing test" --folder ~/project --model anthropic:claude-sonnet-5-5
    ferrule policy test examples/policies/coding_agent.toml         # run the tests of the policy

You see each step:

    → shell command='python3 -m unittest -q'
    ✓ shell: 'exit code 1 after 0.2 s\n\nFAIL: test_add (test_calc.Test)'

You may make an answer permanent: `ferrule grants` lists these answers, and `ferrule grants revoke` takes them back.
`--log` records who allowed what by which rule, one line of JSON for each decision and each call.

Review the changes before you run the project yourself: outside the sandbox, its code has your rights.

What to change first:

- `TASK`: the instructions, such as the style of your project.
- The policy: copy it, and use yours with `--policy`.
- `make_tools`: more folders for the shell (`read=`, `write=`), more protected paths, more tools.
- `agent`: more guards, or an approver that asks in a chat instead of at the terminal.
- To continue the conversation:
  `run(model, [*result.messages, *model.user("…")], runner, context=context, state=result.state)`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import runpy
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ferrule import (
    Decision,
    DefinitionError,
    Event,
    FerruleError,
    Runner,
    Tool,
    ToolCall,
    ToolContext,
    deny,
    models,
)
from ferrule.approval import Grants, console, printable, remembered
from ferrule.cli import GrantStore
from ferrule.guards import rules, within
from ferrule.journal import events
from ferrule.loop import LoopResult, ModelText, run
from ferrule.middleware import limit_output
from ferrule.tools import files, shell

TASK = """You work on the project in the working directory, with tools that start there.
Look before you change anything, change as little as the task needs, and run the tests after it.
A change that was refused stays refused: do not try it in another way. At the end, say what you changed and why.

The task: {task}"""

HERE = Path(__file__).resolve().parent
POLICY = HERE.parent / "policies" / "coding_agent.toml"
LOG = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "ferrule/coding_agent.jsonl"
"""Outside the folder, so that no tool of the model reads or writes it."""


def no_repository_internals(call: ToolCall, context: ToolContext) -> Decision | None:
    """Deny paths in every `.git`, because a hook there would run at the next commit. The policy covers only one of
    them, that of the folder."""
    parts = Path(call.arguments.get("path", "")).parts  # every tool here has this name for its path
    if ".git" in map(str.casefold, parts):
        return deny("what is in .git is not for this agent")
    return None


def make_tools(folder: Path) -> list[Tool]:
    """Return the tools for one folder: its files, and a shell in a sandbox around it."""
    inside = within(folder)  # for the files alone: in the sandbox of the shell, /tmp is another one
    return [*(tool.replace(guards=[inside, no_repository_internals]) for tool in files.tools), shell.tool(folder)]


def agent(folder: Path, policy: Path = POLICY, log: Path = LOG) -> Runner:
    """Return the runner: tools, rules, approver with grants, and log."""
    tools = make_tools(folder)
    grants = Grants(GrantStore([str(folder)], str(folder)))  # the grants that `ferrule grants` lists
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Runner(
        tools,
        guards=[rules(policy, tools=tools)],
        approve=remembered(console(), grants),
        around=[limit_output(16_000)],
        observers=[events.to_file(log, decisions=True)],
        timeout=60,
    )


async def work(model: Any, task: str, folder: Path, runner: Runner) -> LoopResult:
    """Let the model work on a task, and print each event."""
    context = ToolContext(working_directory=str(folder), principal="terminal", session=secrets.token_hex(4))
    async with model, runner:
        messages = model.user(TASK.format(task=task))
        async with run(model, messages, runner, context=context, max_turns=50) as running:
            async for event in running:
                show(event)
        return running.result


def show(event: Any) -> None:
    """Print one event for the person at the terminal."""
    if isinstance(event, ModelText):
        print(printable(event.text), end="", flush=True)
    elif isinstance(event, Event) and event.kind == "tool:pre":
        print(printable(f"\n→ {event.call.name} {format_arguments(event.data['input'])}"), flush=True)
    elif isinstance(event, Event) and event.kind == "tool:post":
        print(printable(f"✓ {event.call.name}: {event.data['result'].text[:60]!a}"), flush=True)
    elif isinstance(event, Event) and event.kind == "tool:error":
        print(printable(f"✗ {event.call.name}: {event.data['error']}"), flush=True)


def format_arguments(arguments: Mapping[str, Any] | str) -> str:
    """Return the arguments of a call on one line. The model's text may contain anything."""
    if isinstance(arguments, str):  # the model wrote invalid JSON
        return f"{arguments[:60]!a}"
    return ", ".join(f"{name}={str(value)[:60]!a}" for name, value in arguments.items())


def parse_model(text: str) -> Any:
    """Return the model of `anthropic:claude-sonnet-5-5`, or one that follows the list `steps` of `scripted:FILE`."""
    try:
        if text.startswith("scripted:"):
            return models.Scripted(runpy.run_path(text.removeprefix("scripted:"))["steps"])
        return models.model_from_name(text)
    except DefinitionError as error:  # no such model, or the SDK or its key is missing
        raise argparse.ArgumentTypeError(str(error)) from None


def parse_folder(text: str) -> Path:
    """Return the absolute path of an existing folder."""
    folder = Path(text).expanduser().resolve()
    if not folder.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a folder")
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description="Let a model work on a task in a folder.")
    parser.add_argument("task")
    parser.add_argument(
        "--folder", type=parse_folder, default=".", help="the folder of the project (default: this one)"
    )
    parser.add_argument("--model", type=parse_model, default="anthropic:claude-sonnet-5-5", metavar="PROVIDER:NAME")
    parser.add_argument("--policy", type=Path, default=POLICY, metavar="FILE", help=f"the policy (default: {POLICY})")
    parser.add_argument("--log", type=Path, default=LOG, metavar="FILE", help=f"the log of decisions (default: {LOG})")
    options = parser.parse_args()
    try:
        runner = agent(options.folder, options.policy, options.log)
        result = asyncio.run(work(options.model, options.task, options.folder, runner))
    except models.ModelError as error:
        raise SystemExit(printable(f"The model's API: {error}")) from None
    except (FerruleError, OSError) as error:  # no sandbox, a wrong policy, or a log that cannot be written
        raise SystemExit(printable(str(error))) from None
    except KeyboardInterrupt:
        print("\nStopped. Earlier changes stay.")
        return 130
    print()
    if result.status != "done":
        print(printable(f"The run ended early ({result.status}): {result.reason or 'no reason'}"))
    return 0 if result.status == "done" else 1


if __name__ == "__main__":
    raise SystemExit(main())
