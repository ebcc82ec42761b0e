"""Guards and policies read the command of a call in the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferrule import ToolContext, tool
from ferrule.guards import commands
from ferrule.values.call import ToolCall
from policy.policies import policy_of

RUNS_GIT_PUSH: list[dict[str, Any]] = [
    {"command": "git", "args": ["push"]},
    {"command": ["git"], "args": ["push"]},
    {"command": "git", "argv": ["push"]},
    {"command": "git", "arguments": "push"},
    {"commands": ["git", "git push"]},
    {"commands": [{"command": "git", "args": ["push"]}]},
    {"steps": [{"command": "git"}, {"command": "git", "args": ["push"]}]},
    {"command": {"cmd": "git push"}},
]
CANNOT_BE_KNOWN: list[dict[str, Any]] = [
    {"command": "git", "env": {"PATH": "."}},
    {"command": "git", "args": [1]},
    {"command": "git", "args": ["a"], "flags": ["b"]},
    {"command": {"program": "git"}},
    {"command": "git >x", "cwd": "d"},
    {"command": "git", "executable": "./git"},
    {"command": "git", "shell": True},
    {"command": "git", "options": ["x"]},
    {"steps": [{"command": "git"}], "env": {"PATH": "."}},
    {"steps": [{"command": "git", "run_as": "root"}]},
]


@tool
async def run(**given: Any) -> str:
    """Run."""
    return "run"


def kinds_of(arguments: dict[str, Any], folder: Path, *, decide: str, pattern: str) -> set[str]:
    """What the guard and two policies say, the rule of one of which has its place."""
    call, context = ToolCall("c1", "run", arguments), ToolContext[Any](working_directory=folder)
    place = next((name for name in arguments if name in ("command", "commands")), "steps[].command")
    table = f'arguments = {{ "{place}" = {{ commands = ["{pattern}"] }} }}'
    judges: list[Any] = [commands(**{decide: [pattern]})]
    for at, rule in enumerate((f'{decide} = ["*({pattern})"]', f'[[rule]]\ndecide="{decide}"\ntools=["run"]\n{table}')):
        (folder / str(at)).mkdir(exist_ok=True)
        judges.append(policy_of(folder / str(at), rule))
    decisions = [
        judge(call, context) if at == 0 else judge.decide(call, context, tool=run).decision
        for at, judge in enumerate(judges)
    ]
    return {"allow" if one is None else one.kind for one in decisions}


@pytest.mark.parametrize("arguments", RUNS_GIT_PUSH, ids=str)
def test_guards_and_policies_find_a_command_among_its_arguments(arguments: dict[str, Any], tmp_path: Path) -> None:
    assert kinds_of(arguments, tmp_path, decide="deny", pattern="git push *") == {"deny"}
    assert kinds_of(arguments, tmp_path, decide="allow", pattern="git") == {"ask"}


@pytest.mark.parametrize("arguments", CANNOT_BE_KNOWN, ids=str)
def test_guards_and_policies_ask_about_a_command_they_cannot_read(arguments: dict[str, Any], tmp_path: Path) -> None:
    assert kinds_of(arguments, tmp_path, decide="allow", pattern="git *") == {"ask"}


def test_the_calls_own_working_directory_changes_nothing(tmp_path: Path) -> None:
    arguments = {"command": "./run", "cwd": "."}
    assert kinds_of(arguments, tmp_path, decide="allow", pattern="./run") == {"allow"}


def test_a_rule_for_all_tools_reads_arguments_outside_the_schema(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, 'allow = ["*"]\ndeny = ["*(rm *)", "*(path within .git)"]')
    made = run.replace(name="anything")
    for arguments in ({"command": "rm x"}, {"options": {"cmd": "rm x"}}, {"path": ".git/config"}):
        call = ToolCall("c1", "anything", arguments)
        decision = policy.decide(call, ToolContext[Any](working_directory=tmp_path), tool=made).decision
        assert decision is not None
        assert decision.kind == "deny", arguments
