"""Reading, writing, editing, listing and searching files, without ever following a symbolic link.

Paths start at `context.working_directory`. These tools do not keep a path inside it: use `ferrule.guards.within`. It
also turns links into real paths, and these tools open exactly those. The tools of `refusing_hard_links` read no
file with another name elsewhere; no tool here writes into such a file. See docs/guards.md#paths.
"""

from __future__ import annotations

import difflib
import fnmatch
import os
import re
import unicodedata
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from heapq import nlargest
from io import TextIOWrapper
from itertools import islice
from typing import Annotated, Any, BinaryIO, Final, NamedTuple

from pydantic import Field
from pydantic_core import SchemaError, SchemaValidator, core_schema

from ferrule.definition.decorator import tool
from ferrule.definition.tool import Tool
from ferrule.errors import ToolError
from ferrule.security.paths import (
    Directory,
    Expected,
    Kind,
    check_path,
    contains,
    open_directory,
    open_exactly,
    resolve_path,
    write_exactly,
)
from ferrule.security.patterns import BUDGET, Pattern, PatternError
from ferrule.values.context import CONTEXT, ToolContext, find_running_call
from ferrule.values.count import format_count
from ferrule.values.diff import Diff

_MAX_BYTES: Final = 50_000_000  # bytes to read, and to write: a written file can be read again
_MAX_EDITED_BYTES: Final = 5_000_000  # bytes; each step on so many takes at most some hundredths of a second
_MAX_REPLACED: Final = 1_000_000
_MAX_COMPARED_CHARACTERS: Final = 500_000
_MAX_COMPARED_LINES: Final = 20
_CHUNK_BYTES: Final = 65_536
_MAX_SEARCHED_BYTES: Final = 5_000_000
_MAX_SEARCHED_FILES: Final = 20_000
_MAX_ENTRIES: Final = 100_000
_MAX_DEPTH: Final = 40
_MAX_LINE: Final = 2000
_MAX_MATCHED_LINE: Final = 300
_PAGE_CHARACTERS: Final = 14_500  # with its last line below 16,000, the usual limit of an output
_MAX_COUNTED: Final = 1000
_PROBED_BYTES: Final = 8192
_LINE_COST: Final = 100
"""The cost of each line beside its own length, in characters."""
_SKIPPED_DIRECTORIES: Final = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        "node_modules",
        "__pycache__",
        ".venv",
        ".tox",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
    }
)

Path = Annotated[
    str, Field(description="Relative to the working directory, or absolute.", json_schema_extra={"format": "path"})
]
"""The type of a path parameter of these tools."""
Text = Annotated[str, Field(json_schema_extra={"contentMediaType": "text/plain"})]
"""The type of a text parameter. It is no path, so guards need not judge it as one."""
_MISSING: Final = "nothing"
_UNSET: Final[Any] = object()
"""A default without a JSON form, so an unset parameter is shown to nobody."""


def _resolve_path(path: str, working_directory: str) -> str:
    """Return the canonical path to open. `..` is resolved by name; links stay, and the opening refuses them."""
    base = resolve_path(".", working_directory)
    full = os.path.normpath(os.path.join(base, check_path(path)))
    return full[1:] if full.startswith("//") else full  # POSIX lets two slashes mean something else; nobody does


def _to_shown_path(full: str, context: ToolContext) -> str:
    """Return a path for the model to use again: relative if it is in the working directory."""
    base = resolve_path(".", context.working_directory)
    return os.path.relpath(full, base) if contains(base, full) else full


def _make_file_key(arguments: Mapping[str, Any]) -> list[str]:
    """Return the key for all calls of one file. Two spellings get one key if any file system treats them as one."""
    current = find_running_call()
    try:
        full = _resolve_path(arguments["path"], "." if current is None else current.context.working_directory)
    except (KeyError, ValueError, OSError):
        return []
    return [f"file:{unicodedata.normalize('NFC', full).casefold()}"]


