"""Turn the result of a tool's `preview` into lines: its text, or a unified diff."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from ferrule.values.content import clean_text

_LINES_AROUND = 3
_MOST_COMPARED = 1000  # lines; difflib's time grows with their square, and a model has written one side


class NoPreview(Exception):
    """The result of a preview is neither a text nor a `Diff`. See docs/approvals.md."""


def preview_lines(result: object) -> list[str]:
    """Return the lines of a text, or the differences of a `Diff`. See docs/approvals.md.

    Raises:
        NoPreview: `result` is anything else.
    """
    if isinstance(result, str):
        return clean_text(result).removesuffix("\n").split("\n")
    name, before, after = (getattr(result, field, None) for field in ("name", "before", "after"))
    if isinstance(name, str) and isinstance(before, str) and isinstance(after, str):
        return list(_diff_lines(clean_text(name), _split_lines(clean_text(before)), _split_lines(clean_text(after))))
    raise NoPreview(f"it returned {type(result).__name__}, and must return a text or a Diff")


def _split_lines(text: str) -> list[str]:
    """Return the lines with their ends. `splitlines` would also split at characters within a line of a file."""
    *lines, last = text.split("\n")
    return [*(f"{line}\n" for line in lines), *([last] if last else [])]


def _diff_lines(name: str, before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    if name:
        yield f"--- {name}"
        yield f"+++ {name}"
    start, common = 0, min(len(before), len(after))
    while start < common and before[start] == after[start]:
        start += 1
    end = 0
    while end < common - start and before[-1 - end] == after[-1 - end]:
        end += 1
    if start == len(before) == len(after):
        yield "(no difference)"
        return
    first, behind = max(start - _LINES_AROUND, 0), max(end - _LINES_AROUND, 0)
    yield from _diff_hunks(before[first : len(before) - behind], after[first : len(after) - behind], first, start, end)


def _diff_hunks(old: Sequence[str], new: Sequence[str], first: int, start: int, end: int) -> Iterator[str]:
    """Yield the differences of two parts. Both begin at line `first` of their text."""
    if max(len(old), len(new)) <= _MOST_COMPARED:
        groups = list(SequenceMatcher(None, old, new).get_grouped_opcodes(_LINES_AROUND))
    else:  # treat everything between the common beginning and end as changed
        left, right = start - first, min(end, _LINES_AROUND)
        middle = ("replace", left, len(old) - right, left, len(new) - right)
        same = ("equal", len(old) - right, len(old), len(new) - right, len(new))
        groups = [[("equal", 0, left, 0, left), middle, same]]
    for group in groups:
        (_, from_old, _, from_new, _), (_, _, to_old, _, to_new) = group[0], group[-1]
        old_range = _format_range(first + from_old, first + to_old)
        yield f"@@ -{old_range} +{_format_range(first + from_new, first + to_new)} @@"
        for kind, i, j, k, m in group:
            if kind == "equal":
                yield from _mark_lines(" ", old[i:j])
            else:
                yield from _mark_lines("-", old[i:j])
                yield from _mark_lines("+", new[k:m])


def _format_range(start: int, stop: int) -> str:
    """Return a range in the form of `diff -u`: counted from 1, and an empty one has the line before it."""
    length = stop - start
    return f"{start + 1}" if length == 1 else f"{start + 1 if length else start},{length}"


def _mark_lines(mark: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield mark + line.removesuffix("\n")
        if not line.endswith("\n"):
            yield "\\ No newline at end of file"
