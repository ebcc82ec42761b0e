"""What is read of a call has a bound: `max_input`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ferrule import (
    Decision,
    DefinitionError,
    Runner,
    Sizes,
    Tool,
    ToolCall,
    ToolContext,
    ToolResult,
    ValidationError,
    allow,
    ask,
    tool,
)
from ferrule.types import ToolInput

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


@tool
def note(text: str) -> int:
    """Keep a note."""
    return len(text)


KEY = b"a key of thirty-two bytes or more"


def run(one: ToolInput, arguments: Any, **options: Any) -> ToolResult:
    runner = Runner([one], **options)
    return asyncio.run(runner.run(next(iter(runner.tools)).name, arguments))


def of(characters: int) -> str:
    """Arguments that are so long."""
    return json.dumps({"text": "x" * (characters - len('{"text": ""}'))})


def refused(result: ToolResult, came: str, read: str) -> None:
    assert (result.status, result.executed) == ("invalid", False)
    assert f"have {came} characters, and at most {read} are read" in str(result.error)
    assert len(str(result.error)) < 200


def test_arguments_are_read_up_to_a_million_characters() -> None:
    assert run(note, of(1_000_000)).success
    refused(run(note, of(1_000_001)), "1,000,001", "1,000,000")
    refused(run(Tool("given", len, description="Take.", input_schema=SCHEMA), of(2_000_000)), "2,000,000", "1,000,000")


def test_a_runner_reads_at_most_its_max_input() -> None:
    assert run(note, of(50), sizes=Sizes(input=50)).success
    refused(run(note, of(51), sizes=Sizes(input=50)), "51", "50")
    assert run(note, of(1_500_000), sizes=Sizes(input=None)).success


def test_of_the_runners_that_a_tool_is_mounted_in_the_smallest_bound_holds() -> None:
    for inner, outer in ((50, 100), (100, 50), (50, None), (None, 50)):
        mounted = Runner([note], sizes=Sizes(input=inner)).as_tools()
        refused(run(mounted[0], of(60), sizes=Sizes(input=outer)), "60", "50")


def test_it_is_no_text_that_counts_but_the_json() -> None:
    assert run(note, {"text": "x" * 39}, sizes=Sizes(input=50)).success
    refused(run(note, {"text": "x" * 40}, sizes=Sizes(input=50)), "51", "50")
    refused(run(note, {"text": "\n" * 30}, sizes=Sizes(input=50)), "71", "50")


def test_nothing_is_decoded_of_what_is_too_long() -> None:
    refused(run(note, "{" * 60, sizes=Sizes(input=50)), "60", "50")
    refused(run(note, " " * 60, sizes=Sizes(input=50)), "60", "50")
    seen: list[Any] = []
    beside = note.replace(parallel=lambda arguments: seen.append(arguments) or True)
    calls = [ToolCall(str(number), "note", of(60 - 20 * number)) for number in range(2)]
    results = asyncio.run(Runner([beside], sizes=Sizes(input=50)).run_all(calls))
    assert [result.status for result in results] == ["invalid", "ok"]
    assert {len(arguments["text"]) for arguments in seen} == {28}


async def test_a_direct_call_has_the_bound_too() -> None:

    assert await note("x" * 900_000) == 900_000
    with pytest.raises(ValidationError, match="at most 1,000,000 are read"):
        await note("x" * 1_000_001)


def test_what_a_guard_or_a_person_gives_has_it_as_well() -> None:
    def longer(call: ToolCall, context: ToolContext) -> Decision | None:
        return allow({"text": "x" * 60}) if len(call.arguments["text"]) < 60 else None

    def asks(call: ToolCall, context: ToolContext) -> Decision:
        return ask("really?")

    for options in ({"guards": [longer]}, {"guards": [asks], "approve": lambda *_: allow({"text": "x" * 60})}):
        assert run(note, of(40), **options).success
        result = run(note, of(40), sizes=Sizes(input=50), **options)
        assert (result.status, result.executed) == ("denied", False)
        assert "have 71 characters, and at most 50 are read" in str(result.error)


async def test_what_is_resumed_has_it_as_well() -> None:
    def later(call: ToolCall, context: ToolContext) -> Decision:
        return ask("later")

    runner = Runner([note], guards=[later], approve=lambda *_: ask("later"), resume_key=KEY)
    record = (await runner.run("note", of(60))).record()
    again = Runner([note], guards=[later], sizes=Sizes(input=50), resume_key=KEY)
    result = await again.resume(record, True)
    assert (result.status, result.executed) == ("invalid", False)
    assert "at most 50 are read" in str(result.error)
    longer = await runner.replace().resume(record, allow({"text": "x" * 2_000_000}))
    assert (longer.status, longer.executed) == ("denied", False)
    assert "at most 1,000,000 are read" in str(longer.error)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "many"])
def test_it_is_a_whole_number_or_none(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match=r"input=…\) must be a whole number"):
        Runner([note], sizes=Sizes(input=wrong))
