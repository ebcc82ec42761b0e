"""`Recorder` keeps the events of a runner, and says which tools were called."""

from __future__ import annotations

import asyncio
from datetime import date
from enum import Enum
from typing import Annotated, Any
from unittest.mock import ANY

import pytest
from pydantic import BaseModel, Field, StringConstraints

from ferrule import DefinitionError, Event, Runner, ToolCall, ToolContext, ToolResult, allow, ask, deny, tool
from ferrule.definition.tool import Tool
from ferrule.middleware import cache, retry
from ferrule.testing import ManualClock, Recorder


@tool
async def delete_note(path: str, force: bool = False) -> str:
    """Delete a note."""
    return f"deleted {path}"


@tool
async def read_note(path: str, lines: int = 200) -> str:
    """Read a note."""
    return path


def recorded(*calls: tuple[str, dict[str, Any]], tools: Any = (delete_note, read_note), **options: Any) -> Recorder:
    """The recorder of a runner, after these calls."""
    recorder = Recorder()

    async def all_calls() -> None:
        runner = Runner(tools, observers=[recorder], **options)
        for name, arguments in calls:
            await runner.run(name, arguments)

    asyncio.run(all_calls())
    return recorder


def refusal(assertion: Any, *given: Any, **named: Any) -> str:
    """The text of the assertion that fails."""
    with pytest.raises(AssertionError) as caught:
        assertion(*given, **named)
    return str(caught.value)


def test_it_keeps_every_event_in_order() -> None:
    recorder = recorded(("read_note", {"path": "a"}), ("nothing", {}))
    assert [(event.kind, event.call.name) for event in recorder.events] == [
        ("tool:pre", "read_note"),
        ("tool:started", "read_note"),
        ("tool:post", "read_note"),
        ("tool:pre", "nothing"),
        ("tool:error", "nothing"),
    ]


@pytest.mark.parametrize("which", [delete_note, "delete_note"])
def test_a_tool_that_was_called_was_called_with_the_arguments_that_are_named(which: Any) -> None:
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


def test_a_failure_shows_what_was_called_instead_the_nearest_first() -> None:
    calls = [("read_note", {"path": "a"}), ("delete_note", {"path": "b"}), ("delete_note", {"path": "a"})]
    recorder = recorded(*calls, ("delete_note", {"path": 7}))
    text = refusal(recorder.assert_called, delete_note, path="a", force=True)
    first, *lines = text.splitlines()
    assert first == "delete_note(path='a', force=True) was not called. The calls that there were, the nearest first:"
    assert lines[0] == "  delete_note(path='a', force=False) → ok"
    assert lines[1] == "  delete_note(path='b', force=False) → ok"
    assert lines[2].startswith("  delete_note(path=7) → invalid, not run: ") and "'path'" in lines[2]
    assert lines[3] == "  read_note(path='a') → ok"


def test_a_failure_to_count_says_how_often_it_was() -> None:
    recorder = recorded(("read_note", {"path": "b"}), ("delete_note", {"path": "a"}))
    text = refusal(recorder.assert_called, "delete_note", times=2)
    assert text.startswith("delete_note() was called once, not 2 times.")
    assert text.splitlines()[1].startswith("  delete_note(path='a'")
    recorder = recorded(*[("read_note", {"path": "b"})] * 3)
    assert "was called 3 times, not once." in refusal(recorder.assert_called, "read_note", times=1)


def test_a_tool_that_was_called_against_its_will_is_shown_with_its_calls() -> None:
    recorder = recorded(("delete_note", {"path": "a"}), ("read_note", {"path": "a"}), ("delete_note", {"path": "b"}))
    assert refusal(recorder.assert_not_called, delete_note).splitlines() == [
        "delete_note() was called:",
        "  delete_note(path='a', force=False) → ok",
        "  delete_note(path='b', force=False) → ok",
    ]


def test_a_name_that_is_near_comes_before_one_that_is_not() -> None:
    recorder = recorded(("delete_note", {"path": "a"}), ("read_note", {"path": "a"}))
    names = [line.split("(")[0].strip() for line in refusal(recorder.assert_called, "read_notes").splitlines()[1:]]
    assert names == ["read_note", "delete_note"]


