"""Callables that are no plain functions, and annotations that cannot be evaluated, on every Python."""

from __future__ import annotations

import asyncio
import functools
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
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
        lambda: scale,
        lambda: Scales().scale,
        lambda: functools.partial(scale),
        lambda: types.MethodType(functools.partial(Scales.scale), Scales()),  # from 3.14 on, a partial in a class body
        lambda: Decorated(scale),
        lambda: types.MethodType(Decorated(Scales.scale), Scales()),
        lambda: functools.partial(Decorated(scale)),
    ],
)
def test_a_callable_of_any_kind_is_the_tool_that_its_function_is(make: Callable[[], Any]) -> None:
    made = tool(make(), name="scale")
    assert made.input_schema == tool(scale).input_schema and made.description == "Scale a number."
    assert made.handling.is_async
    assert outcome(made, {"a": "3"}).output == 6


@pytest.mark.parametrize("function", [functools.partial(scale, by=5), functools.partial(Decorated(scale), by=5)])
def test_what_a_partial_fills_is_no_parameter(function: Callable[..., Any]) -> None:
    bound = types.MethodType(functools.partial(Scales.scale, by=5), Scales())
    for made in (tool(function, name="scale"), tool(bound, name="scale")):
        assert list(made.input_schema["properties"]) == ["a"]
        assert outcome(made, {"a": 3}).output == 15
        assert outcome(made, {"a": 3, "by": 7}).status == "invalid"


def test_a_cached_function_is_a_tool() -> None:
    @tool
    @functools.lru_cache
    def double(a: int) -> int:
        """Double a number."""
        return a * 2

    assert double.description == "Double a number." and double.input_schema["properties"]["a"] == {"type": "integer"}
    assert outcome(double, {"a": 3}).output == 6


@pytest.mark.parametrize(
    "taken_off",
    [
        functools.lru_cache(Scales.scale),
        functools.partial(Scales.scale, by=5),
        Decorated(Scales.scale),
    ],
)
def test_a_method_that_was_taken_off_its_class_is_refused_however_it_is_wrapped(taken_off: Any) -> None:
    with pytest.raises(DefinitionError, match="nobody fills the first parameter"):
        Toolset([tool(taken_off, name="scale")])


def test_a_tool_of_a_wrapped_method_is_bound_to_its_instance() -> None:
    class Box:
        by = 4

        @tool
        @Decorated
        async def scale(self, a: int) -> int:
            """Scale a number."""
            return a * self.by

    assert outcome(Box().scale, {"a": 3}).output == 12


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
        ("Missing", "name 'Missing' is not defined"),
        ("'Missing'", "name 'Missing' is not defined"),
        ("list[Missing] | None", "name 'Missing' is not defined"),
        ("ferrule.Missing", "module 'ferrule' has no attribute 'Missing'"),
    ],
)
def test_an_annotation_that_cannot_be_evaluated_is_refused_with_its_parameter(hint: str, problem: str) -> None:
    function = written(f"async def f(right: int, amount: {hint}) -> int: return 1")
    with pytest.raises(DefinitionError, match=f"'amount' cannot be resolved: .*{problem}"):
        tool(function)


def test_an_annotation_that_no_python_can_read_is_refused_with_its_error() -> None:
    with pytest.raises(DefinitionError, match="unsupported operand"):
        tool(written("async def f(amount: 'int' | None) -> int: return 1"))


def test_a_return_annotation_for_type_checkers_alone_leaves_the_parameters_as_they_are() -> None:
    function = written("async def f(a: int, context: ferrule.ToolContext) -> Missing: return a")
    made = tool(function)
    assert made.input_schema["properties"] == {"a": {"type": "integer"}}
    assert outcome(made, {"a": 3}).output == 3


async def test_where_no_annotation_is_needed_none_has_to_be_evaluated() -> None:
    guard = written("def f(call: Missing, context: Missing) -> Missing: return allow()", allow=allow)
    trait = written("def f(arguments: Missing) -> Missing: return True")
    change = written("def f(call: Missing, context: Missing) -> Missing: return None")
    look = written("def f(result: Missing) -> Missing: return None")
    round_it = written("async def f(call: Missing, context: Missing, next: Missing): return await next(call, context)")
    made = tool(scale, read_only=trait)
    runner = Runner([made], guards=[guard], around=[before(change), after(look)], inside=[round_it])
    assert (await runner.run(ToolCall("c1", "scale", {"a": 3}))).output == 6


def test_signatures_are_read_in_one_place() -> None:
    """Elsewhere somebody would forget that reading one may evaluate annotations."""
    package = Path(ferrule.__file__).parent
    readers = {
        file.name
        for file in package.rglob("*.py")
        if re.search(r"inspect\.signature\(|[( ]signature\(", file.read_text())
    }
    assert readers == {"signature.py"}
