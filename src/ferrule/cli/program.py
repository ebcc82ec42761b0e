"""The program itself: the choice of the command, its options, and the form of an error."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import logging
import os
import shlex
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Literal, NoReturn, TextIO

from ferrule import FerruleError, __version__
from ferrule.approval import printable
from ferrule.cli.text import short
from ferrule.cli.usage import UsageError, choices

COMMANDS = {
    "list": "show the tools, and what each does to the world",
    "schema": "print the tools as a model API gets them, as JSON",
    "lint": "say what a provider would refuse, what a model may mix up, and what each tool costs",
    "lock": "write down how the tools are, or say what changed since; accept a change",
    "select": "measure how well the right tools are found for a request, or say why these are found",
    "eval": "measure which tools a model calls with what for given requests",
    "test": "run the tests of files: calls and conversations, with what is expected of them",
    "policy": "check files of rules, run their tests, or trust a version of a file",
    "decide": "say what would become of a call, and which rule says so",
    "grants": "list what was allowed for a while, or take it back",
    "call": "call one tool, with key=value arguments or JSON",
    "run": "let a model work on a task with the tools",
    "chat": "talk with a model that works with the tools",
    "log": "show the calls that a journal has, and follow those that come; delete old ones",
    "explain": "show all that happened to one call of a journal",
    "serve": "offer the tools to MCP clients, over standard input and output or HTTP",
    "token": "make, list or remove the bearer tokens that `serve --tokens` knows",
    "worker": "run the calls that programs on other machines put into a queue",
    "plugins": "list what installed packages offer by entry points, and what is wrong with it",
}
"""The commands with a description of each. A command's module is imported when it is used, because rich is half of a
start.
"""
OPTIONS = {
    "-h": False,
    "--help": False,
    "--version": False,
    "--tools": True,
    "--mcp": True,
    "--openapi": True,
    "--server": True,
    "--only": True,
    "--secret": True,
    "--root": True,
    "--budget": True,
    "--verbose": False,
    "--yes": True,
    "--lock": True,
    "--accept": True,
    "--policy": True,
    "--shadow": True,
    "--journal": True,
    "--principal": True,
    "--session": True,
    "--list": False,
    "--forget": False,
    "--all": False,
    "--every": False,
    "--provider": True,
    "--strict": False,
    "--strict-schemas": False,
    "--check": False,
    "--strict-where-possible": False,
    "--by": True,
    "--min-recall5": True,
    "--min-ndcg": True,
    "--min-chosen": True,
    "--min-arguments": True,
    "--min-order": True,
    "--min-refusals": True,
    "--min-exact": True,
    "--live": False,
    "--at-once": True,
    "--json": False,
    "--tool": True,
    "--status": True,
    "--since": True,
    "--until": True,
    "--limit": True,
    "--follow": False,
    "--prune": True,
    "--model": True,
    "--base-url": True,
    "--max-turns": True,
    "--select": True,
    "--http": True,
    "--token-env": True,
    "--tokens": True,
    "--days": True,
    "--calls-per-minute": True,
    "--calls-per-day": True,
    "--calls": True,
    "--concurrency": True,
    "--allow-host": True,
    "--allow-origin": True,
    "--directory": True,
    "--drain": True,
    "--install": False,
}
"""The options, and whether they take a value: the words before the command are read before the command is known."""
_WITHOUT_TOOLS = frozenset({"grants", "log", "explain", "plugins", "token", "worker"})
_DESCRIPTION = "Tools for language models: list them, call them, let a model use them."
_EPILOG = """\
ferrule COMMAND --help has the options of a command.
Options and arguments may come in any order.

exit codes:
  0    it worked
  1    the call or the run failed or was denied,
       decide says that it would be denied,
       lint or policy found an error, a test failed,
       a tool is not as the lock has it,
       select eval or eval missed a threshold, a model failed in eval,
       or the output could not be written
  2    what was written on the command line cannot be meant,
       or what it names cannot be used
  3    decide says that a person would be asked
  130  ctrl-C ended it
"""
_WITHOUT_RICH = 'the command line needs the package rich, which is not installed: pip install "ferrule[cli]"'
_TOOLS_HELP = (
    "a Python file, a module, or either with :attribute; may be repeated (default: ferrule.tools.files). A Runner with "
    "guards, given alone, keeps its own policy; everything else is asked about before it changes anything, and keeps "
    "to the working directory"
)
_MCP_HELP = (
    "an mcp.json, as desktop clients have it, or the address of one MCP server; may be repeated. Without --tools, its "
    "tools are all there are. They are asked about before they change anything, which of a server each counts as doing"
)
_ERROR = 2000


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _, required, names = message.partition(" are required: ")
        if required:
            said = {one: one.option_strings or (str(one.metavar or one.dest), one.dest) for one in self._actions}
            missing = [one for one in said if {*said[one]} & {*names.split(", ")}]
            message = "; ".join(f"{said[one][0]} is missing: {one.help}" for one in missing)
        raise UsageError(f"{message} ({' '.join(self.format_usage().split())})")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. See docs/command-line.md."""
    words = sys.argv[1:] if argv is None else argv
    if _output_is_closed():
        print("ferrule: the standard output is closed", file=sys.stderr)
        return 1
    _write_what_can_be_written()
    try:
        code = _run(words)
        sys.stdout.flush()
        return code
    except (UsageError, FerruleError) as error:
        _say(error)
        return 2
    except BrokenPipeError:  # `ferrule … | head`
        _write_nothing_more()
        return 1
    except OSError as error:  # a full disk
        _write_nothing_more()
        _say(error)
        return 1
    except KeyboardInterrupt:
        print("ferrule: stopped", file=sys.stderr)
        return 130


