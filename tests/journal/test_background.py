"""Background calls: they return a ticket at once, and their work is a call of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from killed import DyingJournal

from cast import Person, ask_always
from ferrule import (
    Decision,
    Deferred,
    DefinitionError,
    InputRequired,
    Media,
    Runner,
    Text,
    Tool,
    ToolCall,
    ToolContext,
    ToolResult,
    Waits,
    allow,
    ask,
    deny,
    tool,
)
from ferrule.errors import UnknownOutcomeError
from ferrule.journal import MemoryJournal, memory
from ferrule.testing import ManualClock
from ferrule.tools import background
from ferrule.values.journal_entry import Intent

WHO = {"session": "s1", "principal": "ann"}


class Mill:
    """A tool that grinds in the background until it may go on."""

    def __init__(self, **options: Any) -> None:
        self.ran: list[int] = []
        self.began = asyncio.Event()
        self.go_on = asyncio.Event()

        @tool(background=True, **options)
        async def grind(kilos: int, context: ToolContext) -> str:
            """Grind."""
            self.ran.append(kilos)
            context.progress(1, kilos, "grinding")
            self.began.set()
            await self.go_on.wait()
            return f"{kilos} kg of flour"

        self.tool: Tool = grind


def runner_of(mill: Mill, **options: Any) -> Runner:
    return Runner([mill.tool, *background.tools], **options)


def call(kilos: int = 3, id: str = "c1") -> ToolCall:
    return ToolCall(id, "grind", {"kilos": kilos})


def ticket_of(result: ToolResult) -> str:
    assert (result.status, result.executed) == ("ok", True), result
    assert result.output == {"ticket": result.metadata["ticket"], "status": "running"}
    ticket: str = result.metadata["ticket"]
    assert ticket.startswith("work_")
    return ticket


async def checked(runner: Runner, ticket: str, who: Any = WHO, **arguments: Any) -> ToolResult:
    return await runner.run("check_call", {"ticket": ticket, **arguments}, **who)


async def test_a_background_call_returns_a_ticket_and_its_work_is_a_call() -> None:
    events, mill = [], Mill()
    runner = runner_of(mill, observers=[lambda event: events.append((event.kind, event.call.id))])
    ticket = ticket_of(await runner.run(call(), **WHO))
    await mill.began.wait()
    progress = {"done": 1, "total": 3, "message": "grinding"}
    assert (await checked(runner, ticket)).output == {"ticket": ticket, "status": "running", "progress": progress}
    mill.go_on.set()
    result = await checked(runner, ticket, wait_seconds=60)
    assert (result.output, result.text, result.status) == ("3 kg of flour", "3 kg of flour", "ok")
    [work] = runner.jobs
    assert work.result is not None and work.result.call is not None
    assert repr(work) == f"<BackgroundJob {ticket} grind ok>"
    assert (work.result.call.id, work.result.call.parent, work.result.tool_name) == (ticket, "c1", "grind")
    assert work.result.record()["principal"] == "ann" and work.result.record()["input"] == {"kilos": 3}
    assert [kind for kind, id in events if id == "c1"] == ["tool:pre", "tool:started", "tool:post"]
    of_work = [kind for kind, id in events if id == ticket]
    assert of_work == ["tool:pre", "tool:started", "tool:progress", "tool:post"]


async def test_only_the_work_has_a_slot_and_a_deadline() -> None:
    clock, mill = ManualClock(), Mill(concurrency=1, timeout=50)
    runner = runner_of(mill, clock=clock)
    first = ticket_of(await runner.run(call(1, "c1"), timeout=5, **WHO))
    second = ticket_of(await runner.run(call(2, "c2"), timeout=5, **WHO))
    await mill.began.wait()
    assert mill.ran == [1] and runner.waiting == 1
    await clock.advance(50)  # neither the five seconds of the first call nor a parent's deadline
    late = await checked(runner, first, wait_seconds=0)
    assert (late.status, late.executed, "deadline of 50 s" in str(late.error)) == ("timeout", None, True)
    mill.go_on.set()
    await runner.jobs[1].wait(60)
    assert (await checked(runner, second)).output == "2 kg of flour"


async def test_the_work_is_judged_again_but_asked_about_once() -> None:
    person, judged, answers = Person(allow({"kilos": 5})), [], [ask("may it?")]

    def guard(call: ToolCall, context: ToolContext) -> Any:
        judged.append(call.id)
        return answers[min(len(judged), len(answers)) - 1]

    mill = Mill()
    mill.go_on.set()
    runner = Runner([mill.tool], guards=[guard], approve=person)
    await runner.run(call(), **WHO)
    await runner.jobs[0].wait(60)
    work = runner.jobs[0]
    assert work.result is not None and work.result.output == "5 kg of flour" and mill.ran == [5]
    assert [one.id for one in person.questions] == ["c1"] and judged == ["c1", "c1", work.ticket]
    del judged[:]
    answers += [ask("?"), deny("no more")]
    ticket_of(await runner.run(call(id="c2"), **WHO))
    await runner.jobs[1].wait(60)
    denied = runner.jobs[1].result
    assert denied is not None and (denied.status, denied.executed, mill.ran) == ("denied", False, [5])


async def test_an_invalid_denied_or_suspended_call_begins_no_work() -> None:
    mill = Mill()
    denies = Runner([mill.tool], guards=[lambda call, context: deny("closed")])
    later = Runner([mill.tool], guards=[ask_always], approve=Person(ask("later")))
    assert (await denies.run(call())).status == "denied" and denies.jobs == ()
    assert (await denies.run(ToolCall("c2", "grind", {"kilos": "much"}))).status == "invalid"
    suspended = await later.run(call())
    assert suspended.status == "suspended" and later.jobs == ()
    ticket_of(await later.resume(suspended.record(), True))
    await mill.began.wait()
    mill.go_on.set()
    await later.jobs[0].wait(60)
    assert mill.ran == [3]


async def test_a_private_value_of_a_person_reaches_the_work_and_no_event() -> None:
    got, events, journal = [], [], memory()

    @tool(background=True, private=["pin"])
    async def pay(euros: int, pin: str) -> str:
        """Pay."""
        got.append((euros, pin))
        return "paid"

    runner = Runner(
        [pay],
        guards=[lambda call, context: ask("pin?", into="pin")],
        approve=Person(allow({"pin": "4711-secret"})),
        observers=[lambda event: events.append((event.call.arguments, event.data))],
        journal=journal,
    )
    ticket_of(await runner.run("pay", {"euros": 5}, **WHO))
    await runner.jobs[0].wait(60)
    assert got == [(5, "4711-secret")]
    assert "4711" not in repr(events) + repr(await journal.unfinished())


async def test_other_principals_and_sessions_learn_nothing_of_work() -> None:
    mill = Mill()
    runner = runner_of(mill)
    ticket = ticket_of(await runner.run(call(), **WHO))
    for who in ({**WHO, "principal": "bob"}, {**WHO, "session": "s2"}, {}):
        for name in ("check_call", "cancel_call"):
            there = await runner.run(name, {"ticket": ticket}, **who)
            missing = await runner.run(name, {"ticket": "work_0"}, **who)
            assert (there.status, there.executed) == (missing.status, missing.executed) == ("failed", False)
            assert str(there.error).replace(ticket, "work_0") == missing.error
    mill.go_on.set()
    assert (await checked(runner, ticket, wait_seconds=60)).output == "3 kg of flour"


async def test_a_cancelled_work_ends_once() -> None:
    ends, mill = [], Mill()
    runner = runner_of(mill, observers=[lambda event: ends.append((event.kind, event.call.id))])
    ticket = ticket_of(await runner.run(call(), **WHO))
    stopped = await runner.run("cancel_call", {"ticket": ticket}, **WHO)
    assert stopped.output == {"ticket": ticket, "status": "cancelled"}
    assert [kind for kind, id in ends if id == ticket and kind in ("tool:post", "tool:error")] == ["tool:error"]
    again = await runner.run("cancel_call", {"ticket": ticket}, **WHO)
    assert again.output == {"ticket": ticket, "status": "cancelled"}
    assert "cancelled" in str((await checked(runner, ticket)).error)


async def test_work_can_be_checked_while_its_cancellation_is_written() -> None:
    mill, writing, written = Mill(), asyncio.Event(), asyncio.Event()

    class Slow(MemoryJournal):
        async def end(self, intent: Intent, outcome: Any) -> None:
            if intent.call_id.startswith("work_"):
                writing.set()
                await written.wait()
            await super().end(intent, outcome)

    runner = runner_of(mill, journal=Slow())
    ticket = ticket_of(await runner.run(call(), **WHO))
    await mill.began.wait()
    stopping = asyncio.create_task(runner.run("cancel_call", {"ticket": ticket}, **WHO))
    await writing.wait()
    look = asyncio.create_task(checked(runner, ticket, wait_seconds=60))
    stop = asyncio.create_task(runner.run("cancel_call", {"ticket": ticket}, **WHO))
    asyncio.get_running_loop().call_later(0.01, written.set)
    assert [result.error for result in await asyncio.gather(stopping, look, stop)] == [None] * 3
    assert "was cancelled" in str((await checked(runner, ticket, wait_seconds=60)).error)


@pytest.mark.parametrize("comes_to", ["ok", "failed", "unknown", "denied"])
async def test_check_call_gives_the_whole_result_of_the_work(comes_to: str) -> None:
    journal = memory()

    @tool(background=True)
    async def work() -> ToolResult:
        """Work."""
        if comes_to == "unknown":
            raise UnknownOutcomeError("the line went dead")
        error = "the disk is full" if comes_to == "failed" else None
        return ToolResult({"rows": 3}, error, {"took": 5}, [Text("three rows"), Media("image", b"x", "image/png")])

    def guard(call: ToolCall, context: ToolContext) -> Decision | None:
        return deny("closed") if comes_to == "denied" and call.id.startswith("work_") else None

    runner = Runner([work, *background.tools], guards=[guard], journal=journal)
    ticket = ticket_of(await runner.run("work", {}, **WHO))
    job = runner.jobs[-1]
    await job.wait(60)
    assert job.result is not None and job.result.status == comes_to
    whole = job.result
    elsewhere = [] if whole.executed is False else [Runner(runner.tools, journal=journal)]  # which knows what ran
    for reader in (runner, *elsewhere):
        found = await checked(reader, ticket)
        for name in ("status", "executed", "output", "error", "content"):
            assert getattr(found, name) == getattr(whole, name), name
        assert found.metadata == {**whole.metadata, "ticket": ticket}


async def test_the_oldest_ended_work_is_forgotten_beyond_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrule.kernel.background._MAX_JOBS", 3)
    mill = Mill()
    runner = runner_of(mill)
    running = ticket_of(await runner.run(call(9, "c9"), **WHO))
    await mill.began.wait()
    going, mill.go_on = mill.go_on, asyncio.Event()
    mill.go_on.set()
    tickets = []
    for number in range(3):
        tickets.append(ticket_of(await runner.run(call(number, f"c{number}"), **WHO)))
        await checked(runner, tickets[-1], wait_seconds=60)
    assert [work.ticket for work in runner.jobs] == [running, *tickets[1:]]
    assert "There is no call" in str((await checked(runner, tickets[0])).error)
    going.set()


async def test_a_background_tool_called_by_itself_is_awaited() -> None:
    mill = Mill()
    mill.go_on.set()
    assert await mill.tool(2) == "2 kg of flour"
    assert (await mill.tool.run({"kilos": 4})).output == "4 kg of flour"
    assert mill.tool.output_schema is not None
    assert set(mill.tool.output_schema["properties"]) == {"ticket", "status"}
    with pytest.raises(DefinitionError, match="background must be True or False"):
        mill.tool.replace(background="yes")  # type: ignore[call-overload]


# -- with a journal ----------------------------------------------------------------------------------------------------


async def test_a_repeated_background_call_gets_the_same_ticket() -> None:
    mill, journal = Mill(), memory()
    runner = runner_of(mill, journal=journal)
    ticket = ticket_of(await runner.run(call(), **WHO))
    await mill.began.wait()
    again = await runner.run(call(), **WHO)
    assert again.metadata == {"ticket": ticket, "replayed": True}
    mill.go_on.set()
    assert (await checked(runner, ticket, wait_seconds=60)).output == "3 kg of flour"
    assert (await runner.run(call(), **WHO)).metadata["ticket"] == ticket and mill.ran == [3]


async def test_work_that_found_no_slot_begins_when_its_call_is_repeated() -> None:
    clock, mill = ManualClock(), Mill(concurrency=1)
    runner = runner_of(mill, journal=memory(), clock=clock, waits=Waits(slot=5))
    await runner.run(call(1, "c1"), **WHO)
    ticket = ticket_of(await runner.run(call(2, "c2"), **WHO))
    await clock.advance(5)
    assert "2 kg" not in str((await checked(runner, ticket)).output) and mill.ran == [1]
    mill.go_on.set()
    await runner.jobs[0].wait(60)
    assert ticket_of(await runner.run(call(2, "c2"), **WHO)) == ticket
    assert (await checked(runner, ticket, wait_seconds=60)).output == "2 kg of flour" and mill.ran == [1, 2]


async def test_another_process_sees_work_in_the_journal() -> None:
    mill, journal = Mill(), memory()
    here, there = runner_of(mill, journal=journal), runner_of(mill, journal=journal)
    ticket = ticket_of(await here.run(call(), **WHO))
    await mill.began.wait()
    assert (await checked(there, ticket)).output == {"ticket": ticket, "status": "running"}
    stopped = await there.run("cancel_call", {"ticket": ticket}, **WHO)
    assert "runs in another process" in str(stopped.error)
    waits = asyncio.create_task(checked(there, ticket, wait_seconds=60))
    mill.go_on.set()
    assert (await waits).output == "3 kg of flour"
    stranger = await checked(there, ticket, who={"principal": "bob", "session": "s1"})
    assert "There is no call" in str(stranger.error)


async def cut_off(mill: Mill, journal: MemoryJournal, *, work: bool = True, **options: Any) -> str:
    """The ticket of a work that was killed; or whose first call was, after the work had ended."""
    before = DyingJournal()  # the work goes on in this process, but writes nothing
    vars(before).update(vars(journal))
    before.dying, before.spares = True, lambda call_id: (call_id == "c1") is work
    runner = runner_of(mill, journal=before, **options)
    ticket = ticket_of(await runner.run(call(), **WHO))
    await mill.began.wait()
    if not work:
        mill.go_on.set()
        await runner.jobs[0].wait(60)
    journal.cut_off()
    return ticket


@pytest.mark.parametrize("idempotent", [False, True])
async def test_cut_off_work_is_unknown_or_runs_again_if_idempotent(idempotent: bool) -> None:
    mill, journal = Mill(idempotent=idempotent), memory()
    ticket = await cut_off(mill, journal)
    after = runner_of(mill, journal=journal)
    lost = await checked(after, ticket)
    assert lost.status == "unknown" and ("may be sent again" in str(lost.error)) is idempotent
    assert ("Do not repeat" in str(lost.error)) is not idempotent
    mill.go_on.set()
    assert (await after.run(call(), **WHO)).metadata["ticket"] == ticket
    result = await checked(after, ticket, wait_seconds=60)
    if idempotent:
        assert (result.output, mill.ran) == ("3 kg of flour", [3, 3])
    else:
        assert "its effect may have happened" in str(result.error) and mill.ran == [3]


async def test_a_cut_off_first_call_does_not_begin_its_work_again() -> None:
    mill, journal = Mill(), memory()
    ticket = await cut_off(mill, journal, work=False)
    after = runner_of(mill, journal=journal)
    assert ticket_of(await after.run(call(), **WHO)) == ticket
    assert (await checked(after, ticket, wait_seconds=60)).output == "3 kg of flour" and mill.ran == [3]


# -- works that wait ---------------------------------------------------------------------------------------------------


async def test_work_that_defers_or_asks_is_suspended_and_resumed() -> None:
    ran = []

    @tool(background=True)
    async def grind(kilos: int, context: ToolContext) -> str | Deferred | InputRequired:
        """Grind."""
        ran.append(context.call and context.call.id)
        if context.answer is not None:
            return "ground"
        return Deferred("mill-1") if kilos == 1 else InputRequired("which grain?")

    runner = Runner([grind, *background.tools], journal=memory(), approve=Person(ask("later")))
    for kilos, answer in ((1, ToolResult("ground")), (1, True), (2, allow({}))):
        ticket = ticket_of(await runner.run(call(kilos, f"c{len(ran)}"), **WHO))
        work = next(work for work in runner.jobs if work.ticket == ticket)
        await work.wait(60)
        assert work.result is not None and work.result.status == "suspended"
        assert (await checked(runner, ticket)).output == {"ticket": ticket, "status": "suspended"}
        ended = await runner.resume(work.result.record(), answer)
        assert (ended.output, ended.call_id) == ("ground", ticket)
        assert (await checked(runner, ticket)).output == "ground"
    assert len(ran) == 5 and all(str(id).startswith("work_") for id in ran)
