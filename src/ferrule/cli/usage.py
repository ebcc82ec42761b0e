"""Errors of the command line: one line that says what is wrong and what would be right."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Callable, Iterable
from typing import TypeVar

_MOST_CHOICES = 12
_MOST_SUGGESTIONS = 3
VERBOSE_HINT = "--verbose prints the traceback"
_Read = TypeVar("_Read")


class UsageError(Exception):
    """Ends the program with exit code 2. The program prints the text after `ferrule: `."""


def suggest(name: str, names: Iterable[str]) -> str:
    """Return `did you mean …?` if a name is close or starts with `name`, else the first of the names."""
    choices = list(names)
    longer = [choice for choice in choices if name.strip("-") and choice.startswith(name)]
    words = {choice.strip("-"): choice for choice in choices}  # the dashes of options make none of them alike
    close = longer if 0 < len(longer) <= _MOST_SUGGESTIONS else []
    close = close or [words[word] for word in difflib.get_close_matches(name.strip("-"), words, n=1)]
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    more = f" and {len(choices) - _MOST_CHOICES} more" if len(choices) > _MOST_CHOICES else ""
    return f"choose from: {', '.join(choices[:_MOST_CHOICES])}{more}" if choices else "there are none"


def check_known(kind: str, names: Iterable[str], choices: Iterable[str], option: str = "") -> None:
    """Check that each name is one of the choices.

    Raises:
        UsageError: A name is unknown. The text names the nearest choice.
    """
    known = list(choices)
    for name in names:
        if name not in known:
            raise UsageError(f"{option and option + ': '}there is no {kind} {name!r}; {suggest(name, known)}")


def read_or_refuse(read: Callable[[str], _Read], file: str) -> _Read:
    """Return what `read` returns for a file that the command line names.

    Raises:
        UsageError: The file cannot be read.
    """
    try:
        return read(file)
    except OSError as error:
        raise UsageError(f"cannot read {file!r}: {error.strerror or error}") from None


def read_standard_input() -> str:
    """Return the text on standard input.

    Raises:
        UsageError: It has bytes that are not text.
    """
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise not_text(error) from None


def not_text(error: UnicodeDecodeError) -> UsageError:
    """Return the error for a standard input that cannot be decoded."""
    return UsageError(f"standard input is not {error.encoding} text (byte {error.start})")


def parse_share(text: str) -> float:
    """Return the value of an option that takes a share."""
    return parse_number(text, "a number from 0 to 1, such as 0.8", 1.0)


def parse_number(text: str, what: str, most: float) -> float:
    """Return a number from 0 to `most`."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= most:
        raise argparse.ArgumentTypeError(f"must be {what}, not {text!r}")
    return number


def parse_count(text: str) -> int:
    """Return the value of an option that takes a whole number of at least 1."""
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def place_file(option: str, path: str, folder: str | os.PathLike[str], *, may_be_here: bool) -> str:
    """Return the file that an option names. A name without a folder is a file in `folder`, which tools cannot reach.

    Args:
        may_be_here: Whether the error about two files offers the one in the working directory too.

    Raises:
        UsageError: The working directory has a file with that bare name, so either could be meant.
    """
    if os.path.dirname(path):
        return path
    place = os.path.join(folder, path)
    if os.path.lexists(path):
        here = f"./{path} or " if may_be_here else ""
        raise UsageError(f"{option} {path} means {place!r}, but there is a {path!r} here too: write {here}{place}")
    return place
