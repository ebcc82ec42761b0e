"""Paths stay inside the given folders, and what was judged is what is opened."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from ferrule.errors import DefinitionError
from ferrule.paths import contains, real
from ferrule.values.arguments import Place, Places
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, allow, deny

_ENDINGS = frozenset(
    {"path", "paths", "filepath", "filepaths", "file", "files", "filename", "filenames", "pathname", "pathnames"}
    | {"dir", "dirs", "dirname", "dirnames", "directory", "directories", "folder", "folders"}
)
_PATH_NAMES = _ENDINGS | {
    *("cwd", "infile", "outfile", "logfile", "tempfile", "tmpfile", "infiles", "outfiles", "fullpath", "abspath"),
    *("relpath", "realpath", "workdir", "outdir", "basedir", "rootdir", "homedir", "tempdir", "tmpdir", "subdir"),
    *("subdirs", "subdirectory", "subdirectories", "subfolder", "subfolders"),
}
# Words for a path that are as often words for something else: a language, a host, a branch. Where something comes
# from does no harm while it does not exist; where it goes to may be about to.
_SOURCES = frozenset({"src", "source", "sources", "root", "roots"})
_DESTINATIONS = frozenset({"dest", "dst", "destination", "destinations", "target", "targets"})
_PREPOSITIONS = frozenset({"to", "from", "of", "for", "in"})  # as in `path_to_config`
_NAMES = frozenset({"name", "names"})  # of the file, in an object that stands for a file
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[-.\s]+")
_URL = re.compile(r"(?:file:|[a-z][a-z0-9+.-]*://)", re.IGNORECASE)
_QUOTE_LENGTH = 120
_MOST_DIRECTORIES = 1000


def within(
    *roots: str | os.PathLike[str], parameters: Iterable[str] | None = None
) -> Callable[[ToolCall, ToolContext], Decision | None]:
    """A guard that denies every path outside `roots`, and makes every other one its real path. See docs/guards.md.

    Symbolic links are followed before a path is judged, and the tool is given what they led to. Roots are fixed when
    the guard is made. Paths, and roots that are relative, start at `context.working_directory` where the caller gave
    one, and else where the program was when the guard was made.

    Args:
        roots: Folders or files that may be reached; the working directory where there are none.
        parameters: The names of the arguments that are paths, at every depth of the arguments. Left out, those are
            meant that `context.paths` tells of, by their type or by their schema, and those whose names say so
            (`path`, `file`, `directory`, …, and all that end in `_path`, `_file`, `_dir`, `_directory` or `_folder`,
            also in camelCase, in the plural, and before `_name` or a number). `source`, `target`, `destination` and
            `root` may mean something else, so a text without a separator that names nothing on disk is left as it is
            there.

    Under the name of a path stands text, a list or an object. Where the schema names a field for the path of that
    object (`path`, `name`, …), its other fields are judged by their own names. A key that no schema names is a path
    itself. All other text in such an object, which may be a path or what is to be written there, stays as it is, and is
    denied where it would lead outside; a type such as `dict[Path, str]` says which of the two are paths.

    Raises:
        DefinitionError: where a root or a name is none.
    """
    written = tuple(_root_text(root) for root in roots) or (".",)
    named = _parameter_names(parameters)
    allowed = ", ".join(repr(os.fspath(root)) for root in roots) or "the working directory"
    made_in, fixed = _fixed(written)

    @lru_cache(maxsize=_MOST_DIRECTORIES)
    def roots_from(base: str) -> list[str]:
        return [root if os.path.isabs(text) else real(text, base) for text, root in zip(written, fixed, strict=True)]

    def guard(call: ToolCall, context: ToolContext) -> Decision | None:
        given = context.fields.working_directory
        base = made_in if given is None else os.path.join(made_in, given)
        judge = _Judge(fixed if given is None else roots_from(base), base, named, allowed, call.arguments.places)
        try:
            arguments = judge.mapping(call.arguments, (), "free")
        except _Outside as refusal:
            hidden = getattr(context.tool, "hidden", ())
            return deny(_HIDDEN_OUTSIDE if refusal.parameter in hidden else str(refusal))
        return allow(arguments=arguments) if judge.changed else None

    guard.__name__ = guard.__qualname__ = f"within({', '.join(repr(os.fspath(root)) for root in roots)})"
    return guard


def _fixed(roots: Iterable[str]) -> tuple[str, list[str]]:
    """Where the program is, and the roots seen from there."""
    try:
        here = os.getcwd()
        return here, [real(root, here) for root in roots]
    except (OSError, ValueError) as error:
        raise DefinitionError(f"within(…): {error}") from None


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
    leads = len(words) > 1 and words[0] in _ENDINGS and words[1] in _PREPOSITIONS
    return leads or (bool(words) and ("_".join(words) in _PATH_NAMES or words[-1] in _ENDINGS))


def _is_one_of(name: str, words: frozenset[str]) -> bool:
    return "_".join(_words_of_name(name)) in words


class _Outside(Exception):
    """A path that may not be reached; the text is for the model. `parameter` is the argument that it is part of."""

    parameter = ""


_HIDDEN_OUTSIDE = "a path that only the program knows is outside of what may be reached"


_Mode: TypeAlias = Literal["free", "path", "destination", "source", "perhaps", "object"]
"""How a value is judged: not at all; as a path; text as a path; text that looks like a path as one; so, but left as it
is; or as an object that stands for a file and has a field for its path."""


class _Judge:
    """Goes through the arguments of one call, and notes whether any path changed."""

    def __init__(
        self, roots: list[str], base: str, named: frozenset[str] | None, allowed: str, places: Places | None
    ) -> None:
        self.roots = roots
        self.base = base
        self.named = named
        self.allowed = allowed
        self.changed = False
        known = places.paths if places is not None and named is None else ()
        self.keys = {found.place for found in known if found.is_key}
        self.values = {found.place for found in known if not found.is_key}
        self.unnamed = None if places is None else places.unnamed

    def mapping(self, values: Mapping[str, Any], place: Place, mode: _Mode) -> dict[str, Any]:
        judged: dict[str, Any] = {}
        if mode != "free" and self.named is None and self.names_its_path(values, place):
            mode = "object"
        for key, value in values.items():
            inner = (*place, key)
            try:
                name = self.key(key, inner, mode)
                if name in judged:
                    raise _Outside(f"two keys of {_place_text(place)} are one path: {key[:_QUOTE_LENGTH]!r}")
                judged[name] = self.value(value, inner, self.mode_below(key, inner, mode))
            except _Outside as refusal:
                refusal.parameter = key  # in the end the one at the top
                raise
        return judged

    def value(self, value: Any, place: Place, mode: _Mode) -> Any:
        if place in self.values:
            mode = "path"
        if isinstance(value, Mapping):
            return self.mapping(value, place, mode)
        if isinstance(value, list | tuple):
            return [self.value(item, (*place, index), mode) for index, item in enumerate(value)]
        if mode == "path" and value is not None:
            return self.path(value, place)
        if isinstance(value, str):
            if mode == "destination" or (mode == "source" and self.looks_like_a_path(value)):
                return self.path(value, place)
            if mode == "perhaps":
                self.not_outside(value, place)
        return value

    def names_its_path(self, values: Mapping[str, Any], place: Place) -> bool:
        """Whether one of the fields that the schema names is the path of the object that they are in."""
        declared = (key for key in values if self.unnamed is None or (*place, key) not in self.unnamed)
        return any(_means_a_path(key) or _is_one_of(key, _NAMES) or (*place, key) in self.values for key in declared)

    def key(self, key: str, place: Place, mode: _Mode) -> str:
        if place in self.keys or (mode == "path" and place not in self.values and self.is_made_up(key, place)):
            return self.path(key, place)
        if mode != "free":
            self.not_outside(key, place)
        return key

    def is_made_up(self, key: str, place: Place) -> bool:
        """Whether a key is the model's own; where no schema tells, whether it looks like a path."""
        return self.looks_like_a_path(key) if self.unnamed is None else place in self.unnamed

    def mode_below(self, key: str, place: Place, mode: _Mode) -> _Mode:
        """How the value under `key` is judged, in an object that is judged by `mode`."""
        below: _Mode = "free" if mode == "free" else "perhaps"
        if place in self.keys:
            return "free"
        if self.named is not None:
            return "path" if key in self.named else below
        if mode != "free" and self.unnamed is not None and place in self.unnamed:
            return "perhaps"
        if _means_a_path(key) or (mode == "object" and _is_one_of(key, _NAMES)):
            return "path"
        if _is_one_of(key, _DESTINATIONS):
            return "destination"
        if _is_one_of(key, _SOURCES):
            return "source"
        return "free" if mode == "object" else below

    def looks_like_a_path(self, text: str) -> bool:
        written = not text or "\0" in text or text.startswith("~") or _URL.match(text) is not None
        separated = "/" in text or os.sep in text or os.path.splitdrive(text)[0] != ""
        return written or separated or os.path.lexists(os.path.join(self.base, text))

    def not_outside(self, text: str, place: Place) -> None:
        """Refuse text that leads outside where somebody takes it for a path."""
        if text and self.looks_like_a_path(text):
            self.real_path(text, place, too_long=True)

    def path(self, value: Any, place: Place) -> str:
        if not isinstance(value, str):
            raise _Outside(f"{_place_text(place)} must be a path as text, and is {_kind_of_value(value)}")
        found = self.real_path(value, place)
        self.changed = self.changed or found != value
        return found

    def real_path(self, text: str, place: Place, *, too_long: bool = False) -> str:
        """What a path names, which is inside.

        Args:
            too_long: Whether it may be too long for a path, and name nothing.
        """
        given = f"{_place_text(place)}={text[:_QUOTE_LENGTH]!r}"
        if _URL.match(text):
            raise _Outside(f"{given} is a URL; write a path in {self.allowed}")
        try:
            found = real(text, self.base)
            found.encode()
        except (ValueError, OSError) as error:
            found = self.without_dots(text) if too_long and getattr(error, "errno", None) == errno.ENAMETOOLONG else ""
            if not found:
                reason = "its name is not valid UTF-8" if isinstance(error, UnicodeError) else str(error)[:300]
                raise _Outside(f"{given} is no path that can be judged: {reason}") from None
        if not any(contains(root, found) for root in self.roots):
            raise _Outside(f"{given} is outside of what may be reached; allowed is: {self.allowed}")
        return found

    def without_dots(self, text: str) -> str:
        """The path for somebody who takes the dots out of one that is too long; empty where it cannot be judged."""
        plain = os.path.normpath(os.path.join(real(".", self.base), text))
        try:
            return real(plain, "/")
        except OSError as error:
            return plain if error.errno == errno.ENAMETOOLONG else ""  # nothing can be opened there


def _place_text(place: Place) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= _QUOTE_LENGTH else f"{text[:_QUOTE_LENGTH]}…"


def _kind_of_value(value: Any) -> str:
    return "true or false" if isinstance(value, bool) else "a number"
