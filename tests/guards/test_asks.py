"""`ask_before_changes`, and guards that say in advance whether they ask about a tool."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrule import DefinitionError, Runner, Tool, ToolCall, tool
from ferrule.adapters.adapter import can_ask
from ferrule.guards import ask_before_changes, commands, hosts, within
from ferrule.types import Guard
from policy.policies import policy_of

NAMES = st.sampled_from(["command", "cmds", "args", "note", "url", "item"])
TEXTS = st.sampled_from(["rm -rf x", "git status", "$x", "https://example.org/a", "https://a.b/", "/etc/passwd", "x"])
OPEN = st.dictionaries(NAMES, TEXTS | st.lists(TEXTS, max_size=2), max_size=2)
Described = tuple[dict[str, Any], st.SearchStrategy[Any]]
"""A schema, and what fits it."""


def _object(fields: dict[str, Described]) -> Described:
    schema = {"properties": {name: of for name, (of, _) in fields.items()}, "additionalProperties": False}
    return {"type": "object", **schema}, st.fixed_dictionaries({}, optional={k: v for k, (_, v) in fields.items()})


def _list(of: Described) -> Described:
    return {"type": "array", "items": of[0]}, st.lists(of[1], max_size=2)


def _either(of: Described) -> Described:
    return {"anyOf": [of[0], {"type": "null"}]}, of[1] | st.none()


LEAVES: st.SearchStrategy[Described] = st.sampled_from(
    [
        ({"type": "string"}, TEXTS),
        ({"enum": ["x", "rm -rf x"]}, st.sampled_from(["x", "rm -rf x"])),
        ({"type": "object"}, OPEN),
        ({"type": "object", "additionalProperties": {"type": "string"}}, st.dictionaries(NAMES, TEXTS, max_size=2)),
        ({"type": "array"}, st.lists(OPEN, max_size=2)),
        ({}, OPEN | TEXTS),
    ]
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.dictionaries(NAMES, inner, max_size=2).map(_object) | inner.map(_list) | inner.map(_either),
    max_leaves=4,
)
CALLS = st.dictionaries(NAMES, VALUES, max_size=3).map(_object).flatmap(lambda of: st.tuples(st.just(of[0]), of[1]))
GUARDS = st.sampled_from(
    [
        *(ask_before_changes, within("/tmp"), hosts(), hosts("*.example.org"), hosts(ask=["example.org"])),
        *(hosts(deny=["example.org"]), commands(), commands(allow=["git status"], text=["command"])),
        commands(ask=["git *"], parameters=["note"]),
    ]
)


def nothing(payload: dict[str, Any]) -> str:
    return ""


def kind_of(made: Tool, guard: Guard, arguments: dict[str, Any]) -> str:
    return asyncio.run(Runner([made], guards=[guard]).decide(ToolCall("c1", made.name, arguments))).kind


@given(called=CALLS, guard=GUARDS, read_only=st.sampled_from([True, False, lambda arguments: "note" in arguments]))
@settings(max_examples=300, deadline=None)
def test_a_guard_that_does_not_ask_about_a_tool_never_asks(called: Any, guard: Any, read_only: Any) -> None:
    schema, arguments = called
    made = Tool("a_tool", nothing, description="A tool.", input_schema=schema, read_only=read_only)
    try:
        runner = Runner([made], guards=[guard])
    except DefinitionError:  # a tool that the guard cannot judge
        return
    if not can_ask(runner, made):
        assert kind_of(made, guard, arguments) != "ask"


@tool
def refund(amount: int = 1, note: str = "") -> None:
    """Pay money back."""


@tool(read_only=True)
def look(name: str = "") -> None:
    """Look."""


@tool(read_only=lambda arguments: arguments["amount"] == 1)
def maybe(amount: int = 1) -> None:
    """Changes things, or not."""


@pytest.mark.parametrize(
    ("guard", "made", "asks"),
    [
        (ask_before_changes, look, False),
        (ask_before_changes, refund, True),
        (ask_before_changes, maybe, True),
        (within("/tmp"), refund, False),
        (hosts(deny=["example.org"]), refund, True),
        (commands(parameters=["note"]), refund, True),
        (lambda call, context: None, look, True),
    ],
)
def test_guards_say_whether_they_ask_about_a_tool(guard: Any, made: Tool, asks: bool) -> None:
    assert can_ask(Runner([made], guards=[guard]), made) is asks


def test_a_tool_and_its_own_runner_may_ask() -> None:
    inner = Runner([refund], guards=[ask_before_changes])
    outer = Runner(inner.as_tools(), guards=[within("/tmp")])
    [mounted] = outer.tools
    assert can_ask(outer, mounted)
    assert can_ask(Runner([look.replace(ask=True)]), look.replace(ask=True))
    assert not can_ask(Runner([refund]), refund)


# -- ask_before_changes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read_only", "asks"),
    [
        *((True, False), (False, True), (lambda arguments: True, False), (lambda arguments: False, True)),
        *((lambda arguments: 1, True), (lambda arguments: arguments["missing"], True)),
    ],
)
def test_only_calls_that_surely_read_are_not_asked_about(read_only: Any, asks: bool) -> None:
    made = Tool("a_tool", nothing, description="A tool.", input_schema={"type": "object"}, read_only=read_only)
    assert (kind_of(made, ask_before_changes, {}) == "ask") is asks


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        *(('allow = ["refund(amount<=100)"]', True), ('allow = ["refund"]', False), ('deny = ["other"]', True)),
        *(('allow = ["refund"]\ndeny = ["refund(note=*rm*)"]', True), ('mode = "never_ask"', False)),
    ],
)
def test_a_policy_says_whether_it_asks_about_a_tool(text: str, asks: bool, tmp_path: Path) -> None:
    assert policy_of(tmp_path, text).asks(refund) is asks
