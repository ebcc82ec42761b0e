"""`Scripted.from_run` and `rerun`: a recorded model, live tools, and where their results differ."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ferrule import DefinitionError, Journal, Runner, ToolCall, ToolContext, ask, deny, tool
from ferrule.approval import later
from ferrule.journal.reading import Filter, Reader
from ferrule.loop import LoopResult, resume, run
from ferrule.models import Reply, Scripted
from ferrule.testing import rerun
from watched import go

PRICES = {"tea": 4, "milk": 1}


def shop(prices: dict[str, int], asked: list[str] | None = None) -> Any:
    @tool(read_only=True)
    async def price(item: str) -> int:
        """What an item costs."""
        (asked if asked is not None else []).append(item)
        return prices[item]

    return price


STEPS: list[Any] = [
    ("I look.", [("price", {"item": "tea"}), ("price", {"item": "milk"})]),
    [("price", {"item": "bread"})],
    [("price", '{"item": 5}')],
    "That is all.",
]


def recorded(runner: Runner, steps: list[Any] = STEPS, **options: Any) -> LoopResult:
    model = Scripted(steps)
    result: LoopResult = go(_awaited(run(model, model.user("What is it?"), runner, **options)))
    return result


async def _awaited(what: Any) -> Any:
    return await what


def test_the_model_of_a_run_says_and_calls_the_same_again() -> None:
    before = recorded(Runner([shop(PRICES)]))
    asked: list[str] = []
    model = Scripted.from_run(before)
    after = go(_awaited(run(model, model.user("?"), Runner([shop({**PRICES, "tea": 5}, asked)]))))
    model.assert_done()
    assert asked == ["tea", "milk", "bread"]
    assert [reply.text for reply in after.replies] == [reply.text for reply in before.replies]
    assert [[(c.id, c.name, c.raw) for c in reply.calls] for reply in after.replies] == [
        [(c.id, c.name, c.raw) for c in reply.calls] for reply in before.replies
    ]
    assert (after.status, after.text) == (before.status, before.text) == ("done", "That is all.")


def test_results_that_are_the_same_are_said_to_be() -> None:
    before = recorded(Runner([shop(PRICES)]))
    found = go(rerun(before, Runner([shop(PRICES)])))
    found.assert_same()
    assert (len(found.results), found.left_out) == (3, 1)
    assert str(found) == "all 3 results are the same (1 calls were not made: nothing had run)"


def test_each_result_that_differs_is_told_with_its_arguments() -> None:
    before = recorded(Runner([shop(PRICES)]))
    found = go(rerun(before, Runner([shop({"tea": 4, "milk": 2, "bread": 3})])))
    assert [(one.tool_name, one.arguments) for one in found.differences] == [
        ("price", {"item": "milk"}),
        ("price", {"item": "bread"}),
    ]
    assert (found.differences[0].recorded["output"], found.differences[0].now["output"]) == (1, 2)
    with pytest.raises(AssertionError) as raised:
        found.assert_same()
    assert '-  "output": 1' in str(raised.value) and '+  "status": "ok"' in str(raised.value)
    assert str(raised.value).startswith("2 of 3 results differ")


def test_a_run_that_was_taken_up_is_compared_call_by_call() -> None:
    guard: Any = lambda call, context: ask("?") if call.arguments["item"] == "tea" else None  # noqa: E731
    runner = Runner([shop(PRICES)], guards=[guard], approve=later)
    model = Scripted([[("price", {"item": "tea"})], [("price", {"item": "milk"})], "Done."])

    async def main() -> LoopResult:
        waits = await run(model, model.user("?"), runner)
        assert waits.suspended is not None
        ended: LoopResult = await resume(waits.suspended, {"call_1": True}, model, runner)
        return ended

    before = go(main())
    asked: list[str] = []
    found = go(rerun(before, Runner([shop({**PRICES, "tea": 5}, asked)])))
    assert asked == ["tea", "milk"] and [one.arguments for one in found.differences] == [{"item": "tea"}]


def test_a_journal_gives_the_calls_of_a_session_again(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"

    @tool
    async def buy(item: str, context: ToolContext) -> int:
        return int((await context.run("price", {"item": item})).output)

    with closing(Journal.open(path)) as journal:
        runner = Runner([buy, shop(PRICES)], journal=journal)
        recorded(runner, [[("buy", {"item": "tea"})], [("buy", {"item": "milk"})], "Bought."], session="s7")
        recorded(runner, [[("buy", {"item": "milk"})], "Bought."], session="s8")
        go(journal.flush())
    calls = list(Reader(path).calls(Filter(session="s7")))
    assert [call.parent is None for call in calls].count(True) == 2
    found = go(rerun(reversed(calls), Runner([buy, shop({**PRICES, "milk": 7})])))
    assert (len(found.results), [one.arguments for one in found.differences]) == (2, [{"item": "milk"}])
    model = Scripted.from_run(calls)
    again = go(_awaited(run(model, model.user("?"), Runner([buy, shop(PRICES)]))))
    assert (again.text, [one.output for one in again.results]) == ("The recorded run ends here.", [4, 1])


def test_what_came_again_and_ran_once_is_made_once(tmp_path: Path) -> None:
    path, paid = tmp_path / "calls.db", list[str]()

    @tool
    async def pay(to: str) -> str:
        paid.append(to)
        return to

    async def twice(journal: Journal) -> None:
        runner = Runner([pay], journal=journal)
        for _ in range(2):
            assert (await runner.run(ToolCall("same", "pay", {"to": "ada"}), ToolContext(session="s"))).success
        await journal.flush()

    with closing(Journal.open(path)) as journal:
        go(twice(journal))
    assert paid == ["ada"]
    found = go(rerun(Reader(path).calls(Filter(session="s")), Runner([pay])))
    assert paid == ["ada", "ada"] and found.left_out == 0


def test_what_a_journal_has_stars_for_is_made_again_only_where_no_model_fills_it(tmp_path: Path) -> None:
    path, deleted = tmp_path / "calls.db", list[tuple[str, str]]()

    @tool
    async def delete(pattern: str, tenant: str = "") -> str:
        deleted.append((pattern, tenant))
        return pattern

    bound = delete.bind(tenant="t-4711-abcd")
    with closing(Journal.open(path)) as journal:
        runner = Runner([bound], journal=journal, secrets={"token": "hunter2-very-secret"})
        recorded(runner, [[("delete", {"pattern": "a*"})], "Gone."], session="plain")
        recorded(runner, [[("delete", {"pattern": "hunter2-very-secret"})], "Gone."], session="secret")
        go(journal.flush())
    deleted.clear()
    plain, secret = (list(Reader(path).calls(Filter(session=name))) for name in ("plain", "secret"))
    go(rerun(plain, Runner([bound]))).assert_same()
    assert deleted == [("a*", "t-4711-abcd")]
    without_events = [dataclasses.replace(call, result={}) for call in secret]
    with pytest.raises(DefinitionError, match="the journal has stars in its arguments"):
        go(rerun(without_events, Runner([bound])))
    with pytest.raises(DefinitionError, match="the journal has stars in its arguments"):
        Scripted.from_run(without_events, tools=runner.tools)
    assert len(deleted) == 1


@pytest.mark.parametrize("options", [{"max_turns": 1}, {"max_calls": 1}])
def test_calls_that_were_not_run_are_not_run_now(options: dict[str, int]) -> None:
    before = recorded(Runner([shop(PRICES)]), **options)
    asked: list[str] = []
    ran = [result for result in before.results if result.executed]
    if ran:
        go(rerun(before, Runner([shop(PRICES, asked)]))).assert_same()
    assert asked == [result.call.arguments["item"] for result in ran if result.call] and len(asked) < 2


def test_a_call_that_waited_or_was_denied_is_not_run_where_nobody_is_asked_now() -> None:
    guard: Any = lambda call, context: ask("?") if call.arguments["item"] == "tea" else deny("no")  # noqa: E731
    steps = [[("price", {"item": "milk"})], [("price", {"item": "tea"})]]
    before = recorded(Runner([shop(PRICES)], guards=[guard], approve=later), steps)
    assert before.status == "suspended"
    asked: list[str] = []
    found = go(rerun(before, Runner([shop(PRICES, asked)])))
    assert (asked, found.left_out) == ([], 2)


def test_a_turn_that_was_cut_off_or_refused_is_so_again() -> None:
    cut = Reply("", [ToolCall("c1", "price", "{", problem="The turn was cut off.")], [], "cut")
    before = recorded(Runner([shop(PRICES)]), [cut, Reply("No.", stop="refused", reason="policy")])
    model = Scripted.from_run(before)
    again = go(_awaited(run(model, model.user("?"), Runner([shop(PRICES)]))))
    assert (again.status, again.reason) == ("failed", "policy") == (before.status, before.reason)
    assert [one.status for one in again.results] == ["invalid"]


@pytest.mark.parametrize("given", [[], [7], "calls.db", 7])
def test_what_is_no_run_is_a_mistake(given: Any) -> None:
    with pytest.raises(DefinitionError, match="from_run takes"):
        Scripted.from_run(given)
