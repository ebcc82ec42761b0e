"""Parse the text of a policy file into rules with their lines. Pure; it finds every error, not only the first."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, cast

from ferrule.errors import DefinitionError
from ferrule.policy.conditions import (
    MAX_DIGITS,
    Commands,
    Condition,
    Glob,
    Hosts,
    OneOf,
    Range,
    Within,
    parse_condition,
    refuse_unknown_keys,
    suggest_name,
)
from ferrule.policy.kinds import explain_wrong_kind
from ferrule.policy.rule import ANY_COMMAND, DECISIONS, Rule, Scope
from ferrule.policy.toml_lines import TomlError, TomlLines, read_toml
from ferrule.policy.verdict import MODES, Mode
from ferrule.policy.when import WHEN_READERS, When, read_moment, read_span
from ferrule.security.commands import COMMAND_NAMES
from ferrule.security.paths import PATH_NAMES, has_last_word
from ferrule.security.urls import URL_NAMES
from ferrule.values.frozen import freeze

_T = TypeVar("_T")
Level: TypeAlias = Literal["error", "warning"]
MAX_RULES: Final = 1000
_POLICY_KEYS: Final = ("mode", "sandboxed", "allow", "ask", "deny", "rule", "test")


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


class EarlierCall(NamedTuple):
    """A successful call before that of a `[[test]]`. See docs/policy.md#tests."""

    call: str
    arguments: Mapping[str, Any] = freeze({})
    ago: float = 0.0


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
    at: float | None = None
    earlier: tuple[EarlierCall, ...] = ()
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
    except TomlError as error:
        return Document(None, (), (), (Finding("error", source, error.line, str(error)),))
    reader = _DocumentReader(source, scope, lines)
    rules = tuple(reader.iter_rules(data))
    return Document(reader.read_mode(data), rules, tuple(reader.iter_tests(data)), tuple(reader.findings))


class _DocumentReader:
    """A parser that makes rules, and collects errors with their lines."""

    def __init__(self, source: str, scope: Scope, lines: TomlLines) -> None:
        self.source = source
        self.scope = scope
        self.lines = lines
        self.findings: list[Finding] = []

    def add_error(self, line: int, text: object) -> None:
        self.findings.append(Finding("error", self.source, line, str(text)))

    def try_make(self, line: int, make: Callable[[], _T]) -> _T | None:
        """Return the result of `make`, or record its DefinitionError and return None."""
        try:
            return make()
        except DefinitionError as error:
            self.add_error(line, error)
            return None

    def read_mode(self, data: Mapping[str, Any]) -> tuple[Mode, int] | None:
        for key in data:
            self.try_make(self.lines.find_line(key), partial(refuse_unknown_keys, [key], _POLICY_KEYS, "a policy"))
        if "mode" not in data:
            return None
        line, mode = self.lines.find_line("mode"), data["mode"]
        if mode not in MODES:
            self.add_error(line, f'mode is "ask", "read_only" or "never_ask", not {mode!r}')
            return None
        return cast("Mode", mode), line

    def iter_rules(self, data: Mapping[str, Any]) -> Iterator[Rule]:
        for at, (line, make) in enumerate(self._iter_makers(data)):
            if at == MAX_RULES:
                return self.add_error(line, f"a file has at most {MAX_RULES} rules")
            rule = self.try_make(line, make)
            if rule is not None:
                yield rule

    def _iter_makers(self, data: Mapping[str, Any]) -> Iterator[tuple[int, Callable[[], Rule]]]:
        for decide in DECISIONS:
            for at, text in enumerate(self.read_list(data, decide, str, f'{decide} = ["read_*"]')):
                line = self.lines.find_line(decide, at)
                yield line, partial(self.read_short_rule, decide, text, line)
        if "sandboxed" in data:
            line = self.lines.find_line("sandboxed")
            yield line, partial(self.read_sandboxed, data["sandboxed"], line)
        for at, table in enumerate(self.read_list(data, "rule", dict, "[[rule]]")):
            line = self.lines.find_line("rule", at)
            yield line, partial(self.read_rule, table, line)

    def read_list(self, data: Mapping[str, Any], key: str, kind: type[_T], example: str) -> list[_T]:
        values = data.get(key, [])
        if isinstance(values, list) and all(isinstance(value, kind) for value in values):
            return values
        self.add_error(self.lines.find_line(key), f"{key} is a list, as in {example}, not {values!r:.80}")
        return []

    def read_short_rule(self, decide: Any, text: str, line: int) -> Rule:
        tools, arguments = read_short_form(text)
        return self._make_rule(line, decide=decide, tools=(tools,), arguments=arguments, text=f"{decide} {text}")

    def read_sandboxed(self, value: object, line: int) -> Rule:
        if value != "allow":
            raise DefinitionError(f'sandboxed is "allow", not {value!r:.80}; leave it out to be asked')
        return self._make_rule(line, decide="allow", traits=("sandboxed",), arguments={}, text='sandboxed = "allow"')

    def read_rule(self, table: Mapping[str, Any], line: int) -> Rule:
        fields = read_keys(table, _RULE_READERS, "a rule")
        if "decide" not in fields:
            raise DefinitionError('a rule needs decide = "allow", "ask" or "deny"')
        when = {key: fields.pop(key) for key in WHEN_READERS if key in fields}
        return self._make_rule(line, **{"arguments": {}, **fields}, when=When(**when) if when else None)

    def _make_rule(self, line: int, *, arguments: Mapping[str, Condition], **fields: Any) -> Rule:
        conditions = MappingProxyType(dict(sorted(arguments.items())))  # their order in the file makes no difference
        rule = Rule(arguments=conditions, source=self.source, line=line, scope=self.scope, **fields)
        for place, one in arguments.items():
            if problem := explain_wrong_kind(place, one):
                raise DefinitionError(problem)
        return rule

    def iter_tests(self, data: Mapping[str, Any]) -> Iterator[PolicyTest]:
        for at, table in enumerate(self.read_list(data, "test", dict, "[[test]]")):
            line = self.lines.find_line("test", at)
            test = self.try_make(line, partial(self.read_test, table, line))
            if test is not None:
                yield test

    def read_test(self, table: Mapping[str, Any], line: int) -> PolicyTest:
        fields = read_keys(table, _TEST_READERS, "a test")
        if missing := {"call", "expect"} - fields.keys():
            raise DefinitionError(f'a test needs {min(missing)} = "…"')
        if fields["expect"] not in DECISIONS:
            raise DefinitionError(f'expect is "allow", "ask" or "deny", not {fields["expect"]!r}')
        return PolicyTest(**{"arguments": freeze({}), **fields}, source=self.source, line=line)


