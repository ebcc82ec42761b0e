"""The programs on the page of a framework run, each as a file of its own, beside the modules and policies of
the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FRAMEWORK = os.environ["FERRULE_FRAMEWORK"]
PAGE = Path(__file__).parents[3] / "docs" / "frameworks" / f"{FRAMEWORK.replace('_', '-')}.md"
TEXT = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
BLOCKS = re.findall(r"^```(?:python|toml)\n(.*?)^```", TEXT, re.M | re.S)
MODULES = {named[1]: block for block in BLOCKS if (named := re.match(r"# (\w+\.(?:py|toml))\n", block))}
PROGRAMS = [block for block in BLOCKS if block not in MODULES.values()]

ENDED = "the program came to its end"


def test_there_is_a_page_with_a_program() -> None:
    assert PROGRAMS, f"{PAGE.name} has none"


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program_of_the_page_runs(number: int, tmp_path: Path) -> None:
    for name, module in MODULES.items():
        (tmp_path / name).write_text(module, encoding="utf-8")
    file = tmp_path / "program.py"
    file.write_text(f"{PROGRAMS[number]}\nprint({ENDED!r})\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", file], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    # Not by its exit code: the threads of amplifier-core 2.0.2 now and then crash a Python that ends.
    assert ENDED in done.stdout, done.stderr[-3000:]
