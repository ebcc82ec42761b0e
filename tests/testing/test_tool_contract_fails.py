"""Each test of `ToolContract` fails for a tool that breaks what it is about, and passes for one that does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any
from unittest import SkipTest

import pytest
from pydantic import AfterValidator, BeforeValidator

from ferrule import DefinitionError, Tool, ToolContext, ToolError, tool
from ferrule.testing import CallArguments, ToolContract

RELEASED = threading.Event()
"""What the handlers wait for that do not hear that they are to end."""


def place_of(context: ToolContext[Any]) -> Path:
    return Path(str(context.working_directory), "lines.txt")


@tool(idempotent=True, parallel=True)
async def right(line: str, context: ToolContext[Any], seconds: int = 0) -> dict[str, str]:
    """Keep a line, once."""
    if line == "bad":
        raise ToolError("there is no line 'bad'; give another")
    if seconds:
        await asyncio.sleep(60)
    Path(str(context.working_directory), f"{abs(hash(line))}.txt").write_text(line)
    return {"kept": line}


@tool
async def looks_up(line: str) -> str:
    raise RuntimeError(f"there is no {line}")


@tool
async def validates_too_much(line: Annotated[str, AfterValidator(lambda line: line[: 1000 // (line != "bad")])]) -> str:
    """The schema says nothing of what its validator refuses."""
    return line


@tool
async def takes_anything(line: Annotated[str, BeforeValidator(str)]) -> str:
    return line


WRITTEN: list[str] = []


@tool
async def writes_while_it_validates(
    line: Annotated[str, AfterValidator(lambda line: WRITTEN.append(line) or line)],
) -> str:
    return line


@tool(read_only=True)
async def only_seems_to_read(line: str, context: ToolContext[Any]) -> str:
    place_of(context).write_text(line)
    return line


@tool(idempotent=True)
async def adds(line: str, context: ToolContext[Any]) -> str:
    with place_of(context).open("a") as file:
        file.write(line)
    return line


@tool(parallel=True)
async def reads_and_writes(line: str, context: ToolContext[Any]) -> str:
    file = place_of(context)
    count = int(file.read_text()) if file.exists() else 0
    await asyncio.sleep(0)
    file.write_text(str(count + 1))
    return line


@tool(parallel=True)
async def the_last_one_wins(line: str, context: ToolContext[Any]) -> str:
    place_of(context).write_text(line)
    return line


@tool
async def gives_another_type(line: str) -> int:
    return line  # type: ignore[return-value]


@tool
async def gives_what_is_no_json(line: str) -> Any:
    return {"line": object()}


@tool
async def gives_too_much(line: str) -> str:
    return line + "x" * 200_000


@tool
async def says_nothing(line: str) -> str:
    raise ToolError("")


@tool
async def says_too_much(line: str) -> str:
    raise ToolError("no" * 1000)


@tool
async def says_where_it_stood(line: str) -> str:
    raise ToolError(f"{object()!r} is no line")


@tool
async def fails_by_a_fault(line: str) -> str:
    raise RuntimeError("no")


@tool
async def never_fails(line: str) -> str:
    return line


@tool
def hears_nothing(line: str, seconds: int = 0) -> str:
    """It runs in a thread, which nobody can stop."""
    RELEASED.wait(seconds)
    return line


@tool
async def hears_no_cancellation(line: str, seconds: int = 0) -> str:
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        return "went on"
    return line


@tool
async def is_quick(line: str, seconds: int = 0) -> str:
    return line


class Contract(ToolContract):
    def __init__(self, tool: Tool) -> None:
        self.made = tool

    def tool(self) -> Tool:
        return self.made

    def world(self, folder: Path) -> Any:
        return super().world(folder), list(WRITTEN)

    def arguments(self) -> Iterable[CallArguments]:
        return [{"line": "one"}, {"line": "two"}, {"line": "three"}]

    def failing(self) -> Iterable[CallArguments]:
        return [{"line": "bad"}]

    def slow(self) -> CallArguments:
        return {"line": "one", "seconds": 60}


class BadContract(Contract):
    def arguments(self) -> Iterable[CallArguments]:
        return [{"line": "bad"}]


WRONG: list[tuple[str, Tool]] = [
    ("what_its_schema_takes_it_takes", looks_up),
    ("what_its_schema_takes_it_takes", validates_too_much),
    ("what_its_schema_does_not_take_runs_nothing", takes_anything),
    ("what_its_schema_does_not_take_runs_nothing", writes_while_it_validates),
    ("a_call_that_says_that_it_only_reads_changes_nothing", only_seems_to_read),
    ("a_call_that_says_that_it_is_idempotent_may_come_twice", adds),
    ("calls_that_may_run_side_by_side_leave_what_they_leave_one_after_the_other", reads_and_writes),
    ("calls_that_may_run_side_by_side_leave_what_they_leave_one_after_the_other", the_last_one_wins),
    ("its_outputs_fit", gives_another_type),
    ("its_outputs_fit", gives_what_is_no_json),
    ("its_outputs_fit", gives_too_much),
    ("its_errors_are_of_use", says_nothing),
    ("its_errors_are_of_use", says_too_much),
    ("its_errors_are_of_use", says_where_it_stood),
    ("its_errors_are_of_use", fails_by_a_fault),
    ("its_errors_are_of_use", never_fails),
    ("a_deadline_is_heard", hears_nothing),
    ("a_deadline_is_heard", is_quick),
    ("a_cancellation_is_heard", hears_nothing),
    ("a_cancellation_is_heard", hears_no_cancellation),
]


def test_every_test_of_the_contract_has_a_tool_that_fails_it() -> None:
    tests = {name.removeprefix("test_") for name in vars(ToolContract) if name.startswith("test_")}
    assert tests == {name for name, _ in WRONG}


@pytest.fixture
def _released() -> Iterable[None]:
    RELEASED.clear()
    yield
    RELEASED.set()


@pytest.mark.usefixtures("_released")
@pytest.mark.parametrize(("name", "broken"), WRONG, ids=lambda one: getattr(one, "name", one))
def test_a_tool_that_breaks_it_fails(name: str, broken: Tool) -> None:
    made = BadContract if broken is validates_too_much else Contract
    getattr(made(right), f"test_{name}")()
    contract = made(broken)
    contract.seconds = 0.2
    with pytest.raises(AssertionError):
        getattr(contract, f"test_{name}")()


def test_a_failure_says_which_arguments_and_what_was_seen() -> None:
    with pytest.raises(AssertionError, match=r"\{'line': 'one'\} \(ok: one\) made .*lines.txt"):
        Contract(only_seems_to_read).test_a_call_that_says_that_it_only_reads_changes_nothing()


def test_what_a_contract_needs_is_said() -> None:
    class Bare(ToolContract):
        def tool(self) -> Tool:
            return fails_by_a_fault

    with pytest.raises(DefinitionError, match=r"needs a method tool\(self\)"):
        ToolContract().test_its_outputs_fit()
    skips = {"its_outputs_fit": "arguments", "its_errors_are_of_use": "failing", "a_deadline_is_heard": "slow"}
    for name, hook in skips.items():
        with pytest.raises(SkipTest, match=f"give {hook}"):
            getattr(Bare(), f"test_{name}")()


def test_without_arguments_of_its_own_a_contract_tries_what_the_schema_takes_the_same_each_time() -> None:
    class Bare(ToolContract):
        def tool(self) -> Tool:
            return right

    made = [*Bare().arguments()]
    assert len(made) > 10
    assert made == [*Bare().arguments()]
    assert {frozenset(one) for one in made} == {frozenset({"line"}), frozenset({"line", "seconds"})}
