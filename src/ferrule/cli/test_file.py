"""A file of tests of tools as values, with the line of each test. All errors are found, not only the first."""

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
from ferrule.security.paths import read_file

Approval: TypeAlias = Literal["yes", "no", "later"]
Arguments: TypeAlias = Mapping[str, Any] | str
_Made = TypeVar("_Made")
_MOST_TEST_FILE: Final = 1_000_000  # bytes
_APPROVALS: Final = get_args(Approval)


class Called(NamedTuple):
    """An expected call: the arguments that are compared, and how often."""

    name: str
    arguments: Mapping[str, Any] = MappingProxyType({})
    times: int | None = None


class Denied(NamedTuple):
    """A tool with an expected deny, and a part of the rule or the reason."""

    name: str
    rule: str = ""


@dataclass(frozen=True)
class ToolTest:
    """One `[[test]]`: a call or a conversation, and its expectations."""

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
    called: tuple[Called, ...] = ()
    not_called: tuple[str, ...] = ()
    denied: tuple[Denied, ...] = ()
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

    try:
        data, lines = read_toml(read_file(source, _MOST_TEST_FILE).decode("utf-8"))
    except TomlError as error:
        refuse(error.line, error)
        data, lines = {}, TomlLines("")
    except UnicodeDecodeError as error:
        refuse(0, f"it is no UTF-8: {error}")
        data, lines = {}, TomlLines("")
    except ValueError as error:
        refuse(0, f"it cannot be read: {error}")
        data, lines = {}, TomlLines("")
    head = _read_head(data, lines, refuse)
    tests = tuple(_read_tests(head.get("test", ()), lines, source, refuse))
    if not (tests or findings):
        refuse(0, "there are no tests: a [[test]] has a call, or what a user says, and what is expected")
    folder = Path(source).parent
    policy = head.get("policy")
    return ToolTests(
        source,
        tuple(_place_from(folder, one) for one in head.get("tools", ())),
        None if policy is None else str(folder / policy),
        head.get("answers", {}),
        head.get("live", False),
        tests,
        tuple(findings),
    )


def _place_from(folder: Path, place: str) -> str:
    """Return a file's path as found from here. A module has one name wherever the file of tests is."""
    is_file = place.partition(":")[0].endswith(".py")
    return str(folder / place) if is_file else place


def _read_head(data: Mapping[str, Any], lines: TomlLines, refuse: Callable[[int, object], None]) -> dict[str, Any]:
    head: dict[str, Any] = {}
    for key, value in data.items():
        head |= (
            _made_or_refused(
                partial(read_keys, {key: value}, _OF_FILE, "a file of tests"), lines.find_line(key), refuse
            )
            or {}
        )
    return head


def _read_tests(
    tables: Sequence[Mapping[str, Any]], lines: TomlLines, source: str, refuse: Callable[[int, object], None]
) -> Iterator[ToolTest]:
    for at, table in enumerate(tables):
        line = lines.find_line("test", at)
        made = _made_or_refused(partial(_tool_test, table, source, line), line, refuse)
        if made is not None:
            yield made


def _made_or_refused(make: Callable[[], _Made], line: int, refuse: Callable[[int, object], None]) -> _Made | None:
    try:
        return make()
    except DefinitionError as error:
        refuse(line, error)
        return None


def _tool_test(table: Mapping[str, Any], source: str, line: int) -> ToolTest:
    test = ToolTest(source, line, **read_keys(table, _OF_TOOL_TEST, "a test"))
    given = set(table)
    if (test.call is None) == (test.user is None):
        raise DefinitionError('a test has either a call = "…" with its arguments, or a user = "…" with a model = […]')
    kind, others = ("a call", _OF_A_TALK) if test.call is not None else ("a conversation", _OF_A_CALL)
    if wrong := sorted(given & others):
        raise DefinitionError(
            f"{wrong[0]} is not for {kind}: it has {', '.join(sorted(others ^ _OF_A_TALK ^ _OF_A_CALL))}"
        )
    if test.user is not None and not test.model:
        raise DefinitionError(
            'a conversation has a model, as in model = [{ call = "…", arguments = {…} }, { say = "…" }]'
        )
    if not given & _EXPECTATIONS:
        raise DefinitionError(f"a test expects something: {', '.join(sorted(_EXPECTATIONS - others))}")
    statuses = get_args(Status if test.call is not None else RunStatus)
    if test.status is not None and test.status not in statuses:
        suggestion = suggest_name(test.status, statuses)
        raise DefinitionError(f"the status of {kind} is one of {', '.join(statuses)}, not {test.status!r}{suggestion}")
    return test


