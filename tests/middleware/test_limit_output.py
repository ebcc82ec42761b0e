"""`limit_output` bounds everything that a call gives the model."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import Runner, Sizes, tool
from ferrule.errors import DefinitionError
from ferrule.middleware import limit_output
from ferrule.values.call import ToolCall
from ferrule.values.content import Keep, Media, Text, count_characters, to_output
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult


def limited(result: ToolResult, characters: int, *keep: Keep, **options: Any) -> ToolResult:
    async def next(call: ToolCall, context: ToolContext[Any]) -> ToolResult:
        return result

    async def run() -> ToolResult:
        made = limit_output(characters, **({"keep": keep[0]} if keep else {}), **options)
        return await made(ToolCall("1", "read"), ToolContext(), next)

    return asyncio.run(run())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_values, st.integers(1, 200))
def test_no_output_is_longer_than_the_limit(output: Any, characters: int) -> None:
    result = limited(ToolResult(output), characters)
    assert count_characters(result.content) <= characters
    if not isinstance(to_output(output), str):  # a text, or a number that JSON has not
        json.loads(result.text)


@pytest.mark.parametrize("options", [{}, {"max_media": 7_000}])
def test_a_limit_of_text_keeps_images_within_a_limit_of_their_own(options: dict[str, int]) -> None:
    image = Media("image", b"y" * 7_000, "image/png")
    assert image in limited(ToolResult(content=[Text("x" * 9_000), image]), 4_000, **options).content
    short = limited(ToolResult(content=[image]), 4_000, max_media=6_999)
    assert short.text == "[image of 7000 bytes left out: the limit of media is 6999 bytes]"
    with pytest.raises(DefinitionError, match="max_media"):
        limit_output(4_000, max_media=0)


def test_a_runner_leaves_out_media_over_its_limit() -> None:
    @tool(read_only=True)
    def draw() -> Media:
        return Media("image", b"y" * 7_000, "image/png")

    assert Runner([draw], sizes=Sizes(output=1_000)).run_sync("draw").content == (
        Media("image", b"y" * 7_000, "image/png"),
    )
    assert "left out" in Runner([draw], sizes=Sizes(media=6_000)).run_sync("draw").text


def test_an_error_and_its_content_share_the_limit() -> None:
    alone = limited(ToolResult(error="e" * 5000), 100)
    assert (alone.status, alone.content, len(str(alone.error)) <= 100) == ("failed", (Text(str(alone.error)),), True)
    assert re.fullmatch(r"e{30,}\n\[cut: 49\d\d characters left out\]\ne{30,}", str(alone.error))
    result = limited(ToolResult(error="e" * 80, content=[Text("c" * 500)]), 200)
    assert result.error == "e" * 80
    assert count_characters(result.content) + 80 <= 200


def test_a_result_that_fits_is_unchanged() -> None:
    for result in (ToolResult("short"), ToolResult(error="short"), ToolResult(error="e", content=[Text("c")])):
        assert limited(result, 100) is result


@pytest.mark.parametrize(("keep", "starts", "ends"), [("head", 1, 0), ("tail", 0, 1), ("both", 1, 1)])
@pytest.mark.parametrize("what", [0, 1, 2], ids=["output", "error", "content beside an error"])
def test_the_requested_end_is_kept(keep: Keep, starts: bool, ends: bool, what: int) -> None:
    log = "collected 900 tests\n" + ".\n" * 9000 + "3 failed, 897 passed"
    whole = (ToolResult(log), ToolResult(error=log), ToolResult(error="exit code 1", content=[Text(log)]))[what]
    result = limited(whole, 400, keep)
    assert len(result.text) <= 400
    assert result.text.startswith("collected") is bool(starts) and result.text.endswith("897 passed") is bool(ends)
    if keep == "both":
        assert limited(whole, 400).text == result.text


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "16000", None])
def test_an_invalid_limit_is_refused(wrong: Any) -> None:
    with pytest.raises(DefinitionError):
        limit_output(wrong)
    with pytest.raises(DefinitionError, match="'head', 'tail' or 'both'"):
        limit_output(100, keep=wrong)
