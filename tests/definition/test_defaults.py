"""Each call has its own default, and a default that nobody could judge is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from ferrule import DefinitionError, Runner, Tool, ToolContext, ToolResult, tool


def run(one: Any, arguments: str = "{}", principal: str = "ada", **options: Any) -> ToolResult:
    made = one if isinstance(one, Tool) else tool(one)
    return asyncio.run(Runner([made], **options).run(made.name, arguments, ToolContext(principal=principal)))


class Also(BaseModel):
    names: list[str] = []


@dataclass(unsafe_hash=True)
class Held:
    names: list[str] = field(default_factory=list, hash=False)


class Level(Enum):
    LOW = "low"


def with_default(kind: Any, default: Any) -> Callable[..., list[str]]:
    def note(text: str, also: Any = default) -> list[str]:
        names: list[str] = also if isinstance(also, list) else also.names
        names.append(text)
        return names

    note.__annotations__["also"] = kind
    return note


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        (list[str], []),
        (Annotated[list[str], Field(max_length=5)], []),
        (list[str], Field(default=[])),
        (Also, Also()),
        (Held, Held()),
    ],
)
def test_a_mutable_default_is_not_shared_between_calls(kind: Any, default: Any) -> None:
    one = tool(with_default(kind, default))
    judged: list[Any] = []
    looking = one.replace(guards=[lambda call, context: judged.append(call.arguments["also"])])
    for made in (one, looking):
        assert run(made, '{"text": "from ada"}', "ada").output == ["from ada"]
        assert run(made, '{"text": "from eve"}', "eve").output == ["from eve"]
    assert judged[0] == judged[1] and "from" not in repr(judged)


CONSTANTS: dict[str, tuple[Any, Any]] = {
    "text": (str, "a"),
    "number": (float, 2),
    "bytes": (bytes, b"a"),
    "enum": (Level, Level.LOW),
    "date": (date, date(2026, 3, 1)),
    "decimal": (Decimal, Decimal("1.10")),
    "tuple": (tuple[int, Path], (1, Path("a"))),
    "frozenset": (frozenset[int], frozenset({1, 2})),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_default_reaches_the_handler(name: str) -> None:
    kind, default = CONSTANTS[name]
    got: list[Any] = []

    def take(value: Any = default) -> None:
        got.append(value)

    take.__annotations__["value"] = kind
    for options in ({}, {"guards": [lambda call, context: call.arguments and None]}):
        assert run(take, **options).success
    assert got == [default, default] and {type(one) for one in got} == {type(default)}


@pytest.mark.parametrize("default", [object(), print, b"\xff", {1, object()}])
def test_a_default_without_a_json_form_is_refused(default: Any) -> None:
    def find(text: str, limit: Any = default) -> bool:
        return limit is default

    with pytest.raises(DefinitionError, match=r"the default of 'limit'.* has no JSON form"):
        tool(find)
    assert run(tool(find, private=["limit"]), '{"text": "a"}').output is True


@pytest.mark.parametrize(
    ("kind", "default"),
    [(int, "3"), (Annotated[int, Field(ge=1)], 0), (Literal["a", "b"], "c"), (list[int], ["x"]), (Also, {"name": []})],
)
def test_a_default_that_does_not_fit_its_type_is_refused(kind: Any, default: Any) -> None:
    def find(limit: Any = default) -> None: ...

    find.__annotations__["limit"] = kind
    with pytest.raises(DefinitionError, match="the default of 'limit' does not fit its type: it "):
        tool(find)


def test_none_is_a_default_of_any_type() -> None:
    def find(limit: int = None, path: Path = None) -> str:  # type: ignore[assignment]  # noqa: RUF013
        return repr([limit, path])

    guards = [lambda call, context: call.arguments and None]
    assert run(find, guards=guards).output == run(find).output == "[None, None]"
