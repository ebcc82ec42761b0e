"""`keyword` finds tools by each of their fields and by what the conversation is about, and says why."""

from __future__ import annotations

import asyncio
import gc
import re
import sys
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest
from catalogue import SHOP, made, names, nothing
from hypothesis import given
from hypothesis import strategies as st

from ferrule import DefinitionError, Tool, Toolset, build_tool
from ferrule.selection import Match, Query, Ranker, ToolSelector, by_budget, keyword, selector_from_name
from ferrule.selection._document import WEIGHTS
from ferrule.selection.keyword import Keyword
from ferrule.testing import SelectorContract
from steps import lines, steps


class TestKeyword(SelectorContract):
    def selector(self) -> Ranker:
        return keyword()


class TestKeywordWithExamples(SelectorContract):
    def selector(self) -> Ranker:
        return keyword(5, examples={"get_weather": ["Will it rain?"], "now": ["How late is it in Rome?"], "none": []})


class TestKeywordByName(SelectorContract):
    def selector(self) -> ToolSelector:
        return selector_from_name("keyword:3")


class TestByBudgetsOwn(SelectorContract):
    def selector(self) -> ToolSelector:
        return by_budget(200)


def described(name: str, description: str = "", schema: Any = None, **more: Any) -> Tool:
    schema = schema or {"type": "object", "properties": {}}
    return build_tool({"name": name, "description": description, "input_schema": schema}, nothing, **more)


def found(query: Query, tools: Iterable[Tool] = SHOP, ranker: Ranker | None = None, limit: int = 10) -> list[str]:
    return [match.tool.name for match in (ranker or keyword()).rank(tools, query, limit=limit)]


def said(*texts: str) -> list[dict[str, str]]:
    """A conversation in which the user and the model take turns."""
    return [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]


# What is read of a tool

OTHERS = [made(f"other_{at}", "Paint the walls of a room.") for at in range(5)]
SIZES = {"type": "string", "enum": ["gigantic", "tiny"]}
NESTED = {"type": "object", "properties": {"deep_key": {"type": "string", "description": "What is submerged."}}}


def with_schema(**properties: Any) -> Tool:
    return described("tool", schema={"type": "object", "properties": properties})


@pytest.mark.parametrize(
    ("query", "tool"),
    [
        ("invoice", described("readInvoice2")),
        ("invoice", described("READ_INVOICE")),
        ("invoice", described("read-invoice")),
        ("invoice", described("PDFInvoiceReader")),
        ("version 27", described("readInvoice27")),
        ("invoices", described("tool", "Read an invoice. It has to be paid.")),
        ("what is paid", described("tool", "Read an invoice. It has to be paid.")),
        ("gigantic things", with_schema(size=SIZES)),
        ("the sizes", with_schema(size=SIZES)),
        ("metric", with_schema(unit={"const": "metric"})),
        ("nested words", with_schema(one={"type": "string", "description": "A word."})),
        ("deep", with_schema(inner=NESTED)),
        ("submerged", with_schema(inner=NESTED)),
        ("submerged", with_schema(inner={"type": "array", "items": NESTED})),
        ("submerged", with_schema(inner={"anyOf": [{"type": "null"}, NESTED]})),
        ("accounting", described("tool", tags=["accounting"])),
        ("a lamp", described("tool", examples=[{"words": "lamp"}], schema=with_schema(words={}).input_schema)),
        ("файл", described("tool", "Прочитать файл.")),
        ("die Grosse des Cafes", described("tool", "Größe und Lage eines Cafés.")),
        ("le café", described("tool", "Ou est le cafe?")),
    ],
)
def test_a_tool_is_found_by_each_of_its_fields(query: str, tool: Tool) -> None:
    assert found(query, [*OTHERS, tool]) == [tool.name]


def test_a_definition_that_is_pointed_at_is_read_and_others_are_not() -> None:
    schema = {
        "type": "object",
        "properties": {"order": {"$ref": "#/$defs/Order"}},
        "$defs": {"Order": NESTED, "Unused": {"type": "string", "description": "What is forgotten."}},
    }
    tool = described("tool", schema=schema)
    assert found("submerged", [*OTHERS, tool]) == ["tool"]
    assert found("forgotten", [*OTHERS, tool]) == []


