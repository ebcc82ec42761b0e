"""Events, records and contexts say whose call it is, when it happened, which rule spoke and who approved it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from journals import WatchedJournal

from cast import ask_always
from ferrule import (
    Decision,
    Event,
    InputRequired,
    Runner,
    ToolCall,
    ToolContext,
    allow,
    ask,
    deny,
    tool,
)
from gates import Gate
from waits import until
from watched import Watch

WHO = {"session": "s1", "principal": "ann"}


@tool
async def add(n: int, context: ToolContext) -> str | None:
    """Add, and say who approved it."""
    return context.answered_by


async def test_every_event_says_whose_call_it_is_of_and_comes_after_the_one_before() -> None:
    seen: list[Event] = []
    runner = Runner([add], guards=[lambda call, context: None], observers=[seen.append])
    await runner.run("add", {"n": 1}, **WHO)
    await runner.run("no_tool", {}, **WHO)
    await runner.run_all([ToolCall("a", "add", "{"), ToolCall("a", "add", {"n": 1})], **WHO)
    assert {(event.session, event.principal) for event in seen} == {("s1", "ann")}
    numbers = [event.seq for event in seen]
    assert numbers == sorted(set(numbers)) and len(numbers) == 4 + 2 + 2 + 2


async def test_a_call_has_started_once_it_has_its_slot_and_not_before() -> None:
    gate, watch = Gate(parallel=True), Watch()

    def started() -> list[str]:
        return [event.call.id for event in watch.events if event.kind == "tool:started"]

    never = gate.tool.replace(name="never", guards=[lambda *_: deny("no")])
    runner = Runner([gate.tool, never], concurrency=1, observers=[watch])
    calls = [ToolCall("a", "wait"), ToolCall("b", "wait"), ToolCall("c", "wait", {"x": 1}), ToolCall("d", "never")]
    batch = runner.batch(calls)
    await until(lambda: gate.runs and runner.waiting)
    assert started() == ["a"]
    gate.open.set()
    await batch
    assert started() == ["a", "b"]


async def test_records_say_what_was_asked_for_whom_and_when() -> None:
    journal, began = WatchedJournal(), time.time()
    runner = Runner([add.bind(n=7)], journal=journal)
    await runner.run("add", {}, **WHO)
    [intent], result = journal.intents, journal.events[-1].data["result"].record()
    assert (intent.arguments, intent.session, intent.principal) == ({"n": "**********"}, "s1", "ann")
    assert (result["input"], result["session"], result["principal"]) == ({"n": "**********"}, "s1", "ann")
    assert {(event.session, event.principal) for event in journal.events} == {("s1", "ann")}
    times = [intent.at, result["at"], *[event.at for event in journal.events]]
    assert began <= min(times) <= max(times) <= time.time()


@pytest.mark.parametrize("name", ["no_tool", "add"])
async def test_the_record_of_a_call_that_never_began_says_whose_it_was_too(name: str) -> None:
    record = (await Runner([add]).run(name, "{", **WHO)).record()
    assert (record["input"], record["session"], record["principal"]) == ("{", "s1", "ann")


async def test_the_approvers_name_is_in_event_record_and_context() -> None:
    seen: list[Event] = []
    approve = lambda *_: allow(by="ada")  # noqa: E731
    result = await Runner([add], guards=[ask_always], approve=approve, observers=[seen.append]).run("add", {"n": 1})
    assert (result.output, result.answered_by, result.record()["answered_by"]) == ("ada", "ada", "ada")
    assert [event.data["by"] for event in seen if "by" in event.data] == ["ada"]


async def test_a_later_denial_does_not_change_who_approved() -> None:
    @tool
    async def asking(context: ToolContext) -> Any:
        return InputRequired("which?", {"type": "object"}) if context.answer is None else context.answered_by

    for second in (deny("no"), allow({}, by=None)):
        answers, watch = [allow(by="ada"), second], Watch()
        approve: Any = lambda call, asked, context, answers=answers: answers.pop(0)  # noqa: E731
        result = await Runner([asking], guards=[ask_always], approve=approve, observers=[watch]).run("asking", {})
        assert result.record()["answered_by"] == "ada"
        decided = [event.data.get("by") for event in watch.events if event.kind == "tool:decided"]
        assert decided == [None, "ada", None]


def no_sevens(call: ToolCall, context: ToolContext) -> Decision | None:
    return deny("it is seven") if call.arguments["n"] == 7 else None


async def named(call: ToolCall, context: ToolContext) -> Decision:
    return ask("really?", rule="policy.toml:3")


def breaks(call: ToolCall, context: ToolContext) -> None:
    raise ValueError


async def test_every_guard_is_explained_whatever_the_others_say() -> None:
    decisions = await Runner([add], guards=[no_sevens, named, breaks]).explain(ToolCall("", "add", {"n": 7}))
    assert [one.kind for one in decisions] == ["deny", "ask", "deny"]
    assert [one.reason for one in decisions][:2] == ["it is seven", "really?"]
    assert "breaks" in str(decisions[2].rule)
    runner = Runner([add], guards=[no_sevens])
    (allowed,) = await runner.explain(ToolCall("", "add", {"n": 1}))
    assert allowed.kind == "allow" and "no_sevens" in str(allowed.rule)
    for call in (ToolCall("", "no_tool"), ToolCall("", "add", {"n": "x"})):  # which no guard sees
        assert [one.kind for one in await runner.explain(call)] == ["deny"]


async def test_a_call_cancelled_while_the_journal_forgets_it_has_its_end() -> None:
    watch, gate, journal_gate = Watch(), Gate(), Gate()

    async def full() -> None:
        raise OSError("the disk is full")

    journal = WatchedJournal(begins=full, ends=journal_gate.wait)
    runner = Runner([gate.tool], journal=journal, observers=[watch])
    call = asyncio.create_task(runner.run("wait"))
    await journal_gate.inside.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    async with runner:
        asyncio.get_running_loop().call_soon(journal_gate.open.set)
    assert watch.kinds() == ["tool:pre", "tool:error"] and not gate.runs
    assert journal.log == [("end", "wait", None)], "leaving the runner waits for that"