def _has_hard_links_allowed() -> bool:
    own: Mapping[str, bool] = CONTEXT.get()
    return own.get("hard_links", True)


def _read_whole(full: str, shown: str, hard_links: bool) -> tuple[bytes, os.stat_result]:
    """Return all bytes of the file to edit, and its status."""
    with os.fdopen(open_exactly(full, hard_links=hard_links), "rb") as file:
        found = os.fstat(file.fileno())
        _check_readable(found.st_size, shown, _MAX_EDITED_BYTES, "edited")
        data = file.read(_MAX_EDITED_BYTES + 1) or b""
    _check_readable(len(data), shown, _MAX_EDITED_BYTES, "edited")  # it may have grown, and files of `/proc` say 0
    _check_text(data, shown, len(data))
    return data, found


def _hash_content(data: bytes) -> str:
    from hashlib import sha256  # loads OpenSSL, which most programs never need

    return sha256(data).hexdigest()


def _check_unchanged(data: bytes | None, shown: str, expected: str) -> None:
    """Refuse a file, or its absence, if a person was shown anything else."""
    if expected is not _UNSET and expected != (_MISSING if data is None else _hash_content(data)):
        raise _make_changed_error(shown)


def _make_changed_error(shown: str) -> ToolError:
    return ToolError(
        f"{shown!r} has changed since it was shown to the person who allowed this; nothing was written. Read it again; "
        "the next call is shown to them anew",
        executed=False,
    )


def _read_shown_state(full: str, shown: str, expected: str) -> Expected:
    """Return the expected state of the file to replace; `None` if any state will do."""
    if expected is _UNSET:
        return None
    found: Expected = _MISSING
    data = None
    try:
        data, found = _read_whole(full, shown, _has_hard_links_allowed())
    except FileNotFoundError:
        pass
    except ValueError:  # the person was shown a text
        raise _make_changed_error(shown) from None
    _check_unchanged(data, shown, expected)
    return found


def _check_readable(size: int, shown: str, most: int, what: str) -> None:
    if size > most:
        raise ValueError(f"{shown!r} has {size} bytes; at most {most} are {what}")


def _check_text(beginning: bytes, shown: str, size: int) -> None:
    if _is_binary(beginning):
        raise ValueError(f"{shown!r} is a binary file ({size} bytes), not text")


def _is_binary(data: bytes) -> bool:
    return b"\0" in data[:_PROBED_BYTES]


