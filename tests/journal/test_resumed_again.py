"""A record that is resumed again, perhaps because who resumed it was killed: the journal says what came of that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ferrule import Runner, ToolCall, ToolContext, ToolResult, ask, deny, models, tool
from ferrule.journal import MemoryJournal
from ferrule.loop import NotResumed, resume, run
from ferrule.values.journal_entry import Intent

KEY = b"k" * 32


class Desk:
    """Pays what a person allows; what was paid, and what guards say."""

    def __init__(self, **options: Any) -> None:
        self.paid: list[int] = []
        self.says: Any = ask("may it?")

        @tool(**options)
        async def pay(euros: int) -> str:
            """Pay."""
            self.paid.append(euros)
            return f"paid {euros}"

        self.tool = pay

    def runner(self, journal: MemoryJournal) -> Runner:
        return Runner(
            [self.tool],
            guards=[lambda call, context: self.says],
            approve=lambda call, decision, context: ask("later"),
            journal=journal,
            resume_key=KEY,
        )


class Dying(MemoryJournal):
    """Of a process that is killed before it writes what a call came to, while it is `dying`."""

    dying = False

    async def end(self, intent: Intent, outcome: Any) -> None:
        if not self.dying:
            await super().end(intent, outcome)

    async def while_dying(self, resuming: Any) -> None:
        self.dying = True
        try:
            await resuming
        finally:
            self.dying = False
            self.cut_off()


async def suspended(desk: Desk, journal: MemoryJournal, **who: Any) -> dict[str, Any]:
    return (await desk.runner(journal).run(ToolCall("c1", "pay", {"euros": 5}), **who)).record()


@pytest.mark.parametrize("who", [{}, {"session": "s1"}], ids=["no session", "session"])
async def test_who_resumes_a_record_again_gets_what_came_of_it_and_nothing_is_run(who: Any) -> None:

    desk, journal = Desk(), Dying()
    record = await suspended(desk, journal, **who)
    first = await desk.runner(journal).resume(record, True)
    again = await desk.runner(journal).resume(record, True)
    assert first.metadata == {} and again.metadata == {"replayed": True, "resumed_already": True}
    assert (again.text, again.executed, desk.paid) == ("paid 5", True, [5])
    desk.says = deny("no longer")
    assert "paid" not in (await desk.runner(journal).resume(record, True)).text


@pytest.mark.parametrize("who", [{}, {"session": "s1"}], ids=["no session", "session"])
async def test_a_resumed_call_that_was_cut_off_is_unknown_when_its_record_is_resumed_again(who: Any) -> None:

    desk, journal = Desk(), Dying()
    record = await suspended(desk, journal, **who)
    await journal.while_dying(desk.runner(journal).resume(record, True))
    again = await desk.runner(journal).resume(record, True)
    assert (again.status, again.executed, desk.paid) == ("unknown", None, [5])


async def test_a_resumed_call_that_was_cut_off_runs_again_where_twice_is_as_once_and_the_answer_allows_it() -> None:

    desk, journal = Desk(idempotent=True), Dying()
    record = await suspended(desk, journal)
    await journal.while_dying(desk.runner(journal).resume(record, True))
    refused = await desk.runner(journal).resume(record, False)
    assert (refused.status, refused.executed, desk.paid) == ("denied", None, [5])
    again = await desk.runner(journal).resume(record, True)
    assert (again.text, again.metadata, desk.paid) == ("paid 5", {}, [5, 5])


def test_what_reconcile_says_counts_for_a_record_that_is_resumed_again() -> None:
    async def main(says: Any) -> tuple[str, list[int]]:
        async def reconcile(call: ToolCall, context: ToolContext) -> Any:
            assert dict(call.arguments) == {"euros": 5}
            return says

        desk, journal = Desk(reconcile=reconcile), Dying()
        record = await suspended(desk, journal)
        await journal.while_dying(desk.runner(journal).resume(record, True))
        return (await desk.runner(journal).resume(record, True)).text, desk.paid

    assert asyncio.run(main(ToolResult("receipt 7"))) == ("receipt 7", [5])
    assert asyncio.run(main(False)) == ("paid 5", [5, 5])


async def test_what_was_denied_or_put_off_again_has_no_outcome_to_tell() -> None:

    desk, journal = Desk(), Dying()
    for answer in (False, ask("later")):
        record = await suspended(desk, journal)
        await desk.runner(journal).resume(record, answer)
        again = await desk.runner(journal).resume(record, True)
        assert (again.status, again.executed, desk.paid) == ("invalid", False, [])


async def test_who_resumes_while_the_first_runs_waits_for_its_outcome() -> None:

    begun, go_on, journal = asyncio.Event(), asyncio.Event(), Dying()
    desk = Desk()

    @tool
    async def pay(euros: int) -> str:
        """Pay."""
        desk.paid.append(euros)
        begun.set()
        await go_on.wait()
        return "paid"

    desk.tool = pay
    record, runner = await suspended(desk, journal), desk.runner(journal)
    first = asyncio.create_task(runner.resume(record, True))
    await begun.wait()
    second = asyncio.create_task(runner.resume(record, True))
    for _ in range(200):
        await asyncio.sleep(0)
    assert runner.waiting == 1
    go_on.set()
    assert [(await one).text for one in (first, second)] == ["paid", "paid"] and desk.paid == [5]


async def test_a_run_goes_on_after_a_crash_and_not_beside_another_process() -> None:

    desk, journal = Desk(), Dying()
    steps: list[Any] = [[("pay", {"euros": 5})], "done"]
    first = await run(models.Scripted(steps), models.Scripted([]).user("Pay."), desk.runner(journal), session="s1")
    assert first.suspended is not None
    [call_id] = first.suspended["waiting"]
    with pytest.raises(RuntimeError, match="killed"):
        await journal.while_dying(resume(first.suspended, {call_id: True}, _Fails(), desk.runner(journal)))
    again = await resume(first.suspended, {call_id: True}, models.Scripted(["ask the bank"]), desk.runner(journal))
    assert (again.status, again.results[0].status, desk.paid) == ("done", "unknown", [5])

    desk, journal = Desk(), Dying()
    first = await run(models.Scripted(steps), models.Scripted([]).user("Pay."), desk.runner(journal), session="s1")
    assert first.suspended is not None
    [call_id] = first.suspended["waiting"]
    await resume(first.suspended, {call_id: True}, models.Scripted(["done"]), desk.runner(journal))
    with pytest.raises(NotResumed, match=r"resumed already.*It came to: paid 5"):
        await resume(first.suspended, {call_id: True}, models.Scripted(["done"]), desk.runner(journal))


class _Fails:
    """A model of a process that is killed before it asks."""

    def __init__(self) -> None:
        self.results = models.Scripted([]).results

    async def __call__(self, messages: Any, toolset: Any) -> Any:
        raise RuntimeError("killed")
