"""Kinds of text with many spellings: paths, URLs and shell lines.

Each kind takes one kind of condition only, because an equality or a glob would miss the other spellings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from ferrule.policy.conditions import Commands, Condition, Hosts, Within
from ferrule.policy.rule import ANY_COMMAND, split_place
from ferrule.security.commands import COMMAND_NAMES
from ferrule.security.paths import PATH_NAMES, has_last_word
from ferrule.security.urls import HOST_NAMES, URL_NAMES


class _TextKind(NamedTuple):
    name: str
    names: frozenset[str]
    formats: frozenset[str]
    condition: type
    word: str
    key: str


_TEXT_KINDS: Final = (
    _TextKind("a path", PATH_NAMES, frozenset({"path"}), Within, "within", "within"),
    _TextKind(
        "a URL",
        URL_NAMES | HOST_NAMES,
        frozenset({"uri", "url", "iri", "reference", "hostname"}),
        Hosts,
        "host",
        "hosts",
    ),
    _TextKind("a shell line", COMMAND_NAMES, frozenset({"shell"}), Commands, "runs", "commands"),
)


def explain_wrong_kind(place: str, condition: Condition, forms: Iterable[Mapping[str, Any]] = ()) -> str:
    """Return why a condition cannot apply to the text at a place, or "" if it can.

    Args:
        forms: The schemas of the values there, if known. Their formats count before the name.
    """
    if place == ANY_COMMAND:
        return ""
    name = next(part for part in reversed(split_place(place)) if part != "[]")
    formats = {str(form["format"]).rpartition("-")[2] for form in forms if "format" in form}
    by_format = [kind for kind in _TEXT_KINDS if kind.formats & formats]
    for kind in by_format or [kind for kind in _TEXT_KINDS if has_last_word(name, kind.names)]:
        if not isinstance(condition, kind.condition):
            remedy = f'{place} {kind.word} …, or in a [[rule]] {place} = {{ {kind.key} = ["…"] }}'
            return f"{place} is {kind.name}, which has many spellings: write {remedy}"
    return ""
