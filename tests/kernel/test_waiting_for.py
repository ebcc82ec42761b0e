"""A handler whose nested call waits for a person: both calls are suspended, and go on together."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cast import Person, put_off
from ferrule import (
    Answer,
    DefinitionError,
    InputRequired,
    Journal,
    Runner,
    ToolCall,
    ToolContext,
    ToolResult,
    WaitingFor,
    allow,
    ask,
    tool,
)
from ferrule.guards import ask_before_changes
from ferrule.journal import MemoryJournal, memory
from ferrule.values.frozen import JsonObject
from ferrule.values.journal_entry import Intent

KEY = b"k" * 32
PAID: list[tuple[str, int]] = []
STARTED: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_happened() -> None:
    PAID.clear()
    STARTED.clear()
    READ.clear()


@tool
async def pay(to: str, euros: int, context: ToolContext) -> str:
    PAID.append((to, euros))
    return f"paid {to} {euros}, approved by {context.answered_by}"


@tool(recorded=True)
async def order(to: str, context: ToolContext) -> Any:
    """Pay 5 and then 6, and keep the first receipt in the state."""
    state = context.answer.state if context.answer else {"receipts": []}
    STARTED.append(state)
    receipts = list(state["receipts"])
    while len(receipts) < 2:
        number = len(receipts)
        result = await context.run("pay", {"to": to, "euros": 5 + number}, id=str(number))
        if result.pending is not None:
            return WaitingFor(result, {"receipts": receipts})
        receipts.append(result.text)
    return receipts


def make_runner(journal: Journal | None = None, **options: Any) -> Runner:
    given = {"guards": [ask_before_changes], "approve": put_off, "resume_key": KEY, **options}
    return Runner([pay, order], journal=journal, **given)


def sent(result: ToolResult) -> dict[str, Any]:
    """The record, as another process reads it."""
    copied: dict[str, Any] = json.loads(json.dumps(result.record()))
    return copied


async def test_a_call_goes_on_where_its_nested_call_waited() -> None:
    first = await make_runner().run("order", {"to": "ada"})
    assert first.status == "suspended"
    assert first.pending is not None and first.pending["question"]["arguments"] == {"to": "ada", "euros": 5}
    assert first.pending["reason"] == 'pay({"to": "ada", "euros": 5}): pay changes things'
    assert first.pending["kind"] == "approval"

    second = await make_runner().resume(sent(first), True, by="Bo")
    assert second.status == "suspended" and PAID == [("ada", 5)]

    third = await make_runner().resume(sent(second), True, by="Cy")
    assert third.output == ["paid ada 5, approved by Bo", "paid ada 6, approved by Cy"]
    assert PAID == [("ada", 5), ("ada", 6)]
    assert third.answered_by is None  # nobody was asked about this call itself
    assert [len(state["receipts"]) for state in STARTED] == [0, 0, 1]  # no payment was made again


async def test_each_answer_is_one_to_the_nested_call() -> None:
    first = await make_runner().run("order", {"to": "ada"})
    again = await make_runner().resume(sent(first), ask("not yet"))
    assert again.status == "suspended" and PAID == []

    second = await make_runner().resume(sent(again), False)
    assert second.status == "suspended" and PAID == []  # the second payment waits now
    assert second.pending is not None and second.pending["question"]["arguments"]["euros"] == 6

    await make_runner().resume(sent(second), allow(arguments={"to": "ada", "euros": 1}))
    assert PAID == [("ada", 1)]


def changed(record: dict[str, Any], *path: str, value: Any) -> dict[str, Any]:
    inner = record["pending"]
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return record


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("state",), {"receipts": ["a lie"]}),
        (("question", "arguments"), {"to": "eve", "euros": 500}),
        (("question", "seal"), "0" * 64),
        (("seal",), "0" * 64),
    ],
)
async def test_a_changed_record_is_not_read(path: tuple[str, ...], value: Any) -> None:
    first = await make_runner().run("order", {"to": "ada"})
    STARTED.clear()

    result = await make_runner().resume(changed(sent(first), *path, value=value), True)
    assert result.status == "invalid" and PAID == [] and STARTED == []


async def test_the_question_alone_resumes_nothing() -> None:
    first = await make_runner().run("order", {"to": "ada"})
    assert first.pending is not None

    result = await make_runner().resume({"pending": first.pending["question"]}, True)
    assert not result.success and PAID == []


async def test_another_nested_call_gets_no_answer() -> None:
    @tool(recorded=True)
    async def swaps(context: ToolContext) -> Any:
        id = "1" if context.answer is None else "2"
        result = await context.run("pay", {"to": "eve", "euros": 500}, id=id)
        return WaitingFor(result) if result.pending is not None else result.text

    runner = Runner([pay, swaps], guards=[ask_before_changes], approve=put_off, resume_key=KEY)
    result = await runner.resume(await runner.run("swaps"), True)
    assert result.status == "suspended" and PAID == []


async def test_an_input_for_a_nested_call_comes_back() -> None:
    day = {"type": "object", "properties": {"day": {"type": "integer"}}, "required": ["day"]}

    @tool
    async def book(context: ToolContext) -> Any:
        given: Answer | None = context.answer
        return InputRequired("Which day?", day) if given is None else f"day {given.value['day']}"

    @tool(recorded=True)
    async def travel(context: ToolContext) -> Any:
        result = await context.run("book", id="1")
        return WaitingFor(result, "half") if result.pending is not None else [result.text, context.answer is None]

    def make() -> Runner:
        return Runner([book, travel], approve=put_off, resume_key=KEY)

    first = await make().run("travel")
    assert first.pending is not None and first.pending["kind"] == "input"
    second = await make().resume(sent(first), allow(arguments={"day": 3}))
    assert second.output == ["day 3", False]


async def test_a_wait_within_a_wait_goes_on() -> None:
    @tool(recorded=True)
    async def outer(context: ToolContext) -> Any:
        result = await context.run("order", {"to": "ada"}, id="1")
        return WaitingFor(result, 1) if result.pending is not None else result.output

    def make() -> Runner:
        return Runner([pay, order, outer], guards=[ask_before_changes], approve=put_off, resume_key=KEY)

    result = await make().run("outer")
    while result.status == "suspended":
        assert result.pending is not None and result.pending["reason"].startswith("pay(")
        result = await make().resume(sent(result), True, by="Bo")
    assert PAID == [("ada", 5), ("ada", 6)] and len(result.output) == 2


async def test_only_a_result_that_waits_for_a_person_can_be_waited_for() -> None:
    for wrong in (ToolResult("done"), None):
        with pytest.raises(DefinitionError, match="waits for a person"):
            WaitingFor(wrong)  # type: ignore[arg-type]
    first = await make_runner().run("pay", {"to": "ada", "euros": 5})
    with pytest.raises(DefinitionError, match="plain JSON"):
        WaitingFor(first, object())


class MortalJournal(MemoryJournal):
    """A journal whose process can die: it takes no more outcomes, and the running calls are cut off."""

    dead = False

    async def end(self, intent: Intent, outcome: JsonObject | None) -> None:
        if not self.dead:
            await super().end(intent, outcome)

    def revive(self) -> None:
        self.cut_off()
        self.dead = False


READ: list[int] = []


@tool(read_only=True)
async def rate() -> int:
    READ.append(len(READ))
    return len(READ)


Step = tuple[str, dict[str, Any]]
RATE: Step = ("rate", {})
CRASH: Step = ("crash", {})
PAY_ADA: Step = ("pay", {"to": "ada", "euros": 5})
PAY_EVE: Step = ("pay", {"to": "eve", "euros": 5})


async def run_plan(journal: MortalJournal, *steps: Step, session: str | None = "s") -> ToolResult:
    """Run a recorded tool that makes these calls; `CRASH` is the death of the process."""
    READ.clear()

    @tool(name="plan", recorded=True)
    async def plan(context: ToolContext) -> list[Any]:
        results: list[Any] = []
        for number, (name, given) in enumerate(steps):
            if name == "crash":
                journal.dead = True
                break
            result = await context.run(name, given, id=str(number))
            results.append(result.output if result.success else result.text)
        return results

    runner = Runner([pay, rate, plan], journal=journal)
    result = await runner.run(ToolCall("p1", "plan"), session=session)
    if journal.dead:
        journal.revive()
    return result


async def test_a_cut_off_call_runs_again_and_repeats_no_nested_call() -> None:
    journal = MortalJournal()
    before = await run_plan(journal, PAY_ADA, PAY_EVE, CRASH)

    after = await run_plan(journal, PAY_ADA, PAY_EVE, RATE)
    assert after.success and after.output[:2] == before.output[:2]
    assert PAID == [("ada", 5), ("eve", 5)]


async def test_a_read_gives_what_it_gave_before_the_crash() -> None:
    journal = MortalJournal()
    await run_plan(journal, RATE, PAY_ADA, CRASH)

    after = await run_plan(journal, RATE, PAY_ADA, RATE)
    assert after.output[0] == 1 and READ == [0]  # only the last one was read anew


async def test_another_call_in_the_place_of_a_finished_one_is_not_run() -> None:
    journal = MortalJournal()
    await run_plan(journal, RATE, PAY_ADA, CRASH)

    after = await run_plan(journal, PAY_EVE, ("pay", {"to": "ada", "euros": 6}), PAY_EVE)
    assert PAID == [("ada", 5), ("eve", 5)]  # the third had no place before
    assert after.output[0].startswith("pay was not run: the id '0' belongs to another")
    assert after.output[1].startswith("pay was not run: the id '1' belongs to another")


async def test_a_resumed_call_that_was_cut_off_goes_on_from_its_state() -> None:
    journal = MortalJournal()

    @tool(name="pay")
    async def dies(to: str, euros: int) -> str:
        PAID.append((to, euros))
        return "paid"

    @tool(name="order", recorded=True)
    async def once(context: ToolContext) -> Any:
        STARTED.append(context.answer)
        result = await context.run("pay", {"to": "ada", "euros": 5}, id="1")
        if result.pending is not None:
            return WaitingFor(result, "half")
        found = await context.run("rate", id="2")
        journal.dead = len(STARTED) == 2
        return [result.text, context.answer and context.answer.state, found.output]

    def make() -> Runner:
        return Runner([dies, rate, once], guards=[ask_before_changes], approve=put_off, resume_key=KEY, journal=journal)

    READ.clear()
    first = await make().run("order")
    await make().resume(sent(first), True)
    journal.revive()
    after = await make().resume(sent(first), True)
    assert after.output == ["paid", "half", 1]
    assert PAID == [("ada", 5)] and len(STARTED) == 3 and READ == [0]  # without a session, too
    assert (await make().resume(sent(first), True)).metadata["resumed_already"] and len(STARTED) == 3


async def test_a_recorded_tool_is_not_asked_about_but_its_calls_are() -> None:
    person = Person()
    runner = Runner([pay, order], guards=[ask_before_changes], approve=person)

    assert (await runner.run("order", {"to": "ada"})).success
    assert [call.name for call in person.questions] == ["pay", "pay"]


@pytest.mark.parametrize("journal", [None, memory()])
async def test_a_recorded_tool_gives_an_id_to_each_call_that_changes_something(journal: Journal | None) -> None:
    @tool(idempotent=True)
    async def put(text: str) -> str:
        return text

    @tool(read_only=True)
    async def look() -> str:
        return "nothing"

    @tool(recorded=True)
    async def forgetful(name: str, arguments: dict[str, Any], context: ToolContext) -> str:
        return (await context.run(name, arguments)).text

    runner = Runner([pay, put, look, forgetful], journal=journal)
    refused = await runner.run("forgetful", {"name": "pay", "arguments": {"to": "ada", "euros": 5}})
    assert refused.status == "failed" and "needs an id" in str(refused.exception) and PAID == []
    assert (await runner.run("forgetful", {"name": "put", "arguments": {"text": "again"}})).text == "again"
    assert (await runner.run("forgetful", {"name": "look", "arguments": {}})).text == "nothing"
