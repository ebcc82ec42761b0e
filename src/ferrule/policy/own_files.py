"""Refuse calls with paths to policy files, settings and `ferrule.lock`.

A changed file has no effect until a person trusts it (`trust.py`), however it was changed. This check lets a model
learn of it at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from ferrule.policy.files import PROJECT_FILE
from ferrule.policy.settings import SETTINGS_FILE
from ferrule.security.paths import PATH_NAMES, contains, has_last_word, resolve_path
from ferrule.values.call import ToolCall

_WORKING_DIRECTORY_FILES: Final = (PROJECT_FILE, SETTINGS_FILE, "ferrule.lock")


def find_protected_file(call: ToolCall, working_directory: str, places: Iterable[str]) -> str | None:
    """Return the first protected file behind a path in the arguments, or inside a folder named there.

    Protected are `places` (files, and folders with everything in them), and the policy file, the settings file and
    `ferrule.lock` of the working directory. The working directory and the folders above it may be named.
    """
    texts = dict.fromkeys(_iter_paths(call))
    if not texts:
        return None
    base = os.path.realpath(working_directory)
    protected = (*places, *(os.path.join(base, name) for name in _WORKING_DIRECTORY_FILES))
    for text in texts:
        try:
            path = resolve_path(os.path.expanduser(text), base)
        except (OSError, ValueError):  # not a path to open
            continue
        for file in protected:
            is_above = contains(path, file) and not contains(path, base)
            if is_above or contains(file, path) or _is_same_file(file, path):
                return file
    return None


def _is_same_file(one: str, other: str) -> bool:
    """Return whether two paths are one file, by a hard link or on a disk without case in names."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _iter_paths(call: ToolCall) -> Iterator[str]:
    """Yield the paths in the arguments: texts by type, by schema or by the name of their parameter, at any depth."""
    places = call.arguments.places
    yield from () if places is None else (found.text for found in places.paths)
    yield from _iter_named_paths(call.arguments, False)


def _iter_named_paths(value: Any, is_path: bool) -> Iterator[str]:
    if isinstance(value, str):
        if is_path:
            yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _iter_named_paths(item, is_path)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _iter_named_paths(key, is_path)
            yield from _iter_named_paths(item, has_last_word(key, PATH_NAMES))
