"""`keyword` finds tools by each of their fields and by what the conversation is about, and says why."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from catalogue import SHOP, made, names, nothing
from hypothesis import given
from hypothesis import strategies as st

from ferrule import DefinitionError, Tool, Toolset, build_tool
from ferrule.selection import Match, Query, Ranker, keyword
from ferrule.selection._document import WEIGHTS
from ferrule.testing import SelectorContract
from steps import lines, steps


class TestKeyword(SelectorContract):
    def selector(self) -> Ranker:
        return keyword()


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
        ("invoice", described("PDFInvoiceReader")),
        ("invoices", described("tool", "Read an invoice. It has to be paid.")),
        ("what is paid", described("tool", "Read an invoice. It has to be paid.")),
        ("gigantic things", with_schema(size=SIZES)),
        ("the sizes", with_schema(size=SIZES)),
        ("metric", with_schema(unit={"const": "metric"})),
        ("deep", with_schema(inner=NESTED)),
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


def test_only_referenced_definitions_are_read() -> None:
    schema = {
        "type": "object",
        "properties": {"order": {"$ref": "#/$defs/Order"}},
        "$defs": {"Order": NESTED, "Unused": {"type": "string", "description": "What is forgotten."}},
    }
    tool = described("tool", schema=schema)
    assert found("submerged", [*OTHERS, tool]) == ["tool"]
    assert found("forgotten", [*OTHERS, tool]) == []


def test_names_count_more_than_descriptions_and_these_than_parameters() -> None:
    in_name = made("invoice", "x", a="x")
    in_description = made("a", "invoice", x="x")
    in_parameter = made("x", "a", x="invoice")
    assert found("invoice", [in_parameter, in_description, in_name, *OTHERS]) == ["invoice", "a", "x"]


def test_a_short_description_ranks_before_a_long_one() -> None:
    long = made("long", f"Read an invoice. {' '.join(f'word{chr(97 + at)}' for at in range(20))}")
    assert found("read an invoice", [long, made("short", "Read an invoice."), *OTHERS]) == ["short", "long"]


# What is looked for


def test_only_words_of_a_tool_find_it_whatever_their_ending() -> None:
    assert found("refunding") == found("Refunds!") == found("REFUNDED") == ["refund_order"]
    assert found("please give me what you have") == []
    assert found("zxqv wvut") == []
    assert found("") == found([]) == []


def test_a_synonym_counts_less_than_the_word() -> None:
    film, movie = made("list_films", "The films of today."), made("list_movies", "The movies of today.")
    assert found("which movie is on", [film, movie]) == ["list_movies", "list_films"]
    assert found("which film is on", [film, movie]) == ["list_films", "list_movies"]
    scores = {match.tool: match.score for match in keyword().rank([film, movie], "film")}
    assert 0 < scores[movie] < scores[film] / 2


REQUESTS = "Refund order 7, and then email the customer. What is the weather in Oslo? Also where is my parcel"
ORDERS = [made(f"{verb}_order", f"{verb} an order.", ["orders"]) for verb in ("open", "close", "split", "print")]


def test_several_requests_in_one_message_find_each_tool() -> None:
    tools = [*ORDERS, *SHOP]
    assert set(found(REQUESTS, tools, limit=4)) == {"refund_order", "send_email", "weather", "read_parcel"}


def test_a_short_follow_up_is_about_the_message_before() -> None:
    assert found(said("Where is my parcel?", "In Rome.", "and the other one?")) == ["read_parcel"]
    assert found("and the other one?") == []


def test_earlier_messages_count_less_than_the_last() -> None:
    conversation = said("Where is my parcel?", "In Rome.", "How is the weather in that city?")
    matches = keyword().rank(SHOP, conversation)
    assert names(match.tool for match in matches) == ["weather", "read_parcel"]
    assert matches[1].score < matches[0].score / 4


def test_plans_and_results_count_weakly() -> None:
    plan = said("Help her", "I look at the weather first.", "Send an email")
    assert found(plan)[:2] == ["send_email", "weather"]
    result = [{"role": "user", "content": "Send an email"}, {"role": "tool", "content": "The weather is fine."}]
    assert found(result)[:2] == ["send_email", "weather"]
    assert found(result[:1]) == ["send_email"]


# Worked examples


def test_examples_find_a_tool_by_other_words() -> None:
    worked = keyword(examples={"weather": ["Do I need an umbrella in Oslo?", "Is it cold outside?"], "gone": ["x"]})
    assert found("is it cold", ranker=keyword()) == []
    assert found("is it cold", ranker=worked) == ["weather"]
    assert found("refund", ranker=worked) == ["refund_order"]


def test_a_rebuilt_index_has_the_examples_of_its_tools() -> None:
    many = [made(f"tool_{number}") for number in range(200)]
    ranker = keyword(examples={tool.name: ["Book a table"] * 2 for tool in many})
    for start in range(0, 190, 5):  # five come and five go each time, until most numbers are of tools that are gone
        some = many[start : start + 10]
        expected = keyword(examples={tool.name: ["Book a table"] * 2 for tool in some}).rank(some, "book a table")
        assert ranker.rank(some, "book a table") == expected


@pytest.mark.parametrize(
    ("options", "error"),
    [
        *(({"examples": wrong}, "examples are lists of requests by the name of a tool, such as {'get_")
          for wrong in (["weather"], {"weather": "cold"}, {"weather": [1]}, {7: ["cold"]})),
        ({"limit": 0}, "keyword: limit is a whole number from 1, not"),
        *(({"least": wrong}, "least is a share from 0 to 1") for wrong in (1.1, float("nan"), "0.2")),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(options: Any, error: str) -> None:
    with pytest.raises(DefinitionError, match=error):
        keyword(**options)


# Why


def test_explain_names_word_and_field_of_each_part() -> None:
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


# Several toolsets, and threads


def test_a_tool_with_few_words_of_the_query_is_left_out() -> None:
    tools = [
        Tool("convert_money", lambda: None, description="Say what an amount is worth in another currency."),
        Tool("audit_find", lambda: None, description="Find audits of an amount."),
    ]
    query = "convert an amount to another currency"
    assert len(keyword().rank(tools, query)) == 2
    assert [match.tool.name for match in keyword(least=0.2).rank(tools, query)] == ["convert_money"]


def test_dropped_toolsets_and_unused_tools_are_released() -> None:
    ranker = keyword()
    tools = Toolset([made("weather")])
    toolset, tool = weakref.ref(tools), weakref.ref(tools.get("weather"))
    assert found("weather", tools, ranker) == ["weather"]
    del tools
    gc.collect()
    assert toolset() is None
    for at in range(20):
        found("paint", Toolset([made(f"paint_{at}_{other}") for other in range(3)]), ranker)
    gc.collect()
    assert tool() is None


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


@given(st.data())
def test_after_any_changes_it_ranks_as_a_new_one(data: st.DataObject) -> None:
    ranker = keyword(examples=WORKED)
    present = data.draw(TOOLS)
    for _ in range(data.draw(st.integers(1, 6))):
        for tool in data.draw(st.lists(st.sampled_from(POOL), unique=True, max_size=4)):
            present = [one for one in present if one is not tool] if tool in present else [*present, tool]
        query = data.draw(QUERIES)
        tools = Toolset(present) if data.draw(st.booleans()) else list(present)
        assert ranker.rank(tools, query, limit=24) == keyword(examples=WORKED).rank(tools, query, limit=24)


@given(TOOLS, QUERIES)
def test_numpy_and_python_give_the_same_scores(tools: list[Tool], query: str) -> None:
    answers = []
    for way in ("numpy", "Python"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ferrule.selection._index._FEWEST", 1)  # numpy for few tools too
            if way == "Python":
                patch.setattr("ferrule.selection._index.numpy", lambda: None)
            answers.append(keyword(examples=WORKED).rank(tools, query, limit=24))
    assert answers[0] == answers[1]


@given(TOOLS, st.randoms(use_true_random=False), QUERIES, st.integers(1, 24))
def test_the_order_of_the_tools_only_breaks_ties(tools: list[Tool], random: Any, query: str, limit: int) -> None:
    shuffled = random.sample(tools, len(tools))
    one, other = (keyword(examples=WORKED).rank(order, query, limit=24) for order in (tools, shuffled))
    assert dict(one) == dict(other)
    assert other == sorted(other, key=lambda match: (-match.score, shuffled.index(match.tool)))
    assert keyword(examples=WORKED).rank(tools, query, limit=limit) == one[:limit]
    assert all(match.score > 0 for match in one)


@given(TOOLS, QUERIES)
def test_the_parts_of_any_score_add_up(tools: list[Tool], query: str) -> None:
    ranker = keyword(examples=WORKED)
    explained = ranker.explain(tools, query, limit=24)
    assert [why.match for why in explained] == ranker.rank(tools, query, limit=24)
    for why in explained:
        parts = [part.score for part in why.parts]
        assert sum(parts) == pytest.approx(why.match.score, rel=1e-6)
        assert parts == sorted(parts, reverse=True) and parts[-1] > 0


# Whatever it is given

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


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


def nest(levels: int, *keys: str) -> dict[str, Any]:
    """A schema within itself, below each of these keys: read along every way, it has len(keys) ** levels parts."""
    schema: dict[str, Any] = {"type": "string", "description": "the bottom"}
    for _ in range(levels):
        schema = {"type": "object", "properties": dict.fromkeys(keys, schema)}
    return schema


def make_recursive() -> dict[str, Any]:
    node = {"type": "object", "properties": {key: {"$ref": "#/$defs/node"} for key in ("left", "right")}}
    return {"type": "object", "properties": {"tree": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}}


def make_wide() -> dict[str, Any]:
    kinds = {f"kind{at}": {"type": "string", "enum": ["v" * 1_000] * 10} for at in range(20_000)}
    return {"type": "object", "properties": kinds}


@pytest.mark.parametrize("make", [lambda: nest(1_000, "inner"), lambda: nest(200, "a", "b"), make_recursive, make_wide])
def test_large_and_recursive_schemas_come_to_an_end(make: Callable[[], Any]) -> None:
    assert lines(lambda: found("order", [Odd(make())])) < 2_000_000  # type: ignore[list-item]


def test_large_texts_come_to_an_end() -> None:
    tools: list[Any] = [Odd({})]
    tools[0].description = "order " * 200_000 + "y" * 1_000_000
    for text in ("order " * 200_000, "Yy" * 500_000, "order. " * 100_000, "é" * 1_000_000):
        assert steps(lambda text=text: found(f"order {text}", tools)) < 2_000_000  # type: ignore[misc]


# The page


def test_the_page_has_the_weights() -> None:
    page = (Path(__file__).parents[2] / "docs" / "selection.md").read_text()
    weights = [float(row) for row in re.findall(r"^\| .* \| ([0-9.]+) \|$", page.partition("## keyword")[2], re.M)]
    assert weights == sorted((weight / 10 for weight in WEIGHTS.values()), reverse=True)
