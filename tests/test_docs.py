"""The pages in docs/ name tests that exist, and ARCHITECTURE.md names files and functions that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
SOURCES = {
    file.relative_to(ROOT / "src" / "ferrule").as_posix(): file.read_text()
    for file in (ROOT / "src" / "ferrule").rglob("*.py")
}
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
THE_WAY = ARCHITECTURE.partition("## The way of one call")[2].partition("\n## ")[0]
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


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def test_the_page_on_the_architecture_names_files_that_are_there() -> None:
    named = {word for words in quoted(ARCHITECTURE) for word in words.split() if word.endswith((".py", "/"))}
    assert len(named) > 30
    assert [word for word in named if not any((ROOT / top / word).exists() for top in ("", "src/ferrule"))] == []


def test_each_step_of_the_way_of_a_call_is_a_function_of_the_file_that_is_named_with_it() -> None:
    steps = re.findall(r"^ *- `(?:\w+\.)?(\w+)` in `([\w/]+\.py)`", THE_WAY, re.MULTILINE)
    assert len(steps) == THE_WAY.count("\n- ") + THE_WAY.count(" - ") > 10
    functions = {file: re.findall(r"\bdef (\w+)", source) for file, source in SOURCES.items()}
    assert [step for step in steps if step[0] not in functions.get(step[1], [])] == []


def test_every_name_on_the_way_of_a_call_is_defined_somewhere() -> None:
    words = [word for word in quoted(THE_WAY) if not word.endswith(".py") and re.fullmatch(r"[\w.]+", word)]
    names = {name for word in words for name in word.split(".")}
    everything = "\n".join(SOURCES.values())
    assert len(names) > 20
    assert [name for name in names if not re.search(rf"\b(def|class) {name}\b|\b{name}: ", everything)] == []
