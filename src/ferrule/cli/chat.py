"""`ferrule chat`: a conversation with a model that works with the tools, line by line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from rich.text import Text

from ferrule import DefinitionError
from ferrule.approval import printable
from ferrule.approval.request import run_blocking
from ferrule.cli.interrupt import CODE, STOPS, Stages
from ferrule.cli.list import tools_table
from ferrule.cli.model_runs import Setup, add_model, open_setup, print_failure
from ferrule.cli.models import ModelFailed
from ferrule.cli.screen import print_table
from ferrule.cli.text import warn
from ferrule.cli.usage import UsageError, not_text, suggest
from ferrule.models import Message

COMMANDS = {
    "/tools": "list the tools",
    "/new": "start a new conversation",
    "/help": "list these commands",
    "/quit": "end the program, as ctrl-D does",
}
_PROMPT = "> "
_WITHOUT_PROMPT = (
    'chat at a terminal needs the package prompt_toolkit, which is not installed: pip install "ferrule[cli]"'
)


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the model and its tools."""
    add_model(parser)


def command(options: argparse.Namespace) -> int:
    """Answer line after line. Return 0 if all of them were answered."""
    with open_setup(options) as setup:
        return _Conversation(setup).hold()


class Interrupted(Exception):
    """Somebody pressed ctrl-C at the prompt."""


class Lines(Protocol):
    """A source of lines."""

    async def read(self) -> str | None:
        """Return the next line, or None at the end.

        Raises:
            Interrupted: Somebody pressed ctrl-C.
        """
        ...


class _Conversation:
    """A conversation, and what happens with the next line."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._messages: list[Message] = []
        self._state: Mapping[str, Any] = {}
        self._code = 0
        self._is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self._is_first = True
        self._was_interrupted = False
        """Whether ctrl-C was pressed after the last line. Another one at the prompt ends the program."""

    def hold(self) -> int:
        """Answer each line until the last."""
        names = [tool.name for tool in self._setup.runner.tools]
        lines = _prompt_lines(names) if self._is_terminal else _PipedLines()
        if self._is_terminal:
            self._print("/help lists the commands; ctrl-D ends the program", style="dim")
        while True:
            try:
                line = self._setup.work.run(lines.read())
                if line is None and self._is_first and not self._is_terminal:
                    raise UsageError("there is no task: use ferrule run TASK, or write each task as a line of input")
                self._is_first = False
                if line is None or line.strip() == "/quit":
                    return 0 if self._is_terminal else self._code
                if line.strip():
                    self._was_interrupted = False
                    self._take(line)
            except (Interrupted, KeyboardInterrupt):
                if self._was_interrupted or not self._is_terminal:
                    return CODE
                self._was_interrupted = True
                self._print("press ctrl-C again to end the program", style="dim")

    def _take(self, line: str) -> None:
        if line.startswith("/"):
            self._obey(line.strip())
            return
        if not self._is_terminal:
            self._setup.console.print(Text.assemble(("\ntask   ", "dim"), printable(line)))
        self._answer(line)
        if self._was_interrupted and not self._is_terminal:
            raise Interrupted

    def _obey(self, name: str) -> None:
        if name == "/tools":
            print_table(tools_table(self._setup.runner.tools))
        elif name == "/new":
            self._messages, self._state = [], {}
            self._print("new conversation: the model starts without the earlier messages")
        elif name == "/help":
            for command, effect in COMMANDS.items():
                self._print(f"{command:<8}{effect}")
            self._print("any other line goes to the model; so does a line that starts with a blank and /")
        else:
            self._code = 1
            warn(f"there is no command {name!r}; {suggest(name, COMMANDS)}")

    def _answer(self, line: str) -> None:
        """Let the model answer one line, and store the messages and the state for the next one."""
        messages = [*self._messages, *self._setup.model.user(line)]
        running = self._setup.start(messages, self._state)
        stages = Stages(self._setup.timeline.aside, STOPS)
        self._setup.timeline.restart()
        status = "failed"
        try:
            status = self._setup.watch(running, stages, partial(running.cancel, now=True)).status
        except (ModelFailed, DefinitionError) as error:
            print_failure(error)
        if len(running.messages) > len(messages):  # otherwise the line has no answer, and you can write it again
            self._messages, self._state = running.messages, running.state
        self._code = self._code if status == "done" else 1
        self._was_interrupted = bool(stages.pressed)

    def _print(self, text: str, style: str = "") -> None:
        self._setup.console.print(Text(printable(text), style=style))


class _PipedLines:
    """The lines of a standard input that is not a terminal."""

    async def read(self) -> str | None:
        try:
            line = await run_blocking(sys.stdin.readline)
        except UnicodeDecodeError as error:
            raise not_text(error) from None
        return line.removesuffix("\n") if line else None


def _prompt_lines(names: Sequence[str]) -> Lines:
    """Return the lines that a person types at a terminal. Tab completes the names of tools and commands."""
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
    except ImportError:
        raise UsageError(_WITHOUT_PROMPT) from None
    session: PromptSession[str] = PromptSession(
        _PROMPT,
        completer=WordCompleter([*COMMANDS, *names], WORD=True),
        complete_while_typing=False,
        interrupt_exception=Interrupted,
        eof_exception=EOFError,
    )

    class Prompt:
        async def read(self) -> str | None:
            try:
                return await session.prompt_async()
            except EOFError:
                return None

    return Prompt()
