"""The coding agent in a small repository, as a program at a terminal."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from needed import needed
from shell_projects import git
from waits import BOUND

ROOT = Path(__file__).parents[2]
POLICY = ROOT / "examples/policies/coding_agent.toml"
AGENT = [sys.executable, str(ROOT / "examples/coding_agent/agent.py"), "Mend the failing test."]
# The mended file has another size: Python would run its cached code if neither size nor second differed.
WRONG = "def add(a, b):\n    return a + b + 1\n"
RIGHT = "def add(a, b):\n    return a + b\n"
TEST = """import os
import unittest

from calc import add


class Test(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(1, 2), 3)
        self.assertNotIn("A_KEY", os.environ)
"""
STEPS = [
    ["I look.", [["read_file", {"path": "calc.py"}], ["shell", {"command": "python3 -m unittest 2>&1 | tail -3"}]]],
    ["", [["edit_file", {"path": "calc.py", "old": "a + b + 1", "new": "a + b"}]]],
    ["", [["shell", {"command": "python3 -m unittest 2>&1 | tail -3; git commit -qam 'Add, not subtract'"}]]],
    ["", [["shell", {"command": "make install", "network": True}]]],
    "Done.",
]


@pytest.fixture(scope="module", autouse=True)
def _bubblewrap() -> None:
    needed("bubblewrap")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "calc.py").write_text(WRONG)
    (folder / "test_calc.py").write_text(TEST)
    (folder / "Makefile").write_text("install:\n\techo installed > installed\n")
    git(folder, "init", "-q")
    git(folder, "config", "user.name", "Ada")
    git(folder, "config", "user.email", "ada@example.org")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    (tmp_path / "secret.txt").write_text("4711")
    return folder


def log_of(project: Path) -> list[dict[str, object]]:
    """The lines of the log: each decision, and each call."""
    text = (project.parent / "state/ferrule/coding_agent.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def listening() -> None:
    """In the child: a program that a job in the background starts would not hear of an interrupt."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def at_a_terminal(project: Path, steps: list[object]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The program with a model that follows `steps`, and the other end of its terminal."""
    script = project.parent / "steps.py"
    listed = [(one[0], [tuple(call) for call in one[1]]) if isinstance(one, list) else one for one in steps]
    script.write_text(f"steps = {listed!r}")
    keyboard, terminal = os.openpty()
    added = {"PYTHONPATH": str(ROOT / "src"), "A_KEY": "4711"}
    added |= {f"XDG_{kind}_HOME": str(project.parent / kind.lower()) for kind in ("STATE", "CONFIG")}
    asked = subprocess.Popen(
        [*AGENT, "--folder", str(project), "--model", f"scripted:{script}"],
        env={**os.environ, **added},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        preexec_fn=listening,
    )
    os.close(terminal)
    try:
        yield asked, keyboard
    finally:
        asked.kill()
        asked.wait()
        os.close(keyboard)


def read_until(keyboard: int, text: str) -> str:
    """What is on the screen once `text` is there."""
    seen, ends = b"", time.monotonic() + BOUND
    while text.encode() not in seen:
        assert select.select([keyboard], [], [], max(0, ends - time.monotonic()))[0], seen
        seen += os.read(keyboard, 65536)
    return seen.decode()


@pytest.mark.parametrize(
    ("answer", "end", "code", "installed"),
    [("y\n", "Done.", 0, True), ("n\n", "Done.", 0, False), (signal.SIGINT, "Stopped.", 130, False)],
)
def test_it_mends_and_commits_and_asks_once(
    project: Path, answer: str | signal.Signals, end: str, code: int, installed: bool
) -> None:
    with at_a_terminal(project, STEPS) as (asked, keyboard):
        screen = read_until(keyboard, "Allow it? [y/N")
        assert screen.index("FAILED") < screen.index("edit_file") < screen.index("OK") < screen.index("make install")
        question = screen.replace("\r\n    ┆ ", "")  # the terminal is narrow
        assert screen.count("Allow it?") == 1 and "it reaches the network" in question
        assert (project / "calc.py").read_text() == RIGHT and "Add, not" in git(project, "log", "--oneline")
        if isinstance(answer, str):
            os.write(keyboard, answer.encode())
        else:
            asked.send_signal(answer)
        rest = read_until(keyboard, end)
        assert "Traceback" not in rest and "Allow it?" not in rest
        assert asked.wait(BOUND) == code
    assert (project / "installed").exists() == installed


def test_it_reaches_nothing_outside_and_the_log_names_the_rules(project: Path) -> None:
    (project / ".git/hooks").mkdir(exist_ok=True)
    calls = [
        ["read_file", {"path": "../secret.txt"}],
        ["write_file", {"path": ".git/hooks/pre-commit", "content": "x"}],
        ["shell", {"command": f"cat {project.parent}/secret.txt; env | grep 4711; echo x > .git/hooks/pre-commit"}],
        ["shell", {"command": "git push"}],
    ]
    with at_a_terminal(project, [["", calls], "Done."]) as (asked, keyboard):
        screen = read_until(keyboard, "Done.")
        assert asked.wait(BOUND) == 0
    assert "4711" not in screen.replace("grep 4711", "") and not (project / ".git/hooks/pre-commit").exists()
    decisions = [(one["tool_name"], one["decision"]) for one in log_of(project) if "rule" in one]
    assert decisions == [("read_file", "deny"), ("write_file", "deny"), ("shell", "allow"), ("shell", "deny")]
