"""Once for each call that may change something: what a runner makes of what its journal keeps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from ferrule import Journal, Runner, Tool, ToolCall, ToolContext, ToolResult, Waits, allow, ask, deny, tool
from ferrule.errors import JournalError, UnknownOutcomeError
from ferrule.executors import Executor, StartedCall
from ferrule.journal import MemoryJournal, memory
from ferrule.journal._lockfile import LockFile
from ferrule.testing import ManualClock
from ferrule.types import Begun
from ferrule.values.journal_entry import Intent, JournalEntry, outcome_from_result
from ferrule.values.result import KERNEL_METADATA

WHO = {"session": "s1", "principal": "ann"}


class Bank:
    """What was paid, outside of what any call knows."""

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


def call(euros: int = 5, id: str = "c1") -> ToolCall:
    return ToolCall(id, "pay", {"euros": euros})


async def cut_off(bank: Bank, journal: MemoryJournal, **options: Any) -> Runner:
    """A runner of a program that begins after one that was killed while it paid."""

    class Killed(MemoryJournal):
        async def end(self, intent: Intent, outcome: Any) -> None:
            """It never comes to that."""

    before = Killed()
    vars(before).update(vars(journal))
    await Runner([bank.pay], journal=before).run(call(), **WHO)
    journal.cut_off()
    return Runner([bank.pay], journal=journal, **options)


async def test_a_call_that_comes_again_gets_the_first_result_and_is_not_run() -> None:

    bank, journal = Bank(), memory()
    first = await Runner([bank.pay], journal=journal).run(call(), **WHO)
    again = await Runner([bank.pay], journal=journal).run(call(), **WHO)
    assert (first.text, again.text, bank.paid) == ("paid 5", "paid 5", [5])
    assert again.metadata == {"replayed": True} and first.metadata == {}
    assert again.status == "ok" and again.executed is True


@pytest.mark.parametrize(
    "other",
    [{"session": "s2"}, {"principal": "bob"}, {"session": None}, {"turn": "2"}],
    ids=["session", "principal", "no session", "turn"],
)
async def test_another_session_principal_or_turn_has_calls_of_its_own(other: dict[str, Any]) -> None:

    bank = Bank()
    runner = Runner([bank.pay], journal=memory())
    await runner.run(call(), **WHO)
    result = await runner.run(call(), **{**WHO, **other})
    assert bank.paid == [5, 5] and result.metadata == {}


async def test_other_arguments_under_the_same_id_are_another_call_and_say_so(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        bank = Bank()
        runner = Runner([bank.pay], journal=memory())
        await runner.run(call(), **WHO)
        result = await runner.run(call(7), **WHO)
        assert bank.paid == [5, 7] and result.metadata == {"other_arguments": True}

    await main()
    assert "under an id that another call with other arguments had" in caplog.text


async def test_the_same_arguments_however_they_are_written_are_the_same_call() -> None:

    bank = Bank()
    runner = Runner([bank.pay], journal=memory())
    for raw in (
        {"euros": 5},
        '{"euros":5}',
        '{ "euros" : 5 }',
        {"euros": 5.0},
        '{"euros": 5.0}',
        '{"euros": 50e-1}',
    ):
        result = await runner.run(ToolCall("c1", "pay", raw), **WHO)
        assert "other_arguments" not in result.metadata
    assert bank.paid == [5]


async def test_no_arguments_are_the_same_call_however_they_are_written() -> None:

    ran = []

    @tool
    async def stop() -> str:
        """Stop."""
        ran.append(1)
        return "stopped"

    runner = Runner([stop], journal=memory())
    for raw in ({}, "{}", "", " ", "null"):
        assert (await runner.run(ToolCall("c1", "stop", raw), **WHO)).text == "stopped"
    assert ran == [1]


async def test_who_comes_while_the_first_is_under_way_waits_for_its_result() -> None:

    begun, go_on, ran = asyncio.Event(), asyncio.Event(), []

    @tool
    async def pay(euros: int) -> str:
        """Pay."""
        ran.append(euros)
        begun.set()
        await go_on.wait()
        return "paid"

    runner = Runner([pay], journal=memory(), concurrency=1)
    first = asyncio.create_task(runner.run(call(), **WHO))
    await begun.wait()
    others = [asyncio.create_task(runner.run(call(), **WHO)) for _ in range(3)]
    while runner.waiting < 3:
        await asyncio.sleep(0)
    go_on.set()
    results = await asyncio.gather(first, *others)
    assert ran == [5] and [result.metadata.get("replayed", False) for result in results] == [False] + 3 * [True]


async def test_who_waits_for_the_first_waits_no_longer_than_for_a_slot() -> None:

    begun, clock = asyncio.Event(), ManualClock()

    @tool
    async def pay(euros: int) -> None:
        """Pay."""
        begun.set()
        await asyncio.Event().wait()

    runner = Runner([pay], journal=memory(), waits=Waits(slot=30), clock=clock)
    first = asyncio.create_task(runner.run(call(), **WHO))
    await begun.wait()
    second = asyncio.create_task(runner.run(call(), **WHO))
    while not runner.waiting:
        await asyncio.sleep(0)
    await clock.advance(30)
    result = await second
    assert (result.status, result.executed) == ("limited", False) and "still under way" in str(result.error)
    first.cancel()
    await asyncio.wait({first})


async def test_guards_judge_a_call_that_comes_again_and_nobody_is_asked_again() -> None:

    bank, asked, journal = Bank(), [], memory()

    def person(call: ToolCall, decision: Any, context: ToolContext) -> bool:
        asked.append(call.id)
        return True

    def asks(call: ToolCall, context: ToolContext) -> Any:
        return ask("may it?")

    def denies(call: ToolCall, context: ToolContext) -> Any:
        return deny("no longer")

    runner = Runner([bank.pay], guards=[asks], approve=person, journal=journal)
    assert [(await runner.run(call(), **WHO)).text for _ in range(2)] == ["paid 5", "paid 5"]
    assert (asked, bank.paid) == (["c1"], [5])
    denied = await runner.replace(guards=[denies]).run(call(), **WHO)
    assert denied.status == "denied" and "paid" not in denied.text


async def test_of_two_suspensions_of_one_call_both_are_resumed_and_one_runs() -> None:

    bank = Bank()
    runner = Runner(
        [bank.pay],
        guards=[lambda call, context: ask("may it?")],
        approve=lambda call, decision, context: ask("later"),
        journal=memory(),
    )
    records = [(await runner.run(call(), **WHO)).record() for _ in range(2)]
    results = [await runner.resume(record, True) for record in records]
    assert [result.text for result in results] == ["paid 5", "paid 5"] and bank.paid == [5]
    assert results[1].metadata == {"replayed": True}


async def test_what_was_suspended_limited_or_cancelled_before_its_start_is_not_kept() -> None:

    bank, journal = Bank(), memory()
    later = Runner(
        [bank.pay],
        guards=[lambda call, context: ask("?")],
        approve=lambda call, decision, context: ask("later"),
        journal=journal,
    )
    assert (await later.run(call(), **WHO)).status == "suspended"

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


async def test_the_intent_holds_what_was_judged_and_is_there_before_the_handler_runs() -> None:

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


async def test_the_outcome_is_kept_before_anybody_is_told() -> None:

    bank, journal, told = Bank(), memory(), []

    def watch(event: Any) -> None:
        if event.kind == "tool:post":
            told.extend(kept.state for kept in journal._calls.values())

    async def around(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        result: ToolResult = await next(call, context)
        told.extend(kept.state for kept in journal._calls.values())
        return result

    await Runner([bank.pay], journal=journal, observers=[watch], around=[around]).run(call(), **WHO)
    assert told == ["ended", "ended"]


@pytest.mark.parametrize("method", ["find", "begin"])
async def test_where_the_journal_breaks_before_the_run_nothing_is_run(method: str) -> None:

    bank = Bank()

    async def breaks(*given: Any, **options: Any) -> Any:
        raise JournalError("the disk is full")

    journal = memory()
    setattr(journal, method, breaks)
    result = await Runner([bank.pay], journal=journal).run(call(), **WHO)
    assert (result.status, result.executed, bank.paid) == ("failed", False, [])
    assert "the journal cannot be read or written" in str(result.error)


async def test_a_result_whose_outcome_cannot_be_written_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        bank = Bank()

        async def breaks(*given: Any) -> Any:
            raise JournalError("the disk is full")

        journal, told = memory(), list[Any]()
        journal.end = breaks  # type: ignore[method-assign]
        runner = Runner([bank.pay], journal=journal, observers=[told.append])
        result = await runner.run(call(), **WHO)
        assert (result.text, result.metadata) == ("paid 5", {"unrecorded": True})
        assert told[-1].data["result"].metadata == {"unrecorded": True}

    await main()
    assert "the disk is full" in caplog.text


# -- after a crash -----------------------------------------------------------------------------------------------------


async def test_a_call_that_was_cut_off_is_unknown_and_not_run_again() -> None:

    bank, journal = Bank(), memory()
    runner = await cut_off(bank, journal)
    result = await runner.run(call(), **WHO)
    assert (result.status, result.executed, bank.paid) == ("unknown", None, [5])
    assert "may have happened" in str(result.error)


@pytest.mark.parametrize("trait", ["idempotent", "read_only"])
async def test_a_call_that_was_cut_off_is_run_again_where_twice_is_as_once_with_the_same_key(trait: str) -> None:

    bank, journal = Bank(**{trait: lambda arguments: True}), memory()
    runner = await cut_off(bank, journal)
    assert [(await runner.run(call(), **WHO)).text for _ in range(2)] == ["paid 5", "paid 5"]
    assert bank.paid == [5, 5] and len(set(bank.keys)) == 1


async def test_a_call_that_was_cut_off_is_not_run_again_where_the_tool_is_another_since() -> None:

    bank, journal = Bank(idempotent=True), memory()
    await cut_off(bank, journal)
    runner = Runner([bank.pay.replace(metadata={"version": "2"})], journal=journal)
    assert (await runner.run(call(), **WHO)).status == "unknown" and bank.paid == [5]


def test_what_reconcile_says_of_a_call_that_was_cut_off_counts() -> None:
    async def main(says: Any, twice: Any) -> tuple[list[str], list[int]]:
        bank, journal, context = Bank(), memory(), []

        async def reconcile(call: ToolCall, given: ToolContext) -> Any:
            context.append((dict(call.arguments), given.idempotency_key, given.principal))
            return says

        bank.pay = bank.pay.replace(reconcile=reconcile)
        runner = await cut_off(bank, journal)
        results = [await runner.run(call(), **WHO) for _ in range(2)]
        assert context[0] == ({"euros": 5}, bank.keys[0], "ann")
        return [result.text if result.success else result.status for result in results], bank.paid

    assert asyncio.run(main(ToolResult("it was paid"), 1)) == (["it was paid", "it was paid"], [5])
    assert asyncio.run(main(False, 2)) == (["paid 5", "paid 5"], [5, 5])
    assert asyncio.run(main(None, 2)) == (["unknown", "unknown"], [5])
    for no_end in ("paid", True, ToolResult(None, "still under way", status="suspended")):
        assert asyncio.run(main(no_end, 2)) == (["unknown", "unknown"], [5])


@pytest.mark.parametrize("says", [ToolResult("it was paid"), False, None])
@pytest.mark.parametrize("end", ["is late", "does not know", "is late and goes on"])
async def test_reconcile_is_asked_for_an_outcome_that_nobody_knows(says: Any, end: str) -> None:
    paid, go_on = list[int](), threading.Event()

    def reconcile(call: ToolCall, context: ToolContext) -> Any:
        return says

    async def pay(euros: int) -> str:
        if paid:
            return "paid now"
        paid.append(euros)
        if end == "does not know":
            raise UnknownOutcomeError("the line is dead")
        await asyncio.Event().wait()
        return "never"

    def pay_in_a_thread(euros: int) -> str:
        paid.append(euros)
        go_on.wait(60)
        return "paid late"

    async def main() -> list[ToolResult]:
        made = tool(pay_in_a_thread if "goes on" in end else pay, name="pay", reconcile=reconcile)
        runner = Runner(
            [made], journal=memory(), timeout=None if end == "does not know" else 0.01, waits=Waits(grace=0.01)
        )
        return [await runner.run(call(), **WHO) for _ in range(2)]

    try:
        results = await main()
    finally:
        go_on.set()
    unknown = "unknown" if end == "does not know" else "timeout"
    first, again = [(result.status, result.executed) for result in results]
    if isinstance(says, ToolResult):
        assert first == again == ("ok", True) and results[0].text == "it was paid"
    elif says is None or "late" in end:  # what was stopped may happen yet, in another thread or on a server
        assert first == again == (unknown, None)
    else:
        assert first == ("failed", False) and "may be sent again" in str(results[0].error)
        assert (again, results[1].text) == (("ok", True), "paid now")


@pytest.mark.parametrize(
    ("says", "error"),
    [
        (False, "pay did not happen. Nothing was run; the call may be sent again."),
        (ToolResult(error="the bank knows of no such transfer", executed=False), "the bank knows of no such transfer"),
    ],
)
async def test_a_call_that_did_not_happen_is_failed_after_recovery_and_may_be_sent_again(says: Any, error: str) -> None:

    bank, journal = Bank(reconcile=lambda call, context: says), memory()
    runner = await cut_off(bank, journal)
    [result] = await runner.recover()
    assert (result.status, result.executed, result.error) == ("failed", False, error)
    assert await journal.unfinished() == []
    assert (await runner.run(call(), **WHO)).text == "paid 5"


@pytest.mark.parametrize("recovers", [False, True])
async def test_a_cut_off_call_of_another_machine_is_not_run_again_as_it_may_still_happen(recovers: bool) -> None:
    class Elsewhere(Executor):
        def executor(self, tool: Tool) -> Executor:
            self.handler = tool.handling
            return self

        async def run(self, values: Any, call: StartedCall) -> object:
            return await self.handler.call(values, call.context)

    bank, journal = Bank(reconcile=lambda call, context: False, isolation=Elsewhere()), memory()
    runner = await cut_off(bank, journal)
    if recovers:
        assert [result.status for result in await runner.recover()] == ["unknown"]
    assert [(await runner.run(call(), **WHO)).status for _ in range(2)] == ["unknown"] * 2
    assert bank.paid == [5]


async def test_where_another_program_settles_a_call_first_what_it_kept_is_told() -> None:

    bank, journal = Bank(), memory()

    async def reconcile(call: ToolCall, context: ToolContext) -> ToolResult:
        [kept] = await journal.unfinished()
        assert await journal.settle(kept, outcome_from_result(ToolResult("it was paid by card")))
        return ToolResult("it was paid")

    bank.pay = bank.pay.replace(reconcile=reconcile)
    runner = await cut_off(bank, journal)
    assert [(await runner.run(call(), **WHO)).text for _ in range(2)] == ["it was paid by card"] * 2
    assert bank.paid == [5]


async def test_what_is_kept_of_a_call_and_cannot_be_read_stops_no_recovery_and_counts_as_unknown() -> None:

    bank, journal = Bank(), memory()
    runner = await cut_off(bank, journal)
    [kept] = await journal.unfinished()
    await journal.settle(
        kept, {**outcome_from_result(ToolResult("?")), "status": "suspended"}
    )  # with nothing to resume it by
    assert [(one.status, one.executed) for one in (await runner.run(call(), **WHO), *await runner.recover())] == [
        ("unknown", None),
        ("unknown", None),
    ]
    assert bank.paid == [5] and await journal.unfinished() == []


async def test_recover_settles_what_was_cut_off_once_and_says_what_may_run_again() -> None:

    bank, journal, seen = Bank(), memory(), []
    runner = await cut_off(bank, journal, observers=[lambda event: seen.append((event.kind, event.call.id))])
    [result] = await runner.recover()
    assert (result.status, result.call_id, result.executed) == ("unknown", "c1", None)
    assert result.record()["principal"] == "ann" and seen == [("tool:error", "c1")]
    assert await runner.recover() == []
    again = await runner.run(call(), **WHO)
    assert (again.status, again.metadata) == ("unknown", {"replayed": True})

    bank, journal = Bank(idempotent=True), memory()
    runner = await cut_off(bank, journal)
    [left] = await runner.recover()
    assert (left.status, left.metadata) == ("unknown", {"runs_again": True})
    assert left.error is not None and "Do not repeat" not in left.error
    assert (await runner.run(call(), **WHO)).text == "paid 5"


def many(tool_name: str, count: int) -> list[Intent]:
    facts: dict[str, Any] = {"tool_name": tool_name, "principal": "ann", "session": "s1", "parent": None}
    facts |= {"fingerprint": "f", "arguments": {"euros": 5}, "at": 1.0}
    return [Intent(key=f"k{n:03}", reference=f"k{n}", claim=f"c{n}", call_id=f"c{n}", **facts) for n in range(count)]


def test_recover_settles_many_calls_side_by_side_but_not_all_at_once() -> None:
    """In the order in which they came; and each is settled or left before an error of one is told."""
    at_once = most = 0

    async def finds_out(call: ToolCall, context: ToolContext) -> ToolResult | bool:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        return ToolResult(f"paid by {call.id}")

    class Fails(MemoryJournal):
        async def settle(self, kept: JournalEntry, outcome: Any) -> bool:
            if kept.intent.call_id == "c7":
                raise JournalError("the disk is full")
            return await super().settle(kept, outcome)

    async def main(journal: MemoryJournal) -> tuple[list[ToolResult], list[str]]:
        bank = Bank(reconcile=finds_out)
        for intent in many("pay", 200):
            await journal.begin(intent)
        journal.cut_off()
        results: list[ToolResult] = []
        with suppress(JournalError):
            results = await Runner([bank.pay], journal=journal).recover()
        return results, [kept.intent.call_id for kept in await journal.unfinished()]

    results, left = asyncio.run(main(memory()))
    assert [result.text for result in results] == [f"paid by c{n}" for n in range(200)] and left == []
    assert 2 <= most <= 64 and at_once == 0
    results, left = asyncio.run(main(Fails()))
    assert results == [] and left == ["c7", *(f"c{n}" for n in range(64, 200))]


def test_recover_settles_many_calls_in_few_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = 0

    @contextmanager
    def counted(lock: LockFile) -> Iterator[None]:
        nonlocal commits
        with committing(lock):
            commits += 1
            yield

    async def begin(journal: Journal) -> None:
        await asyncio.gather(*map(journal.begin, many("pay", 640)))

    asyncio.run(begin(before := Journal.open(tmp_path / "calls.db", durable="normal")))
    before.close()
    committing = LockFile.committing
    monkeypatch.setattr(LockFile, "committing", counted)
    with closing(Journal.open(tmp_path / "calls.db", durable="normal")) as journal:
        results = asyncio.run(Runner([Bank().pay], journal=journal).recover())
    assert [result.status for result in results] == ["unknown"] * 640
    assert commits <= 640 / 8


async def test_what_a_person_allows_with_other_arguments_is_known_by_what_came() -> None:

    bank = Bank()
    runner = Runner(
        [bank.pay],
        guards=[lambda call, context: ask("how much?")],
        approve=lambda call, decision, context: allow({"euros": 3}),
        journal=memory(),
    )
    assert [(await runner.run(call(), **WHO)).text for _ in range(2)] == ["paid 3", "paid 3"]
    assert bank.paid == [3]


async def test_the_key_is_the_same_for_each_attempt_and_after_a_suspension_and_needs_no_journal() -> None:

    keys: list[str] = []

    @tool
    async def pay(euros: int, context: ToolContext) -> str:
        """Pay."""
        keys.append(context.idempotency_key)
        return "paid"

    async def twice(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        await next(call, context)
        result: ToolResult = await next(call, context)
        return result

    suspends = Runner(
        [pay],
        guards=[lambda call, context: ask("?")],
        approve=lambda call, decision, context: ask("later"),
        inside=[twice],
    )
    for who in (WHO, {}):
        record = (await suspends.run(call(), **who)).record()
        keys.append(record["pending"]["idempotency_key"])
        await suspends.resume(record, True)
        assert len(keys) == 3 and len(set(keys)) == 1 and len(keys[0]) == 32
        del keys[:]


async def test_a_retry_around_runs_the_call_again_and_its_last_outcome_is_kept() -> None:

    journal, ran = memory(), []

    @tool
    async def pay(euros: int) -> str:
        """Pay."""
        ran.append(euros)
        if len(ran) == 1:
            raise ValueError("down")
        return "paid"

    async def again(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        await next(call, context)
        result: ToolResult = await next(call, context)
        return result

    runner = Runner([pay], journal=journal, around=[again])
    assert [(await runner.run(call(), **WHO)).text for _ in range(2)] == ["paid", "paid"] and ran == [5, 5]


@pytest.mark.parametrize("status", ["ok", "limited", "failed", "suspended", None])
async def test_no_middleware_inside_can_say_that_a_call_was_not_run_which_then_runs_again(status: Any) -> None:

    bank = Bank()

    async def says_otherwise(call: ToolCall, context: ToolContext, next: Any) -> Any:
        await next(call, context)
        return status and ToolResult(None, None if status == "ok" else "no", status=status, executed=False)

    runner = Runner([bank.pay], journal=memory(), inside=[says_otherwise])
    first, again = await runner.run(call(), **WHO), await runner.run(call(), **WHO)
    assert bank.paid == [5] and again.metadata == {"replayed": True}
    assert first.executed is again.executed is True and first.status == again.status


@pytest.mark.parametrize("journal", [None, memory()], ids=["no journal", "journal"])
async def test_no_handler_can_say_that_a_call_was_replayed_or_resumed_elsewhere(journal: MemoryJournal | None) -> None:
    said = {**dict.fromkeys(KERNEL_METADATA, True), "of": "mine"}

    @tool
    async def pay(euros: int) -> ToolResult:
        """Pay."""
        return ToolResult("paid", metadata=said)

    result = await Runner([pay], journal=journal).run(call(), **WHO)
    assert result.metadata == {"of": "mine"} and said["replayed"] is True
