"""`Scripted.from_run` and `rerun`: a recorded model, live tools, and where their results differ."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.kernel.watched import go

from ferrule import DefinitionError, Journal, Runner, ToolCall, ToolContext, ask, tool
from ferrule.approval import later
from ferrule.journal.reading import Filter, Reader
from ferrule.loop import LoopResult, run
from ferrule.models import Reply, Scripted
from ferrule.testing import rerun

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
    assert (found.calls, str(found)) == (4, "all 4 results are the same")


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
    assert str(raised.value).startswith("2 of 4 results differ")


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
    assert (found.calls, [one.arguments for one in found.differences]) == (2, [{"item": "milk"}])
    assert found.result.text == "The recorded run ends here."


def test_calls_that_were_not_run_as_the_run_was_limited_are_not_run_now() -> None:
    before = recorded(Runner([shop(PRICES)]), max_turns=1)
    asked: list[str] = []
    found = go(rerun(before, Runner([shop(PRICES, asked)])))
    found.assert_same()
    assert before.status == found.result.status == "limited" and asked == []


def test_a_run_that_waited_goes_on_where_nobody_is_asked_now() -> None:
    guard: Any = lambda call, context: ask("really?")  # noqa: E731
    before = recorded(Runner([shop(PRICES)], guards=[guard], approve=later), [[("price", {"item": "tea"})], "Done."])
    assert before.status == "suspended"
    found = go(rerun(before, Runner([shop(PRICES)])))
    assert [(one.recorded["status"], one.now["status"]) for one in found.differences] == [("suspended", "ok")]


def test_a_turn_that_was_cut_off_or_refused_is_so_again() -> None:
    cut = Reply("", [ToolCall("c1", "price", "{", problem="The turn was cut off.")], [], "cut")
    before = recorded(Runner([shop(PRICES)]), [cut, Reply("No.", stop="refused", reason="policy")])
    found = go(rerun(before, Runner([shop(PRICES)])))
    found.assert_same()
    assert (found.result.status, found.result.reason) == ("failed", "policy") == (before.status, before.reason)


@pytest.mark.parametrize("given", [[], [7], "calls.db", 7])
def test_what_is_no_run_is_a_mistake(given: Any) -> None:
    with pytest.raises(DefinitionError, match="from_run takes"):
        Scripted.from_run(given)
