"""`ferrule select eval`, `ferrule select why` and `ferrule run --select`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

RANKER = '''
from collections import namedtuple

from ferrule.selection import Match

Explanation = namedtuple("Explanation", "match parts")
Contribution = namedtuple("Contribution", "term field score")

class Words:
    """A word of the query in a name counts 2, one in a description 1."""

    async def select(self, messages, tools):
        return [match.tool for match in self.rank(tools, messages)]

    def rank(self, tools, query, *, limit=10):
        return [one.match for one in self.explained(tools, query)][:limit]

    def explained(self, tools, query):
        found = []
        text = query if isinstance(query, str) else query[-1]["content"]
        for tool in tools:
            parts = [
                Contribution(word, field, score)
                for word in text.split()
                for field, score in (("description", 1.0), ("name", 2.0))
                if word in getattr(tool, field).lower()
            ]
            if parts:
                found.append(Explanation(Match(tool, sum(part.score for part in parts)), parts))
        return sorted(found, key=lambda one: -one.match.score)

class Explaining(Words):
    def explain(self, tools, query, *, limit=10):
        return self.explained(tools, query)[:limit]

class Broken:
    def __init__(self):
        raise RuntimeError("no index")

class Selector:
    async def select(self, messages, tools):
        return []


class Foreign(Words):
    async def select(self, messages, tools):
        return ["shout"]
'''
TOOLS = [
    {"id": "shop:stock", "name": "stock", "description": "Count articles.", "parameters": {"type": "object"}},
    {"id": "shop:order", "name": "order", "description": "Order articles.", "parameters": {"type": "object"}},
    {"id": "shop:ORDER", "name": "ORDER", "description": "Old way.", "parameters": {"type": "object"}},
]
QUERIES = [
    {"id": "q1", "text": "stock articles", "relevant": ["shop:stock"]},
    {"id": "q2", "text": "count articles", "relevant": ["order"]},
    {"id": "q3", "text": "-", "relevant": ["order"], "messages": [{"role": "user", "content": "order"}]},
]
EVAL = ["select", "eval", "queries.jsonl", "--tools", "tools.jsonl", "--by", "ranker.py:Words"]
WHY = ["select", "why", "order articles", "--tools", "tools.jsonl"]
EXPLAINING = [*WHY, "--by", "ranker.py:Explaining"]


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    (folder / "ranker.py").write_text(RANKER, encoding="utf-8")
    for name, rows in (("tools.jsonl", TOOLS), ("queries.jsonl", QUERIES)):
        (folder / name).write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def test_eval_prints_recall_and_confusable_tools(ferrule: Any) -> None:
    done = ferrule(*EVAL)
    lines = [line.split() for line in done.out.splitlines()]
    assert done.code == 0 and lines[3][:4] == ["the", "first", "1", "0.667"]
    assert lines[4][:4] == ["the", "first", "5", "1.000"]
    assert ["order", "stock", "1"] in lines and ["NDCG@10", "0.877"] in lines
    found = ferrule(*EVAL, "--json").json
    assert (found["tools"], found["queries"], found["missed"]) == (3, 3, [])
    assert found["recall"] == {"1": pytest.approx(2 / 3), "5": 1.0, "10": 1.0}
    assert found["confusable"] == [{"right": "order", "wrong": "stock", "queries": 1}]
    assert found["ranks"][1] == {"id": "q2", "places": {"order": 2}, "found": ["stock", "order"]}
    assert found["ranks"][2]["places"] == {"order": 1}
    assert found["estimated_tokens"]["first"]["1"] < found["estimated_tokens"]["all"]
    assert ferrule(*EVAL, "--tools", "ferrule.tools.files", "--json").json["tools"] == 8


def test_recall_5_has_its_own_threshold(folder: Path, ferrule: Any) -> None:
    (folder / "queries.jsonl").write_text(json.dumps({"text": "stock", "relevant": ["order"]}), encoding="utf-8")
    done = ferrule(*EVAL, "--min-recall5", "0.5", "--min-ndcg", "0")
    assert done.code == 1 and "recall@5 is 0.0000, below 0.5" in done.out
    assert "1 query did not find a right tool" in done.out


def test_why_shows_scores_and_their_parts(folder: Path, ferrule: Any) -> None:
    lines = [
        "score tool from",
        "4.00 order order 2.00 (name), order 1.00 (description), articles 1.00 (description)",
        "2.00 ORDER order 2.00 (name)",
        "1.00 stock articles 1.00 (description)",
    ]
    assert [" ".join(line.split()) for line in ferrule(*EXPLAINING).out.splitlines()] == lines
    first, *_ = ferrule(*EXPLAINING, "--json").json
    assert (first["tool"], first["score"]) == ("order", 4.0)
    assert {"term": "articles", "field": "description", "score": 1.0} in first["parts"]
    small = RANKER.replace('("name", 2.0))', '("name", 2.0), ("name", 0.001))')  # small parts are left out
    (folder / "ranker.py").write_text(small, encoding="utf-8")
    assert [" ".join(line.split()) for line in ferrule(*EXPLAINING).out.splitlines()] == lines


def test_why_without_explanations_shows_scores_alone(ferrule: Any) -> None:
    done = ferrule(*WHY, "--by", "ranker.py:Words")
    assert "4.00  order" in done.out and "ranker.py:Words does not explain its scores" in done.out
    assert ferrule(*WHY, "--by", "ranker.py:Words", "--json").json[0] == {"tool": "order", "score": 4.0}
    done = ferrule("select", "why", "tea", "--tools", "tools.jsonl", "--by", "ranker.py:Words")
    assert done.out == "None of the 3 tools matches.\n"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["select"], "action is missing"),
        (["select", "eval", "ranker.py", *EVAL[3:]], "ranker.py, line 2: this is no JSON"),
        ([*EVAL, "--tools", "queries.jsonl"], "queries.jsonl, line 1"),
        ([*EVAL, "--min-ndcg", "80"], "such as 0.8, not '80'"),
        ([*WHY, "--min-ndcg", "0.8"], "are options of ferrule select eval"),
        ([*EVAL, "--by", "ranker.py:Selector"], "it has no method rank(tools, query, limit=…)"),
        ([*EVAL, "--by", "ranker.py:Broken"], "RuntimeError: no index"),
        (["select", "eval", "queries.jsonl", "--by", "ranker.py:Words"], "says that 'shop:stock' is right"),
    ],
)
def test_a_wrong_command_gets_one_line(ferrule: Any, words: list[str], error: str) -> None:
    done = ferrule(*words)
    assert done.code == 2 and done.out == "" and error in done.err and len(done.err.splitlines()) == 1


# run --select

STEPS = """
steps = [
    [("order", {"article": "tea"}), ("search_tools", {"query": "order"})],
    [("order", {"article": "tea"}), ("stock", {"article": "tea"})],
    "Done.",
]
"""
RUN = ("run", "stock", "--tools", "shop.py", "--model", "scripted:steps.py", "--yes", "order")
OWN = """
from ferrule.selection import search_tool
find = search_tool([stock, order], name='search_tools')
"""
TAKEN = """
@tool
def search_tools(shop: str) -> str:
    "Find hammers."
    return "none"
