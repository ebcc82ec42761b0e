"""`ferrule worker` says what is wrong before it connects to anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferrule.cli import main

TOOLS = """
from ferrule import Runner, tool
from ferrule.remote import dbos

def add(a: int) -> int:
    return a

def bound(a: int, token: str) -> int:
    return a

QUEUE = dbos.queue("tools", url="postgresql://nobody@127.0.0.1:1/none")
QUEUED = [tool(add, isolation=QUEUE)]
RUNNER = Runner([tool(add)])
HERE = [tool(add)]
OTHERS = [*QUEUED, tool(add, name="other", isolation=dbos.queue("tools", url="postgresql://nobody@127.0.0.1:1/none"))]
FAR = [*QUEUED, tool(add, name="other", isolation=dbos.queue("far", url="postgresql://nobody@127.0.0.1:1/other"))]
OLD = [tool(add, isolation=dbos.queue("tools", url="mysql://localhost/none"))]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    module = f"worker_tools_{abs(hash(request.node.name))}"
    (tmp_path / f"{module}.py").write_text(TOOLS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FERRULE_REMOTE_KEY", "ab" * 32)
    return module


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (".py", "and write '{module}'"),
        (".py:QUEUED", "write '{module}:QUEUED'"),
        (":HERE", "none of these tools has a queue"),
        (":RUNNER", "none of these tools has a queue"),
        (":OTHERS", "two queues have the name 'tools'"),
        (":FAR", "the queues of one database"),
        (":OLD", "postgresql://… or sqlite:///…"),
        (":NOTHING", "there is no 'NOTHING'"),
    ],
)
def test_what_gives_no_worker_is_said(folder: str, name: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", f"{folder}{name}"]) == 2
    assert said.format(module=folder) in capsys.readouterr().err


def test_a_worker_needs_a_key(folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("FERRULE_REMOTE_KEY")
    assert main(["worker", f"{folder}:QUEUED"]) == 2
    assert "FERRULE_REMOTE_KEY" in capsys.readouterr().err


def test_a_worker_needs_dbos(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", f"{folder}:QUEUED"]) == 2
    assert "pip install 'ferrule[dbos]'" in capsys.readouterr().err


def test_a_time_that_is_none_is_refused(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", f"{folder}:QUEUED", "--drain", "-1"]) == 2
    assert "a number of seconds, such as 30, not '-1'" in capsys.readouterr().err
