"""Telling a model what is wrong with its arguments is little work."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import Field, Runner, tool
from ferrule.security.similar_names import NameIndex
from steps import steps


@tool
async def book(
    city: Annotated[str, Field(description="Where")],
    nights: int,
    breakfast: bool = False,
    room: Literal["single", "double"] = "single",
    note: str | None = None,
) -> str:
    """Book a room."""
    return ""


@pytest.mark.parametrize(
    ("text", "most", "said"),
    [
        ('{"nights": 2}', 270, "'city' is required and was not given: a string"),
        ('{"city": "Oslo", "nights": "two"}', 270, "'nights' must be a valid integer, got string \"two\""),
        ('{"nights": "two"}', 320, "'city' is required and was not given: a string; 'nights' must be a valid integer"),
        ('{"city": "Oslo", "nights": 2, "xyz": 1}', 290, "'xyz' is not a parameter; the parameters are: 'city'"),
    ],
)
def test_telling_what_is_wrong_calls_few_functions(text: str, most: int, said: str) -> None:
    runner = Runner([book])

    async def twice() -> tuple[Any, int]:
        result = await runner.run("book", text)
        coroutine = runner.run("book", text)  # with what is made once

        def run() -> None:
            with pytest.raises(StopIteration):
                coroutine.send(None)

        return result, steps(run)

    result, work = asyncio.run(twice())
    assert said in result.error and work < most


names = st.text("abc_", min_size=1, max_size=8)


@given(names, st.lists(names, min_size=1, max_size=6))
def test_a_name_that_is_looked_over_is_none_that_difflib_would_find(name: str, known: list[str]) -> None:
    from difflib import get_close_matches

    found = get_close_matches(name, list(dict.fromkeys(known)), n=3, cutoff=0.5)
    assert NameIndex(known).find_nearest(name)[: len(found)] == found
