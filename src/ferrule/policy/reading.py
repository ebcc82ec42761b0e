"""Parse the text of a policy file into rules with their lines. Pure; it finds every error, not only the first."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, cast

from ferrule.errors import DefinitionError
from ferrule.policy.conditions import (
    MOST_DIGITS,
    Commands,
    Condition,
    Glob,
    Hosts,
    OneOf,
    Range,
    Within,
    condition,
    nearest,
    refuse_unknown_keys,
)
from ferrule.policy.kinds import wrong_kind
from ferrule.policy.rule import ANY_COMMAND, DECIDES, Rule, Scope
from ferrule.policy.toml_lines import FoundLines, NoToml, read_toml
from ferrule.policy.verdict import MODES, Mode
from ferrule.security.commands import COMMAND_NAMES
from ferrule.security.paths import PATH_NAMES, has_name_of
from ferrule.security.urls import URL_NAMES
from ferrule.values.frozen import freeze

_T = TypeVar("_T")
Level: TypeAlias = Literal["error", "warning"]
MOST_RULES: Final = 1000
_POLICY_KEYS: Final = ("mode", "allow", "ask", "deny", "rule", "test")


class Finding(NamedTuple):
    """An error or warning about a file. See docs/policy.md#loading."""

    level: Level
    source: str
    """The name of the file."""
    line: int
    """Counted from 1; 0 for the file as a whole."""
    text: str

    def __str__(self) -> str:
        return f"{self.source}{f':{self.line}' if self.line else ''}: {self.text}"


@dataclass(frozen=True, slots=True)
class PolicyTest:
    """A test of a decision in a policy file; `ferrule policy test` runs it. See docs/policy.md#tests."""

    call: str
    expect: Literal["allow", "ask", "deny"]
    arguments: Mapping[str, Any]
    principal: str | None = None
    session: str | None = None
    traits: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    rule: str | None = None
    source: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)


class Document(NamedTuple):
    """The contents of a policy file."""

    mode: tuple[Mode, int] | None
    rules: tuple[Rule, ...]
    tests: tuple[PolicyTest, ...]
    findings: tuple[Finding, ...]


def read_document(text: str, source: str, scope: Scope) -> Document:
    """Parse the text of a policy file. Invalid TOML gives only that error."""
    try:
        data, lines = read_toml(text)
    except NoToml as error:
        return Document(None, (), (), (Finding("error", source, error.line, str(error)),))
    reader = _DocumentReader(source, scope, lines)
    rules = tuple(reader.rules(data))
    return Document(reader.mode(data), rules, tuple(reader.tests(data)), tuple(reader.findings))


class _DocumentReader:
    """A parser that makes rules, and collects errors with their lines."""

    def __init__(self, source: str, scope: Scope, lines: FoundLines) -> None:
        self.source = source
        self.scope = scope
        self.lines = lines
        self.findings: list[Finding] = []

    def refuse(self, line: int, text: object) -> None:
        self.findings.append(Finding("error", self.source, line, str(text)))

    def tried(self, line: int, make: Callable[[], _T]) -> _T | None:
        """Return the result of `make`, or record its DefinitionError and return None."""
        try:
            return make()
        except DefinitionError as error:
            self.refuse(line, error)
            return None

    def mode(self, data: Mapping[str, Any]) -> tuple[Mode, int] | None:
        for key in data:
            self.tried(self.lines.of(key), lambda key=key: refuse_unknown_keys([key], _POLICY_KEYS, "a policy"))  # type: ignore[misc]
        if "mode" not in data:
            return None
        line, given = self.lines.of("mode"), data["mode"]
        if given not in MODES:
            self.refuse(line, f'mode is "ask", "read_only" or "never_ask", not {given!r}')
            return None
        return cast("Mode", given), line

    def rules(self, data: Mapping[str, Any]) -> Iterator[Rule]:
        for at, (line, make) in enumerate(self._makers(data)):
            if at == MOST_RULES:
                return self.refuse(line, f"a file has at most {MOST_RULES} rules")
            rule = self.tried(line, make)
            if rule is not None:
                yield rule

    def _makers(self, data: Mapping[str, Any]) -> Iterator[tuple[int, Callable[[], Rule]]]:
        for decide in DECIDES:
            for at, text in enumerate(self.listed(data, decide, str, f'{decide} = ["read_*"]')):
                line = self.lines.of(decide, at)
                yield line, lambda decide=decide, text=text, line=line: self.short_form(decide, text, line)  # type: ignore[misc]
        for at, table in enumerate(self.listed(data, "rule", dict, "[[rule]]")):
            line = self.lines.of("rule", at)
            yield line, lambda table=table, line=line: self.table(table, line)  # type: ignore[misc]

    def listed(self, data: Mapping[str, Any], key: str, kind: type[_T], such: str) -> list[_T]:
        given = data.get(key, [])
        if isinstance(given, list) and all(isinstance(one, kind) for one in given):
            return given
        self.refuse(self.lines.of(key), f"{key} is a list, as in {such}, not {given!r:.80}")
        return []

    def short_form(self, decide: Any, text: str, line: int) -> Rule:
        tools, arguments = read_short_form(text)
        return self._rule(line, decide=decide, tools=(tools,), arguments=arguments, text=f"{decide} {text}")

    def table(self, table: Mapping[str, Any], line: int) -> Rule:
        given = read_keys(table, _OF_RULE, "a rule")
        if "decide" not in given:
            raise DefinitionError('a rule says decide = "allow", "ask" or "deny"')
        return self._rule(line, **{"arguments": {}, **given})

    def _rule(self, line: int, *, arguments: Mapping[str, Condition], **given: Any) -> Rule:
        rule = Rule(arguments=freeze_conditions(arguments), source=self.source, line=line, scope=self.scope, **given)
        for place, one in arguments.items():
            if wrong := wrong_kind(place, one):
                raise DefinitionError(wrong)
        return rule

    def tests(self, data: Mapping[str, Any]) -> Iterator[PolicyTest]:
        for at, table in enumerate(self.listed(data, "test", dict, "[[test]]")):
            line = self.lines.of("test", at)
            made = self.tried(line, lambda table=table, line=line: self.test(table, line))  # type: ignore[misc]
            if made is not None:
                yield made

    def test(self, table: Mapping[str, Any], line: int) -> PolicyTest:
        given = read_keys(table, _OF_TEST, "a test")
        if missing := {"call", "expect"} - given.keys():
            raise DefinitionError(f'a test says {min(missing)} = "…"')
        if given["expect"] not in DECIDES:
            raise DefinitionError(f'expect is "allow", "ask" or "deny", not {given["expect"]!r}')
        return PolicyTest(**{"arguments": freeze({}), **given}, source=self.source, line=line)


