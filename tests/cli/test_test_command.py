"""`ferrule test`: files of tests, what passes and fails, and how it is shown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "test-files.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"`(\w+\.(?:py|toml))`:\n\n```(?:python|toml)\n(.*?)```", PAGE, re.DOTALL))
RAN = '''
from pathlib import Path

from ferrule import Journal, Runner, ToolError, deny, tool

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
ORDER = 'call = "order"\narguments = { article = "tea" }\n'
STOCK = 'call = "stock"\narguments = { article = "tea" }\n'


@pytest.fixture(autouse=True)
def here(folder: Path) -> Path:
    for name, text in (*FILES.items(), ("ran.py", RAN), ("guarded.py", GUARDED)):
        (folder / name).write_text(text, encoding="utf-8")
    return folder


Check = Callable[..., str]


@pytest.fixture
def failures(ferrule: Any) -> Check:
    """Run a file of one test, and return what is wrong; nothing if it passes."""

    def run(text: str, *, tools: str = "ran.py", **head: str) -> str:
        lines = [f"{key} = {value}" for key, value in {"tools": f'["{tools}"]', **head}.items()]
        Path("mine.toml").write_text("\n".join([*lines, "[[test]]", text]), encoding="utf-8")
        done = ferrule("test", "mine.toml", "--json", *(["--live"] if head.get("live") == "true" else []))
        (one,) = json.loads(done.out)
        assert one["passed"] == (not one["wrong"]) == (done.code == 0)
        return "\n".join(one["wrong"])

    return run


# The page


def test_the_file_of_the_page_passes_from_any_folder(here: Path, ferrule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sorted(FILES) == ["shop.py", "shop.toml", "tests.toml"]
    done = ferrule("test", "tests.toml")
    assert done.code == 0 and f"```text\n$ ferrule test tests.toml\n{done.out}```\n" in PAGE
    monkeypatch.chdir("/")
    assert ferrule("test", str(here / "tests.toml")).code == 0


def test_a_failure_looks_as_the_page_shows_it(ferrule: Any) -> None:
    test = """
