"""`before` and `after` call a function around a call, with the context on request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from ferrule.definition.decorator import tool
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError
from ferrule.middleware import after, before
from ferrule.runner import Runner
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult

RAN: list[int] = []


@tool
def double(n: int = 0) -> int:
    RAN.append(n)
    return n * 2


def run(arguments: Any, **middleware: Any) -> ToolResult:
    RAN.clear()
    return asyncio.run(Runner(Toolset([double]), **middleware).run("double", arguments))


@pytest.mark.parametrize("raw", ["{'n': 5", '{"n": ', "[1]", "no json"])
def test_a_malformed_call_stays_malformed(raw: str) -> None:
    hooks: list[Callable[[Any], Any]] = [lambda arguments: {"n": 1}, lambda arguments: {**arguments}]
    for hook in hooks:
        result = run(raw, around=[before(hook)])
        assert (result.status, RAN) == ("invalid", [])


@pytest.mark.parametrize("raw", ["", "  ", None, {"n": 5}, '{"n": 5}', '```json\n{"n": 5}\n```'])
def test_before_changes_well_formed_or_missing_arguments(raw: Any) -> None:
    assert run(raw, around=[before(lambda arguments: {"n": 1})]).output == 2


def optional_other(arguments: Any, extra: int = 5) -> dict[str, int]:
    assert extra == 5
    return {"n": 1}


def optional_context(arguments: Any, context: Any = None) -> dict[str, int]:
    assert isinstance(context, ToolContext)
    return {"n": 1}


def required_other(arguments: Any, given: Any) -> dict[str, int]:
    return optional_context(arguments, given)


async def awaited(arguments: Any, context: Any) -> dict[str, int]:
    return optional_context(arguments, context)


def whatever(*arguments: Any) -> dict[str, int]:
    assert len(arguments) == 1
    return {"n": 1}


@pytest.mark.parametrize(
    "hook",
    [
        *(optional_other, optional_context, required_other),
        *(whatever, awaited, partial(optional_other, extra=5)),
    ],
)
def test_a_hook_that_asks_for_the_context_gets_it(hook: Any) -> None:
    result = run({"n": 7}, around=[before(hook)])
    assert result.output == 2, result.error
    result = run({"n": 7}, inside=[after(hook)])
    assert result.output == {"n": 1}, result.error


@pytest.mark.parametrize("wrong", [str, int, 5, "text", lambda: None, lambda a, b, c: None, dict, lambda *, a: None])
@pytest.mark.parametrize("of", [before, after])
def test_a_hook_must_take_one_or_two_arguments(of: Any, wrong: Any) -> None:
    with pytest.raises(DefinitionError):
        of(wrong)