def freeze_conditions(arguments: Mapping[str, Condition]) -> Mapping[str, Condition]:
    """Return the conditions sorted by place, so their order in the file makes no difference."""
    from types import MappingProxyType

    return MappingProxyType(dict(sorted(arguments.items())))


def read_keys(table: Mapping[str, Any], readers: Mapping[str, Callable[[Any, str], Any]], of: str) -> dict[str, Any]:
    """Return the values of a table, each read by the reader of its key.

    Raises:
        DefinitionError: A key is unknown, or a value is invalid.
    """
    refuse_unknown_keys(table, readers, of)
    return {key: read(table[key], key) for key, read in readers.items() if key in table}


def one_text(given: Any, key: str) -> str:
    """Read a text, for `read_keys`."""
    if not isinstance(given, str):
        raise DefinitionError(f"{key} is text, not {given!r:.80}")
    return given


def _table_of(given: Any, key: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise DefinitionError(f"{key} is a table, not {given!r:.80}")
    return given


def texts_of(given: Any, key: str) -> tuple[str, ...]:
    """Read a list of at least one text, for `read_keys`."""
    if not isinstance(given, list) or not given or not all(isinstance(one, str) for one in given):
        raise DefinitionError(f'{key} is a list of texts, as in {key} = ["…"], not {given!r:.80}')
    return tuple(given)


def _tables_of(given: Any, key: str) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise DefinitionError(f"{key} is a list of tables, as in {key} = [{{ amount = 5 }}], not {given!r:.80}")
    return tuple(plain_table(one, key) for one in given)


def plain_table(given: Any, key: str) -> Mapping[str, Any]:
    """Read a table of JSON values, for `read_keys`."""
    try:
        json.dumps(_table_of(given, key), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise DefinitionError(f"{key} has a value that no call can have; a date or a time is written as text") from None
    return freeze(given)  # type: ignore[no-any-return]


def _conditions_of(given: Any, key: str) -> dict[str, Condition]:
    return {place: _at_place(place, one) for place, one in _table_of(given, key).items()}


def _at_place(place: str, given: object) -> Condition:
    try:
        return condition(given)
    except DefinitionError as error:
        inner = isinstance(given, dict) and all(isinstance(one, dict) for one in given.values())
        more = f'; what is inside {place} is written with its path in quotes, "{place}.…" = {{ … }}' if inner else ""
        raise DefinitionError(f"{place}: {error}{more}") from None


_OF_RULE: Final = {
    **dict.fromkeys(("decide", "reason", "into"), one_text),
    **dict.fromkeys(("tools", "tags", "traits", "principals"), texts_of),
    **dict.fromkeys(("match", "no_match"), _tables_of),
    "arguments": _conditions_of,
}
_OF_TEST: Final = {
    **dict.fromkeys(("call", "expect", "principal", "session", "rule"), one_text),
    **dict.fromkeys(("traits", "tags"), texts_of),
    "arguments": plain_table,
}
"""The keys of a `[[rule]]` and of a `[[test]]`, with the reader of each."""


# -- the short form ----------------------------------------------------------------------------------------------------

_COMPARED = re.compile(r"([\w.\[\]-]+)\s*(<=|>=|<|>|=)\s*(\S.*)")
_WORDED = re.compile(r"([\w.\[\]-]+)\s+(in|within|host|runs)\s+(\S.*)")
_WORDS_OF_CONDITIONS: Final = ("in", "within", "host", "runs")
CONDITIONS_SAID: Final = "conditions are name<=5, <, >=, >, name=text, and name in, within, host or runs …"
"""The text for errors that lists the short forms."""
_SIGN = re.compile(r"[=<>!~]+")
_NOT_PLAIN = re.compile(r"^[=<>!~]|['()]")
_NAMES_OF_PLACES: Final = PATH_NAMES | URL_NAMES | COMMAND_NAMES
_BOUNDS: Final = {"<=": "at_most", "<": "below", ">=": "at_least", ">": "above"}
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def read_short_form(text: str) -> tuple[str, dict[str, Condition]]:
    """Return the glob and the conditions of `read_*`, `refund(amount<=100, currency in EUR|USD)`, `shell(pytest *)`.

    Raises:
        DefinitionError: The text is not a short form.
    """
    glob, opened, inside = text.strip().partition("(")
    if not opened:
        return glob, {}
    if not inside.endswith(")") or not inside[:-1].strip():
        raise DefinitionError(f"{text!r} is no rule: write name, or name(condition, condition)")
    found: dict[str, Condition] = {}
    for part in re.split(r",\s+", inside[:-1].strip()):
        place, one = _short_condition(part.strip())
        if place in found:
            raise DefinitionError(f"{text!r} has two conditions of {_place_name(place)}; write a [[rule]]")
        found[place] = one
    return glob.strip(), found


def _place_name(place: str) -> str:
    return "the command" if place == ANY_COMMAND else place


def _short_condition(part: str) -> tuple[str, Condition]:
    """Return one condition with its place. Any other text is a command, for any parameter with a shell line."""
    if compared := _COMPARED.fullmatch(part):
        place, sign, value = compared.groups()
        return place, _comparison(sign, _plain_value(value))
    if worded := _WORDED.fullmatch(part):
        place, word, value = worded.groups()
        if word == "runs":
            return place, Commands((value,))
        values = [one.strip() for one in _plain_value(value).split("|")]
        if word == "in":
            return place, OneOf(tuple(map(read_value, values)))
        texts = tuple(str(read_value(one)) if one.startswith('"') else one for one in values)
        return place, Within(texts) if word == "within" else Hosts(texts)
    return ANY_COMMAND, Commands((_bare_command(part),))


def _bare_command(part: str) -> str:
    """Return the text if it is a command.

    Raises:
        DefinitionError: The text looks like a condition in the wrong form.
    """
    first, second, *_ = [*part.split(), "", ""]
    sign = _SIGN.search(first) or _SIGN.fullmatch(second)
    is_place = second == "" or has_name_of(first, _NAMES_OF_PLACES)
    if sign or second in _WORDS_OF_CONDITIONS or (is_place and nearest(second, _WORDS_OF_CONDITIONS)):
        raise DefinitionError(
            f"{part!r} is no condition: {CONDITIONS_SAID}; where it is a command, write a [[rule]] with commands = […]"
        )
    return part


def _plain_value(value: str) -> str:
    """Return a value unchanged.

    Raises:
        DefinitionError: The value has a character with more than one meaning.
    """
    if not value.startswith('"') and (found := _NOT_PLAIN.search(value)):
        raise DefinitionError(f"{value!r} has {found[0]!r}: put text in double quotes, or write a [[rule]]")
    if "," in value:
        raise DefinitionError(f"{value!r} has a comma: put a blank behind it between conditions, or write a [[rule]]")
    return value


def _comparison(sign: str, text: str) -> Condition:
    value = read_value(text)
    if sign != "=":
        if isinstance(value, str | bool):
            raise DefinitionError(f"{sign} compares with a number, not with {text!r}")
        return Range(**{_BOUNDS[sign]: value})
    if "|" in text and not text.startswith('"'):
        raise DefinitionError(f"{text!r} has '|': of several values write name in {text}, else put it in double quotes")
    return Glob(value) if isinstance(value, str) and "*" in text and not text.startswith('"') else OneOf((value,))


def read_value(text: str) -> str | int | float | bool:
    """Read a number, `true`, `false`, text in quotes as in JSON, or any other text as it stands."""
    if text in {"true", "false"}:
        return text == "true"
    if len(text) > MOST_DIGITS and _DECIMAL.fullmatch(text):
        raise DefinitionError(f"a number has at most {MOST_DIGITS} digits")
    if _INTEGER.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    if text.startswith('"'):
        try:
            read = json.loads(text)
        except ValueError:
            read = None
        if not isinstance(read, str):
            raise DefinitionError(f"{text} is no text in quotes")
        return read
    return text
