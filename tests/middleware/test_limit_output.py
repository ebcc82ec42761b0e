"""`limit_output`: all that a call gives the model stays within the limit."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.errors import DefinitionError
from ferrule.middleware import limit_output
from ferrule.values.call import ToolCall
from ferrule.values.content import Block, Media, Text, size
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult


def limited(result: ToolResult, characters: int) -> ToolResult:
    async def next(call: ToolCall, context: ToolContext[Any]) -> ToolResult:
        return result

    async def run() -> ToolResult:
        return await limit_output(characters)(ToolCall("1", "read"), ToolContext(), next)

    return asyncio.run(run())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_values, st.integers(1, 200))
def test_no_output_is_longer_than_the_limit(output: Any, characters: int) -> None:
    result = limited(ToolResult(output), characters)
    assert size(result.content) <= characters
    if not isinstance(output, str):
        json.loads(result.text)


def test_the_limit_is_for_all_strings_together() -> None:
    result = limited(ToolResult({f"k{n}": "x" * 90 for n in range(1000)}), 500)
    assert size(result.content) <= 500
    assert "[cut]" in json.loads(result.text)


def test_the_limit_is_for_all_blocks_together() -> None:
    blocks: list[Block] = [Text("x" * 400), Media("image", b"y" * 3000, "image/png"), Text("z" * 400)]
    result = limited(ToolResult(content=blocks), 600)
    assert size(result.content) <= 600
    assert "image of 3000 bytes left out" in result.text
    assert "cut" in result.text


def test_an_error_is_cut_and_says_so() -> None:
    result = limited(ToolResult(error="e" * 5000), 100)
    assert result.status == "failed"
    assert result.error is not None
    assert len(result.error) <= 100
    assert "5000 characters in all" in result.error
    assert result.content == (Text(result.error),)


def test_an_error_with_content_is_counted_once_altogether() -> None:
    result = limited(ToolResult(error="e" * 80, content=[Text("c" * 500)]), 200)
    assert result.error == "e" * 80
    assert size(result.content) + 80 <= 200


def test_what_fits_is_the_same_result() -> None:
    for result in (ToolResult("short"), ToolResult(error="short"), ToolResult(error="e", content=[Text("c")])):
        assert limited(result, 100) is result


def test_the_value_and_all_else_are_left_alone() -> None:
    output = ["x" * 1000]
    result = limited(ToolResult(output, metadata={"a": 1}, duration_ms=3.0), 100)
    assert result.output is output
    assert result.metadata == {"a": 1}
    assert result.duration_ms == 3.0
    assert result.success


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "16000", None])
def test_a_limit_that_is_none_is_a_mistake_at_once(wrong: Any) -> None:
    with pytest.raises(DefinitionError):
        limit_output(wrong)
