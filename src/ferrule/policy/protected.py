"""No call that changes things names a file that decides what may be changed."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import PurePath
from typing import Any

from ferrule.commands import COMMAND_NAMES, read_argv, read_line
from ferrule.paths import contains, has_name_of, real
from ferrule.policy.files import PROJECT_FILE
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext

_BETWEEN_WORDS = re.compile(r"[\s;|&<>()'\"`=:,]+")
LOCK_FILE = "ferrule.lock"
"""Says which tools there may be. See docs/policy.md#scopes."""
_FILE_SCHEME = re.compile(r"file:(?://(?:localhost(?=/))?)?", re.IGNORECASE)
_MOST_PLACES_LOOKED_AT = 20_000
"""Words from folders, of one call."""
_MOST_DIRECTORIES_SEEN = 64


class Protected:
    """Files that no tool may write, whether they are there or not. See docs/policy.md#scopes.

    Args:
        files: Their paths in real folders, and those of the links to them; with them the project file and the lock file
            of whatever working directory a call has.
        folders: In which all files are such.
    """

    def __init__(self, files: Iterable[str], folders: Iterable[str] = ()) -> None:
        self._files = tuple(files)
        self._folders = tuple(folders)
        self._seen_from = lru_cache(maxsize=_MOST_DIRECTORIES_SEEN)(self._kept_from)

    def named_by(self, call: ToolCall, context: ToolContext) -> str | None:
        """The file that a call names, if it names one: any text of its arguments, or any word of a shell line, that
        leads there by whatever links, from the working directory or from a folder that the call names too, is another
        hard link of it, or is a folder that holds it and not the working directory."""
        base = _real_folder(context.working_directory)
        kept = self._seen_from(base)
        links: dict[tuple[int, int], str] | None = None
        for path, found in self._paths(list(dict.fromkeys(_words_in_arguments(call.arguments))), base):
            if path in kept or any(contains(inside, path) for inside in self._folders):
                return path
            if found is None:
                continue
            if links is None:
                links = {(one.st_dev, one.st_ino): file for file in kept if (one := _found(file)) is not None}
            if (found.st_dev, found.st_ino) in links:
                return links[found.st_dev, found.st_ino]
        return None

    def _paths(self, words: Sequence[str], base: str) -> Iterator[tuple[str, os.stat_result | None]]:
        """What words lead to, from the working directory, and from each folder that some of them lead to. Where these
        are too many, as it is written from all folders that hold a file that is kept."""
        seen, most = {base}, max(1, _MOST_PLACES_LOOKED_AT // (len(words) or 1))
        waiting = [base]
        while waiting and len(seen) <= most:
            folder = waiting.pop()
            for word in words:
                is_the_same = folder != base and (word[:1] == "~" or os.path.isabs(word))
                path = None if is_the_same else _path_named(word, folder)
                if path is None:
                    continue
                found = _found(path)
                yield path, found
                if found is not None and path not in seen and stat.S_ISDIR(found.st_mode):
                    seen.add(path)
                    waiting.append(path)
        if waiting:
            files = (*self._files, *self._folders, os.path.join(base, PROJECT_FILE), os.path.join(base, LOCK_FILE))
            above = {str(one) for file in files for one in PurePath(file).parents if contains(str(one), base)}
            down = [word for word in map(os.path.normpath, words) if not word.startswith("..")]
            yield from ((os.path.join(one, word), None) for one in above for word in down)

    def _kept_from(self, base: str) -> frozenset[str]:
        """The files and folders that no path may be, seen from a working directory: those above it may be named."""
        kept = (*self._files, *self._folders, os.path.join(base, PROJECT_FILE), os.path.join(base, LOCK_FILE))
        above = {str(folder) for path in kept for folder in (path, *PurePath(path).parents)}
        return frozenset(path for path in above if not contains(os.path.realpath(path), base))


@lru_cache(maxsize=_MOST_DIRECTORIES_SEEN)
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)


def _path_named(word: str, folder: str) -> str | None:
    """The real path that a word names; nothing for one that is no path, as most texts are."""
    try:
        if "/" not in word and word[:1] not in {"~", "."} and os.sep not in word:
            path = os.path.join(folder, word)
            if not os.path.lexists(path):  # one look, where `real` has one for each folder above it
                return path
        return real(os.path.expanduser(word), folder)
    except (OSError, ValueError):
        return None


def _found(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (OSError, ValueError):
        return None


def _words_in_arguments(arguments: Mapping[str, Any]) -> Iterator[str]:
    """All that may be a path in arguments."""
    for text, is_line in _argument_texts(arguments, False):
        if isinstance(text, str):
            yield _path_of_file_url(text.strip())
        if is_line:
            yield from _words_in(text)


def _path_of_file_url(text: str) -> str:
    """The path of a URL of a file, as clients read it."""
    path = _FILE_SCHEME.sub("", text, count=1) if _FILE_SCHEME.match(text) else text
    if path == text:
        return text
    from urllib.parse import unquote

    return unquote(path)


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
        yield from filter(None, _BETWEEN_WORDS.split(os.path.expandvars(written)))
