"""Attacks by arguments: guard, record and handler see one value, or nothing runs."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Annotated, Any

import pytest
from pydantic import Field
from sample import CASES

from ferrule import Decision, Runner, Tool, ToolCall, ToolContext, allow, tool
from steps import peak


class Permit:
    kind = "allow"

    def __call__(self) -> bool:
        return True

    def __bool__(self) -> bool:
        return True


RETURNED: list[Any] = [
    *({}, {"path": "a.txt", "is_admin": True}, {"is_admin": True}, {"path": 1}, {"path": None}, {1: 2}, [], "allow"),
    *(True, 1, Permit, Permit(), ToolCall("1", "act", {"path": "b.txt"}), object(), Decision, allow({"path": 5})),
    *(allow({"path": "a.txt", "is_admin": True}), {"path": "a.txt", "context": {}}, {"path": "a.txt"}.items()),
]


@pytest.mark.parametrize("returned", RETURNED, ids=lambda one: repr(one)[:40])
async def test_a_guard_that_returns_no_answer_denies(returned: Any) -> None:
    ran: list[str] = []

    @tool
    def act(path: str) -> str:
        ran.append(path)
        return path

    async def late(call: Any, context: Any) -> Any:
        return returned

    for guard in (lambda call, context: returned, late):
        result = await Runner([act], guards=[guard]).run("act", {"path": "a.txt"})
        assert result.status == "denied" and ran == []


class Seen:
    """The arguments that a guard and the handler saw of the same call."""

    def __init__(self, by_schema: bool) -> None:
        self.guard: list[Any] = []
        self.handler: list[Any] = []
        schema = CASES["atk022"]["input"]["schema"]
        properties = {name: {"type": kind} for name, kind in schema.items()}

        @tool(read_only=True)
        def typed(n: int = 0, b: bool = False, s: str = "") -> str:
            self.handler.append({"n": n, "b": b, "s": s})
            return ""

        def given(payload: dict[str, Any]) -> str:
            self.handler.append(payload)
            return ""

        foreign = Tool(
            name="typed",
            description="x",
            handler=given,
            read_only=True,
            input_schema={"type": "object", "properties": properties, "additionalProperties": False},
        )
        self.runner = Runner([foreign if by_schema else typed], guards=[self.watch])

    def watch(self, call: Any, context: Any) -> None:
        self.guard.append(dict(call.arguments))


CONFUSED = [
    *CASES["atk022"]["input"]["values"],
    *({"n": value} for value in (1.5, 1e400, "0x1", "1e3", "\u0661", [], [1])),
    *({"b": value} for value in ("true", 0, "on", [])),
    *({"s": value} for value in (["a"], {"a": 1}, True)),
]
KINDS = {"n": int, "b": bool, "s": str}


@pytest.mark.parametrize("by_schema", [False, True])
@pytest.mark.parametrize("arguments", CONFUSED, ids=str)
async def test_a_value_of_another_type_is_refused_or_the_same_for_all(arguments: Any, by_schema: bool) -> None:
    seen = Seen(by_schema)
    result = await seen.runner.run("typed", json.dumps(arguments))
    assert result.status == ("ok" if seen.handler else "invalid")
    [(name, sent)] = arguments.items()
    if seen.handler:
        [handled], [guarded] = seen.handler, seen.guard
        found = handled[name]
        assert type(found) is KINDS[name] or (by_schema and found == 1)
        assert guarded[name] == found == result.record()["input"][name]
        assert type(guarded[name]) is type(found)
        assert result.repairs or sent == found
        assert json.loads(str(sent).lower()) == found  # no other value than the one that was meant


@pytest.mark.large
def test_too_many_arguments_are_refused_before_they_are_read() -> None:
    @tool
    def act(s: str = "", **more: int) -> str:
        raise AssertionError("it ran")

    sizes = CASES["atk025"]["input"]["generate"]
    runner = Runner([act])
    many = {f"k{n}": 1 for n in range(sizes["keys"])}
    texts = [json.dumps(many), json.dumps({"s": "x" * sizes["string_bytes"]}), "[" * 5_000_000, '{"s": ' * 400_000]
    results: list[Any] = [asyncio.run(runner.run("act", many))]
    for text in texts:
        held = peak(partial(lambda given: results.append(asyncio.run(runner.run("act", given))), text))
        assert held < len(text) + 2_000_000
    assert {result.status for result in results} == {"invalid"}
    assert all(len(result.text) < 2_000 for result in results)


@pytest.mark.parametrize("pattern", ["^[a-z]+$", "[a-z]+$", r"\A[a-z]+$"])
@pytest.mark.parametrize("value", ["abc\n", "abc\r\n", "abc\u2028", "\nabc"])
async def test_an_anchored_pattern_takes_no_trailing_line_break(pattern: str, value: str) -> None:
    @tool(read_only=True)
    def typed(s: Annotated[str, Field(pattern=pattern)]) -> str:
        return s

    schema = {"type": "object", "properties": {"s": {"type": "string", "pattern": pattern.replace(r"\A", "^")}}}
    foreign = Tool(name="foreign", description="x", handler=lambda payload: payload["s"], input_schema=schema)
    runner = Runner([typed, foreign])
    for name in ("typed", "foreign"):
        if value != "\nabc" or pattern[0] in "^\\":
            assert (await runner.run(name, {"s": value})).status == "invalid", name
        assert (await runner.run(name, {"s": "abc"})).success


ODD_KEYS = [CASES["atk031"]["input"]["arguments"], {"__proto__": {}}, {"constructor": {}}, {"args": []}, {"kwargs": {}}]
ODD_KEYS += [
    {name: 1} for name in ("", "a.b", "__class__", "__init__", "__dict__", "self", "cls", "context", "ctx", "A")
]
ODD_KEYS += [{name: 1} for name in ("\uff41", "a\u200b", "a ", ".".join("a" * 1000), "pin")]


@pytest.mark.parametrize("arguments", ODD_KEYS, ids=lambda one: ascii(one)[:40])
async def test_an_unknown_key_is_refused_and_changes_nothing(arguments: Any) -> None:
    before = vars(Tool).copy(), vars(ToolCall).copy(), vars(ToolContext).copy()
    ran: list[int] = []

    @tool(private=("pin",))
    def act(context: ToolContext, a: int = 0, pin: int = 7) -> int:
        ran.append(pin)
        return a

    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    foreign = Tool(name="foreign", description="x", handler=lambda payload: dict(payload), input_schema=schema)
    runner = Runner([act, foreign])
    assert (await runner.run("act", arguments)).status == "invalid" and ran == []
    result = await runner.run("foreign", json.dumps(arguments))
    assert result.status in ("invalid", "ok")
    assert (vars(Tool).copy(), vars(ToolCall).copy(), vars(ToolContext).copy()) == before


AMBIGUOUS = [
    *('{"a": NaN}', '{"a": Infinity}', '{"a": 1e999}', '{"a": "\\ud800"}', '{"a": 1}{"a": 2}'),
    *('[{"a": 1}]', '"a"', '{"a": 0x10}', '{"a": 99999999999999999999999999999999999999.5}', "\x00"),
]


@pytest.mark.parametrize("text", AMBIGUOUS)
async def test_ambiguous_json_does_not_run(text: str) -> None:
    ran: list[Any] = []

    @tool
    def act(a: int = 0) -> str:
        ran.append(a)
        return ""

    assert (await Runner([act]).run("act", text)).status == "invalid" and ran == []
