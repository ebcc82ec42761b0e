"""How rankers are measured: rankers whose answers are known, and so are the numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path

import pytest

from ferrule import DefinitionError, Tool, ToolError, Toolset, tool
from ferrule.selection import Match, Query, definition_tokens, keyword
from ferrule.selection.evaluation import Confusion, LabelledQuery, evaluate, read_queries, read_tools


class Told:
    """Ranks as it is told: for each text, the names in their order."""

    def __init__(self, **answers: str) -> None:
        self.answers = {text: names.split() for text, names in answers.items()}
        self.asked: list[Query] = []

    def rank(self, tools: Iterable[Tool], query: Query, *, limit: int = 10) -> list[Match]:
        self.asked.append(query)
        by_name = {tool.name: tool for tool in tools}
        text = query if isinstance(query, str) else str(query[-1]["content"])
        return [Match(by_name[name], 1.0) for name in self.answers[text][:limit]]

    async def select(self, messages: Query, tools: Iterable[Tool]) -> list[Tool]:
        return [match.tool for match in self.rank(tools, messages)]


def named(name: str, description: str = "") -> Tool:
    return tool(lambda: None, name=name, description=description or f"Do {name}.")


TOOLS = Toolset(named(name) for name in "abcdefghijkl")


def wanting(text: str, *relevant: str) -> LabelledQuery:
    return LabelledQuery(text, relevant)


def discount(place: int) -> float:
    return 1 / math.log2(place + 1)


# The measures


def test_recall_is_the_share_of_the_right_tools_among_the_first_k() -> None:
    found = evaluate(
        Told(one="a b c d", two="d a"), TOOLS, [wanting("one", "a", "d"), wanting("two", "a")], k=(1, 2, 4)
    )
    assert found.recall == {1: (0.5 + 0) / 2, 2: (0.5 + 1) / 2, 4: 1.0}
    missed = evaluate(Told(one="a"), TOOLS, [wanting("one", "a", "b")])
    assert missed.recall == {1: 0.5, 5: 0.5, 10: 0.5} and missed.ranks[0].places == {"a": 1, "b": None}


def test_ndcg_falls_with_the_places_of_the_right_tools() -> None:
    assert evaluate(Told(one="b a c"), TOOLS, [wanting("one", "a", "b")]).ndcg == 1.0
    assert evaluate(Told(one="a b c d e f g h i j"), TOOLS, [wanting("one", *"abcdefghijkl")]).ndcg == 1.0
    found = evaluate(Told(one="c a d b"), TOOLS, [wanting("one", "a", "b")])
    assert found.ndcg == pytest.approx((discount(2) + discount(4)) / (discount(1) + discount(2)))


def test_confusable_tools_are_counted_most_frequent_first() -> None:
    ranker = Told(one="b a", two="c b a", three="b c")
    found = evaluate(ranker, TOOLS, [wanting("one", "a"), wanting("two", "a"), wanting("three", "a", "c")])
    assert found.confusable == (Confusion("a", "b", 3), Confusion("a", "c", 1), Confusion("c", "b", 1))


def test_costs_are_those_of_all_tools_and_of_the_first_k() -> None:
    found = evaluate(Told(one="a b c", two="b"), TOOLS, [wanting("one", "a"), wanting("two", "b")], k=(1, 2))
    each = {tool.name: definition_tokens(tool) for tool in TOOLS}
    assert found.tokens == sum(each.values())
    assert found.tokens_of_first == {1: (each["a"] + each["b"]) / 2, 2: (each["a"] + 2 * each["b"]) / 2}


def test_a_conversation_is_ranked_instead_of_its_text() -> None:
    ranker, messages = Told(then="a"), ({"role": "user", "content": "then"},)
    evaluate(ranker, TOOLS, [LabelledQuery("now", ("a",), messages=messages)])
    assert ranker.asked == [messages]


# What cannot be meant


def test_an_id_of_a_row_and_a_wire_name_stand_for_the_name() -> None:
    dotted = tool(lambda: None, name="math.add", description="Add.", metadata={"id": "calculator:add"})
    for label in ("math.add", "calculator:add", dotted.wire_name):
        assert evaluate(Told(one="math.add"), [dotted], [wanting("one", label)]).ranks[0].places == {"math.add": 1}


def test_tools_that_share_a_name_are_told_apart_by_their_ids() -> None:
    def searching(what: str) -> Tool:
        return tool(lambda: None, name="search", description=f"Search {what}.", metadata={"id": f"{what}:search"})

    tools = [searching("web"), searching("mail"), named("stock")]
    found = evaluate(keyword(), tools, [wanting("search the web", "mail:search")])
    assert found.ranks[0].found == ("web:search", "mail:search")
    assert found.recall[1] == 0.0 and found.recall[5] == 1.0
    assert found.confusable == (("mail:search", "web:search", 1),)
    with pytest.raises(DefinitionError, match="'search' is right, and several tools are called so; did you mean 'web:"):
        evaluate(keyword(), tools, [wanting("search the web", "search")])


def test_a_missing_right_tool_is_named_with_its_query() -> None:
    with pytest.raises(DefinitionError, match=r"query 'q7' says that 'shop:Stock' is right.*did you mean 'stock'"):
        evaluate(Told(), [named("stock")], [LabelledQuery("x", ("shop:Stock",), "q7")])


@pytest.mark.parametrize(
    ("queries", "k", "what"),
    [([], (1,), "no queries"), ([wanting("x")], (1,), "no right tool"), ([wanting("one", "a")], (0,), "at least 1")],
)
def test_nothing_to_measure_is_refused(queries: list[LabelledQuery], k: tuple[int, ...], what: str) -> None:
    with pytest.raises(DefinitionError, match=what):
        evaluate(Told(one="a"), TOOLS, queries, k=k)


# Files


def written(folder: Path, *lines: object) -> Path:
    file = folder / "rows.jsonl"
    file.write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines),
        encoding="utf-8",
    )
    return file


def test_queries_are_read_with_defaults(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "tea?"}]
    file = written(tmp_path, {"id": "q", "text": "tea\u2028?", "relevant": ["a", "a"], "messages": messages}, "", {
        "text": "coffee", "relevant": ["b"]
    })  # fmt: skip
    one, other = read_queries(file)
    assert one == LabelledQuery("tea\u2028?", ("a",), "q", tuple(messages)) and one.asked == tuple(messages)
    assert other == LabelledQuery("coffee", ("b",), f"{file}, line 3") and other.asked == "coffee"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "no JSON"),
        ("[1]", "one JSON object"),
        ({"text": " ", "relevant": ["a"]}, '"text"'),
        ({"text": "x", "relevant": []}, '"relevant"'),
        ({"text": "x", "relevant": ["a"], "messages": ["hi"]}, '"messages"'),
    ],
)
def test_a_wrong_line_of_queries_is_refused_with_file_and_line(tmp_path: Path, line: object, what: str) -> None:
    file = written(tmp_path, {"text": "x", "relevant": ["a"]}, line)
    with pytest.raises(DefinitionError) as caught:
        read_queries(file)
    assert f"{file}, line 2: " in str(caught.value) and what in str(caught.value)
    with pytest.raises(DefinitionError, match=r"line 2: .*name"):
        read_tools(written(tmp_path, {"name": "one"}, {"description": "no name"}))


def test_tools_of_a_file_cannot_be_run(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"payload": {"type": "string"}, "context": {"type": "string"}}}
    rows = [{"id": "x:one", "name": "one", "description": "Do it.", "parameters": schema}, {"name": "ONE"}]
    one, other = read_tools(written(tmp_path, *rows))
    assert (one.name, one.metadata["id"], "id" in other.metadata) == ("one", "x:one", False)
    assert one.input_schema["properties"] == schema["properties"]
    with pytest.raises(ToolError, match="nothing that could run it"):
        one.handler(payload="x")


# What a definition costs


def test_a_definition_costs_a_quarter_of_its_bytes_rounded_up() -> None:
    plain = named("a", "x" * 100)
    for four, more in (("xxxx", 1), ("éééé", 2)):
        assert definition_tokens(named("a", "x" * 100 + four)) == definition_tokens(plain) + more
    text = json.dumps(
        {"name": "a", "description": "x" * 100, "input_schema": plain.input_schema}, separators=(",", ":")
    )
    assert definition_tokens(plain) == math.ceil(len(text) / 4)
