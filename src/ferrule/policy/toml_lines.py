"""TOML with the line of each key. `tomllib` reads it without lines, and a scanner of the text adds them."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final


class TomlError(ValueError):
    """The text is not TOML.

    Attributes:
        line: The line of the error; 0 if it is unknown.
    """

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(f"it is not TOML: {reason}")
        self.line = line


def read_toml(text: str) -> tuple[dict[str, Any], TomlLines]:
    """Return the contents of the text, and the lines of its keys.

    Raises:
        TomlError: The text is not TOML; the error has the line.
    """
    try:
        _check_parts(text)
        return tomllib.loads(text), TomlLines(text)
    except (ValueError, RecursionError) as error:  # a TOMLDecodeError, or Python's error about too large a number
        reason = str(error) or "it nests too deep"
        found = re.search(r"\(at line (\d+)", reason)
        raise TomlError(reason, int(found[1]) if found else 0) from None


def _check_parts(text: str) -> None:
    """Refuse a key with too many parts: `tomllib` takes minutes for one of 100,000.

    Raises:
        ValueError: A key has too many parts; the text has its line.
    """
    dots, line = 0, 1
    for token in _TOML_WORD.finditer(text):
        word = token[0]
        dots = 0 if word in _ENDS_OF_KEYS else dots + (word.count(".") if word[0] not in "\"'#" else 0)
        line += word.count("\n")
        if dots > _MOST_KEY_PARTS:
            raise ValueError(f"a key has at most {_MOST_KEY_PARTS} parts (at line {line})")


_TOML_WORD = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{1,2}(?!"))?|' + r"'''.*?'''(?:'{1,2}(?!'))?|"
    r'"(?:\\.|[^"\\\n])*"|' + r"'[^'\n]*'|\#[^\n]*|[\[\]{},=\n]|[^\s\[\]{},=\"'#]+",
    re.DOTALL,
)
_ENDS_OF_KEYS: Final = frozenset("[]{},=\n")
_MOST_KEY_PARTS: Final = 100
_BRACKETS: Final = {"[": 1, "{": 1, "]": -1, "}": -1}


class TomlLines:
    """The lines of keys and of the list items under them, in valid TOML."""

    def __init__(self, text: str) -> None:
        self._found: dict[tuple[str, int | None], int] = {}
        self._counts: Counter[str] = Counter()
        in_table = False
        for statement in _iter_statements(text):
            line, first = statement[0]
            if first == "[":
                in_table = True
                self._add_item("".join(_unquote_key(word) for _, word in statement if word not in "[]"), line)
            elif not in_table:
                self._found.setdefault((_unquote_key(first), None), line)
                self._add_items(_unquote_key(first), statement[1:])

    def _add_items(self, key: str, words: Iterable[tuple[int, str]]) -> None:
        depth, before = 0, ""
        for line, word in words:
            if depth == 1 and before in {"[", ","} and word != "]":
                self._add_item(key, line)
            depth += _BRACKETS.get(word, 0)
            before = word

    def _add_item(self, key: str, line: int) -> None:
        self._found[key, self._counts[key]] = line
        self._found.setdefault((key, None), line)
        self._counts[key] += 1

    def find_line(self, key: str, at: int | None = None) -> int:
        """Return the line of a key, or of an item in its list: the key's line if the list has another form."""
        return self._found.get((key, at)) or self._found.get((key, None), 0)


def _unquote_key(word: str) -> str:
    return word.strip("\"'")


def _iter_statements(text: str) -> Iterator[list[tuple[int, str]]]:
    """Yield the words of each statement with their lines, without comments and line ends."""
    words: list[tuple[int, str]] = []
    line, since, depth = 1, 0, 0
    for token in _TOML_WORD.finditer(text):
        word, at = token[0], token.start()
        line, since = line + text.count("\n", since, at), at
        if word == "\n":
            if words and depth == 0:
                yield words
                words = []
        elif not word.startswith("#"):
            depth += _BRACKETS.get(word, 0)
            words.append((line, word))
    if words:
        yield words
