"""The pages that show commands: each is run, and shows what stands there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import preloaded
from ferrule.cli.program import COMMANDS, main
from waits import BOUND

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
POLICY = (ROOT / "docs" / "policy.md").read_text(encoding="utf-8")

SHELL = set(";|&<>$`*?~\\")
"""What a shell makes something of, if only outside quotation marks."""
CODE = "echo $?"
BY_PYTHON = re.compile(r"ferrule |python -m ")


def files_of(page: str) -> list[tuple[str, str]]:
    """The files that a page shows, each under its name."""
    return re.findall(r"`(\w+\.(?:py|toml))`[^\n`]*:\n\n```(?:python|toml)\n(.*?)```", page, re.DOTALL)


def commands_of(page: str) -> list[tuple[str, str]]:
    """The commands that a page shows, each with what is said."""
    consoles = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    return [(found[1], found[2]) for text in consoles for found in re.finditer(r"\$ (.+)\n((?:(?!\$ ).*\n)*)", text)]


EXAMPLES = [(command, expected, page) for page in (PAGE, POLICY) for command, expected in commands_of(page)]


def shows(expected: str, shown: str) -> bool:
    """Whether it is that; `…` is any text of a line, and alone in its line any lines."""
    lines = "".join(r"(?:.*\n)*?" if line == "…" else f"{pattern(line)}\n" for line in expected.splitlines())
    return re.fullmatch(lines, shown) is not None


def pattern(line: str) -> str:
    return ".*?".join(map(re.escape, line.split("…")))


def by_python(command: str, folder: Path, environment: dict[str, str]) -> str | None:
    """What is shown by commands that need no shell, after each other, and by the code of the last; None for others."""
    parts = command.split("; ")
    if not all(part == CODE or (BY_PYTHON.match(part) and SHELL.isdisjoint(part)) for part in parts):
        return None
    shown, code = "", 0
    for part in parts:
        if part == CODE:
            shown += f"{code}\n"
            continue
        program = [sys.executable, "-m", *shlex.split(part.removeprefix("python -m "))]
        done = preloaded.run(program, cwd=folder, env=environment, timeout=BOUND, merged=True)
        shown, code = shown + done.stdout, done.returncode
    return shown


def by_a_shell(command: str, folder: Path, environment: dict[str, str]) -> str:
    functions = 'ferrule() { "$0" -m ferrule "$@"; }\npython() { "$0" "$@"; }\n'
    return subprocess.run(
        ["/bin/sh", "-c", functions + command, sys.executable],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=BOUND,
        env=environment,
        check=False,
    ).stdout.decode()


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="the page is written for a shell of Unix")
@pytest.mark.parametrize(("command", "expected", "page"), EXAMPLES, ids=[command for command, _, _ in EXAMPLES])
def test_a_command_of_a_page_prints_what_the_page_shows(command: str, expected: str, page: str, tmp_path: Path) -> None:
    for name, text in files_of(page):
        (tmp_path / name).write_text(text, encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONIOENCODING": "utf-8",
        "PYTHONUNBUFFERED": "1",
        "XDG_CONFIG_HOME": os.fspath(tmp_path / "config"),
        "XDG_STATE_HOME": os.fspath(tmp_path / "state"),
    }
    shown = by_python(command, tmp_path, environment)
    if shown is None:
        shown = by_a_shell(command, tmp_path, environment)
    assert shows(expected, shown), shown


def test_the_page_has_its_files_and_each_command() -> None:
    assert {name for name, _ in files_of(PAGE)} == {"shop.py", "shop.toml", "steps.py", "journaled.py"}
    assert [name for name, _ in files_of(POLICY)] == ["shop.py", "policy.toml"]
    assert len(commands_of(PAGE)) > 10
    assert [name for name in COMMANDS if f"## `ferrule {name}`" not in PAGE] == []


def test_the_exit_codes_of_the_page_are_those_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    codes = capsys.readouterr().out.partition("exit codes:")[2]
    table = PAGE.partition("## Exit codes")[2]
    assert re.findall(r"(?m)^\| (\d+) \|", table) == re.findall(r"(?m)^  (\d+) ", codes)