[[test]]
user = "Give me 20 EUR."
model = [{ call = "refund", arguments = { order = "4711", euros = 200 } }, { say = "Done." }]
called = { call = "refund", arguments = { euros = 20 } }
"""
    Path("mine.toml").write_text(f'tools = ["shop.py"]\n{test}', encoding="utf-8")
    done = ferrule("test", "tests.toml", "mine.toml")
    table, _, failure = done.out.partition("\nmine.toml:3 Give me 20 EUR.\n")
    failure, _, summary = failure.partition("\n\n")
    assert done.code == 1 and f"```text\n{failure}\n```\n" in PAGE
    assert summary == "1 of 3 tests failed\n" and "FAILED  mine.toml:3" in table


def test_the_page_has_each_key(ferrule: Any) -> None:
    Path("mine.toml").write_text("zzzzzzz = 1\n[[test]]\nzzzzzzz = 1\n", encoding="utf-8")
    found = re.findall(r"its keys are ([\w, ]+?)(?: error|$| 2 errors)", ferrule("test", "mine.toml").text)
    keys = {key for keys in found for key in keys.split(", ")}
    assert {"tools", "denied"} <= keys
    assert [key for key in keys if key != "test" and f"`{key}`" not in PAGE] == []


# Expectations


@pytest.mark.parametrize(
    ("test", "wrong"),
    [
        (f'{ORDER}approve = "yes"\nstatus = "ok"', ""),
        (f'{ORDER}status = "ok"', "the status is denied; expected ok"),
        (f'{ORDER}approve = {{ stock = "yes" }}\nstatus = "denied"', ""),
        (f'{ORDER}approve = {{ ordr = "yes" }}\nstatus = "invalid"', "did you mean 'order'"),
        ('call = "stock"\narguments = \'{"article": "tea",}\'\nstatus = "ok"', ""),
        (f'{STOCK}result_contains = ["7", "8"]', "lacks '8'"),
        ('call = "stock"\nresult_contains = "\'article\' is required"', ""),
        (f'{STOCK}called = {{ call = "stock", times = 2 }}', "was called once"),
        (f'{STOCK}not_called = "stock"', "stock() was called"),
        (f'{ORDER}denied = {{ call = "order", rule = "said no" }}', ""),
        (f'{ORDER}denied = {{ call = "order", rule = "x9" }}', "no rule with 'x9'"),
        ('call = "order"\ndenied = "order"', "no call of order was denied"),
    ],
)
def test_a_call_is_compared_with_its_expectations(test: str, wrong: str, failures: Check) -> None:
    said = failures(test, answers="{ stock = 7 }")
    assert (wrong in said) if wrong else said == ""


TALK = """
user = "How much tea?"
model = [
  [{ say = "I look." }, { call = "stock", arguments = { article = "tea" } }, { call = "order", arguments = "{" }],
  { say = "Seven." },
]
"""
END = '{ say = "Seven." },\n]'


@pytest.mark.parametrize(
    ("test", "wrong"),
    [
        (f'{TALK}reply_contains = "Seven"\ntold_contains = ["7", "JSON"]\nstatus = "done"', ""),
        (f'{TALK}called = "stock"\nnot_called = "order"', ""),
        (f'{TALK}told_contains = "Seven"', "the text for the model lacks 'Seven'"),
        (TALK.replace(END, f'{{ say = "A." }}, {END}') + 'not_called = "order"', "1 of 3 steps left over"),
        (TALK.replace(END, "]") + 'called = "order"', 'end them with { say = "…" }'),
        (
            'user = "Tea."\nmodel = [{ call = "order", arguments = { article = "tea" } }]\n'
            'approve = "later"\nstatus = "suspended"\nnot_called = "order"',
            "",
        ),
    ],
)
def test_a_conversation_is_compared_with_its_expectations(test: str, wrong: str, failures: Check) -> None:
    said = failures(test, answers="{ stock = 7 }")
    assert (wrong in said) if wrong else said == ""


# How tests run


def test_tools_run_only_in_live_files(here: Path, failures: Check, ferrule: Any) -> None:
    test = f'{ORDER}approve = "yes"\nstatus = "ok"\n'
    assert failures(test) == "" and not (here / "ran").exists()
    (here / "mine.toml").write_text(f'tools = ["ran.py"]\nlive = true\n[[test]]\n{test}', encoding="utf-8")
    done = ferrule("test", "mine.toml")
    assert done.code == 2 and "'mine.toml' has live = true" in done.err and not (here / "ran").exists()
    assert failures(f"{STOCK}result_contains = 'no tea here'", live="true") == ""
    assert failures(f"{STOCK}result_contains = '7'", live="true", answers="{ stock = 7 }") == ""
    assert failures(f"{test}result_contains = 'ordered 1'", live="true") == ""
    assert (here / "ran").read_text() == "tea"


def test_guards_hold_and_observers_and_journal_see_nothing(here: Path, failures: Check, ferrule: Any) -> None:
    assert failures(f"{ORDER}status = 'ok'", tools="guarded.py") == ""
    for who in ('principal = "eve"', 'session = "old"'):
        assert failures(f"{ORDER}{who}\ndenied = {{ call = 'order', rule = 'eve may' }}", tools="guarded.py") == ""
    assert not (here / "ran").exists()
    done = ferrule("log", "calls.db", "--json")
    assert (done.code, done.out) == (0, "")


def test_a_rule_of_the_policy_is_named_by_text_or_place(failures: Check) -> None:
    call = 'call = "order"\narguments = { article = "tea", count = 6 }\napprove = '
    rule = '[[rule]]\ndecide = "deny"\ntools = ["order"]\narguments = { count = { above = 5 } }\nreason = "too many"\n'
    assert "no call of order was denied" in failures(f"{call}'yes'\ndenied = 'order'")
    for policy, answer, names in (
        ('deny = ["order(count>5)"]\n', "yes", ("order(count>5)", "own.toml:1")),
        (rule, "yes", ("deny order(count", "too many")),
        (rule.replace("deny", "ask"), "no", ("too many", "said no")),
    ):
        Path("own.toml").write_text(policy, encoding="utf-8")
        for name in names:
            expected = f"denied = {{ call = 'order', rule = '{name}' }}"
            assert failures(f"{call}'{answer}'\n{expected}", policy='"own.toml"') == ""


def test_a_rule_about_the_time_holds_at_the_time_of_the_test(failures: Check) -> None:
    rule = '[[rule]]\ndecide = "allow"\ntools = ["order"]\nduring = "Mon-Fri 09:00-17:00"\n'
    Path("own.toml").write_text(rule, encoding="utf-8")
    for at, status in (("'2026-11-30 10:00'", "ok"), ("2026-11-30 18:00:00", "denied")):
        assert failures(f"{ORDER}at = {at}\nstatus = '{status}'", policy='"own.toml"') == ""


def test_the_command_line_names_other_tools(ferrule: Any) -> None:
    test = f'[[test]]\n{STOCK}status = "ok"\n'
    Path("mine.toml").write_text(test, encoding="utf-8")
    done = ferrule("test", "mine.toml")
    assert done.code == 2 and "mine.toml names no tools" in done.err
    Path("mine.toml").write_text(f'tools = ["shop.py"]\n{test}', encoding="utf-8")
    assert ferrule("test", "mine.toml").code == 1
    assert ferrule("test", "mine.toml", "--tools", "ran.py").code == 0


# Wrong files


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('tols = ["x.py"]', "1 a file of tests has no 'tols': did you mean 'tools'?"),
        ("\n[[test]]\ncall = 'x'", "2 a test needs an expectation: called, denied, not_called"),
        ("[[test]]\ncall = 'x'\ntold_contains = 'x'", "told_contains is not a key of a call"),
        ("[[test]]\nuser = 'x'\nmodel = [{ sya = 'x' }]\nstatus = 'done'", 'a turn must be { say = "…" }'),
        ("[[test]]\nuser = 'x'\nmodel = [{ say = 'x', arguments = {} }]\nstatus = 'done'", "arguments without a call"),
        ("[[test]]\ncall = 'x'\napprove = 'perhaps'\nstatus = 'ok'", 'approve must be "yes", "no" or "later"'),
        ("[[test]]\ncall = 'x'\ncalled = [{ call = 'x', time = 1 }]", "called has no 'time': did you mean 'times'?"),
        ("[[test]", "it is not TOML"),
    ],
)
def test_a_wrong_file_is_named_with_its_line_and_no_test_runs(text: str, error: str, ferrule: Any) -> None:
    Path("mine.toml").write_text(text, encoding="utf-8")
    done = ferrule("test", "tests.toml", "mine.toml")
    assert done.code == 2 and error in done.text.replace("mine.toml:", "") and "no test was run" in done.out


@pytest.mark.parametrize(
    ("head", "error"),
    [
        ('tools = ["nowhere.py"]', "nowhere.py"),
        ('tools = ["shop.py"]\npolicy = "misspelt.toml"', "misspelt.toml:1: there is no tool 'refnd'"),
        ('tools = ["shop.py"]\nlive = true\nanswers = { refnd = "x" }', "did you mean 'refund'"),
        ('tools = ["shop.py"]\nanswers = { find_order = "x" }', "does not fit its output schema"),
    ],
)
def test_a_wrong_name_in_the_head_is_an_error(head: str, error: str, ferrule: Any) -> None:
    Path("misspelt.toml").write_text('deny = ["refnd"]\n', encoding="utf-8")
    Path("mine.toml").write_text(f"{head}\n[[test]]\ncall = 'refund'\nstatus = 'ok'\n", encoding="utf-8")
    done = ferrule("test", "mine.toml", "--live")
    assert done.code == 2 and error in done.err
    done = ferrule("test", "nowhere.toml")
    assert done.code == 2 and "cannot read 'nowhere.toml'" in done.err