def test_a_word_counts_more_in_the_name_than_in_the_description_and_there_more_than_in_a_parameter() -> None:
    in_name = made("invoice", "x", a="x")
    in_description = made("a", "invoice", x="x")
    in_parameter = made("x", "a", x="invoice")
    assert found("invoice", [in_parameter, in_description, in_name, *OTHERS]) == ["invoice", "a", "x"]


def test_a_tool_that_says_little_else_goes_before_one_that_says_much() -> None:
    long = made("long", f"Read an invoice. {' '.join(f'word{chr(97 + at)}' for at in range(20))}")
    assert found("read an invoice", [long, made("short", "Read an invoice."), *OTHERS]) == ["short", "long"]


def test_part_of_a_word_of_the_name_counts_for_what_is_found_anyway() -> None:
    alike = [made("paypal_refund", "Give money back."), made("stripe_refund", "Give money back.")]
    assert found("refund by pay pal", alike)[0] == "paypal_refund"
    assert found("refund with Stripes", alike)[0] == "stripe_refund"


# What is looked for


def test_stop_words_alone_and_words_that_no_tool_has_find_nothing() -> None:
    assert found("please give me what you have") == []
    assert found("zxqv wvut") == []
    assert found("") == []
    assert found([]) == []
    assert found("refund") != []


def test_endings_of_words_make_no_difference() -> None:
    assert found("refunding") == found("Refunds!") == found("REFUNDED") == ["refund_order"]


def test_a_synonym_finds_a_tool_and_counts_less_than_the_word() -> None:
    film, movie = made("list_films", "The films of today."), made("list_movies", "The movies of today.")
    assert found("which movie is on", [film, movie]) == ["list_movies", "list_films"]
    assert found("which film is on", [film, movie]) == ["list_films", "list_movies"]
    scores = {match.tool: match.score for match in keyword().rank([film, movie], "film")}
    assert 0 < scores[movie] < scores[film] / 2


REQUESTS = "Refund order 7, and then email the customer. What is the weather in Oslo? Also where is my parcel"
ORDERS = [made(f"{verb}_order", f"{verb} an order.", ["orders"]) for verb in ("open", "close", "split", "print")]


def test_each_of_several_requests_in_one_message_has_its_tool_in_front() -> None:
    tools = [*ORDERS, *SHOP]
    assert set(found(REQUESTS, tools, limit=4)) == {"refund_order", "send_email", "weather", "read_parcel"}


def test_a_short_request_is_not_lost_beside_a_long_one() -> None:
    asked = ["refund", "customer", "number", "purchase", "receipt", "invoice", "voucher", "tax", "warranty"]
    some = [made(f"tool_{at}", " ".join(asked[at : at + 3])) for at in range(0, 9, 3)]
    tools = [made("whole", " ".join(asked)), *some, made("cities", "The weather of some cities, and where they lie.")]
    assert found("weather", tools) == ["cities"]
    assert "cities" in found(f"{' '.join(asked)}. And the weather?", tools, limit=2)


def test_a_short_follow_up_is_about_what_was_said_before() -> None:
    assert found(said("Where is my parcel?", "In Rome.", "and the other one?")) == ["read_parcel"]
    assert found("and the other one?") == []


def test_what_was_said_before_counts_less_than_what_is_said_now() -> None:
    conversation = said("Where is my parcel?", "In Rome.", "How is the weather in that city?")
    matches = keyword().rank(SHOP, conversation)
    assert names(match.tool for match in matches) == ["weather", "read_parcel"]
    assert matches[1].score < matches[0].score / 4


def test_what_the_model_plans_and_what_its_calls_came_to_count_weakly() -> None:
    plan = said("Help her", "I look at the weather first.", "Send an email")
    assert found(plan)[:2] == ["send_email", "weather"]
    result = [{"role": "user", "content": "Send an email"}, {"role": "tool", "content": "The weather is fine."}]
    assert found(result)[:2] == ["send_email", "weather"]
    assert found(result[:1]) == ["send_email"]