def test_arguments_that_look_most_alike_come_first() -> None:
    recorder = recorded(*[("read_note", {"path": path}) for path in ("zzz", "notes/today.txt", "x")])
    lines = refusal(recorder.assert_called, read_note, path="notes/toady.txt").splitlines()
    assert lines[1] == "  read_note(path='notes/today.txt', lines=200) → ok"


def test_many_calls_and_long_values_are_shown_in_short() -> None:
    recorder = recorded(*[("read_note", {"path": "x" * 5000})] * 14)
    lines = refusal(recorder.assert_called, delete_note).splitlines()
    assert len(lines) == 12 and lines[-1] == "  and 4 more" and max(map(len, lines)) < 400


def test_a_recorder_that_saw_nothing_asks_whether_it_is_an_observer() -> None:
    assert "is the recorder among the observers" in refusal(Recorder().assert_called, "delete_note")


def test_a_name_that_no_tool_has_does_not_pass_for_one_that_was_not_called() -> None:
    with pytest.raises(DefinitionError, match=r"give the tool itself, or make it Recorder\(tools\)"):
        Recorder().assert_not_called("delete_note")
    seen = recorded(("delete_note", {"path": "a"}))
    with pytest.raises(DefinitionError, match="the nearest one that was called is 'delete_note'"):
        seen.assert_not_called("delete_notes")
    seen.assert_not_called("delete_note", path="b")
    seen.assert_not_called(read_note)


@pytest.mark.parametrize("assertion", [Recorder.assert_called, Recorder.assert_not_called])
def test_a_tool_that_is_none_of_those_the_recorder_knows_is_an_error(assertion: Any) -> None:
    known = Recorder([delete_note])
    with pytest.raises(DefinitionError, match="there is no tool 'read_note'"):
        assertion(known, read_note)


# -- what counts as called --------------------------------------------------------------------------------------------


def test_a_call_that_was_refused_did_not_call_the_tool() -> None:
    def never(call: Any, context: Any) -> Any:
        return deny("not today")

    recorder = recorded(("delete_note", {"path": "a"}), guards=[never])
    recorder.assert_not_called(delete_note)
    text = refusal(recorder.assert_called, delete_note, path="a")
    assert "delete_note(path='a', force=False) → denied, not run: 'Denied: not today. Nothing was run.'" in text


def test_a_call_that_failed_called_the_tool() -> None:
    @tool
    async def break_it(n: int) -> None:
        raise ValueError("no")

    recorder = recorded(("break_it", {"n": 1}), tools=[break_it])
    recorder.assert_called(break_it, n=1)
    assert "break_it(n=1) → failed: " in refusal(recorder.assert_not_called, break_it)


def test_a_call_that_was_stopped_called_the_tool() -> None:
    @tool(timeout=0.01)
    async def hang() -> None:
        await asyncio.get_running_loop().create_future()

    recorder = recorded(("hang", {}), tools=[hang])
    recorder.assert_called(hang, times=1)
    assert "→ timeout: " in refusal(recorder.assert_not_called, hang)


def test_an_answer_from_a_cache_calls_nothing() -> None:
    @tool(read_only=True)
    async def look(n: int) -> int:
        return n

    recorder = recorded(*[("look", {"n": 1})] * 3, tools=[look], inside=[cache(60)])
    recorder.assert_called(look, times=1, n=1)
    assert refusal(recorder.assert_called, look, times=2).count("→ ok, not run") == 2


def test_a_call_that_was_tried_again_called_the_tool_once() -> None:
    tried: list[int] = []

    @tool(read_only=True, idempotent=True)
    async def flaky() -> int:
        tried.append(1)
        if len(tried) < 3:
            raise ConnectionError("gone")
        return 1

    clock = ManualClock()
    recorder = Recorder()

    async def go() -> ToolResult:
        runner = Runner([flaky], inside=[retry(clock=clock)], observers=[recorder])
        call = asyncio.create_task(runner.run("flaky"))
        await clock.advance(600)
        return await call

    assert asyncio.run(go()).success and len(tried) == 3
    recorder.assert_called(flaky, times=1)


