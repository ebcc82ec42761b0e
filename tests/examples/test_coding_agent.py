"""The coding agent in a project of two files, as a program: with answers given beforehand, and with a person."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import preloaded
from ferrule import Runner, ToolContext
from waits import BOUND

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "examples/coding_agent"))

from shell_tool import shell  # noqa: E402 (it lies beside the program, as a worker finds it)

POLICY = ROOT / "examples/policies/coding_agent.toml"
AGENT = [sys.executable, str(ROOT / "examples/coding_agent/agent.py"), "Mend the failing test."]
WRONG = "def add(a, b):\n    return a - b\n"
RIGHT = "def add(a, b):\n    return a + b\n"
EDIT = ("edit_file", {"path": "calc.py", "old": "a - b", "new": "a + b"})
TEST = """import os

from calc import add

def test_add():
    assert add(1, 2) == 3
    assert "A_KEY" not in os.environ
"""


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    (folder / ".git/hooks").mkdir(parents=True)
    (folder / "calc.py").write_text(WRONG)
    (folder / "test_calc.py").write_text(TEST)
    (tmp_path / "secret.txt").write_text("4711")
    return folder


def command(project, steps, *options):
    """The program with a model that says `steps`, a list as its source."""
    script = project.parent / "steps.py"
    script.write_text(f"steps = {steps}")
    return [*AGENT, "--folder", str(project), "--model", f"scripted:{script}", *options]


def environment(project):
    return os.environ | {
        "PYTHONPATH": str(ROOT / "src"),
        "A_KEY": "4711",
        "PYTHONDONTWRITEBYTECODE": "1",
        "XDG_STATE_HOME": str(project.parent / "state"),
        "XDG_CONFIG_HOME": str(project.parent / "config"),
    }


def log_of(project):
    """The lines of the log: each decision, and each call."""
    text = (project.parent / "state/ferrule/coding_agent.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def run(project, steps, *options):
    return preloaded.run(command(project, steps, *options), env=environment(project), timeout=BOUND)


def test_it_edits_and_runs_the_tests_if_yes_was_given(project):
    steps = f"""[
        ("I look.", [("read_file", {{"path": "calc.py"}}), ("run_tests", {{}})]),
        lambda messages: (messages[-1]["content"], [{EDIT}]),
        [("run_tests", {{"path": "test_calc.py"}})],
        lambda messages: messages[-1]["content"],
    ]"""
    ended = run(project, steps, "--yes", "edit_file", "--yes", "run_tests")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.index("1 failed") < ended.stdout.index("edit_file") < ended.stdout.index("1 passed")
    shown = [line[:26] for line in ended.stdout.splitlines() if line.startswith("✓ run_tests")]
    assert shown == ["✓ run_tests: 'exit code 1\\", "✓ run_tests: 'exit code 0\\"]
    assert (project / "calc.py").read_text() == RIGHT


def test_the_policy_decides_and_the_log_names_rule_and_person(project):
    commands = ["pytest --version; git status", "echo x > made", "git push", "pytest -q; sudo rm x"]
    calls = [("shell", {"command": command}) for command in commands]
    ended = run(project, f"[{[*calls, EDIT]}, 'Done.']", "--yes", "edit_file")
    assert ended.returncode == 0, ended.stderr
    assert "pushing is for people" in ended.stdout and not (project / "made").exists()
    log = log_of(project)
    said = [(one["tool_name"], one["decision"], one["rule"], one["by"]) for one in log if "rule" in one]
    assert [(name, decision, by) for name, decision, _, by in said] == [
        ("shell", "allow", None),
        ("shell", "ask", None),
        ("shell", "deny", None),
        ("shell", "deny", None),
        ("shell", "deny", None),
        ("edit_file", "ask", None),
        ("edit_file", "allow", "--yes"),
    ]
    assert [" ".join(map(line_of, rule.split("; "))) for _, _, rule, _ in said] == [
        '"shell(pytest *)", "shell(git status *)",',
        *["rules(coding_agent.toml)"] * 2,  # no rule speaks of it
        *["[[rule]]"] * 2,
        *['ask = ["edit_file", "write_file"]'] * 2,
    ]
    assert [one["status"] for one in log if "status" in one] == ["ok", "denied", "denied", "denied", "ok"]


def line_of(rule):
    """What stands in the policy where a rule is said to."""
    _, colon, number = rule.partition(":")
    return POLICY.read_text().splitlines()[int(number) - 1].strip() if colon else rule


async def run_lines(folder, lines, seconds=BOUND):
    async with Runner([shell.replace(timeout=seconds)]) as runner:
        context = ToolContext(working_directory=folder)
        return [await runner.run("shell", {"command": line}, context) for line in lines]


async def test_a_command_has_its_own_session_and_a_clean_environment(project, monkeypatch):
    monkeypatch.setenv("A_KEY", "4711")
    monkeypatch.setenv("BASH_ENV", str(project / "hidden.sh"))
    (project / "hidden.sh").write_text("echo hidden")
    lines = ["cat", "tty; ps -o sid= -p $$ | tr -d ' '; echo $$", "env; false", "-x", "(sleep 600 &); pwd"]
    read, session, environment, option, background = [result.text for result in await run_lines(project, lines)]
    assert read == "exit code 0\n"
    assert "not a tty" in session and len(set(session.split()[-2:])) == 1
    assert environment.startswith("exit code 1") and "4711" not in environment and "hidden" not in environment
    assert "-x: command not found" in option
    assert background == f"exit code 0\n{project}\n"


async def test_a_command_that_writes_without_end_is_ended(project):
    line = "ulimit -f 4000000; trap '' XFSZ; yes"
    [result] = await run_lines(project, [line])
    assert result.status == "ok" and result.text.startswith("ended: it wrote more than 50,000,000 bytes\n")
    assert len(result.text) < 210_000 and result.text.endswith("y\n")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere what went to a session of its own survives")
async def test_nothing_is_left_of_a_command_that_timed_out(project):
    [result] = await run_lines(project, ["(sleep 6011 &); (setsid sleep 6011 &); sleep 6011"], seconds=1)
    assert result.status == "timeout"
    ends = time.monotonic() + BOUND  # the end of others' processes has no event
    while left := [pid for pid in os.listdir("/proc") if pid.isdigit() and b"6011" in words_of(pid)]:
        assert time.monotonic() < ends, left


def words_of(pid):
    try:
        return Path("/proc", pid, "cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


def test_yes_does_not_open_other_folders_or_git(project):
    steps = """[
        [
            ("read_file", {"path": "../secret.txt"}),
            ("write_file", {"path": ".git/hooks/pre-commit", "content": "x"}),
            ("run_tests", {"path": "../other"}),
        ],
        lambda messages: "".join(message["content"] for message in messages if message["role"] == "tool"),
    ]"""
    ended = run(project, steps, "--yes", "write_file", "--yes", "run_tests")
    assert ended.returncode == 0, ended.stderr
    assert "what is in .git is not for this agent" in ended.stdout
    assert ended.stdout.count("outside the allowed paths") == 4  # as it happened, and what the model was told
    assert "4711" not in ended.stdout and not list((project / ".git/hooks").iterdir())


def listening():
    """In the child: a program that a job in the background starts would not hear of an interrupt."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def at_a_terminal(project, steps):
    """The program, and the other end of its terminal."""
    keyboard, terminal = os.openpty()
    asked = subprocess.Popen(
        command(project, steps),
        env=environment(project),
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


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(
    ("answer", "end", "code", "then"),
    [("y\n", "Done.", 0, RIGHT), ("n\n", "Done.", 0, WRONG), (signal.SIGINT, "Stopped.", 130, WRONG)],
)
def test_a_person_sees_the_difference_and_decides(project, answer, end, code, then):
    with at_a_terminal(project, f"[[{EDIT}], 'Done.']") as (asked, keyboard):
        screen = until(keyboard, "Allow it? [y/N")
        assert "-    return a - b" in screen and "+    return a + b" in screen
        assert (project / "calc.py").read_text() == WRONG
        if isinstance(answer, str):
            os.write(keyboard, answer.encode())
        else:
            asked.send_signal(answer)
        assert "Traceback" not in until(keyboard, end)
        assert asked.wait(BOUND) == code
    assert (project / "calc.py").read_text() == then


def until(keyboard, text):
    """What is on the screen once `text` is there."""
    seen, ends = b"", time.monotonic() + BOUND
    while text.encode() not in seen:
        assert select.select([keyboard], [], [], max(0, ends - time.monotonic()))[0], seen
        seen += os.read(keyboard, 65536)
    return seen.decode()
