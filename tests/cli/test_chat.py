"""`ferrule chat`, and `ferrule run` without a task: a conversation at a terminal or through a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from terminal import PROGRAM

import preloaded
from waits import BOUND

if sys.platform != "win32":
    from terminal import Gate, Screen, Terminal

    class Spoken(Screen):
        """Collects the text, and ignores how prompt_toolkit moves the cursor."""

        def _command(self, arguments: str, command: str) -> None:
            pass

        def _put(self, character: str) -> None:
            pass


TOOLS = ("--tools", str(Path(__file__).with_name("watched_tools.py")))
STEPS = """
count = lambda messages: f"That is message {len(messages)}."
steps = [
    [("work", {"gate": "gate"})],
    count,
    count,
]
"""


@pytest.fixture(autouse=True)
def steps(folder: Path) -> None:
    (folder / "steps.py").write_text(STEPS, encoding="utf-8")


@pytest.fixture
def gate(folder: Path) -> Iterator[Gate]:
    gate = Gate(folder, "gate")
    yield gate
    gate.close()


def run_piped(
    text: str, *words: str, steps: str = "steps = ['One.', lambda m: f'{len(m)} messages']"
) -> tuple[int, str]:
    Path("short.py").write_text(steps, encoding="utf-8")
    command = [*PROGRAM, *(words or ("chat",)), "--model", "scripted:short.py"]
    done = preloaded.run(command, timeout=BOUND, input=text, merged=True)
    return done.returncode, done.stdout


@pytest.mark.parametrize("command", ["run", "chat"])
def test_the_lines_of_a_pipe_are_one_conversation(command: str) -> None:
    code, said = run_piped("first\n\nsecond", command)
    assert code == 0 and said.index("task   first") < said.index("One.") < said.index("task   second")
    assert "3 messages" in said


def test_commands_do_not_reach_the_model_and_new_forgets() -> None:
    code, said = run_piped("first\n/tools\n/help\n/new\nsecond\n/quit\nthird\n")
    assert code == 0 and "read_file" in said and "start a new conversation" in said
    assert "1 messages" in said and "third" not in said


def test_an_unknown_command_is_an_error() -> None:
    code, said = run_piped("/tols\n /etc is a folder\n")
    assert code == 1 and "there is no command '/tols'; did you mean '/tools'?" in said and "One." in said


def test_a_failing_model_does_not_end_the_conversation() -> None:
    code, said = run_piped("a\nb\n", steps="steps = [lambda m: 1 / 0, lambda m: f'{len(m)} messages']")
    assert code == 1 and "the model failed: ZeroDivisionError" in said and "1 messages" in said


def test_nobody_is_asked_through_a_pipe() -> None:
    steps = "steps = [[('write_file', {'path': 'a', 'content': 'b'})], lambda m: m[-1]['content']]"
    code, said = run_piped("write\ny\n", steps=steps)
    assert "nobody is there to ask" in said and not Path("a").exists() and code == 1


@pytest.mark.slow
def test_ctrl_c_cancels_the_call_and_twice_at_the_prompt_ends(folder: Path, gate: Gate) -> None:
    words = ("chat", "--model", "scripted:steps.py", *TOOLS)
    with Terminal(*words, cwd=folder, TERM="dumb") as terminal:
        terminal.screen = Spoken(100, 30)
        terminal.until("> ")
        terminal.type("begin\r")
        terminal.until("→ #1 work")
        terminal.interrupt()
        terminal.until("stopping the running calls")
        terminal.until("the run ended: cancelled")
        terminal.until("> ")
        terminal.type("go on\r")  # the cancelled call and its answer are in the history
        terminal.until("That is message 4.")
        terminal.until("> ")
        terminal.interrupt()
        terminal.until("press ctrl-C again to end")
        terminal.until("> ")
        terminal.type("again\r")
        terminal.until("That is message 6.")
        terminal.until("> ")
        terminal.interrupt()
        terminal.until("press ctrl-C again to end")
        terminal.until("> ")
        terminal.interrupt()
        assert terminal.end() == 130


@pytest.mark.slow
def test_the_terminal_completes_and_remembers_lines(folder: Path) -> None:
    (folder / "two.py").write_text("steps = [lambda m: m[-1]['content'].upper()] * 2", encoding="utf-8")
    with Terminal("run", "--model", "scripted:two.py", *TOOLS, cwd=folder, TERM="dumb") as terminal:
        terminal.screen = Spoken(100, 30)
        terminal.until("> ")
        terminal.type("use apar")
        terminal.until("use apar")
        terminal.type("\t")
        terminal.until("t")  # a plain terminal is shown the last letter alone
        terminal.type("\r")
        terminal.until("USE APART")
        terminal.until("> ")
        terminal.type("\x1b[A\r")  # the arrow up
        terminal.until("USE APART")
        terminal.until("> ")
        terminal.type("/quit\r")
        assert terminal.end() == 0
