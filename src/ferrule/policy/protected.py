"""No call that changes things names a file that decides what may be changed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ferrule.commands import COMMAND_NAMES, read_argv, read_line
from ferrule.paths import contains, has_name_of, real
from ferrule.policy.files import PROJECT_FILE
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext

_BETWEEN_WORDS = re.compile(r"[\s;|&<>()'\"`=:,]+")
_MOST_FOLDERS = 8


class Protected:
    """Files that no tool may write, whether they are there or not. See docs/policy.md#scopes.

    Args:
        files: Their real paths; with them the project file of whatever working directory a call has.
        folders: In which all files are such.
    """

    def __init__(self, files: Iterable[str], folders: Iterable[str] = ()) -> None:
        self._files = frozenset(files)
        self._folders = tuple(folders)

    def named_by(self, call: ToolCall, context: ToolContext) -> str | None:
        """The file that a call names, if it names one: any text of its arguments, or any word of a shell line, that
        leads there by whatever links, is another hard link of it, or is a folder that holds it and not the working
        directory."""
        base = os.path.realpath(context.working_directory)
        files = {*self._files, os.path.join(base, PROJECT_FILE)}
        there: dict[tuple[int, int], str] | None = None
        for word, folder in _paths(call.arguments, base):
            try:
                path = real(os.path.expanduser(word), folder)
            except (OSError, ValueError):
                continue
            if there is None:
                there = {(found.st_dev, found.st_ino): file for file in files if (found := _found(file)) is not None}
            named = self._holds(path, files, base) or _same_file(path, there)
            if named is not None:
                return named
        return None

    def _holds(self, path: str, files: Iterable[str], base: str) -> str | None:
        """The file that a real path is, or that lies in the folder that it is."""
        if any(contains(folder, path) for folder in self._folders):
            return path
        kept = () if contains(path, base) else (*files, *self._folders)
        return next((file for file in kept if contains(path, file)), None)


def _same_file(path: str, there: Mapping[tuple[int, int], str]) -> str | None:
    found = _found(path)
    return None if found is None else there.get((found.st_dev, found.st_ino))


def _found(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (OSError, ValueError):
        return None


def _paths(arguments: Mapping[str, Any], base: str) -> Iterator[tuple[str, str]]:
    """All that may be a path in arguments, each with the folder that it is seen from."""
    for text, is_line in _argument_texts(arguments, False):
        if isinstance(text, str):
            yield re.sub("^file://", "", text.strip(), flags=re.IGNORECASE), base
        if is_line:
            words = list(dict.fromkeys(_words_in(text)))
            folders = [word for word in words if os.path.isdir(os.path.join(base, word))]
            for folder in ("", *folders[:_MOST_FOLDERS]):
                yield from ((word, os.path.join(base, folder)) for word in words)


def _argument_texts(value: Any, is_line: bool) -> Iterator[tuple[Any, bool]]:
    """All texts in a value, keys too, and whether each is a shell line; the words of one are a list."""
    if isinstance(value, str):
        yield value, is_line
    elif isinstance(value, Mapping):
        for key in value:
            yield key, False
            yield from _argument_texts(value[key], has_name_of(key, COMMAND_NAMES))
    elif isinstance(value, list | tuple):
        if is_line and value and all(isinstance(word, str) for word in value):
            yield value, True
        else:
            for item in value:
                yield from _argument_texts(item, is_line)


def _words_in(text: Any) -> Iterator[str]:
    """The words of a shell line as it is read, with its redirections, and as it is written."""
    line = read_line(text) if isinstance(text, str) else read_argv(text)
    for command in line.commands:
        yield from (word for word in command.words if word)
        yield from (one.target for one in command.redirections if one.target)
    for written in (text,) if isinstance(text, str) else text:
        yield from filter(None, _BETWEEN_WORDS.split(written))
