"""`policy check` warns of rules that let through more than they seem to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferrule import ToolCall, ToolContext, tool
from ferrule.policy import Policy, TrustedFiles
from ferrule.security.programs import find_risk


def warnings_of(folder: Path, text: str, *tools: Any) -> list[str]:
    """The findings of a file, each of which is a warning."""
    file = folder / "policy.toml"
    file.write_text(text)
    findings = Policy([("managed", file)], tools=tools or None, trusted=TrustedFiles(folder / "trusted.json")).findings
    assert {one.level for one in findings} <= {"warning"}
    return [one.text for one in findings]


EVERYTHING = [
    *("find *", "xargs *", "env *", "sudo *", "bash *", "python *", "sed *", "tar *", "git *", "ssh *", "awk *"),
    *(
        "perl *",
        "node *",
        "npx *",
        *(f"{name} *" for name in ("xcrun", "ghc", "swift", "ocaml", "ftp", "fzf")),
        "make *",
        "docker *",
        "/usr/bin/env *",
        "./node_modules/.bin/jest *",
        "PYTHON3.12 *",
    ),
    *("git log *", "git -*", "git -c * status", "tar *.gz", "sort *", "curl *", "tee *", "cp a *", "timeout 5 *"),
    *("python scripts/*", "python", "bash -s", "sh -c *", "bash.exe *"),
]
NARROW = [
    *("git status", "git status *", "git log --oneline", "git log -- *", "git add src/*", "tar -tf x.tar", "ls *"),
    *("cat *", "grep *", "python manage.py check", "bash --version", "make test", "pytest -q tests/unit", "my-tool *"),
    *("sort -u x", "echo *", "wc *", "git add *", "git commit -m *"),
]


@pytest.mark.parametrize("pattern", EVERYTHING)
def test_an_allow_of_a_program_that_can_run_or_write_anything_is_warned_of(pattern: str, tmp_path: Path) -> None:
    [said] = warnings_of(tmp_path, f'allow = ["shell({pattern})"]')
    assert repr(pattern) in said and pattern.split()[0] in said
    assert warnings_of(tmp_path, f'deny = ["shell({pattern})"]\nask = ["run({pattern})"]') == []


@pytest.mark.parametrize("pattern", NARROW)
def test_an_allow_of_known_words_or_of_a_program_that_only_does_what_it_says_is_not(
    pattern: str, tmp_path: Path
) -> None:
    assert warnings_of(tmp_path, f'allow = ["shell({pattern})"]') == []


def test_a_program_is_known_by_its_name_wherever_it_is() -> None:
    for program in ("python", "python3", "python3.11", "/usr/bin/python3", "../bin/Python.exe"):
        assert (found := find_risk(program)) is not None and found.kind == "interpreter"
    assert find_risk("pythonista") is None and find_risk("") is None


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
        ('allow = ["read_*(name=x)"]', ["'read_page'", "'read_and_delete'", "'read_later'"]),
        ('allow = ["*"]\ndeny = ["read_and_*", "read_later"]', ["'read_page'"]),
        ('allow = ["*"]\ndeny = ["read_and_*(name=x)", "read_later"]', ["'read_page'", "'read_and_delete'"]),
        ('[[rule]]\ndecide = "allow"\ntools = ["*"]\ntraits = ["read_only"]', ["'read_page'"]),
        ('[[rule]]\ndecide = "allow"\ntools = ["*"]\ntraits = ["read_only", "not open_world"]', []),
        ('allow = ["read_note", "read_page", "read_and_delete", "read_later"]', []),
        ('ask = ["read_*"]', []),
    ],
)
def test_a_name_with_a_star_that_covers_a_destructive_or_open_world_tool_is_warned_of(
    text: str, covered: list[str], tmp_path: Path
) -> None:
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
        ('allow = ["j*"]', "allows everything that job can run"),
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
def test_what_a_rule_does_not_see_of_a_shell_tool_is_warned_of(text: str, said: str, tmp_path: Path) -> None:
    found = warnings_of(tmp_path, text, shell, job, bash, terminal)
    assert bool(found) == bool(said) and said in "".join(found)


def test_an_argument_that_may_change_what_runs_is_allowed_only_with_a_condition(tmp_path: Path) -> None:
    def kinds(allow: str) -> list[str]:
        (tmp_path / "policy.toml").write_text(f"allow = {allow}")
        policy = Policy([("managed", tmp_path / "policy.toml")], trusted=TrustedFiles(tmp_path / "trusted.json"))
        calls = [{}, {"executable": "/bin/bash"}, {"executable": "./evil"}, {"sudo": True}]
        context = ToolContext[Any]()
        decided = [policy.decide(ToolCall("1", "shell", {"command": "ls", **one}), context, shell) for one in calls]
        return ["none" if one.decision is None else one.decision.kind for one in decided]

    assert kinds('["shell(ls *)"]') == ["allow", "ask", "ask", "ask"]
    assert kinds('["shell(ls *)", "shell(ls *, executable=/bin/bash)"]') == ["allow", "allow", "ask", "ask"]
    assert kinds('["shell(ls *, sudo=true)"]') == ["ask", "ask", "ask", "allow"]
    by_place = '[]\n[[rule]]\ndecide = "allow"\ntools = ["*"]\narguments = { command = { commands = ["ls *"] } }'
    assert kinds(by_place) == ["allow", "ask", "ask", "ask"]


def test_a_line_under_a_name_of_the_rule_is_bound_to_what_stands_beside_it(tmp_path: Path) -> None:
    rule = '[[rule]]\ndecide = "allow"\ntools = ["job"]\narguments = { script = { commands = ["ls *"] } }'
    (tmp_path / "policy.toml").write_text(rule)
    policy = Policy([("managed", tmp_path / "policy.toml")], trusted=TrustedFiles(tmp_path / "trusted.json"))
    for beside, kind in (({}, "allow"), ({"shell": "./evil"}, "ask")):
        decision = policy(ToolCall("1", "job", {"script": "ls -l", **beside}), ToolContext())
        assert decision is not None and decision.kind == kind


def test_a_live_file_takes_another_deny_of_everything(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    text = 'allow = ["shell(ls)", "read_note"]\nask = ["job"]\ndeny = ["job(script=x)"]\n'
    file.write_text(text)
    trusted = TrustedFiles(tmp_path / "trusted.json")
    policy = Policy([("managed", file)], trusted=trusted)
    call = ToolCall("1", "read_note", {"name": "x"})
    assert (decision := policy(call, ToolContext())) is not None and decision.kind == "allow"
    for times in (1, 2):
        file.write_text(text + times * '[[rule]]\ndecide = "deny"\ntools = ["*"]\n')
        trusted.trust(file)
        assert {one.level for one in policy.reload()} == {"warning"}
        assert (decision := policy(call, ToolContext())) is not None and decision.kind == "deny"
