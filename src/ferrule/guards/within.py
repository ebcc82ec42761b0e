"""Paths stay inside the given folders, and the tool opens the checked path.

The guard checks three kinds of text in every tool: values with the type or schema of a path; values under the name of
one; and any other whole text if it reads as a path: absolute, with `~` in front, with a `..` part, or a `file:` URL.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from ferrule.guards._arguments import (
    QUOTE_LENGTH,
    QUOTES_AND_BLANKS,
    declares_text,
    find_place_forms,
    format_argument,
    format_place,
    read_names,
    suggest_exemption,
)
from ferrule.security.command_arguments import has_directory
from ferrule.security.commands import COMMAND_NAMES, find_redirection_targets
from ferrule.security.paths import ALLOWED_PATHS, PATH_NAMES, Roots, contains, has_last_word, resolve_path
from ferrule.values.arguments import Place
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, allow, deny

_URL = re.compile(r"file:|[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_FILE_URL_TEXT = r"(?:file:|<*(?:[a-z][a-z0-9+.-]*+:)*?file:[/\\])"
"""A file URL, also in angle brackets (RFC 3986's appendix C) or behind another scheme, as urllib opens it."""
_FILE_URL = re.compile(_FILE_URL_TEXT, re.IGNORECASE)
_READS_AS_PATH = re.compile(
    rf"[{QUOTES_AND_BLANKS}]*(?:[/~{re.escape(os.sep)}]|[a-z]:|\\\\|{_FILE_URL_TEXT})", re.IGNORECASE
)
"""The beginning of a text that may be a path. A text with a `..` part may be one too."""
_WINDOWS_PATH = re.compile(r"[A-Za-z]:[\\/]|\\\\[^\\/\s]+[\\/]")
_MAX_SYSTEM_PATH: Final = 32_767 if os.name == "nt" else 4_095


def within(
    *roots: str | os.PathLike[str], parameters: Iterable[str] = (), text: Iterable[str] = ()
) -> Callable[[ToolCall, ToolContext], Decision | None]:
    """Make a guard that denies every path outside `roots`, and replaces every other one by its real path.

    See docs/guards.md#paths.

    The guard checks, at every depth:

    - paths by type or schema, listed in `context.paths`
    - text, a list of texts, and the keys of a mapping, under one of `PATH_NAMES` or of `parameters`
    - any other whole text, key or value, if it is absolute, begins with `~`, has a `..` part or is a `file:` URL;
      blanks and quotes around it do not count
    - the redirections of shell lines

    If they lead inside, the last two stay as they are written.

    The guard follows symbolic links before it checks a path, and gives the tool the resulting path. It fixes the roots
    when it is made. Paths and relative roots start at `context.working_directory` if the caller sets one, and otherwise
    at the program's directory when the guard was made.

    Args:
        roots: Folders or files that may be reached; the working directory by default.
        parameters: More names of parameters for paths, at every depth.
        text: Names of parameters for text other than paths, with everything in them, at every depth. A path by type
            stays a path. The name counts only if the tool's schema has it, so a model cannot invent a key for text. A
            schema declares the same for a value by `contentMediaType`, or by base64 as its `contentEncoding` or
            `format`, as for `Base64Bytes`.

    Raises:
        DefinitionError: A root or a name is invalid.
    """
    fixed = Roots(*roots)
    paths, texts = read_names("within", parameters=parameters, text=text)
    allowed = ", ".join(repr(os.fspath(root)) for root in roots) or "the working directory"

    def guard(call: ToolCall, context: ToolContext) -> Decision | None:
        folder = context.fields.working_directory
        judge = _Judge(fixed.resolve_roots(folder), fixed.find_base(folder), allowed, paths, texts, call, context)
        try:
            arguments = judge.judge_mapping(call.arguments, (), named=False, is_text=False)
        except _Outside as refusal:
            return deny(_HIDDEN_REASON if refusal.place[0] in judge.hidden else str(refusal))
        if judge.found_paths and context.running_call is not None:
            ALLOWED_PATHS[context.running_call] = frozenset(judge.found_paths)
        return allow(arguments=arguments) if judge.changed else None

    vars(guard)["roots"] = tuple(fixed.resolve_roots(None))  # read by code with files to keep apart from the roots
    vars(guard)["asks"] = False
    guard.__name__ = guard.__qualname__ = f"within({', '.join(repr(os.fspath(root)) for root in roots)})"
    return guard


class _Outside(Exception):
    """A path that may not be reached. The text is for the model."""

    def __init__(self, place: Place, text: str) -> None:
        super().__init__(text)
        self.place = place


_HIDDEN_REASON = "a path set by the program is outside the allowed paths"


class _Judge:
    """A walk through the arguments of one call. `changed` is true if a path changed."""

    def __init__(
        self,
        roots: list[str],
        base: str,
        allowed: str,
        paths: frozenset[str],
        texts: frozenset[str],
        call: ToolCall,
        context: ToolContext,
    ) -> None:
        self.roots = roots
        self.base = base
        self.allowed = allowed
        self.paths = paths
        self.texts = texts
        self.tool = getattr(context, "tool", None)
        self.hidden = getattr(self.tool, "hidden", ())
        self.changed = False
        self.found_paths: set[str] = set()
        places = call.arguments.places
        declared = () if places is None else places.paths
        self.keys = {path.place for path in declared if path.is_key}
        self.values = {path.place for path in declared if not path.is_key}
        self.unnamed = frozenset() if places is None else places.unnamed

    def judge_mapping(self, values: Mapping[str, Any], place: Place, *, named: bool, is_text: bool) -> dict[str, Any]:
        judged: dict[str, Any] = {}
        for key, value in values.items():
            inner = (*place, key)
            is_path = inner in self.keys or (named and inner in self.unnamed and inner not in self.values)
            if not is_path and not is_text:
                self.judge_text(key, inner, is_key=True)
            name = self.judge_path(key, inner) if is_path else key
            if name in judged:
                raise _Outside(inner, f"two keys of {format_place(place)} are one path: {key[:QUOTE_LENGTH]!r}")
            text = is_text or (key in self.texts and inner not in self.unnamed)
            is_named = not (text or is_path) and (key in self.paths or has_last_word(key, PATH_NAMES))
            # A value from the program is checked only if it is declared a path, however it reads.
            judged[name] = self.judge_value(value, inner, named=is_named, is_text=text or inner[0] in self.hidden)
            if has_last_word(key, COMMAND_NAMES) and not text:
                self.judge_lines(value, inner, has_directory(values))
        return judged

    def judge_value(self, value: Any, place: Place, *, named: bool, is_text: bool) -> Any:
        if isinstance(value, Mapping):
            return self.judge_mapping(value, place, named=named, is_text=is_text)
        if isinstance(value, list | tuple):
            return [self.judge_value(one, (*place, at), named=named, is_text=is_text) for at, one in enumerate(value)]
        if place in self.values or (named and (isinstance(value, str) or self.must_be_text(value, place))):
            return self.judge_path(value, place)
        if isinstance(value, str) and not is_text:
            self.judge_text(value, place)
        return value

    def judge_lines(self, value: Any, place: Place, elsewhere: bool) -> None:
        """Raise `_Outside` if a redirection opens something outside."""
        for line in [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else ():
            for target in find_redirection_targets(line, elsewhere) if isinstance(line, str) else ():
                description = f"{format_place(place)}: a redirection in {line[:QUOTE_LENGTH]!r}"
                if target is None:
                    raise _Outside(place, f"{description} opens an unknown file; write its absolute path")
                self.resolve_inside(target, place, f"{description} opens a file that")

    def must_be_text(self, value: Any, place: Place) -> bool:
        """Return whether the value must be text: a number is never `path`, but may be `max_files`."""
        key = next(part for part in reversed(place) if isinstance(part, str))
        return value is not None and (key in self.paths or key in PATH_NAMES)

    def judge_path(self, value: Any, place: Place) -> str:
        """Return the real path of a value declared as a path.

        Raises:
            _Outside: The value is not a path as text, is a URL, or leads outside.
        """
        if not isinstance(value, str):
            kind = "true or false" if isinstance(value, bool) else "a number"
            raise _Outside(place, f"{format_place(place)} must be a path as text, not {kind}")
        if _URL.match(value):
            raise _Outside(place, f"{format_argument(place, value)} is a URL; write a path in {self.allowed}")
        path = self.resolve_inside(value, place, format_argument(place, value))
        self.changed = self.changed or path != value
        self.found_paths.add(path)
        return path

    def judge_text(self, text: str, place: Place, *, is_key: bool = False) -> None:
        """Raise `_Outside` if some client may read the whole text as a path to somewhere outside."""
        for read in _iter_readings(text):
            exemption = suggest_exemption("within", place, self.unnamed)
            try:
                self.judge_reading(read, place, f"{format_argument(place, text)} reads as a path{exemption} and")
            except _Outside:
                if is_key or not self.is_declared_text(place):
                    raise

    def judge_reading(self, read: str, place: Place, description: str) -> None:
        if os.name == "posix" and _WINDOWS_PATH.match(read):
            raise _Outside(place, f"{description} is a path of Windows; allowed is: {self.allowed}")
        if self.is_prose(read):
            return
        if _FILE_URL.match(read):
            raise _Outside(place, f"{description} is a URL; write a path in {self.allowed}")
        self.resolve_inside(read, place, description)

    def resolve_inside(self, text: str, place: Place, description: str) -> str:
        """Return the real path of a text.

        Raises:
            _Outside: It leads outside, or cannot be resolved.
        """
        try:
            path = resolve_path(text, self.base)
            path.encode()
        except (ValueError, OSError) as error:
            reason = "its name is not valid UTF-8" if isinstance(error, UnicodeError) else str(error)[:300]
            raise _Outside(place, f"{description} is not a valid path: {reason}") from None
        if not any(contains(root, path) for root in self.roots):
            raise _Outside(place, f"{description} is outside the allowed paths; allowed is: {self.allowed}")
        return path

    def is_prose(self, text: str) -> bool:
        """Return whether a text is prose: `// a comment`, a picture in base64.

        Its first part names no existing file. It has a blank there, or the whole text is too long for a path.
        """
        drive, rest = os.path.splitdrive(text)
        first = re.split(r"[\\/]" if os.name == "nt" else "/", rest.lstrip(f"/{os.sep}"), maxsplit=1)[0]
        above = self.base if rest and rest[0] not in {"/", os.sep} else drive + os.sep
        has_blank = any(character.isspace() for character in first)
        return (has_blank or len(text) > _MAX_SYSTEM_PATH) and not os.path.lexists(os.path.join(above, first))

    def is_declared_text(self, place: Place) -> bool:
        """Return whether the tool's schema declares the kind of text at a place, in each form of the text."""
        return declares_text(find_place_forms(getattr(self.tool, "input_schema", {}), place))


def _iter_readings(text: str) -> Iterator[str]:
    """Yield the readings of a text as a path; nothing if it reads as none.

    A handler may take it as it is, strip it, resolve its dots, or take backslashes for slashes.
    """
    if ".." not in text and not _READS_AS_PATH.match(text):
        return
    plain = text.strip(QUOTES_AND_BLANKS)
    dotted = ".." in plain.replace("\\", "/").split("/")
    written = {plain, plain.replace("\\", "/")} if dotted else {plain}
    for read in written | {os.path.normpath(one) for one in written}:
        if _FILE_URL.match(read) or _WINDOWS_PATH.match(read) or _is_rooted(read) or ".." in read.split(os.sep):
            yield read


def _is_rooted(text: str) -> bool:
    return text.startswith(("/", "~", os.sep)) or bool(os.path.splitdrive(text)[0])
