"""`ferrule eval`: its scores and thresholds, and that no tool runs without --live."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

GUARDED = """
from ferrule import Journal, Runner, deny
from shop import *

def not_coffee(call, context):
    return deny("no coffee") if call.arguments["article"] == "coffee" else None

def person(call, decision, context):
    raise AssertionError("nobody is asked")

def log(event):
    Path("ran").write_text("log")

runner = Runner(
    [stock, order], guards=[not_coffee], approve=person, observers=[log], journal=Journal.open("calls.db")
)
"""
STEPS = """
steps = {
    "count": [[("stock", {"article": "tea"})], "Three."],
    "order": [[("order", {"article": "tea", "count": 50})], "Done."],
    "chat": ["Hello."],
}
"""
CASES = [
    {"id": "count", "request": "How much tea?", "calls": [{"name": "stock", "arguments": {"article": "tea"}}]},
    {"id": "order", "request": "5 tea.", "calls": [{"name": "order", "arguments": {"count": 5}}]},
    {"id": "chat", "request": "Hi.", "refuses": True},
]
EVAL = ["eval", "cases.jsonl", "--tools", "shop.py", "--model", "scripted:steps.py"]


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    (folder / "guarded.py").write_text(GUARDED, encoding="utf-8")
    (folder / "steps.py").write_text(STEPS, encoding="utf-8")
    (folder / "cases.jsonl").write_text("\n".join(map(json.dumps, CASES)), encoding="utf-8")


def test_scores_are_printed_with_the_wrong_cases(ferrule: Any) -> None:
    done = ferrule(*EVAL)
    lines = done.out.splitlines()
    assert done.code == 0 and lines[0] == "3 cases with the model scripted:steps.py"
    rows = [" ".join(line.split()) for line in lines[4:8]]
    assert rows[:2] == ["count 1.00 1.00 – – yes", "order 1.00 0.00 – – no"]
    assert rows[2:] == ["chat – – – 1.00 yes", "all 1.00 0.50 – 1.00 2 of 3"]
    assert lines[-4:] == [
        "Not exactly right, worst first:",
        "order (chosen 1.00, arguments 0.00): '5 tea.'",
        "  expected order(count=5); the nearest call is order(article='tea', count=50) → ok",
        "  called order(article='tea', count=50) → ok",
    ]


@pytest.mark.parametrize("tools", ["shop.py", "guarded.py"])
def test_without_live_nothing_runs_asks_or_is_recorded(folder: Path, ferrule: Any, tools: str) -> None:
    found = ferrule("eval", "cases.jsonl", "--tools", tools, "--model", "scripted:steps.py", "--json").json
    assert [call["status"] for one in found["cases"] for call in one["called"]] == ["ok", "ok"]
    assert found["live"] is False and not (folder / "ran").exists()
    if tools == "guarded.py":
        assert ferrule("log", "calls.db", "--json").out == ""


def test_live_tools_run_under_the_policy(folder: Path, ferrule: Any) -> None:
    found = ferrule(*EVAL, "--live", "--json").json
    assert [call["status"] for one in found["cases"] for call in one["called"]] == ["ok", "denied"]
    assert found["live"] is True and (folder / "ran").read_text() == "stock"
    assert "the tools run" in ferrule(*EVAL, "--live", "--yes", "order").out
    assert (folder / "ran").read_text() == "order"
    (folder / "ran").unlink()
    found = ferrule(*EVAL, "--max-turns", "1", "--at-once", "3", "--live", "--json").json
    assert {call["status"] for one in found["cases"] for call in one["called"]} == {"limited"}
    assert not (folder / "ran").exists()  # one turn alone runs nothing


@pytest.mark.parametrize(
    ("words", "missed"),
    [
        (["--min-chosen", "1", "--min-arguments", "0.5", "--min-refusals", "1"], []),
        (["--min-arguments", "0.6"], ["arguments is 0.5000, and at least 0.6 was asked for"]),
        (["--min-exact", "0.9", "--min-chosen", "1"], ["exact is 0.6667, and at least 0.9 was asked for"]),
    ],
)
def test_a_missed_threshold_is_named_and_ends_with_1(ferrule: Any, words: list[str], missed: list[str]) -> None:
    done = ferrule(*EVAL, *words)
    assert done.code == bool(missed) and [line for line in done.out.splitlines() if "asked for" in line] == missed
    done = ferrule(*EVAL, *words, "--json")
    assert done.code == bool(missed) and done.json["missed"] == missed


def test_a_model_that_fails_in_one_case_ends_with_1(folder: Path, ferrule: Any) -> None:
    (folder / "steps.py").write_text(STEPS.replace('"Three."', "lambda messages: 1 / 0"), encoding="utf-8")
    done = ferrule(*EVAL)
    assert done.code == 1 and "the model failed in 1" in done.out and "1 of 3" in done.out
    assert "  the model failed: ModelFailed: ZeroDivisionError: division by zero" in done.out.splitlines()


def test_a_list_of_steps_serves_every_case(folder: Path, ferrule: Any) -> None:
    (folder / "steps.py").write_text('steps = [[("stock", {"article": "\\x1b[2J"})], "Three."]', encoding="utf-8")
    found = ferrule(*EVAL, "--json").json
    assert [[call["name"] for call in one["called"]] for one in found["cases"]] == [["stock"]] * 3
    assert "\x1b" not in ferrule(*EVAL).out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([*EVAL, "--min-order", "0.5"], "no case asks for order, so that order=0.5 could never fail"),
        ([*EVAL, "--min-chosen", "2"], "a number from 0 to 1, such as 0.8, not '2'"),
        ([*EVAL, "--yes", "order"], "--yes needs --live"),
        ([*EVAL[:-1], "scripted:other.py"], "has no steps for the case 'count'; did you mean 'coun'?"),
    ],
)
def test_a_wrong_command_is_refused_before_the_model_is_asked(
    folder: Path, ferrule: Any, words: list[str], error: str
) -> None:
    asked = "from pathlib import Path\n\nsteps = [lambda messages: Path('asked').touch() or 'Hello.']\n"
    (folder / "steps.py").write_text(asked, encoding="utf-8")
    (folder / "other.py").write_text("steps = {'coun': ['Three.'], 'order': ['Done.'], 'chat': ['Hi.']}")
    done = ferrule(*words)
    assert done.code == 2 and error in done.err and done.out == ""
    assert not (folder / "asked").exists()
