"""`evaluate`: what each score is, what a case may say, and what a failure tells."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from ferrule import DefinitionError, Runner, deny, tool
from ferrule.journal import memory
from ferrule.models import Scripted, Step
from ferrule.testing import Case, ToolUse, evaluate, fake, read_cases
from waits import BOUND


@tool(read_only=True)
async def find_order(order: str) -> dict[str, int]:
    raise ConnectionError


@tool
async def refund(order: str, euros: float = 10.0) -> str:
    raise ConnectionError


@tool
async def delete_order(order: str) -> str:
    raise ConnectionError


RUNNER = Runner(fake([find_order, refund, delete_order]))


def used(case: Case, *calls: Any, runner: Runner = RUNNER, **more: Any) -> ToolUse:
    """Evaluate a model that makes these calls, one in each turn, and then ends."""
    steps: list[Step] = [*([call] for call in calls), "Done."]
    return asyncio.run(evaluate([case], Scripted(steps), runner, **more))


def case(*calls: Any, **more: Any) -> Case:
    return Case("one", "Give me my money.", calls, **more)


FIND = ("find_order", {"order": "1"})
PAY = ("refund", {"order": "1", "euros": 80})


def test_a_case_is_exact_if_its_calls_match() -> None:
    found = used(case("find_order", ("refund", {"euros": 80}), in_order=True), FIND, PAY)
    scores = found.scores
    assert (scores.chosen, scores.arguments, scores.order, scores.refusals, scores.exact) == (1, 1, 1, None, 1)
    assert found.outcomes[0].text == "Done."


async def test_a_recorded_model_has_the_same_scores() -> None:
    wanted = [Case("a", "Has 1 been paid?", ["find_order"]), Case("b", "Thank you!", refuses=True)]
    steps: dict[str, list[Step]] = {"a": [("I look.", [FIND]), [PAY], "Yes."], "b": ["Bye."]}
    live = await evaluate(wanted, lambda case: Scripted(steps[case.id]), RUNNER)
    recorded = {outcome.case.id: outcome for outcome in live.outcomes}
    again = await evaluate(wanted, lambda case: Scripted.from_run(recorded[case.id]), RUNNER)
    assert [len(outcome.replies) for outcome in live.outcomes] == [3, 1]
    assert again.to_json() == live.to_json() and live.scores.exact == 0.5


def test_chosen_falls_with_extra_and_missing_calls() -> None:
    assert used(case("refund"), FIND, PAY).scores.chosen == pytest.approx(2 / 3)
    assert used(case("refund", "find_order"), PAY).scores.chosen == pytest.approx(2 / 3)
    repeated = used(case("refund"), PAY, PAY).scores
    assert (repeated.chosen, repeated.exact) == (pytest.approx(2 / 3), 0)
    assert used(case("refund"), FIND).scores.chosen == 0


def test_arguments_score_the_expected_calls() -> None:
    wrong = ("refund", {"order": "1", "euros": 800})
    scores = used(case("find_order", ("refund", {"euros": 80}), "delete_order"), FIND, wrong).scores
    assert (scores.arguments, scores.exact) == (0.5, 0)


def test_calls_are_matched_to_expected_calls_optimally() -> None:
    first, second = ("refund", {"order": "1"}), ("refund", {"order": "2"})
    assert used(case("refund", first), first, second).scores.arguments == 1


def test_order_scores_the_calls_in_order() -> None:
    first, second = ("refund", {"order": "1"}), ("refund", {"order": "2"})
    assert used(case(first, second, in_order=True), second, first).scores.order == 0.5
    assert used(case(first, second), second, first).scores.exact == 1
    assert used(case(first, second, in_order=True), second, first).scores.exact == 0
    assert used(case(first, second, in_order=True), first, FIND, second).scores.order == 1


def test_a_refusal_requires_no_calls() -> None:
    assert used(case(refuses=True)).scores.refusals == 1
    scores = used(case(refuses=True), FIND).scores
    assert (scores.refusals, scores.chosen, scores.exact) == (0, None, 0)


@pytest.mark.parametrize("name", ["delete_order", "delete_all"])
def test_never_takes_a_glob(name: str) -> None:
    assert used(case("refund", never=["delete_*"]), PAY).scores.exact == 1
    scores = used(case(never=["delete_*"]), (name, {"order": "1"})).scores
    assert (scores.refusals, scores.exact) == (0, 0)


def test_failed_calls_are_counted_by_kind() -> None:
    runner = RUNNER.replace(guards=[lambda call, context: deny("no") if call.name == "delete_order" else None])
    calls = [("refnd", {}), ("refund", {"ordr": "1"}), ("refund", "{"), ("delete_order", {"order": "1"})]
    found = used(case("refund", "delete_order"), *calls, runner=runner)
    assert found.counts == {"not_found": 1, "invalid": 2, "denied": 1}
    assert found.scores.arguments == 0.5
    assert "calls: 1 with a name that no tool has, 2 with invalid arguments, 1 denied" in found.table()


def test_with_one_turn_calls_are_scored_and_not_run() -> None:
    found = used(case("refund"), PAY, FIND, max_turns=1)
    assert [(call.name, call.status) for call in found.outcomes[0].called] == [("refund", "limited")]
    assert found.scores.exact == 1
    bad = used(case("refund"), ("refund", {"ordr": "1"}), max_turns=1)
    assert (bad.counts["invalid"], bad.scores.arguments) == (1, 0)


async def test_a_model_that_raises_fails_only_its_case() -> None:
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


async def test_at_once_runs_cases_concurrently() -> None:
    together = asyncio.Barrier(2)

    class Meeting(Scripted):
        async def __call__(self, messages: Any, toolset: Any, /) -> Any:
            await asyncio.wait_for(together.wait(), BOUND)
            return await super().__call__(messages, toolset)

    cases = [Case(name, "Hello.", refuses=True) for name in "ab"]
    assert (await evaluate(cases, lambda case: Meeting(["No."]), RUNNER, at_once=2)).scores.exact == 1


async def test_cases_have_separate_sessions() -> None:
    seen: list[Any] = []
    runner = Runner(fake([refund]), journal=memory(), observers=[seen.append])
    cases = [Case(name, "Pay.", ["refund"]) for name in ("a", "b")]
    assert (await evaluate(cases, lambda case: Scripted([[PAY], "Done."]), runner)).scores.exact == 1
    assert len({event.session for event in seen}) == 2


def test_the_json_has_expected_and_actual_calls() -> None:
    found = used(case(("refund", {"order": ANY, "euros": 1})), PAY)
    told = json.loads(json.dumps(found.to_json()))
    assert told["scores"]["chosen"] == 1 and told["counts"]["denied"] == 0
    (one,) = told["cases"]
    assert one["expected"] == [{"name": "refund", "arguments": {"order": "<ANY>", "euros": 1}}]
    called = {"name": "refund", "arguments": {"order": "1", "euros": 80.0}, "status": "ok", "error": None}
    assert one["called"] == [called]


async def test_a_failure_lists_the_worst_cases() -> None:
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
    first, second, _, worst, *_, nearest, _, _ = str(caught.value).splitlines()
    assert first.startswith("arguments is 0.5") and second.startswith("refusals is 0.5")
    assert worst.startswith("bad (refusals 0.00)") and "the nearest call is refund(order='1', euros=80)" in nearest


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Case("one", "Hi."), "says nothing of calls"),
        (lambda: Case("one", "", refuses=True), "request is what a user says"),
        (lambda: Case("one", "Hi.", ["refund"], refuses=True), "leave calls and never out"),
        (lambda: Case("one", "Hi.", ["refund"], in_order=True), "fewer than two calls"),
    ],
)
def test_a_wrong_case_is_refused(made: Any, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        made()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (Case("one", "Hi.", [("refund", {"euro": 1})]), "did you mean 'euros'"),
        (Case("one", "Hi.", never=["delete_ordr"]), "delete_ordr"),
    ],
)
def test_a_misspelt_name_is_refused(wrong: Case, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        used(wrong)


async def test_no_cases_and_repeated_ids_are_refused() -> None:
    for cases, said in (([], "there are no cases"), ([case("refund")] * 2, "two cases have the id 'one'")):
        with pytest.raises(DefinitionError, match=said):
            await evaluate(cases, Scripted([]), RUNNER)


async def test_a_wrong_argument_of_evaluate_or_threshold_is_refused() -> None:
    with pytest.raises(DefinitionError, match="needs a Runner"):
        await evaluate([case("refund")], Scripted([]), [refund])  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="at_once is a whole number"):
        await evaluate([case("refund")], Scripted([]), RUNNER, at_once=0)
    found = await evaluate([case("refund")], Scripted(["No."]), RUNNER)
    for least, said in (({"order": 0.5}, "no case asks for order"), ({"chosen": 2}, "from 0 to 1")):
        with pytest.raises(DefinitionError, match=said):
            found.assert_at_least(**least)


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
        ({"request": "Hi.", "calls": [{"arguments": {}}]}, 'a call has a "name"'),
        ({"refuses": True}, "request is what a user says"),
        ("{", "this is no JSON"),
    ],
)
def test_a_wrong_line_is_refused_with_its_place(row: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match=r"cases\.jsonl, line 2: ") as caught:
        read_cases(written(tmp_path, {"request": "Hi.", "refuses": True}, row))
    assert said in str(caught.value)
