"""`--journal FILE` records each call, and the next command says what a killed one left open."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import sys
from contextlib import closing
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import preloaded
from waits import BOUND

pytestmark = pytest.mark.slow
TOOLS = '''
import os
import signal

from ferrule import Journal, Runner, tool

@tool(destructive=False)
def order(article: str) -> str:
    """Order an article."""
    if article == "trouble":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"ordered {article}"

TOOLS = [order]
'''
OWN = '\nrunner = Runner(TOOLS, guards=[lambda call, context: None], journal=Journal.open("own.db"))\n'


@pytest.fixture(autouse=True)
def write_tools(folder: Path) -> None:
    (folder / "tools.py").write_text(TOOLS, encoding="utf-8")


def ferrule(*words: str) -> CompletedProcess[str]:
    return preloaded.run([sys.executable, "-m", "ferrule", *words], env=dict(os.environ), timeout=BOUND)


def order(article: str, journal: str = "../calls.db", tools: str = "tools.py:TOOLS") -> CompletedProcess[str]:
    return ferrule("call", "order", f"article={article}", "--tools", tools, "--yes", "order", "--journal", journal)


def read_rows(query: str) -> list[tuple[str, ...]]:
    with closing(sqlite3.connect("../calls.db")) as connection:
        return connection.execute(query).fetchall()


def test_calls_are_recorded_in_a_private_file() -> None:
    assert order("tea").stdout == "ordered tea\n" == order("tea").stdout
    Path("steps.py").write_text('steps = [[("order", {"article": "tea"})], "Done."]', encoding="utf-8")
    words = ("--tools", "tools.py:TOOLS", "--yes", "order", "--model", "scripted:steps.py")
    assert ferrule("run", "Order.", *words, "--journal", "../calls.db").returncode == 0
    assert read_rows("SELECT tool_name, state FROM calls") == [("order", "ended")] * 3
    assert stat.S_IMODE(os.stat("../calls.db").st_mode) == 0o600


def test_the_next_command_reports_a_killed_call() -> None:
    assert order("trouble").returncode == -9
    done = order("tea")
    assert done.stdout == "ordered tea\n" and "may have happened" in done.stderr
    assert done.stderr.startswith("ferrule: an earlier program was interrupted: order: ")
    history = done.stderr.rstrip().rpartition("(ferrule ")[2].removesuffix(")")
    assert "unknown" in ferrule(*history.split()).stdout
    assert "interrupted" not in order("tea").stderr
    [data] = read_rows("SELECT data FROM events WHERE kind = 'tool:error'")
    assert json.loads(data[0])["status"] == "unknown"


@pytest.mark.parametrize(
    ("journal", "tools", "error"),
    [
        ("./calls.db", "tools.py:TOOLS", "where tools may reach it"),
        ("../nowhere/calls.db", "tools.py:TOOLS", "does not exist. Make it first"),
        ("../calls.db", "own.py:runner", "has its own journal"),
    ],
)
def test_a_journal_that_cannot_be_used_is_refused(journal: str, tools: str, error: str) -> None:
    Path("own.py").write_text(TOOLS + OWN, encoding="utf-8")
    words = ("call", "order", "article=tea", "--tools", tools, "--journal", journal)
    done = ferrule(*words)
    assert done.returncode == 2 and error in done.stderr and done.stderr.count("\n") == 1
    assert not Path("calls.db").exists() and not Path("../calls.db").exists()


def test_a_bare_name_is_a_file_in_the_state_folder() -> None:
    journals = Path("../state/ferrule/journals").resolve()
    assert order("tea", "shop.db").stdout == "ordered tea\n"
    assert (journals / "shop.db").exists() and not Path("shop.db").exists()
    assert stat.S_IMODE(journals.stat().st_mode) == 0o700
    assert "order" in ferrule("log", "shop.db").stdout
    for name, path in (("shop.db", journals / "shop.db"), ("../calls.db", Path.cwd() / "../calls.db")):
        assert f"--journal={path}" in ferrule("serve", "tools.py:TOOLS", "--journal", name, "--install").stdout


def test_a_bare_name_of_a_file_here_is_refused_where_something_is_written() -> None:
    for name in ("shop.db", "tokens.toml"):
        Path(name).write_text("mine", encoding="utf-8")
    for done in (order("tea", "shop.db"), ferrule("token", "new", "ann"), ferrule("token", "list")):
        assert done.returncode == 2 and "here too: write " in done.stderr and done.stderr.count("\n") == 1
    assert "write ./" not in order("tea", "shop.db").stderr and "tools may reach" in order("tea", "./shop.db").stderr
    assert {Path(name).read_text(encoding="utf-8") for name in ("shop.db", "tokens.toml")} == {"mine"}


def test_decide_judges_by_the_calls_of_a_journal_and_records_none() -> None:
    Path("policy.toml").write_text('[[rule]]\ndecide = "allow"\ntools = ["order"]\nat_most = 1\nper = "day"\n')
    words = ("order", "article=tea", "--tools", "tools.py:TOOLS", "--policy", "policy.toml")
    journal = ("--journal", "../calls.db")
    assert "there is no journal" in ferrule("decide", *words, *journal).stderr and not Path("../calls.db").exists()
    assert ferrule("call", *words, *journal).returncode == 0
    assert [ferrule("decide", *words, *journal).returncode for _ in range(2)] == [3, 3]
    alone = ferrule("decide", *words)
    assert alone.returncode == 0 and "add --journal" in alone.stderr
    assert len(read_rows("SELECT DISTINCT call_id FROM events")) == 1
