"""`embedding`: what it asks for and how often, what it answers, and what it refuses of an embedding."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import Iterable
from typing import Any

import numpy
import pytest
from catalogue import SHOP, made, names
from hypothesis import given
from hypothesis import strategies as st
from rankers import Embedder, vector

from ferrule import DefinitionError, Tool
from ferrule.selection import Ranker, embedding
from ferrule.selection.embedding import format_tool_text


def found(ranker: Ranker, query: Any, tools: Iterable[Tool] = SHOP, limit: int = 10) -> list[tuple[str, float]]:
    return [(match.tool.name, match.score) for match in ranker.rank(tools, query, limit=limit)]


def selected(ranker: Ranker, messages: Any, tools: Iterable[Tool] = SHOP) -> list[str]:
    return names(asyncio.run(ranker.select(messages, tools)))


def table(**vectors: list[float]) -> Any:
    """An embedding of tools by the names with which their texts begin, and of anything else."""
    return lambda texts: [vectors.get(text.partition(":")[0], vectors.get("asked")) for text in texts]


def test_tools_are_ranked_by_the_direction_of_their_vectors() -> None:
    vectors = {"refund_order": [5, 0], "read_order": [1, 1], "read_parcel": [0, 3], "send_email": [-1, 0]}
    ranker = embedding(table(**vectors, weather=[0, 0], asked=[0.1, 0]))
    assert found(ranker, "x") == [("refund_order", 1.0), ("read_order", 0.707107)]


@pytest.mark.parametrize("form", ["sync", "async", "a function that returns a coroutine"])
async def test_an_embedding_may_be_sync_or_async(form: str) -> None:
    threads: list[bool] = []

    def embed(texts: list[str]) -> list[list[float]]:
        threads.append(threading.current_thread() is threading.main_thread())
        return list(map(vector, texts))

    async def embed_later(texts: list[str]) -> list[list[float]]:
        return embed(texts)

    ranker = embedding({"sync": embed, "async": embed_later}.get(form, lambda texts: embed_later(texts)))
    assert names(await ranker.select("the weather", SHOP))[0] == "weather"
    assert threads == [form == "async"] * 2 or form == "a function that returns a coroutine"
    assert found(ranker, "the weather", limit=8)[0][0] == "weather"  # also inside a running loop
    assert (await asyncio.to_thread(found, ranker, "the weather", limit=8))[0][0] == "weather"


def test_each_tool_and_each_question_is_embedded_once_in_batches() -> None:
    embedder = Embedder()
    ranker = embedding(embedder, batch=2)
    for _ in range(3):
        selected(ranker, "the weather")
        found(ranker, [{"role": "user", "content": "the weather"}])
    assert [len(texts) for texts in embedder.asked] == [2, 2, 1, 1]
    assert embedder.texts == [*map(format_tool_text, SHOP), "the weather"]


def test_only_new_texts_are_embedded() -> None:
    embedder = Embedder()
    ranker = embedding(embedder)
    selected(ranker, "x")
    del embedder.asked[:]
    selected(ranker, "x", SHOP.without("weather"))
    selected(ranker, "x", SHOP.register(made("now", "The time.")))
    selected(ranker, "x", SHOP.register(made("now", "The date.")))
    found(ranker, "x", [made("a", "Same."), made("a", "Same.")])
    assert embedder.asked == [["now: The time."], ["now: The date."], ["a: Same."]]


@pytest.mark.parametrize("form", ["sync", "async"])
async def test_concurrent_questions_embed_the_tools_once(form: str) -> None:
    embedder = Embedder()

    async def slow(texts: list[str]) -> list[list[float]]:
        await asyncio.sleep(0)
        return embedder(texts)

    ranker = embedding(slow if form == "async" else embedder)
    await asyncio.gather(*(ranker.select(f"question {number}", SHOP) for number in range(5)))
    assert len(embedder.texts) == len(SHOP) + 5


def test_without_a_question_or_tools_nothing_is_embedded() -> None:
    embedder = Embedder()
    ranker = embedding(embedder)
    assert found(ranker, "") == found(ranker, []) == found(ranker, "weather", []) == []
    assert selected(ranker, [{"role": "assistant", "content": "Hello."}]) == []
    assert embedder.asked == []


def test_the_text_of_a_tool_has_its_parameters_and_theirs() -> None:
    address = {"type": "object", "properties": {"city": {"type": "string", "description": "A city."}, "zip": {}}}
    schema = {
        "type": "object",
        "properties": {"to": {"description": "Who.", **address}, "by": {"default": {"properties": {"x": {}}}}},
    }
    tool = made("ship", "Ship an order.").replace(input_schema=schema)
    assert format_tool_text(tool) == "ship: Ship an order.\nto: Who.\ncity: A city.\nzip\nby"
    assert len(format_tool_text(made("long", "x" * 50_000))) == 8_000


NOT_VECTORS: list[tuple[Any, str]] = [
    ("text", "returned str; it returns a list"),
    ([[1.0]] * 6, "returned 6 vectors for 5 texts"),
    ([1.0] * 5, "a vector that is no list of numbers: 'float' object is not iterable"),
    (["abc"] * 5, "a vector that is no list of numbers: str"),
    ([[]] * 5, "returned an empty vector"),
    ([[1.0, float("nan")]] * 5, "NaN or infinity"),
    ([[1.0], [1.0, 2.0], [1.0], [1.0], [1.0]], "returned a vector of 2 numbers, and of 1 before"),
]


@pytest.mark.parametrize(("answer", "said"), NOT_VECTORS)
def test_a_wrong_answer_of_an_embedding_names_it(answer: Any, said: str) -> None:
    ranker = embedding(lambda texts: answer, name="my-model")
    with pytest.raises(DefinitionError, match=f"^embedding: my-model .*{said}"):
        ranker.rank(SHOP, "x")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"embed": "model"}, "embed is a function"),
        ({"limit": 0}, "embedding: limit is a whole number"),
        ({"batch": 0}, "embedding: batch is a whole number"),
        ({"cache": "vectors.db", "name": ""}, "a cache needs the model's name"),
    ],
)
def test_wrong_options_are_refused(options: Any, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        embedding(**{"embed": Embedder(), **options})


# numpy and Python


def answers(seed: int, count: int, length: int, limit: int) -> list[list[tuple[str, float]]]:
    """Of vectors near each other, some of them equal, in the way that this interpreter has."""
    numbers = random.Random(seed)
    known = [[numbers.choice((0.5, 1.0, 1.0 + 1e-6, 2.0)) for _ in range(length)] for _ in range(count)]
    tools = [made(f"t{at}") for at in range(count)]
    asked = [[numbers.gauss(1, 0.3) for _ in range(length)] for _ in range(3)]
    vectors = dict(zip([format_tool_text(tool) for tool in tools], known, strict=True))
    vectors |= dict(zip("abc", asked, strict=True))
    ranker = embedding(lambda texts: [vectors[text] for text in texts])
    return [found(ranker, query, tools, limit) for query in "abc"]


@given(st.integers(), st.integers(1, 60), st.integers(1, 8), st.integers(1, 12))
def test_numpy_and_python_give_the_same_answers(seed: int, count: int, length: int, limit: int) -> None:
    assert sys.modules["numpy"] is numpy
    with_numpy = answers(seed, count, length, limit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "numpy", None)
        assert answers(seed, count, length, limit) == with_numpy


def test_arrays_of_numpy_are_vectors() -> None:
    rows = embedding(lambda texts: numpy.array([vector(text) for text in texts], dtype="float32"))
    lists = embedding(Embedder())
    assert found(rows, "the weather of a city") == found(lists, "the weather of a city")
