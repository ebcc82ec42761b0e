"""Conditions of a rule: values that answer about one argument with true, false or unknown.

`True`: the condition holds. `False`: it does not hold. `None`: it is unknown, because the value has another type or
cannot be read. `verdict.py` alone decides about the unknown: for an allow it is no match, for an ask or a deny it is an
ask.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, Protocol, TypeAlias

from ferrule.errors import DefinitionError
from ferrule.security.command_arguments import read_lines
from ferrule.security.commands import CommandPattern, Line, find_unknown_part, has_match, is_allowed, match_pieces
from ferrule.security.paths import Roots
from ferrule.security.urls import HostPattern, has_host_match, host_matches
from ferrule.values.context import ToolContext
from ferrule.values.frozen import JsonObject, thaw

Number: TypeAlias = int | float
MAX_DIGITS: Final = 100
_NUMERAL = re.compile(r"-?(0|[1-9][0-9]{0,99})(\.[0-9]{1,99})?")
"""A number as text, as decimals are written in JSON. A number with an exponent does not match."""


class Condition(Protocol):
    """A condition on one argument: a value that converts back to its JSON. See docs/policy.md#conditions."""

    __slots__ = ()

    def matches(self, value: Any, context: ToolContext) -> bool | None:
        """Return whether the condition holds for the whole value. Allow rules use this."""
        ...

    def has_match(self, value: Any, context: ToolContext) -> bool | None:
        """Return whether the condition holds for any part of the value, such as one command of a shell line.

        Ask and deny rules use this. A value without parts matches as a whole.
        """
        return self.matches(value, context)

    def covers(self, other: Condition) -> bool:
        """Return whether this condition finds every value that `other` matches. False is also possible if it does."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return the condition as a table of a policy file."""
        ...

    @property
    def text(self) -> str:
        """The condition in words for a person: `at most 100`."""
        ...


