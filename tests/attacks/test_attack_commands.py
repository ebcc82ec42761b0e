"""The rows of the sample that are shell lines, through a runner with a shell that really runs them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from sample import rows

from ferrule import Runner, tool
from ferrule.guards import commands


@pytest.mark.parametrize("row", rows("shell"), ids=lambda row: row["why"])
async def test_shell_lines_run_only_where_they_are_allowed(row: dict[str, str], tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    is_there = "rm" in row["command"] or "-delete" in row["command"]
    if is_there:
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
