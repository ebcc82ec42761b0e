"""Paths stay inside the given folders, and what was judged is what is opened."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ferrule.errors import DefinitionError
from ferrule.paths import contains, real
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, allow, deny

_ENDINGS = frozenset(
    {"path", "paths", "filepath", "filepaths", "file", "files", "filename", "filenames", "pathname", "pathnames"}
    | {"dir", "dirs", "dirname", "dirnames", "directory", "directories", "folder", "folders"}
)
_PATH_NAMES = _ENDINGS | {"cwd"}
# Words for a path that are as often words for something else: a language, a host, a branch. Where something comes
# from does no harm while it does not exist; where it goes to may be about to.
_SOURCES = frozenset({"src", "source", "sources", "root", "roots"})
_DESTINATIONS = frozenset({"dest", "dst", "destination", "destinations", "target", "targets"})
_PERHAPS_PATHS = _SOURCES | _DESTINATIONS
_NAMES = frozenset({"name", "names"})  # of the file, in an object that stands for a file
_PATH_FORMATS = frozenset({"path", "file-path", "directory-path"})
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[-.\s]+")
_URL = re.compile(r"(?:file:|[a-z][a-z0-9+.-]*://)", re.IGNORECASE)
_QUOTE_LENGTH = 120


def within(
    *roots: str | os.PathLike[str], parameters: Iterable[str] | None = None
) -> Callable[[ToolCall, ToolContext], Decision | None]:
    """A guard that denies every path outside `roots`, and makes every other one its real path.

    Symbolic links are followed before a path is judged, and the tool is given what they led to. Paths, and roots
    that are relative, start at `context.working_directory`.

    Args:
        roots: Folders or files that may be reached; the working directory where there are none.
        parameters: The names of the arguments that are paths, at every depth of the arguments. Left out, those are
            meant whose names say so (`path`, `file`, `directory`, …, and all that end in `_path`, `_file`, `_dir`,
            `_directory` or `_folder`, also in camelCase, in the plural, and before `_name` or a number), and those
            whose schema has the format `path`, `file-path` or `directory-path`. Such an argument must be a string,
            a list of strings or `null`; objects are looked into. `source`, `target`, `destination` and `root` may
            mean something else, so a text without a separator that names nothing on disk is left as it is there.

    Raises:
        DefinitionError: where a root or a name is none.
    """
    written = tuple(_root_text(root) for root in roots) or (".",)
    named = _parameter_names(parameters)
    allowed = ", ".join(repr(os.fspath(root)) for root in roots) or "the working directory"

    def guard(call: ToolCall, context: ToolContext) -> Decision | None:
        base = context.working_directory
        judge = _Judge([real(root, base) for root in written], base, named, allowed)
        try:
            arguments = judge.mapping(call.arguments, "", _paths_by_schema(context) if named is None else frozenset())
        except _Outside as refusal:
            return deny(str(refusal))
        return allow(arguments=arguments) if judge.changed else None

    guard.__name__ = guard.__qualname__ = f"within({', '.join(repr(os.fspath(root)) for root in roots)})"
    return guard


def _root_text(root: Any) -> str:
    text = os.fspath(root) if isinstance(root, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise DefinitionError(f"within(…) takes folders, as text or as paths, not {root!r}")
    expanded = os.path.expanduser(text)
    if expanded.startswith("~"):
        raise DefinitionError(f"within({text!r}): there is no such home directory")
    return expanded


def _parameter_names(parameters: Any) -> frozenset[str] | None:
    if parameters is None:
        return None
    names = None if isinstance(parameters, str) else tuple(parameters)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise DefinitionError(f"within(parameters=…) takes names such as ('path', 'target'), not {parameters!r}")
    return frozenset(names)


def _words_of_name(name: str) -> list[str]:
    """The words of a name without what follows the noun: `fileName2` is about a file."""
    words = [word for word in _HUMP.sub("_", name.strip()).lower().split("_") if word]
    while words:
        words[-1] = re.sub(r"\d+(names?)?$", r"\1", words[-1])
        if words[-1] and (words[-1] not in {"name", "names"} or len(words) == 1):
            break
        words.pop()
    return words


def _means_a_path(name: str) -> bool:
    words = _words_of_name(name)
    return bool(words) and ("_".join(words) in _PATH_NAMES or words[-1] in _ENDINGS)


def _may_mean_a_path(name: str) -> bool:
    return _is_one_of(name, _PERHAPS_PATHS)


def _is_one_of(name: str, words: frozenset[str]) -> bool:
    return "_".join(_words_of_name(name)) in words


def _paths_by_schema(context: ToolContext) -> frozenset[str]:
    """The parameters whose schema says that they are paths."""
    schema = {} if context.tool is None else context.tool.input_schema
    properties = schema.get("properties", {})
    return frozenset(name for name, inner in properties.items() if _has_a_path_format(inner))


def _has_a_path_format(schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return False
    inside = [schema.get("items"), *schema.get("anyOf", ()), *schema.get("oneOf", ())]
    return schema.get("format") in _PATH_FORMATS or any(map(_has_a_path_format, inside))


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

    def mapping(self, values: Mapping[str, Any], place: str, by_schema: frozenset[str] = frozenset()) -> dict[str, Any]:
        judged: dict[str, Any] = {}
        for name, value in values.items():
            inner = f"{place}.{name}" if place else name
            if name in self.named if self.named is not None else name in by_schema or _means_a_path(name):
                judged[name] = self.paths(value, inner)
            elif self.named is None and _may_mean_a_path(name):
                judged[name] = self.perhaps(value, inner, exists=not _is_one_of(name, _DESTINATIONS))
            else:
                judged[name] = self.other(value, inner)
        return judged

    def other(self, value: Any, place: str) -> Any:
        if isinstance(value, Mapping):
            return self.mapping(value, place)
        if isinstance(value, list | tuple):
            return [self.other(item, f"{place}[{index}]") for index, item in enumerate(value)]
        return value

    def paths(self, value: Any, place: str) -> Any:
        if isinstance(value, list | tuple):
            return [self.path_or_object(item, f"{place}[{index}]") for index, item in enumerate(value)]
        return None if value is None else self.path_or_object(value, place)

    def path_or_object(self, value: Any, place: str) -> Any:
        return self.mapping(value, place, _NAMES) if isinstance(value, Mapping) else self.path(value, place)

    def perhaps(self, value: Any, place: str, *, exists: bool) -> Any:
        """A value that is a path if it is text; with `exists`, only where it looks like one or something is there."""
        if isinstance(value, str):
            return value if exists and not self.looks_like_a_path(value) else self.path(value, place)
        if isinstance(value, list | tuple):
            return [self.perhaps(item, f"{place}[{index}]", exists=exists) for index, item in enumerate(value)]
        return self.other(value, place)

    def looks_like_a_path(self, text: str) -> bool:
        written = not text or "\0" in text or text.startswith("~") or _URL.match(text) is not None
        separated = "/" in text or os.sep in text or os.path.splitdrive(text)[0] != ""
        return written or separated or os.path.lexists(os.path.join(self.base, text))

    def path(self, value: Any, place: str) -> str:
        if not isinstance(value, str):
            raise _Outside(f"{_place_text(place)} must be a path as text, and is {_kind_of_value(value)}")
        given = f"{_place_text(place)}={value[:_QUOTE_LENGTH]!r}"
        if _URL.match(value):
            raise _Outside(f"{given} is a URL; write a path in {self.allowed}")
        try:
            found = real(value, self.base)
            found.encode()
        except (ValueError, OSError) as error:
            reason = "its name is not valid UTF-8" if isinstance(error, UnicodeError) else str(error)[:300]
            raise _Outside(f"{given} is no path that can be judged: {reason}") from None
        if not any(contains(root, found) for root in self.roots):
            raise _Outside(f"{given} is outside of what may be reached; allowed is: {self.allowed}")
        self.changed = self.changed or found != value
        return found


def _place_text(place: str) -> str:
    text = place if place.isprintable() else repr(place)
    return text if len(text) <= _QUOTE_LENGTH else f"{text[:_QUOTE_LENGTH]}…"


def _kind_of_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, list | tuple) else "a number" if isinstance(value, int | float) else "nothing"