# -- readers of each key -----------------------------------------------------------------------------------------------


def _yes_or_no(given: Any, key: str) -> bool:
    if not isinstance(given, bool):
        raise DefinitionError(f"{key} is true or false, not {given!r:.80}")
    return given


def _read_arguments(given: Any, key: str) -> Arguments:
    return given if isinstance(given, str) else read_plain_table(given, key)


def _text_or_texts(given: Any, key: str) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) and given else read_texts(given, key)


def _read_approval(given: Any, key: str) -> Mapping[str, Approval] | Approval:
    answers = given.values() if isinstance(given, dict) else [given]
    for one in answers:
        if one not in _APPROVALS:
            raise DefinitionError(f'{key} is "yes", "no" or "later", or a table of these by tool, not {one!r:.80}')
    return given  # type: ignore[no-any-return]


def _read_items(given: Any, key: str) -> list[Any]:
    if isinstance(given, str | dict):
        return [given]
    if not isinstance(given, list) or not given or not all(isinstance(one, str | dict) for one in given):
        raise DefinitionError(f'{key} is a list, as in {key} = ["refund"], not {given!r:.80}')
    return given


def _read_called(given: Any, key: str) -> tuple[Called, ...]:
    return tuple(
        Called(one) if isinstance(one, str) else _read_called_table(one, key) for one in _read_items(given, key)
    )


def _read_called_table(table: dict[str, Any], key: str) -> Called:
    read = read_keys(
        table, {"call": read_text, "arguments": read_plain_table, "times": _read_times}, f"a table of {key}"
    )
    return Called(_call_in(read, key), read.get("arguments", {}), read.get("times"))


def _read_times(given: Any, key: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise DefinitionError(f"{key} is a whole number of at least 1, not {given!r:.80}; for none, not_called")
    return given


def _read_denied(given: Any, key: str) -> tuple[Denied, ...]:
    return tuple(
        Denied(one) if isinstance(one, str) else _read_denied_table(one, key) for one in _read_items(given, key)
    )


def _read_denied_table(table: dict[str, Any], key: str) -> Denied:
    read = read_keys(table, {"call": read_text, "rule": read_text}, f"a table of {key}")
    return Denied(_call_in(read, key), read.get("rule", ""))


def _call_in(read: Mapping[str, Any], key: str) -> str:
    if not read.get("call"):
        raise DefinitionError(f'{key} names the tool, as in {key} = [{{ call = "refund" }}]')
    return str(read["call"])


def _read_turns(given: Any, key: str) -> tuple[Answer, ...]:
    if not isinstance(given, list):
        raise DefinitionError(f'{key} is a list of turns, as in {key} = [{{ say = "…" }}], not {given!r:.80}')
    return tuple(_read_turn(one if isinstance(one, list) else [one]) for one in given)


def _read_turn(parts: list[Any]) -> Answer:
    """Return a turn of the model, from one table or several."""
    said, calls = [], []
    for part in parts:
        if not isinstance(part, dict) or not part.keys() & {"say", "call"}:
            raise DefinitionError(f'a turn is {{ say = "…" }}, {{ call = "…" }}, or a list of these, not {part!r:.80}')
        read = read_keys(part, {"say": read_text, "call": read_text, "arguments": _read_arguments}, "a turn")
        said += [read["say"]] if "say" in read else []
        calls += [(read["call"], read.get("arguments", {}))] if "call" in read else []
        if "arguments" in read and "call" not in read:
            raise DefinitionError("a turn has arguments, and no call that they are of")
    return ("\n".join(said), calls) if calls else "\n".join(said)


def _read_tables(given: Any, key: str) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise DefinitionError(f"{key} is a list of tables, as in [[{key}]], not {given!r:.80}")
    return given


_OF_FILE: Final = {
    "tools": read_texts,
    "policy": read_text,
    "answers": read_plain_table,
    "live": _yes_or_no,
    "test": _read_tables,
}
_OF_TOOL_TEST: Final = {
    **dict.fromkeys(("name", "call", "user", "principal", "session", "status"), read_text),
    **dict.fromkeys(("result_contains", "reply_contains", "told_contains", "not_called"), _text_or_texts),
    "arguments": _read_arguments,
    "model": _read_turns,
    "approve": _read_approval,
    "called": _read_called,
    "denied": _read_denied,
}
_OF_A_CALL: Final = frozenset({"call", "arguments", "result_contains"})
_OF_A_TALK: Final = frozenset({"user", "model", "reply_contains", "told_contains"})
_EXPECTATIONS: Final = frozenset(
    {"called", "not_called", "denied", "status", "result_contains", "reply_contains", "told_contains"}
)