"""


@pytest.fixture
def steps(folder: Path) -> None:
    (folder / "steps.py").write_text(STEPS, encoding="utf-8")


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize("place", ["ranker.py:Words", "./ranker.py:Words"])
def test_selected_tools_are_offered_and_the_others_found(ferrule: Any, place: str) -> None:
    done = ferrule(*RUN, "--select", place)
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert lines.index("tools 2 of 3 offered: stock, search_tools") < lines.index("turn 1")
    assert "tools stock, order" not in lines
    ended = [line.split()[1:3] for line in lines if line[:2] in ("1 ", "2 ", "3 ", "4 ")]
    assert ended == [["order", "not_found"], ["search_tools", "ok"], ["order", "ok"], ["stock", "ok"]]
    done = ferrule(*RUN)
    assert "tools  stock, order\n" in done.out and "offered:" not in done.out


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize(
    ("more", "offered"), [(OWN, "2 of 3 offered: stock, search_tools"), (TAKEN, "2 of 4 offered: stock, search_all")]
)
def test_there_is_one_search_tool_with_a_free_name(folder: Path, ferrule: Any, more: str, offered: str) -> None:
    (folder / "shop.py").write_text((folder / "shop.py").read_text() + more, encoding="utf-8")
    assert f"tools  {offered}" in ferrule(*RUN, "--select", "ranker.py:Words").out


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("choise:Words", "ferrule: --select: 'choise:Words': there is no module 'choise'"),
        ("ranker.py:Foreign", "returned 'shout', which is not one of the tools that it got"),
    ],
)
def test_a_wrong_selector_ends_the_run(ferrule: Any, place: str, error: str) -> None:
    done = ferrule(*RUN, "--select", place)
    assert done.code == 2 and error in done.err