@contextmanager
def _explaining(executed: bool | None = False) -> Iterator[None]:
    """Raise a `ValueError` or `OSError` as a `ToolError`, which is logged without a traceback.

    Args:
        executed: False if the file is as it was, None if folders may have been made for it, True for a read.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        raise ToolError(str(error), executed=executed) from error


def _split_lines(text: str) -> list[str]:
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def _shorten_line(line: str, length: int) -> str:
    return line if len(line) <= length else _mark_cut(line, length, len(line))


def _mark_cut(line: str, length: int, whole: int) -> str:
    return f"{line[:length]}… [cut: {whole} characters]"


@tool(read_only=True, idempotent=True, open_world=False, resources=_make_file_key)
@_explaining(executed=True)
def read_file(
    path: Path,
    context: ToolContext,
    offset: Annotated[int, Field(ge=1)] = 1,
    limit: Annotated[int, Field(ge=1, le=10_000)] = 2000,
) -> str:
    """Read a text file. Each line is shown as its number, a tab, and its text.

    Args:
        offset: The number of the first line to show.
        limit: How many lines to show at most.
    """
    full = _resolve_path(path, context.working_directory)
    shown = _to_shown_path(full, context)
    with os.fdopen(open_exactly(full, hard_links=_has_hard_links_allowed()), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        _check_readable(size, shown, _MAX_BYTES, "read")
        _check_text(file.read(_PROBED_BYTES) or b"", shown, size)  # some files in `/proc` have no content yet
        place, count = _find_line(file, offset, shown, context)
        if not count:
            return "[the file is empty]"
        if offset > count:
            raise ValueError(f"{shown!r} has {count} lines, so there is no line {offset}")
        file.seek(place)
        text = TextIOWrapper(file, "utf-8" if place else "utf-8-sig", "replace", newline="\n")
        wanted = range(offset, min(offset + limit, count + 1))
        page = _fill_page(f"{number}\t{_read_line(text, context)}" for number in wanted)
    last = offset + len(page) - 1
    if any("\ufffd" in line for line in page):
        page.append("[\ufffd stands for what is not UTF-8]")
    if offset > 1 or last < count:
        more = f"; go on with offset={last + 1}" if last < count else ""
        page.append(f"[lines {offset} to {last} of {count}{more}]")
    return "\n".join(page)


def _find_line(file: BinaryIO, line: int, shown: str, context: ToolContext) -> tuple[int, int]:
    """Return the position of a line in a file, and the number of lines. The file is read in parts, so a large
    one neither fills the memory nor holds up other threads.
    """
    file.seek(0)
    place = size = feeds = 0
    last = b""
    while part := file.read(_CHUNK_BYTES):
        inside = part.count(b"\n")
        if feeds < line - 1 <= feeds + inside:
            place = size + sum(map(len, part.split(b"\n", line - 1 - feeds)[:-1])) + line - 1 - feeds
        feeds, size, last = feeds + inside, size + len(part), part
        _check_readable(size, shown, _MAX_BYTES, "read")  # it may grow, and files of `/proc` say 0
        _check_deadline(context)
    return place, feeds + (bool(last) and not last.endswith(b"\n"))


def _read_line(text: TextIOWrapper, context: ToolContext) -> str:
    """Return the next line, cut if it is long. The rest of a long line is only counted."""
    line = part = text.readline(_MAX_LINE + 2)
    length, end = 0, ""
    while part:
        length, end = length + len(part), (end + part)[-2:]
        if part.endswith("\n") or length > _MAX_BYTES:
            break
        _check_deadline(context)
        part = text.readline(_CHUNK_BYTES)
    length -= len(end) - len(end.removesuffix("\n").removesuffix("\r"))
    return line[:length] if length <= _MAX_LINE else _mark_cut(line, _MAX_LINE, length)


def _check_deadline(context: ToolContext) -> None:
    """Raise a TimeoutError at the deadline, because nobody waits for the handler any more."""
    if context.remaining() == 0:
        raise TimeoutError("stopped at the deadline")


def _preview_write(arguments: Mapping[str, Any], *, hard_links: bool = True) -> str | Diff:
    path, content = arguments["path"], arguments["content"]
    if not os.path.isabs(path):  # the working directory is not known here
        return f"{path!r} would hold this, in the place of whatever is there:\n{content}"
    binds = {"expected": _MISSING}
    try:
        data = _read_whole(_resolve_path(path, os.sep), path, hard_links)[0]
        before, binds = data.decode(), {"expected": _hash_content(data)}
    except FileNotFoundError:
        before = ""
    except UnicodeDecodeError as error:
        return f"{path!r} is not UTF-8 text (byte {error.start}), and would hold this instead:\n{content}"
    except (ValueError, OSError) as error:
        return f"{path!r} would hold this, in the place of what cannot be shown ({error}):\n{content}"
    return Diff(before, content, path, binds)


@tool(
    destructive=True,
    idempotent=True,
    open_world=False,
    resources=_make_file_key,
    preview=_preview_write,
    private=["expected"],
)
def write_file(path: Path, content: Text, context: ToolContext, expected: str = _UNSET) -> str:
    """Write a whole text file, which replaces what is there; directories that are missing are made.

    Args:
        content: The whole new text of the file.
    """
    with _explaining():
        if path.endswith(("/", os.sep)):
            raise ValueError(f"{path[:200]!r} names a directory; give the file a name")
        full = _resolve_path(path, context.working_directory)
        data = _encode("content", content)
        _check_written_size(len(data))
        shown = _to_shown_path(full, context)
        found = _read_shown_state(full, shown, expected)
    with _explaining(False if os.path.isdir(os.path.dirname(full)) else None):
        new = write_exactly(full, data, expected=found, make_directories=True)
    lines = len(_split_lines(content)) if content else 0
    return f"{'made' if new else 'replaced'} {shown!r}: {format_count(lines, 'line')}"


def _encode(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} holds a lone surrogate at character {error.start}, which UTF-8 cannot") from None


def _check_written_size(size: int) -> None:
    if size > _MAX_BYTES:
        raise ValueError(f"the file would have up to {size} bytes, and at most {_MAX_BYTES} are written")


class _PlannedEdit(NamedTuple):
    """The result of an edit."""

    before: str
    after: str
    data: bytes
    """The bytes of `before`."""
    found: os.stat_result
    times_text: str
    line: int


def _plan_edit(
    full: str, shown: str, old: str, new: str, replace_all: bool, hard_links: bool, expected: str = _UNSET
) -> _PlannedEdit:
    if not old:
        raise ValueError("old is empty; say which passage is to be replaced, or use write_file for a whole file")
    if old == new:
        raise ValueError("old and new are the same, so there is nothing to change")
    data, found = _read_whole(full, shown, hard_links)
    _check_unchanged(data, shown, expected)
    try:
        document = _Document.parse(data.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"{shown!r} is not UTF-8 text (byte {error.start}); it was not changed") from None
    wanted = old.replace("\r\n", "\n")
    places = list(islice(_find_places(document.flat, wanted), (_MAX_REPLACED if replace_all else _MAX_COUNTED) + 1))
    if not places:
        raise ValueError(
            f"old does not occur in {shown!r}, which was not changed; {_describe_nearest(document.flat, wanted)}"
        )
    if not replace_all and document.flat.find(wanted, places[0] + 1) >= 0:
        times = f"more than {_MAX_COUNTED}" if len(places) > _MAX_COUNTED else max(len(places), 2)
        raise ValueError(
            f"old occurs {times} times in {shown!r}, which was not changed; first at lines "
            f"{', '.join(str(document.find_line(place)) for place in places[:5])}: add text around it, or set "
            "replace_all"
        )
    if len(places) > _MAX_REPLACED:
        raise ValueError(f"old occurs more than {_MAX_REPLACED} times in {shown!r}, which was not changed")
    put = new.replace("\r\n", "\n")
    # An upper bound: each line end in it may become CR LF, and a replaced passage has no fewer bytes than `wanted`.
    _check_written_size(
        len(data) + len(places) * (len(_encode("new", put)) + put.count("\n") - len(_encode("old", wanted)))
    )
    changed = document.replace_places(places, len(wanted), put)
    times_text = "once" if len(places) == 1 else f"{len(places)} times"
    return _PlannedEdit(document.text, changed, data, found, times_text, document.find_line(places[0]))


def _preview_edit(arguments: Mapping[str, Any], *, hard_links: bool = True) -> str | Diff:
    path, old, new = arguments["path"], arguments["old"], arguments["new"]
    if not os.path.isabs(path):  # the working directory is not known here
        where = "everywhere" if arguments.get("replace_all") else "in one place"
        return f"In {path!r} this would be replaced {where}:\n{old}\nby this:\n{new}"
    try:
        edit = _plan_edit(_resolve_path(path, os.sep), path, old, new, arguments.get("replace_all", False), hard_links)
    except (ValueError, OSError) as error:
        raise ToolError(str(error)) from None
    return Diff(edit.before, edit.after, path, {"expected": _hash_content(edit.data)})


@tool(destructive=True, open_world=False, resources=_make_file_key, preview=_preview_edit, private=["expected"])
def edit_file(
    path: Path, old: Text, new: Text, context: ToolContext, replace_all: bool = False, expected: str = _UNSET
) -> str:
    """Replace a passage of a text file. Line ends and encoding stay as they are.

    Args:
        old: The passage, exactly as it is in the file (without the line numbers that read_file shows). It must occur
            once: take in enough of what is around it.
        new: The passage to put in its place.
        replace_all: Replace it wherever it occurs.
    """
    with _explaining():
        full = _resolve_path(path, context.working_directory)
        shown = _to_shown_path(full, context)
        edit = _plan_edit(full, shown, old, new, replace_all, _has_hard_links_allowed(), expected)
        data = _encode("new", edit.after)
        _check_deadline(context)
        write_exactly(full, data, expected=edit.found)
    return f"replaced {edit.times_text} in {shown!r}, at line {edit.line}"


def _find_places(text: str, wanted: str) -> Iterator[int]:
    place = text.find(wanted)
    while place >= 0:
        yield place
        place = text.find(wanted, place + len(wanted))


class _Document(NamedTuple):
    """A text with the kind of each of its line ends, to keep the other passages as they are, to the byte."""

    text: str
    flat: str
    """The text with every line end as a line feed."""
    returns: array[int]
    """The positions in `flat` of the line feeds with CR LF in the text."""

    @classmethod
    def parse(cls, text: str) -> _Document:
        flat = text.replace("\r\n", "\n")
        returns = array("Q", (match.start() - index for index, match in enumerate(re.finditer("\r\n", text))))
        return cls(text, flat, returns)

    def find_line(self, place: int) -> int:
        return self.flat.count("\n", 0, place) + 1

    def _place_in_text(self, place: int) -> int:
        return place + bisect_left(self.returns, place)

    def replace_places(self, places: list[int], length: int, new: str) -> str:
        parts: list[str] = []
        start = 0
        mostly_crlf = 2 * len(self.returns) > self.flat.count("\n")
        for place in places:
            first, last = self._place_in_text(place), self._place_in_text(place + length)
            passage = self.text[first:last]
            crlf = "\r\n" in passage if "\n" in passage else mostly_crlf
            parts += [self.text[start:first], new.replace("\n", "\r\n") if crlf else new]
            start = last
        return "".join([*parts, self.text[start:]])


def _describe_nearest(text: str, wanted: str) -> str:
    """Describe the closest passage in words, to help the next try."""
    text = text[:_MAX_COMPARED_CHARACTERS]
    if " ".join(wanted.split()) in " ".join(text.split()):
        return "it does with other blanks or line breaks: copy the indentation exactly"
    first = next((line.strip() for line in wanted.split("\n") if line.strip()), "")[:200]
    lines = {line.strip()[:200]: number for number, line in reversed(list(enumerate(text.split("\n", 2000)[:2000], 1)))}
    close = _find_closest(first, lines)
    return "read the file first" if close is None else f"line {lines[close]} comes closest: {close!r}"


def _find_closest(wanted: str, lines: Iterable[str]) -> str | None:
    """Return the line most similar to `wanted`. Only the few lines with the most characters in common are compared in
    order, because one such comparison takes up to 10 ms.
    """
    matcher = difflib.SequenceMatcher(b=wanted)

    def in_common(line: str) -> float:
        matcher.set_seq1(line)
        return matcher.quick_ratio()

    return next(iter(difflib.get_close_matches(wanted, nlargest(_MAX_COMPARED_LINES, lines, in_common), 1, 0.6)), None)


class _Entry(NamedTuple):
    place: str
    """Relative to the start of the walk."""
    name: str
    kind: Kind
    parent: Directory


class _Walk:
    """A walk through a directory and everything below it, with counts of the skipped directories."""

    def __init__(self) -> None:
        self.closed = 0
        self.crowded = 0

    def iterate(self, directory: Directory, depth: int, place: str = "") -> Iterator[_Entry]:
        """Yield each directory before its contents. Links and unreadable directories are not entered."""
        for name, kind in self._sort_entries(directory):
            inner = f"{place}{name}"
            yield _Entry(inner, name, kind, directory)
            if kind == "directory" and depth > 1 and name not in _SKIPPED_DIRECTORIES:
                yield from self._walk_below(directory, name, depth - 1, f"{inner}/")

    def _sort_entries(self, directory: Directory) -> list[tuple[str, Kind]]:
        """Return the contents of a directory, by name."""
        entries = directory.entries()
        found = sorted(islice(entries, _MAX_ENTRIES))
        if len(found) == _MAX_ENTRIES and next(entries, None) is not None:
            self.crowded += 1
        return found

    def _walk_below(self, directory: Directory, name: str, depth: int, place: str) -> Iterator[_Entry]:
        try:
            with directory.enter(name) as entered:
                yield from self.iterate(entered, depth, place)
        except OSError:  # it may be gone by now, or not be readable
            self.closed += 1

    def describe_gaps(self) -> list[str]:
        found = []
        if self.closed:
            found.append(f"directories that could not be read: {self.closed}")
        if self.crowded:
            found.append(f"directories of which only {_MAX_ENTRIES} entries were looked at: {self.crowded}")
        return found


def _make_matcher(pattern: str) -> Callable[[_Entry], bool]:
    """Return a predicate for an entry's name; or for its place, part by part, if the pattern has a slash. `**` matches
    any number of parts.
    """
    parts = [None if part == "**" else re.compile(fnmatch.translate(part)).match for part in pattern.split("/")]
    return lambda entry: _is_match(parts, entry.place.split("/") if len(parts) > 1 else [entry.name])


def _is_match(parts: Sequence[Callable[[str], object] | None], names: list[str]) -> bool:
    """Return whether the names fit the parts. All fitting beginnings of `names` are tracked, so many `**` cost
    no more than one each.
    """
    begun = {0}
    for part in parts:
        if part is None:
            begun = set(range(min(begun), len(names) + 1))
        else:
            begun = {at + 1 for at in begun if at < len(names) and part(names[at])}
        if not begun:
            return False
    return len(names) in begun


@tool(read_only=True, idempotent=True, open_world=False)
@_explaining(executed=True)
def list_files(
    context: ToolContext,
    path: Path = ".",
    pattern: Annotated[str, Field(max_length=300)] = "*",
    depth: Annotated[int, Field(ge=1, le=_MAX_DEPTH)] = 3,
    limit: Annotated[int, Field(ge=1, le=10_000)] = 1000,
) -> str:
    """List what is in a directory. A directory ends in `/`, a symbolic link in `@`; links are not followed.

    Directories such as `.git` and `node_modules` are shown, and entered only where `path` is one of them.

    Args:
        pattern: Only names that fit, such as `*.py`; with a slash, only paths that fit, such as `src/*.py`.
        depth: How many levels deep.
        limit: How many entries to show at most.
    """
    full = _resolve_path(path, context.working_directory)
    fits = _make_matcher(pattern)
    found: list[_Entry] = []
    late = False
    walk = _Walk()
    with open_directory(full) as directory:
        for entry in walk.iterate(directory, depth):
            late = context.remaining() == 0
            if late or len(found) > limit:
                break
            if fits(entry):
                found.append(entry)
    lines = _fill_page(map(_format_entry, found[:limit]))
    notes = walk.describe_gaps()
    if len(lines) < len(found):
        notes.insert(0, _format_omission(len(found) - len(lines), late or len(found) > limit, "path, pattern or depth"))
    if late:
        notes.append("stopped at the deadline; narrow it by path or depth")
    if not lines and not late:
        notes.insert(0, "the directory is empty" if pattern == "*" else f"nothing in it fits {pattern!r}")
    return "\n".join([*lines, *(f"[{note}]" for note in notes)])


def _format_entry(entry: _Entry) -> str:
    return _shorten_line(_escape_name(entry.place), _MAX_LINE) + {"directory": "/", "link": "@"}.get(entry.kind, "")


def _fill_page(lines: Iterable[str]) -> list[str]:
    """Return the first lines, each of them whole, up to the length of a page."""
    page: list[str] = []
    room = _PAGE_CHARACTERS
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        page.append(line)
    return page


def _format_omission(number: int, at_least: bool, narrow: str) -> str:
    return f"left off: {'at least ' if at_least else ''}{number} more; to see them, narrow it by {narrow}"


def _escape_name(name: str) -> str:
    """Return a file name in a form that breaks neither its line nor the encoding."""
    return name if name.isprintable() else repr(name)


class _Search:
    """One search: its matches, and counts of the skipped files and lines."""

    def __init__(self, pattern: str, limit: int, is_late: Callable[[], bool]) -> None:
        self.pattern = _compile_pattern(pattern)
        self.limit = limit
        self.is_late = is_late
        self.found: list[str] = []
        self.files = 0
        self.too_large = 0
        self.skipped = 0
        self.too_long = 0
        self.stopped = ""
        self.spent = 0
        self.walk = _Walk()

    @property
    def is_full(self) -> bool:
        """Whether there is one match more than the limit, so the search can end."""
        return len(self.found) > self.limit

    @property
    def opened_files(self) -> int:
        return self.files + self.too_large + self.skipped

    def search_file(self, descriptor: int, shown: str) -> None:
        with os.fdopen(descriptor, "rb") as file:
            if os.fstat(file.fileno()).st_size > _MAX_SEARCHED_BYTES:
                self.too_large += 1
                return
            data = file.read(_PROBED_BYTES) or b""
            if _is_binary(data):
                self.skipped += 1
                return
            data += file.read(_MAX_SEARCHED_BYTES - len(data))
        self.files += 1
        for number, line in enumerate(_iterate_lines(data.decode("utf-8-sig", "replace")), 1):
            fits = self._is_match(line)
            if self.stopped:
                return
            if fits:
                name = _shorten_line(_escape_name(shown), _MAX_LINE)
                self.found.append(f"{name}:{number}: {_shorten_line(line, _MAX_MATCHED_LINE)}")
                if self.is_full:
                    return

    def _is_match(self, line: str) -> bool:
        """Return whether the pattern is found in a line. The answer is no if no time is left."""
        if len(line) > self.pattern.max_length:
            self.too_long += 1
            return False
        return self._has_time(line) and self.pattern.matches(line)

    def _has_time(self, text: str) -> bool:
        """Return whether there is time to search a text. The clock is read each time the engine may have been busy for
        some hundredths of a second. Once it is late, the answer stays no.
        """
        self.spent += self.pattern.size * (len(text) + _LINE_COST)
        if self.spent > BUDGET:
            self.spent = 0
            self.stop_when_late()
        return not self.stopped

    def stop_when_late(self) -> None:
        if self.is_late():
            self.stopped = (
                f"stopped at the deadline, after {format_count(self.opened_files, 'file')}; narrow it by path or glob"
            )

    def report(self, pattern: str) -> str:
        found = _fill_page(self.found[: self.limit])
        lines = found or [
            f"no line fits {_shorten_line(pattern, _MAX_MATCHED_LINE)!r} ({format_count(self.files, 'file')} searched)"
        ]
        notes = [self.stopped] if self.stopped else []
        if len(found) < len(self.found):
            at_least = self.is_full or bool(self.stopped)
            notes.insert(0, _format_omission(len(self.found) - len(found), at_least, "pattern, path or glob"))
        notes += self.walk.describe_gaps()
        if self.too_long:
            notes.append(f"lines over {self.pattern.max_length} characters, not searched: {self.too_long}")
        if self.too_large:
            notes.append(f"files over {_MAX_SEARCHED_BYTES} bytes, not searched: {self.too_large}")
        if self.skipped:
            notes.append(f"binary or unreadable files that were skipped: {self.skipped}")
        return "\n".join([*lines, *(f"[{note}]" for note in notes)])


def _iterate_lines(text: str) -> Iterator[str]:
    """Yield the lines of a text, one after the other: making all of five million at once holds up every thread."""
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start:end].removesuffix("\r")
        start = end + 1
    if start < len(text):
        yield text[start:].removesuffix("\r")


def _compile_pattern(text: str) -> Pattern:
    """Return the regular expression of a model. Python's own engine can take for ever on `(a|aa)+$`."""
    try:
        return Pattern(text, unicode=True)
    except PatternError as error:
        problem = _describe_syntax_error(text) if error.is_invalid else str(error)
        what = "is not a regular expression" if error.is_invalid else "is a regular expression that is not taken"
        raise ValueError(f"{text[:200]!r} {what}: {problem}") from None


