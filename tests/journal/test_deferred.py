"""Deferred work, which somebody else does: suspended, looked at, resolved or given up, and never begun twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cast import Person, ask_always
from ferrule import (
    Deferred,
    DefinitionError,
    Runner,
    ToolCall,
    ToolContext,
    ToolResult,
    allow,
    ask,
    deny,
    tool,
)
from ferrule.errors import UnknownOutcomeError
from ferrule.journal import MemoryJournal, memory
from ferrule.testing import ManualClock
from waits import until
from watched import Watch

WHO = {"session": "s1", "principal": "ann"}
KEY = b"k" * 32


class Printer:
    """Prints elsewhere.

    Attributes:
        begun: What it began to print.
        looks: The tickets that it was asked about.
        says: What it returns or raises then.
    """

    def __init__(self, says: Any = None, **deferred: Any) -> None:
        self.begun: list[int] = []
        self.looks: list[str] = []
        self.says = says

        @tool
        async def print_pages(pages: int, context: ToolContext) -> str | Deferred:
            """Print."""
            if context.answer is not None:
                self.looks.append(context.answer.state["ticket"])
                if isinstance(self.says, Exception):
                    raise self.says
                return self.says  # type: ignore[no-any-return]
            self.begun.append(pages)
            return Deferred(f"job-{pages}", **deferred)

        self.tool = print_pages


def call(pages: int = 3) -> ToolCall:
    return ToolCall("c1", "print_pages", {"pages": pages})


def runner_of(printer: Printer, journal: Any = None, **options: Any) -> Runner:
    return Runner([printer.tool], journal=journal, resume_key=KEY, **options)


with_and_without = pytest.mark.parametrize("journal", [None, memory], ids=["no journal", "journal"])


def made(journal: Any) -> MemoryJournal | None:
    return journal and journal()  # type: ignore[no-any-return]


@with_and_without
async def test_a_deferred_call_is_suspended_with_its_ticket(journal: Any) -> None:
    clock, seen = ManualClock(), Watch()
    printer = Printer(poll_after=30, expires_in=600, reason="the printer is slow")
    runner = runner_of(printer, made(journal), clock=clock, observers=[seen])
    result = await runner.run(call(), **WHO)
    assert (result.status, result.executed, result.output) == ("suspended", None, None)
    assert "under way, do not repeat it: the printer is slow" in str(result.error)
    pending = result.record()["pending"]
    assert (pending["kind"], pending["reason"]) == ("work", "the printer is slow")
    assert pending["state"] == {"ticket": "job-3", "poll_at": clock.now() + 30}
    assert pending["expires_at"] == clock.now() + 600
    assert seen.kinds() == ["tool:pre", "tool:suspended"]


@with_and_without
async def test_a_resolved_call_ends_once_and_runs_nothing(journal: Any) -> None:
    printer, seen, keeps, judged = Printer(), Watch(), made(journal), []

    def guard(call: ToolCall, context: ToolContext) -> None:
        judged.append(call.id)

    runner = runner_of(printer, keeps, observers=[seen], guards=[guard])
    record = (await runner.run(call(), **WHO)).record()
    del judged[:]
    ended = await runner.resume(record, ToolResult("3 pages", metadata={"paper": "a4"}), by="printer")
    assert (ended.status, ended.output, ended.executed) == ("ok", "3 pages", True)
    assert (ended.call_id, ended.metadata["paper"], ended.answered_by) == ("c1", "a4", "printer")
    assert (printer.begun, printer.looks, judged, seen.ends()) == ([3], [], [], ["tool:post"])
    assert [event.kind for event in seen.events].count("tool:started") == 1
    second = await runner.resume(record, ToolResult("4 pages"))
    if keeps is None:
        assert (second.status, "resumed already" in str(second.error)) == ("invalid", True)
    else:
        assert (second.output, second.metadata["resumed_already"]) == ("3 pages", True)
        again = await runner.run(call(), **WHO)
        assert (again.output, again.metadata["replayed"], printer.begun) == ("3 pages", True, [3])


@with_and_without
async def test_a_look_runs_the_handler_until_it_returns_a_value(journal: Any) -> None:
    clock, seen, keeps = ManualClock(), Watch(), made(journal)
    printer = Printer(says=Deferred("job-3b", poll_after=5))
    runner = runner_of(printer, keeps, clock=clock, observers=[seen])
    first = (await runner.run(call(), **WHO)).record()
    still = await runner.resume(first, True)
    assert still.status == "suspended" and still.record()["pending"]["state"]["ticket"] == "job-3b"
    again = await runner.resume(first, True)
    assert again.status == ("invalid" if keeps is None else "suspended")
    assert keeps is None or again.record()["pending"] == still.record()["pending"]
    seen.events.clear()
    printer.says = "3 pages"
    ended = await runner.resume(still.record(), True)
    assert (ended.status, ended.output, printer.looks) == ("ok", "3 pages", ["job-3", "job-3b"])
    assert printer.begun == [3] and seen.ends() == ["tool:post"]
    other = await runner.resume(still.record(), ToolResult("other"))
    assert other.status == "invalid" if keeps is None else other.output == "3 pages"
    if keeps is not None:
        assert (await runner.run(call(), **WHO)).output == "3 pages"


async def test_a_look_is_judged_but_not_asked_about() -> None:
    printer, person, answers = Printer(says="done"), Person(), [ask("may it?")]
    runner = runner_of(printer, memory(), guards=[lambda call, context: answers[-1]], approve=person)
    record = (await runner.run(call(), **WHO)).record()
    answers.append(deny("closed"))
    denied = await runner.resume(record, True)
    assert (denied.status, printer.looks) == ("denied", [])
    answers.append(ask("may it?"))
    assert (await runner.resume(record, True)).output == "done" and len(person.questions) == 1


@with_and_without
async def test_deferred_work_is_given_up_once_with_an_unknown_effect(journal: Any) -> None:
    printer, seen, keeps = Printer(), Watch(), made(journal)
    runner = runner_of(printer, keeps, observers=[seen])
    record = (await runner.run(call(), **WHO)).record()
    result = await runner.resume(record, deny("enough"))
    assert (result.status, result.executed, seen.ends()) == ("cancelled", None, ["tool:error"])
    other = await runner.resume(record, ToolResult("3 pages"))
    assert other.status == ("invalid" if keeps is None else "cancelled")
    if keeps is not None:
        assert (await runner.run(call(), **WHO)).status == "cancelled" and printer.begun == [3]


async def test_an_answer_of_the_wrong_kind_is_refused() -> None:
    printer = Printer()
    runner = runner_of(printer)
    work = (await runner.run(call())).record()
    for wrong in (ask("later"), None, "done"):
        with pytest.raises(DefinitionError, match="deferred work is resumed with the ToolResult"):
            await runner.resume(work, wrong)  # type: ignore[arg-type]
    asks = runner_of(printer, guards=[ask_always], approve=Person(ask("later")))
    with pytest.raises(DefinitionError, match="waits for a decision"):
        await asks.resume((await asks.run(call())).record(), ToolResult("done"))
    assert (await runner.resume(work, allow())).status == "failed"  # the handler returns None, but its type is str


async def test_a_web_hook_resolves_work_by_its_ticket() -> None:
    printer, journal = Printer(), memory()
    await runner_of(printer, journal).run(call(), **WHO)
    other = runner_of(printer, journal)
    assert (await other.resolve("job-4", ToolResult("4 pages"))).status == "not_found"
    assert (await other.resolve("job-3", ToolResult("3 pages"))).output == "3 pages"
    assert (await other.resolve("job-3", ToolResult("again"))).status == "not_found"
    assert (await other.run(call(), **WHO)).output == "3 pages" and printer.begun == [3]
    with pytest.raises(DefinitionError, match="journal"):
        await runner_of(printer).resolve("job-3", ToolResult("3 pages"))


async def test_one_of_two_concurrent_looks_ends_the_call() -> None:
    journal, both, looking = memory(), asyncio.Event(), []

    @tool
    async def print_pages(pages: int, context: ToolContext) -> str | Deferred:
        """Print."""
        if context.answer is None:
            return Deferred("job")
        looking.append(context.answer.state["ticket"])
        await both.wait()
        return "done"

    runner = Runner([print_pages], journal=journal, resume_key=KEY)
    record = (await runner.run(call(), **WHO)).record()
    looks = [asyncio.create_task(runner.resume(record, True)) for _ in range(2)]
    await until(lambda: len(looking) == 2)
    [kept] = await journal.unfinished()
    assert kept.state == "deferred"  # a crash now loses the looks alone
    both.set()
    assert sorted(result.status for result in await asyncio.gather(*looks)) == ["invalid", "ok"]
    assert (await runner.run(call(), **WHO)).output == "done"


async def test_recover_looks_at_due_work_and_settles_expired_work() -> None:
    clock, seen, journal = ManualClock(), Watch(), memory()
    printer = Printer(says=Deferred("job-3", poll_after=50, expires_in=100), poll_after=30)
    await runner_of(printer, journal, clock=clock).run(call(), **WHO)
    runner = runner_of(printer, journal, clock=clock, observers=[seen])
    assert await runner.recover() == []
    await clock.advance(30)
    assert [result.status for result in await runner.recover()] == ["suspended"]
    await clock.advance(49)
    assert await runner.recover() == [] and printer.looks == ["job-3"]
    await clock.advance(51)
    [expired] = await runner.recover()
    assert (expired.status, expired.executed, seen.ends()) == ("unknown", None, ["tool:error"])
    assert "not said in time" in str(expired.error) and await runner.recover() == []
    assert (await runner.run(call(), **WHO)).status == "unknown" and printer.begun == [3]


@pytest.mark.parametrize("given", [{"ticket": " "}, {"ticket": 3}, {"poll_after": -1}, {"expires_in": "soon"}])
def test_a_deferred_is_checked_when_it_is_made(given: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match="Deferred"):
        Deferred(**{"ticket": "job", **given})


@pytest.mark.parametrize("end", ["a look", "recovery", "a web hook", "given up"])
async def test_deferred_work_begins_once_whatever_reconcile_says(end: str) -> None:
    ordered: list[str] = []

    @tool(reconcile=lambda call, context: False)  # the shop has no receipt yet
    async def order(book: str, context: ToolContext) -> str | Deferred:
        """Order a book."""
        if context.answer is not None:
            raise UnknownOutcomeError("the shop does not say")
        ordered.append(book)
        return Deferred("t-1", poll_after=0)

    runner, sent = Runner([order], journal=memory()), ToolCall("c1", "order", {"book": "B"})
    first = await runner.run(sent, session="s")
    if end == "a look":
        await runner.resume(first, True)
    elif end == "recovery":
        await runner.recover()
    elif end == "a web hook":
        await runner.resolve("t-1", ToolResult(error="not known", status="unknown", executed=None))
    else:
        await runner.resume(first, False)
    again = await runner.run(sent, session="s")
    assert not again.success and again.executed is None and ordered == ["B"]
