"""Reads a file of tests of tools, with the line of each test. It finds all errors, not only the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from ferrule import DefinitionError, Status
from ferrule.loop.agent_loop import Status as RunStatus
from ferrule.models import Answer
from ferrule.policy import Finding
from ferrule.policy.conditions import suggest_name
from ferrule.policy.reading import read_keys, read_plain_table, read_text, read_texts
from ferrule.policy.toml_lines import TomlError, TomlLines, read_toml
from ferrule.policy.when import read_moment
from ferrule.security.paths import read_file

Approval: TypeAlias = Literal["yes", "no", "later"]
Arguments: TypeAlias = Mapping[str, Any] | str
_Made = TypeVar("_Made")
_MOST_TEST_FILE: Final = 1_000_000  # bytes
_APPROVALS: Final = get_args(Approval)


class ExpectedCall(NamedTuple):
    """An expected call: the arguments that are compared, and how often."""

    name: str
    arguments: Mapping[str, Any] = MappingProxyType({})
    times: int | None = None


class ExpectedDenial(NamedTuple):
    """A tool with an expected deny, and a part of the rule or the reason."""

    name: str
    rule: str = ""


@dataclass(frozen=True)
class ToolTest:
    """One `[[test]]`: a call or a conversation with its expectations."""

    source: str
    line: int
    name: str = ""
    call: str | None = None
    arguments: Arguments | None = None
    user: str | None = None
    model: tuple[Answer, ...] = ()
    approve: Mapping[str, Approval] | Approval = "no"
    principal: str | None = None
    session: str | None = None
    at: float | None = None
    called: tuple[ExpectedCall, ...] = ()
    not_called: tuple[str, ...] = ()
    denied: tuple[ExpectedDenial, ...] = ()
    status: str | None = None
    result_contains: tuple[str, ...] = ()
    reply_contains: tuple[str, ...] = ()
    told_contains: tuple[str, ...] = ()


@dataclass(frozen=True)
class ToolTests:
    """The contents of a file."""

    source: str
    tools: tuple[str, ...]
    """Places, as `--tools` takes them. Files are relative to the working directory."""
    policy: str | None
    answers: Mapping[str, Any]
    live: bool
    tests: tuple[ToolTest, ...]
    findings: tuple[Finding, ...]


def read_tool_tests(source: str) -> ToolTests:
    """Return the tests of a file.

    Raises:
        OSError: It cannot be read.
    """
    findings: list[Finding] = []

    def refuse(line: int, text: object) -> None:
        findings.append(Finding("error", source, line, str(text)))

    data, lines = dict[str, Any](), TomlLines("")
    try:
        data, lines = read_toml(read_file(source, _MOST_TEST_FILE).decode("utf-8"))
    except TomlError as error:
        refuse(error.line, error)
    except UnicodeDecodeError as error:
        refuse(0, f"the file is not UTF-8: {error}")
    except ValueError as error:
        refuse(0, f"cannot read the file: {error}")
    head = _read_head(data, lines, refuse)
    tests = tuple(_read_tests(head.get("test", ()), lines, source, refuse))
    if not (tests or findings):
        refuse(0, "there are no tests: a [[test]] has a call or a user message, and an expectation")
    folder = Path(source).parent
    policy = head.get("policy")
    return ToolTests(
        source,
        tuple(_place_from(folder, item) for item in head.get("tools", ())),
        None if policy is None else str(folder / policy),
        head.get("answers", {}),
        head.get("live", False),
        tests,
        tuple(findings),
    )


def _place_from(folder: Path, place: str) -> str:
    """Return a file's path from the working directory, or the name of a module unchanged."""
    is_file = place.partition(":")[0].endswith(".py")
    return str(folder / place) if is_file else place


def _read_head(data: Mapping[str, Any], lines: TomlLines, refuse: Callable[[int, object], None]) -> dict[str, Any]:
    head: dict[str, Any] = {}
    for key, value in data.items():
        head |= (
            _try_make(partial(read_keys, {key: value}, _FILE_READERS, "a file of tests"), lines.find_line(key), refuse)
            or {}
        )
    return head


def _read_tests(
    tables: Sequence[Mapping[str, Any]], lines: TomlLines, source: str, refuse: Callable[[int, object], None]
) -> Iterator[ToolTest]:
    for at, table in enumerate(tables):
        line = lines.find_line("test", at)
        made = _try_make(partial(_tool_test, table, source, line), line, refuse)
        if made is not None:
            yield made


def _try_make(make: Callable[[], _Made], line: int, refuse: Callable[[int, object], None]) -> _Made | None:
    try:
        return make()
    except DefinitionError as error:
        refuse(line, error)
        return None


def _tool_test(table: Mapping[str, Any], source: str, line: int) -> ToolTest:
    test = ToolTest(source, line, **read_keys(table, _TEST_READERS, "a test"))
    keys = set(table)
    if (test.call is None) == (test.user is None):
        raise DefinitionError('a test needs either call = "…" with its arguments, or user = "…" with model = […]')
    kind, others = ("a call", _TALK_KEYS) if test.call is not None else ("a conversation", _CALL_KEYS)
    if wrong := sorted(keys & others):
        raise DefinitionError(
            f"{wrong[0]} is not a key of {kind}; its own keys are {', '.join(sorted(others ^ _TALK_KEYS ^ _CALL_KEYS))}"
        )
    if test.user is not None and not test.model:
        raise DefinitionError(
            'a conversation needs a model, as in model = [{ call = "…", arguments = {…} }, { say = "…" }]'
        )
    if not keys & _EXPECTATIONS:
        raise DefinitionError(f"a test needs an expectation: {', '.join(sorted(_EXPECTATIONS - others))}")
    statuses = get_args(Status if test.call is not None else RunStatus)
    if test.status is not None and test.status not in statuses:
        raise DefinitionError(
            f"the status of {kind} must be one of {', '.join(statuses)}, not {test.status!r}"
            f"{suggest_name(test.status, statuses)}"
        )
    return test


