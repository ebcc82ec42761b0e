"""`--journal FILE`: each call of a command is kept, and what a killed one has left open is said by the next."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
TOOLS = '''
import os
import signal

from ferrule import Journal, Runner, Toolset, tool


@tool(destructive=False)
def order(article: str) -> str:
    """Order an article."""
    if article == "trouble":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"ordered {article}"


tools = Toolset([order])
'''
OWN = (
    TOOLS
    + """
runner = Runner(tools, guards=[lambda call, context: None], journal=Journal.open("own.db"))
"""
)


class Shop:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "shop"
        self.folder.mkdir()
        (self.folder / "tools.py").write_text(TOOLS, encoding="utf-8")
        (self.folder / "own.py").write_text(OWN, encoding="utf-8")
        self.journal = folder / "calls.db"

    def call(self, article: str, journal: object = None, tools: str = "tools.py") -> subprocess.CompletedProcess[str]:
        words = ["call", "order", f"article={article}", "--tools", tools, "--yes", "order"]
        return self.ferrule(*words, "--journal", str(journal or self.journal))

    def ferrule(self, *words: str, state: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ferrule", *words]
        given = {"XDG_CONFIG_HOME": str(self.folder), "XDG_STATE_HOME": str(state or self.folder)}
        return subprocess.run(
            command, cwd=self.folder, env=os.environ | given, capture_output=True, text=True, timeout=60
        )

    def rows(self, query: str) -> list[tuple[str, ...]]:
        with closing(sqlite3.connect(self.journal)) as connection:
            return connection.execute(query).fetchall()


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_a_call_is_kept_and_the_file_is_its_owners_alone(shop: Shop) -> None:
    assert shop.call("tea").stdout == "ordered tea\n" == shop.call("tea").stdout
    assert shop.rows("SELECT tool_name, state FROM calls") == [("order", "ended")] * 2
    assert stat.S_IMODE(shop.journal.stat().st_mode) == 0o600


def test_a_run_keeps_the_calls_of_its_model(shop: Shop) -> None:
    (shop.folder / "steps.py").write_text('steps = [[("order", {"article": "tea"})], "Done."]', encoding="utf-8")
    words = ["run", "Order.", "--tools", "tools.py", "--yes", "order", "--model", "scripted:steps.py"]
    for _ in range(2):  # a second one is another session: it orders again
        assert shop.ferrule(*words, "--journal", str(shop.journal)).returncode == 0
    assert len(shop.rows("SELECT key FROM calls WHERE state = 'ended'")) == 2


def test_what_a_killed_command_has_left_open_is_said_by_the_next(shop: Shop) -> None:
    assert shop.call("trouble").returncode == -9
    done = shop.call("tea")
    assert done.stdout == "ordered tea\n"
    assert (
        done.stderr.startswith("ferrule: an earlier program was interrupted: order: ")
        and "may have happened" in done.stderr
    )
    assert "cut off" not in shop.call("tea").stderr
    [data] = shop.rows("SELECT data FROM events WHERE kind = 'tool:error'")
    assert json.loads(data[0])["status"] == "unknown"


@pytest.mark.parametrize(
    ("journal", "tools", "says"),
    [
        ("calls.db", "tools.py", "where tools may reach it"),
        ("../nowhere/calls.db", "tools.py", "does not exist. Make it first"),
        ("../calls.db", "own.py", "has its own journal"),
    ],
)
def test_a_journal_that_cannot_be_used_is_said_in_one_line(shop: Shop, journal: str, tools: str, says: str) -> None:
    words = ["call", "order", "article=tea", "--tools", tools, "--journal", journal]
    done = shop.ferrule(*words)
    assert done.returncode == 2 and says in done.stderr and done.stderr.count("\n") == 1
    assert not (shop.folder / "calls.db").exists() and not shop.journal.exists()


def test_a_name_without_a_folder_is_a_file_in_the_state_folder(shop: Shop, tmp_path: Path) -> None:
    state = tmp_path / "state"
    words = ["call", "order", "article=tea", "--tools", "tools.py", "--yes", "order", "--journal", "shop.db"]
    assert shop.ferrule(*words, state=state).stdout == "ordered tea\n"
    assert (state / "ferrule" / "journals" / "shop.db").exists() and not (shop.folder / "shop.db").exists()
    assert stat.S_IMODE((state / "ferrule" / "journals").stat().st_mode) == 0o700
    assert "order" in shop.ferrule("log", "shop.db", state=state).stdout
    served = shop.ferrule("serve", "tools.py", "--journal", "shop.db", "--install", state=state).stdout
    assert f"--journal={state / 'ferrule' / 'journals' / 'shop.db'}" in served


def test_what_clients_start_keeps_its_calls_there_too(shop: Shop) -> None:
    done = shop.ferrule("serve", "tools.py", "--journal", "../calls.db", "--install")
    assert f"--journal={shop.folder / '../calls.db'}" in done.stdout
