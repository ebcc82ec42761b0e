"""docs/evaluation.md: what it shows is what its program gives."""

from __future__ import annotations

import asyncio
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from ferrule import Runner
from ferrule.models import Scripted
from ferrule.testing import evaluate, fake, read_cases

PAGE = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text(encoding="utf-8")


def run_program(folder: Path) -> dict[str, Any]:
    """The names of the page's program, which was run."""
    found = re.search(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    (folder / "program.py").write_text(found[1], encoding="utf-8")
    return runpy.run_path(str(folder / "program.py"))


def test_the_page_shows_what_its_program_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_program(tmp_path)
    shown = capsys.readouterr().out
    assert "case " in shown and f"```text\n{shown}```\n" in PAGE


def test_the_cases_of_the_file_score_as_those_of_the_program(tmp_path: Path) -> None:
    program = run_program(tmp_path)
    rows = re.search(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert rows is not None
    (tmp_path / "cases.jsonl").write_text(rows[1], encoding="utf-8")
    runner = Runner(fake([program["find_order"], program["refund"]]))
    cases = read_cases(tmp_path / "cases.jsonl")
    found = asyncio.run(evaluate(cases, lambda case: Scripted(program["STEPS"][case.id]), runner))
    assert f"```text\n{found.table()}\n```\n" in PAGE
