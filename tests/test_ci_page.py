"""The workflow of docs/guides/testing-in-ci.md passes for a correct project."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import preloaded
from waits import BOUND

pytestmark = pytest.mark.slow
PAGE = (Path(__file__).parent.parent / "docs" / "guides" / "testing-in-ci.md").read_text(encoding="utf-8")
STEPS = [step for step in re.findall(r"(?m)^ +- run: (.+)$", PAGE) if not step.startswith("pip install")]
PROGRAMS = {"ferrule": [sys.executable, "-m", "ferrule"], "pytest": [sys.executable, "-m", "pytest"]}
SHOP = '''
from ferrule import tool

@tool(read_only=True)
def stock(article: str) -> int:
    """Say how many of an article are there.

    Args:
        article: Its name.
    """
    return 4
'''
TEST = """
from ferrule import Runner
from shop import stock

def test_stock(cassette):
    assert Runner([stock], inside=[cassette]).run_sync("stock", {"article": "tea"}).output == 4
"""
POLICY = """
allow = ["stock"]

[[test]]
call = "stock"
traits = ["read_only"]
arguments = { article = "tea" }
expect = "allow"
"""
TESTS = """
tools = ["shop.py"]
policy = "policy.toml"

[[test]]
call = "stock"
arguments = { article = "tea" }
status = "ok"
"""


def run(folder: Path, step: str) -> subprocess.CompletedProcess[str]:
    program, *words = shlex.split(step)
    environment = {**os.environ, "PYTHONPATH": str(folder), "XDG_STATE_HOME": str(folder / "state")}
    command = [*PROGRAMS[program], *words]
    if program == "ferrule":
        return preloaded.run(command, cwd=folder, env=environment, timeout=BOUND)
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=BOUND, check=False
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {
        "shop.py": SHOP,
        "test_shop.py": TEST,
        "policy.toml": POLICY,
        "tests.toml": TESTS,
        "pytest.ini": "[pytest]\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert run(tmp_path, "ferrule lock --tools shop.py").returncode == 0
    assert run(tmp_path, "pytest -q --cassettes=record").returncode == 0
    return tmp_path


@pytest.mark.large
def test_the_steps_pass_for_a_project_that_is_right(project: Path) -> None:
    assert len(STEPS) == 6 and len(PAGE.partition("```yaml")[2].partition("```")[0].strip().splitlines()) <= 20
    for step in STEPS:
        done = run(project, step)
        assert done.returncode == 0, (step, done.stdout, done.stderr)
