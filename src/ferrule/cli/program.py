"""The program: finds the command, reads its options, and prints an error in one line."""

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
from typing import NoReturn

from ferrule import FerruleError, __version__
from ferrule.cli.text import warn
from ferrule.cli.usage import UsageError, suggest

COMMANDS = {
    "list": "list the tools and the effect of each",
    "schema": "print the tools as a model API receives them, as JSON",
    "lint": "find definitions that a provider refuses or a model may confuse, and estimate tokens",
    "lock": "record the definitions of the tools, then report and accept changes",
    "select": "measure how well the right tools are found for a request, or explain one search",
    "eval": "measure which tools a model calls for given requests",
    "test": "run test files: calls and conversations with expected outcomes",
    "policy": "check policy files, run their tests, or trust a version of a file",
    "decide": "show the decision about a call and the rule behind it, and run nothing",
    "grants": "list or revoke the approvals that Ferrule remembers",
    "call": "call one tool",
    "run": "let a model work on a task with the tools",
    "chat": "chat with a model that uses the tools",
    "log": "show, follow or delete the calls of a journal",
    "explain": "show the whole history of one call of a journal",
    "inspect": "show the tools, questions, calls and rules on a page in the browser",
    "serve": "serve the tools to MCP clients over standard input and output, or HTTP",
    "token": "create, list or remove the bearer tokens of `ferrule serve --tokens`",
    "worker": "run the calls that programs put into a queue",
    "plugins": "list the plug-ins of installed packages, and load them to find faults",
}
"""The commands with their descriptions. A command's module is imported when it is used, because the import of rich
takes half of the start-up time.
"""
EXAMPLES = {
    "list": "--tools shop.py",
    "schema": "--tools shop.py --provider anthropic",
    "lint": "--tools shop.py --provider anthropic --strict",
    "lock": "--tools shop.py --check",
    "select": 'why "how much tea is left?" --tools shop.py',
    "eval": "cases.jsonl --tools shop.py --model anthropic:NAME",
    "test": "tests.toml --tools shop.py",
    "policy": "check policy.toml --tools shop.py",
    "decide": "order article=tea --tools shop.py --policy policy.toml",
    "grants": "revoke --all",
    "call": "stock article=tea --tools shop.py",
    "run": '"Order what is missing" --tools shop.py --model anthropic:NAME',
    "chat": "--tools shop.py --model anthropic:NAME",
    "log": "calls.db --tool 'order*' --since 2h",
    "explain": "calls.db toolu_01A",
    "inspect": "shop.py --journal calls.db",
    "serve": "shop.py --http 8000",
    "token": "new ann --calls-per-day 5000",
    "worker": "my_tools",
    "plugins": "'*'",
}
_WITHOUT_TOOLS = frozenset({"grants", "log", "explain", "plugins", "token", "worker"})
_DESCRIPTION = "Tools for language models: list them, call them, let a model use them."
_EPILOG = """\
ferrule COMMAND --help shows the options of a command.
The options and arguments after a command may come in any order.

exit codes:
  0    success
  1    the call or the run failed or was denied;
       decide: the call would be denied;
       lint or policy: an error was found;
       policy or test: a test failed;
       lock: a tool differs from the file;
       select or eval: a score is too low, or the model failed;
       or the output could not be written
  2    the command line is wrong, or something that it names
       cannot be used
  3    decide: a person would be asked
  130  you pressed ctrl-C
"""
_WITHOUT_RICH = 'the command line needs the package rich, which is not installed: pip install "ferrule[cli]"'


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _, required, names = message.partition(" are required: ")
        if required:
            labels = {action: action.option_strings or [str(action.metavar or action.dest)] for action in self._actions}
            missing = [action for action, options in labels.items() if {*options, action.dest} & {*names.split(", ")}]
            message = "; ".join(f"{labels[action][0]} is missing: {action.help}" for action in missing)
        raise UsageError(f"{message.removeprefix('argument ')} ({' '.join(self.format_usage().split())})")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. See docs/command-line.md."""
    words = sys.argv[1:] if argv is None else argv
    if not _replace_closed_streams():
        warn("standard output is closed")
        return 1
    _replace_unwritable_characters()
    try:
        code = _run(words)
        sys.stdout.flush()
        return code
    except (UsageError, FerruleError) as error:
        warn(error)
        return 2
    except BrokenPipeError:  # `ferrule … | head`
        _discard_output()
        return 1
    except OSError as error:  # a full disk
        _discard_output()
        warn(error)
        return 1
    except KeyboardInterrupt:
        warn("stopped")
        return 130


def _replace_closed_streams() -> bool:
    """Replace each closed stream by the null device, and return whether standard output is open.

    Otherwise the next file that is opened would get the number of the stream, and everything that is printed.
    """
    is_open = sys.stdout is not None
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    return is_open


def _discard_output() -> None:
    """Discard the remaining output, because Python writes it when it exits."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _replace_unwritable_characters() -> None:
    """Replace characters that the terminal's encoding lacks. They would raise an exception."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(io.UnsupportedOperation):
                stream.reconfigure(errors="replace")


def _set_up_logging(verbose: bool) -> None:
    """Print the log with `--verbose`. Otherwise the log of an exception must not mix with the command's output."""
    logger = logging.getLogger("ferrule")
    logger.addHandler(logging.StreamHandler() if verbose else logging.NullHandler())
    if verbose:
        logger.setLevel(logging.DEBUG)


