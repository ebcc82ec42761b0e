"""`Recorder` keeps the events of a runner, and says which tools were called."""

from __future__ import annotations

import asyncio
from datetime import date
from enum import Enum
from typing import Annotated, Any
from unittest.mock import ANY

import pytest
from pydantic import BaseModel, Field

from cast import ask_always
from ferrule import DefinitionError, Runner, allow, tool
from ferrule.approval import later
from ferrule.definition.tool import Tool
from ferrule.middleware import cache
from ferrule.testing import Recorder


@tool
async def delete_note(path: str, force: bool = False) -> str:
    return f"deleted {path}"


@tool
async def read_note(path: str, lines: int = 200) -> str:
    return path


def recorded(*calls: tuple[str, dict[str, Any]], tools: Any = (delete_note, read_note), **options: Any) -> Recorder:
    recorder = Recorder()
    runner = Runner(tools, observers=[recorder], **options)
    for name, arguments in calls:
        runner.run_sync(name, arguments)
    return recorder


def refusal(assertion: Any, *given: Any, **named: Any) -> str:
    """The text of the assertion that fails."""
    with pytest.raises(AssertionError) as caught:
        assertion(*given, **named)
    return str(caught.value)


def test_a_recorder_keeps_each_event_in_order() -> None:
    recorder = recorded(("read_note", {"path": "a"}), ("nothing", {}))
    assert [(event.kind, event.call.name) for event in recorder.events] == [
        ("tool:pre", "read_note"),
        ("tool:started", "read_note"),
        ("tool:post", "read_note"),
        ("tool:pre", "nothing"),
        ("tool:error", "nothing"),
    ]


@pytest.mark.parametrize("which", [delete_note, "delete_note"])
def test_assertions_compare_the_named_arguments(which: Any) -> None:
    recorder = recorded(("delete_note", {"path": "a"}), ("delete_note", {"path": "b", "force": True}))
    recorder.assert_called(which)
    recorder.assert_called(which, path="a")
    recorder.assert_called(which, {"path": "b"}, force=True)
    recorder.assert_called(which, times=2)
    recorder.assert_called(which, times=1, path="b")
    recorder.assert_not_called(which, path="c")
    recorder.assert_not_called(which, path="a", force=True)
    recorder.assert_not_called(read_note)
    for wrong in ({"path": "c"}, {"path": "a", "force": True}, {"times": 1}, {"times": 3}, {"times": 2, "path": "a"}):
        refusal(recorder.assert_called, which, **wrong)
    for wrong in ({}, {"path": "a"}, {"force": True}):
        refusal(recorder.assert_not_called, which, **wrong)


def test_a_recorder_without_events_hints_at_observers() -> None:
    assert "is the recorder among the observers" in refusal(Recorder().assert_called, "delete_note")


def test_assert_not_called_refuses_an_unknown_name() -> None:
    with pytest.raises(DefinitionError, match=r"give the tool itself, or make it Recorder\(tools\)"):
        Recorder().assert_not_called("delete_note")
    seen = recorded(("delete_note", {"path": "a"}))
    with pytest.raises(DefinitionError, match="the nearest one that was called is 'delete_note'"):
        seen.assert_not_called("delete_notes")
    seen.assert_not_called("delete_note", path="b")
    seen.assert_not_called(read_note)


def test_a_failed_or_stopped_call_called_the_tool() -> None:
    @tool
    async def break_it(n: int) -> None:
        raise ValueError("no")

    @tool(timeout=0.01)
    async def hang() -> None:
        await asyncio.get_running_loop().create_future()

    recorder = recorded(("break_it", {"n": 1}), ("hang", {}), tools=[break_it, hang])
    recorder.assert_called(break_it, n=1, times=1)
    recorder.assert_called(hang, times=1)
    assert "break_it(n=1) → failed: " in refusal(recorder.assert_not_called, break_it)
    assert "→ timeout: " in refusal(recorder.assert_not_called, hang)


def test_a_cached_answer_calls_nothing() -> None:
    @tool(read_only=True)
    async def look(n: int) -> int:
        return n

    recorder = recorded(*[("look", {"n": 1})] * 3, tools=[look], inside=[cache(60)])
    recorder.assert_called(look, times=1, n=1)
    assert refusal(recorder.assert_called, look, times=2).count("→ ok, not run") == 2


async def test_a_suspended_call_counts_when_it_resumes() -> None:
    recorder = Recorder()
    runner = Runner([delete_note], guards=[ask_always], approve=later, observers=[recorder])
    waiting = await runner.run("delete_note", {"path": "a"})
    recorder.assert_not_called(delete_note)
    assert "→ suspended, not run" in refusal(recorder.assert_called, delete_note)
    await runner.resume(waiting.record(), allow())
    recorder.assert_called(delete_note, times=1, path="a")
    assert len(refusal(recorder.assert_called, delete_note, times=2).splitlines()) == 2


