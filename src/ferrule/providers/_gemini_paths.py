"""Arguments of a Gemini call that come in chunks, each with the path of its place (Vertex AI alone)."""

from __future__ import annotations

import re
from functools import reduce
from typing import Any

from ferrule.providers._gemini_names import read_either
from ferrule.providers._stream import join_chunks

_NAME_OR_INDEX = r"\.(?P<name>[^.\[\]]+)|\[(?P<index>\d{1,9})\]"
_STEP_OF_PATH = re.compile(_NAME_OR_INDEX + r"""|\[(?P<mark>['"])(?P<quoted>(?:\\.|(?!(?P=mark))[^\\])*)(?P=mark)\]""")
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
        """The paths with unfinished texts."""
        self.values: dict[str, list[Any]] = {}
        self.signature: Any = None

    def add(self, part: Any, partial: Any, more: bool) -> None:
        """Add a chunk: its values, and whether more come."""
        self.more = more
        if read_either(part, "thought_signature", "thoughtSignature"):
            self.signature = part
        for chunk in partial if isinstance(partial, list) else ():
            path = str(read_either(chunk, "json_path", "jsonPath"))
            self.values.setdefault(path, []).extend(_chunk_value(chunk))
            self.open.discard(path)
            if read_either(chunk, "will_continue", "willContinue"):
                self.open.add(path)

    def assemble(self) -> dict[str, Any]:
        """Return the call so far. An incomplete call has `willContinue`."""
        call: dict[str, Any] = {"id": self.id} if self.id else {}
        found = self._arguments()
        call |= {"name": self.name, "args": found if isinstance(found, dict) else {}}
        if self.more or self.open or found != call["args"]:
            call["willContinue"] = True
        return call

    def _arguments(self) -> Any:
        """Return the arguments so far, or None if a path cannot be followed."""
        tree: dict[str | int, Any] = {}
        try:
            for path, chunks in self.values.items():
                *way, last = _path_steps(path)
                node = reduce(lambda inner, step: inner.setdefault(step, {}), way, tree)
                if last in node:
                    return None
                # Only texts come in several chunks.
                alone = len(chunks) < 2 and not isinstance(chunks[0], str)
                node[last] = chunks[0] if alone else join_chunks(chunks)
            return _with_lists(tree)
        except (LookupError, ValueError, AttributeError, TypeError):  # no value, or a value in the place of an object
            return None


_VALUES = (("string_value", "stringValue"), ("bool_value", "boolValue"), ("number_value", "numberValue"))


def _chunk_value(chunk: Any) -> list[Any]:
    """Return a list with the value in a chunk, or an empty one. A whole number becomes an integer."""
    if read_either(chunk, "null_value", "nullValue") is not None:
        return [None]
    found = [value for names in _VALUES if (value := read_either(chunk, *names)) is not None]
    whole = [isinstance(value, float) and value.is_integer() and abs(value) < 2**53 for value in found]
    return [int(value) if is_whole else value for value, is_whole in zip(found, whole, strict=True)]


def _path_steps(path: str) -> list[str | int]:
    """Return the steps of a path such as `$.foo[0]['bar']`, RFC 9535; none for any other."""
    steps: list[str | int] = []
    at = 1
    while path[:1] == "$" and at < len(path) and len(steps) < _LONGEST_PATH:
        found = _STEP_OF_PATH.match(path, at)
        if found is None:
            return []
        name, index, quoted = found.group("name", "index", "quoted")
        steps.append(int(index) if index else name or _ESCAPE.sub(_unescaped, quoted))
        at = found.end()
    return steps if at == len(path) else []


def _unescaped(found: re.Match[str]) -> str:
    escaped = found.group(1)
    return chr(int(escaped[1:], 16)) if len(escaped) == 5 else _ESCAPED.get(escaped, escaped)


def _with_lists(node: Any) -> Any:
    """Return a tree of steps as JSON. An object with an index becomes a list.

    Raises:
        LookupError: Its indexes do not go from 0 on, or it has names too.
    """
    if not isinstance(node, dict):
        return node
    inner = {step: _with_lists(item) for step, item in node.items()}
    if any(isinstance(step, int) for step in inner):
        return [inner[at] for at in range(len(inner))]
    return inner