def read_keys(table: Mapping[str, Any], readers: Mapping[str, Callable[[Any, str], Any]], owner: str) -> dict[str, Any]:
    """Return the values of a table, each read by the reader of its key.

    Raises:
        DefinitionError: A key is unknown, or a value is invalid.
    """
    refuse_unknown_keys(table, readers, owner)
    return {key: read(table[key], key) for key, read in readers.items() if key in table}


def read_text(value: Any, key: str) -> str:
    """Read a text, for `read_keys`."""
    if not isinstance(value, str):
        raise DefinitionError(f"{key} is text, not {value!r:.80}")
    return value


def _read_table(value: Any, key: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DefinitionError(f"{key} is a table, not {value!r:.80}")
    return value


def read_texts(value: Any, key: str) -> tuple[str, ...]:
    """Read a list of at least one text, for `read_keys`."""
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise DefinitionError(f'{key} is a list of texts, as in {key} = ["…"], not {value!r:.80}')
    return tuple(value)


def _read_tables(value: Any, key: str) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise DefinitionError(f"{key} is a list of tables, as in {key} = [{{ amount = 5 }}], not {value!r:.80}")
    return tuple(read_plain_table(item, key) for item in value)


def read_plain_table(value: Any, key: str) -> Mapping[str, Any]:
    """Read a table of JSON values, for `read_keys`."""
    try:
        json.dumps(_read_table(value, key), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise DefinitionError(f"{key} has a value that is not JSON; write a date or a time as text") from None
    return freeze(value)  # type: ignore[no-any-return]


def _read_conditions(value: Any, key: str) -> dict[str, Condition]:
    return {place: _read_condition(place, table) for place, table in _read_table(value, key).items()}


def _read_condition(place: str, table: object) -> Condition:
    try:
        return parse_condition(table)
    except DefinitionError as error:
        is_nested = isinstance(table, dict) and all(isinstance(inner, dict) for inner in table.values())
        hint = f'; for an argument inside {place} write its path in quotes, "{place}.…" = {{ … }}' if is_nested else ""
        raise DefinitionError(f"{place}: {error}{hint}") from None


def _read_earlier(value: Any, key: str) -> tuple[EarlierCall, ...]:
    if not isinstance(value, list) or not all(isinstance(item, dict) and "call" in item for item in value):
        raise DefinitionError(f'{key} is a list of calls, as in {key} = [{{ call = "run_tests", ago = "30m" }}]')
    return tuple(EarlierCall(**read_keys(item, _EARLIER_READERS, "an earlier call")) for item in value)


_RULE_READERS: Final = {
    **dict.fromkeys(("decide", "reason", "into"), read_text),
    **dict.fromkeys(("tools", "tags", "traits", "principals"), read_texts),
    **dict.fromkeys(("match", "no_match"), _read_tables),
    "arguments": _read_conditions,
    **WHEN_READERS,
}
_TEST_READERS: Final = {
    **dict.fromkeys(("call", "expect", "principal", "session", "rule"), read_text),
    **dict.fromkeys(("traits", "tags"), read_texts),
    "arguments": read_plain_table,
    "at": read_moment,
    "earlier": _read_earlier,
}
_EARLIER_READERS: Final = {"call": read_text, "arguments": read_plain_table, "ago": read_span}
"""The keys of a `[[rule]]` and of a `[[test]]`, with the reader of each."""


# -- the short form ----------------------------------------------------------------------------------------------------

_COMPARISON = re.compile(r"([\w.\[\]-]+)\s*(<=|>=|<|>|=)\s*(\S.*)")
_WORD_CONDITION = re.compile(r"([\w.\[\]-]+)\s+(in|within|host|runs)\s+(\S.*)")
_CONDITION_WORDS: Final = ("in", "within", "host", "runs")
SHORT_FORMS: Final = "conditions are name<=5, <, >=, >, name=text, and name in, within, host or runs …"
"""The text for errors that lists the short forms."""
_SIGN = re.compile(r"[=<>!~]+")
_MISTYPED: Final = {"=>": ">=", "=<": "<=", "==": "="}
_NOT_PLAIN = re.compile(r"^[=<>!~]|['()]")
_TEXT_NAMES: Final = PATH_NAMES | URL_NAMES | COMMAND_NAMES
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
        raise DefinitionError(f"{text!r} is not a rule: write name, or name(condition, condition)")
    conditions: dict[str, Condition] = {}
    for part in re.split(r",\s+", inside[:-1].strip()):
        place, one = _read_short_condition(part.strip())
        if place in conditions:
            name = "the command" if place == ANY_COMMAND else place
            raise DefinitionError(f"{text!r} has two conditions for {name}; write a [[rule]]")
        conditions[place] = one
    return glob.strip(), conditions


def _read_short_condition(part: str) -> tuple[str, Condition]:
    """Return one condition with its place. Any other text is a command, for any parameter with a shell line."""
    if compared := _COMPARISON.fullmatch(part):
        place, sign, value = compared.groups()
        if meant := _MISTYPED.get(sign + value[0]):
            found, right = sign + value[0], f"{place}{meant}{value[1:].lstrip()}"
            raise DefinitionError(f"{part!r} has {found!r}: did you mean {right}?")
        return place, _make_comparison(sign, _check_value(value))
    if worded := _WORD_CONDITION.fullmatch(part):
        place, word, value = worded.groups()
        if word == "runs":
            return place, Commands((value,))
        values = [one.strip() for one in _check_value(value).split("|")]
        if word == "in":
            return place, OneOf(tuple(map(read_value, values)))
        texts = tuple(str(read_value(one)) if one.startswith('"') else one for one in values)
        return place, Within(texts) if word == "within" else Hosts(texts)
    return ANY_COMMAND, Commands((_check_command(part),))


def _check_command(part: str) -> str:
    """Return the text if it is a command.

    Raises:
        DefinitionError: The text looks like a condition in the wrong form.
    """
    first, second, *_ = [*part.split(), "", ""]
    sign = _SIGN.search(first) or _SIGN.fullmatch(second)
    is_place = second == "" or has_last_word(first, _TEXT_NAMES)
    if sign or second in _CONDITION_WORDS or (is_place and suggest_name(second, _CONDITION_WORDS)):
        raise DefinitionError(
            f"{part!r} is not a condition: {SHORT_FORMS}; for a command write a [[rule]] with commands = […]"
        )
    return part


def _check_value(value: str) -> str:
    """Return a value unchanged.

    Raises:
        DefinitionError: The value has a character with more than one meaning.
    """
    if not value.startswith('"') and (found := _NOT_PLAIN.search(value)):
        raise DefinitionError(f"{value!r} has {found[0]!r}: put text in double quotes, or write a [[rule]]")
    if "," in value:
        raise DefinitionError(f"{value!r} has a comma: put a blank after it between conditions, or write a [[rule]]")
    return value


def _make_comparison(sign: str, text: str) -> Condition:
    value = read_value(text)
    if sign != "=":
        if isinstance(value, str | bool):
            raise DefinitionError(f"{sign} compares with a number, not with {text!r}")
        return Range(**{_BOUNDS[sign]: value})
    if "|" in text and not text.startswith('"'):
        raise DefinitionError(
            f"{text!r} has '|': for several values write name in {text}, otherwise put it in double quotes"
        )
    return Glob(value) if isinstance(value, str) and "*" in text and not text.startswith('"') else OneOf((value,))


def read_value(text: str) -> str | int | float | bool:
    """Read a number, `true`, `false`, text in quotes as in JSON, or any other text as it stands."""
    if text in {"true", "false"}:
        return text == "true"
    if len(text) > MAX_DIGITS and _DECIMAL.fullmatch(text):
        raise DefinitionError(f"a number has at most {MAX_DIGITS} digits")
    if _INTEGER.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    if text.startswith('"'):
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if not isinstance(value, str):
            raise DefinitionError(f"{text} is not a text in double quotes, as JSON writes it")
        return value
    return text
