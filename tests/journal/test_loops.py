"""Programs with several event loops, one after the other: what becomes of calls whose loop has ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ferrule import Journal, Runner, ToolCall, ToolResult, Waits, tool
from ferrule.journal import MemoryJournal, memory
from ferrule.values.journal_entry import Intent

WHO = {"session": "s1", "principal": "ann"}


@pytest.fixture(params=["memory", "file"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Journal]:
    made: Journal = memory() if request.param == "memory" else Journal.open(tmp_path / "calls.db")
    yield made
    made.close()


class Bank:
    """Pays for ever the first time."""

    def __init__(self, **options: Any) -> None:
        self.paid = 0

        @tool(**options)
        async def pay() -> str:
            """Pay."""
            self.paid += 1
            if self.paid == 1:
                await asyncio.Event().wait()
            return f"paid {self.paid}"

        self.pay = pay

    async def begin(self, journal: Journal) -> Any:
        """A runner and its call, which is left while it pays."""
        runner = Runner([self.pay], journal=journal)
        task = asyncio.ensure_future(runner.run(ToolCall("c1", "pay"), **WHO))
        while not self.paid:
            await asyncio.sleep(0)
        return runner, task

    async def again(self, journal: Journal) -> ToolResult:
        """The same call, by somebody who does not wait for another one."""
        return await Runner([self.pay], journal=journal, waits=Waits(slot=0.001)).run(ToolCall("c1", "pay"), **WHO)


def after_a_crash(journal: Journal) -> Journal:
    """The journal as the next process finds it."""
    if isinstance(journal, MemoryJournal):
        journal.cut_off()
        return journal
    journal.close()
    return Journal.open(journal.path)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "status", "later"),
    [
        ({"idempotent": True}, "unknown", "paid 2"),
        ({"reconcile": lambda *_: False}, "unknown", "paid 2"),
        ({"reconcile": lambda *_: ToolResult("paid 1")}, "ok", "paid 1"),
        ({}, "unknown", None),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_call_whose_loop_was_closed_does_not_run_again_in_its_process(
    journal: Journal, options: dict[str, Any], status: str, later: str | None
) -> None:
    bank = Bank(**options)  # its handler may be in a thread or a worker, which go on without the loop
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # it complains of tasks that were pending when they were collected
    pending = loop.run_until_complete(bank.begin(journal))
    assert loop.run_until_complete(bank.again(journal)).status == "limited"
    loop.close()
    [kept] = asyncio.run(journal.unfinished())
    assert (kept.state, kept.may_go_on, kept.intent.call_id) == ("cut_off", True, "c1")
    assert asyncio.run(Runner([bank.pay], journal=journal).recover()) == []
    again = asyncio.run(bank.again(journal))
    assert (again.status, again.executed, bank.paid) == (status, True if status == "ok" else None, 1), again
    with contextlib.closing(after_a_crash(journal)) as opened:
        again = asyncio.run(bank.again(opened))
        assert (again.status, again.text) == (("unknown", again.text) if later is None else ("ok", later))
        settled = asyncio.run(Runner([bank.pay], journal=opened).recover())
        assert [result.status for result in settled] == (["unknown"] if later is None else [])
        assert asyncio.run(opened.unfinished()) == []
    del pending  # what ran is collected no earlier


class SlowJournal(MemoryJournal):
    async def end(self, intent: Intent, outcome: Any) -> None:
        await asyncio.sleep(0)
        await super().end(intent, outcome)


@pytest.mark.parametrize("cancels", [False, True])
@pytest.mark.parametrize("make_journal", [MemoryJournal, SlowJournal])
def test_a_loop_that_ends_at_any_turn_of_a_call_loses_no_outcome(make_journal: Any, cancels: bool) -> None:
    async def wait_turns(count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    ended = 0
    for turns in range(30):
        journal, paid = make_journal(), list[str]()

        @tool
        async def pay() -> str:
            await wait_turns(3)
            paid.append("paid")  # noqa: B023
            return "paid"

        async def main() -> None:
            runner = Runner([pay], journal=journal)  # noqa: B023
            call = asyncio.ensure_future(runner.run(ToolCall("c1", "pay"), **WHO))
            await wait_turns(turns)  # noqa: B023
            if cancels:
                call.cancel()

        asyncio.run(main())  # which cancels all tasks at its end
        assert asyncio.run(journal.unfinished()) == [], (turns, paid)
        ended += bool(paid)
    assert 0 < ended < 30
