"""Arguments of a Gemini call that come in chunks, each with a path to where it belongs (Vertex AI alone)."""

from __future__ import annotations

import re
from typing import Any

from ferrule.providers._gemini_names import either
from ferrule.providers._stream import join_chunks

_STEP_OF_PATH = re.compile(
    r"""\.(?P<name>[^.\[\]]+)|\[(?P<index>\d{1,9})\]|\['(?P<single>(?:[^'\\]|\\.)*)'\]|\["(?P<double>(?:[^"\\]|\\.)*)"\]"""
)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_LONGEST_PATH = 100


class PartialCall:
    """A call whose arguments come in chunks."""

    __slots__ = ("first", "id", "more", "name", "open", "signature", "values")

    def __init__(self, first: Any, id: str | None, name: str) -> None:
        self.first = first
        self.id = id
        self.name = name
        self.more = True
        self.open: set[str] = set()
        """The paths whose text goes on."""
        self.values: dict[str, list[Any]] = {}
        self.signature: Any = None

    def add(self, part: Any, partial: Any, more: bool) -> None:
        self.more = more
        signature = either(part, "thought_signature", "thoughtSignature")
        if signature:
            self.signature = part
        for chunk in partial if isinstance(partial, list) else ():
            path = either(chunk, "json_path", "jsonPath")
            path = path if isinstance(path, str) else ""
            self.values.setdefault(path, []).extend(_chunk_value(chunk))
            if either(chunk, "will_continue", "willContinue"):
                self.open.add(path)
            else:
                self.open.discard(path)

    def append_chunk(self, path: Any, text: Any, more: Any) -> bool:
        """Adds a chunk to a text that is being written; whether it was one."""
        if more is not True or type(text) is not str or path not in self.open:
            return False
        self.values[path].append(text)
        return True

    def assembled(self) -> dict[str, Any]:
        """The call so far; what is not whole says that it goes on."""
        call: dict[str, Any] = {"id": self.id} if self.id else {}
        call["name"] = self.name
        found = self._arguments()
        call["args"] = {} if found is None else found
        if self.more or self.open or found is None:
            call["willContinue"] = True
        return call

    def _arguments(self) -> dict[str, Any] | None:
        """The arguments so far; nothing where a path cannot be followed."""
        found: dict[str, Any] = {}
        for path, chunks in self.values.items():
            steps = _path_steps(path)
            texts = all(isinstance(chunk, str) for chunk in chunks)
            if steps is None or not chunks or not (texts or len(chunks) == 1):
                return None
            if not _set_at_path(found, steps, join_chunks(chunks) if texts else chunks[0]):
                return None
        return found


def _chunk_value(chunk: Any) -> tuple[Any, ...]:
    """The value in a chunk, if any; a whole number is an integer."""
    text = either(chunk, "string_value", "stringValue")
    if isinstance(text, str):
        return (text,)
    flag = either(chunk, "bool_value", "boolValue")
    if isinstance(flag, bool):
        return (flag,)
    number = either(chunk, "number_value", "numberValue")
    if isinstance(number, float) and number.is_integer() and abs(number) < 2**53:
        return (int(number),)
    if isinstance(number, int | float):
        return (number,)
    return (None,) if either(chunk, "null_value", "nullValue") is not None else ()


def _path_steps(path: str) -> list[str | int] | None:
    """The steps of a path such as `$.foo[0]['bar']`, RFC 9535; nothing for any other."""
    steps: list[str | int] = []
    at = 1
    while path[:1] == "$" and at < len(path) and len(steps) < _LONGEST_PATH:
        found = _STEP_OF_PATH.match(path, at)
        if found is None:
            return None
        name, index, single, double = found.group("name", "index", "single", "double")
        quoted = single if single is not None else double
        steps.append(int(index) if index else name if name is not None else _ESCAPE.sub(_unescaped, quoted))
        at = found.end()
    return steps if steps and at == len(path) and isinstance(steps[0], str) else None


def _unescaped(found: re.Match[str]) -> str:
    escaped = found.group(1)
    return chr(int(escaped[1:], 16)) if len(escaped) == 5 else _ESCAPED.get(escaped, escaped)


def _set_at_path(found: Any, steps: list[str | int], value: Any) -> bool:
    """Sets what is at the end of `steps`; whether that could be done."""
    for at, step in enumerate(steps):
        last = at == len(steps) - 1
        empty: Any = value if last else [] if isinstance(steps[at + 1], int) else {}
        if isinstance(found, dict) and isinstance(step, str):
            known = step in found
            inner = found.setdefault(step, empty)
        elif isinstance(found, list) and isinstance(step, int) and step <= len(found):
            known = step < len(found)
            if not known:
                found.append(empty)
            inner = found[step]
        else:
            return False
        if last:
            return not known
        found = inner
    return False
