"""Random lines, run by real bash in the sandbox: nothing outside the root changes, and no protected path in it."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ferrule import Runner
from ferrule.tools import shell
from shell_fuzz import SEEDS, Generator
from shell_projects import USERS, processes_with

WORDS = [
    *("rm -rf", "mv", "cp -r", "ln -s", "ln", "touch", "mkdir -p", "chmod 777", "chmod 4755", "tee", "cat"),
    *("dd of=f if=", "git config a.b c", "git init", "git checkout -q .", "tar xf", "sed -i s/a/b/", "truncate -s 0"),
    *("find . -delete", "unshare -Ur", "mount --bind", "kill -9 1", "chown 0", "install -m 4755", "cd", "exec"),
    *("trap", ": >", "echo x >>"),
]
PLACES = [
    *("{out}", "{out}/secret.txt", "{out}/new", "..", "../out", "../out/secret.txt", "/", "/etc/passwd", "/usr/new"),
    *(".git", ".git/config", ".git/hooks", ".git/hooks/x", ".ferrule/policy.toml", ".vscode", ".envrc", "."),
    *("src/app.py", "/proc/1/root{out}/new", "/proc/self/root{out}", "/proc/sys/kernel/core_pattern", "/tmp/x"),
    *("~/x", "/dev/shm/x", "g"),
]
LINES_OF_A_RUN = 25


def make_line(rng: random.Random, out: Path) -> str:
    """A line that tries to change something somewhere, or one without any aim."""
    if rng.random() < 0.3:
        return Generator(rng.getrandbits(32)).line(SEEDS) if rng.random() < 0.7 else rng.choice(SEEDS)
    commands = []
    for _ in range(rng.randint(1, 3)):
        places = " ".join(rng.choice(PLACES) for _ in range(rng.randint(1, 2)))
        commands.append(f"{rng.choice(WORDS)} {places}")
    return rng.choice([";", "&&", "||", "|", "&"]).join(commands).replace("{out}", str(out))


def digest(folder: Path) -> str:
    """A digest of every name, kind, mode and content below a folder."""
    facts = []
    for place, folders, files in os.walk(folder):
        for name in sorted([*folders, *files]):
            path = Path(place, name)
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            facts.append((str(path), path.lstat().st_mode, path.lstat().st_uid, content))
    return hashlib.sha256(repr(sorted(facts)).encode()).hexdigest()


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize(
    ("seed", "runs"), [(1, 4), pytest.param(2, 400, marks=[pytest.mark.large, pytest.mark.time_limit(7200)])]
)
async def test_random_lines_change_nothing_outside(
    make_project: Callable[..., Path], folder: Path, user: str, seed: int, runs: int
) -> None:
    root, out = make_project(user), folder / "out"
    out.mkdir()
    (out / "secret.txt").write_text("4711")
    for path in (out, out / "secret.txt"):
        path.chmod(0o777)
    protected = {path: path.read_bytes() for path in (root / ".git/config", root / ".ferrule/policy.toml")}
    before = digest(out), sorted(os.listdir(folder))
    tool = shell.tool(root, env={"MARK": f"random-{seed}-{user}"}, timeout=600)
    rng = random.Random(seed)
    for number in range(runs):
        lines = [make_line(rng, out).replace("\0", "") for _ in range(LINES_OF_A_RUN)]
        listed = root / f"lines-{number}"
        listed.write_bytes("\0".join(lines).encode("utf-8", "replace") + b"\0")
        listed.chmod(0o644)
        one = 'setsid timeout -s KILL 2 bash -c "$l" 8<&-'
        command = f"exec 8< {listed.name}; while IFS= read -r -d '' l <&8; do {one}; done; echo all lines ran"
        result = await Runner([tool]).run("shell", {"command": command})
        ended = result.output["reason"] == "protected"  # its lines made too many protected paths
        assert ended or "all lines ran" in result.output["output"], result.text
        assert (digest(out), sorted(os.listdir(folder))) == before, (number, lines)
        assert {path: path.read_bytes() for path in protected} == protected, (number, lines)
        assert not (root / ".git/hooks/x").exists() and not (root / ".envrc").exists()
        assert processes_with(f"random-{seed}-{user}") == []