# Worked examples


def test_worked_examples_find_a_tool_by_words_that_it_does_not_have() -> None:
    worked = keyword(examples={"weather": ["Do I need an umbrella in Oslo?", "Is it cold outside?"], "gone": ["x"]})
    assert found("is it cold", ranker=keyword()) == []
    assert found("is it cold", ranker=worked) == ["weather"]
    assert found("refund", ranker=worked) == ["refund_order"]


def test_the_more_alike_an_example_is_the_more_it_counts() -> None:
    examples = {"weather": ["Is it cold outside in winter?"], "read_parcel": ["Is the parcel cold?"]}
    assert found("cold outside", ranker=keyword(examples=examples)) == ["weather", "read_parcel"]


def test_the_more_examples_have_what_was_said_the_more_they_count() -> None:
    tools = [made("one"), made("two")]
    few, many = ["Book a table", "Cancel a flight"], ["Book a table"] * 6 + ["Cancel a flight"] * 6
    for examples in ({"one": few, "two": many}, {"two": few, "one": many}):
        best = "two" if examples["two"] is many else "one"
        assert found("please book it", tools, ranker=keyword(examples=examples))[0] == best


def added_by_examples(count: int) -> float:
    """What whole requests add to a score, in parts of what their words do."""
    (why,) = keyword(examples={"one": ["Book a table"] * count}).explain([made("one")], "book it")
    (added,) = (part.score for part in why.parts if (part.term, part.field) == ("", "worked examples"))
    return added / (why.match.score - added)


def test_one_example_alone_says_little() -> None:
    assert 0 < 16 * added_by_examples(1) < added_by_examples(8)


def test_more_examples_than_eight_that_have_what_was_said_count_as_eight() -> None:
    eight, twenty = (added_by_examples(count) * (count + 6) / count for count in (8, 20))
    assert eight == pytest.approx(twenty)


def test_examples_leave_with_their_tool() -> None:
    one, two = made("one"), made("two")
    ranker = keyword(examples={"one": ["Book a table"], "two": ["Book a table"]})
    (before, _), (after,) = ranker.rank([one, two], "book a table"), ranker.rank([one], "book a table")
    assert before.tool is after.tool is one
    assert after == keyword(examples={"one": ["Book a table"]}).rank([one], "book a table")[0]


def test_examples_are_those_of_the_tools_that_there_are_when_an_index_is_built_anew() -> None:
    ranker = keyword(examples={tool.name: ["Book a table"] * 2 for tool in MANY})
    for start in range(0, 190, 5):  # five come and five go each time, until most numbers are of tools that are gone
        some = list(MANY)[start : start + 10]
        expected = keyword(examples={tool.name: ["Book a table"] * 2 for tool in some}).rank(some, "book a table")
        assert ranker.rank(some, "book a table") == expected


@pytest.mark.parametrize(
    "examples", [3, ["weather"], {"weather": "cold"}, {"weather": [1]}, {"weather": None}, {7: ["cold"]}]
)
def test_examples_that_are_not_lists_of_texts_by_name_are_an_error(examples: Any) -> None:
    with pytest.raises(DefinitionError, match=r"examples are lists of requests by the name of a tool, such as {'get_"):
        keyword(examples=examples)


@pytest.mark.parametrize("limit", [0, -1, 2.5, True, "8", None])
def test_the_limit_is_a_whole_number_from_1(limit: Any) -> None:
    with pytest.raises(DefinitionError, match=f"keyword: limit is a whole number from 1, not {limit!r}"):
        keyword(limit)


def test_select_gives_at_most_the_limit_and_rank_what_it_is_asked_for() -> None:
    tools = [made(f"order_{at}") for at in range(100)]
    assert names(asyncio.run(keyword().select("order", tools))) == names(tools[:8])
    assert names(asyncio.run(keyword(3).select("order", tools))) == names(tools[:3])
    assert found("order", tools) == names(tools[:10])
    assert found("order", tools, limit=1) == ["order_0"]
    assert found("order", tools, limit=1_000) == names(tools)
    for limit in (0, -1, "3"):
        with pytest.raises(DefinitionError, match="limit is a whole number from 1"):
            keyword().rank(tools, "order", limit=limit)


