"""Paths stay inside the given folders, and what was judged is what is opened."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ferrule.core.context import ToolContext
from ferrule.core.errors import DefinitionError
from ferrule.core.values import Decision, ToolCall, allow, deny
from ferrule.paths import contains, real

_ENDINGS = frozenset(
    {"path", "paths", "filepath", "file", "files", "filename", "filenames", "dir", "dirs", "directory", "directories"}
    | {"folder", "folders"}
)
_PATHS = _ENDINGS | {
    *("filepaths", "pathname", "pathnames", "dirname", "root", "roots", "cwd"),
    *("src", "source", "sources", "dest", "dst", "destination", "destinations", "target", "targets"),
}
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[-.\s]+")
_URL = re.compile(r"(?:file:|[a-z][a-z0-9+.-]*://)", re.IGNORECASE)
_SHOWN = 120


def within(
    *roots: str | os.PathLike[str], parameters: Iterable[str] | None = None
) -> Callable[[ToolCall, ToolContext[Any]], Decision | None]:
    """A guard that denies every path outside `roots`, and makes every other one its real path.

    Symbolic links are followed before a path is judged, and the tool is given what they led to. Paths, and roots
    that are relative, start at `context.working_directory`.

    Args:
        roots: Folders or files that may be reached; the working directory where there are none.
        parameters: The names of the arguments that are paths, at every depth of the arguments. Left out, those are
            meant whose names say so: `path`, `file`, `directory`, `source`, `target`, …, and all that end in
            `_path`, `_file`, `_dir`, `_directory` or `_folder`, also in their camelCase form and their plural. Such
            an argument must be a string, a list of strings or `null`.

    Raises:
        DefinitionError: where a root or a name is none.
    """
    written = tuple(_root(root) for root in roots) or (".",)
    named = _names(parameters)
    allowed = ", ".join(repr(os.fspath(root)) for root in roots) or "the working directory"

    def guard(call: ToolCall, context: ToolContext[Any]) -> Decision | None:
        base = context.working_directory
        judge = _Judge([real(root, base) for root in written], base, named, allowed)
        try:
            arguments = judge.mapping(call.arguments, "")
        except _Outside as refusal:
            return deny(str(refusal))
        return allow(arguments=arguments) if judge.changed else None

    guard.__name__ = guard.__qualname__ = f"within({', '.join(repr(os.fspath(root)) for root in roots)})"
    return guard


def _root(root: Any) -> str:
    text = os.fspath(root) if isinstance(root, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise DefinitionError(f"within(…) takes folders, as text or as paths, not {root!r}")
    expanded = os.path.expanduser(text)
    if expanded.startswith("~"):
        raise DefinitionError(f"within({text!r}): there is no such home directory")
    return expanded


def _names(parameters: Any) -> frozenset[str] | None:
    if parameters is None:
        return None
    names = None if isinstance(parameters, str) else tuple(parameters)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise DefinitionError(f"within(parameters=…) takes names such as ('path', 'target'), not {parameters!r}")
    return frozenset(names)


def _means_a_path(name: str) -> bool:
    words = [word for word in _HUMP.sub("_", name.strip()).lower().split("_") if word]
    return bool(words) and ("_".join(words) in _PATHS or words[-1] in _ENDINGS)


class _Outside(Exception):
    """A path that may not be reached; the text is for the model."""


class _Judge:
    """Goes through the arguments of one call, and notes whether any path changed."""

    def __init__(self, roots: list[str], base: str, named: frozenset[str] | None, allowed: str) -> None:
        self.roots = roots
        self.base = base
        self.named = named
        self.allowed = allowed
        self.changed = False

    def mapping(self, values: Mapping[str, Any], place: str) -> dict[str, Any]:
        judged: dict[str, Any] = {}
        for name, value in values.items():
            inner = f"{place}.{name}" if place else name
            is_path = _means_a_path(name) if self.named is None else name in self.named
            judged[name] = self.paths(value, inner) if is_path else self.other(value, inner)
        return judged

    def other(self, value: Any, place: str) -> Any:
        if isinstance(value, Mapping):
            return self.mapping(value, place)
        if isinstance(value, list | tuple):
            return [self.other(item, f"{place}[{index}]") for index, item in enumerate(value)]
        return value

    def paths(self, value: Any, place: str) -> Any:
        if isinstance(value, list | tuple):
            return [self.path(item, f"{place}[{index}]") for index, item in enumerate(value)]
        return None if value is None else self.path(value, place)

    def path(self, value: Any, place: str) -> str:
        if not isinstance(value, str):
            raise _Outside(f"{_brief(place)} must be a path as text, and is {_kind(value)}")
        if _URL.match(value):
            raise _Outside(f"{_brief(place)}={value[:_SHOWN]!r} is a URL; write a path in {self.allowed}")
        try:
            found = real(value, self.base)
            found.encode()
        except (ValueError, OSError) as error:
            reason = "its name is not valid UTF-8" if isinstance(error, UnicodeError) else _told(error)
            raise _Outside(f"{_brief(place)}={value[:_SHOWN]!r} is no path that can be judged: {reason}") from None
        if not any(contains(root, found) for root in self.roots):
            raise _Outside(
                f"{_brief(place)}={value[:_SHOWN]!r} is outside of what may be reached; allowed is: {self.allowed}"
            )
        self.changed = self.changed or found != value
        return found


def _brief(place: str) -> str:
    text = place if place.isprintable() else repr(place)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _told(error: Exception) -> str:
    return str(error)[:300]


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, list | tuple) else "a number" if isinstance(value, int | float) else "nothing"
