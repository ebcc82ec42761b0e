"""Paths stay inside the given folders, and what was judged is what is opened.

Three kinds of text are judged, in every tool: what a type or a schema says is a path; what stands under the name of
one; and any other whole text that reads as one: absolute, with `~` in front, with a `..` part, or a `file:` URL.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from ferrule.guards._arguments import (
    QUOTE_LENGTH,
    QUOTES_AND_BLANKS,
    forms_at,
    given_names,
    place_text,
    quoted_value,
    remedy,
    says_text,
)
from ferrule.security.command_arguments import is_elsewhere
from ferrule.security.commands import COMMAND_NAMES, targets
from ferrule.security.paths import ALLOWED_PATHS, PATH_NAMES, Roots, contains, has_name_of, real
from ferrule.values.arguments import Place
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, allow, deny

_URL = re.compile(r"file:|[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_WRITTEN_FILE_URL = r"(?:file:|<*(?:[a-z][a-z0-9+.-]*+:)*?file:[/\\])"
"""In angle brackets too, and behind another scheme: RFC 3986's appendix C, and what urllib opens."""
_FILE_URL = re.compile(_WRITTEN_FILE_URL, re.IGNORECASE)
_READS_AS_PATH = re.compile(
    rf"[{QUOTES_AND_BLANKS}]*(?:[/~{re.escape(os.sep)}]|[a-z]:|\\\\|{_WRITTEN_FILE_URL})", re.IGNORECASE
)
"""How a text begins that may be a path; what has a `..` part may be one too."""
_OF_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\[^\\/\s]+[\\/]")
_LONGEST_OPENED: Final = 32_767 if os.name == "nt" else 4_095


def within(
    *roots: str | os.PathLike[str], parameters: Iterable[str] = (), text: Iterable[str] = ()
) -> Callable[[ToolCall, ToolContext], Decision | None]:
    """A guard that denies every path outside `roots`, and makes every other one its real path.
    See docs/guards.md#paths.

    Judged are, at every depth: what `context.paths` tells of, by type or schema; text, a list of texts, and the keys of
    a mapping, under one of `PATH_NAMES` or of `parameters`; and any other whole text, key or value, that is absolute,
    begins with `~`, has a `..` part or is a `file:` URL, blanks and quotes around it not counted. These last are denied
    outside, and stay as they are written inside. So do shell lines, of which redirections are judged.

    Symbolic links are followed before a path is judged, and the tool is given what they led to. Roots are fixed when
    the guard is made. Paths, and roots that are relative, start at `context.working_directory` where the caller gave
    one, and else where the program was when the guard was made.

    Args:
        roots: Folders or files that may be reached; the working directory where there are none.
        parameters: More names of parameters that are paths, at every depth.
        text: Names of parameters that hold text and no path, with all that is in them, at every depth; what the type
            says is a path stays one. Only where the tool's schema has the name: no key of a model's making is text. A
            schema says the same of its own by `contentMediaType`, or by `contentEncoding: base64`, as that of bytes is.

    Raises:
        DefinitionError: where a root or a name is none.
    """
    fixed = Roots(*roots)
    paths, texts = given_names("within", parameters=parameters, text=text)
    allowed = ", ".join(repr(os.fspath(root)) for root in roots) or "the working directory"

    def guard(call: ToolCall, context: ToolContext) -> Decision | None:
        given = context.fields.working_directory
        judge = _Judge(fixed.seen_from(given), fixed.base(given), allowed, paths, texts, call, context)
        try:
            arguments = judge.mapping(call.arguments, (), named=False, is_text=False)
        except _Outside as refusal:
            return deny(_HIDDEN_OUTSIDE if refusal.place[0] in judge.hidden else str(refusal))
        if judge.found_paths and context.running_call is not None:
            ALLOWED_PATHS[context.running_call] = frozenset(judge.found_paths)
        return allow(arguments=arguments) if judge.changed else None

    vars(guard)["roots"] = tuple(fixed.seen_from(None))  # for who has to keep something apart from them
    vars(guard)["asks"] = False
    guard.__name__ = guard.__qualname__ = f"within({', '.join(repr(os.fspath(root)) for root in roots)})"
    return guard


class _Outside(Exception):
    """A path that may not be reached; the text is for the model."""

    def __init__(self, place: Place, text: str) -> None:
        super().__init__(text)
        self.place = place


_HIDDEN_OUTSIDE = "a path that only the program knows is outside of what may be reached"