# -- readers of each key -----------------------------------------------------------------------------------------------


def _read_bool(value: Any, key: str) -> bool:
    if not isinstance(value, bool):
        raise DefinitionError(f"{key} must be true or false, not {value!r:.80}")
    return value


def _read_arguments(value: Any, key: str) -> Arguments:
    return value if isinstance(value, str) else read_plain_table(value, key)


def _text_or_texts(value: Any, key: str) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) and value else read_texts(value, key)


def _read_approval(value: Any, key: str) -> Mapping[str, Approval] | Approval:
    answers = value.values() if isinstance(value, dict) else [value]
    for item in answers:
        if item not in _APPROVALS:
            raise DefinitionError(
                f'{key} must be "yes", "no" or "later", or a table of these by tool, not {item!r:.80}'
            )
    return value  # type: ignore[no-any-return]


def _read_items(value: Any, key: str) -> list[Any]:
    if isinstance(value, str | dict):
        return [value]
    if not isinstance(value, list) or not value or not all(isinstance(item, str | dict) for item in value):
        raise DefinitionError(f'{key} must be a list, as in {key} = ["refund"], not {value!r:.80}')
    return value


def _read_calls(value: Any, key: str) -> tuple[ExpectedCall, ...]:
    return tuple(
        ExpectedCall(item) if isinstance(item, str) else _read_call_table(item, key) for item in _read_items(value, key)
    )


def _read_call_table(table: dict[str, Any], key: str) -> ExpectedCall:
    read = read_keys(
        table, {"call": read_text, "arguments": read_plain_table, "times": _read_times}, f"a table of {key}"
    )
    return ExpectedCall(_get_tool_name(read, key), read.get("arguments", {}), read.get("times"))


def _read_times(value: Any, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DefinitionError(
            f"{key} must be a whole number of at least 1, not {value!r:.80}; for no call, use not_called"
        )
    return value


def _read_denials(value: Any, key: str) -> tuple[ExpectedDenial, ...]:
    return tuple(
        ExpectedDenial(item) if isinstance(item, str) else _read_denial_table(item, key)
        for item in _read_items(value, key)
    )


def _read_denial_table(table: dict[str, Any], key: str) -> ExpectedDenial:
    read = read_keys(table, {"call": read_text, "rule": read_text}, f"a table of {key}")
    return ExpectedDenial(_get_tool_name(read, key), read.get("rule", ""))


def _get_tool_name(read: Mapping[str, Any], key: str) -> str:
    if not read.get("call"):
        raise DefinitionError(f'{key} must name the tool, as in {key} = [{{ call = "refund" }}]')
    return str(read["call"])


def _read_turns(value: Any, key: str) -> tuple[Answer, ...]:
    if not isinstance(value, list):
        raise DefinitionError(f'{key} must be a list of turns, as in {key} = [{{ say = "…" }}], not {value!r:.80}')
    return tuple(_read_turn(item if isinstance(item, list) else [item]) for item in value)


def _read_turn(parts: list[Any]) -> Answer:
    """Return a turn of the model, from one table or several."""
    texts, calls = [], []
    for part in parts:
        if not isinstance(part, dict) or not part.keys() & {"say", "call"}:
            raise DefinitionError(
                f'a turn must be {{ say = "…" }}, {{ call = "…" }}, or a list of these, not {part!r:.80}'
            )
        read = read_keys(part, {"say": read_text, "call": read_text, "arguments": _read_arguments}, "a turn")
        texts += [read["say"]] if "say" in read else []
        calls += [(read["call"], read.get("arguments", {}))] if "call" in read else []
        if "arguments" in read and "call" not in read:
            raise DefinitionError("a turn has arguments without a call")
    return ("\n".join(texts), calls) if calls else "\n".join(texts)


def _read_tables(value: Any, key: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise DefinitionError(f"{key} must be a list of tables, as in [[{key}]], not {value!r:.80}")
    return value


_FILE_READERS: Final = {
    "tools": read_texts,
    "policy": read_text,
    "answers": read_plain_table,
    "live": _read_bool,
    "test": _read_tables,
}
_TEST_READERS: Final = {
    **dict.fromkeys(("name", "call", "user", "principal", "session", "status"), read_text),
    **dict.fromkeys(("result_contains", "reply_contains", "told_contains", "not_called"), _text_or_texts),
    "arguments": _read_arguments,
    "at": read_moment,
    "model": _read_turns,
    "approve": _read_approval,
    "called": _read_calls,
    "denied": _read_denials,
}
_CALL_KEYS: Final = frozenset({"call", "arguments", "result_contains"})
_TALK_KEYS: Final = frozenset({"user", "model", "reply_contains", "told_contains"})
_EXPECTATIONS: Final = frozenset(
    {"called", "not_called", "denied", "status", "result_contains", "reply_contains", "told_contains"}
)
