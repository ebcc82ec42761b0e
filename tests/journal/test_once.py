"""A call that may change something runs once: what a runner makes of what its journal has."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from killed import DyingJournal

from cast import Person, ask_always
from ferrule import Runner, Tool, ToolCall, ToolContext, ToolResult, Waits, ask, deny, tool
from ferrule.errors import JournalError, UnknownOutcomeError
from ferrule.executors import Executor, StartedCall
from ferrule.journal import MemoryJournal, memory
from ferrule.testing import ManualClock
from ferrule.values.journal_entry import outcome_from_result
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


async def test_a_repeated_call_is_judged_again() -> None:
    bank, person = Bank(), Person()
    runner = Runner([bank.pay], guards=[ask_always], approve=person, journal=memory())
    assert [(await runner.run(call(), **WHO)).text for _ in range(2)] == ["paid 5", "paid 5"]
    assert (len(person.questions), bank.paid) == (1, [5])
    denied = await runner.replace(guards=[lambda call, context: deny("no longer")]).run(call(), **WHO)
    assert denied.status == "denied" and "paid" not in denied.text


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
