"""`evaluate`: what each score is, what a case may say, and what a failure tells."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from ferrule import DefinitionError, Runner, Toolset, deny, tool
from ferrule.journal import memory
from ferrule.models import Reply, Scripted, Step
from ferrule.testing import Case, ToolUse, evaluate, fake, read_cases


@tool(read_only=True)
async def find_order(order: str) -> dict[str, int]:
    """Find an order."""
    raise ConnectionError


@tool
async def refund(order: str, euros: float = 10.0) -> str:
    """Pay money back."""
    raise ConnectionError


@tool
async def delete_order(order: str) -> str:
    """Delete an order."""
    raise ConnectionError


RUNNER = Runner(fake([find_order, refund, delete_order]))


def used(case: Case, *calls: Any, runner: Runner = RUNNER, **more: Any) -> ToolUse:
    """What is found where the model makes these calls, each in a turn of its own, and then says something."""
    steps: list[Step] = [*([call] for call in calls), "Done."]
    return asyncio.run(evaluate([case], Scripted(steps), runner, **more))


def case(*calls: Any, **more: Any) -> Case:
    return Case("one", "Give me my money.", calls, **more)


FIND = ("find_order", {"order": "1"})
PAY = ("refund", {"order": "1", "euros": 80})


def test_a_case_is_exactly_right_where_the_calls_are_those_that_it_has() -> None:
    found = used(case("find_order", ("refund", {"euros": 80}), in_order=True), FIND, PAY)
    scores = found.scores
    assert (scores.chosen, scores.arguments, scores.order, scores.refusals, scores.exact) == (1, 1, 1, None, 1)
    assert found.outcomes[0].text == "Done."


def test_a_model_that_was_recorded_is_scored_the_same_without_it() -> None:
    wanted = [Case("a", "Has 1 been paid?", ["find_order"]), Case("b", "Thank you!", refuses=True)]
    steps: dict[str, list[Step]] = {"a": [("I look.", [FIND]), [PAY], "Yes."], "b": ["Bye."]}
    live = asyncio.run(evaluate(wanted, lambda case: Scripted(steps[case.id]), RUNNER))
    recorded = {outcome.case.id: outcome for outcome in live.outcomes}
    again = asyncio.run(evaluate(wanted, lambda case: Scripted.from_run(recorded[case.id]), RUNNER))
    assert [len(outcome.replies) for outcome in live.outcomes] == [3, 1]
    assert again.to_json() == live.to_json() and live.scores.exact == 0.5


def test_chosen_is_lower_for_a_call_too_many_and_for_one_that_is_missing() -> None:
    assert used(case("refund"), FIND, PAY).scores.chosen == pytest.approx(2 / 3)
    assert used(case("refund", "find_order"), PAY).scores.chosen == pytest.approx(2 / 3)
    assert used(case("refund"), PAY, PAY).scores.chosen == pytest.approx(2 / 3)
    assert used(case("refund"), FIND).scores.chosen == 0


def test_a_call_that_is_repeated_is_not_exact() -> None:
    assert used(case("refund"), PAY, PAY).scores.exact == 0


def test_arguments_are_those_of_the_expected_calls_that_were_made() -> None:
    wrong = ("refund", {"order": "1", "euros": 800})
    scores = used(case("find_order", ("refund", {"euros": 80}), "delete_order"), FIND, wrong).scores
    assert (scores.arguments, scores.exact) == (0.5, 0)


def test_arguments_are_compared_as_they_were_validated_with_defaults() -> None:
    assert used(case(("refund", {"euros": 10})), ("refund", '{"order": "1",}')).scores.arguments == 1
    assert used(case(("refund", {"euros": 80})), ("refund", {"order": "1", "euros": "80"})).scores.arguments == 1


def test_values_with_an_equality_of_their_own_decide() -> None:
    wanted = {"order": ANY, "euros": pytest.approx(80.001, abs=0.01)}
    assert used(case(("refund", wanted)), PAY).scores.exact == 1
    assert used(case(("refund", {**wanted, "euros": pytest.approx(81)})), PAY).scores.exact == 0


def test_a_call_goes_to_the_expected_one_that_no_other_call_fits() -> None:
    first, second = ("refund", {"order": "1"}), ("refund", {"order": "2"})
    assert used(case("refund", first), first, second).scores.arguments == 1


def test_order_counts_the_right_calls_that_stand_in_it() -> None:
    first, second = ("refund", {"order": "1"}), ("refund", {"order": "2"})
    assert used(case(first, second, in_order=True), second, first).scores.order == 0.5
    assert used(case(first, second), second, first).scores.exact == 1
    assert used(case(first, second, in_order=True), second, first).scores.exact == 0
    assert used(case(first, second, in_order=True), first, FIND, second).scores.order == 1


def test_without_a_call_that_was_expected_arguments_and_order_are_0() -> None:
    scores = used(case("refund", "find_order", in_order=True)).scores
    assert (scores.chosen, scores.arguments, scores.order, scores.exact) == (0, 0, 0, 0)


def test_a_refusal_is_kept_by_calling_nothing() -> None:
    assert used(case(refuses=True)).scores.refusals == 1
    scores = used(case(refuses=True), FIND).scores
    assert (scores.refusals, scores.chosen, scores.exact) == (0, None, 0)


@pytest.mark.parametrize("name", ["delete_order", "delete_all"])
def test_a_tool_that_must_not_be_called_may_be_named_by_a_glob(name: str) -> None:
    assert used(case("refund", never=["delete_*"]), PAY).scores.exact == 1
    scores = used(case(never=["delete_*"]), (name, {"order": "1"})).scores
    assert (scores.refusals, scores.exact) == (0, 0)


def test_where_only_some_tools_are_ruled_out_other_calls_are_right() -> None:
    scores = used(case(never=["delete_*"]), FIND).scores
    assert (scores.chosen, scores.refusals, scores.exact) == (None, 1, 1)


def test_calls_without_a_tool_with_invalid_arguments_and_denied_ones_are_counted() -> None:
    runner = RUNNER.replace(guards=[lambda call, context: deny("no") if call.name == "delete_order" else None])
    calls = [("refnd", {}), ("refund", {"ordr": "1"}), ("refund", "{"), ("delete_order", {"order": "1"})]
    found = used(case("refund", "delete_order"), *calls, runner=runner)
    assert found.counts == {"not_found": 1, "invalid": 2, "denied": 1}
    assert found.scores.arguments == 0.5
    assert "calls: 1 with a name that no tool has, 2 with invalid arguments, 1 denied" in found.table()


def test_with_one_turn_the_first_calls_are_looked_at_and_not_run() -> None:
    found = used(case("refund"), PAY, FIND, max_turns=1)
    assert [(call.name, call.status) for call in found.outcomes[0].called] == [("refund", "limited")]
    assert found.scores.exact == 1
    bad = used(case("refund"), ("refund", {"ordr": "1"}), max_turns=1)
    assert (bad.counts["invalid"], bad.scores.arguments) == (1, 0)


async def test_a_model_that_raises_fails_its_case_and_no_other() -> None:
    scripts: dict[str, list[Step]] = {"broken": [[PAY]], "right": [[PAY], "Done."]}
    cases = [Case(name, "Pay.", ["refund"], in_order=False) for name in scripts]
    found = await evaluate(cases, lambda case: Scripted(scripts[case.id]), RUNNER)
    broken, right = found.outcomes
    assert broken.error is not None and "asked once more" in broken.error
    assert [call.name for call in broken.called] == ["refund"]
    assert (broken.scores.chosen, broken.scores.arguments, broken.scores.exact) == (0, 0, 0)
    assert (right.error, right.scores.exact) == (None, 1)
    assert found.scores.exact == 0.5
    assert "the model failed in 1" in found.table()


async def test_the_scores_over_all_are_means_over_the_cases_that_have_them() -> None:
    scripts: dict[str, list[Step]] = {"pay": [[PAY, FIND], "Done."], "none": ["No."], "wrong": [[FIND], "Done."]}
    cases = [Case("pay", "Pay.", ["refund"]), Case("none", "Hi.", refuses=True), Case("wrong", "Hi.", refuses=True)]
    scores = (await evaluate(cases, lambda case: Scripted(scripts[case.id]), RUNNER)).scores
    assert (scores.chosen, scores.refusals, scores.order) == (pytest.approx(2 / 3), 0.5, None)
    assert scores.exact == pytest.approx(1 / 3)


class Meeting:
    """A model that answers when so many are asked at a time."""

    def __init__(self, together: int) -> None:
        self.together, self.asked, self.most = asyncio.Event(), 0, together
        self.results = Scripted([]).results
        self.user = Scripted([]).user

    async def __call__(self, messages: Sequence[Any], toolset: Toolset, /) -> Reply:
        self.asked += 1
        if self.asked == self.most:
            self.together.set()
        await asyncio.wait_for(self.together.wait(), 60)
        self.asked -= 1
        return Reply("No.", messages=[{"role": "assistant", "content": "No."}])


def refusing(count: int) -> list[Case]:
    return [Case(f"c{number}", "Hello.", refuses=True) for number in range(count)]


async def test_as_many_cases_as_at_once_says_run_side_by_side() -> None:
    async def two_at_once() -> ToolUse:
        return await evaluate(refusing(4), Meeting(2), RUNNER, at_once=2)

    assert (await two_at_once()).scores.exact == 1


async def test_one_case_at_a_time_where_nothing_else_is_said() -> None:
    most: list[int] = []

    class Counting(Meeting):
        async def __call__(self, messages: Sequence[Any], toolset: Toolset, /) -> Reply:
            self.asked += 1
            most.append(self.asked)
            await asyncio.sleep(0)
            self.asked -= 1
            return Reply("No.", messages=[{"role": "assistant", "content": "No."}])

    async def ask() -> None:
        await evaluate(refusing(3), Counting(1), RUNNER)

    await ask()
    assert most == [1, 1, 1]


async def test_messages_are_sent_as_they_are() -> None:
    messages = [{"role": "user", "content": "Pay 1."}]
    model = Scripted(["Done."])
    await evaluate([Case("one", messages, refuses=True)], model, RUNNER)
    assert model.requests[0].messages == messages


async def test_each_case_may_have_a_runner_of_its_own() -> None:
    only = {"a": [find_order], "b": [refund]}
    scripts: dict[str, list[Step]] = {"a": [[FIND], "Done."], "b": [[FIND], "Done."]}
    cases = [Case("a", "Find.", ["find_order"]), Case("b", "Find.", ["refund"])]
    found = await evaluate(cases, lambda case: Scripted(scripts[case.id]), lambda case: Runner(fake(only[case.id])))
    assert [one.called[0].status for one in found.outcomes] == ["ok", "not_found"]


def test_calls_of_two_cases_with_one_id_are_two_calls_for_a_journal() -> None:
    runner = Runner(fake([refund]), journal=memory())
    cases = [Case(name, "Pay.", ["refund"]) for name in ("a", "b")]
    found = asyncio.run(evaluate(cases, lambda case: Scripted([[PAY], "Done."]), runner))
    assert found.scores.exact == 1
    sessions = {event.session for event in _events(runner, cases)}
    assert len(sessions) == 2


def _events(runner: Runner, cases: Iterable[Case]) -> list[Any]:
    seen: list[Any] = []
    asyncio.run(evaluate(cases, lambda case: Scripted([[PAY], "Done."]), runner.replace(observers=[seen.append])))
    return seen


# What is shown


async def test_the_table_fits_80_columns_whatever_the_cases_are_called() -> None:
    cases = [Case("x\n" * 100, "Hello.", refuses=True), Case("short", "Pay.", ["refund"])]
    found = await evaluate(cases, lambda case: Scripted(["No."]), RUNNER)
    lines = found.table().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["case", "chosen", "arguments", "order", "refusals", "exact"]
    assert lines[2].split() == ["short", "0.00", "–", "–", "–", "no"]
    assert lines[3].split() == ["all", "0.00", "0.00", "–", "1.00", "1", "of", "2"]


def test_the_json_has_what_was_expected_and_called_whatever_the_values() -> None:
    found = used(case(("refund", {"order": ANY, "euros": 1})), PAY)
    told = json.loads(json.dumps(found.to_json()))
    assert told["scores"]["chosen"] == 1 and told["counts"]["denied"] == 0
    (one,) = told["cases"]
    assert one["expected"] == [{"name": "refund", "arguments": {"order": "<ANY>", "euros": 1}}]
    assert one["called"] == [
        {"name": "refund", "arguments": {"order": "1", "euros": 80.0}, "status": "ok", "error": None}
    ]


async def test_what_is_missed_lists_the_worst_cases_with_what_is_nearest() -> None:
    scripts: dict[str, list[Step]] = {"near": [[FIND, PAY], "Done."], "right": ["No."], "bad": [[FIND], "Done."]}
    cases = [
        Case("near", "Pay 8.", ["find_order", ("refund", {"euros": 8})]),
        Case("right", "Hi.", refuses=True),
        Case("bad", "Hi.", refuses=True),
    ]
    found = await evaluate(cases, lambda case: Scripted(scripts[case.id]), RUNNER)
    found.assert_at_least(chosen=1, arguments=0.5, refusals=0.5)
    with pytest.raises(AssertionError) as caught:
        found.assert_at_least(chosen=1, arguments=0.6, refusals=0.9)
    assert str(caught.value).splitlines() == [
        "arguments is 0.5000, and at least 0.6 was asked for",
        "refusals is 0.5000, and at least 0.9 was asked for",
        "The worst cases:",
        "bad (refusals 0.00): 'Hi.'",
        "  expected no call at all",
        "  called find_order(order='1') → ok",
        "near (chosen 1.00, arguments 0.50): 'Pay 8.'",
        "  expected refund(euros=8); the nearest call is refund(order='1', euros=80) → ok",
        "  called find_order(order='1') → ok",
        "  called refund(order='1', euros=80) → ok",
    ]


def test_a_call_of_the_same_tool_is_nearer_than_one_that_looks_alike() -> None:
    found = used(case(("refund", {"order": "4711"})), ("find_order", {"order": "4711"}), ("refund", {"order": "9"}))
    assert "the nearest call is refund(order='9', euros=10.0) → ok" in found.outcomes[0].lines()[1]


@pytest.mark.parametrize(
    ("least", "said"),
    [({"order": 0.5}, "no case asks for order"), ({"chosen": 2}, "from 0 to 1"), ({"chosen": -0.1}, "from 0 to 1")],
)
def test_a_threshold_that_could_never_fail_is_refused(least: dict[str, float], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        used(case("refund"), PAY).assert_at_least(**least)


# What cannot be meant


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Case("one", "Hi."), "says nothing of calls"),
        (lambda: Case("", "Hi.", refuses=True), "has an id"),
        (lambda: Case("one", "", refuses=True), "request is what a user says"),
        (lambda: Case("one", "Hi.", ["refund"], refuses=True), "leave calls and never out"),
        (lambda: Case("one", "Hi.", ["refund"], in_order=True), "fewer than two calls"),
        (lambda: Case("one", "Hi.", "refund"), "calls is a list"),
        (lambda: Case("one", "Hi.", [("refund", "x")]), "a call is 'refund' or"),  # type: ignore[list-item]
        (lambda: Case("one", "Hi.", never="refund"), "never is a list"),
    ],
)
def test_a_case_that_cannot_be_meant_is_refused(made: Any, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        made()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (Case("one", "Hi.", ["refnd"]), "did you mean 'refund'"),
        (Case("one", "Hi.", [("refund", {"euro": 1})]), "did you mean 'euros'"),
        (Case("one", "Hi.", never=["delete_ordr"]), "delete_ordr"),
    ],
)
def test_a_name_that_is_misspelt_is_refused(wrong: Case, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        used(wrong)


async def test_no_case_and_two_of_one_id_are_refused() -> None:
    for cases, said in (([], "there are no cases"), ([case("refund")] * 2, "two cases have the id 'one'")):
        with pytest.raises(DefinitionError, match=said):
            await evaluate(cases, Scripted([]), RUNNER)


async def test_what_is_no_runner_no_model_and_no_number_is_refused() -> None:
    for model, runner, more, said in (
        (Scripted([]), [refund], {}, "needs a Runner"),
        (Scripted([]), RUNNER, {"at_once": 0}, "at_once is a whole number"),
        (None, RUNNER, {}, "has no user"),
    ):
        with pytest.raises(DefinitionError, match=said):
            await evaluate([case("refund")], model, runner, **more)  # type: ignore[arg-type]


# Files


def written(folder: Path, *rows: Any) -> Path:
    file = folder / "cases.jsonl"
    file.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return file


def test_cases_are_read_from_lines(tmp_path: Path) -> None:
    full = {"id": "a", "request": "Pay.", "calls": ["find_order", {"name": "refund", "arguments": {"euros": 8}}]}
    file = written(tmp_path, {**full, "in_order": True, "never": ["delete_*"]}, "", {"request": "Hi.", "refuses": True})
    first, second = read_cases(file)
    assert first == Case("a", "Pay.", ("find_order", ("refund", {"euros": 8})), in_order=True, never=["delete_*"])
    assert second == Case("line 3", "Hi.", refuses=True)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"request": "Hi.", "cals": []}, "a case has no 'cals': did you mean 'calls'?"),
        ({"request": "Hi.", "calls": [{"nam": "x"}]}, "a call has no 'nam': did you mean 'name'?"),
        ({"request": "Hi.", "calls": [{"arguments": {}}]}, 'a call has a "name"'),
        ({"request": "Hi.", "calls": "refund"}, '"calls" is a list'),
        ({"request": "Hi.", "refuses": "yes"}, '"refuses" is true or false'),
        ({"refuses": True}, "request is what a user says"),
        ({"request": 5, "refuses": True}, "request is what a user says"),
        ("{", "this is no JSON"),
    ],
)
def test_a_line_that_cannot_be_meant_is_refused_with_its_place(row: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match=r"cases\.jsonl, line 2: ") as caught:
        read_cases(written(tmp_path, {"request": "Hi.", "refuses": True}, row))
    assert said in str(caught.value)