def test_a_call_that_was_put_off_calls_the_tool_when_it_is_taken_up() -> None:
    recorder = Recorder()

    async def go() -> None:
        runner = Runner(
            [delete_note],
            guards=[lambda call, context: ask("really?")],
            approve=lambda call, decision, context: decision,
            observers=[recorder],
        )
        waiting = await runner.run("delete_note", {"path": "a"})
        recorder.assert_not_called(delete_note)
        assert "→ suspended, not run" in refusal(recorder.assert_called, delete_note)
        await runner.resume(waiting.record(), allow())

    asyncio.run(go())
    recorder.assert_called(delete_note, times=1, path="a")
    assert len(refusal(recorder.assert_called, delete_note, times=2).splitlines()) == 2


async def test_a_call_that_has_not_ended_is_neither_called_nor_not_called() -> None:
    recorder = Recorder()

    @tool
    async def look(n: int) -> None:
        refusal(recorder.assert_called, "look", n=1)
        assert "look(n=1) → not ended yet" in refusal(recorder.assert_not_called, "look")
        recorder.assert_not_called("look", n=2)

    await Runner([look], observers=[recorder]).run("look", {"n": 1})
    recorder.assert_called(look, times=1, n=1)


def test_calls_of_one_id_are_told_apart() -> None:
    recorder = Recorder()

    async def go() -> None:
        runner = Runner([read_note, delete_note], observers=[recorder])
        await runner.run_all([ToolCall("call_1", "read_note", {"path": "a"}), ToolCall("call_1", "delete_note", {})])
        await runner.run(ToolCall("call_1", "delete_note", {"path": "b"}))

    asyncio.run(go())
    recorder.assert_called(read_note, times=1, path="a")
    recorder.assert_called(delete_note, times=1, path="b")


def test_a_call_whose_id_another_one_has_meanwhile_keeps_its_own_end() -> None:
    recorder = Recorder()
    one, other = (ToolCall("call_1", name, {"n": n}) for n, name in enumerate(("look", "note")))
    recorder(Event("tool:pre", one))
    recorder(Event("tool:pre", other))
    recorder(Event("tool:error", other, ToolResult(error="taken", status="invalid", executed=False)))
    recorder(Event("tool:post", one, ToolResult("seen")))
    recorder.assert_called("look", times=1, n=0)
    recorder.assert_not_called("note")


def test_a_call_whose_beginning_was_not_seen_is_a_call() -> None:
    recorder = Recorder()
    recorder(Event("tool:post", ToolCall("call_1", "look", {"n": 1}), ToolResult("seen")))
    recorder.assert_called("look", times=1, n=1)


def test_a_call_that_a_handler_made_is_a_call_too() -> None:
    @tool
    async def outer(context: ToolContext) -> None:
        await context.run("read_note", {"path": "inner"})

    recorder = recorded(("outer", {}), tools=[outer, read_note])
    recorder.assert_called(read_note, path="inner")


def test_what_a_handler_announces_is_no_end_of_its_call() -> None:
    recorder = Recorder()
    recorder(Event("tool:pre", ToolCall("1", "look", {})))
    recorder(Event("tool:progress", ToolCall("1", "look", {}), {"result": 5}))
    assert "not ended yet" in refusal(recorder.assert_not_called, "look")


# -- arguments --------------------------------------------------------------------------------------------------------


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
        {"item": {"name": "x", "tags": ["a"]}},
        {"item": {"name": ANY, "tags": ["a"]}},
        {"colour": Colour.RED, "price": 3},
        {"price": pytest.approx(2.9999999)},
        {"on": ANY},
    ],
)
def test_python_values_stand_for_their_json_and_others_decide_by_themselves(named: Any) -> None:
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
def test_arguments_of_a_tool_that_is_given_are_compared_as_they_were_validated(guards: Any) -> None:
    recorder = recorded(("read_note", {"path": "a"}), ("read_note", {"path": "b", "lines": "7"}), guards=guards)
    recorder.assert_called(read_note, path="a", lines=200)
    recorder.assert_called(read_note, path="b", lines=7)
    recorder.assert_not_called(read_note, lines="7")