# Why


def test_explain_says_which_word_of_which_field_a_score_comes_from() -> None:
    tool = described("get_invoice", "Read a bill. It is paid.", with_schema(size=SIZES).input_schema, tags=["money"])
    ranker = keyword(examples={"get_invoice": ["Show me the receipt"]})
    (why,) = ranker.explain([*OTHERS, tool], "the receipt: gigantic invoice, bill, paid, size, money")
    assert {(part.term, part.field) for part in why.parts} >= {
        ("invoic", "name"),
        ("bill", "first sentence"),
        ("paid", "description"),
        ("size", "parameter names"),
        ("gigant", "values"),
        ("money", "tags"),
        ("receipt", "worked examples"),
        ("", "worked examples"),
        ("", "whole name"),
    }


def adds_up(ranker: Keyword, tools: Iterable[Tool], query: Query, limit: int = 10) -> None:
    tools = list(tools)
    explained = ranker.explain(tools, query, limit=limit)
    assert [why.match for why in explained] == ranker.rank(tools, query, limit=limit)
    for why in explained:
        parts = [part.score for part in why.parts]
        assert sum(parts) == pytest.approx(why.match.score, rel=1e-6)
        assert parts == sorted(parts, reverse=True) and parts[-1] > 0


@pytest.mark.parametrize("query", ["refund the order", "weather", REQUESTS, "money and purchases; a film", "x"])
def test_the_parts_add_up_to_the_score_and_the_matches_are_those_of_rank(query: str) -> None:
    adds_up(keyword(), [*ORDERS, *SHOP], query)
    adds_up(keyword(examples={"weather": ["the money"], "send_email": ["a film", "refund it"]}), SHOP, query)
    adds_up(keyword(), [*ORDERS, *SHOP], said(query, "The order is there.", "and then?"))


# Several toolsets, and threads


def test_toolsets_that_are_used_in_turns_are_answered_as_each_alone() -> None:
    shop, half, walls = Toolset(SHOP), Toolset(list(SHOP)[:3]), Toolset(OTHERS)
    ranker = keyword()
    for _ in range(3):
        for tools in (shop, half, walls):
            for query in ("refund the order", "a parcel", "paint"):
                assert ranker.rank(tools, query) == keyword().rank(tools, query)


def test_tools_that_were_used_long_ago_are_forgotten() -> None:
    def once(ranker: Ranker) -> weakref.ref[Tool]:
        tools = Toolset([made("weather"), made("order")])
        assert found("weather", tools, ranker) == ["weather"]
        return weakref.ref(tools.get("weather"))

    ranker = keyword()
    tool = once(ranker)
    for at in range(20):
        found("paint", Toolset([made(f"paint_{at}_{other}") for other in range(3)]), ranker)
    gc.collect()
    assert tool() is None


MANY = Toolset(Tool(f"tool_{number}", lambda: None, description=f"Does {number}.") for number in range(200))
HALF = Toolset(list(MANY)[:100])


@pytest.mark.parametrize(
    "toolsets", [(MANY, HALF), (HALF, MANY)], ids=["the larger one first", "the smaller one first"]
)
def test_toolsets_with_little_in_common_keep_an_index_each(toolsets: tuple[Toolset, Toolset]) -> None:
    ranker = keyword()
    for tools in toolsets:
        ranker.rank(tools, "tool")
    indexes = list(ranker._catalogues)
    for tools in toolsets:
        ranker.rank(tools, "tool")
    assert len(indexes) == 2 and {*map(id, ranker._catalogues)} == {*map(id, indexes)}