class _Judge:
    """Goes through the arguments of one call, and notes whether any path changed."""

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
        known = () if places is None else places.paths
        self.keys = {found.place for found in known if found.is_key}
        self.values = {found.place for found in known if not found.is_key}
        self.unnamed = frozenset() if places is None else places.unnamed

    def mapping(self, values: Mapping[str, Any], place: Place, *, named: bool, is_text: bool) -> dict[str, Any]:
        judged: dict[str, Any] = {}
        for key, value in values.items():
            inner = (*place, key)
            is_path = inner in self.keys or (named and inner in self.unnamed and inner not in self.values)
            if not is_path and not is_text:
                self.not_outside(key, inner, is_key=True)
            name = self.path(key, inner) if is_path else key
            if name in judged:
                raise _Outside(inner, f"two keys of {place_text(place)} are one path: {key[:QUOTE_LENGTH]!r}")
            text = is_text or (key in self.texts and inner not in self.unnamed)
            below = not (text or is_path) and (key in self.paths or has_name_of(key, PATH_NAMES))
            # What the program itself fills in is judged where it is known to be a path, and not for how it reads.
            judged[name] = self.value(value, inner, named=below, is_text=text or inner[0] in self.hidden)
            if has_name_of(key, COMMAND_NAMES) and not text:
                self.shell_lines(value, inner, is_elsewhere(values))
        return judged

    def value(self, value: Any, place: Place, *, named: bool, is_text: bool) -> Any:
        if isinstance(value, Mapping):
            return self.mapping(value, place, named=named, is_text=is_text)
        if isinstance(value, list | tuple):
            return [self.value(one, (*place, at), named=named, is_text=is_text) for at, one in enumerate(value)]
        if place in self.values or (named and (isinstance(value, str) or self.must_be_text(value, place))):
            return self.path(value, place)
        if isinstance(value, str) and not is_text:
            self.not_outside(value, place)
        return value

    def shell_lines(self, value: Any, place: Place, elsewhere: bool) -> None:
        """Refuse what a redirection opens outside."""
        for line in [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else ():
            for target in targets(line, elsewhere) if isinstance(line, str) else ():
                given = f"{place_text(place)}: a redirection in {line[:QUOTE_LENGTH]!r}"
                if target is None:
                    raise _Outside(place, f"{given} opens what cannot be known; write an absolute path that is known")
                self.real_path(target, place, f"{given} opens what")

    def must_be_text(self, value: Any, place: Place) -> bool:
        """Whether no number may stand there: `path` is never one, `max_files` may be."""
        key = next(part for part in reversed(place) if isinstance(part, str))
        return value is not None and (key in self.paths or key in PATH_NAMES)

    def path(self, value: Any, place: Place) -> str:
        """The real path of one that is known to be a path."""
        if not isinstance(value, str):
            kind = "true or false" if isinstance(value, bool) else "a number"
            raise _Outside(place, f"{place_text(place)} must be a path as text, and is {kind}")
        if _URL.match(value):
            raise _Outside(place, f"{quoted_value(place, value)} is a URL; write a path in {self.allowed}")
        found = self.real_path(value, place, quoted_value(place, value))
        self.changed = self.changed or found != value
        self.found_paths.add(found)
        return found

    def not_outside(self, text: str, place: Place, *, is_key: bool = False) -> None:
        """Refuse text that leads outside, as a whole, where somebody takes it for a path."""
        for read in _readings(text):
            way_out = remedy("within", place, self.unnamed)
            try:
                self.judge_reading(read, place, f"{quoted_value(place, text)} reads as a path{way_out} and")
            except _Outside:
                if is_key or not self.is_declared_text(place):
                    raise

    def judge_reading(self, read: str, place: Place, given: str) -> None:
        if os.name == "posix" and _OF_WINDOWS.match(read):
            raise _Outside(place, f"{given} is one of Windows; allowed is: {self.allowed}")
        if self.is_prose(read):
            return
        if _FILE_URL.match(read):
            raise _Outside(place, f"{given} is a URL; write a path in {self.allowed}")
        self.real_path(read, place, given)

    def real_path(self, text: str, place: Place, given: str) -> str:
        """What a path names, which is inside."""
        try:
            found = real(text, self.base)
            found.encode()
        except (ValueError, OSError) as error:
            reason = "its name is not valid UTF-8" if isinstance(error, UnicodeError) else str(error)[:300]
            raise _Outside(place, f"{given} is no path that can be judged: {reason}") from None
        if not any(contains(root, found) for root in self.roots):
            raise _Outside(place, f"{given} is outside of what may be reached; allowed is: {self.allowed}")
        return found

    def is_prose(self, text: str) -> bool:
        """Whether the first part of a text names nothing that is there, and it has a blank or the whole is too long for
        a path: `// a comment`, a picture in base64."""
        drive, rest = os.path.splitdrive(text)
        first = re.split(r"[\\/]" if os.name == "nt" else "/", rest.lstrip(f"/{os.sep}"), maxsplit=1)[0]
        above = self.base if rest and rest[0] not in {"/", os.sep} else drive + os.sep
        has_blank = any(character.isspace() for character in first)
        return (has_blank or len(text) > _LONGEST_OPENED) and not os.path.lexists(os.path.join(above, first))

    def is_declared_text(self, place: Place) -> bool:
        """Whether the tool's schema says what kind of text stands there, in each form that the text may have."""
        return says_text(forms_at(getattr(self.tool, "input_schema", {}), place))


def _readings(text: str) -> Iterator[str]:
    """What a text may mean as a path, to a handler that takes it as it is, strips it, takes its dots out, or takes
    backslashes for slashes; nothing where it reads as none."""
    if ".." not in text and not _READS_AS_PATH.match(text):
        return
    plain = text.strip(QUOTES_AND_BLANKS)
    dotted = ".." in plain.replace("\\", "/").split("/")
    written = {plain, plain.replace("\\", "/")} if dotted else {plain}
    for read in written | {os.path.normpath(one) for one in written}:
        if _FILE_URL.match(read) or _OF_WINDOWS.match(read) or _is_rooted(read) or ".." in read.split(os.sep):
            yield read


def _is_rooted(text: str) -> bool:
    return text.startswith(("/", "~", os.sep)) or bool(os.path.splitdrive(text)[0])