def _describe_syntax_error(text: str) -> str:
    """Return the error in a pattern, in the words of the engine, as Pydantic passes them on."""
    try:
        SchemaValidator(core_schema.str_schema(pattern=text, regex_engine="rust-regex"))
    except SchemaError as error:
        return " ".join(str(error).partition("SchemaError:")[2].split())[:300]
    return "it has an escape or a repetition that is none in JavaScript"


@tool(read_only=True, idempotent=True, open_world=False)
@_explaining(executed=True)
def search_files(
    pattern: Annotated[Text, Field(min_length=1, max_length=1000)],
    context: ToolContext,
    path: Path = ".",
    glob: Annotated[str, Field(max_length=300)] = "*",
    limit: Annotated[int, Field(ge=1, le=2000)] = 100,
) -> str:
    """Search text files for lines that fit a regular expression, shown as `file:line: text`.

    Directories such as `.git` and `node_modules` are searched only where `path` is one of them.

    Args:
        pattern: A regular expression, without look-around and back-references, and at most some hundred characters and
            repetitions long; `(?i)` at its beginning ignores case.
        glob: Only files whose names fit, such as `*.py`; with a slash, whose paths fit, such as `src/*.py`.
        limit: How many lines to show at most.
    """
    full = _resolve_path(path, context.working_directory)
    search = _Search(pattern, limit, lambda: context.remaining() == 0)
    hard_links = _has_hard_links_allowed()
    shown = _to_shown_path(full, context)
    try:
        directory = open_directory(full)
    except NotADirectoryError:
        search.search_file(open_exactly(full, hard_links=hard_links), shown)
        return search.report(pattern)
    fits = _make_matcher(glob)
    with directory:
        for entry in search.walk.iterate(directory, _MAX_DEPTH):
            search.stop_when_late()
            if not search.stopped and search.opened_files >= _MAX_SEARCHED_FILES:
                search.stopped = f"stopped after {search.opened_files} files; narrow it by path or glob"
            if search.stopped or search.is_full:
                break
            if entry.kind != "file" or not fits(entry):
                continue
            try:
                search.search_file(
                    entry.parent.open(entry.name, hard_links=hard_links),
                    os.path.normpath(os.path.join(shown, entry.place)),
                )
            except OSError:  # it may be gone by now, or not be readable
                search.skipped += 1
    return search.report(pattern)


tools: list[Tool] = [read_file, write_file, edit_file, list_files, search_files]
"""All tools, in this order."""


def refusing_hard_links() -> list[Tool]:
    """Return the same tools, but they read and edit no file with several hard links: no path tells the other places."""
    previews = {
        write_file: partial(_preview_write, hard_links=False),
        edit_file: partial(_preview_edit, hard_links=False),
    }
    return [one.replace(context={"hard_links": False}, preview=previews.get(one)) for one in tools]