@pytest.mark.parametrize(
    "changed",
    [MANY.register(made("weather")), MANY.without("tool_7"), MANY.replace(made("tool_7"))],
    ids=["one more", "one less", "another of its name"],
)
def test_a_tool_that_comes_or_goes_does_not_rebuild_the_index(changed: Toolset) -> None:
    ranker = keyword()
    ranker.rank(MANY, "tool")
    (before,) = ranker._catalogues
    assert ranker.rank(changed, "tool 7", limit=300) == keyword().rank(changed, "tool 7", limit=300)
    assert len(ranker._catalogues) == 1 and ranker._catalogues[0] is before


def test_what_has_little_of_what_was_said_is_no_answer_to_a_search() -> None:
    tools = Toolset(
        [
            Tool("convert_money", lambda: None, description="Say what an amount is worth in another currency."),
            Tool("audit_find", lambda: None, description="Find audits of an amount."),
        ]
    )
    query = "convert an amount to another currency"
    assert len(keyword().rank(tools, query)) == 2
    assert [match.tool.name for match in keyword(least=0.2).rank(tools, query)] == ["convert_money"]


def test_the_best_of_all_is_no_answer_either_where_it_has_little_of_what_was_said() -> None:
    tools, query = (
        [Tool("audit_find", lambda: None, description="Find audits of an amount.")],
        "paint any amount of walls",
    )
    assert len(keyword().rank(tools, query)) == 1 and keyword(least=0.2).rank(tools, query) == []


def test_what_has_less_than_a_third_of_the_best_score_is_left_out_whatever_it_has_of_what_was_said() -> None:
    others = " ".join(f"Word{letter}." for letter in "abcdefghijklmnopqrstuvwxyz")
    tools = [
        Tool("convert_amount", lambda: None, description="Convert an amount."),
        Tool("audit", lambda: None, description=f"{others} Convert."),
    ]
    best, other = keyword().rank(tools, "convert an amount")
    assert best.score > 3 * other.score
    assert keyword(least=0.01).rank(tools, "convert an amount") == [best]


def test_a_synonym_counts_for_what_a_tool_has_of_what_was_said() -> None:
    tools = [Tool("film_find", lambda: None, description="Find a film.")]
    assert found("movie", tools, keyword(least=0.2)) == ["film_find"]


@pytest.mark.parametrize("least", [-0.1, 1.1, float("nan"), "0.2", None])
def test_the_least_share_is_a_number_from_0_to_1(least: Any) -> None:
    with pytest.raises(DefinitionError, match="least is a share from 0 to 1"):
        keyword(least=least)


def test_a_toolset_that_is_gone_is_not_kept() -> None:
    ranker = keyword()
    tools = Toolset([made("weather")])
    gone = weakref.ref(tools)
    assert found("weather", tools, ranker) == ["weather"]
    del tools
    gc.collect()
    assert gone() is None


def test_threads_that_ask_at_once_have_the_answers_that_each_has_alone() -> None:
    catalogues = [Toolset(SHOP), Toolset(list(SHOP)[:3]), Toolset([*SHOP, *ORDERS]), Toolset(OTHERS)]
    asked = [(tools, query) for tools in catalogues for query in ("refund the order", REQUESTS, "paint")] * 20
    alone = [keyword().rank(tools, query) for tools, query in asked]
    ranker = keyword()
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda one: ranker.rank(*one), asked)) == alone


# Any sequence of tools, in both ways of counting

VERBS = ["read", "delete", "remove", "mail"]
NOUNS = ["order", "invoice", "film", "movie", "rain", "weather", "email", "parcel"]
WORDS = [*VERBS, *NOUNS, "7", "the", "and"]
WORKED = {"order_rain": ["Delete the film, 7 of them", "parcel"], "mail_7": ["rain"], "film": ["read it", "read mail"]}


def one_of(name: str, words: list[str]) -> Tool:
    return made(name, " ".join(words), words[:1], **dict.fromkeys(words[1:3], " ".join(words[3:])))


TOOL_NAMES = ["order_rain", "mail_7", "film", "readInvoice", "deleteMovie", "remove", "the_and"]
POOL = [
    one_of(TOOL_NAMES[at] if at < len(TOOL_NAMES) else f"tool_{at}", [WORDS[at * (k + 2) % 15] for k in range(at % 7)])
    for at in range(24)
]
TOOLS = st.lists(st.sampled_from(POOL), unique=True, max_size=24)
QUERIES = st.lists(st.sampled_from([*WORDS, ".", ", and", "; ", "then", "\n"]), min_size=1, max_size=12).map(" ".join)


