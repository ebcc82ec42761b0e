"""A call that may change something runs once: what a runner makes of what its journal has."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest
from killed import DyingJournal
from processes import intent

from cast import Person, ask_always
from ferrule import Runner, Tool, ToolCall, ToolContext, ToolResult, Waits, ask, deny, tool
from ferrule.errors import JournalError, UnknownOutcomeError
from ferrule.executors import Executor, StartedCall
from ferrule.journal import MemoryJournal, memory
from ferrule.testing import ManualClock
from ferrule.types import Begun
from ferrule.values.journal_entry import Intent, JournalEntry, outcome_from_result
from gates import Gate
from waits import BOUND, until

WHO = {"session": "s1", "principal": "ann"}


class Bank:
    """Tool `pay`, and what was paid."""

    def __init__(self, **options: Any) -> None:
        self.paid: list[int] = []
        self.keys: list[str] = []

        @tool(**options)
        async def pay(euros: int, context: ToolContext) -> str:
            """Pay."""
            self.paid.append(euros)
            self.keys.append(context.idempotency_key)
            return f"paid {euros}"

        self.pay = pay
        self.answer = ask("may it?")

    def asking_runner(self, journal: MemoryJournal) -> Runner:
        """A runner whose guard gives the answer of this bank, and whose person decides later."""
        guards = [lambda call, context: self.answer]
        return Runner([self.pay], guards=guards, approve=later, journal=journal, resume_key=b"k" * 32)


async def later(call: ToolCall, decision: Any, context: ToolContext) -> Any:
    """A person who decides later."""
    return ask("later")


async def run_twice(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
    await next(call, context)
    result: ToolResult = await next(call, context)
    return result


def call(euros: int = 5, id: str = "c1") -> ToolCall:
    return ToolCall(id, "pay", {"euros": euros})


async def cut_off(bank: Bank, journal: DyingJournal, **options: Any) -> Runner:
    """A runner of a program that begins after one that was killed while it paid."""
    await journal.while_dying(Runner([bank.pay], journal=journal).run(call(), **WHO))
    return Runner([bank.pay], journal=journal, **options)


async def test_a_repeated_call_gets_the_first_result() -> None:
    bank, journal = Bank(), memory()
    first = await Runner([bank.pay], journal=journal).run(call(), **WHO)
    again = await Runner([bank.pay], journal=journal).run(call(), **WHO)
    assert (first.text, again.text, bank.paid) == ("paid 5", "paid 5", [5])
    assert again.metadata == {"replayed": True} and first.metadata == {}
    assert again.status == "ok" and again.executed is True


@pytest.mark.parametrize(
    "other", [{"session": "s2"}, {"principal": "bob"}, {"session": None}, {"turn": "2"}, {"euros": 7}], ids=str
)
async def test_another_session_principal_turn_or_argument_is_another_call(other: dict[str, Any]) -> None:
    bank = Bank()
    runner = Runner([bank.pay], journal=memory())
    await runner.run(call(), **WHO)
    euros = other.pop("euros", 5)
    result = await runner.run(call(euros), **{**WHO, **other})
    assert bank.paid == [5, euros] and result.metadata == {}


async def test_a_repeated_call_waits_for_the_first_that_still_runs() -> None:
    gate, sent = Gate(), ToolCall("c1", "wait")
    runner = Runner([gate.tool], journal=memory(), concurrency=1)
    first = asyncio.create_task(runner.run(sent, **WHO))
    await gate.inside.wait()
    others = [asyncio.create_task(runner.run(sent, **WHO)) for _ in range(3)]
    await until(lambda: runner.waiting == 3)
    gate.open.set()
    results = await asyncio.gather(first, *others)
    assert gate.runs == 1 and [result.metadata.get("replayed", False) for result in results] == [False] + 3 * [True]


async def test_a_repeated_call_is_judged_again() -> None:
    bank, person = Bank(), Person()
    runner = Runner([bank.pay], guards=[ask_always], approve=person, journal=memory())
    assert [(await runner.run(call(), **WHO)).text for _ in range(2)] == ["paid 5", "paid 5"]
    assert (len(person.questions), bank.paid) == (1, [5])
    denied = await runner.replace(guards=[lambda call, context: deny("no longer")]).run(call(), **WHO)
    assert denied.status == "denied" and "paid" not in denied.text


async def test_a_call_that_never_started_leaves_nothing_in_the_journal() -> None:
    bank, journal = Bank(), memory()
    suspends = Runner([bank.pay], guards=[ask_always], approve=later, journal=journal)
    assert (await suspends.run(call(), **WHO)).status == "suspended"

    class Slow(MemoryJournal):
        async def begin(self, intent: Intent, *, after: JournalEntry | None = None) -> Begun:
            begun = await super().begin(intent, after=after)
            committed.set()
            await asyncio.Event().wait()
            return begun

    committed, slow = asyncio.Event(), Slow()
    vars(slow).update(vars(journal))
    task = asyncio.create_task(Runner([bank.pay], journal=slow).run(call(), **WHO))
    await committed.wait()
    task.cancel()
    await asyncio.wait({task})
    await asyncio.sleep(0)
    assert await journal.unfinished() == [] and bank.paid == []
    assert (await Runner([bank.pay], journal=journal).run(call(), **WHO)).metadata == {}
    assert bank.paid == [5]


async def test_the_intent_is_written_before_the_handler_runs() -> None:
    journal, seen = memory(), []

    @tool(private=["pin"])
    async def pay(euros: int, pin: str, to: str = "ada") -> str:
        """Pay."""
        seen.extend(journal._calls.values())
        return "paid"

    runner = Runner([pay.bind(pin="no hex 4711-secret")], journal=journal)
    await runner.run(call(), **WHO)
    [kept] = seen
    assert (kept.state, kept.intent.tool_name, kept.intent.call_id) == ("running", "pay", "c1")
    assert dict(kept.intent.arguments) == {"euros": 5, "to": "ada", "pin": "**********"}
    assert "no hex 4711" not in repr(journal._calls) + repr([dict(event.data) for event in journal.events])


@pytest.mark.parametrize("method", ["find", "begin"])
async def test_a_broken_journal_stops_the_call(method: str) -> None:
    bank = Bank()

    async def breaks(*given: Any, **options: Any) -> Any:
        raise JournalError("the disk is full")

    journal = memory()
    setattr(journal, method, breaks)
    result = await Runner([bank.pay], journal=journal).run(call(), **WHO)
    assert (result.status, result.executed, bank.paid) == ("failed", False, [])
    assert "the journal cannot be read or written" in str(result.error)


async def test_a_result_that_cannot_be_recorded_says_so(caplog: pytest.LogCaptureFixture) -> None:
    bank = Bank()

    async def breaks(*given: Any) -> Any:
        raise JournalError("the disk is full")

    journal, events = memory(), list[Any]()
    journal.end = breaks  # type: ignore[method-assign]
    runner = Runner([bank.pay], journal=journal, observers=[events.append])
    result = await runner.run(call(), **WHO)
    assert (result.text, result.metadata) == ("paid 5", {"unrecorded": True})
    assert events[-1].data["result"].metadata == {"unrecorded": True}
    assert "the disk is full" in caplog.text


# -- after a crash -----------------------------------------------------------------------------------------------------


async def test_a_cut_off_call_is_unknown() -> None:
    bank, journal = Bank(), DyingJournal()
    runner = await cut_off(bank, journal)
    result = await runner.run(call(), **WHO)
    assert (result.status, result.executed, bank.paid) == ("unknown", None, [5])
    assert "may have happened" in str(result.error)


@pytest.mark.parametrize(
    ("answer", "texts", "paid"),
    [
        (ToolResult("it was paid"), ["it was paid"] * 2, [5]),
        (False, ["paid 5"] * 2, [5, 5]),
        *((answer, ["unknown"] * 2, [5]) for answer in (None, "paid", True)),
        (ToolResult(None, "still under way", status="suspended"), ["unknown"] * 2, [5]),
    ],
)
async def test_reconcile_decides_about_a_cut_off_call(answer: Any, texts: list[str], paid: list[int]) -> None:
    seen = []

    async def reconcile(call: ToolCall, context: ToolContext) -> Any:
        seen.append((dict(call.arguments), context.idempotency_key, context.principal))
        return answer

    bank = Bank(reconcile=reconcile)
    runner = await cut_off(bank, DyingJournal())
    results = [await runner.run(call(), **WHO) for _ in range(2)]
    assert [result.text if result.success else result.status for result in results] == texts and bank.paid == paid
    assert seen[0] == ({"euros": 5}, bank.keys[0], "ann")


@pytest.mark.parametrize("answer", [ToolResult("it was paid"), False, None])
@pytest.mark.parametrize("is_late", [True, False])
async def test_reconcile_is_asked_about_an_unknown_outcome(answer: Any, is_late: bool) -> None:
    paid, go_on = list[int](), threading.Event()

    @tool(reconcile=lambda call, context: answer)
    def pay(euros: int) -> str:
        """Pay."""
        if paid:
            return "paid now"
        paid.append(euros)
        if not is_late:
            raise UnknownOutcomeError("the line is dead")
        go_on.wait(BOUND)
        return "paid late"

    clock = ManualClock()
    runner = Runner([pay], journal=memory(), timeout=5 if is_late else None, waits=Waits(grace=1), clock=clock)
    try:
        first_run = asyncio.ensure_future(runner.run(call(), **WHO))
        await until(lambda: bool(paid))
        while not first_run.done():
            await clock.advance(5)
        results = [await first_run, await runner.run(call(), **WHO)]
    finally:
        go_on.set()
    first, again = [(result.status, result.executed) for result in results]
    if isinstance(answer, ToolResult):
        assert first == again == ("ok", True) and results[0].text == "it was paid"
    elif answer is None or is_late:  # what was stopped may happen yet, in another thread or on a server
        assert first == again == ("timeout" if is_late else "unknown", None)
    else:
        assert first == ("failed", False) and "may be sent again" in str(results[0].error)
        assert (again, results[1].text) == (("ok", True), "paid now")


@pytest.mark.parametrize("recovers", [False, True])
async def test_a_cut_off_call_on_another_machine_does_not_run_again(recovers: bool) -> None:
    class Elsewhere(Executor):
        def executor(self, tool: Tool) -> Executor:
            self.handler = tool.handling
            return self

        async def run(self, values: Any, call: StartedCall) -> object:
            return await self.handler.call(values, call.context)

    bank, journal = Bank(reconcile=lambda call, context: False, isolation=Elsewhere()), DyingJournal()
    runner = await cut_off(bank, journal)
    if recovers:
        assert [result.status for result in await runner.recover()] == ["unknown"]
    assert [(await runner.run(call(), **WHO)).status for _ in range(2)] == ["unknown"] * 2
    assert bank.paid == [5]


async def test_the_first_program_that_settles_a_call_decides_its_result() -> None:
    bank, journal = Bank(), DyingJournal()

    async def reconcile(call: ToolCall, context: ToolContext) -> ToolResult:
        [kept] = await journal.unfinished()
        assert await journal.settle(kept, outcome_from_result(ToolResult("it was paid by card")))
        return ToolResult("it was paid")

    bank.pay = bank.pay.replace(reconcile=reconcile)
    runner = await cut_off(bank, journal)
    assert [(await runner.run(call(), **WHO)).text for _ in range(2)] == ["it was paid by card"] * 2
    assert bank.paid == [5]


async def test_an_unreadable_outcome_counts_as_unknown_and_stops_no_recovery() -> None:
    bank, journal = Bank(), DyingJournal()
    runner = await cut_off(bank, journal)
    [kept] = await journal.unfinished()
    nothing_to_resume_by = {**outcome_from_result(ToolResult("?")), "status": "suspended"}
    await journal.settle(kept, nothing_to_resume_by)
    results = [await runner.run(call(), **WHO), *await runner.recover()]
    assert [(one.status, one.executed) for one in results] == [("unknown", None)] * 2
    assert bank.paid == [5] and await journal.unfinished() == []


async def test_recover_settles_a_cut_off_call_once() -> None:
    bank, journal, seen = Bank(), DyingJournal(), []
    runner = await cut_off(bank, journal, observers=[lambda event: seen.append((event.kind, event.call.id))])
    [result] = await runner.recover()
    assert (result.status, result.call_id, result.executed) == ("unknown", "c1", None)
    assert result.record()["principal"] == "ann" and seen == [("tool:error", "c1")]
    assert await runner.recover() == []
    again = await runner.run(call(), **WHO)
    assert (again.status, again.metadata) == ("unknown", {"replayed": True})

    bank, journal = Bank(idempotent=True), DyingJournal()
    runner = await cut_off(bank, journal)
    assert await runner.recover() == []
    assert (await runner.run(call(), **WHO)).text == "paid 5"


async def test_recover_settles_many_calls_in_order_and_some_side_by_side() -> None:
    running = most = 0

    async def find_out(call: ToolCall, context: ToolContext) -> ToolResult | bool:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return ToolResult(f"paid by {call.id}")

    class Fails(MemoryJournal):
        async def settle(self, kept: JournalEntry, outcome: Any) -> bool:
            if kept.intent.call_id == "c7":
                raise JournalError("the disk is full")
            return await super().settle(kept, outcome)

    async def recover(journal: MemoryJournal) -> tuple[list[str], list[str]]:
        for n in range(200):
            await journal.begin(intent(f"k{n:03}", call_id=f"c{n}", session="s1", arguments={"euros": 5}))
        journal.cut_off()
        results: list[ToolResult] = []
        with suppress(JournalError):
            results = await Runner([Bank(reconcile=find_out).pay], journal=journal).recover()
        return [one.text for one in results], [kept.intent.call_id for kept in await journal.unfinished()]

    assert await recover(memory()) == ([f"paid by c{n}" for n in range(200)], [])
    assert 2 <= most <= 64 and running == 0
    # Each call that is under way is settled before the error is raised.
    assert await recover(Fails()) == ([], ["c7", *(f"c{n}" for n in range(64, 200))])


async def test_the_idempotency_key_survives_retries_and_a_suspension() -> None:
    bank = Bank()
    runner = Runner([bank.pay], guards=[ask_always], approve=later, inside=[run_twice])
    for who in (WHO, {}):
        del bank.keys[:]
        record = (await runner.run(call(), **who)).record()
        await runner.resume(record, True)
        assert bank.keys == [record["pending"]["idempotency_key"]] * 2 and len(bank.keys[0]) == 32


async def test_a_retry_around_the_call_keeps_its_last_outcome() -> None:
    ran = []

    @tool
    async def pay(euros: int) -> str:
        """Pay."""
        ran.append(euros)
        if len(ran) == 1:
            raise ValueError("down")
        return "paid"

    runner = Runner([pay], journal=memory(), around=[run_twice])
    assert [(await runner.run(call(), **WHO)).text for _ in range(2)] == ["paid", "paid"] and ran == [5, 5]


# -- records that are resumed again ------------------------------------------------------------------------------------


async def suspended_record(desk: Bank, journal: DyingJournal, **who: Any) -> dict[str, Any]:
    return (await desk.asking_runner(journal).run(ToolCall("c1", "pay", {"euros": 5}), **who)).record()


@pytest.mark.parametrize("who", [{}, {"session": "s1"}], ids=["no session", "session"])
async def test_a_record_resumed_again_gets_the_first_outcome_and_does_not_run(who: Any) -> None:
    desk, journal = Bank(), DyingJournal()
    record = await suspended_record(desk, journal, **who)
    first = await desk.asking_runner(journal).resume(record, True)
    again = await desk.asking_runner(journal).resume(record, True)
    assert first.metadata == {} and again.metadata == {"replayed": True, "resumed_already": True}
    assert (again.text, again.executed, desk.paid) == ("paid 5", True, [5])
    desk.answer = deny("no longer")
    assert "paid" not in (await desk.asking_runner(journal).resume(record, True)).text


async def test_a_resumed_call_that_did_not_happen_says_so_to_a_second_answer() -> None:
    desk, journal = Bank(reconcile=lambda call, context: False), DyingJournal()
    record = await suspended_record(desk, journal, **WHO)
    await journal.while_dying(desk.asking_runner(journal).resume(record, True))
    [settled] = await desk.asking_runner(journal).recover()
    again = await desk.asking_runner(journal).resume(record, True)
    assert settled.executed is again.executed is False and again.status == "invalid"
    assert "no effect of the earlier answer" in str(again.error) and desk.paid == [5]
    sent_again = desk.asking_runner(journal).replace(approve=lambda call, decision, context: True)
    assert (await sent_again.run(call(), **WHO)).text == "paid 5" and desk.paid == [5, 5]


async def test_a_second_resume_waits_for_the_outcome_of_the_first() -> None:
    gate = Gate()
    runner = Runner([gate.tool], guards=[ask_always], approve=later, journal=memory())
    record = (await runner.run("wait", {}, **WHO)).record()
    first = asyncio.create_task(runner.resume(record, True))
    await gate.inside.wait()
    second = asyncio.create_task(runner.resume(record, True))
    await until(lambda: runner.waiting == 1)
    gate.open.set()
    assert [(await one).text for one in (first, second)] == ["through", "through"] and gate.runs == 1
