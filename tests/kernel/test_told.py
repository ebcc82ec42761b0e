"""What events, records and contexts tell of a call besides its result: whose it is, when, and who approved it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from journals import WatchedJournal

from ferrule import (
    Decision,
    DefinitionError,
    Event,
    InputRequired,
    Runner,
    ToolCall,
    ToolContext,
    ToolResult,
    allow,
    ask,
    deny,
    tool,
)
from ferrule.middleware import after, before
from watched import go

WHO = {"session": "s1", "principal": "ann"}


@tool
async def add(n: int, context: ToolContext) -> str | None:
    """Add, and say who approved it."""
    return context.approved_by


def asks(call: ToolCall, context: ToolContext) -> Decision:
    return ask("may it?")


def by_ada(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
    return allow(by="ada")


async def test_every_event_says_whose_call_it_is_of_and_comes_after_the_one_before() -> None:
    seen: list[Event] = []

    async def main() -> None:
        runner = Runner([add], guards=[lambda call, context: None], observers=[seen.append])
        await runner.run("add", {"n": 1}, **WHO)
        await runner.run("no_tool", {}, **WHO)
        await runner.run_all([ToolCall("a", "add", "{"), ToolCall("a", "add", {"n": 1})], **WHO)

    await main()
    assert {(event.session, event.principal) for event in seen} == {("s1", "ann")}
    numbers = [event.seq for event in seen]
    assert numbers == sorted(set(numbers)) and len(numbers) == 4 + 2 + 2 + 2


async def test_a_call_has_started_once_it_has_its_slot_and_not_before() -> None:

    seen: list[tuple[str, str]] = []
    begun, end = asyncio.Event(), asyncio.Event()

    @tool
    async def waits() -> None:
        begun.set()
        await end.wait()

    runner = Runner([waits], concurrency=1, observers=[lambda event: seen.append((event.kind, event.call.id))])
    calls = [asyncio.ensure_future(runner.run(ToolCall(id, "waits"))) for id in "ab"]
    await begun.wait()
    while not runner.waiting:
        await asyncio.sleep(0)
    assert [id for kind, id in seen if kind == "tool:started"] == ["a"]
    end.set()
    await asyncio.gather(*calls)
    assert [id for kind, id in seen if kind == "tool:started"] == ["a", "b"]


def test_what_is_denied_or_does_not_fit_never_starts() -> None:
    seen: list[str] = []
    runner = Runner([add], guards=[lambda call, context: deny("no")], observers=[lambda event: seen.append(event.kind)])
    go(runner.run("add", {"n": 1}))
    go(runner.run("add", {"n": "x"}))
    assert "tool:started" not in seen


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


async def test_with_a_journal_the_arguments_are_told_as_they_run_though_no_guard_judges() -> None:
    @tool(read_only=True)
    async def look(n: int, pages: int = 1) -> int:
        return n

    journal = WatchedJournal()
    record = (await Runner([look], journal=journal).run("look", '{"n": "5"}')).record()
    assert record["input"] == journal.events[-1].data["input"] == {"n": 5, "pages": 1}


@pytest.mark.parametrize("name", ["no_tool", "add"])
async def test_the_record_of_a_call_that_never_began_says_whose_it_was_too(name: str) -> None:
    record = (await Runner([add]).run(name, "{", **WHO)).record()
    assert (record["input"], record["session"], record["principal"]) == ("{", "s1", "ann")


async def test_who_approved_stands_in_event_record_and_context_at_once() -> None:
    seen: list[Event] = []
    result = await Runner([add], guards=[asks], approve=by_ada, observers=[seen.append]).run("add", {"n": 1})
    assert (result.output, result.approved_by, result.record()["approved_by"]) == ("ada", "ada", "ada")
    assert [event.data["by"] for event in seen if "by" in event.data] == ["ada"]


@pytest.mark.parametrize("answer", [allow(by="ada"), True])
async def test_who_approved_stands_there_after_a_suspension_too(answer: Any) -> None:
    async def main() -> ToolResult:
        runner = Runner([add], guards=[asks], approve=lambda call, decision, context: ask("later"))
        suspended = await runner.run("add", {"n": 1})
        return await runner.resume(suspended.record(), answer, by=None if answer is not True else "ada")

    result = await main()
    assert (result.output, result.approved_by) == ("ada", "ada")


def test_who_approves_is_named_by_a_text() -> None:
    with pytest.raises(DefinitionError, match="allow\\(by=…\\) is the name"):
        allow(by=7)  # type: ignore[arg-type]


# -- rules -------------------------------------------------------------------------------------------------------------


def no_sevens(call: ToolCall, context: ToolContext) -> Decision | None:
    return deny("it is seven") if call.arguments["n"] == 7 else None


async def named(call: ToolCall, context: ToolContext) -> Decision:
    return ask("really?", rule="policy.toml:3")


def breaks(call: ToolCall, context: ToolContext) -> None:
    raise ValueError


async def test_a_decision_says_which_rule_spoke() -> None:
    async def main() -> list[Decision]:
        runner = Runner([add], guards=[no_sevens, named, lambda call, context: ask("sure?", rule="policy.toml:9")])
        return [await runner.decide(ToolCall("", "add", {"n": n})) for n in (7, 1)]

    denied, asked = await main()
    assert "no_sevens" in str(denied.rule) and asked.rule == "policy.toml:3; policy.toml:9"
    assert asked.reason == "really?; sure?"


def test_who_allowed_is_not_who_denies_later() -> None:
    answers = [allow(by="ada"), deny("no"), allow({}, by=None)]

    @tool
    async def asking(context: ToolContext) -> Any:
        return InputRequired("which?", {"type": "object"}) if context.answer is None else context.approved_by

    def told(*said: Decision) -> tuple[Any, list[Any]]:
        left, seen = list(said), []
        runner = Runner(
            [asking],
            guards=[lambda call, context: ask("sure?")],
            approve=lambda call, asked, context: left.pop(0),
            observers=[lambda event: seen.append(event.data.get("by")) if event.kind == "tool:decided" else None],
        )
        result = go(runner.run("asking", {}))
        return result.record()["approved_by"], seen

    assert told(answers[0], answers[1]) == ("ada", [None, "ada", None])
    assert told(answers[0], answers[2]) == ("ada", [None, "ada", None])
    assert told(answers[1]) == (None, [None, None])


def test_every_guard_is_explained_whatever_the_others_say() -> None:
    async def main() -> list[Decision]:
        return await Runner([add], guards=[no_sevens, named, breaks]).explain(ToolCall("", "add", {"n": 7}))

    said = go(main())
    assert [one.kind for one in said] == ["deny", "ask", "deny"]
    assert [one.reason for one in said][:2] == ["it is seven", "really?"]
    assert "breaks" in str(said[2].rule)
    content = go(Runner([add], guards=[no_sevens]).explain(ToolCall("", "add", {"n": 1})))
    assert [one.kind for one in content] == ["allow"] and "no_sevens" in str(content[0].rule)


@pytest.mark.parametrize("call", [ToolCall("", "no_tool"), ToolCall("", "add", {"n": "x"}), ToolCall("", "add", "{")])
def test_what_no_guard_sees_is_explained_by_the_one_deny(call: ToolCall) -> None:
    assert [one.kind for one in go(Runner([add], guards=[no_sevens]).explain(call))] == ["deny"]


# -- a change and a handler that asks ----------------------------------------------------------------------------------


async def test_what_a_hook_changed_stays_changed_where_the_handler_asks_for_input() -> None:
    ran: list[tuple[int, bool]] = []

    @tool
    async def wants(n: int, context: ToolContext) -> Any:
        ran.append((n, context.answer is not None))
        return n if context.answer else InputRequired("go on?")

    def larger(arguments: Any) -> dict[str, int]:
        return {"n": arguments["n"] + 1}

    def yes(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
        return True

    for hook in ([before(larger)], []):
        del ran[:]
        result = await Runner([wants], around=hook, approve=yes).run("wants", {"n": 1})
        assert (result.output, ran) == (1 + len(hook), [(1 + len(hook), False), (1 + len(hook), True)])


async def test_a_result_reaches_the_journal_though_its_caller_is_cancelled_meanwhile() -> None:
    async def main() -> WatchedJournal:
        writing, gate = asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            writing.set()
            await gate.wait()

        journal = WatchedJournal(ends=slow)

        @tool
        async def pay() -> str:
            return "paid"

        async with Runner([pay], journal=journal) as runner:
            call = asyncio.create_task(runner.run("pay"))
            await writing.wait()
            call.cancel()
            await asyncio.wait([call])
            gate.set()
        return journal

    journal = await main()
    assert journal.log == [("begin", "pay", {}), ("end", "pay", "ok")]
    assert [outcome["output"] for outcome in journal.outcomes] == ["paid"]


async def test_a_call_has_its_end_though_its_caller_is_cancelled_while_the_journal_is_told_that_nothing_was_run() -> (
    None
):
    async def main() -> tuple[list[Event], WatchedJournal]:
        seen, writing, gate = list[Event](), asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            writing.set()
            await gate.wait()

        async def full() -> None:
            raise OSError("the disk is full")

        journal = WatchedJournal(begins=full, ends=slow)

        @tool
        async def pay() -> None: ...

        runner = Runner([pay], journal=journal, observers=[seen.append])
        batch = runner.batch([ToolCall("c1", "pay")])
        call = asyncio.create_task(runner.run("pay"))
        await writing.wait()
        call.cancel()
        batch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert [result.executed for result in batch.results] == [False]
        async with runner:
            asyncio.get_running_loop().call_soon(gate.set)
        return seen, journal

    seen, journal = await main()
    assert [event.kind for event in seen].count("tool:error") == 2 == [event.kind for event in seen].count("tool:pre")
    assert journal.log == [("end", "pay", None)] * 2, "and who leaves the runner waits for that"


async def test_an_after_hook_sees_that_the_resources_of_a_call_are_not_known() -> None:
    saw: list[Any] = []

    @tool(resources=lambda arguments: arguments["nope"])
    async def pay() -> str:
        return "paid"

    audit = after(lambda result, context: saw.append((result.status, result.executed)))
    result = await Runner([pay], around=[audit]).run("pay")
    assert saw == [("failed", False)] and "its resources are not known" in str(result.error)
