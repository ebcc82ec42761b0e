"""Attacks on policy files, and by shell lines."""

from __future__ import annotations

import json
import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sample import CASES, make_folder, rows

from ferrule import Runner, ToolCall, ToolContext, tool
from ferrule.guards import commands, hosts, rules, within
from ferrule.policy import Policy, TrustedFiles
from ferrule.tools import files

MEANT = {"deny": {"deny"}, "ask_or_deny": {"ask", "deny"}, "unknown": {"deny", "ask"}, "documented": {"allow"}}
"""The decisions that a row allows. A look-alike of a tool name is another name; `*` matches a `.`."""


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("row", rows("rules"), ids=lambda row: row["why"])
async def test_a_row_of_rules_is_decided_as_expected(row: dict[str, Any], tmp_path: Path) -> None:
    kinds = [kind for kind in ("deny", "ask", "allow") if row[kind]]
    policies = [written(tmp_path / f"{kind}.toml", f"{kind} = {json.dumps(row[kind])}") for kind in kinds]
    for name in {row["call"], "read_file" if row["expect"] == "unknown" else row["call"]}:
        ran: list[str] = []
        made = tool(partial(ran.append, "ran"), name=name, description="x")
        runner = Runner([made], guards=[rules(*policies)])
        decision = await runner.decide(ToolCall("1", row["call"], {}))
        assert decision.kind in MEANT[row["expect"]], decision
        assert (await runner.run(row["call"])).success is (decision.kind == "allow") is bool(ran)


DEAD = [
    *('deny = ["wirte_file"]', 'deny = ["Wirte(*)"]', 'allow = ["["]', 'allow = ["refund(amount<="]'),
    *('allow = ["refund(amout<=100)"]', 'allow = ["refund(amount within x)"]', 'allow = ["refund", "refund("]'),
    *('alow = ["refund"]', 'mode = "off"'),
    'deny = ["refund"]\n[[rule]]\ndecide = "allow"\ntools = ["refund"]\nmatch = [{ amount = "x" }]',
    '[[rule]]\ndecide = "deny"\ntools = ["refund"]\narguments = { amount = { above = 100 } }\nmatch = [{ amount = 5 }]',
    '[[rule]]\ndecide = "deny"\ntools = ["refund"]\narguments = { amount = { above = 9 } }\nno_match = [{amount=10}]',
    *('[[rule]]\ndecide = "deny"\ntools = ["refund"]\ntags = 5', '[[rule]]\ndecide = "permit"\ntools = ["refund"]'),
    *("deny = refund", "\x00"),
]  # fmt: skip


@pytest.mark.parametrize("text", DEAD)
def test_a_rule_without_effect_is_a_finding(text: str, tmp_path: Path) -> None:
    @tool
    def refund(amount: int) -> str:
        return ""

    policy = written(tmp_path / "policy.toml", text)
    findings = [str(one) for one in Policy([("managed", policy)], tools=[refund]).findings]
    assert findings and all("policy.toml" in one for one in findings)


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX")
async def test_no_tool_writes_the_policy_that_judges_it(tmp_path: Path) -> None:
    folder = make_folder(Path(os.path.realpath(tmp_path)))
    policy = written(folder / ".ferrule" / "policy.toml", 'deny = ["edit_file"]')
    own = written(Path(os.path.realpath(tmp_path)) / "own.toml", 'allow = ["write_file", "read_file"]')
    context = ToolContext[Any](working_directory=folder)
    runner = Runner(files.tools, guards=[within(folder), rules(own, project=[policy])])
    before = policy.read_text()
    for path in (".ferrule/policy.toml", ".ferrule/../.ferrule/policy.toml", str(policy)):
        result = await runner.run("write_file", {"path": path, "content": 'allow = ["*"]'}, context)
        assert result.status == "denied" and policy.read_text() == before
    settings = CASES["atk106"]["input"]["file"].partition(":")[0].removeprefix("ws/")
    assert (await runner.run("write_file", {"path": settings, "content": "allow *"}, context)).success
    edit = {"path": "a.txt", "old": "ok", "new": "no"}
    assert (await runner.run("edit_file", edit, context)).status == "denied"