def _say(error: Exception) -> None:
    """Print one line: the text may be of a file that could not be imported."""
    print(printable(short(f"ferrule: {' '.join(str(error).split())}", _ERROR)), file=sys.stderr)


def _output_is_closed() -> bool:
    """Return whether there is no standard output. Replace each closed stream by the null device.

    Otherwise the next file that is opened would get the stream's number, and the output for the stream.
    """
    if sys.stdin is None:
        sys.stdin = _nothing("r")
    closed = sys.stdout is None
    if closed:
        sys.stdout = _nothing("w")
    if sys.stderr is None:
        sys.stderr = _nothing("w")
    return closed


def _nothing(mode: Literal["r", "w"]) -> TextIO:
    return open(os.devnull, mode, encoding="utf-8")


def _write_nothing_more() -> None:
    """Discard the remaining output, because Python writes it at its end; see the note on SIGPIPE in its signal
    module.
    """
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_what_can_be_written() -> None:
    """Replace characters that the terminal's encoding lacks, so that they do not end the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(io.UnsupportedOperation):
                stream.reconfigure(errors="replace")


def _set_up_logging(verbose: bool) -> None:
    """Set up the log. Without `--verbose`, the kernel's log of an exception must not run into the command's output."""
    logger = logging.getLogger("ferrule")
    logger.addHandler(logging.StreamHandler() if verbose else logging.NullHandler())
    if verbose:
        logger.setLevel(logging.DEBUG)


def _run(words: Sequence[str]) -> int:
    name, rest = _command_and_rest(words)
    if name in {"-h", "--help"}:
        print(_help(), end="")
        return 0
    if name == "--version":
        print(f"ferrule {__version__}")
        return 0
    command = _command(name)
    options = _read_options(name, command, rest)
    _set_up_logging(options.verbose)
    code: int = command.command(options)
    return code


def _command_and_rest(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the command, or an option that is one, and all other words."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        option, equals, _ = words[at].partition("=")
        if option in {"-h", "--help", "--version"}:
            return option, []
        if option not in OPTIONS:
            raise UsageError(f"there is no option {option!r} before the command; {choices(option, OPTIONS)}")
        at += 2 if OPTIONS[option] and not equals else 1
    if not words:
        return "--help", []
    if at >= len(words):
        raise UsageError(f"there is no command; {choices('', COMMANDS)}")
    name = words[at]
    if name.endswith(".py"):
        raise UsageError(f"there is no command {name!r}; for the tools in that file: {_with_tools('list', name)}")
    if name not in COMMANDS:
        call = any("=" in word for word in words[at + 1 :] if not word.startswith("-"))
        more = f" (a tool is called by: ferrule call {name} …)" if call else " (ferrule --help says what each does)"
        raise UsageError(f"there is no command {name!r}; {choices(name, COMMANDS)}{more}")
    return name, [*words[:at], *words[at + 1 :]]


def _command(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"ferrule.cli.{name}")
    except ImportError as error:
        if (error.name or "").split(".")[0] != "rich":
            raise
        raise UsageError(_WITHOUT_RICH) from None


def _help() -> str:
    parser = argparse.ArgumentParser(
        prog="ferrule",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", help="show the version")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, what in COMMANDS.items():
        commands.add_parser(name, help=what)
    return parser.format_help()


def parser_of(name: str, command: ModuleType) -> argparse.ArgumentParser:
    """Return the parser of one command."""
    parser = _Parser(prog=f"ferrule {name}", description=COMMANDS[name])
    if name in _WITHOUT_TOOLS:
        parser.set_defaults(tools=None, mcp=None, verbose=False)
        command.options(parser)
        return parser
    parser.add_argument("--tools", action="append", metavar="WHERE", help=_TOOLS_HELP)
    parser.add_argument("--mcp", action="append", metavar="FILE_OR_URL", help=_MCP_HELP)
    importlib.import_module("ferrule.cli.openapi").add(parser)  # not every command needs it
    parser.add_argument("--verbose", action="store_true", help="show the log: the whole exception where a tool fails")
    command.options(parser)
    return parser


def _read_options(name: str, command: ModuleType, words: Sequence[str]) -> argparse.Namespace:
    parser = parser_of(name, command)
    options, unknown = parser.parse_known_intermixed_args(words)
    if not unknown:
        return options
    wrong = next((word for word in unknown if word.startswith("-")), unknown[0])
    if wrong.startswith("-"):
        option = wrong.partition("=")[0]
        known = [one for action in parser._actions for one in action.option_strings]
        argument = f"; an argument of the tool is written {option.lstrip('-')}=…" if name in {"call", "decide"} else ""
        raise UsageError(f"there is no option {option!r}; {choices(option, known)}{argument}")
    text = "task" if name == "run" else "query" if name == "select" and options.action == "why" else None
    if text is not None:
        raise UsageError(f"the {text} is one argument, and {wrong!r} another: write the whole of it in quotes")
    if name == "chat":
        raise UsageError(f"chat takes no {wrong!r}: write it at the prompt, or {shlex.join(['ferrule', 'run', wrong])}")
    if name in _WITHOUT_TOOLS:
        raise UsageError(f"{name} takes no {wrong!r} ({' '.join(parser.format_usage().split())})")
    raise UsageError(f"{name} takes no {wrong!r}: where the tools are, --tools says: {_with_tools(name, wrong)}")


def _with_tools(name: str, where: str) -> str:
    return f"ferrule {name} --tools {shlex.quote(where)}"
