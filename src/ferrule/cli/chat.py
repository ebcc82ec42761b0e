"""`ferrule chat`: a conversation with a model that works with the tools, line by line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from rich.text import Text

from ferrule import DefinitionError
from ferrule.approval import printable
from ferrule.approval.request import run_blocking
from ferrule.cli.interrupt import CODE, STOPS, Stages
from ferrule.cli.list import tools_table
from ferrule.cli.model_runs import Setup, add_model, prepared, say_failure
from ferrule.cli.models import ModelFailed
from ferrule.cli.screen import lay
from ferrule.cli.usage import UsageError, choices
from ferrule.models import Message

COMMANDS = {
    "/tools": "show the tools",
    "/new": "begin a new conversation",
    "/help": "show these commands",
    "/quit": "end, as ctrl-D does",
}
_PROMPT = "> "
_WITHOUT_PROMPT = (
    'a conversation at a terminal needs the package prompt_toolkit, which is not installed: pip install "ferrule[cli]"'
)


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the model and its tools."""
    add_model(parser)


def command(options: argparse.Namespace) -> int:
    """Answer line after line. Return 0 if all of them were answered."""
    with prepared(options) as setup:
        return _Conversation(setup).hold()


class Interrupted(Exception):
    """Somebody pressed ctrl-C at the prompt."""


class Lines(Protocol):
    """The source of the lines."""

    async def read(self) -> str | None:
        """Return the next line; `None` at the end.

        Raises:
            Interrupted: Somebody pressed ctrl-C.
        """
        ...


class _Conversation:
    """The messages so far, and the handling of the next line."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._messages: list[Message] = []
        self._state: Mapping[str, Any] = {}
        self._code = 0
        self._at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self._is_first = True
        self._was_interrupted = False
        """Whether ctrl-C was pressed since the last line: another one at the prompt ends the program."""

    def hold(self) -> int:
        """Answer each line until the last."""
        names = [tool.name for tool in self._setup.runner.tools]
        lines = _at_the_prompt(names) if self._at_terminal else _Piped()
        if self._at_terminal:
            self._say("/help shows the commands, and ctrl-D ends", style="dim")
        while True:
            try:
                line = self._setup.work.run(lines.read())
                if line is None and self._is_first and not self._at_terminal:
                    raise UsageError("there is no task: ferrule run TASK, or a line of the standard input for each")
                self._is_first = False
                if line is None or line.strip() == "/quit":
                    return 0 if self._at_terminal else self._code
                if line.strip():
                    self._was_interrupted = False
                    self._take(line)
            except (Interrupted, KeyboardInterrupt):
                if self._was_interrupted or not self._at_terminal:
                    return CODE
                self._was_interrupted = True
                self._say("press ctrl-C again to end", style="dim")

    def _take(self, line: str) -> None:
        if line.startswith("/"):
            self._obey(line.strip())
            return
        if not self._at_terminal:
            self._setup.console.print(Text.assemble(("\ntask   ", "dim"), printable(line)))
        self._answer(line)
        if self._was_interrupted and not self._at_terminal:
            raise Interrupted

    def _obey(self, name: str) -> None:
        if name == "/tools":
            lay(self._setup.console, tools_table(self._setup.runner.tools, self._setup.console.width))
        elif name == "/new":
            self._messages, self._state = [], {}
            self._say("a new conversation: the model knows nothing of what was said before")
        elif name == "/help":
            for command, does in COMMANDS.items():
                self._say(f"{command:<8}{does}")
            self._say("everything else goes to the model; so does a line with a blank before its /")
        else:
            self._code = 1
            print(printable(f"ferrule: there is no command {name!r}; {choices(name, COMMANDS)}"), file=sys.stderr)

    def _answer(self, line: str) -> None:
        """Have the model answer one line, and store the messages and the state for the next one."""
        asked = [*self._messages, *self._setup.model.user(line)]
        running = self._setup.start(asked, self._state)
        stages = Stages(self._setup.timeline.aside, STOPS)
        self._setup.timeline.restart()
        status = "failed"
        try:
            status = self._setup.watch(running, stages, partial(running.cancel, now=True)).status
        except (ModelFailed, DefinitionError) as error:
            say_failure(error)
        if len(running.messages) > len(asked):  # else the line has no answer, and can be written again
            self._messages, self._state = running.messages, running.state
        self._code = self._code if status == "done" else 1
        self._was_interrupted = bool(stages.pressed)

    def _say(self, text: str, style: str = "") -> None:
        self._setup.console.print(Text(printable(text), style=style))


class _Piped:
    """The lines of a standard input that is no terminal."""

    async def read(self) -> str | None:
        try:
            line = await run_blocking(sys.stdin.readline)
        except UnicodeDecodeError as error:
            raise UsageError(f"standard input is no {error.encoding} text (byte {error.start})") from None
        return line.removesuffix("\n") if line else None


def _at_the_prompt(names: Sequence[str]) -> Lines:
    """Return the lines typed at a terminal, with the earlier lines and the names of tools at hand."""
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import CompleteEvent, Completer, Completion
        from prompt_toolkit.document import Document
    except ImportError:
        raise UsageError(_WITHOUT_PROMPT) from None

    class Names(Completer):
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
            word = document.get_word_before_cursor(WORD=True)
            for name in completions(word, document.text_before_cursor, names):
                yield Completion(name, -len(word))

    session: PromptSession[str] = PromptSession(
        _PROMPT,
        completer=Names(),
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


def completions(word: str, before: str, names: Sequence[str]) -> list[str]:
    """Return the commands, or the tools, whose names begin with a word."""
    known = list(COMMANDS) if before == word and word.startswith("/") else names
    return [name for name in known if word and name.startswith(word)]