CHANGING_THE_FILE = [
    *("sort -o{policy} evil", "sort -o {policy} evil", "cp evil .ferr*/policy.toml", "cp evil .ferrule/[p]olicy.toml"),
    *("cat evil > {policy}", "cd .ferrule; cd ../.ferrule; cp ../evil policy.toml", "sed -i s/pay/nothing/ {policy}"),
    *("ln -sf ../evil .ferrule/policy.toml", "rm -r .ferrule; mkdir .ferrule; cp evil .ferrule/policy.toml"),
]
CHANGING_WHAT_IS_TRUSTED = [
    "mv {home}/ferrule {home}/x; cp evil {policy}",
    "cp evil {home}/ferrule/trusted.json; cp -f evil {home}/ferrule/trusted.key; cp evil {policy}",
]


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX")
@pytest.mark.parametrize("line", CHANGING_THE_FILE + CHANGING_WHAT_IS_TRUSTED)
async def test_no_shell_line_changes_the_rules_of_a_policy(line: str, tmp_path: Path) -> None:
    folder, home = Path(os.path.realpath(tmp_path)) / "ws", Path(os.path.realpath(tmp_path)) / "home"
    policy = written(folder / ".ferrule" / "policy.toml", 'allow = ["*"]\ndeny = ["pay"]')
    written(folder / "evil", 'allow = ["*"]')
    TrustedFiles().trust(policy)
    paid: list[int] = []

    @tool
    def shell(command: str) -> int:
        return subprocess.run(["/bin/sh", "-c", command], cwd=folder, capture_output=True, timeout=60).returncode

    @tool
    def pay(euros: int) -> None:
        paid.append(euros)

    guard = rules(project=policy)
    runner = Runner([shell, pay], guards=[guard])
    command = line.format(policy=policy, home=home)
    assert (await runner.run("shell", {"command": command}, ToolContext(working_directory=folder))).output == 0
    assert "pay" not in policy.read_text()
    guard.reload()
    assert (await runner.run("pay", {"euros": 5})).status == "denied" and not paid
    if line in CHANGING_THE_FILE:  # and not when a program starts later, either
        again = Runner([pay], guards=[rules(written(folder / "own.toml", 'allow = ["*"]'), project=policy)])
        assert (await again.run("pay", {"euros": 5})).status == "denied" and not paid


async def test_a_text_that_begins_with_a_dash_is_no_url(tmp_path: Path) -> None:
    case = CASES["atk013"]["input"]
    ran: list[list[str]] = []

    @tool
    def clone(url: str) -> int:
        line = [word.format(url=url) for word in case["argv"]]
        ran.append(line)
        return subprocess.run(line, cwd=tmp_path, capture_output=True, stdin=subprocess.DEVNULL).returncode

    runner = Runner([clone], guards=[hosts()])
    for url in (case["args"]["url"], "-u", "--config=core.sshCommand=touch x", "ext::sh -c 'touch x'"):
        assert (await runner.run("clone", {"url": url})).status == "denied", url
    assert ran == [] and not (tmp_path / "x").exists()


@pytest.mark.parametrize("row", rows("shell"), ids=lambda row: row["why"])
async def test_shell_lines_run_only_if_they_are_allowed(row: dict[str, str], tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    if "rm" in row["command"] or "-delete" in row["command"]:
        (tmp_path / "x").touch()
    before = sorted(path.name for path in tmp_path.iterdir())

    @tool
    def shell(command: str) -> int:
        """Run a shell line."""
        line = ["/bin/bash", "--norc", "--noprofile", "-c", command]
        clean = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        return subprocess.run(line, cwd=tmp_path, env=clean, stdin=subprocess.DEVNULL, capture_output=True).returncode

    runner = Runner([shell], guards=[commands(allow=["git status *"], deny=["rm *"])])
    result = await runner.run("shell", {"command": row["command"]})
    assert (result.status, result.output) == (("ok", 0) if row["expect"] == "run" else ("denied", None))
    assert sorted(path.name for path in tmp_path.iterdir()) == before