def _run(words: Sequence[str]) -> int:
    name = words[0] if words else "--help"
    if name in {"-h", "--help"}:
        print(_format_help(), end="")
        return 0
    if name == "--version":
        print(f"ferrule {__version__}")
        return 0
    if name not in COMMANDS:
        raise UsageError(_describe_wrong_command(name, words[1:]))
    command = _import_command(name)
    options = _read_options(name, command, words[1:])
    _set_up_logging(options.verbose)
    code: int = command.command(options)
    return code


def _describe_wrong_command(name: str, rest: Sequence[str]) -> str:
    if name.endswith(".py"):
        return f"there is no command {name!r}; to list the tools in that file: {_with_tools('list', name)}"
    if name.startswith("-"):
        command = next((word for word in rest if word in COMMANDS), "COMMAND")
        return f"the command comes before its options: ferrule {command} {name} … (ferrule --help lists the commands)"
    is_call = any("=" in word for word in rest if not word.startswith("-"))
    remedy = f"to call a tool: ferrule call {name} …" if is_call else "ferrule --help describes the commands"
    return f"there is no command {name!r}; {suggest(name, COMMANDS)} ({remedy})"


def _import_command(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"ferrule.cli.{name}")
    except ImportError as error:
        if (error.name or "").split(".")[0] != "rich":
            raise
        raise UsageError(_WITHOUT_RICH) from None


def _format_help() -> str:
    parser = argparse.ArgumentParser(
        prog="ferrule",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", help="show the version")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, description in COMMANDS.items():
        commands.add_parser(name, help=description)
    return parser.format_help()


def make_parser(name: str, command: ModuleType) -> argparse.ArgumentParser:
    """Return the parser of one command."""
    parser = _Parser(
        prog=f"ferrule {name}",
        description=f"{COMMANDS[name][0].upper()}{COMMANDS[name][1:]}.",
        epilog=f"example: ferrule {name} {EXAMPLES[name]}",
    )
    command.options(parser)
    if name in _WITHOUT_TOOLS:
        parser.set_defaults(tools=None, mcp=None, verbose=False)
    else:
        shared_options = importlib.import_module("ferrule.cli.shared_options")  # `ferrule --help` does not need it
        shared_options.add_sources(parser, name)
    parser.usage = _format_usage(parser)
    return parser


def _format_usage(parser: argparse.ArgumentParser) -> str:
    """Return the usage without the many options that may be left out."""
    words = ["%(prog)s [options]"]
    for action in parser._actions:
        name = str(action.metavar or "|".join(action.choices or ()) or action.dest)
        if action.required and action.option_strings:
            words.append(f"{action.option_strings[0]} {name}")
        elif not action.option_strings:
            words.append({"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} ..."}.get(str(action.nargs), name))
    return " ".join(words)


def _read_options(name: str, command: ModuleType, words: Sequence[str]) -> argparse.Namespace:
    parser = make_parser(name, command)
    options, unknown = parser.parse_known_intermixed_args(words)
    if unknown:
        raise UsageError(_describe_unknown_word(name, parser, options, unknown))
    return options


def _describe_unknown_word(
    name: str, parser: argparse.ArgumentParser, options: argparse.Namespace, unknown: Sequence[str]
) -> str:
    word = next((word for word in unknown if word.startswith("-")), unknown[0])
    if word.startswith("-"):
        option = word.partition("=")[0]
        choices = [choice for action in parser._actions for choice in action.option_strings]
        hint = f"; for an argument of the tool, write {option.lstrip('-')}=…" if name in {"call", "decide"} else ""
        return f"there is no option {option!r}; {suggest(option, choices)}{hint}"
    text = "task" if name == "run" else "query" if name == "select" and options.action == "why" else None
    if text is not None:
        return f"unexpected word {word!r}: put the whole {text} in quotes"
    if name == "chat":
        remedy = f"write your message at the prompt, or use {shlex.join(['ferrule', 'run', word])}"
    elif name in _WITHOUT_TOOLS:
        remedy = " ".join(parser.format_usage().split())
    else:
        remedy = f"if tools are there, write {_with_tools(name, word)}"
    return f"unexpected argument {word!r}: {remedy}"


def _with_tools(name: str, place: str) -> str:
    return f"ferrule {name} --tools {shlex.quote(place)}"
