"""`Recorder` keeps the events of a runner, and says which tools were called."""

from __future__ import annotations

from datetime import date
from enum import Enum
from typing import Annotated, Any
from unittest.mock import ANY

import pytest
from pydantic import BaseModel, Field

from cast import ask_always
from ferrule import DefinitionError, Runner, allow, tool
from ferrule.approval import later
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
    with pytest.raises(DefinitionError, match=r"no tool 'delete_not'; did you mean 'delete_note'\?"):
        Recorder([delete_note]).assert_called("delete_not")


def test_a_failed_call_called_the_tool() -> None:
    @tool
    async def break_it(n: int) -> None:
        raise ValueError("no")

    recorder = recorded(("break_it", {"n": 1}), tools=[break_it])
    recorder.assert_called(break_it, n=1, times=1)
    assert "break_it(n=1) → failed: " in refusal(recorder.assert_not_called, break_it)


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


def test_arguments_are_compared_as_validated_and_of_a_name_as_in_events() -> None:
    calls = [("read_note", {"path": "a"}), ("read_note", {"path": "b", "lines": "7"})]
    sent, judged = recorded(*calls), recorded(*calls, guards=[look_at])
    for recorder in (sent, judged):
        recorder.assert_called(read_note, path="a", lines=200)
        recorder.assert_called(read_note, path="b", lines=7)
        recorder.assert_not_called(read_note, lines="7")
    sent.assert_not_called("read_note", lines=200)
    sent.assert_called("read_note", lines="7")
    judged.assert_called("read_note", lines=200)


def test_a_parameter_has_its_python_or_json_name() -> None:
    @tool
    async def look(from_: Annotated[str, Field(alias="from")] = "here") -> None: ...

    recorder = recorded(("look", {"from": "there"}), tools=[look])
    recorder.assert_called(look, from_="there")
    recorder.assert_called("look", {"from": "there"})


async def look(n: int) -> int:
    return n


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


@pytest.mark.parametrize("times", [0, True, "2"])
def test_a_wrong_number_of_times_is_refused(times: Any) -> None:
    with pytest.raises(DefinitionError, match=r"times is a whole number of at least 1, .* for none, assert_not_called"):
        Recorder().assert_called("look", times=times)
