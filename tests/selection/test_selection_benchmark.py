"""benchmarks/selection.py on a small folder: it measures as `evaluate` does, and keeps examples and queries apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ferrule import Tool
from ferrule.selection import Match
from ferrule.selection.evaluation import evaluate, read_queries, read_tools

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


class Contender:
    """The contender of the file as a ranker."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        exec(CONTENDER, self.names)

    def rank(self, tools: Any, query: Any, *, limit: int = 10) -> list[Match]:
        scored = [(self.names["score"]({"name": tool.name}, query), tool) for tool in tools]
        found = sorted((one for one in scored if one[0]), key=lambda one: -one[0])
        return [Match(tool, score) for score, tool in found[:limit]]

    async def select(self, messages: Any, tools: Any) -> list[Tool]:
        return [match.tool for match in self.rank(tools, messages)]


def test_it_measures_as_evaluate_does(folder: Path) -> None:
    found = measure(folder, "--only", "sqlite fts5", "--examples", "without", "--quick")
    outcomes = {one["contender"]: one["mean"] for one in found["outcomes"]}
    data = folder / "data" / "office"
    own = evaluate(Contender(), read_tools(data / "tools.jsonl"), read_queries(data / "queries.jsonl"))
    assert outcomes["contender:rank"]["recall"] == pytest.approx(100 * own.recall[5])
    assert outcomes["contender:rank"]["ndcg"] == pytest.approx(100 * own.ndcg)
    assert 0 < outcomes["sqlite fts5"]["ndcg"] < 100 and 0 < own.ndcg < 1


def test_examples_come_from_queries_that_are_not_scored(folder: Path) -> None:
    measure(folder, "--only", "sqlite fts5", "--examples", "with", "--quick")
    [given] = map(json.loads, (folder / "given.jsonl").read_text().splitlines())
    examples = {text for row in given["catalogue"] for text in row["examples"]}
    scored = {query if isinstance(query, str) else query[-1]["content"] for query in given["queries"]}
    asked = {query["text"] for query in queries()}
    numbered = {text for text in asked if "number" in text}  # the other texts are those of several queries
    assert examples | scored == asked and len(examples & numbered) > 3 and len(scored & numbered) > 3
    assert not examples & scored & numbered


def test_a_search_for_settings_is_no_worse_than_those_that_were_known(folder: Path) -> None:
    words = ("--only", "sqlite fts5", "--examples", "without")
    known, found = (measure(folder, *words, *more)["outcomes"][0] for more in (["--quick"], []))
    assert sum(found["mean"].values()) >= sum(known["mean"].values())
    assert "weights" in found["setting"]


def test_what_is_not_installed_is_said_and_left_out(folder: Path) -> None:
    (folder / "tantivy.py").write_text("raise ImportError('no tantivy here')")
    found = measure(folder, "--only", "tantivy", "--examples", "without", "--quick")
    assert found["left_out"] == ["tantivy is left out: no tantivy here"]
    assert [one["contender"] for one in found["outcomes"]] == ["contender:rank"]
