"""A queue of suspended calls: only the first answer to the question that was shown counts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ferrule import (
    Diff,
    InputRequired,
    Journal,
    Runner,
    ToolCall,
    ToolContext,
    ToolError,
    ToolResult,
    Waits,
    allow,
    approval,
    ask,
    tool,
)
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
from waits import BOUND, until

CALL = ToolCall("1", "pay", {"to": "ada", "euros": 5})
EVE = ToolCall("2", "pay", {"to": "eve", "euros": 5000})


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


async def waiting_call(store: Store | None = None, **options: Any) -> tuple[Desk, Any, WaitingCall]:
    """A desk, a queue, and its one call that waits."""
    desk, queue = Desk(), approval.web(store, **options)
    return desk, queue, await desk.waits(queue)


async def test_a_yes_runs_the_call_and_is_recorded_with_its_author() -> None:
    desk, queue, shown = await waiting_call()
    assert "euros = 5" in shown.text and "by rule: ask_before_changes" in shown.text
    result = await desk.resume(await queue.answer(shown.id, shown.digest, True, by="bob"))
    assert result.output == "paid ada 5" and result.record()["answered_by"] == "bob"
    assert desk.paid == [("ada", 5)] and await queue.waiting() == []


@pytest.mark.parametrize("kept_in", ["memory", "file", "journal"])
async def test_only_one_of_fifty_concurrent_answers_counts(kept_in: str, tmp_path: Path) -> None:
    def store() -> Store:
        if kept_in == "journal":
            return Journal.open(tmp_path / "calls.db").store
        return Memory() if kept_in == "memory" else SealedFile(tmp_path / "kept" / "queue", b"k" * 32)

    desk, shared = Desk(), store()
    queues = [approval.web(shared if kept_in == "memory" else store()) for _ in range(2)]
    shown = await desk.waits(queues[0])
    answers = (queues[n % 2].answer(shown.id, shown.digest, n % 3 == 0, by=f"p{n}") for n in range(50))
    given = await asyncio.gather(*answers, return_exceptions=True)
    [taken] = [one for one in given if isinstance(one, AcceptedAnswer)]
    assert sum(isinstance(one, AlreadyAnswered) for one in given) == 49
    result = await desk.resume(taken)
    is_allowed = taken.decision.kind == "allow"
    assert (result.status == "ok") is is_allowed and result.answered_by == taken.by and len(desk.paid) == is_allowed
    assert (await desk.resume(taken)).status == "invalid" and len(desk.paid) == is_allowed


async def test_an_answer_overtaken_by_another_names_its_author() -> None:
    class Overtaken(Memory):
        def compare_and_set(self, key: str, old: Any, new: Any) -> bool:
            if isinstance(new, dict) and new.get("answered") == "bob":
                super().compare_and_set(key, old, {**new, "answered": "eve"})
            return super().compare_and_set(key, old, new)

    desk, queue = Desk(), approval.web(Overtaken())
    shown = await desk.waits(queue)
    with pytest.raises(AlreadyAnswered, match="eve has answered before"):
        await queue.answer(shown.id, shown.digest, True, by="bob")


async def test_an_answer_that_does_not_fit_leaves_the_question_open() -> None:
    desk = Desk()

    @tool(read_only=True)
    async def book(context: ToolContext) -> str | InputRequired:
        """Book a seat."""
        if context.answer is None:
            wanted = {"type": "object", "properties": {"row": {"type": "integer"}}, "required": ["row"]}
            return InputRequired("Which row?", wanted)
        return f"row {context.answer.value['row']}"

    desk.runner = desk.runner.replace(tools=[*desk.runner.tools, book])
    for call, misfits, fit in (
        (ToolCall("1", "book"), [True, allow(), allow({"row": "window"}), allow({"seat": 7})], allow({"row": 7})),
        (CALL, [allow({"to": "ada"}), allow({"to": "ada", "euros": "few"})], allow({"to": "ada", "euros": 4})),
    ):
        queue = approval.web(tools=desk.runner.tools)
        shown = await desk.waits(queue, call)
        for misfit in misfits:
            with pytest.raises(AnswerRefused, match=r"'(row|euros)'"):
                await queue.answer(shown.id, shown.digest, misfit, by="bob")
        result = await desk.resume(await queue.answer(shown.id, shown.digest, fit, by="bob"))
        assert result.output in ("row 7", "paid ada 4")


async def test_fields_keep_their_order_in_the_queue_and_after_the_answer(tmp_path: Path) -> None:
    fields = {name: {"type": "string"} for name in ("street", "city", "cause")}

    @tool
    async def claim(policy: str, amount: int, context: ToolContext) -> str | InputRequired:
        """Ask for three fields, then return the names as they come back."""
        if context.answer is None:
            return InputRequired("Where?", {"type": "object", "properties": fields}, state=fields)
        return ",".join(context.answer.state)

    runner = Runner([claim], approve=approval.later)
    queue = approval.web(SealedFile(tmp_path / "kept" / "queue", b"k" * 32))
    await queue.put(await runner.run("claim", {"policy": "p1", "amount": 5}))
    [shown] = await queue.waiting()
    assert shown.request.decision.schema is not None
    assert list(shown.request.decision.schema["properties"]) == list(fields)
    assert list(shown.request.arguments) == ["policy", "amount"]
    taken = await queue.answer(shown.id, shown.digest, allow({}), by="ann")
    result = await runner.resume(taken.record, taken.decision, by=taken.by)
    assert result.output == "street,city,cause"


async def test_an_answer_with_another_digest_is_refused() -> None:
    desk, queue, shown = await waiting_call()
    other = await desk.waits(queue, EVE)
    for id, digest in ((shown.id, other.digest), (other.id, shown.digest), (shown.id, ""), (shown.id, "0" * 64)):
        with pytest.raises(QuestionChanged):
            await queue.answer(id, digest, True, by="bob")
    for id in ("", "x", "waiting ", "../x"):
        with pytest.raises(NotWaiting):
            await queue.answer(id, shown.digest, True, by="bob")
    assert len(await queue.waiting()) == 2


async def test_a_record_swapped_in_the_store_is_not_answered() -> None:
    store = Memory()
    desk, queue, shown = await waiting_call(store)
    other = await desk.waits(queue, EVE)
    old, new = store.get(f"waiting {shown.id}"), store.get(f"waiting {other.id}")
    assert store.compare_and_set(f"waiting {shown.id}", old, new)
    broken, whole = await queue.waiting()
    assert broken.id == shown.id and broken.problem and whole.id == other.id
    for digest in (shown.digest, other.digest, broken.digest):
        with pytest.raises(AnswerRefused):
            await queue.answer(shown.id, digest, True, by="bob")


async def test_a_record_changed_in_the_store_runs_nothing() -> None:
    store = Memory()
    desk, queue, shown = await waiting_call(store)
    old = store.get(f"waiting {shown.id}")
    text = json.dumps({**json.loads(old["pending"]["text"]), "arguments": {"to": "eve", "euros": 5000}})
    assert store.compare_and_set(f"waiting {shown.id}", old, {"pending": {**old["pending"], "text": text}})
    with pytest.raises(QuestionChanged):
        await queue.answer(shown.id, shown.digest, True, by="bob")
    [shown] = await queue.waiting()
    result = await desk.resume(await queue.answer(shown.id, shown.digest, True, by="bob"))
    assert result.status == "invalid" and desk.paid == []


async def test_an_expired_call_does_not_wait_and_is_forgotten() -> None:
    desk, store = Desk(), Memory()
    queue = approval.web(store)
    id = await queue.put(await desk.runner.run(CALL))
    old = store.get(f"waiting {id}")
    store.compare_and_set(f"waiting {id}", old, {"pending": {**old["pending"], "expires_at": 1_000.0}})
    with pytest.raises(NotWaiting):
        await queue.answer(id, "", True, by="bob")
    assert await queue.waiting() == [] and store.items() == {}


async def test_an_expired_call_is_not_put_and_ends_with_any_answer() -> None:
    clock = ManualClock(now=1_000.0)
    desk, queue = Desk(clock=clock, waits=Waits(resume=5.0)), approval.web()
    suspended = await desk.runner.run(CALL)
    await clock.advance(10.0)
    with pytest.raises(NotWaiting, match="resume it with False"):
        await queue.put(suspended)
    ended = await desk.runner.resume(suspended, False)
    assert ended.status == "invalid" and "came too late" in ended.text


async def test_two_people_agree_to_one_call() -> None:
    desk, queue = Desk(), approval.web()
    shown = await desk.waits(queue)
    first = await queue.answer(shown.id, shown.digest, True, by="bob")
    await queue.put(await desk.runner.resume(first.record, ask(f"{first.by} has agreed"), by=first.by))
    [shown] = await queue.waiting()
    assert "because: bob has agreed" in shown.text and desk.paid == []
    result = await desk.resume(await queue.answer(shown.id, shown.digest, True, by="eve"))
    assert result.output == "paid ada 5" and result.answered_by == "eve"


@pytest.mark.parametrize("given", [None, "yes", 1, {"approved": True}, ask("later")])
async def test_an_answer_of_the_wrong_kind_is_refused(given: Any) -> None:
    queue = approval.web()
    shown = await Desk().waits(queue)
    with pytest.raises(DefinitionError):
        await queue.answer(shown.id, shown.digest, given, by="bob")
    with pytest.raises(DefinitionError):
        await queue.answer(shown.id, shown.digest, True, by="")
    assert len(await queue.waiting()) == 1


async def test_nobody_allows_their_own_call_if_barred() -> None:
    _, queue, shown = await waiting_call(own=False)
    hidden = ["\u200b", "\ufe0f", "\u034f", "\u3164", "\u115f", "\u2800", "\x00", " "]
    for by in ("ann", "Ann ", *(name for one in hidden for name in (f"ann{one}", f"{one}Ann", f" ann{one} "))):
        with pytest.raises(OwnCall):
            await queue.answer(shown.id, shown.digest, allow(by="eve"), by=by)
    taken = await queue.answer(shown.id, shown.digest, False, by="ann")
    assert taken.decision.kind == "deny"


async def test_the_application_says_who_answers() -> None:
    desk, queue, shown = await waiting_call()
    edited = allow({**shown.request.arguments, "euros": 3}, by="somebody else")
    taken = await queue.answer(shown.id, shown.digest, edited, by="bob")
    assert (taken.by, taken.decision.by) == ("bob", "bob")
    assert (await desk.resume(taken)).answered_by == "bob" and desk.paid == [("ada", 3)]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_file_that_changed_around_the_answer_is_not_overwritten(when: str, tmp_path: Path) -> None:
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


async def test_a_call_that_cannot_work_any_more_can_only_be_denied(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\n", encoding="utf-8")
    desk = Desk()
    queue = approval.web(tools=desk.runner.tools)
    await desk.waits(queue, ToolCall("1", "edit_file", {"path": str(path), "old": "one", "new": "two"}))
    path.write_text("three\n", encoding="utf-8")
    [shown] = await queue.waiting()
    with pytest.raises(AnswerRefused, match=r"can only be denied: .* does not occur"):
        await queue.answer(shown.id, shown.digest, True, by="bob")
    assert (await queue.answer(shown.id, shown.digest, False, by="bob")).decision.kind == "deny"


async def test_only_a_suspended_call_can_be_put() -> None:
    queue = approval.web()
    done = await Runner([tool(lambda: 1, name="one")]).run("one")
    for wrong in (done, {}, {"pending": None}, {"pending": {}}, "x"):
        with pytest.raises(DefinitionError):
            await queue.put(wrong)


@pytest.mark.parametrize("field", ["key", "call", "arguments", "context", "expires_at", "asked_at"])
@pytest.mark.parametrize("value", [..., None, [], "x", 10**400])
async def test_a_malformed_record_leaves_the_other_calls_waiting(field: str, value: Any) -> None:
    desk, queue, shown = await waiting_call()
    pending = {**(await desk.runner.run(CALL, principal="ann")).record()["pending"], field: value}
    if value is ...:
        del pending[field]
    with contextlib.suppress(DefinitionError, NotWaiting):  # 1 is a time in the past
        await queue.put({"pending": pending})
    assert shown.id in [one.id for one in await queue.waiting()]
    assert (await queue.answer(shown.id, shown.digest, True, by="bob")).decision.kind == "allow"


# One record and the others


def preview_of(make: Callable[[str], Any]) -> tuple[Runner, Any]:
    """Return a runner, and a queue of its calls that previews them by their argument."""

    @tool(private=["seen"])
    async def set_price(row: str, seen: object = None) -> str:
        """Set a price."""
        return "set"

    runner = Runner([set_price], guards=[ask_before_changes], approve=approval.later)
    return runner, approval.web(tools=[set_price.replace(preview=lambda arguments: make(arguments["row"]))])


class Nameless:
    name = property(lambda self: 1 / 0)


class Unsaid(ToolError):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def unsaid() -> None:
    raise Unsaid("x")


@pytest.mark.parametrize(
    "make",
    [lambda: Diff("4", "5", "tea", {"seen": datetime(2026, 1, 1, tzinfo=UTC)}), Nameless, unsaid, "\ud83d".lower],
)
async def test_a_broken_preview_leaves_the_other_calls_waiting(make: Callable[[], Any]) -> None:
    runner, queue = preview_of(lambda row: make() if row == "bad" else "fine")
    ids = [await queue.put(await runner.run("set_price", {"row": row})) for row in ("good", "bad")]
    shown = await queue.waiting()
    assert [one.id for one in shown] == ids and "fine" in shown[0].text
    assert json.dumps([one.text for one in shown], ensure_ascii=False).encode()
    for one in shown:
        taken = await queue.answer(one.id, one.digest, False, by="bob")
        assert (await runner.resume(taken.record, taken.decision)).status == "denied"


@pytest.mark.parametrize("row", [None, "x", {"pending": None}, {"pending": {"expires_at": "soon"}}])
async def test_an_unreadable_record_is_shown_as_broken_and_can_be_denied(row: Any) -> None:
    store = Memory()
    desk, queue, shown = await waiting_call(store)
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


async def test_slow_previews_of_one_principal_delay_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrule.approval.request.PREVIEW_SECONDS", 10 * BOUND)
    ends, made = threading.Event(), list[str]()

    def preview(row: str) -> str:
        if row == "slow":
            ends.wait(BOUND)
        made.append(row)
        return f"sets {row}"

    runner, queue = preview_of(preview)
    for principal, row in [*[("eve", "slow")] * 90, *[("ann", "quick")] * 20]:
        await queue.put(await runner.run("set_price", {"row": row}, principal=principal))
    waiting = asyncio.ensure_future(queue.waiting())
    try:
        await until(lambda: len(made) == 20)
        assert set(made) == {"quick"} and not waiting.done()
    finally:
        ends.set()
    assert len(await waiting) == 110


async def test_a_question_does_not_wait_for_a_preview_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrule.approval.request.PREVIEW_SECONDS", 0.01)
    ends = threading.Event()
    runner, queue = preview_of(lambda row: str(ends.wait(BOUND)))
    await queue.put(await runner.run("set_price", {"row": "tea"}))
    try:
        [shown] = await queue.waiting()
    finally:
        ends.set()
    assert "it takes longer than" in shown.text and "row = 'tea'" in shown.text


async def test_queues_of_other_names_share_no_calls() -> None:
    desk, store = Desk(), Memory()
    payments, mails, unnamed = (approval.web(store, name=name) for name in ("payments", "mails", ""))
    shown = await desk.waits(payments)
    for other in mails, unnamed:
        assert await other.waiting() == []
        with pytest.raises(NotWaiting):
            await other.answer(shown.id, shown.digest, True, by="bob")
    assert (await desk.resume(await payments.answer(shown.id, shown.digest, True, by="bob"))).success


@pytest.mark.parametrize("name", ["a b", "a/b", "\n", "a:"])
def test_a_queue_name_with_a_separator_is_refused(name: str) -> None:
    with pytest.raises(DefinitionError, match="web\\(name"):
        approval.web(name=name)