def test_an_argument_that_its_type_rewrites_is_compared_as_it_was_rewritten() -> None:
    @tool
    async def find(word: Annotated[str, StringConstraints(strip_whitespace=True)]) -> None: ...

    recorder = recorded(("find", {"word": "  a "}), tools=[find])
    recorder.assert_called(find, word="a")
    recorder.assert_not_called(find, word="  a ")


def test_arguments_of_a_name_are_compared_as_events_have_them() -> None:
    calls = [("read_note", {"path": "a"}), ("read_note", {"path": "b", "lines": "7"})]
    sent, judged = recorded(*calls), recorded(*calls, guards=[look_at])
    sent.assert_not_called("read_note", lines=200)
    sent.assert_called("read_note", lines="7")
    judged.assert_called("read_note", lines=200)
    judged.assert_called("read_note", lines=7)


def test_what_is_bound_in_the_runner_is_not_in_the_way_of_the_rest() -> None:
    recorder = recorded(("delete_note", {"path": "a"}), tools=[delete_note.bind(force=True)])
    recorder.assert_called(delete_note, path="a")
    recorder.assert_not_called(delete_note, path="b")


def test_arguments_whose_names_are_taken_go_into_a_dict() -> None:
    recorder = recorded(("book", {"on": "2026-05-06", "item": {"name": "x"}, "times": 3}), tools=[book])
    recorder.assert_called(book, {"times": 3}, times=1)
    recorder.assert_not_called(book, {"times": 2})


def test_a_parameter_goes_by_its_name_in_python_or_in_json() -> None:
    @tool
    async def look(from_: Annotated[str, Field(alias="from")] = "here") -> None: ...

    recorder = recorded(("look", {"from": "there"}), tools=[look])
    recorder.assert_called(look, from_="there")
    recorder.assert_called("look", {"from": "there"})


def test_a_model_that_named_an_argument_wrongly_called_nothing() -> None:
    recorder = recorded(("read_note", {"pth": "a"}))
    recorder.assert_not_called(read_note)
    assert "read_note(pth='a') → invalid, not run" in refusal(recorder.assert_called, read_note, path="a")


async def look(n: int) -> int:
    return n


@pytest.mark.parametrize("form", [look, Tool("look", lambda payload: 1, input_schema={"type": "object"})])
def test_whatever_makes_a_tool_stands_for_it(form: Any) -> None:
    recorded(("look", {"n": 1}), tools=[form]).assert_called(form, n=1)


# -- what does not fit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "named", "why"),
    [
        ((7,), {}, "7 is no tool"),
        ((delete_note, 2), {}, r"arguments are a dict, or keywords, not 2; how often goes into times="),
        ((delete_note,), {"pat": "a"}, r"'delete_note' has no parameter 'pat'; did you mean 'path'\?"),
        ((delete_note,), {"zzz": "a"}, r"no parameter 'zzz'; it has \['path', 'force'\]"),
        ((delete_note.bind(force=True),), {"force": True}, "'force' of 'delete_note' is bound or private"),
    ],
)
def test_what_can_never_be_so_is_an_error_that_says_what_is_right(given: Any, named: Any, why: str) -> None:
    recorder = Recorder()
    for assertion in (recorder.assert_called, recorder.assert_not_called):
        with pytest.raises(DefinitionError, match=why):
            assertion(*given, **named)


async def test_a_name_that_no_tool_has_is_an_error_where_the_recorder_knows_the_tools() -> None:
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
def test_a_number_of_times_that_makes_no_sense_is_refused(times: Any) -> None:
    with pytest.raises(DefinitionError, match=r"times is a whole number of at least 1, .* for none, assert_not_called"):
        Recorder().assert_called("look", times=times)


def test_a_recorder_is_no_list_of_observers() -> None:
    with pytest.raises(DefinitionError, match="observers"):
        Runner([look], observers=Recorder())  # type: ignore[arg-type]