@pytest.fixture(params=["numpy", "Python"], scope="module")
def counted(request: pytest.FixtureRequest) -> Iterable[str]:
    """Both ways in which scores are added up; numpy for few tools too."""
    with pytest.MonkeyPatch.context() as patch:
        by(patch, request.param)
        yield request.param


def by(patch: pytest.MonkeyPatch, way: str) -> None:
    if way == "Python":
        patch.setattr("ferrule.selection._index.numpy", lambda: None)
    patch.setattr("ferrule.selection._index._FEWEST", 1)


@given(st.data())
def test_after_any_tools_that_came_and_went_it_ranks_as_a_new_one(counted: str, data: st.DataObject) -> None:
    ranker = keyword(examples=WORKED)
    present = data.draw(TOOLS)
    for _ in range(data.draw(st.integers(1, 6))):
        for tool in data.draw(st.lists(st.sampled_from(POOL), unique=True, max_size=4)):
            present = [one for one in present if one is not tool] if tool in present else [*present, tool]
        query = data.draw(QUERIES)
        tools = Toolset(present) if data.draw(st.booleans()) else list(present)
        assert ranker.rank(tools, query, limit=24) == keyword(examples=WORKED).rank(tools, query, limit=24)


def test_after_very_many_changes_it_ranks_as_a_new_one(counted: str) -> None:
    ranker, present = keyword(examples=WORKED), list(POOL)
    for at in range(200):
        present = [*present[1:], one_of(f"order_{at}", WORDS[at % 9 : at % 9 + 4])]
        assert ranker.rank(present, "order rain") == keyword(examples=WORKED).rank(present, "order rain")


@given(TOOLS, QUERIES)
def test_numpy_and_python_give_the_very_same_scores(tools: list[Tool], query: str) -> None:
    answers = []
    for way in ("numpy", "Python"):
        with pytest.MonkeyPatch.context() as patch:
            by(patch, way)
            answers.append(keyword(examples=WORKED).rank(tools, query, limit=24))
    assert answers[0] == answers[1]


def test_so_do_they_where_there_are_enough_tools_for_numpy() -> None:
    tools = [one_of(f"tool_{at}", [WORDS[at * k % 13] for k in range(1, at % 11 + 1)]) for at in range(700)]
    queries = ("order", REQUESTS, "delete the film; read mail and then remove a parcel")
    assert sys.modules["numpy"] is numpy
    by_numpy = [keyword().rank(tools, query, limit=700) for query in queries]
    with pytest.MonkeyPatch.context() as patch:
        by(patch, "Python")
        assert [keyword().rank(tools, query, limit=700) for query in queries] == by_numpy
    assert len(by_numpy[0]) > 200


@given(TOOLS, st.randoms(use_true_random=False), QUERIES, st.integers(1, 24))
def test_the_order_of_the_tools_changes_no_score_and_decides_between_equal_ones(
    counted: str, tools: list[Tool], random: Any, query: str, limit: int
) -> None:
    shuffled = random.sample(tools, len(tools))
    one, other = (keyword(examples=WORKED).rank(order, query, limit=24) for order in (tools, shuffled))
    assert dict(one) == dict(other)
    assert other == sorted(other, key=lambda match: (-match.score, shuffled.index(match.tool)))
    assert keyword(examples=WORKED).rank(tools, query, limit=limit) == one[:limit]
    assert all(match.score > 0 for match in one)


@given(TOOLS, QUERIES)
def test_the_parts_of_any_score_add_up(counted: str, tools: list[Tool], query: str) -> None:
    if tools:
        adds_up(keyword(examples=WORKED), tools, query, 24)