async def test_a_running_call_fails_both_assertions() -> None:
    recorder = Recorder()

    @tool
    async def look(n: int) -> None:
        refusal(recorder.assert_called, "look", n=1)
        assert "look(n=1) → not ended yet" in refusal(recorder.assert_not_called, "look")
        recorder.assert_not_called("look", n=2)

    await Runner([look], observers=[recorder]).run("look", {"n": 1})
    recorder.assert_called(look, times=1, n=1)


class Colour(Enum):
    RED = "red"


class Item(BaseModel):
    name: str
    tags: list[str] = []


@tool
async def book(on: date, item: Item, colour: Colour = Colour.RED, price: float = 0.1, times: int = 1) -> None:
    """Book something."""


@pytest.mark.parametrize(
    "named",
    [
        {"on": date(2026, 5, 6)},
        {"on": "2026-05-06"},
        {"item": Item(name="x", tags=["a"])},
        {"item": {"name": ANY, "tags": ["a"]}},
        {"colour": Colour.RED, "price": 3},
        {"price": pytest.approx(2.9999999)},
        {"on": ANY},
    ],
)
def test_python_values_are_compared_as_json(named: Any) -> None:
    arguments = {"on": "2026-05-06", "item": {"name": "x", "tags": ["a"]}, "price": 3.0}
    recorder = recorded(("book", arguments), tools=[book])
    recorder.assert_called(book, **named)
    other = recorded(("book", {"on": "2027-01-01", "item": {"name": "x"}}), tools=[book])
    if named != {"on": ANY}:
        refusal(other.assert_called, book, **named)


def look_at(call: Any, context: Any) -> None:
    """A guard that allows."""
    assert call.arguments


@pytest.mark.parametrize("guards", [[], [look_at]])
def test_arguments_of_a_tool_are_compared_as_validated(guards: Any) -> None:
    recorder = recorded(("read_note", {"path": "a"}), ("read_note", {"path": "b", "lines": "7"}), guards=guards)
    recorder.assert_called(read_note, path="a", lines=200)
    recorder.assert_called(read_note, path="b", lines=7)
    recorder.assert_not_called(read_note, lines="7")


def test_arguments_of_a_name_are_compared_as_in_events() -> None:
    calls = [("read_note", {"path": "a"}), ("read_note", {"path": "b", "lines": "7"})]
    sent, judged = recorded(*calls), recorded(*calls, guards=[look_at])
    sent.assert_not_called("read_note", lines=200)
    sent.assert_called("read_note", lines="7")
    judged.assert_called("read_note", lines=200)
    judged.assert_called("read_note", lines=7)


def test_a_parameter_has_its_python_or_json_name() -> None:
    @tool
    async def look(from_: Annotated[str, Field(alias="from")] = "here") -> None: ...

    recorder = recorded(("look", {"from": "there"}), tools=[look])
    recorder.assert_called(look, from_="there")
    recorder.assert_called("look", {"from": "there"})


async def look(n: int) -> int:
    return n


@pytest.mark.parametrize("form", [look, Tool("look", lambda payload: 1, input_schema={"type": "object"})])
def test_a_function_or_a_tool_may_be_given(form: Any) -> None:
    recorded(("look", {"n": 1}), tools=[form]).assert_called(form, n=1)


@pytest.mark.parametrize(
    ("given", "named", "why"),
    [
        ((7,), {}, "7 is no tool"),
        ((delete_note, 2), {}, r"arguments are a dict, or keywords, not 2; how often goes into times="),
        ((delete_note,), {"pat": "a"}, r"'delete_note' has no parameter 'pat'; did you mean 'path'\?"),
        ((delete_note.bind(force=True),), {"force": True}, "'force' of 'delete_note' is bound or private"),
    ],
)
def test_an_impossible_assertion_is_an_error_with_the_remedy(given: Any, named: Any, why: str) -> None:
    recorder = Recorder()
    for assertion in (recorder.assert_called, recorder.assert_not_called):
        with pytest.raises(DefinitionError, match=why):
            assertion(*given, **named)


async def test_a_recorder_with_tools_refuses_an_unknown_name() -> None:
    recorder = Recorder([delete_note, read_note])
    await Runner([delete_note, read_note], observers=[recorder]).run("delete_note", {"path": "a"})
    for assertion in (recorder.assert_called, recorder.assert_not_called):
        with pytest.raises(DefinitionError, match=r"no tool 'delete_not'; did you mean 'delete_note'\?"):
            assertion("delete_not")
    recorder.assert_called("delete_note", path="a", force=False)  # which was left out
    recorder.assert_not_called("read_note")
    with pytest.raises(DefinitionError, match="there is no tool 'read_note'"):
        Recorder([]).assert_not_called("read_note")


@pytest.mark.parametrize("times", [0, -1, 1.0, True, "2"])
def test_a_wrong_number_of_times_is_refused(times: Any) -> None:
    with pytest.raises(DefinitionError, match=r"times is a whole number of at least 1, .* for none, assert_not_called"):
        Recorder().assert_called("look", times=times)
