"""A program that is killed after it has paid, and what it and `ferrule log` show afterwards (tests/data/killed.md)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).with_name("data").joinpath("killed.md").read_text(encoding="utf-8")
FIVE_MINUTES = PAGE.partition("## In five minutes")[2].partition("\n## ")[0]


def shows(expected: str, shown: str) -> bool:
    """Whether it is that; `…` is any text of a line, and alone in its line any lines."""
    parts = [re.escape(line).replace("…", ".*") + "\n" for line in expected.splitlines()]
    return re.fullmatch("".join("(?:.*\n)*?" if part == ".*\n" else part for part in parts), shown) is not None


@pytest.mark.slow
def test_a_killed_payment_is_unknown_and_not_repeated(tmp_path: Path) -> None:
    program = re.search(r"```python\n(# payments\.py\n.*?)```", FIVE_MINUTES, re.DOTALL)
    console = re.search(r"```console\n(.*?)```", FIVE_MINUTES, re.DOTALL)
    assert program is not None and console is not None
    (tmp_path / "payments.py").write_text(program[1], encoding="utf-8")
    steps = re.findall(r"\$ (.+)\n((?:(?!\$ ).*\n)*)", console[1])
    assert len(steps) == 5
    starts = 'python() { "$0" "$@"; }; ferrule() { "$0" -m ferrule "$@"; }'
    for command, expected in steps:
        shell = ["/bin/sh", "-c", f"{starts}\n{command}", sys.executable]
        environment = {**os.environ, "PYTHONIOENCODING": "utf-8", "COLUMNS": "200"}
        done = subprocess.run(
            shell, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", timeout=60, check=False
        )
        assert shows(expected, done.stdout), (command, done.stdout, done.stderr)
