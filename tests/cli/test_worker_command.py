"""`ferrule worker` says what is wrong before it connects to anything."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

TOOLS = """
from ferrule import Runner, tool
from ferrule.remote import dbos

def add(a: int) -> int:
    return a

URL = "postgresql://nobody@127.0.0.1:1/none"
QUEUE = dbos.queue("tools", url=URL)
QUEUED = [tool(add, isolation=QUEUE)]
RUNNER = Runner([tool(add)])
OTHERS = [*QUEUED, tool(add, name="other", isolation=dbos.queue("tools", url=URL))]
"""


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("worker_tools.py:QUEUED", "write 'worker_tools:QUEUED'"),
        ("worker_tools:RUNNER", "none of these tools has a queue"),
        ("worker_tools:OTHERS", "two queues have the name 'tools'"),
        ("worker_tools:QUEUED", "pip install 'ferrule[dbos]'"),
        ("worker_tools:QUEUED --drain -1", "a number of seconds, such as 30, not '-1'"),
        ("worker_tools:QUEUED ", "FERRULE_REMOTE_KEY"),
    ],
)
def test_a_worker_that_cannot_start_says_why(
    folder: Path, ferrule: Any, words: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "worker_tools", raising=False)
    (folder / "worker_tools.py").write_text(TOOLS)
    monkeypatch.delenv("FERRULE_REMOTE_KEY", raising=False)
    if error != "FERRULE_REMOTE_KEY":
        monkeypatch.setenv("FERRULE_REMOTE_KEY", "ab" * 32)
    done = ferrule("worker", *words.split())
    assert done.code == 2 and error in done.err
