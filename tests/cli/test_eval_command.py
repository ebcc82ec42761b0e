"""`ferrule eval`: what it prints, that nothing runs without --live, thresholds, and what cannot be meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ferrule.cli import main

TOOLS = '''
from pathlib import Path

from ferrule import Journal, Runner, deny, tool


@tool(read_only=True)
def stock(article: str) -> int:
    """Say how many there are."""
    Path("ran").write_text("stock")
    return 3


@tool
def order(article: str, count: int = 1) -> str:
    """Order more."""
    Path("ran").write_text("order")
    return f"ordered {count} of {article}"


def not_coffee(call, context):
    return deny("no coffee") if call.arguments["article"] == "coffee" else None
'''
GUARDED = """
from tools import *


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
EVAL = ["eval", "cases.jsonl", "--tools", "tools.py", "--model", "scripted:steps.py"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("tools.py", TOOLS), ("guarded.py", GUARDED), ("steps.py", STEPS)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    write_cases(tmp_path, CASES)
    monkeypatch.chdir(tmp_path)
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    return tmp_path


def write_cases(folder: Path, cases: list[dict[str, Any]]) -> None:
    (folder / "cases.jsonl").write_text("\n".join(map(json.dumps, cases)), encoding="utf-8")


def read(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_scores_are_printed_with_the_cases_that_are_not_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(EVAL) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3 cases with the model scripted:steps.py"
    assert [line.split() for line in lines[3:8]] == [
        ["case", "chosen", "arguments", "order", "refusals", "exact"],
        ["count", "1.00", "1.00", "–", "–", "yes"],
        ["order", "1.00", "0.00", "–", "–", "no"],
        ["chat", "–", "–", "–", "1.00", "yes"],
        ["all", "1.00", "0.50", "–", "1.00", "2", "of", "3"],
    ]
    assert lines[-4:] == [
        "Not exactly right, worst first:",
        "order (chosen 1.00, arguments 0.00): '5 tea.'",
        "  expected order(count=5); the nearest call is order(article='tea', count=50) → ok",
        "  called order(article='tea', count=50) → ok",
    ]


def test_without_live_nothing_runs_nobody_is_asked_and_nothing_is_kept(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for tools in ("tools.py", "guarded.py"):
        assert main(["eval", "cases.jsonl", "--tools", tools, "--model", "scripted:steps.py", "--json"]) == 0
        found = read(capsys)
        assert [call["status"] for one in found["cases"] for call in one["called"]] == ["ok", "ok"]
        assert found["live"] is False
    assert not (here / "ran").exists()
    assert main(["log", "calls.db", "--json"]) == 0
    assert capsys.readouterr().out == ""


def test_guards_are_real_where_the_tools_are_faked(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "steps.py").write_text(STEPS.replace('"tea"', '"coffee"'), encoding="utf-8")
    assert main(["eval", "cases.jsonl", "--tools", "guarded.py", "--model", "scripted:steps.py", "--json"]) == 0
    assert read(capsys)["counts"]["denied"] == 2


def test_live_tools_run_with_the_policy_of_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*EVAL, "--live", "--json"]) == 0
    found = read(capsys)
    assert [call["status"] for one in found["cases"] for call in one["called"]] == ["ok", "denied"]
    assert found["live"] is True
    assert (here / "ran").read_text() == "stock"
    assert main([*EVAL, "--live", "--yes", "order"]) == 0
    assert "the tools run" in capsys.readouterr().out
    assert (here / "ran").read_text() == "order"


@pytest.mark.parametrize(
    ("words", "code", "missed"),
    [
        (["--min-chosen", "1", "--min-arguments", "0.5", "--min-refusals", "1"], 0, []),
        (["--min-arguments", "0.6"], 1, ["arguments is 0.5000, and at least 0.6 was asked for"]),
        (["--min-exact", "0.9", "--min-chosen", "1"], 1, ["exact is 0.6667, and at least 0.9 was asked for"]),
    ],
)
def test_a_threshold_that_is_missed_ends_with_1_and_is_named(
    words: list[str], code: int, missed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*EVAL, *words]) == code
    assert [line for line in capsys.readouterr().out.splitlines() if "asked for" in line] == missed
    assert main([*EVAL, *words, "--json"]) == code
    assert read(capsys)["missed"] == missed


def test_a_model_that_fails_in_a_case_ends_with_1_and_the_others_are_scored(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "steps.py").write_text(STEPS.replace('"Three."', "lambda messages: 1 / 0"), encoding="utf-8")
    assert main(EVAL) == 1
    out = capsys.readouterr().out
    assert "the model failed in 1" in out
    assert "  the model failed: ModelFailed: ZeroDivisionError: division by zero" in out.splitlines()
    assert "1 of 3" in out


def test_steps_that_are_a_list_are_those_of_every_case(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "steps.py").write_text('steps = [[("stock", {"article": "tea"})], "Three."]', encoding="utf-8")
    assert main([*EVAL, "--json"]) == 0
    assert [[call["name"] for call in one["called"]] for one in read(capsys)["cases"]] == [["stock"]] * 3


def test_a_turn_alone_runs_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*EVAL, "--max-turns", "1", "--at-once", "3", "--live", "--json"]) == 0
    assert {call["status"] for one in read(capsys)["cases"] for call in one["called"]} == {"limited"}
    assert not (here / "ran").exists()


def test_what_a_model_says_cannot_move_the_cursor(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "steps.py").write_text(
        STEPS.replace('"order": [[("order"', '"order": [[("\\x1b[2Jorder"'), encoding="utf-8"
    )
    assert main(EVAL) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*EVAL, "--min-order", "0.5"], "no case asks for order, so that order=0.5 could never fail"),
        ([*EVAL, "--min-chosen", "2"], "a number from 0 to 1, such as 0.8, not '2'"),
        ([*EVAL, "--max-turns", "0"], "a whole number of at least 1"),
        ([*EVAL, "--yes", "order"], "--yes needs --live"),
        ([*EVAL, "--min-chosn", "1"], "did you mean '--min-chosen'"),
        (["eval", "nowhere.jsonl", *EVAL[2:]], "cannot read 'nowhere.jsonl'"),
        ([*EVAL[:-1], "scripted:nowhere.py"], "nowhere.py"),
        ([*EVAL[:-1], "scriptd:steps.py"], "there is no provider 'scriptd'"),
        (EVAL[:-2], "--model is missing"),
    ],
)
def test_what_cannot_be_meant_is_said_before_a_model_is_asked(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    shown = capsys.readouterr()
    assert said in shown.err and shown.out == ""


def test_a_threshold_that_could_never_fail_is_refused_before_the_model_is_asked(here: Path) -> None:
    asked = "from pathlib import Path\n\nsteps = [lambda messages: Path('asked').touch() or 'Hello.']\n"
    (here / "steps.py").write_text(asked, encoding="utf-8")
    assert main([*EVAL, "--min-order", "0.5"]) == 2
    assert not (here / "asked").exists()
    assert main(EVAL) == 0
    assert (here / "asked").exists()


def test_a_case_without_steps_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_cases(here, [{"id": "coun", "request": "Hi.", "refuses": True}])
    assert main(EVAL) == 2
    assert "has no steps for the case 'coun'; did you mean 'count'?" in capsys.readouterr().err
