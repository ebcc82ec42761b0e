"""`policy check` warns of rules that let through more than they seem to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferrule import ToolCall, ToolContext, tool
from ferrule.policy import Policy, TrustedFiles


def policy_with(folder: Path, text: str, **options: Any) -> Policy:
    (folder / "policy.toml").write_text(text)
    return Policy([("managed", folder / "policy.toml")], trusted=TrustedFiles(folder / "trusted.json"), **options)


def warnings_of(folder: Path, text: str, *tools: Any) -> list[str]:
    """The findings of a file, each of which is a warning."""
    findings = policy_with(folder, text, tools=tools or None).findings
    assert {one.level for one in findings} <= {"warning"}
    return [one.text for one in findings]


EVERYTHING = [
    *("find *", "xargs *", "git *", "../bin/Python.exe *", "/usr/bin/env *", "PYTHON3.12 *"),
    *("./node_modules/.bin/jest *", "git log *", "git -*", "git -c * status", "tar *.gz", "sort *"),
    *("cp a *", "timeout 5 *", "python scripts/*", "python", "bash -s", "sh -c *", "bash.exe *"),
]
NARROW = [
    *("git status", "git status *", "git log --oneline", "git log -- *", "git add src/*", "tar -tf x.tar", "ls *"),
    *("pythonista *", "python manage.py check", "bash --version", "make test", "sort -u x", "git commit -m *"),
]


@pytest.mark.parametrize("pattern", EVERYTHING)
def test_an_allow_of_a_program_that_can_run_anything_is_warned_of(pattern: str, tmp_path: Path) -> None:
    [said] = warnings_of(tmp_path, f'allow = ["shell({pattern})"]')
    assert repr(pattern) in said and pattern.split()[0] in said
    assert warnings_of(tmp_path, f'deny = ["shell({pattern})"]\nask = ["run({pattern})"]') == []


@pytest.mark.parametrize("pattern", NARROW)
def test_a_narrow_allow_gets_no_warning(pattern: str, tmp_path: Path) -> None:
    assert warnings_of(tmp_path, f'allow = ["shell({pattern})"]') == []


@tool(read_only=True)
def read_note(name: str) -> str:
    """Read."""
    return name


@tool(read_only=True, open_world=True)
def read_page(name: str) -> str:
    """Read a page of the web."""
    return name


@tool(destructive=True)
def read_and_delete(name: str) -> str:
    """Read a note, and delete it."""
    return name


@tool
def read_later(name: str) -> str:
    """Say nothing about what it does."""
    return name


@pytest.mark.parametrize(
    ("text", "covered"),
    [
        ('allow = ["read_*"]', ["'read_page'", "'read_and_delete'", "'read_later'"]),
        ('allow = ["*"]\ndeny = ["read_and_*", "read_later"]', ["'read_page'"]),
        ('allow = ["*"]\ndeny = ["read_and_*(name=x)", "read_later"]', ["'read_page'", "'read_and_delete'"]),
        ('[[rule]]\ndecide = "allow"\ntools = ["*"]\ntraits = ["read_only"]', ["'read_page'"]),
        ('[[rule]]\ndecide = "allow"\ntools = ["*"]\ntraits = ["read_only", "not open_world"]', []),
        ('allow = ["read_note", "read_page", "read_and_delete", "read_later"]', []),
        ('ask = ["read_*"]', []),
    ],
)
def test_a_star_that_covers_a_risky_tool_is_warned_of(text: str, covered: list[str], tmp_path: Path) -> None:
    said = " ".join(warnings_of(tmp_path, text, read_note, read_page, read_and_delete, read_later))
    names = ["'read_note'", "'read_page'", "'read_and_delete'", "'read_later'"]
    assert [name for name in names if name in said.partition(" covers ")[2]] == covered


@tool(destructive=False)
def shell(command: str, executable: str | None = None, sudo: bool = False) -> str:
    """Run a line."""
    return command


@tool(destructive=False)
def job(script: str) -> str:
    """Run a script."""
    return script


@tool
def terminal(command: str, run_in_background: bool = False, description: str = "") -> str:
    """Run a line."""
    return command


@tool(destructive=False)
def bash(input: str) -> str:
    """Run a line."""
    return input


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('allow = ["shell"]', "allows everything that shell can run"),
        ('allow = ["bash"]', "allows everything that bash can run"),
        ('allow = ["bash(input=ls)"]', ""),
        ('allow = ["shell(ls)"]\n[[rule]]\ndecide = "ask"\ntools = ["shell", "bash"]\nreason = "x"', "has no effect"),
        ('allow = ["shell(ls *)"]', "allows no call of shell with 'executable', 'sudo'"),
        ('allow = ["shell(ls *, sudo in true|false)"]', "allows no call of shell with 'executable'"),
        ('deny = ["*(rm *)"]', "reads no shell line of job, but 'script' may be one"),
        ('allow = ["job(script=ls *)"]', "allows everything that job can run"),
        ('allow = ["term*(ls *)"]', ""),
    ],
)
def test_a_rule_that_misses_part_of_a_shell_tool_is_warned_of(text: str, said: str, tmp_path: Path) -> None:
    found = warnings_of(tmp_path, text, shell, job, bash, terminal)
    assert bool(found) == bool(said) and said in "".join(found)


BY_PLACE = '[[rule]]\ndecide = "allow"\ntools = ["*"]\narguments = {{ {0} = {{ commands = ["ls *"] }} }}'


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ('allow = ["shell(ls *)"]', ["allow", "ask", "ask", "ask"]),
        ('allow = ["shell(ls *)", "shell(ls *, executable=/bin/bash)"]', ["allow", "allow", "ask", "ask"]),
        ('allow = ["shell(ls *, sudo=true)"]', ["ask", "ask", "ask", "allow"]),
        (BY_PLACE.format("command"), ["allow", "ask", "ask", "ask"]),
    ],
)
def test_an_argument_that_changes_what_runs_needs_a_condition(text: str, kinds: list[str], tmp_path: Path) -> None:
    policy = policy_with(tmp_path, text)
    calls = [{}, {"executable": "/bin/bash"}, {"executable": "./evil"}, {"sudo": True}]
    calls = [ToolCall("1", "shell", {"command": "ls", **beside}) for beside in calls]
    decisions = [policy.decide(call, ToolContext[Any](), shell).decision for call in calls]
    assert [getattr(one, "kind", None) for one in decisions] == kinds
