"""`ferrule select`: what eval and why print, what a threshold does to the exit code, and what cannot be meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ferrule.cli import main

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


explaining = Explaining()


class Broken:
    def __init__(self):
        raise RuntimeError("no index")


class Selector:
    async def select(self, messages, tools):
        return []
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


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "ranker.py").write_text(RANKER, encoding="utf-8")
    for name, rows in (("tools.jsonl", TOOLS), ("queries.jsonl", QUERIES)):
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


# eval


def test_eval_prints_recall_costs_and_what_is_mixed_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(EVAL) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[3][:3] == ["the", "first", "1"] and lines[3][3] == "0.667"
    assert lines[4][:4] == ["the", "first", "5", "1.000"]
    assert ["order", "stock", "1"] in lines
    assert ["NDCG@10", "0.877"] in lines


def test_eval_says_the_same_to_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*EVAL, "--json"]) == 0
    found = read(capsys)
    assert (found["tools"], found["queries"]) == (3, 3)
    assert found["recall"] == {"1": pytest.approx(2 / 3), "5": 1.0, "10": 1.0}
    assert found["confusable"] == [{"right": "order", "wrong": "stock", "queries": 1}]
    assert found["ranks"][1] == {"id": "q2", "places": {"order": 2}, "found": ["stock", "order"]}
    assert found["ranks"][2]["places"] == {"order": 1}
    assert found["estimated_tokens"]["first"]["1"] < found["estimated_tokens"]["all"]
    assert found["missed"] == []


@pytest.mark.parametrize(
    ("words", "code", "missed"),
    [
        (["--min-recall5", "1", "--min-ndcg", "0.87"], 0, []),
        (["--min-ndcg", "0.88"], 1, ["NDCG@10 is 0.8770, below 0.88"]),
        (["--min-recall5", "0.9", "--min-ndcg", "0.9"], 1, ["NDCG@10 is 0.8770, below 0.9"]),
    ],
)
def test_a_threshold_that_is_missed_ends_with_1_and_is_named(
    words: list[str], code: int, missed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*EVAL, *words]) == code
    assert [line for line in capsys.readouterr().out.splitlines() if "below" in line] == missed
    assert main([*EVAL, *words, "--json"]) == code
    assert read(capsys)["missed"] == missed


def test_recall_5_is_held_to_its_own_threshold(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "queries.jsonl").write_text(json.dumps({"text": "stock", "relevant": ["order"]}), encoding="utf-8")
    assert main([*EVAL, "--min-recall5", "0.5", "--min-ndcg", "0"]) == 1
    out = capsys.readouterr().out
    assert "recall@5 is 0.0000, below 0.5" in out
    assert "1 query did not find a right tool" in out


def test_tools_of_a_module_and_of_a_file_of_definitions_are_ranked_together(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "more.py").write_text("from ferrule import tool\n\n\n@tool\ndef pack() -> None:\n    '''Pack.'''\n")
    assert main([*EVAL, "--tools", "more.py", "--json"]) == 0
    assert read(capsys)["tools"] == 4


# why


def test_why_shows_scores_and_what_they_come_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WHY, "--by", "ranker.py:explaining"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "score tool from",
        "4.00 order order 2.00 (name), order 1.00 (description), articles 1.00 (description)",
        "2.00 ORDER order 2.00 (name)",
        "1.00 stock articles 1.00 (description)",
    ]


def test_why_leaves_out_what_adds_next_to_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = RANKER.replace('("name", 2.0))', '("name", 2.0), ("name", 0.001))')
    (here / "ranker.py").write_text(more, encoding="utf-8")
    assert main([*WHY, "--by", "ranker.py:explaining"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "2.00 ORDER order 2.00 (name) 1.00 stock" in out


def test_why_says_the_same_to_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WHY, "--by", "ranker.py:explaining", "--json"]) == 0
    first, *_ = read(capsys)
    assert (first["tool"], first["score"]) == ("order", 4.0)
    assert {"term": "articles", "field": "description", "score": 1.0} in first["parts"]


def test_a_ranker_that_does_not_explain_shows_its_scores_and_why_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WHY, "--by", "ranker.py:Words"]) == 0
    out = capsys.readouterr().out
    assert "4.00  order" in out and "ranker.py:Words does not explain its scores" in out
    assert main([*WHY, "--by", "ranker.py:Words", "--json"]) == 0
    assert read(capsys)[0] == {"tool": "order", "score": 4.0}


def test_why_says_where_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["select", "why", "tea", "--tools", "tools.jsonl", "--by", "ranker.py:Words"]) == 0
    assert capsys.readouterr().out == "None of the 3 tools matches.\n"


def test_what_a_ranker_says_cannot_leave_its_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "ranker.py").write_text(RANKER.replace("Contribution(word,", "Contribution(word + '\\x1b[2J\\n',"))
    assert main([*WHY, "--by", "ranker.py:explaining"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and len(out.splitlines()) == 4


# What cannot be meant


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["select"], "action is missing"),
        (["select", "eval"], "subject is missing"),
        (["select", "evl", "queries.jsonl"], "choose from 'eval', 'why'"),
        (["select", "eval", "nothing.jsonl", *EVAL[3:]], "cannot read 'nothing.jsonl'"),
        (["select", "eval", "ranker.py", *EVAL[3:]], "ranker.py, line 2: this is no JSON"),
        ([*EVAL, "--tools", "none.jsonl"], "cannot read 'none.jsonl'"),
        ([*EVAL, "--tools", "queries.jsonl"], "queries.jsonl, line 1"),
        ([*EVAL, "--min-ndcg", "80"], "such as 0.8, not '80'"),
        ([*EVAL, "--min-recall5", "most"], "such as 0.8, not 'most'"),
        ([*WHY, "--min-ndcg", "0.8"], "are options of ferrule select eval"),
        (["select", "why", "read", "a", "file"], "unexpected word 'a': put the whole query in quotes"),
        ([*EVAL[:3], "tools.jsonl"], "write ferrule select --tools"),
        (["select", "why", " ", "--tools", "tools.jsonl"], "the query is empty"),
        ([*EVAL, "--by", "nobody"], "there is no selector 'nobody'"),
        ([*EVAL, "--by", "ranker.py:nobody"], "there is no 'nobody' in 'ranker.py'"),
        ([*EVAL, "--by", "ranker.py:Selector"], "it has no method rank(tools, query, limit=…)"),
        ([*EVAL, "--by", "ranker.py:Broken"], "RuntimeError: no index"),
        (["select", "eval", "queries.jsonl", "--by", "ranker.py:Words"], "says that 'shop:stock' is right"),
    ],
)
def test_what_cannot_be_meant_ends_with_2_and_says_what_is_wrong(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and said in captured.err and len(captured.err.splitlines()) == 1
