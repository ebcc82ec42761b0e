"""What an adapter is given that it cannot use is refused when it is given, with what would be right."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
from collections.abc import Callable
from typing import Any

import pytest

from ferrule import DefinitionError, Runner, tool

adapter = importlib.import_module(f"ferrule.adapters.{os.environ['FERRULE_FRAMEWORK']}")


@tool(read_only=True)
def look() -> str:
    return "seen"


def outward() -> list[Callable[..., Any]]:
    """The functions that make something of a runner."""
    return [
        made
        for _, made in inspect.getmembers(adapter, inspect.isfunction)
        if made.__module__ == adapter.__name__ and not made.__name__.startswith("_")
        if next(iter(inspect.signature(made).parameters), "") == "runner" and not inspect.iscoroutinefunction(made)
    ]


def taken_in(theirs: object) -> object:
    made = adapter.from_tools(theirs)
    return asyncio.run(made) if inspect.iscoroutine(made) else made


OPTIONS = [
    (made, option)
    for made in outward()
    for option in ("context", "records")
    if option in inspect.signature(made).parameters
]


def test_an_adapter_function_takes_a_context() -> None:
    assert "context" in {option for _, option in OPTIONS}


@pytest.mark.parametrize("made", outward())
def test_a_wrong_runner_is_refused(made: Callable[..., Any]) -> None:
    with pytest.raises(DefinitionError, match=r"Runner\(\[…\]\)"):
        made([look])


@pytest.mark.parametrize(("made", "option"), OPTIONS)
def test_a_wrong_context_or_store_is_refused(made: Callable[..., Any], option: str) -> None:
    with pytest.raises(DefinitionError, match=f"{option}= (must be a function|takes a store)"):
        made(Runner([look]), **{option: "ada"})


@pytest.mark.parametrize("theirs", [None, look, "look", [look], [None]])
def test_a_wrong_tool_is_refused(theirs: object) -> None:
    with pytest.raises(DefinitionError):
        taken_in(theirs)
