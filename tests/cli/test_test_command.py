"""`ferrule test`: what a file of tests may say, what passes and what fails, and how that is shown."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ferrule.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "test-files.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"`(\w+\.(?:py|toml))`:\n\n```(?:python|toml)\n(.*?)```", PAGE, re.DOTALL))
RAN = '''
from pathlib import Path

from ferrule import Journal, Runner, ToolContext, ToolError, deny, tool


@tool(read_only=True)
def stock(article: str) -> int:
    """Say how many there are."""
    raise ToolError(f"no {article} here")


@tool
def order(article: str, count: int = 1) -> str:
    """Order more."""
    Path("ran").write_text(article)
    return f"ordered {count} of {article}"
'''
GUARDED = """
from ran import *


def not_for_eve(call, context):
    return deny("eve may not") if context.principal == "eve" or context.session == "old" else None


def log(event):
    Path("ran").write_text("log")


runner = Runner([stock, order], guards=[not_for_eve], observers=[log], journal=Journal.open("calls.db"))
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (*FILES.items(), ("ran.py", RAN), ("guarded.py", GUARDED)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Trials:
    """Runs a file of tests."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def of(self, text: str, *, tools: str = "ran.py", **head: str) -> list[dict[str, Any]]:
        """What is said of each test to programs."""
        first = "".join(f"{key} = {value}\n" for key, value in {"tools": f'["{tools}"]', **head}.items())
        Path("mine.toml").write_text(first + text, encoding="utf-8")
        code = main(["test", "mine.toml", "--json", *(["--live"] if head.get("live") == "true" else [])])
        shown = self.capsys.readouterr()
        found: list[dict[str, Any]] = json.loads(shown.out)
        assert code == int(any(not one["passed"] for one in found)), shown
        return found

    def wrong(self, text: str, **more: str) -> str:
        """What is wrong with a file of one test; empty where it passes."""
        (one,) = self.of(f"[[test]]\n{text}", **more)
        assert one["passed"] == (not one["wrong"])
        return "\n".join(one["wrong"])


@pytest.fixture
def trials(capsys: pytest.CaptureFixture[str]) -> Trials:
    return Trials(capsys)


# The page


def test_the_file_of_the_page_passes_and_prints_what_stands_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(FILES) == ["shop.py", "shop.toml", "tests.toml"]
    assert main(["test", "tests.toml"]) == 0
    assert f"```text\n$ ferrule test tests.toml\n{capsys.readouterr().out}```\n" in PAGE


def test_a_failure_looks_as_the_page_shows_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = """
[[test]]
user = "Give me 20 EUR."
model = [{ call = "refund", arguments = { order = "4711", euros = 200 } }, { say = "Done." }]
called = { call = "refund", arguments = { euros = 20 } }
"""
    (here / "mine.toml").write_text(f'tools = ["shop.py"]\n{test}', encoding="utf-8")
    assert main(["test", "tests.toml", "mine.toml"]) == 1
    shown = capsys.readouterr().out
    table, _, failure = shown.partition("\nmine.toml:3 Give me 20 EUR.\n")
    failure, _, summary = failure.partition("\n\n")
    assert f"```text\n{failure}\n```\n" in PAGE
    assert summary == "1 of 6 tests failed\n"
    assert "FAILED  mine.toml:3" in table


def test_the_page_has_each_key(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mine.toml").write_text("zzzzzzz = 1\n[[test]]\nzzzzzzz = 1\n", encoding="utf-8")
    assert main(["test", "mine.toml"]) == 2
    said = " ".join(capsys.readouterr().out.split())
    keys = [
        key for found in re.findall(r"its keys are ([\w, ]+?)(?: error|$| 2 errors)", said) for key in found.split(", ")
    ]
    assert {"tools", "denied"} <= set(keys)
    assert [key for key in keys if key != "test" and f"`{key}`" not in PAGE] == []


# What is expected


@pytest.mark.parametrize(
    ("test", "wrong"),
    [
        ('call = "order"\narguments = { article = "tea" }\napprove = "yes"\nstatus = "ok"', ""),
        ('call = "order"\narguments = { article = "tea" }\nstatus = "ok"', "the status is denied; expected ok"),
        ('call = "order"\narguments = { article = "tea" }\napprove = "later"\nstatus = "suspended"', ""),
        ('call = "order"\narguments = { article = "tea" }\napprove = { order = "yes" }\nstatus = "ok"', ""),
        ('call = "order"\narguments = { article = "tea" }\napprove = { stock = "yes" }\nstatus = "denied"', ""),
        ('call = "order"\napprove = { ordr = "yes" }\nstatus = "invalid"', "did you mean 'order'"),
        ('call = "stock"\narguments = \'{"article": "tea",}\'\nstatus = "ok"', ""),
        ('call = "stok"\nstatus = "not_found"', ""),
        ('call = "stock"\narguments = { article = "tea" }\nresult_contains = "7"', ""),
        ('call = "stock"\narguments = { article = "tea" }\nresult_contains = ["7", "8"]', "lacks '8'"),
        ('call = "stock"\nresult_contains = "\'article\' is required"', ""),
        ('call = "stock"\narguments = { article = "tea" }\ncalled = "stock"', ""),
        ('call = "stock"\narguments = { article = "tea" }\ncalled = ["stock", "order"]', "order() was not called"),
        ('call = "stock"\narguments = { article = "tea" }\ncalled = { call = "stock", times = 2 }', "was called once"),
        ('call = "stock"\narguments = { article = "tea" }\ncalled = "stok"', "did you mean 'stock'"),
        ('call = "stock"\narguments = { article = "tea" }\nnot_called = ["order"]', ""),
        ('call = "stock"\narguments = { article = "tea" }\nnot_called = "stock"', "stock() was called"),
        ('call = "stock"\narguments = { article = "tea" }\ndenied = "stock"', "no call of stock was denied"),
        ('call = "order"\narguments = { article = "tea" }\ndenied = "order"', ""),
        ('call = "order"\narguments = { article = "tea" }\ndenied = { call = "order", rule = "said no" }', ""),
        (
            'call = "order"\narguments = { article = "tea" }\ndenied = { call = "order", rule = "x9" }',
            "no rule with 'x9'",
        ),
        ('call = "order"\ndenied = "order"', "no call of order was denied"),
        ('call = "order"\narguments = { article = "tea" }\ndenied = "ordr"', "did you mean 'order'"),
    ],
)
def test_a_call_is_held_against_what_is_expected(test: str, wrong: str, trials: Trials) -> None:
    said = trials.wrong(test, answers="{ stock = 7 }")
    assert (wrong in said) if wrong else said == ""


TALK = """
user = "How much tea?"
model = [
  [{ say = "I look." }, { call = "stock", arguments = { article = "tea" } }, { call = "order", arguments = "{" }],
  { say = "Seven." },
]
"""


@pytest.mark.parametrize(
    ("expected", "wrong"),
    [
        ('reply_contains = "Seven"\ntold_contains = ["7", "JSON"]\nstatus = "done"\ncalled = "stock"', ""),
        ('reply_contains = "Eight"', "the reply lacks 'Eight': 'Seven.'"),
        ('told_contains = "8"', "the text for the model lacks '8'"),
        ('told_contains = "Seven"', "lacks 'Seven'"),
        ('status = "suspended"', "the status is done; expected suspended"),
        ('not_called = "order"', ""),
    ],
)
def test_a_conversation_is_held_against_what_is_expected(expected: str, wrong: str, trials: Trials) -> None:
    said = trials.wrong(TALK + expected, answers="{ stock = 7 }")
    assert (wrong in said) if wrong else said == ""


def test_turns_of_the_model_that_are_left_over_or_missing_fail(trials: Trials) -> None:
    end = '{ say = "Seven." },\n]'
    assert "1 of 3 steps are left over" in trials.wrong(
        TALK.replace(end, f'{{ say = "A." }}, {end}') + 'not_called = "order"'
    )
    wrong = trials.wrong(TALK.replace(end, "]") + 'called = "order"')
    assert 'end them with { say = "…" }' in wrong and "order() was not called" in wrong


def test_a_conversation_waits_where_a_person_answers_later(trials: Trials) -> None:
    talk = 'user = "Tea."\nmodel = [{ call = "order", arguments = { article = "tea" } }]\napprove = "later"\n'
    assert trials.wrong(f'{talk}status = "suspended"\nnot_called = "order"') == ""


def test_what_happened_is_told_line_by_line(trials: Trials) -> None:
    (one,) = trials.of(f"[[test]]{TALK}not_called = 'order'", answers="{ stock = 7 }")
    user, model, stock, order, end = one["lines"]
    assert (user, model, end) == ("user   How much tea?", "model  I look.", "model  Seven.")
    assert stock == "call   stock(article='tea') → ok: '7'"
    assert order.startswith("call   order() → invalid, not run: ")


# What it is run with


def test_tools_run_where_the_file_is_live_and_nowhere_else(here: Path, trials: Trials) -> None:
    test = 'call = "order"\narguments = { article = "tea" }\napprove = "yes"\nstatus = "ok"'
    assert trials.wrong(test) == ""
    assert not (here / "ran").exists()
    stock = 'call = "stock"\narguments = { article = "tea" }\nresult_contains = '
    assert trials.wrong(f"{stock}'no tea here'", live="true") == ""
    assert trials.wrong(f"{stock}'7'", live="true", answers="{ stock = 7 }") == ""
    assert trials.wrong(f"{test}\nresult_contains = 'ordered 1'", live="true") == ""
    assert (here / "ran").read_text() == "tea"


def test_a_file_that_is_live_runs_nothing_where_nobody_said_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = '[[test]]\ncall = "order"\narguments = { article = "tea" }\napprove = "yes"\nstatus = "ok"\n'
    (here / "mine.toml").write_text(f'tools = ["ran.py"]\nlive = true\n{test}', encoding="utf-8")
    assert main(["test", "mine.toml"]) == 2
    assert "'mine.toml' has live = true" in capsys.readouterr().err
    assert not (here / "ran").exists()


def test_guards_of_a_runner_hold_and_its_observers_and_journal_see_nothing(
    here: Path, trials: Trials, capsys: pytest.CaptureFixture[str]
) -> None:
    call = 'call = "order"\narguments = { article = "tea" }\n'
    assert trials.wrong(f"{call}status = 'ok'", tools="guarded.py") == ""
    for who in ('principal = "eve"', 'session = "old"'):
        assert trials.wrong(f"{call}{who}\ndenied = {{ call = 'order', rule = 'eve may' }}", tools="guarded.py") == ""
    assert not (here / "ran").exists()
    assert main(["log", "calls.db", "--json"]) == 0
    assert capsys.readouterr().out == ""


def test_a_rule_of_the_policy_is_known_by_its_text_and_its_place(here: Path, trials: Trials) -> None:
    (here / "own.toml").write_text('deny = ["order(count>5)"]\n', encoding="utf-8")
    call = 'call = "order"\narguments = { article = "tea", count = 6 }\napprove = "yes"\n'
    for rule in ("order(count>5)", "own.toml:1"):
        assert trials.wrong(f"{call}denied = {{ call = 'order', rule = '{rule}' }}", policy='"own.toml"') == ""
    assert "no call of order was denied" in trials.wrong(f"{call}denied = 'order'")
    table = '[[rule]]\ndecide = "deny"\ntools = ["order"]\narguments = { count = { above = 5 } }\nreason = "too many"\n'
    (here / "own.toml").write_text(table, encoding="utf-8")
    for rule in ("deny order(count", "too many"):
        assert trials.wrong(f"{call}denied = {{ call = 'order', rule = '{rule}' }}", policy='"own.toml"') == ""
    (here / "own.toml").write_text(table.replace("deny", "ask"), encoding="utf-8")
    no = call.replace("yes", "no")
    for rule in ("too many", "said no"):
        assert trials.wrong(f"{no}denied = {{ call = 'order', rule = '{rule}' }}", policy='"own.toml"') == ""


def test_files_are_found_from_the_folder_of_the_tests(
    here: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert main(["test", str(here / "tests.toml")]) == 0


def test_the_command_line_names_other_tools(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = '[[test]]\ncall = "stock"\narguments = { article = "tea" }\nstatus = "ok"\n'
    (here / "mine.toml").write_text(test, encoding="utf-8")
    assert main(["test", "mine.toml"]) == 2
    assert "mine.toml names no tools" in capsys.readouterr().err
    assert main(["test", "mine.toml", "--tools", "ran.py"]) == 0
    (here / "mine.toml").write_text(f'tools = ["shop.py"]\n{test}', encoding="utf-8")
    assert main(["test", "mine.toml"]) == 1
    assert main(["test", "mine.toml", "--tools", "ran.py"]) == 0


# What cannot be meant


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('tols = ["x.py"]', "1 a file of tests has no 'tols': did you mean 'tools'?"),
        ('live = "yes"', "1 live must be true or false, not 'yes'"),
        ("test = 5", "1 test must be a list of tables, as in [[test]]"),
        ("[[test]]\ncal = 'x'", "1 a test has no 'cal': did you mean 'call'?"),
        (
            "\n[[test]]\ncall = 'x'",
            "2 a test needs an expectation: called, denied, not_called, result_contains, status",
        ),
        ("[[test]]\nstatus = 'ok'", "a test needs either call"),
        ("[[test]]\ncall = 'x'\nuser = 'x'\nstatus = 'ok'", "a test needs either call"),
        ("[[test]]\ncall = 'x'\ntold_contains = 'x'", "told_contains is not a key of a call"),
        (
            "[[test]]\nuser = 'x'\nmodel = [{ say = 'x' }]\nresult_contains = 'x'",
            "result_contains is not a key of a conversation",
        ),
        ("[[test]]\nuser = 'x'\nstatus = 'done'", "a conversation needs a model"),
        ("[[test]]\ncall = 'x'\nstatus = 'done'", "the status of a call must be one of ok"),
        ("[[test]]\nuser = 'x'\nmodel = [{ say = 'x' }]\nstatus = 'don'", "not 'don': did you mean 'done'?"),
        ("[[test]]\nuser = 'x'\nmodel = [{ sya = 'x' }]\nstatus = 'done'", 'a turn must be { say = "…" }'),
        ("[[test]]\nuser = 'x'\nmodel = [{ say = 'x', arguments = {} }]\nstatus = 'done'", "arguments without a call"),
        ("[[test]]\ncall = 'x'\napprove = 'perhaps'\nstatus = 'ok'", 'approve must be "yes", "no" or "later"'),
        (
            "[[test]]\ncall = 'x'\ncalled = [{ call = 'x', time = 1 }]",
            "a table of called has no 'time': did you mean 'times'?",
        ),
        ("[[test]]\ncall = 'x'\ncalled = [{ call = 'x', times = 0 }]", "times must be a whole number of at least 1"),
        ("[[test]]\ncall = 'x'\ncalled = [{ times = 1 }]", "called must name the tool"),
        ("[[test]]\ncall = 'x'\ndenied = [5]", "denied must be a list"),
        ("[[test]]\ncall = 'x'\nnot_called = []", "not_called is a list of texts"),
        ("[[test]", "it is not TOML"),
        ("", "there are no tests"),
    ],
)
def test_a_file_that_is_wrong_is_said_with_its_line_and_nothing_is_run(
    text: str, said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.toml").write_text(text, encoding="utf-8")
    assert main(["test", "tests.toml", "mine.toml"]) == 2
    out = " ".join(capsys.readouterr().out.split())
    assert said in out.replace("mine.toml:", "") and out.endswith("no test was run")


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ('tools = ["nowhere.py"]', "nowhere.py"),
        ('tools = ["shop.py"]\npolicy = "nowhere.toml"', "nowhere.toml"),
        ('tools = ["shop.py"]\npolicy = "misspelt.toml"', "misspelt.toml:1: there is no tool 'refnd'"),
        ('tools = ["shop.py"]\nanswers = { refnd = "x" }', "did you mean 'refund'"),
        ('tools = ["shop.py"]\nlive = true\nanswers = { refnd = "x" }', "did you mean 'refund'"),
        ('tools = ["shop.py"]\nanswers = { find_order = "x" }', "does not fit its output schema"),
    ],
)
def test_what_a_file_names_and_is_not_there_is_said(
    head: str, said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "misspelt.toml").write_text('deny = ["refnd"]\n', encoding="utf-8")
    (here / "mine.toml").write_text(f"{head}\n[[test]]\ncall = 'refund'\nstatus = 'ok'\n", encoding="utf-8")
    assert main(["test", "mine.toml", "--live"]) == 2
    assert said in capsys.readouterr().err


def test_a_file_that_is_not_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["test", "nowhere.toml"]) == 2
    assert "cannot read 'nowhere.toml'" in capsys.readouterr().err


def test_what_a_tool_says_cannot_move_the_cursor(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = '[[test]]\nname = "\\u001b[2J"\ncall = "stock"\narguments = { article = "\\u001b[2J" }\nstatus = "denied"'
    talk = '[[test]]\nuser = "\\u001b[2J"\nmodel = [{ say = "\\u001b[2J" }]\nstatus = "failed"'
    (here / "mine.toml").write_text(f'tools = ["ran.py"]\n{test}\n{talk}', encoding="utf-8")
    assert main(["test", "mine.toml"]) == 1
    assert "\x1b" not in capsys.readouterr().out
