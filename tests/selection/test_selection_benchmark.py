"""benchmarks/selection.py keeps its examples and its queries apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parent.parent.parent / "benchmarks" / "selection.py"
BOUND = 120
SUBJECTS = ("note", "mail", "invoice", "photo", "meeting", "contact")
ACTIONS = ("read", "delete", "send")
# Ranks by words in common with the name, or with an example; writes down what it was given.
CONTENDER = """
import json
from pathlib import Path

def score(row, query):
    text = query if isinstance(query, str) else query[-1]["content"]
    words = {word.rstrip("s") for word in text.lower().split()}
    return len(words & set(row["name"].split("_"))) + 5 * (text in row.get("examples", ()))

def rank(catalogue, queries, k):
    with Path("given.jsonl").open("a") as file:
        file.write(json.dumps({"catalogue": catalogue, "queries": queries}) + "\\n")
    answers = []
    for query in queries:
        order = sorted(catalogue, key=lambda row: -score(row, query))
        answers.append([row["id"] for row in order if score(row, query)][:k])
    return answers
"""


def rows() -> Iterator[dict[str, Any]]:
    for subject in SUBJECTS:
        for action in ACTIONS:
            name = f"{action}_{subject}"
            yield {
                "id": f"office:{name}",
                "name": name,
                "description": f"{action.title()} one {subject}.",
                "parameters": {"type": "object", "properties": {f"{subject}_id": {"type": "string"}}},
            }


def queries() -> Iterator[dict[str, Any]]:
    for number, row in enumerate(rows()):
        action, _, subject = row["name"].partition("_")
        for text in (f"please {action} my {subject}s", f"{subject} number {number}", f"something to {action}"):
            yield {"id": f"q{number} {text}", "text": text, "relevant": [row["id"]]}
    said = [{"role": "user", "content": "read a note"}, {"role": "assistant", "content": "Done."}]
    more = {"role": "user", "content": "now delete it"}
    yield {"id": "talk", "text": more["content"], "relevant": ["office:delete_note"], "messages": [*said, more]}


def write(file: Path, lines: Iterator[dict[str, Any]]) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "office" / "tools.jsonl", rows())
    write(tmp_path / "data" / "office" / "queries.jsonl", queries())
    (tmp_path / "contender.py").write_text(CONTENDER, encoding="utf-8")
    return tmp_path


def measure(folder: Path, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "data", "--rank", "contender:rank", "--jobs", "1", "--json", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *map(os.path.abspath, sys.path)])},
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_examples_come_from_queries_that_are_not_scored(folder: Path) -> None:
    (folder / "tantivy.py").write_text("raise ImportError('no tantivy here')")
    found = measure(folder, "--only", "tantivy", "--examples", "with", "--quick")
    assert found["left_out"] == ["tantivy is left out: no tantivy here"]
    assert [one["contender"] for one in found["outcomes"]] == ["contender:rank"]
    assert 0 < found["outcomes"][0]["mean"]["recall"] <= 100
    [given] = map(json.loads, (folder / "given.jsonl").read_text().splitlines())
    examples = {text for row in given["catalogue"] for text in row["examples"]}
    scored = {query if isinstance(query, str) else query[-1]["content"] for query in given["queries"]}
    asked = {query["text"] for query in queries()}
    numbered = {text for text in asked if "number" in text}  # the other texts are those of several queries
    assert examples | scored == asked and len(examples & numbered) > 3 and len(scored & numbered) > 3
    assert not examples & scored & numbered
