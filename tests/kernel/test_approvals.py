"""Approvals: an approver answers a question, and may know its answer beforehand."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from cast import ask_always
from ferrule import Decision, Runner, Tool, ToolCall, ToolContext, allow, ask, deny, tool
from waits import BOUND, until
from watched import run


def make_write(**options: Any) -> tuple[Tool, list[tuple[int, str]]]:
    ran: list[tuple[int, str]] = []

    @tool(**options)
    async def write(n: int, text: str = "t") -> int:
        ran.append((n, text))
        return n

    return write, ran


ANSWERS = [
    (True, "ok"),
    (allow(), "ok"),
    (allow({"n": 5}), "ok"),
    (False, "denied"),
    (None, "denied"),
    (deny("no"), "denied"),
    (ask("later"), "suspended"),
    (1, "denied"),
    ({"n": 5}, "denied"),
    (allow({"n": "x"}), "denied"),
    (allow({"n": float("nan")}), "denied"),
]


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize(("answer", "status"), ANSWERS)
def test_only_a_plain_yes_runs_the_call(answer: Any, status: str, slow: bool) -> None:
    async def person(call: ToolCall, decision: Decision, context: ToolContext) -> Any:
        await asyncio.sleep(0)
        return answer

    write, ran = make_write()
    approve = person if slow else lambda *rest: answer
    result, watch = run(write, "write", {"n": 1}, guards=[ask_always], approve=approve)
    assert result.status == status
    assert len(ran) == (status == "ok")
    assert len(watch.ends()) == (status != "suspended")
    assert result.executed is (status == "ok")


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("error", [ValueError("secret"), asyncio.CancelledError(), BaseException("secret")])
def test_an_approver_that_breaks_denies(error: BaseException, slow: bool) -> None:
    def breaks(*rest: Any) -> None:
        raise error

    async def breaks_later(*rest: Any) -> None:
        raise error

    write, ran = make_write()
    result, watch = run(write, "write", {"n": 1}, guards=[ask_always], approve=breaks_later if slow else breaks)
    assert (result.status, ran, watch.ends()) == ("denied", [], ["tool:error"])
    assert "secret" not in str(result.error)


async def test_an_approver_gets_the_judged_call_all_questions_and_the_context() -> None:
    seen: list[Any] = []

    def person(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
        seen.append((call.name, dict(call.arguments), decision.reason, context.session))
        return True

    write, ran = make_write()
    guards = [ask_always, lambda call, context: {**call.arguments, "n": 2}, lambda *_: ask("the whole disk?")]
    await Runner([write], guards=guards, approve=person).run("write", {"n": 1}, session="s")
    assert seen == [("write", {"n": 2, "text": "t"}, "may it?; the whole disk?", "s")]
    assert ran == [(2, "t")]


async def test_a_blocking_approver_does_not_block_the_loop() -> None:
    write, ran = make_write()
    answered = threading.Event()
    runner = Runner([write], guards=[ask_always], approve=lambda *rest: answered.wait(BOUND))
    waiting = asyncio.create_task(runner.run("write", {"n": 1}))
    await asyncio.sleep(0)
    answered.set()  # which a blocked loop would never reach
    assert (await waiting).success and ran


@pytest.mark.parametrize(("edit", "status"), [(5, "ok"), (11, "denied"), ("x", "denied")])
def test_guards_judge_an_edit_that_fits(edit: Any, status: str) -> None:
    judged: list[int] = []

    def guard(call: ToolCall, context: ToolContext) -> Decision | None:
        judged.append(call.arguments["n"])
        return deny("too large") if call.arguments["n"] > 10 else None

    write, ran = make_write()
    approve = lambda *rest: allow({"n": edit, "text": "e"})  # noqa: E731
    result, _ = run(write, "write", {"n": 1}, guards=[guard, ask_always], approve=approve)
    assert (result.status, ran) == (status, [(5, "e")] if status == "ok" else [])
    assert judged == ([1] if edit == "x" else [1, edit])


@pytest.mark.parametrize(
    ("after", "reason"),
    [(deny("meanwhile forbidden"), "meanwhile forbidden"), (allow({"n": 2}), "after they were approved")],
)
def test_guards_judge_the_call_again_after_the_answer_and_cannot_change_it(after: Decision, reason: str) -> None:
    answered: list[bool] = []
    write, ran = make_write()
    guards = [lambda call, context: after if answered else ask("really?")]
    approve = lambda *rest: answered.append(True) or True  # noqa: E731
    result, _ = run(write, "write", {"n": 1}, guards=guards, approve=approve)
    assert (result.status, ran) == ("denied", [])
    assert reason in str(result.error)


@pytest.mark.parametrize(("concurrency", "most"), [(3, 3), (None, 32)])
async def test_questions_to_a_function_are_bounded_and_end_with_the_batch(concurrency: int | None, most: int) -> None:
    answered, asked = threading.Event(), []

    def person(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
        asked.append(call.id)
        return answered.wait(BOUND)

    write, ran = make_write(parallel=True)
    runner = Runner([write], guards=[ask_always], approve=person, concurrency=concurrency)
    batch = runner.batch([ToolCall(f"c{n}", "write", {"n": n}) for n in range(200)])
    await until(lambda: len(asked) == most)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(asked) == most
    batch.cancel(now=True)
    assert [result.status for result in await batch] == ["cancelled"] * 200 and not ran
    answered.set()
    assert (await runner.run("write", {"n": 1})).success and len(asked) == most + 1


class Foresees:
    """An approver that knows some answers before it asks anybody."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.seen: list[tuple[ToolCall, Decision, ToolContext]] = []
        self.asked = 0

    async def __call__(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        self.asked += 1
        return allow()

    async def foresee(self, call: ToolCall, decision: Decision, context: ToolContext) -> Any:
        self.seen.append((call, decision, context))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("known", [Decision("allow", by="ada", rule="g1"), deny("never"), ask("in a minute")])
async def test_decide_returns_what_the_approver_foresees_and_asks_nobody(known: Decision) -> None:
    write, ran = make_write()
    approver = Foresees(known)
    runner = Runner([write.bind(text="secret")], guards=[ask_always], approve=approver)
    decision = await runner.decide(ToolCall("1", "write", {"n": 1}), principal="bob")
    assert (decision, decision.rule) == (known, known.rule)
    [(call, asked, context)] = approver.seen
    assert call.arguments == {"n": 1, "text": "**********"}
    assert (asked.reason, context.principal, approver.asked, ran) == ("may it?", "bob", 0, [])


@pytest.mark.parametrize("unknown", [None, True, "yes", ValueError("broken")])
async def test_decide_asks_if_the_approver_foresees_nothing_or_breaks(unknown: object) -> None:
    runner = Runner([make_write()[0]], guards=[ask_always], approve=Foresees(unknown))
    assert (await runner.decide(ToolCall("1", "write", {"n": 1}))) == ask("may it?")


async def test_a_foreseen_answer_lifts_no_deny_and_has_the_changed_arguments() -> None:
    def one_more(call: ToolCall, context: ToolContext) -> Decision | None:
        return allow({"n": 2}) if call.arguments["n"] == 1 else None

    def not_three(call: ToolCall, context: ToolContext) -> Decision | None:
        return deny("three") if call.arguments["n"] == 3 else None

    runner = Runner([make_write()[0]], guards=[one_more, ask_always, not_three], approve=Foresees(allow(by="ada")))
    assert (await runner.decide(ToolCall("1", "write", {"n": 3}))) == deny("three")
    assert (await runner.decide(ToolCall("1", "write", {"n": 1}))) == allow({"n": 2, "text": "t"}, by="ada")


async def test_a_no_is_not_the_yes_of_a_later_attempt() -> None:
    write, ran = make_write()

    def large_is_asked(call: ToolCall, context: ToolContext) -> Decision | None:
        return ask("so many?") if call.arguments["n"] > 1 else None

    async def retry_smaller(call: ToolCall, context: ToolContext, following: Any) -> Any:
        result = await following(call, context)
        return result if result.status != "denied" else await following(call.replace(arguments={"n": 1}), context)

    runner = Runner([write], guards=[large_is_asked], around=[retry_smaller], approve=lambda *asked: no_by_ann())
    result = await runner.run("write", {"n": 9})
    assert (result.status, result.answered_by, ran) == ("ok", None, [(1, "t")])


def no_by_ann() -> Decision:
    return Decision("deny", "no", by="ann")