@given(TOOLS, st.lists(QUERIES, min_size=1, max_size=4))
def test_the_same_question_has_the_same_answer_whatever_was_asked_between(
    counted: str, tools: list[Tool], queries: list[str]
) -> None:
    ranker = keyword()
    first = [ranker.rank(tools, query) for query in queries]
    assert [ranker.rank(tools, query) for query in reversed(queries)] == first[::-1]


# Whatever it is given

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
KEYS = st.sampled_from(["role", "content", "type", "text", "parts", "output", "tool_plan", "x"])
KINDS = st.sampled_from(["user", "assistant", "tool", "text", "tool_result", "order"])
MESSAGES = st.lists(st.dictionaries(KEYS, KINDS | JSON, max_size=5) | JSON, max_size=5)


@given(MESSAGES | JSON | st.text())
def test_no_messages_break_it(messages: Any) -> None:
    matches = keyword().rank(SHOP, messages)
    assert {match.tool for match in matches} <= set(SHOP)


def everything(letters: str) -> str:
    return f"{letters} {letters.upper()}{letters} {letters}_{letters}-7{letters}"


@given(st.text(min_size=1, max_size=30))
def test_no_letters_break_it(letters: str) -> None:
    tool = made("tool", everything(letters), [], a=everything(letters))
    for match in keyword().rank([tool, *OTHERS], everything(letters)):
        assert isinstance(match, Match) and match.score > 0


PARTS = st.sampled_from(["properties", "items", "anyOf", "enum", "const", "$ref", "$defs", "description", "allOf"])
SCHEMAS = st.dictionaries(PARTS, JSON | st.dictionaries(PARTS, JSON, max_size=4), max_size=6)


class Odd:
    """What `keyword` reads of a tool, with any schema: not every one could be the schema of a tool."""

    name, description, tags, examples = "order", "Read it.", ("a",), None

    def __init__(self, input_schema: Any) -> None:
        self.input_schema = input_schema


@given(SCHEMAS)
def test_no_schema_breaks_it(schema: dict[str, Any]) -> None:
    tools: list[Any] = [Odd(schema)]
    assert found("order", tools) == ["order"]


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "description": "the bottom"}
    for at in range(levels):
        schema = {"type": "object", "description": f"level{at}", "properties": {"inner": schema}}
    return schema


def recursive() -> dict[str, Any]:
    node = {"type": "object", "properties": {"left": {"$ref": "#/$defs/node"}, "right": {"$ref": "#/$defs/node"}}}
    return {"type": "object", "properties": {"tree": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}}


def wide() -> dict[str, Any]:
    kinds = {f"kind{at}": {"type": "string", "enum": ["v" * 1_000] * 10} for at in range(20_000)}
    return {"type": "object", "properties": kinds}


def doubling() -> dict[str, Any]:
    """Read along every way, it has 2 ** 200 parts."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(200):
        schema = {"type": "object", "properties": {"a": schema, "b": schema}}
    return schema


@pytest.mark.parametrize("make", [lambda: nested(1_000), recursive, wide, doubling])
def test_large_and_recursive_schemas_come_to_an_end(make: Callable[[], Any]) -> None:
    tools: list[Any] = [Odd(make())]
    assert found("order", tools) == ["order"]
    assert lines(lambda: found("order", [Odd(make())])) < 2_000_000  # type: ignore[list-item]


def test_large_texts_come_to_an_end() -> None:
    tools: list[Any] = [Odd({})]
    tools[0].description = "order " * 200_000 + "y" * 1_000_000
    for text in ("order " * 200_000, "y" * 1_000_000, "Yy" * 500_000, "order. " * 100_000, "é" * 1_000_000):
        assert found(f"order {text}", tools) == ["order"]
        assert steps(lambda text=text: found(f"order {text}", tools)) < 2_000_000  # type: ignore[misc]


# The page


def test_the_page_has_the_weights() -> None:
    page = (Path(__file__).parents[2] / "docs" / "selection.md").read_text()
    weights = [float(row) for row in re.findall(r"^\| .* \| ([0-9.]+) \|$", page.partition("## keyword")[2], re.M)]
    assert weights == sorted((weight / 10 for weight in WEIGHTS.values()), reverse=True)
