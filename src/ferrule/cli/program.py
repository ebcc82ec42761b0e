"""The program itself: which command, its options, and what an error looks like."""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import sys
from collections.abc import Sequence
from typing import Literal, NoReturn, TextIO

from ferrule import FerruleError, __version__
from ferrule.cli import call, lint, list, run, schema
from ferrule.cli.screen import printable, short
from ferrule.cli.usage import UsageError, choices

COMMANDS = {command.NAME: command for command in (list, schema, lint, call, run)}
_ERROR = 2000
_OPTIONS = ("-h", "--help", "--version")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} ({self.format_usage().strip().replace(chr(10), ' ')})")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code."""
    words = sys.argv[1:] if argv is None else argv
    if _output_is_closed():
        print("ferrule: the standard output is closed", file=sys.stderr)
        return 1
    _write_what_can_be_written()
    try:
        options = _parser().parse_args(_known(words))
        _set_up_logging(options.verbose)
        code: int = COMMANDS[options.command].command(options)
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
    """One line: the text may be of a file that could not be imported."""
    print(printable(short(f"ferrule: {' '.join(str(error).split())}", _ERROR)), file=sys.stderr)


def _output_is_closed() -> bool:
    """Whether there is no standard output; where another stream is closed, its place is taken by nothing at all.

    Left open, the place would go to the next file that is opened, and what is meant for the stream into that file.
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
    """Python writes what is left when it ends; see the note on SIGPIPE in its signal module."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_what_can_be_written() -> None:
    """A character that the terminal's encoding lacks must not end the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(io.UnsupportedOperation):
                stream.reconfigure(errors="replace")


def _set_up_logging(verbose: bool) -> None:
    """Without `--verbose`, the kernel's log of an exception must not run into what a command shows."""
    logger = logging.getLogger("ferrule")
    logger.addHandler(logging.StreamHandler() if verbose else logging.NullHandler())
    if verbose:
        logger.setLevel(logging.DEBUG)


def _known(words: Sequence[str]) -> Sequence[str]:
    if not words:
        return ["--help"]
    if words[0].startswith("-") and words[0] not in _OPTIONS:
        raise UsageError(f"there is no option {words[0]!r} before the command; {choices(words[0], _OPTIONS)}")
    if not words[0].startswith("-") and words[0] not in COMMANDS:
        raise UsageError(f"there is no command {words[0]!r}; {choices(words[0], COMMANDS)}")
    return words


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="ferrule", description="Tools for language models: list them, call them, let a model use them."
    )
    parser.add_argument("--version", action="version", version=f"ferrule {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, command in COMMANDS.items():
        inner = commands.add_parser(name, help=command.HELP, description=command.HELP)
        inner.add_argument(
            "--tools",
            action="append",
            metavar="WHERE",
            help="a Python file, a module, or either with :attribute; may be repeated (default: ferrule.tools.files). "
            "A Runner with guards, given alone, keeps its own policy; everything else is asked about before it changes "
            "anything, and keeps to the working directory",
        )
        inner.add_argument(
            "--verbose", action="store_true", help="show the log: the whole exception where a tool fails"
        )
        command.options(inner)
    return parser
