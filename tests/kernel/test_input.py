"""`Sizes(input=…)` bounds the arguments of a call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cast import ask_always
from ferrule import Runner, Sizes, Tool, ToolCall, ToolResult, allow, ask, tool
from ferrule.types import ToolInput

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


@tool
def note(text: str) -> int:
    """Keep a note."""
    return len(text)


KEY = b"a key of thirty-two bytes or more"
FIFTY = Sizes(input=50)


async def run(made: ToolInput, arguments: Any, **options: Any) -> ToolResult:
    runner = Runner([made], **options)
    return await runner.run(next(iter(runner.tools)).name, arguments)


def arguments_of(characters: int) -> str:
    """Return arguments of this length."""
    return json.dumps({"text": "x" * (characters - len('{"text": ""}'))})


def assert_refused(result: ToolResult, came: str, read: str) -> None:
    assert (result.status, result.executed) == ("invalid", False)
    assert f"have {came} characters, and at most {read} are read" in str(result.error)
    assert len(str(result.error)) < 200


async def test_arguments_are_read_up_to_a_million_characters() -> None:
    assert (await run(note, arguments_of(1_000_000))).success
    assert_refused(await run(note, arguments_of(1_000_001)), "1,000,001", "1,000,000")
    by_schema = Tool("given", len, description="Take.", input_schema=SCHEMA)
    assert_refused(await run(by_schema, arguments_of(2_000_000)), "2,000,000", "1,000,000")


async def test_a_runner_reads_at_most_its_max_input() -> None:
    assert (await run(note, arguments_of(50), sizes=FIFTY)).success
    assert_refused(await run(note, arguments_of(51), sizes=FIFTY), "51", "50")
    assert (await run(note, arguments_of(1_500_000), sizes=Sizes(input=None))).success


@pytest.mark.parametrize(("inner", "outer"), [(50, 100), (100, 50), (50, None), (None, 50)])
async def test_a_mounted_tool_has_the_smallest_bound_of_its_runners(inner: Any, outer: Any) -> None:
    [mounted] = Runner([note], sizes=Sizes(input=inner)).as_tools()
    assert_refused(await run(mounted, arguments_of(60), sizes=Sizes(input=outer)), "60", "50")


async def test_the_bound_counts_the_json_of_a_mapping() -> None:
    assert (await run(note, {"text": "x" * 39}, sizes=FIFTY)).success
    assert_refused(await run(note, {"text": "x" * 40}, sizes=FIFTY), "51", "50")
    assert_refused(await run(note, {"text": "\n" * 30}, sizes=FIFTY), "71", "50")


async def test_long_arguments_are_not_decoded() -> None:
    assert_refused(await run(note, "{" * 60, sizes=FIFTY), "60", "50")
    assert_refused(await run(note, " " * 60, sizes=FIFTY), "60", "50")
    seen: list[Any] = []
    beside = note.replace(parallel=lambda arguments: seen.append(arguments) or True)
    calls = [ToolCall(str(number), "note", arguments_of(60 - 20 * number)) for number in range(2)]
    results = await Runner([beside], sizes=FIFTY).run_all(calls)
    assert [result.status for result in results] == ["invalid", "ok"]
    assert {len(arguments["text"]) for arguments in seen} == {28}


async def test_changed_arguments_have_the_bound_too() -> None:
    longer = allow({"text": "x" * 60})
    by_guard = {"guards": [lambda call, context: longer if len(call.arguments["text"]) < 60 else None]}
    for options in (by_guard, {"guards": [ask_always], "approve": lambda *_: longer}):
        assert (await run(note, arguments_of(40), **options)).success
        result = await run(note, arguments_of(40), sizes=FIFTY, **options)
        assert (result.status, result.executed) == ("denied", False)
        assert "have 71 characters, and at most 50 are read" in str(result.error)


async def test_a_resumed_call_has_the_bound_too() -> None:
    runner = Runner([note], guards=[ask_always], approve=lambda *_: ask("later"), resume_key=KEY)
    record = (await runner.run("note", arguments_of(60))).record()
    again = Runner([note], guards=[ask_always], sizes=FIFTY, resume_key=KEY)
    result = await again.resume(record, True)
    assert (result.status, result.executed) == ("invalid", False)
    assert "at most 50 are read" in str(result.error)
    longer = await runner.replace().resume(record, allow({"text": "x" * 2_000_000}))
    assert (longer.status, longer.executed) == ("denied", False)
    assert "at most 1,000,000 are read" in str(longer.error)
