"""Lines that try to leave the sandbox: each works without it, and none with it.

`many_large_files`, a repository that a line makes below the root, and a file that the host replaces by a rename
meanwhile are the gaps that docs/shell.md names.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ferrule import Runner, ToolResult
from ferrule.tools import shell
from shell_projects import USERS, Banner, git, processes_with
from waits import wait_until

DATA = json.loads((Path(__file__).parents[2] / "data" / "sandbox_escapes.json").read_text(encoding="utf-8"))
CASES = {case["id"]: case for case in DATA["cases"] if not case["gap"]}
QUICK = {"shadow", "loopback", "docker_socket", "git_hook", "absent_file", "setuid_file", "core_pattern", "git_renamed"}
PARAMETERS = [
    pytest.param(
        name, user, marks=() if name in QUICK and user == "ordinary" else pytest.mark.large, id=f"{name}-{user}"
    )
    for name in CASES
    for user in USERS
]


@dataclass
class Surroundings:
    root: Path
    out: Path
    banner: Banner
    victim: int
    mark: str
    inherited: int

    def fill(self, text: str, delay: int = 60) -> str:
        known = {"root": self.root, "out": self.out, "home": self.out, "port": self.banner.port, "mark": self.mark}
        known |= {"delay": delay, "name": self.banner.name, "victim": self.victim, "descriptor": self.inherited}
        for name, value in known.items():
            text = text.replace("{" + name + "}", str(value))
        return text.replace("{{", "{").replace("}}", "}")

    def place(self, path: str) -> Path:
        return self.root / self.fill(path)


@pytest.fixture
def surroundings(
    folder: Path, make_project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Surroundings]]:
    """What a line might reach: secrets in files, the environment and a descriptor, servers and another process."""
    out = folder / "out"
    out.mkdir(mode=0o777)
    out.chmod(0o777)
    (out / "secret.txt").write_text("FILE-SECRET")
    banner = Banner(out)
    monkeypatch.setenv("TOKEN", "ENV-SECRET")
    monkeypatch.setenv("HOME", str(out))
    descriptor = os.open(out / "secret.txt", os.O_RDONLY)
    inherited = fcntl.fcntl(descriptor, fcntl.F_DUPFD, 200)
    os.close(descriptor)
    victim = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mark = f"mark-{os.getpid()}-{time.time_ns()}"
    yield lambda user: Surroundings(make_project(user), out, banner, victim.pid, mark, inherited)
    os.close(inherited)
    banner.close()
    victim.kill()
    victim.communicate()


async def run_inside(around: Surroundings, case: dict[str, Any]) -> ToolResult:
    tool = shell.tool(around.root, timeout=case["deadline"], env={"MARK": around.mark})
    return await Runner([tool]).run("shell", {"command": around.fill(case["line"])})


def run_outside(around: Surroundings, case: dict[str, Any]) -> str:
    owner = around.root.stat().st_uid
    user = {"user": owner, "group": owner, "extra_groups": []} if owner != os.geteuid() else {}
    done = subprocess.run(  # type: ignore[call-overload]
        ["/bin/bash", "-c", around.fill(case["line"], delay=1)],
        cwd=around.root,
        env={**os.environ, "MARK": around.mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=[around.inherited],
        **user,
    )
    return str(done.stdout.decode(errors="replace"))


def find_broken(around: Surroundings, holds: dict[str, Any], text: str, reason: str | None = None) -> list[str]:
    """The claims of a case that do not hold."""
    claims = {
        "lacks": lambda word: around.fill(word) not in text,
        "absent": lambda path: not os.path.lexists(around.place(path)),
        "file_lacks": lambda pair: pair[1] not in around.place(pair[0]).read_text(),
        "not_link": lambda path: not around.place(path).is_symlink(),
        "output_below": lambda most: len(text) < most,
        "printable": lambda _: all(one.isprintable() or one in "\n\t" for one in text),
        "host_git_clean": lambda _: not (git(around.root, "status") and (around.root / "OWNED").exists()),
        "no_process": lambda _: not processes_with(around.mark),
        "reason": lambda wanted: reason in (None, wanted),
    }
    return [name for name, check in claims.items() if name in holds and not check(holds[name])]


@pytest.mark.parametrize(("name", "user"), PARAMETERS)
async def test_an_escape_fails(name: str, user: str, surroundings: Callable[[str], Surroundings]) -> None:
    case, around = CASES[name], surroundings(user)
    result = await run_inside(around, case)
    assert result.status == "ok", result.text
    output = result.output["output"]
    assert find_broken(around, case["holds"], output, result.output["reason"]) == [], result.text
    assert processes_with(around.mark) == []  # nothing survives its line


def works_outside(case: dict[str, Any]) -> bool:
    return case["outside"] is None or (case["outside"] == "root" and os.geteuid() == 0)


OUTSIDE = [name for name, case in CASES.items() if works_outside(case)]


@pytest.mark.large
@pytest.mark.parametrize("name", OUTSIDE)
def test_the_same_line_works_without_a_sandbox(name: str, surroundings: Callable[[str], Surroundings]) -> None:
    case, around = CASES[name], surroundings("root" if os.geteuid() == 0 else "ordinary")
    if case["deadline"] < 20:
        pytest.skip("it would run until its deadline")
    text = run_outside(around, case)
    try:
        holds = {key: value for key, value in case["holds"].items() if key != "reason"}
        if "wait" in holds:  # a survivor acts later
            wait_until(lambda: find_broken(around, holds, text))
        assert find_broken(around, holds, text), text
    finally:
        for pid in processes_with(around.mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
