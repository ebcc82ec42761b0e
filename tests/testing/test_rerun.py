"""`Scripted.from_run` and `rerun`: a recorded model, live tools, and where their results differ."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ferrule import DefinitionError, Journal, Runner, ToolCall, ToolContext, ask, tool
from ferrule.approval import later
from ferrule.journal.reading import Filter, Reader
from ferrule.loop import LoopResult, resume, run
from ferrule.models import Scripted
from ferrule.testing import rerun

PRICES = {"tea": 4, "milk": 1}


def shop(prices: dict[str, int], asked: list[str] | None = None) -> Any:
    @tool(read_only=True)
    async def price(item: str) -> int:
        (asked if asked is not None else []).append(item)
        return prices[item]

    return price


STEPS: list[Any] = [
    ("I look.", [("price", {"item": "tea"}), ("price", {"item": "milk"})]),
    [("price", {"item": "bread"})],
    [("price", '{"item": 5}')],
    "That is all.",
]


async def record(runner: Runner, steps: list[Any] = STEPS, **options: Any) -> LoopResult:
    model = Scripted(steps)
    return await run(model, model.user("What is it?"), runner, **options)


async def test_a_recorded_model_repeats_its_replies_and_calls() -> None:
    before = await record(Runner([shop(PRICES)]))
    asked: list[str] = []
    model = Scripted.from_run(before)
    after = await run(model, model.user("?"), Runner([shop({**PRICES, "tea": 5}, asked)]))
    model.assert_done()
    assert asked == ["tea", "milk", "bread"]
    assert [reply.text for reply in after.replies] == [reply.text for reply in before.replies]
    assert [[(c.id, c.name, c.raw) for c in reply.calls] for reply in after.replies] == [
        [(c.id, c.name, c.raw) for c in reply.calls] for reply in before.replies
    ]
    assert (after.status, after.text) == (before.status, before.text) == ("done", "That is all.")


async def test_equal_results_pass() -> None:
    before = await record(Runner([shop(PRICES)]))
    found = await rerun(before, Runner([shop(PRICES)]))
    found.assert_same()
    assert (len(found.results), found.left_out) == (3, 1)
    assert str(found) == "3 results, no difference (and 1 call not made, of which nothing had run)"


async def test_each_difference_is_reported_with_its_arguments() -> None:
    before = await record(Runner([shop(PRICES)]))
    found = await rerun(before, Runner([shop({"tea": 4, "milk": 2, "bread": 3})]))
    assert [(one.tool_name, one.arguments) for one in found.differences] == [
        ("price", {"item": "milk"}),
        ("price", {"item": "bread"}),
    ]
    assert (found.differences[0].recorded["output"], found.differences[0].now["output"]) == (1, 2)
    with pytest.raises(AssertionError) as raised:
        found.assert_same()
    assert '-  "output": 1' in str(raised.value) and '+  "status": "ok"' in str(raised.value)
    assert str(raised.value).startswith("of 3 results, 2 differ")


async def test_a_resumed_run_is_compared_call_by_call() -> None:
    guard: Any = lambda call, context: ask("?") if call.arguments["item"] == "tea" else None  # noqa: E731
    runner = Runner([shop(PRICES)], guards=[guard], approve=later)
    model = Scripted([[("price", {"item": "tea"})], [("price", {"item": "milk"})], "Done."])
    waits = await run(model, model.user("?"), runner)
    before = await resume(waits.suspended, {"call_1": True}, model, runner)
    asked: list[str] = []
    found = await rerun(before, Runner([shop({**PRICES, "tea": 5}, asked)]))
    assert asked == ["tea", "milk"] and [one.arguments for one in found.differences] == [{"item": "tea"}]


async def test_a_session_of_a_journal_can_be_rerun(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"

    @tool
    async def buy(item: str, context: ToolContext) -> int:
        return int((await context.run("price", {"item": item})).output)

    with closing(Journal.open(path)) as journal:
        runner = Runner([buy, shop(PRICES)], journal=journal)
        await record(runner, [[("buy", {"item": "tea"})], [("buy", {"item": "milk"})], "Bought."], session="s7")
        await record(runner, [[("buy", {"item": "milk"})], "Bought."], session="s8")
        await journal.flush()
    calls = list(Reader(path).calls(Filter(session="s7")))
    assert [call.parent is None for call in calls].count(True) == 2
    found = await rerun(reversed(calls), Runner([buy, shop({**PRICES, "milk": 7})]))
    assert (len(found.results), [one.arguments for one in found.differences]) == (2, [{"item": "milk"}])
    model = Scripted.from_run(calls)
    again = await run(model, model.user("?"), Runner([buy, shop(PRICES)]))
    assert (again.text, [one.output for one in again.results]) == ("The recorded run ends here.", [4, 1])


async def test_a_repeated_call_that_ran_once_is_made_once(tmp_path: Path) -> None:
    path, paid = tmp_path / "calls.db", list[str]()

    @tool
    async def pay(to: str) -> str:
        paid.append(to)
        return to

    with closing(Journal.open(path)) as journal:
        runner = Runner([pay], journal=journal)
        for _ in range(2):
            assert (await runner.run(ToolCall("same", "pay", {"to": "ada"}), ToolContext(session="s"))).success
        await journal.flush()
    assert paid == ["ada"]
    found = await rerun(Reader(path).calls(Filter(session="s")), Runner([pay]))
    assert paid == ["ada", "ada"] and found.left_out == 0


async def test_redacted_arguments_are_not_rerun(tmp_path: Path) -> None:
    path, deleted = tmp_path / "calls.db", list[tuple[str, str]]()

    @tool
    async def delete(pattern: str, tenant: str = "") -> str:
        deleted.append((pattern, tenant))
        return pattern

    bound = delete.bind(tenant="t-4711-abcd")
    with closing(Journal.open(path)) as journal:
        runner = Runner([bound], journal=journal, secrets={"token": "hunter2-very-secret"})
        await record(runner, [[("delete", {"pattern": "a*"})], "Gone."], session="plain")
        await record(runner, [[("delete", {"pattern": "hunter2-very-secret"})], "Gone."], session="secret")
        await journal.flush()
    deleted.clear()
    plain, secret = (list(Reader(path).calls(Filter(session=name))) for name in ("plain", "secret"))
    (await rerun(plain, Runner([bound]))).assert_same()
    assert deleted == [("a*", "t-4711-abcd")]
    without_events = [dataclasses.replace(call, result={}) for call in secret]
    with pytest.raises(DefinitionError, match="the journal has stars in its arguments"):
        await rerun(without_events, Runner([bound]))
    with pytest.raises(DefinitionError, match="the journal has stars in its arguments"):
        Scripted.from_run(without_events, tools=runner.tools)
    assert len(deleted) == 1


@pytest.mark.parametrize("options", [{"max_turns": 1}, {"max_calls": 1}])
async def test_calls_that_did_not_run_are_not_rerun(options: dict[str, int]) -> None:
    before = await record(Runner([shop(PRICES)]), **options)
    asked: list[str] = []
    ran = [result for result in before.results if result.executed]
    if ran:
        (await rerun(before, Runner([shop(PRICES, asked)]))).assert_same()
    assert asked == [result.call.arguments["item"] for result in ran if result.call] and len(asked) < 2


@pytest.mark.parametrize("given", [[], [7], "calls.db"])
def test_a_wrong_run_is_refused(given: Any) -> None:
    with pytest.raises(DefinitionError, match="from_run takes"):
        Scripted.from_run(given)
