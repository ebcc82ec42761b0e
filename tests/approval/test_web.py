"""A queue of suspended calls: the first answer to what was shown counts, and nothing else does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ferrule import Diff, Journal, Runner, ToolCall, ToolError, ToolResult, Waits, allow, approval, ask, deny, tool
from ferrule.approval import (
    AcceptedAnswer,
    AlreadyAnswered,
    AnswerRefused,
    NotWaiting,
    OwnCall,
    QuestionChanged,
    WaitingCall,
)
from ferrule.errors import DefinitionError
from ferrule.guards import ask_before_changes
from ferrule.stores.store import Memory, SealedFile, Store
from ferrule.testing import ManualClock
from ferrule.tools import files
from waits import BOUND

CALL = ToolCall("1", "pay", {"to": "ada", "euros": 5})


class Desk:
    """A runner whose calls wait, and what was paid."""

    def __init__(self, **options: Any) -> None:
        self.paid: list[tuple[str, int]] = []

        @tool
        async def pay(to: str, euros: int) -> str:
            """Pay somebody."""
            self.paid.append((to, euros))
            return f"paid {to} {euros}"

        self.runner = Runner([pay, *files.tools], guards=[ask_before_changes], approve=approval.later, **options)

    async def waits(self, queue: Any, call: ToolCall = CALL) -> WaitingCall:
        await queue.put(await self.runner.run(call, principal="ann"))
        found: WaitingCall = (await queue.waiting())[-1]
        return found

    async def resume(self, taken: AcceptedAnswer) -> ToolResult:
        return await self.runner.resume(taken.record, taken.decision, by=taken.by)


def go(main: Callable[[], Any]) -> Any:
    return asyncio.run(main())


async def test_a_yes_runs_what_was_shown_and_the_record_says_by_whom() -> None:

    desk, queue = Desk(), approval.web()
    shown = await desk.waits(queue)
    assert "euros = 5" in shown.text and "by rule: ask_before_changes" in shown.text
    result = await desk.resume(await queue.answer(shown.id, shown.digest, True, by="bob"))
    assert result.output == "paid ada 5" and result.record()["approved_by"] == "bob"
    assert desk.paid == [("ada", 5)] and await queue.waiting() == []


@pytest.mark.parametrize("answer", [False, deny("too much")])
async def test_a_no_runs_nothing(answer: Any) -> None:

    desk, queue = Desk(), approval.web()
    shown = await desk.waits(queue)
    result = await desk.resume(await queue.answer(shown.id, shown.digest, answer, by="bob"))
    assert result.status == "denied" and desk.paid == []
    assert ("too much" in str(result.error)) is (answer is not False)


@pytest.mark.parametrize("kept_in", ["memory", "file", "journal"])
def test_of_fifty_answers_at_once_one_counts(kept_in: str, tmp_path: Path) -> None:
    def store() -> Store:
        if kept_in == "journal":
            return Journal.open(tmp_path / "calls.db").store
        return Memory() if kept_in == "memory" else SealedFile(tmp_path / "kept" / "queue", b"k" * 32)

    async def main() -> None:
        desk, shared = Desk(), store()
        queues = [approval.web(shared if kept_in == "memory" else store()) for _ in range(2)]
        shown = await desk.waits(queues[0])
        answers = (
            queues[number % 2].answer(shown.id, shown.digest, number % 3 == 0, by=f"p{number}") for number in range(50)
        )
        given = await asyncio.gather(*answers, return_exceptions=True)
        [taken] = [one for one in given if isinstance(one, AcceptedAnswer)]
        assert sum(isinstance(one, AlreadyAnswered) for one in given) == 49
        result = await desk.resume(taken)
        assert (result.status == "ok") is (taken.decision.kind == "allow") and result.approved_by == taken.by
        assert len(desk.paid) == (1 if taken.decision.kind == "allow" else 0)
        again = await asyncio.gather(*(desk.resume(taken) for _ in range(50)))
        assert {one.status for one in again} == {"invalid"} and len(desk.paid) <= 1

    go(main)


async def test_an_answer_with_another_digest_takes_nothing() -> None:

    desk, queue = Desk(), approval.web()
    shown = await desk.waits(queue)
    other = await desk.waits(queue, ToolCall("2", "pay", {"to": "eve", "euros": 5000}))
    for id, digest in ((shown.id, other.digest), (other.id, shown.digest), (shown.id, ""), (shown.id, "0" * 64)):
        with pytest.raises(QuestionChanged):
            await queue.answer(id, digest, True, by="bob")
    assert len(await queue.waiting()) == 2


@pytest.mark.parametrize("id", ["", "x", "waiting ", "../x"])
async def test_an_answer_to_what_does_not_wait_is_refused(id: str) -> None:

    queue = approval.web()
    shown = await Desk().waits(queue)
    with pytest.raises(NotWaiting):
        await queue.answer(id, shown.digest, True, by="bob")


async def test_a_record_that_was_swapped_in_the_store_is_not_answered() -> None:

    desk, store = Desk(), Memory()
    queue = approval.web(store)
    shown = await desk.waits(queue)
    other = await desk.waits(queue, ToolCall("2", "pay", {"to": "eve", "euros": 5000}))
    old, new = store.get(f"waiting {shown.id}"), store.get(f"waiting {other.id}")
    assert store.compare_and_set(f"waiting {shown.id}", old, new)
    broken, whole = await queue.waiting()
    assert broken.id == shown.id and broken.problem and whole.id == other.id
    for digest in (shown.digest, other.digest, broken.digest):
        with pytest.raises(AnswerRefused):
            await queue.answer(shown.id, digest, True, by="bob")


async def test_a_record_that_was_changed_in_the_store_runs_nothing() -> None:

    desk, store = Desk(), Memory()
    queue = approval.web(store)
    shown = await desk.waits(queue)
    old = store.get(f"waiting {shown.id}")
    changed = {"pending": {**old["pending"], "arguments": {"to": "eve", "euros": 5000}}}
    assert store.compare_and_set(f"waiting {shown.id}", old, changed)
    with pytest.raises(QuestionChanged):
        await queue.answer(shown.id, shown.digest, True, by="bob")
    [shown] = await queue.waiting()
    result = await desk.resume(await queue.answer(shown.id, shown.digest, True, by="bob"))
    assert result.status == "invalid" and desk.paid == []


async def test_what_has_expired_does_not_wait_and_is_forgotten() -> None:

    desk, store = Desk(clock=ManualClock(now=1_000.0), waits=Waits(resume=5.0)), Memory()
    queue = approval.web(store)
    id = await queue.put(await desk.runner.run(CALL))
    with pytest.raises(NotWaiting):
        await queue.answer(id, "", True, by="bob")
    assert await queue.waiting() == [] and store.items() == {}


@pytest.mark.parametrize("given", [None, "yes", 1, "true", {"approved": True}, ask("later")])
def test_what_is_no_answer_takes_nothing(given: Any) -> None:
    async def main() -> None:
        queue = approval.web()
        shown = await Desk().waits(queue)
        with pytest.raises(DefinitionError):
            await queue.answer(shown.id, shown.digest, given, by="bob")
        with pytest.raises(DefinitionError):
            await queue.answer(shown.id, shown.digest, True, by="")
        assert len(await queue.waiting()) == 1

    go(main)


async def test_a_principal_does_not_allow_its_own_call_where_that_is_barred() -> None:

    desk, queue = Desk(), approval.web(own=False)
    shown = await desk.waits(queue)
    with pytest.raises(OwnCall):
        await queue.answer(shown.id, shown.digest, allow(by="eve"), by="ann")
    with pytest.raises(OwnCall):
        await queue.answer(shown.id, shown.digest, True, by="Ann ")
    taken = await queue.answer(shown.id, shown.digest, False, by="ann")
    assert taken.decision.kind == "deny"


@pytest.mark.parametrize("hidden", ["\u200b", "\ufe0f", "\u034f", "\u3164", "\u115f", "\u2800", "\x00", " "])
async def test_an_invisible_character_makes_nobody_somebody_else(hidden: str) -> None:

    desk, queue = Desk(), approval.web(own=False)
    shown = await desk.waits(queue)
    for by in (f"ann{hidden}", f"{hidden}Ann", f" ann{hidden} "):
        with pytest.raises(OwnCall):
            await queue.answer(shown.id, shown.digest, True, by=by)


async def test_who_answers_is_what_the_application_says_and_nothing_else() -> None:

    desk, queue = Desk(), approval.web()
    shown = await desk.waits(queue)
    taken = await queue.answer(shown.id, shown.digest, allow(by="somebody else"), by="bob")
    assert (taken.by, taken.decision.by) == ("bob", "bob")


async def test_an_answer_may_have_other_arguments() -> None:

    desk, queue = Desk(), approval.web()
    shown = await desk.waits(queue)
    changed = allow({**shown.request.arguments, "euros": 3})
    await desk.resume(await queue.answer(shown.id, shown.digest, changed, by="bob"))
    assert desk.paid == [("ada", 3)]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_file_that_changes_before_or_after_the_answer_is_not_written_over(when: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\n", encoding="utf-8")

    desk = Desk()
    queue = approval.web(tools=desk.runner.tools)
    call = ToolCall("1", "write_file", {"path": str(path), "content": "new\n"})
    shown = await desk.waits(queue, call)
    assert "-one" in shown.text and "+new" in shown.text
    if when == "before":
        path.write_text("two\n", encoding="utf-8")
        with pytest.raises(QuestionChanged):
            await queue.answer(shown.id, shown.digest, True, by="bob")
        [shown] = await queue.waiting()
        assert "-two" in shown.text
    taken = await queue.answer(shown.id, shown.digest, True, by="bob")
    if when == "after":
        path.write_text("two\n", encoding="utf-8")
    result = await desk.resume(taken)
    assert result.success is (when == "before")
    assert path.read_text(encoding="utf-8") == ("new\n" if when == "before" else "two\n")


async def test_what_is_put_again_waits_again_and_runs_once_all_the_same() -> None:

    desk, queue = Desk(), approval.web()
    shown = await desk.waits(queue)
    for expected in ("ok", "invalid"):
        result = await desk.resume(await queue.answer(shown.id, shown.digest, True, by="bob"))
        assert result.status == expected
        await queue.put(dict(shown.record))
    assert desk.paid == [("ada", 5)]


async def test_what_is_no_suspended_call_is_not_put() -> None:

    queue = approval.web()
    done = await Runner([tool(lambda: 1, name="one")]).run("one")
    for wrong in (done, {}, {"pending": None}, {"pending": {}}, "x"):
        with pytest.raises(DefinitionError):
            await queue.put(wrong)


@pytest.mark.parametrize("field", ["key", "call", "arguments", "context", "reason", "rule", "expires_at", "asked_at"])
@pytest.mark.parametrize("value", [..., None, 1, [], "x", float("nan")])
def test_what_could_not_be_shown_is_not_put_and_the_others_wait_on(field: str, value: Any) -> None:
    async def main() -> None:
        desk, queue = Desk(), approval.web()
        shown = await desk.waits(queue)
        record = (await desk.runner.run(CALL, principal="ann")).record()
        pending = {**record["pending"], field: value}
        if value is ...:
            del pending[field]
        with contextlib.suppress(DefinitionError):
            await queue.put({"pending": pending})
        assert shown.id in [one.id for one in await queue.waiting()]
        assert (await queue.answer(shown.id, shown.digest, True, by="bob")).decision.kind == "allow"

    go(main)


# One record and the others


def preview_of(make: Callable[[str], Any]) -> tuple[Runner, Any]:
    """Return a runner whose tool previews by its argument, and a queue of its calls."""

    @tool(private=["seen"], preview=lambda arguments: make(arguments["row"]))
    async def set_price(row: str, seen: object = None) -> str:
        """Set a price."""
        return "set"

    runner = Runner([set_price], guards=[ask_before_changes], approve=approval.later)
    return runner, approval.web(tools=runner.tools)


@pytest.mark.parametrize("value", [datetime(2026, 1, 1, tzinfo=UTC), float("nan"), {1: 2, "a": 3}, {1, 2}, b"x"])
async def test_a_preview_that_has_no_json_form_leaves_the_other_calls_waiting(value: object) -> None:

    runner, queue = preview_of(lambda row: Diff("4", "5", "tea", {"seen": value if row == "bad" else None}))
    ids = [await queue.put(await runner.run("set_price", {"row": row})) for row in ("good", "bad")]
    good, bad = await queue.waiting()
    assert [good.id, bad.id] == ids and "+5" in good.text
    assert "no preview" in bad.text or value == {1: 2, "a": 3}
    for one in good, bad:
        taken = await queue.answer(one.id, one.digest, False, by="bob")
        assert (await runner.resume(taken.record, taken.decision)).status == "denied"


class Unsplit(str):
    def removesuffix(self, suffix: str, /) -> str:
        raise RuntimeError(suffix)


class Nameless:
    name = property(lambda self: 1 / 0)


class Unsaid(ToolError):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def unsaid() -> None:
    raise Unsaid("x")


@pytest.mark.parametrize(
    "make", [lambda: Unsplit("a\nb"), Nameless, unsaid, lambda: "\ud83d", lambda: Diff("a", Unsplit("b"))]
)
async def test_a_preview_whose_methods_raise_leaves_the_other_calls_waiting(make: Callable[[], Any]) -> None:

    runner, queue = preview_of(lambda row: make() if row == "bad" else "fine")
    ids = [await queue.put(await runner.run("set_price", {"row": row})) for row in ("good", "bad")]
    shown = await queue.waiting()
    assert [one.id for one in shown] == ids and "fine" in shown[0].text
    assert json.dumps([one.text for one in shown], ensure_ascii=False).encode()


ROWS = [
    None, 5, [], "x", {}, {"pending": None}, {"pending": {"key": 5}},
    {"pending": {"expires_at": None}}, {"pending": {"expires_at": "soon"}},
    {"pending": json.loads("[" * 700 + "]" * 700)},
]  # fmt: skip


@pytest.mark.parametrize("number", [-float("inf"), "-1e999"])
async def test_an_expired_row_with_no_number_of_json_hides_no_other(number: Any, tmp_path: Path) -> None:
    class Lax(Memory):  # somebody's own, without a check of numbers
        def items(self, prefix: str = "") -> dict[str, Any]:
            return super().items(prefix) | {"waiting x": {"pending": {"expires_at": number}}}

    journal = Journal.open(tmp_path / "calls.db")
    queue = approval.web(journal.store if isinstance(number, str) else Lax())
    if isinstance(number, str):
        assert journal.store.compare_and_set("waiting x", None, 1)
        with sqlite3.connect(tmp_path / "calls.db") as connection:
            connection.execute("UPDATE store SET value = ?", (f'{{"pending":{{"expires_at":{number}}}}}',))
    shown = await Desk().waits(queue)
    assert [(one.id, bool(one.problem)) for one in await queue.waiting()] == [("x", True), (shown.id, False)]


@pytest.mark.parametrize("row", ROWS)
async def test_a_record_that_cannot_be_read_is_shown_as_broken_and_can_be_denied(row: Any) -> None:

    desk, store = Desk(), Memory()
    queue = approval.web(store)
    shown = await desk.waits(queue)
    assert store.compare_and_set("waiting other", None, {"of": "another version"} if row is None else row)
    broken, whole = await queue.waiting()
    assert broken.id == "other" and broken.problem and "cannot be read" in broken.text
    assert whole.digest == shown.digest and whole.problem is None
    with pytest.raises(AnswerRefused):
        await queue.answer(broken.id, broken.digest, True, by="bob")
    taken = await queue.answer(broken.id, broken.digest, False, by="bob")
    with contextlib.suppress(DefinitionError):
        assert (await desk.resume(taken)).status == "invalid"
    assert [one.id for one in await queue.waiting()] == [shown.id]


async def test_a_record_whose_numbers_are_too_large_is_not_put() -> None:

    desk, queue = Desk(), approval.web()
    shown = await desk.waits(queue)
    record = (await desk.runner.run(CALL)).record()
    pending = {**record["pending"], "asked_at": -(10**400), "expires_at": 10**400 + 1}
    with pytest.raises(DefinitionError):
        await queue.put({"pending": pending})
    assert [one.id for one in await queue.waiting()] == [shown.id]


async def test_a_record_with_a_field_of_another_version_is_shown_as_broken() -> None:

    desk, store = Desk(), Memory()
    queue = approval.web(store)
    shown = await desk.waits(queue)
    old = store.get(f"waiting {shown.id}")
    changes = {"context": {**old["pending"]["context"], "tenant": "x"}, "expires_at": "9e9", "asked_at": "1"}
    for name, value in changes.items():
        new = {"pending": {**old["pending"], name: value}}
        store.compare_and_set(f"waiting {shown.id}", store.get(f"waiting {shown.id}"), new)
        [broken] = await queue.waiting()
        assert broken.problem is not None and isinstance(broken.expires_at, float), name


async def test_slow_previews_of_one_principal_delay_the_page_once_and_no_other_preview(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ferrule.approval.request.PREVIEW_SECONDS", 1.0)
    ends = threading.Event()

    def preview(row: str) -> str:
        if row == "slow":
            ends.wait(BOUND)
        return f"sets {row}"

    async def main() -> None:
        runner, queue = preview_of(preview)
        for principal, row in [*[("eve", "slow")] * 90, *[("ann", f"row {number}") for number in range(20)]]:
            await queue.put(await runner.run("set_price", {"row": row}, principal=principal))
        texts = [one.text for one in await asyncio.wait_for(queue.waiting(), BOUND)]  # 90 in a row would take longer
        assert sum("it takes longer than" in text for text in texts) == 90
        assert sum("sets row" in text for text in texts) == 20

    try:
        await main()
    finally:
        ends.set()


async def test_previews_of_one_principal_are_made_side_by_side() -> None:
    both = threading.Barrier(2)

    def preview(row: str) -> str:
        both.wait(BOUND)  # for the other preview
        return f"sets {row}"

    runner, queue = preview_of(preview)
    for row in "ab":
        await queue.put(await runner.run("set_price", {"row": row}, principal="ann"))
    assert ["sets" in one.text for one in await queue.waiting()] == [True, True]


class Counted(Memory):
    """A store that counts the rows that it was asked for."""

    rows = 0

    def get(self, key: str) -> Any:
        self.rows += 1
        return super().get(key)

    def items(self, prefix: str = "") -> dict[str, Any]:
        found = super().items(prefix)
        self.rows += len(found)
        return found


async def test_putting_a_call_reads_as_much_however_many_wait() -> None:

    desk, store = Desk(), Counted()
    queue = approval.web(store)
    reads = []
    for number in range(20):
        before = store.rows
        await queue.put(await desk.runner.run(ToolCall(str(number), "pay", {"to": "ada", "euros": 5})))
        reads.append(store.rows - before)
    assert len(set(reads)) == 1


async def test_an_answer_in_a_queue_of_another_name_uses_nothing_up() -> None:

    desk, store = Desk(), Memory()
    payments, mails, unnamed = (approval.web(store, name=name) for name in ("payments", "mails", ""))
    shown = await desk.waits(payments)
    for other in mails, unnamed:
        assert await other.waiting() == []
        with pytest.raises(NotWaiting):
            await other.answer(shown.id, shown.digest, True, by="bob")
    assert (await desk.resume(await payments.answer(shown.id, shown.digest, True, by="bob"))).success


@pytest.mark.parametrize("name", ["a b", "a/b", "\n", "a:"])
def test_a_name_that_could_be_the_beginning_of_another_is_refused(name: str) -> None:
    with pytest.raises(DefinitionError, match="web\\(name"):
        approval.web(name=name)


@pytest.mark.parametrize("error", [AlreadyAnswered, QuestionChanged, NotWaiting, OwnCall])
def test_an_answer_that_does_not_count_is_one_kind_of_error(error: type[Exception]) -> None:
    assert issubclass(error, AnswerRefused)


# The model, and what a wait holds


APPROVES_ITSELF = [
    {"approved": True},
    {"confirm": "yes"},
    {"_approval": {"by": "ann"}},
    {"expected": "nothing"},
    {"by": "bob"},
]


@pytest.mark.parametrize("more", APPROVES_ITSELF)
async def test_nothing_that_a_model_sends_is_an_answer(more: dict[str, Any]) -> None:

    desk, queue = Desk(), approval.web()
    result = await desk.runner.run(ToolCall("1", "pay", {"to": "ada", "euros": 5, **more}))
    assert result.status == "invalid"

    @tool
    async def anything(**given: Any) -> str:
        """Take anything."""
        desk.paid.append(("anything", 0))
        return "APPROVED by ann"

    runner = Runner([anything], guards=[ask_before_changes], approve=approval.later)
    assert (await runner.run("anything", more)).status == "suspended"
    assert desk.paid == [] and await queue.waiting() == []


async def test_a_call_that_waits_holds_no_slot_and_no_deadline() -> None:
    answered = threading.Event()
    ran: list[str] = []

    @tool
    async def change(name: str) -> str:
        """Change something."""
        ran.append(name)
        if name == "quick":
            answered.set()
        return name

    def person(asked: approval.Asked) -> bool:
        # The first is answered once the second has run: with one slot, and a deadline of its own.
        return asked.call.arguments["name"] == "quick" or answered.wait(BOUND)

    async def main() -> None:
        approve = approval.callback(person)
        runner = Runner([change], guards=[ask_before_changes], approve=approve, concurrency=1, timeout=BOUND)
        slow = asyncio.ensure_future(runner.run("change", {"name": "slow"}))
        await asyncio.sleep(0)
        quick = await runner.run("change", {"name": "quick"})
        assert (quick.status, (await slow).status) == ("ok", "ok")

    await main()
    assert ran == ["quick", "slow"]


async def test_a_yes_that_comes_after_the_call_was_cancelled_runs_nothing() -> None:
    asked, go_on = threading.Event(), threading.Event()
    ran: list[str] = []

    @tool
    async def change(name: str) -> str:
        """Change something."""
        ran.append(name)
        return name

    def person(question: approval.Asked) -> bool:
        asked.set()
        return go_on.wait(BOUND)

    async def main() -> None:
        runner = Runner([change], guards=[ask_before_changes], approve=approval.callback(person))
        running = asyncio.ensure_future(runner.run("change", {"name": "x"}))
        await asyncio.to_thread(asked.wait, 20)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        go_on.set()
        await asyncio.sleep(0)

    await main()
    assert ran == []
