"""What the adapters share, without any framework."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
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
from ferrule.stores.store import Memory, StoreError
from ferrule.testing import ManualClock
from ferrule.values.deferred import Deferred

HERE = ToolContext(session="s", principal="ada")


class Bank:
    """A payment, which counts; and adapters to a runner that asks about it."""

    def __init__(self) -> None:
        self.paid: Counter[str] = Counter()
        self.opened = asyncio.Event()
        self.opened.set()

        @tool
        async def pay(to: str, euros: int = 1) -> str:
            """Pay."""
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
    """The record of the call, as it comes back from a framework."""
    result = await adapter.run(call, context)
    assert result.status == "suspended", result
    return record_from_result(result)


# -- whose answer it is ------------------------------------------------------------------------------------------------


def test_of_two_answers_at_once_one_runs_the_call_and_the_other_waits_for_what_that_comes_to() -> None:
    async def run() -> None:
        adapter = bank.adapter()
        record = await suspended(adapter, paying())
        given = (adapter.answer(paying(), HERE, True, record) for _ in range(3))
        assert [result.text for result in await asyncio.gather(*given)] == ["paid 5 EUR to ada"] * 3

    bank = Bank()
    asyncio.run(run())
    assert bank.paid == {"ada 5": 1}


def test_who_waits_for_another_answer_and_is_cancelled_takes_nothing_from_others() -> None:
    async def run() -> None:
        adapter = bank.adapter()
        record = await suspended(adapter, paying())
        first, second, third = (asyncio.ensure_future(adapter.answer(paying(), HERE, True, record)) for _ in range(3))
        bank.opened.clear()
        await asyncio.sleep(0)
        second.cancel()
        bank.opened.set()
        assert (await first).text == (await third).text == "paid 5 EUR to ada"
        with pytest.raises(asyncio.CancelledError):
            await second

    bank = Bank()
    asyncio.run(run())
    assert bank.paid == {"ada 5": 1}


def test_of_two_calls_that_wait_under_one_id_each_has_its_own_answer() -> None:
    """Such as those of two agents that work for a third, whose ids are counted by each."""

    async def run() -> None:
        adapter = bank.adapter()
        first, second = paying(5), paying(6, to="bob")
        for call in (first, second):
            assert (await adapter.run(call, HERE)).status == "suspended"
        assert (await adapter.answer(second, HERE, False)).status == "denied"
        assert (await adapter.answer(first, HERE, True)).success

    bank = Bank()
    asyncio.run(run())
    assert bank.paid == {"ada 5": 1}


def test_an_edit_without_a_record_is_one_of_the_call_that_was_shown() -> None:
    async def run() -> None:
        adapter = bank.adapter()
        for call in (paying(5), paying(500, to="eve")):
            assert (await adapter.run(call, HERE)).status == "suspended"
        assert (await adapter.answer(paying(5), HERE, {"to": "ada", "euros": 4})).success
        assert (await adapter.answer(paying(500, to="eve"), HERE, False)).status == "denied"

    bank = Bank()
    asyncio.run(run())
    assert bank.paid == {"ada 4": 1}


def test_a_call_that_was_suspended_twice_runs_once_whatever_the_two_answers_say() -> None:
    async def run() -> None:
        adapter = bank.adapter()
        first, second = await suspended(adapter, paying()), await suspended(adapter, paying())
        same, edit = {"to": "ada", "euros": 5}, {"to": "ada", "euros": 4}
        await asyncio.gather(adapter.answer(paying(), HERE, same, first), adapter.answer(paying(), HERE, edit, second))

    bank = Bank()
    asyncio.run(run())
    assert bank.paid.total() == 1


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
def test_an_answer_is_for_no_other_call_than_that_of_its_record(
    call: ToolCall, context: ToolContext, answer: Any
) -> None:
    @tool
    async def refund(to: str, euros: int) -> str:
        """Refund."""
        raise AssertionError

    async def run() -> ToolResult:
        runner = Runner([bank.pay, refund], guards=[ask_before_changes], journal=memory())
        adapter = Adapter(runner, "a framework", suspends=True)
        record = await suspended(adapter, paying())
        return await adapter.answer(call, context, answer, record)

    bank = Bank()
    assert asyncio.run(run()).status == "suspended", "the person is asked again"
    assert not bank.paid


@pytest.mark.parametrize("record", [{}, {"pending": None}, {"pending": "x"}, {"pending": {}}, [], 7, "record"])
def test_what_is_no_record_is_no_answer(record: Any) -> None:
    async def run() -> ToolResult:
        adapter = bank.adapter()
        await suspended(adapter, paying())
        return await adapter.answer(paying(), HERE, {"to": "ada", "euros": 5}, record)

    bank = Bank()
    assert asyncio.run(run()).status == "suspended"
    assert not bank.paid


@pytest.mark.parametrize("name", ["kind", "reason", "sent", "arguments", "turn", "seal", "expires_at"])
@pytest.mark.parametrize("change", ["taken out", "changed"])
def test_a_record_that_was_changed_anywhere_runs_nothing(name: str, change: str) -> None:
    async def run() -> ToolResult:
        adapter = bank.adapter()
        record = await suspended(adapter, paying())
        if change == "changed":
            record["pending"][name] = {"to": "ada", "euros": 500}
        else:
            del record["pending"][name]
        return await adapter.answer(paying(), HERE, {"to": "ada", "euros": 5}, record)

    bank = Bank()
    assert asyncio.run(run()).status == "suspended", "the person is asked again"
    assert not bank.paid


def test_a_no_stays_a_no_when_it_is_followed_by_a_yes() -> None:
    async def run() -> list[str]:
        adapter = bank.adapter()
        record = await suspended(adapter, paying())
        return [(await adapter.answer(paying(), HERE, said, record)).status for said in (False, True)]

    bank = Bank()
    assert asyncio.run(run()) == ["denied", "denied"]
    assert not bank.paid


class Tainted:
    """What a guard remembers, and asks about."""

    def __init__(self) -> None:
        self.remembered = True

    def __call__(self, call: ToolCall, context: ToolContext) -> Any:
        return ask("it is tainted") if self.remembered else None


@pytest.mark.parametrize("answer", [False, deny("never"), True, allow(), {"to": "ada", "euros": 4}])
@pytest.mark.parametrize("brought", [True, False])
def test_an_answer_without_a_usable_record_runs_nothing_whatever_the_guards_have_forgotten(
    answer: Any, brought: bool
) -> None:
    async def run() -> ToolResult:
        record = await suspended(bank.adapter(guards=[tainted]), paying())
        tainted.remembered = False
        ends.clear()
        after = bank.adapter(guards=[tainted], observers=[lambda event: ends.append(event.kind)])  # a restart
        return await after.answer(paying(), HERE, answer, record if brought else None)

    bank, tainted, ends = Bank(), Tainted(), list[str]()
    result = asyncio.run(run())
    is_no = answer is False or getattr(answer, "kind", "") == "deny"
    assert result.status == ("denied" if is_no else "suspended")
    assert not bank.paid
    assert ends.count("tool:error") == is_no
    assert not isinstance(answer, dict) or result.pending["arguments"] == answer  # type: ignore[index]


@pytest.mark.parametrize(
    ("whose", "brought", "why"),
    [
        (HERE, {"arguments": {"to": "eve"}}, "the record of that question was changed, or another runner sealed it"),
        (HERE, {"sent": "0"}, "the call had other arguments then"),
        (ToolContext(session="s", principal="eve"), {}, "the record of that question belongs to somebody else"),
        (ToolContext(session="t", principal="ada"), {}, "the record of that question belongs to another session"),
        (ToolContext(session="s", principal="eve"), None, "the record of that question is gone"),
    ],
)
def test_the_next_question_says_why_the_record_that_an_answer_brought_was_not_taken(
    whose: ToolContext, brought: dict[str, Any] | None, why: str
) -> None:
    async def run() -> ToolResult:
        adapter = bank.adapter(
            observers=[lambda event: rules.append(getattr(event.data.get("decision"), "rule", None))]
        )
        record = await suspended(adapter, paying())
        changed = None if brought is None else {"pending": record["pending"] | brought}
        return await adapter.answer(paying(), whose, True, changed)

    bank, rules = Bank(), list[Any]()
    result = asyncio.run(run())
    assert result.pending is not None and result.pending["reason"].endswith(f"it was asked about before, and {why}")
    assert result.pending["context"]["principal"] == whose.principal and not bank.paid
    assert not any(str(name).startswith("_") for rule in rules if rule for name in rule.split("; "))


async def test_a_question_that_is_put_again_is_answered_like_any() -> None:

    bank, tainted = Bank(), Tainted()
    adapter, tainted.remembered = bank.adapter(guards=[tainted]), False
    assert (await adapter.answer(paying(), HERE, True)).status == "suspended"
    assert (await adapter.answer(paying(), HERE, True)).text == "paid 5 EUR to ada"


@pytest.mark.parametrize("answer", [False, True])
def test_an_answer_to_a_call_that_the_journal_knows_is_told_what_came_of_it(answer: bool) -> None:
    async def run() -> str:
        adapter = bank.adapter(guards=[])
        await adapter.run(paying(), HERE)
        return (await adapter.answer(paying(), HERE, answer)).text

    bank = Bank()
    assert asyncio.run(run()) == "paid 5 EUR to ada"
    assert bank.paid.total() == 1


def test_a_no_whose_record_is_gone_does_not_run_a_handler_that_wanted_to_know_something() -> None:
    @tool(read_only=True)
    async def wipe() -> InputRequired:
        """Wipe."""
        ran.append(True)
        return InputRequired("all of it?")

    async def run() -> ToolResult:
        journal, call = memory(), ToolCall("c1", "wipe", {})
        first, second = (Adapter(Runner([wipe], journal=journal), "a framework", suspends=True) for _ in range(2))
        return await second.answer(call, HERE, False, await suspended(first, call))

    ran: list[bool] = []
    assert asyncio.run(run()).status == "denied"
    assert ran == [True]


# -- what was approved -------------------------------------------------------------------------------------------------


def capped(call: ToolCall, context: ToolContext) -> Any:
    euros = call.arguments["euros"]
    return {**call.arguments, "euros": 100} if euros > 100 else ask("it is money")


@pytest.mark.parametrize(
    ("sent", "approved", "paid"), [(500, 500, 100), (5, 5, 5), (5, 4, 4), (500, 100, 100), (5, 500, None)]
)
@pytest.mark.parametrize("session", ["s", None])
def test_a_person_approves_what_was_judged_or_an_edit_of_it(
    sent: int, approved: int, paid: int | None, session: str | None
) -> None:
    """A yes to what the model sent is one to what the guards made of it; every edit is judged."""

    async def run() -> None:
        adapter = bank.adapter(guards=[capped])
        record = await suspended(adapter, paying(sent), context)
        await adapter.answer(paying(sent), context, {"to": "ada", "euros": approved}, record)

    bank, context = Bank(), ToolContext(session=session, principal="ada")
    asyncio.run(run())
    assert bank.paid == ({} if paid is None else {f"ada {paid}": 1})


def test_without_a_session_a_yes_with_its_record_is_one_to_the_call_as_it_was_sent() -> None:
    async def run() -> None:
        adapter = bank.adapter()
        record = await suspended(adapter, paying(), nowhere)
        assert (await adapter.answer(paying(500), nowhere, True, record)).status == "suspended", "it is asked again"
        assert (await adapter.answer(paying(), nowhere, True, record)).text == "paid 5 EUR to ada"

    bank, nowhere = Bank(), ToolContext()
    asyncio.run(run())
    assert bank.paid == {"ada 5": 1}


def test_an_approval_answers_no_question_of_the_tool_itself() -> None:
    @tool(read_only=True)
    async def wipe(context: ToolContext) -> str | InputRequired:
        """Wipe."""
        return InputRequired("all of it?") if context.answer is None else "wiped"

    async def run() -> list[ToolResult]:
        adapter = Adapter(Runner([wipe.replace(ask=True)], journal=memory()), "a framework", suspends=True)
        call = ToolCall("c1", "wipe", {})
        first = await suspended(adapter, call)
        asked = await adapter.answer(call, HERE, {}, first)
        again = await adapter.answer(call, HERE, {})  # the record that is kept is that of the second question
        return [asked, again, await adapter.answer(call, HERE, allow())]

    asked, again, done = asyncio.run(run())
    assert [asked.status, again.status] == ["suspended", "suspended"]
    assert asked.pending is not None and again.pending is not None
    assert asked.pending["reason"] == again.pending["reason"] == "all of it?"
    assert done.text == "wiped"


def test_an_approval_does_not_end_work_that_goes_on_elsewhere() -> None:
    @tool
    async def build() -> Deferred:
        """Build."""
        return Deferred("build-7")

    async def run() -> list[ToolResult]:
        adapter = Adapter(Runner([build], journal=memory()), "a framework", suspends=True)
        call = ToolCall("c1", "build", {})
        record = await suspended(adapter, call)
        waits = await adapter.answer(call, HERE, {}, record)
        return [waits, await adapter.answer(call, HERE, ToolResult("built"), record)]

    waits, done = asyncio.run(run())
    assert waits.status == "suspended"
    assert done.text == "built"


# -- what is kept ------------------------------------------------------------------------------------------------------


def test_work_that_another_runner_has_sealed_is_not_asked_about_again_and_again() -> None:
    """A framework that takes the answer to a record for one to the same record would ask for ever."""

    @tool
    async def build() -> Deferred:
        """Build."""
        return Deferred("build-7", reason="it is built elsewhere")

    async def run() -> ToolResult:
        journal, call = memory(), ToolCall("c1", "build")
        first, second = (Adapter(Runner([build], journal=journal), "a framework", suspends=True) for _ in range(2))
        record = await suspended(first, call)
        return await second.answer(call, HERE, True, record)

    result = asyncio.run(run())
    assert result.pending is None and result.status == "invalid"
    assert "resume_key" not in result.text


def test_records_that_have_expired_are_dropped() -> None:
    async def run() -> int:
        clock, records = ManualClock(), Memory()
        adapter = bank.adapter(records=records, clock=clock, waits=Waits(resume=60))
        for number in range(400):
            await adapter.run(paying(id=f"c{number}"), HERE)
            await clock.advance(1)
        return len(records.items("interop "))

    bank = Bank()
    assert asyncio.run(run()) < 200, "60 have not expired"


def test_a_journal_that_an_adapter_makes_forgets_the_oldest_calls_that_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> list[int]:
        adapter, ran = Adapter(Runner([bank.pay]), "a framework", suspends=True), []
        for number in (0, 1, 2, 3, 3, 1, 0):
            await adapter.run(paying(id=f"c{number}"), HERE)
            ran.append(bank.paid.total())
        return ran

    monkeypatch.setattr("ferrule.adapters.adapter._MAX_CALLS_IN_MEMORY", 3)
    bank = Bank()
    assert asyncio.run(run()) == [1, 2, 3, 4, 4, 4, 5]


def test_adapters_of_a_runner_without_a_journal_know_the_calls_of_each_other(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        runner = Runner([bank.pay])
        for _ in range(2):
            await Adapter(runner, "a framework", suspends=True).run(paying(), HERE)

    bank = Bank()
    asyncio.run(run())
    assert bank.paid == {"ada 5": 1}
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_adapters_that_threads_make_at_once_share_one_journal() -> None:
    made: list[Adapter] = []
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            runner, ready = Runner([Bank().pay]), threading.Barrier(8)

            def make(runner: Runner = runner, ready: threading.Barrier = ready) -> None:
                ready.wait(60)
                made.append(Adapter(runner, "a framework", suspends=True))

            threads = [threading.Thread(target=make) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(switching)
    assert len(made) == 160
    assert len({adapter.runner.journal for adapter in made}) == 20


def test_a_runner_that_is_made_for_one_request_is_not_kept() -> None:
    runner = Runner([Bank().pay])
    Adapter(runner, "a framework", suspends=True)
    gone = weakref.ref(runner)
    del runner
    gc.collect()
    assert gone() is None


def test_runners_that_are_made_anew_share_what_they_are_given() -> None:
    async def run() -> str:
        given: Any = {"journal": memory(), "resume_key": b"k" * 32}
        await suspended(bank.adapter(**given), paying())
        return (await bank.adapter(**given).answer(paying(), HERE, True)).text

    bank = Bank()
    assert asyncio.run(run()) == "paid 5 EUR to ada"


class Blocking(Memory):
    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()

    def get(self, key: str) -> Any:
        assert self.open.wait(60)
        return super().get(key)


def test_a_store_that_blocks_keeps_nobody_but_its_own_call() -> None:
    async def run() -> str:
        records = Blocking()
        adapter = bank.adapter(records=records)
        waits = asyncio.ensure_future(adapter.run(paying(), HERE))
        other = await adapter.runner.run("pay", {"to": "bob"}, approve_bob)
        records.open.set()
        await waits
        return other.status

    bank, approve_bob = Bank(), ToolContext(session="s", principal="bob")
    assert asyncio.run(run()) == "suspended"


async def test_a_record_in_memory_is_found_without_a_thread() -> None:

    bank, executor = Bank(), ThreadPoolExecutor()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(executor)
    executor.shutdown()  # whoever wants a thread from here on fails
    assert await bank.adapter().find_record(paying(), HERE) is None
    with pytest.raises(RuntimeError):
        await bank.adapter(records=Blocking()).find_record(paying(), HERE)


async def test_a_store_that_does_not_keep_is_told_of() -> None:
    class Deaf(Memory):
        def compare_and_set(self, key: str, old: Any, new: Any) -> bool:
            return False

    with pytest.raises(StoreError, match="compare_and_set"):
        await Bank().adapter(records=Deaf()).run(paying(), HERE)


# -- how a call goes ---------------------------------------------------------------------------------------------------


def test_a_call_that_is_cancelled_does_not_wait_for_whoever_is_told_of_its_progress() -> None:
    async def run() -> None:
        told = asyncio.Event()

        @tool(read_only=True)
        async def crawl(context: ToolContext) -> str:
            """Crawl."""
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

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("c1", HERE), ("c2", HERE)),
        (("c1", HERE), ("c1", HERE.replace(principal="bob"))),
        (("c1", HERE), ("c1", HERE.replace(session="t"))),
        (("c1", ToolContext()), ("c1", ToolContext())),
        (("", HERE), ("", HERE)),
    ],
    ids=["ids", "principals", "sessions", "no session", "no ids"],
)
def test_progress_reaches_its_own_call_alone(first: Any, second: Any) -> None:
    @tool(read_only=True)
    async def crawl(pages: int, context: ToolContext) -> str:
        """Crawl."""
        for page in range(pages):
            context.progress(page, pages)
            await asyncio.sleep(0)
        return "done"

    async def run() -> list[Any]:
        adapter = Adapter(Runner([crawl], journal=memory()), "a framework", suspends=False)

        async def one(known: tuple[str, ToolContext], pages: int) -> list[float]:
            async def tell(done: float, total: float | None, message: str | None) -> None:
                told.append(done)

            told: list[float] = []
            await adapter.run(ToolCall(known[0], "crawl", {"pages": pages}), known[1], tell)
            return told

        untold = adapter.run(ToolCall("c3", "crawl", {"pages": 9}), HERE)
        [*told, _] = await asyncio.gather(one(first, 3), one(second, 2), untold)
        return told

    assert asyncio.run(run()) == [[0, 1, 2], [0, 1]]


def test_what_may_ask_is_refused_where_nobody_can_be_asked() -> None:
    with pytest.raises(DefinitionError, match="approve="):
        Adapter(Runner([Bank().pay], guards=[ask_before_changes]), "a framework", suspends=False)
    with pytest.raises(DefinitionError, match="Runner"):
        Adapter([Bank().pay], "a framework", suspends=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [None, {"session": "s"}, "ada"])
def test_a_function_that_gives_no_context_makes_no_call_for_nobody(given: Any) -> None:
    made = check_context_function("theirs", lambda theirs: given, lambda theirs: ToolContext())
    with pytest.raises(DefinitionError, match=f"returned a {type(given).__name__}"):
        made("their context")


def test_a_context_is_made_of_theirs_by_the_function_that_was_given_or_else_by_the_adapters_own() -> None:
    def of_user(theirs: str) -> ToolContext[Any]:
        return ToolContext(principal=theirs)

    assert check_context_function("theirs", of_user, lambda theirs: ToolContext())("ada").principal == "ada"
    assert check_context_function("theirs", None, of_user)("bob").principal == "bob"