@dataclass(frozen=True, slots=True)
class OneOf(Condition):
    """One of these JSON values. A number is equal however it is written, and `true` is not 1."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise DefinitionError("one_of = [] never matches: list the values")
        for value in self.values:
            if not isinstance(value, str | int | float):
                raise DefinitionError(f"a value is text, a number, true or false, not {value!r}")
            _check_number(value, "a value")

    def matches(self, value: Any, context: ToolContext) -> bool | None:
        if value is None:
            return False
        kind = find_type(value)
        alike = [one for one in self.values if find_type(one) is kind]
        return value in alike if alike else None

    def covers(self, other: Condition) -> bool:
        return isinstance(other, OneOf) and all(self.matches(one, _EMPTY_CONTEXT) is True for one in other.values)

    def to_json(self) -> dict[str, Any]:
        return {"equals": self.values[0]} if len(self.values) == 1 else {"one_of": list(self.values)}

    @property
    def text(self) -> str:
        return f"is {' or '.join(_format_value(value) for value in self.values)}"


@dataclass(frozen=True, slots=True)
class Glob(Condition):
    """Text with `*` for any characters, also none."""

    pattern: str

    def __post_init__(self) -> None:
        check_glob(self.pattern)

    def matches(self, value: Any, context: ToolContext) -> bool | None:
        if value is None:
            return False
        return matches_glob(self.pattern, value) if isinstance(value, str) else None

    def covers(self, other: Condition) -> bool:
        # Only a `*` matches a `*` of the other pattern, and it matches whatever that one stands for.
        if isinstance(other, Glob):
            return matches_glob(self.pattern, other.pattern)
        return isinstance(other, OneOf) and all(self.matches(one, _EMPTY_CONTEXT) is True for one in other.values)

    def to_json(self) -> dict[str, Any]:
        return {"glob": self.pattern}

    @property
    def text(self) -> str:
        return f"like {self.pattern}"


@dataclass(frozen=True, slots=True)
class Range(Condition):
    """A number between bounds. Text counts if it is a plain numeral, as decimals are written in JSON."""

    above: Number | None = None
    at_least: Number | None = None
    below: Number | None = None
    at_most: Number | None = None
    _low: tuple[Number, bool] | None = field(init=False, repr=False, compare=False)
    """The lower bound, and whether it is excluded."""
    _high: tuple[Number, bool] | None = field(init=False, repr=False, compare=False)
    """The upper bound, and whether it is included."""

    def __post_init__(self) -> None:
        bounds = self.to_json()
        for name, bound in bounds.items():
            if find_type(bound) is not _NUMBER_TYPE:
                raise DefinitionError(f"{name} takes a number, not {bound!r}")
            _check_number(bound, name)
        if not bounds or {"above", "at_least"} <= bounds.keys() or {"below", "at_most"} <= bounds.keys():
            raise DefinitionError(
                "a range has one lower bound, above or at_least, one upper, below or at_most, or both"
            )
        low = next(((bounds[name], name == "above") for name in ("above", "at_least") if name in bounds), None)
        high = next(((bounds[name], name == "at_most") for name in ("below", "at_most") if name in bounds), None)
        object.__setattr__(self, "_low", low)
        object.__setattr__(self, "_high", high)
        if (
            low is not None
            and high is not None
            and (low[0] > high[0] or (low[0] == high[0] and (low[1] or not high[1])))
        ):
            raise DefinitionError(f"no number is {self.text}, so this can never match")

    def matches(self, value: Any, context: ToolContext) -> bool | None:
        if value is None:
            return False
        low: tuple[Number | Decimal, bool] | None = self._low
        high: tuple[Number | Decimal, bool] | None = self._high
        if isinstance(value, str) and _NUMERAL.fullmatch(value):
            # A bound means the written number: 5.1 as a float is a little less than the decimal.
            value = Decimal(value)
            low, high = (None if one is None else (Decimal(str(one[0])), one[1]) for one in (low, high))
        elif find_type(value) is not _NUMBER_TYPE or value != value:
            return None
        if low is not None and (value < low[0] or (low[1] and value == low[0])):
            return False
        return high is None or value < high[0] or (high[1] and value == high[0])

    def covers(self, other: Condition) -> bool:
        if isinstance(other, OneOf):
            return all(self.matches(one, _EMPTY_CONTEXT) is True for one in other.values)
        if not isinstance(other, Range):
            return False
        low, other_low, high, other_high = self._low, other._low, self._high, other._high
        return (low is None or (other_low is not None and low <= other_low)) and (
            high is None or (other_high is not None and high >= other_high)
        )

    def to_json(self) -> dict[str, Any]:
        bounds = {"above": self.above, "at_least": self.at_least, "below": self.below, "at_most": self.at_most}
        return {name: bound for name, bound in bounds.items() if bound is not None}

    @property
    def text(self) -> str:
        return " and ".join(f"{name.replace('_', ' ')} {bound}" for name, bound in self.to_json().items())


@dataclass(frozen=True, slots=True)
class Within(Condition):
    """A path inside one of these folders or files. It follows links, and starts at the working directory.

    An allow does not hold through a relative folder that is a link: a stranger's repository may contain that link.
    """

    roots: tuple[str, ...]
    _roots: Roots = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.roots:
            raise DefinitionError("within = [] never matches: list the folders")
        object.__setattr__(self, "_roots", Roots(*self.roots, of="within"))

    def matches(self, value: Any, context: ToolContext) -> bool | None:
        return self._check_path(self._roots.contains_without_link, value, context)

    def has_match(self, value: Any, context: ToolContext) -> bool | None:
        return self._check_path(self._roots.contains, value, context)

    def _check_path(
        self, contains: Callable[[str, str | None], bool | None], value: Any, context: ToolContext
    ) -> bool | None:
        if value is None:
            return False
        if not isinstance(value, str) or "://" in value or value[:5].lower() == "file:":
            return None
        try:
            return contains(value, context.fields.working_directory)
        except (OSError, ValueError):
            return None

    def covers(self, other: Condition) -> bool:
        return isinstance(other, Within) and self._roots.covers(other._roots)

    def to_json(self) -> dict[str, Any]:
        return {"within": list(self.roots)}

    @property
    def text(self) -> str:
        return f"within {' or '.join(self.roots)}"


@dataclass(frozen=True, slots=True)
class Hosts(Condition):
    """A URL, or a host by itself, with one of these hosts."""

    patterns: tuple[str, ...]
    _parsed: tuple[HostPattern, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.patterns:
            raise DefinitionError("hosts = [] never matches: list the hosts")
        object.__setattr__(self, "_parsed", tuple(map(HostPattern, self.patterns)))

    def matches(self, value: Any, context: ToolContext) -> bool | None:
        if value is None:
            return False
        return host_matches(value, self._parsed) if isinstance(value, str) else None

    def has_match(self, value: Any, context: ToolContext) -> bool | None:
        if value is None:
            return False
        return has_host_match(value, self._parsed) if isinstance(value, str) else None

    def covers(self, other: Condition) -> bool:
        if not isinstance(other, Hosts):
            return False
        return all(any(one.covers(narrower) for one in self._parsed) for narrower in other._parsed)

    def to_json(self) -> dict[str, Any]:
        return {"hosts": list(self.patterns)}

    @property
    def text(self) -> str:
        return f"host {' or '.join(self.patterns)}"


@dataclass(frozen=True, slots=True)
class Commands(Condition):
    """A shell line, or a list of words, with commands of `patterns` only. Its redirections stay in `within`."""

    patterns: tuple[str, ...]
    within: tuple[str, ...] = ()
    _parsed: tuple[CommandPattern, ...] = field(init=False, repr=False, compare=False)
    _targets: Within | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.patterns:
            raise DefinitionError("commands = [] never matches: list the commands")
        object.__setattr__(self, "_parsed", tuple(map(CommandPattern, self.patterns)))
        object.__setattr__(self, "_targets", Within(self.within) if self.within else None)

    @classmethod
    def merge(cls, conditions: Iterable[Commands]) -> Commands:
        """Return one condition for the commands of all of these."""
        listed = list(conditions)
        patterns = dict.fromkeys(pattern for one in listed for pattern in one.patterns)
        return cls(tuple(patterns), tuple(dict.fromkeys(root for one in listed for root in one.within)))

    def matches(self, value: Any, context: ToolContext) -> bool | None:
        return False if value is None else self.match_lines(read_lines("", value, {}), context, allows=True)

    def has_match(self, value: Any, context: ToolContext) -> bool | None:
        return False if value is None else self.match_lines(read_lines("", value, {}), context, allows=False)

    def match_lines(self, lines: Iterable[Line], context: ToolContext, *, allows: bool) -> bool | None:
        """Return whether the lines of an argument match: all lines for an allow, otherwise any.

        `command_arguments` reads the lines from the argument and the arguments beside it.
        """
        if allows:
            return every(self._allows(line, context) for line in lines)
        return some(has_match(line, self._parsed) for line in lines)

    def find_unknown_part(self, line: Line) -> str:
        """Return the unknown part of a line as text for a person, or "" if `has_match` has an answer."""
        return find_unknown_part(line, self._parsed)

    def _allows(self, line: Line, context: ToolContext) -> bool | None:
        if is_allowed(line, self._parsed, lambda path: self._may_write(path, context)):
            return True
        return None if line.unknown else False

    def _may_write(self, path: str, context: ToolContext) -> bool:
        return self._targets is not None and self._targets.matches(path, context) is True

    def covers(self, other: Condition) -> bool:
        if not isinstance(other, Commands):
            return False
        targets = other._targets is None or (self._targets is not None and self._targets.covers(other._targets))
        return targets and all(any(one.covers(narrower) for one in self._parsed) for narrower in other._parsed)

    def to_json(self) -> dict[str, Any]:
        return {"commands": list(self.patterns), **({"within": list(self.within)} if self.within else {})}

    @property
    def text(self) -> str:
        return f"runs {' or '.join(self.patterns)}" + (
            f", writing within {' or '.join(self.within)}" if self.within else ""
        )


# -- three-valued answers ----------------------------------------------------------------------------------------------


def every(answers: Iterable[bool | None], *, empty: bool = False) -> bool | None:
    """Return False if any answer is False, None if any is None, otherwise True. No answers at all give `empty`."""
    listed = list(answers)
    if False in listed:
        return False
    return None if None in listed else bool(listed) or empty


def some(answers: Iterable[bool | None]) -> bool | None:
    """Return True if any answer is True, None if any is None, otherwise False."""
    listed = list(answers)
    return True if True in listed else None if None in listed else False


# -- parse conditions --------------------------------------------------------------------------------------------------

_EMPTY_CONTEXT: Final = ToolContext[Any]()
_NUMBER_TYPE: Final = "a number"
TYPES: Final = frozenset({"true or false", _NUMBER_TYPE, "text", "a list or an object"})
"""The results of `find_type`."""


def find_type(value: Any) -> str:
    """Return the JSON type of a value. Integers and other numbers are one type."""
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return _NUMBER_TYPE
    return "text" if isinstance(value, str) else "a list or an object"


def _check_number(value: Any, name: str) -> None:
    """Refuse a number that a call cannot have, or a number so large that Python raises when it is printed or compared.

    Raises:
        DefinitionError: The number is one of these.
    """
    if isinstance(value, int) and abs(value) >= 10**MAX_DIGITS:
        raise DefinitionError(f"{name} takes a number of at most {MAX_DIGITS} digits")
    if isinstance(value, float) and not math.isfinite(value):
        raise DefinitionError(f"{name} takes a finite number, not {value}")


def _format_value(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def check_tag(tag: object) -> None:
    """Refuse an invalid tag.

    Raises:
        DefinitionError: The tag is not visible text.
    """
    if not isinstance(tag, str) or not tag.strip() or not tag.isprintable():
        raise DefinitionError(f"{tag!r} is not a tag: write its whole text, without *")


def check_glob(pattern: object) -> None:
    """Refuse an invalid pattern.

    Raises:
        DefinitionError: The pattern is not visible text.
    """
    if not isinstance(pattern, str) or not pattern or not pattern.isprintable():
        raise DefinitionError(f"{pattern!r} is not a pattern: write text, with * for any characters")


def matches_glob(pattern: str, text: str) -> bool:
    """Return whether `text` fits `pattern`, with `*` for any characters, also none. Case counts."""
    return match_pieces(pattern.split("*"), text)


def _read_values(values: object, name: str = "one_of") -> tuple[Any, ...]:
    if isinstance(values, Sequence) and not isinstance(values, str):
        return tuple(values)
    raise DefinitionError(f'{name} takes a list, such as {name} = ["…"], not {values!r}')


def _read_texts(texts: object, name: str) -> tuple[str, ...]:
    values = _read_values(texts, name)
    if not all(isinstance(value, str) for value in values):
        raise DefinitionError(f"{name} takes a list of texts, not {texts!r}")
    return values


_RANGE: Final = frozenset({"above", "at_least", "below", "at_most"})
_MAKERS: Final[dict[frozenset[str], Callable[..., Condition]]] = {
    frozenset({"equals"}): lambda equals: OneOf((equals,)),
    frozenset({"one_of"}): lambda one_of: OneOf(_read_values(one_of)),
    frozenset({"glob"}): lambda glob: Glob(glob),
    frozenset({"within"}): lambda within: Within(_read_texts(within, "within")),
    frozenset({"hosts"}): lambda hosts: Hosts(_read_texts(hosts, "hosts")),
    frozenset({"commands"}): lambda commands: Commands(_read_texts(commands, "commands")),
    frozenset({"commands", "within"}): lambda commands, within: Commands(
        _read_texts(commands, "commands"), _read_texts(within, "within")
    ),
}
KEYS: Final = _RANGE.union(*_MAKERS)


def parse_condition(table: object) -> Condition:
    """Return the condition for a table such as `{ above = 100 }` or `{ within = ["notes"] }`.

    See docs/policy.md#conditions.

    Raises:
        DefinitionError: The table is no condition, or can never match.
    """
    if not isinstance(table, Mapping) or not table:
        raise DefinitionError(f'a condition is a table such as {{ above = 100 }} or {{ equals = "x" }}, not {table!r}')
    options: JsonObject = thaw(table)
    refuse_unknown_keys(options, KEYS, "a condition")
    if options.keys() <= _RANGE:
        return Range(**options)
    make = _MAKERS.get(frozenset(options))
    if make is None:
        raise DefinitionError(f"a condition cannot have {' and '.join(sorted(options))} together: use one of them")
    return make(**options)


def refuse_unknown_keys(table: Iterable[str], allowed: Iterable[str], owner: str) -> None:
    """Refuse unknown keys. The error suggests the nearest known one.

    Raises:
        DefinitionError: The first unknown key.
    """
    names = sorted(allowed)
    for key in table:
        if key not in names:
            every_name = ", ".join(names)
            raise DefinitionError(f"{owner} has no {key!r}{suggest_name(key, names) or f': its keys are {every_name}'}")


def suggest_name(name: str, names: Iterable[str]) -> str:
    """Return a question whether a similar name was meant, or "" if no name is similar."""
    from difflib import get_close_matches  # loaded only for an error

    near = get_close_matches(name, sorted(names), 1)
    return f": did you mean {near[0]!r}?" if near else ""
