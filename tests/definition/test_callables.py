"""Unusual callables and unresolvable annotations, on every Python."""

from __future__ import annotations

import asyncio
import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

import ferrule
from ferrule import Runner, Tool, ToolCall, ToolResult, Toolset, allow, tool
from ferrule.errors import DefinitionError
from ferrule.middleware import after, before


async def scale(a: int, by: int = 2) -> int:
    """Scale a number."""
    return a * by


class Scales:
    async def scale(self, a: int, by: int = 2) -> int:
        """Scale a number."""
        return a * by


class Decorated:
    """What many decorators make: a callable object that binds as a function does."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    async def __call__(self, *positional: Any, **named: Any) -> Any:
        return await self.function(*positional, **named)


def outcome(made: Tool, arguments: dict[str, Any]) -> ToolResult:
    return asyncio.run(Runner([made]).run(made.name, arguments))


@pytest.mark.parametrize(
    "make",
    [
        lambda: types.MethodType(functools.partial(Scales.scale), Scales()),  # from 3.14 on, a partial in a class body
        lambda: Decorated(scale),
        lambda: types.MethodType(Decorated(Scales.scale), Scales()),
        lambda: functools.partial(Decorated(scale)),
    ],
)
def test_every_kind_of_callable_makes_the_same_tool(make: Callable[[], Any]) -> None:
    made = tool(make(), name="scale")
    assert made.input_schema == tool(scale).input_schema and made.description == "Scale a number."
    assert made.handling.is_async
    assert outcome(made, {"a": "3"}).output == 6


@pytest.mark.parametrize("function", [functools.partial(scale, by=5), functools.partial(Decorated(scale), by=5)])
def test_a_filled_argument_of_a_partial_is_no_parameter(function: Callable[..., Any]) -> None:
    bound = types.MethodType(functools.partial(Scales.scale, by=5), Scales())
    for made in (tool(function, name="scale"), tool(bound, name="scale")):
        assert list(made.input_schema["properties"]) == ["a"]
        assert outcome(made, {"a": 3}).output == 15
        assert outcome(made, {"a": 3, "by": 7}).status == "invalid"


@pytest.mark.parametrize(
    "taken_off", [functools.lru_cache(Scales.scale), functools.partial(Scales.scale, by=5), Decorated(Scales.scale)]
)
def test_an_unbound_method_is_refused(taken_off: Any) -> None:
    with pytest.raises(DefinitionError, match="nobody fills the first parameter"):
        Toolset([tool(taken_off, name="scale")])


# Since Python 3.14 an annotation without quotes may name what is not there, and is evaluated when somebody reads it.


def written(source: str, **names: Any) -> Any:
    """The function `f` of a module whose annotations are evaluated as late as this Python can."""
    late = "" if sys.version_info >= (3, 14) else "from __future__ import annotations\n"
    module: dict[str, Any] = {"__name__": "written", "ferrule": ferrule, **names}
    exec(compile(late + source, "written.py", "exec", dont_inherit=True), module)
    return module["f"]


@pytest.mark.parametrize(
    ("hint", "problem"),
    [
        ("'list[Missing] | None'", "name 'Missing' is not defined"),
        ("ferrule.Missing", "module 'ferrule' has no attribute 'Missing'"),
    ],
)
def test_an_unresolvable_annotation_is_refused(hint: str, problem: str) -> None:
    function = written(f"async def f(right: int, amount: {hint}) -> int: return 1")
    with pytest.raises(DefinitionError, match=f"'amount' cannot be resolved: .*{problem}"):
        tool(function)


def test_an_unresolvable_return_annotation_is_ignored() -> None:
    function = written("async def f(a: int, context: ferrule.ToolContext) -> Missing: return a")
    made = tool(function)
    assert made.input_schema["properties"] == {"a": {"type": "integer"}}
    assert outcome(made, {"a": 3}).output == 3


async def test_unneeded_annotations_are_not_evaluated() -> None:
    guard = written("def f(call: Missing, context: Missing) -> Missing: return allow()", allow=allow)
    trait = written("def f(arguments: Missing) -> Missing: return True")
    change = written("def f(call: Missing, context: Missing) -> Missing: return None")
    look = written("def f(result: Missing) -> Missing: return None")
    round_it = written("async def f(call: Missing, context: Missing, next: Missing): return await next(call, context)")
    made = tool(scale, read_only=trait)
    runner = Runner([made], guards=[guard], around=[before(change), after(look)], inside=[round_it])
    assert (await runner.run(ToolCall("c1", "scale", {"a": 3}))).output == 6
