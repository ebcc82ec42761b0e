"""Each test of `ToolContract` passes for a right tool and fails for a wrong one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any
from unittest import SkipTest

import pytest
from kits import expect_kit_failure, run_kit_test
from pydantic import AfterValidator, BeforeValidator

from ferrule import DefinitionError, Tool, ToolContext, ToolError, tool
from ferrule.testing import CallArguments, ToolContract

RELEASED = threading.Event()
"""Ends the handlers that do not hear their cancellation."""


def place_of(context: ToolContext[Any]) -> Path:
    return Path(str(context.working_directory), "lines.txt")


@tool(idempotent=True, parallel=True)
async def right(line: str, context: ToolContext[Any], seconds: int = 0) -> dict[str, str]:
    if line == "bad":
        raise ToolError("there is no line 'bad'; give another")
    if seconds:
        await asyncio.sleep(60)
    Path(str(context.working_directory), f"{abs(hash(line))}.txt").write_text(line)
    return {"kept": line}


def giving(make: Callable[[str], Any], output: Any = str) -> Tool:
    async def give(line: str) -> Any:
        return make(line)

    give.__annotations__["return"] = output
    return tool(give)


def raising(error: Exception) -> Tool:
    def fail(line: str) -> Any:
        raise error

    return giving(fail)


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


@tool
def hears_nothing(line: str, seconds: int = 0) -> str:
    RELEASED.wait(seconds)
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


LEFT: set[asyncio.Task[None]] = set()


@tool
async def leaves_a_task(line: str, seconds: int = 0) -> str:
    task = asyncio.ensure_future(asyncio.sleep(seconds))
    LEFT.add(task)
    await asyncio.shield(task)
    return line


@tool(private=("pin",))
async def never_runs(line: str, pin: str) -> str:
    return line


WRONG: list[tuple[str, Tool, str]] = [
    ("arguments_that_fit_the_schema_are_accepted", raising(RuntimeError("there is none")), "end as failed"),
    ("arguments_that_fit_the_schema_are_accepted", never_runs, "none of these calls ran"),
    ("a_call_stops_at_its_deadline", leaves_a_task, "its work goes on"),
    ("a_cancelled_call_stops", leaves_a_task, "its work goes on"),
    ("arguments_that_do_not_fit_the_schema_run_nothing", takes_anything, "and are ok"),
    ("arguments_that_do_not_fit_the_schema_run_nothing", writes_while_it_validates, "changed what world() gives"),
    ("a_read_only_call_changes_nothing", only_seems_to_read, "(ok: one) made"),
    ("an_idempotent_call_can_be_repeated", adds, "twice (ok: one) made"),
    ("parallel_calls_have_the_same_effect_as_sequential_ones", reads_and_writes, "side by side they leave"),
    ("outputs_fit_the_output_schema", giving(str, output=int), "was run, but "),
    ("outputs_fit_the_output_schema", giving(lambda line: {"line": object()}, output=Any), "give an object, not data"),
    ("outputs_fit_the_output_schema", giving(lambda line: line + "x" * 200_000), "max_output cuts them"),
    ("errors_are_useful_to_a_model", raising(ToolError("")), "the model reads"),
    ("errors_are_useful_to_a_model", raising(ToolError("no" * 1000)), "2000 characters, at most 500"),
    ("errors_are_useful_to_a_model", raising(ToolError(f"{object()!r} is no line")), "a model cannot use"),
    ("errors_are_useful_to_a_model", giving(str), "are to fail, and give 'bad'"),
    ("a_call_stops_at_its_deadline", hears_nothing, "after its deadline"),
    ("a_cancelled_call_stops", hears_nothing, "after its cancellation"),
]
"""A test of the kit, a wrong tool, and the text of the failure."""


def test_each_test_of_the_contract_has_a_tool_that_fails() -> None:
    tests = {name.removeprefix("test_") for name in vars(ToolContract) if name.startswith("test_")}
    assert tests == {name for name, _, _ in WRONG}


@pytest.fixture
def _released() -> Iterable[None]:
    RELEASED.clear()
    yield
    RELEASED.set()


@pytest.mark.usefixtures("_released")
@pytest.mark.parametrize(("name", "broken", "said"), WRONG, ids=lambda one: getattr(one, "name", one))
def test_a_wrong_tool_fails(name: str, broken: Tool, said: str) -> None:
    run_kit_test(Contract(right), name)
    contract = Contract(broken)
    contract.seconds = 1.0
    expect_kit_failure(contract, name, said)


def test_a_hanging_call_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    @tool(read_only=True)
    async def hangs_on_two(line: str) -> str:
        if line == "two":
            await asyncio.Event().wait()
        return line

    monkeypatch.setattr("ferrule.testing.bounded.SECONDS", 5.0)
    with pytest.raises(AssertionError, match=r"not ended after 5 s: \{'line': 'two'\} did not end"):
        Contract(hangs_on_two).test_outputs_fit_the_output_schema()


def test_a_missing_hook_is_named() -> None:
    class Bare(ToolContract):
        def tool(self) -> Tool:
            return raising(RuntimeError("no"))

    with pytest.raises(DefinitionError, match=r"needs a method tool\(self\)"):
        ToolContract().test_outputs_fit_the_output_schema()
    skips = {
        "outputs_fit_the_output_schema": "arguments",
        "errors_are_useful_to_a_model": "failing",
        "a_call_stops_at_its_deadline": "slow",
    }
    for name, hook in skips.items():
        with pytest.raises(SkipTest, match=f"give {hook}"):
            getattr(Bare(), f"test_{name}")()


def test_default_arguments_come_from_the_schema_deterministically() -> None:
    class Bare(ToolContract):
        def tool(self) -> Tool:
            return right

    made = [*Bare().arguments()]
    assert len(made) > 10
    assert made == [*Bare().arguments()]
    assert {frozenset(one) for one in made} == {frozenset({"line"}), frozenset({"line", "seconds"})}
