"""The pages in docs/ name tests that exist, and files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
NAMED = [(p.name, name) for p in PAGES for name in re.findall(r"`(tests/[\w/.]+\.py(?:::\w+)?)`", p.read_text())]


@pytest.mark.parametrize(("page", "name"), NAMED)
def test_a_test_that_a_page_names_exists(page: str, name: str) -> None:
    path, _, function = name.partition("::")
    text = (ROOT / path).read_text()
    assert not function or re.search(rf"^(async )?def {function}\(", text, re.MULTILINE)


def test_the_page_on_execution_names_a_test_for_each_promise() -> None:
    text = (ROOT / "docs" / "execution.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("|") and not line.startswith(("| Promise", "|---"))]
    assert len(rows) > 20
    assert [row for row in rows if "`tests/" not in row] == []
