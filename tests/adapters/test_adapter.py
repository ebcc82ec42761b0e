"""The base of all adapters, without any framework."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

from ferrule import (
    DefinitionError,
    InputRequired,
    Runner,
    ToolCall,
    ToolContext,
    ToolResult,
    Waits,
    allow,
    ask,
    deny,
    tool,
)
from ferrule.adapters.adapter import Adapter, check_context_function, record_from_result
from ferrule.guards import ask_before_changes
from ferrule.journal import memory
from ferrule.stores.store import Memory
from ferrule.testing import ManualClock
from ferrule.values.deferred import Deferred

HERE = ToolContext(session="s", principal="ada")


class Bank:
    """A tool that counts its payments, and adapters to a runner that asks about it."""

    def __init__(self) -> None:
        self.paid: Counter[str] = Counter()
        self.opened = asyncio.Event()
        self.opened.set()

        @tool
        async def pay(to: str, euros: int = 1) -> str:
            await self.opened.wait()
            self.paid[f"{to} {euros}"] += 1
            return f"paid {euros} EUR to {to}"

        self.pay = pay

    def adapter(self, *, records: Any = None, **options: Any) -> Adapter:
        options = {"guards": [ask_before_changes], "journal": memory(), **options}
        return Adapter(Runner([self.pay], **options), "a framework", suspends=True, records=records)


def paying(euros: int = 5, id: str = "c1", to: str = "ada") -> ToolCall:
    return ToolCall(id, "pay", {"to": to, "euros": euros})


async def suspended(adapter: Adapter, call: ToolCall, context: ToolContext = HERE) -> Any:
    """Return the record of the suspended call."""
    result = await adapter.run(call, context)
    assert result.status == "suspended", result
    return record_from_result(result)


async def test_one_of_three_concurrent_answers_runs_the_call() -> None:
    bank = Bank()
    adapter = bank.adapter()
    record = await suspended(adapter, paying())
    given = (adapter.answer(paying(), HERE, True, record) for _ in range(3))
    assert [result.text for result in await asyncio.gather(*given)] == ["paid 5 EUR to ada"] * 3
    assert bank.paid == {"ada 5": 1}


@pytest.mark.parametrize(
    ("call", "context"),
    [
        (paying(id="c2"), HERE),
        (ToolCall("c1", "refund", {"to": "ada", "euros": 5}), HERE),
        (paying(), ToolContext(session="s", principal="bob")),
        (paying(), ToolContext(session="t", principal="ada")),
        (paying(), ToolContext(session="s")),
        (paying(500), HERE),
    ],
    ids=["call", "tool", "principal", "session", "nobody", "arguments"],
)
@pytest.mark.parametrize("answer", [True, {"to": "ada", "euros": 5}], ids=["yes", "approved arguments"])
async def test_an_answer_counts_for_its_record_alone(call: ToolCall, context: ToolContext, answer: Any) -> None:
    @tool
    async def refund(to: str, euros: int) -> str:
        raise AssertionError

    bank = Bank()
    runner = Runner([bank.pay, refund], guards=[ask_before_changes], journal=memory())
    adapter = Adapter(runner, "a framework", suspends=True)
    record = await suspended(adapter, paying())
    again = await adapter.answer(call, context, answer, record)
    assert again.pending is not None and not bank.paid, "the person is asked again"
    assert again.pending["context"]["principal"] == context.principal
    assert "it was asked about before, and" in again.pending["reason"]


@pytest.mark.parametrize("record", [7, {"pending": "x"}, {"pending": {}}])
async def test_an_answer_with_a_malformed_record_runs_nothing(record: Any) -> None:
    bank = Bank()
    adapter = bank.adapter()
    await suspended(adapter, paying())
    assert (await adapter.answer(paying(), HERE, {"to": "ada", "euros": 5}, record)).status == "suspended"
    assert not bank.paid


@pytest.mark.parametrize("name", ["kind", "sent", "arguments", "turn", "seal"])
async def test_a_changed_record_runs_nothing(name: str) -> None:
    bank = Bank()
    adapter = bank.adapter()
    record = await suspended(adapter, paying())
    value = record["pending"].pop(name)
    assert (await adapter.answer(paying(), HERE, True, record)).status == "suspended", "the person is asked again"
    record["pending"][name] = {"changed": value}
    assert (await adapter.answer(paying(), HERE, True, record)).status == "suspended"
    assert not bank.paid


async def test_a_yes_after_a_no_runs_nothing() -> None:
    bank = Bank()
    adapter = bank.adapter()
    record = await suspended(adapter, paying())
    for answer in (False, True):
        assert (await adapter.answer(paying(), HERE, answer, record)).status == "denied"
    assert not bank.paid


@pytest.mark.parametrize("answer", [False, deny("never"), True, allow(), {"to": "ada", "euros": 4}])
@pytest.mark.parametrize("brought", [True, False])
async def test_an_answer_without_a_usable_record_runs_nothing(answer: Any, brought: bool) -> None:
    """Another runner, as after a restart, cannot use the record, and its guards have forgotten why they asked."""
    bank, tainted, ends = Bank(), {"s"}, list[str]()
    guards = [lambda call, context: ask("it is tainted") if tainted else None]
    record = await suspended(bank.adapter(guards=guards), paying())
    tainted.clear()
    after = bank.adapter(guards=guards, observers=[lambda event: ends.append(event.kind)])
    result = await after.answer(paying(), HERE, answer, record if brought else None)
    is_no = answer is False or getattr(answer, "kind", "") == "deny"
    assert result.status == ("denied" if is_no else "suspended")
    assert not bank.paid
    assert ends.count("tool:error") == is_no
    assert not isinstance(answer, dict) or result.pending["arguments"] == answer  # type: ignore[index]


def capped(call: ToolCall, context: ToolContext) -> Any:
    euros = call.arguments["euros"]
    return {**call.arguments, "euros": 100} if euros > 100 else ask("it is money")


@pytest.mark.parametrize(
    ("sent", "approved", "paid"), [(500, 500, 100), (5, 5, 5), (5, 4, 4), (500, 100, 100), (5, 500, None)]
)
@pytest.mark.parametrize("session", ["s", None])
async def test_a_person_approves_the_judged_arguments_or_an_edit(
    sent: int, approved: int, paid: int | None, session: str | None
) -> None:
    """A yes to what the model sent is one to what the guards made of it; every edit is judged."""
    bank, context = Bank(), ToolContext(session=session, principal="ada")
    adapter = bank.adapter(guards=[capped])
    record = await suspended(adapter, paying(sent), context)
    await adapter.answer(paying(sent), context, {"to": "ada", "euros": approved}, record)
    assert bank.paid == ({} if paid is None else {f"ada {paid}": 1})


async def test_an_approval_does_not_answer_a_question_of_the_tool() -> None:
    @tool(read_only=True)
    async def wipe(context: ToolContext) -> str | InputRequired:
        return InputRequired("all of it?") if context.answer is None else "wiped"

    adapter = Adapter(Runner([wipe.replace(ask=True)], journal=memory()), "a framework", suspends=True)
    call = ToolCall("c1", "wipe", {})
    first = await suspended(adapter, call)
    asked = await adapter.answer(call, HERE, {}, first)
    again = await adapter.answer(call, HERE, {})  # the record that is kept is that of the second question
    done = await adapter.answer(call, HERE, allow())
    assert [asked.status, again.status] == ["suspended", "suspended"]
    assert asked.pending is not None and again.pending is not None
    assert asked.pending["reason"] == again.pending["reason"] == "all of it?"
    assert done.text == "wiped"


async def test_an_approval_does_not_end_deferred_work() -> None:
    @tool
    async def build() -> Deferred:
        return Deferred("build-7")

    adapter = Adapter(Runner([build], journal=memory()), "a framework", suspends=True)
    call = ToolCall("c1", "build", {})
    record = await suspended(adapter, call)
    waits = await adapter.answer(call, HERE, {}, record)
    assert waits.status == "suspended"
    done = await adapter.answer(call, HERE, ToolResult("built"), record)
    assert done.text == "built"


async def test_work_sealed_by_another_runner_is_not_asked_about_forever() -> None:
    """A framework that takes the answer to a record for one to the same record would ask for ever."""

    @tool
    async def build() -> Deferred:
        return Deferred("build-7", reason="it is built elsewhere")

    journal, call = memory(), ToolCall("c1", "build")
    first, second = (Adapter(Runner([build], journal=journal), "a framework", suspends=True) for _ in range(2))
    record = await suspended(first, call)
    result = await second.answer(call, HERE, True, record)
    assert result.pending is None and result.status == "invalid"
    assert "resume_key" not in result.text


async def test_records_that_have_expired_are_dropped() -> None:
    bank = Bank()
    clock, records = ManualClock(), Memory()
    adapter = bank.adapter(records=records, clock=clock, waits=Waits(resume=10))
    for number in range(100):
        await adapter.run(paying(id=f"c{number}"), HERE)
        await clock.advance(1)
    assert len(records.items("interop ")) < 60, "10 have not expired"


async def test_a_journal_made_by_an_adapter_drops_the_oldest_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrule.adapters.adapter._MAX_CALLS_IN_MEMORY", 3)
    bank = Bank()
    adapter, ran = Adapter(Runner([bank.pay]), "a framework", suspends=True), []
    for number in (0, 1, 2, 3, 3, 1, 0):
        await adapter.run(paying(id=f"c{number}"), HERE)
        ran.append(bank.paid.total())
    assert ran == [1, 2, 3, 4, 4, 4, 5]


async def test_adapters_of_one_runner_share_a_journal(caplog: pytest.LogCaptureFixture) -> None:
    bank = Bank()
    runner = Runner([bank.pay])
    for _ in range(2):
        await Adapter(runner, "a framework", suspends=True).run(paying(), HERE)
    assert bank.paid == {"ada 5": 1}
    assert [record.levelname for record in caplog.records] == ["WARNING"]


class Blocking(Memory):
    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()

    def get(self, key: str) -> Any:
        assert self.open.wait(60)
        return super().get(key)


async def test_a_store_that_blocks_holds_up_only_its_own_call() -> None:
    bank, approve_bob = Bank(), ToolContext(session="s", principal="bob")
    records = Blocking()
    adapter = bank.adapter(records=records)
    waits = asyncio.ensure_future(adapter.run(paying(), HERE))
    other = await adapter.runner.run("pay", {"to": "bob"}, approve_bob)
    records.open.set()
    await waits
    assert other.status == "suspended"


async def test_a_store_that_fails_after_a_call_keeps_its_outcome(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Memory):
        is_down = False

        def get(self, key: str) -> Any:
            if self.is_down:
                raise ConnectionError
            return super().get(key)

    records = Failing()
    observers = [lambda event: setattr(records, "is_down", event.kind in ("tool:post", "tool:error"))]
    for answer, status in ((True, "ok"), (False, "denied")):
        adapter = Bank().adapter(records=records, observers=observers)
        await adapter.run(paying(), HERE)
        assert (await adapter.answer(paying(), HERE, answer)).status == status
        assert ("the outcome of a call of tool" in caplog.text) is (answer is False)  # the journal has that of a yes
        records.is_down = False


async def test_a_cancelled_call_does_not_wait_for_a_progress_report() -> None:
    told = asyncio.Event()

    @tool(read_only=True)
    async def crawl(context: ToolContext) -> str:
        context.progress(1, 2)
        await asyncio.get_running_loop().create_future()
        return "never"

    async def tell(done: float, total: float | None, message: str | None) -> None:
        told.set()
        await asyncio.get_running_loop().create_future()

    adapter = Adapter(Runner([crawl], journal=memory()), "a framework", suspends=False)
    task = asyncio.ensure_future(adapter.run(ToolCall("c1", "crawl", {}), HERE, tell))
    await told.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("c1", HERE), ("c2", HERE)),
        (("c1", HERE), ("c1", HERE.replace(principal="bob"))),
        (("c1", ToolContext()), ("c1", ToolContext())),
        (("", HERE), ("", HERE)),
    ],
    ids=["ids", "principals", "no session", "no ids"],
)
async def test_progress_reaches_only_its_own_call(first: Any, second: Any) -> None:
    @tool(read_only=True)
    async def crawl(pages: int, context: ToolContext) -> str:
        for page in range(pages):
            context.progress(page, pages)
            await asyncio.sleep(0)
        return "done"

    adapter = Adapter(Runner([crawl], journal=memory()), "a framework", suspends=False)

    async def one(known: tuple[str, ToolContext], pages: int) -> list[float]:
        async def tell(done: float, total: float | None, message: str | None) -> None:
            told.append(done)

        told: list[float] = []
        await adapter.run(ToolCall(known[0], "crawl", {"pages": pages}), known[1], tell)
        return told

    untold = adapter.run(ToolCall("c3", "crawl", {"pages": 9}), HERE)
    [*told, _] = await asyncio.gather(one(first, 3), one(second, 2), untold)
    assert told == [[0, 1, 2], [0, 1]]


def test_a_tool_that_may_ask_needs_somebody_to_ask() -> None:
    with pytest.raises(DefinitionError, match="approve="):
        Adapter(Runner([Bank().pay], guards=[ask_before_changes]), "a framework", suspends=False)
    with pytest.raises(DefinitionError, match="Runner"):
        Adapter([Bank().pay], "a framework", suspends=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [None, {"session": "s"}, "ada"])
def test_a_context_function_must_return_a_context(given: Any) -> None:
    made = check_context_function("theirs", lambda theirs: given, lambda theirs: ToolContext())
    with pytest.raises(DefinitionError, match=f"returned a {type(given).__name__}"):
        made("their context")
