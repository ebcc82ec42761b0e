"""Approvals: nothing runs without an answer, nothing is held while somebody is asked, and "not now" is a value."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

import probe
from ferrule import (
    Decision,
    DefinitionError,
    Runner,
    Tool,
    ToolCall,
    ToolContext,
    ToolResult,
    Waits,
    allow,
    ask,
    deny,
    tool,
)
from watched import BOUND, Watch, go, plain, run


def asks(call: ToolCall, context: ToolContext) -> Decision:
    return ask("really?")


def later(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
    return ask("not now")


def writing(**options: Any) -> tuple[Tool, list[tuple[int, str]]]:
    ran: list[tuple[int, str]] = []

    @tool(**options)
    async def write(n: int, text: str = "t") -> int:
        ran.append((n, text))
        return n

    return write, ran


# -- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["on the loop", "by what it returned", "in its thread"])
def test_a_keyboard_interrupt_of_an_approver_on_the_loop_ends_the_program(how: str) -> None:
    async def interrupted(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        raise KeyboardInterrupt

    def in_a_thread(call: ToolCall, decision: Decision, context: ToolContext) -> Any:
        if how == "in its thread":
            raise KeyboardInterrupt
        return interrupted(call, decision, context)

    write, ran = writing()
    watch = Watch()
    approve = interrupted if how == "on the loop" else in_a_thread
    asked = Runner([write], guards=[asks], approve=approve, observers=[watch]).run("write", {"n": 1})
    if how == "in its thread":
        assert go(asked).status == "denied"
    else:
        with pytest.raises(KeyboardInterrupt):
            go(asked)
    assert (ran, watch.ends()) == ([], ["tool:error"])


ANSWERS = [
    (True, "ok"),
    (allow(), "ok"),
    (allow({"n": 5}), "ok"),
    (False, "denied"),
    (None, "denied"),
    (deny("no"), "denied"),
    (deny(""), "denied"),
    (ask("later"), "suspended"),
    (1, "denied"),
    ("yes", "denied"),
    ({"n": 5}, "denied"),
    (object(), "denied"),
    (allow({"n": "x"}), "denied"),
    (allow({}), "denied"),
    (allow({"n": object()}), "denied"),
    (allow({"n": float("nan")}), "denied"),
]


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize(("answer", "status"), ANSWERS)
def test_only_a_plain_yes_runs_the_call(answer: Any, status: str, slow: bool) -> None:
    async def person(call: ToolCall, decision: Decision, context: ToolContext) -> Any:
        await asyncio.sleep(0)
        return answer

    write, ran = writing()
    approve = person if slow else lambda *rest: answer
    result, watch = run(write, "write", {"n": 1}, guards=[asks], approve=approve)
    assert result.status == status
    assert len(ran) == (status == "ok")
    assert len(watch.ends()) == (status != "suspended")
    assert result.executed is (status == "ok")


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize(
    "error", [ValueError("secret"), SystemExit(1), asyncio.CancelledError(), TimeoutError(), BaseException("secret")]
)
def test_an_approver_that_breaks_denies(error: BaseException, slow: bool) -> None:
    def breaks(*rest: Any) -> None:
        raise error

    async def breaks_later(*rest: Any) -> None:
        raise error

    write, ran = writing()
    result, watch = run(write, "write", {"n": 1}, guards=[asks], approve=breaks_later if slow else breaks)
    assert (result.status, ran, watch.ends()) == ("denied", [], ["tool:error"])
    assert "secret" not in str(result.error)


def test_with_nobody_to_ask_an_ask_is_denied() -> None:
    write, ran = writing()
    result, _ = run(write, "write", {"n": 1}, guards=[asks])
    assert (result.status, ran) == ("denied", [])
    assert "really?" in str(result.error)


async def test_an_approver_gets_the_judged_call_the_question_and_the_context() -> None:
    seen: list[Any] = []

    def person(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
        seen.append((call.name, dict(call.arguments), decision.reason, context.session))
        return True

    write, ran = writing()
    runner = Runner([write], guards=[asks, lambda call, context: {**call.arguments, "n": 2}], approve=person)
    await runner.run("write", {"n": 1}, ToolContext(session="s"))
    assert seen == [("write", {"n": 2, "text": "t"}, "really?", "s")]
    assert ran == [(2, "t")]


async def test_a_blocking_approver_does_not_block_the_loop() -> None:
    write, ran = writing()
    answered = threading.Event()

    async def main() -> ToolResult:
        runner = Runner([write], guards=[asks], approve=lambda *rest: answered.wait(BOUND))
        waiting = asyncio.create_task(runner.run("write", {"n": 1}))
        await asyncio.sleep(0)
        answered.set()  # which a blocked loop would never reach
        return await waiting

    assert (await main()).success and ran


# -- edits -----------------------------------------------------------------------------------------------------------


def test_an_edit_is_validated_and_judged_and_answers_the_ask() -> None:
    judged: list[int] = []

    def guard(call: ToolCall, context: ToolContext) -> Decision | None:
        judged.append(call.arguments["n"])
        return deny("too large") if call.arguments["n"] > 10 else None

    for edit, status in ((5, "ok"), (11, "denied"), ("x", "denied")):
        write, ran = writing()
        judged.clear()
        result, _ = run(
            write, "write", {"n": 1}, guards=[guard, asks], approve=lambda *rest, n=edit: allow({"n": n, "text": "e"})
        )
        assert result.status == status
        assert ran == ([(5, "e")] if status == "ok" else [])
        assert judged == ([1] if edit == "x" else [1, edit])


def test_after_any_wait_the_guards_are_asked_once_more() -> None:
    now = {"denied": False}

    def changing_mind(call: ToolCall, context: ToolContext) -> Decision:
        return deny("meanwhile forbidden") if now["denied"] else ask("really?")

    def person(*rest: Any) -> bool:
        now["denied"] = True
        return True

    write, ran = writing()
    result, _ = run(write, "write", {"n": 1}, guards=[changing_mind], approve=person)
    assert (result.status, ran) == ("denied", [])
    assert "meanwhile forbidden" in str(result.error)


def test_a_guard_that_changes_arguments_after_the_answer_denies() -> None:
    now = {"n": 1}

    def person(*rest: Any) -> bool:
        now["n"] = 2
        return True

    write, ran = writing()
    changes = lambda call, context: {**call.arguments, "n": now["n"]}  # noqa: E731
    result, _ = run(write, "write", {"n": 1}, guards=[asks, changes], approve=person)
    assert (result.status, ran) == ("denied", [])


def test_a_person_supplies_a_value_and_the_rest_stays() -> None:
    write, ran = writing(private=("text",))
    wants = lambda call, context: ask("which text?", into="text")  # noqa: E731
    result, _ = run(write, "write", {"n": 1}, guards=[wants], approve=lambda *rest: allow({"text": "given"}))
    assert ran == [(1, "given")]
    result, _ = run(write, "write", {"n": 1}, guards=[wants], approve=lambda *rest: allow({"text": 5}))
    assert (result.status, len(ran)) == ("denied", 1)


# -- nothing is held -------------------------------------------------------------------------------------------------


async def test_no_slot_and_no_key_is_held_while_somebody_is_asked() -> None:
    write, ran = writing(concurrency=1, resources=lambda arguments: ["the file"])
    asked, answer = asyncio.Event(), asyncio.Event()

    def only_one(call: ToolCall, context: ToolContext) -> Decision | None:
        return ask("really?") if call.arguments["n"] == 1 else None

    async def person(*rest: Any) -> bool:
        asked.set()
        await answer.wait()
        return True

    async def main() -> None:
        runner = Runner([write], guards=[only_one], approve=person, concurrency=1, waits=Waits(slot=BOUND))
        first = asyncio.create_task(runner.run("write", {"n": 1}))
        await asked.wait()
        assert (await runner.run("write", {"n": 2})).success
        assert not first.done()
        answer.set()
        assert (await first).success

    await main()
    assert [n for n, _ in ran] == [2, 1]


async def test_a_suspended_call_frees_its_barrier() -> None:
    write, ran = writing()

    async def main() -> None:
        runner = Runner([write], guards=[lambda c, x: ask("?") if c.arguments["n"] == 1 else None], approve=later)
        results = await runner.run_all([ToolCall(str(n), "write", {"n": n}) for n in (1, 2)])
        assert [result.status for result in results] == ["suspended", "ok"]
        assert probe.slots_taken(runner) == 0

    await main()
    assert [n for n, _ in ran] == [2]


# -- suspended -------------------------------------------------------------------------------------------------------


KEY = b"k" * 32


def suspended(write: Tool, arguments: Any = None, **options: Any) -> tuple[dict[str, Any], Watch]:
    options = {"guards": [asks], "resume_key": KEY, **options}
    result, watch = run(
        write, ToolCall("c1", "write", arguments or {"n": 1}, data={"k": [1]}), approve=later, **options
    )
    assert (result.status, result.executed) == ("suspended", False)
    plain(result)
    return json.loads(json.dumps(result.record(), allow_nan=False)), watch


def resumed(write: Tool, record: dict[str, Any], answer: Any, **options: Any) -> tuple[ToolResult, Watch]:
    watch = Watch()
    options = {"guards": [asks], "resume_key": KEY, **options}
    runner = Runner([write], observers=[watch], **options)
    return go(runner.resume(record, answer)), watch


def test_suspended_is_an_event_and_not_an_end() -> None:
    write, ran = writing()
    _, watch = suspended(write)
    assert watch.kinds()[-1] == "tool:suspended"
    assert watch.ends() == [] and ran == []


@pytest.mark.parametrize(
    ("answer", "status", "left"),
    [
        (True, "ok", [(1, "t")]),
        (allow(), "ok", [(1, "t")]),
        (allow({"n": 7}), "ok", [(7, "t")]),
        (allow({"n": "x"}), "denied", []),
        (False, "denied", []),
        (None, "denied", []),
        (deny("no"), "denied", []),
        ("yes", "denied", []),
    ],
)
def test_a_suspended_call_goes_on_in_another_process(answer: Any, status: str, left: Any) -> None:
    write, ran = writing()
    record, before = suspended(write)
    result, after = resumed(write, record, answer)
    assert (result.status, ran) == (status, left)
    assert result.call_id == "c1" and result.call is not None and result.call.data == {"k": [1]}
    assert before.ends() + after.ends() == ["tool:post" if status == "ok" else "tool:error"]
    assert "tool:pre" not in after.kinds()


@pytest.mark.parametrize("answer", [False, None, deny("no"), "yes"])
def test_a_no_is_a_no_where_the_other_process_has_no_guards(answer: Any) -> None:
    write, ran = writing()
    record, _ = suspended(write)
    result, _ = resumed(write, record, answer, guards=[])
    assert (result.status, ran) == ("denied", [])


def test_an_edit_counts_where_the_other_process_has_no_guards() -> None:
    write, ran = writing()
    record, _ = suspended(write)
    resumed(write, record, allow({"n": 7}), guards=[])
    assert ran == [(7, "t")]


def test_asking_again_suspends_again() -> None:
    write, ran = writing()
    record, _ = suspended(write)
    again, watch = resumed(write, record, ask("still not"))
    assert (again.status, ran, watch.ends()) == ("suspended", [], [])
    result, _ = resumed(write, json.loads(json.dumps(again.record())), True)
    assert result.success and ran == [(1, "t")]


def test_a_resumed_call_goes_through_around_and_inside_with_the_recorded_arguments() -> None:
    passed: list[Any] = []

    async def middle(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        passed.append(call.arguments["n"])
        return await next(call, context)

    async def changes(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        return await next(call.replace(arguments={"n": 99}), context)

    write, ran = writing()
    record, _ = suspended(write, guards=[asks, lambda call, context: {**call.arguments, "n": 4}])
    result, _ = resumed(write, record, True, around=[middle, changes], inside=[middle])
    assert result.success, result.error
    assert ran == [(4, "t")] and passed == [4, 4]


def test_guards_judge_a_resumed_call_once_more() -> None:
    write, ran = writing()
    record, _ = suspended(write)
    result, _ = resumed(write, record, True, guards=[lambda call, context: deny("the rules have changed")])
    assert (result.status, ran) == ("denied", [])


async def test_a_resumed_call_has_its_context_and_this_process_deps() -> None:
    seen: list[Any] = []

    @tool
    async def write(n: int, context: ToolContext) -> None:
        seen.append((context.session, context.principal, dict(context.metadata), context.deps, dict(context.secrets)))

    async def main() -> None:
        given = ToolContext(session="s", principal="p", deps=object(), metadata={"m": 1}, secrets={"key": "hidden-key"})
        first = Runner([write], guards=[asks], approve=later, resume_key=KEY)
        record = json.dumps((await first.run("write", {"n": 1}, given)).record())
        assert "hidden-key" not in record and "object at" not in record
        second = Runner([write], guards=[asks], resume_key=KEY)
        await second.resume(json.loads(record), True, ToolContext(deps="new", secrets={"key": "new"}))

    await main()
    assert seen == [("s", "p", {"m": 1}, "new", {"key": "new"})]


def test_a_private_value_is_asked_for_and_given_on_resuming() -> None:
    write, ran = writing(private=("text",))
    wants = lambda call, context: ask("which text?", into="text")  # noqa: E731
    record, _ = suspended(write, guards=[wants])
    result, _ = resumed(write, record, allow({"text": "given"}), guards=[wants])
    assert result.success and ran == [(1, "given")]


def test_a_call_that_is_resumed_twice_runs_once() -> None:
    write, ran = writing()
    record, _ = suspended(write)

    async def main() -> list[ToolResult]:
        runner = Runner([write], guards=[asks], resume_key=KEY)
        return [await runner.resume(record, True), await runner.resume(record, True)]

    first, second = go(main())
    assert (first.status, second.status, ran) == ("ok", "invalid", [(1, "t")])


def test_a_resumed_call_whose_tool_is_gone_has_one_event_the_terminal_one() -> None:
    write, ran = writing()
    record, _ = suspended(write)
    watch = Watch()
    result = go(Runner([], observers=[watch], resume_key=KEY).resume(record, True))
    assert (result.status, watch.kinds(), ran) == ("not_found", ["tool:error"], [])


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"metadata": {}},
        {"metadata": None},
        {"metadata": {"resume": {"key": "k"}}},
        {"pending": None},
        {"pending": "text"},
        None,
        [],
        "text",
        5,
    ],
)
async def test_a_record_of_no_suspended_call_is_a_programmers_mistake(record: Any) -> None:
    write, ran = writing()

    async def main() -> None:
        with pytest.raises(DefinitionError, match="resume"):
            await Runner([write]).resume(record, True)

    await main()
    assert ran == []


def test_the_record_of_an_ended_call_cannot_be_resumed() -> None:
    write, ran = writing()
    result, _ = run(write, "write", {"n": 1})

    async def main() -> None:
        with pytest.raises(DefinitionError):
            await Runner([write]).resume(result.record(), True)

    go(main())
    assert len(ran) == 1


@pytest.mark.parametrize(("concurrency", "most"), [(3, 3), (None, 32)])
async def test_questions_to_a_plain_function_are_bounded_and_given_up_with_their_batch(
    concurrency: int | None, most: int
) -> None:
    answered, full = threading.Event(), threading.Event()
    asked: list[str] = []
    runs: list[int] = []

    def person(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
        asked.append(call.id)
        if len(asked) >= most:
            full.set()
        assert answered.wait(BOUND)
        return True

    @tool(parallel=True)
    async def act() -> None:
        runs.append(1)

    runner = Runner([act], guards=[lambda call, context: ask("?")], approve=person, concurrency=concurrency)
    before = threading.active_count()
    batch = runner.batch([ToolCall(f"c{n}", "act") for n in range(200)])
    waiting = asyncio.ensure_future(batch)
    while not full.is_set():
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(asked) == most and threading.active_count() <= before + most
    batch.cancel(now=True)
    results = await waiting
    assert [result.status for result in results] == ["cancelled"] * 200 and not runs
    answered.set()
    assert (await runner.run("act")).success and len(asked) == most + 1


# -- what an approver knows beforehand -----------------------------------------------------------------------------


class Knows:
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
def test_decide_gives_what_the_approver_knows_beforehand_and_asks_nobody(known: Decision) -> None:
    write, ran = writing()
    approver = Knows(known)
    runner = Runner([write.bind(text="secret")], guards=[asks], approve=approver)
    decision = go(runner.decide(ToolCall("1", "write", {"n": 1}), principal="bob"))
    assert (decision, decision.rule) == (known, known.rule)
    [(call, asked, context)] = approver.seen
    assert call.arguments == {"n": 1, "text": "**********"}
    assert (asked.reason, context.principal, approver.asked, ran) == ("really?", "bob", 0, [])


@pytest.mark.parametrize("unknown", [None, True, "yes", ValueError("broken")])
async def test_decide_asks_where_the_approver_knows_nothing_beforehand_or_breaks(unknown: object) -> None:
    runner = Runner([writing()[0]], guards=[asks], approve=Knows(unknown))
    assert (await runner.decide(ToolCall("1", "write", {"n": 1}))) == ask("really?")


def test_what_an_approver_knows_beforehand_lifts_no_deny_and_says_the_arguments_that_a_guard_changed() -> None:
    def one_more(call: ToolCall, context: ToolContext) -> Decision | None:
        return allow({"n": 2}) if call.arguments["n"] == 1 else None

    def not_three(call: ToolCall, context: ToolContext) -> Decision | None:
        return deny("three") if call.arguments["n"] == 3 else None

    runner = Runner([writing()[0]], guards=[one_more, asks, not_three], approve=Knows(allow(by="ada")))
    assert go(runner.decide(ToolCall("1", "write", {"n": 3}))) == deny("three")
    assert go(runner.decide(ToolCall("1", "write", {"n": 1}))) == allow({"n": 2, "text": "t"}, by="ada")


async def test_the_rule_by_which_an_approver_allows_is_told() -> None:
    def by_a_rule(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        return Decision("allow", by="ada", rule="grant 1")

    watch = Watch()
    await Runner([writing()[0]], guards=[asks], approve=by_a_rule, observers=[watch]).run("write", {"n": 1})
    first, last = (event.data for event in watch.events if event.kind == "tool:decided")
    assert first["decision"].rule == "asks"
    assert (last["decision"].kind, last["decision"].rule, last["by"]) == ("allow", "grant 1", "ada")
