"""Exporting many tools is little work for each, and a schema that is sent unread is sent as if it had been read."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Annotated, Any, Literal

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pydantic import BaseModel
from test_plain import ALL, Schema, made, sent, taking

from ferrule import Field, Tool, Toolset
from ferrule.errors import DefinitionError
from ferrule.providers import anthropic, bedrock, cohere, gemini, mistral, ollama, openai_chat, openai_responses
from steps import steps


class Address(BaseModel):
    street: str = Field(description="Street and number")
    country: Literal["de", "fr"] = "de"


class Line(BaseModel):
    sku: str = Field(pattern="^[A-Z0-9-]+$")
    count: int = Field(ge=1, le=100)
    price: float | None = None


async def order(
    customer: str,
    address: Address,
    lines: list[Line],
    when: datetime,
    note: Annotated[str | None, Field(description="For the driver")] = None,
) -> str:
    """Place an order."""
    return ""


MOST = {
    **dict.fromkeys([anthropic, openai_chat, openai_responses, mistral, cohere], 350),
    **dict.fromkeys([bedrock, gemini, ollama], 1_000),
}


@pytest.mark.parametrize("module", MOST, ids=lambda module: module.__name__.rpartition(".")[2])
def test_exporting_a_tool_for_the_first_time_calls_few_functions(module: Any) -> None:
    of_one, of_many = (Toolset(Tool(f"order_{n}", order) for n in range(number)) for number in (1, 21))
    module.tools(Toolset([Tool("another", order)]))  # what is made once for all
    assert (steps(lambda: module.tools(of_many)) - steps(lambda: module.tools(of_one))) / 20 < MOST[module]


def test_a_schema_is_read_once_for_all_apis_that_take_it_as_it_is() -> None:
    toolset = Toolset(Tool(f"order_{number}", order) for number in range(20))
    anthropic.tools(toolset)
    for module in (openai_chat, openai_responses, mistral, cohere):
        assert steps(lambda of=module: of.tools(toolset)) / 20 < 120, module


def schemas() -> st.SearchStrategy[Any]:
    """Schemas of which most are sent as they are, and some say what a provider refuses."""
    of = st.fixed_dictionaries
    text = of(
        {"type": st.just("string")}, optional={"pattern": st.sampled_from(["^a", "(?=a)a"]), "description": WORDS}
    )
    number = of({"type": st.sampled_from(["integer", "number"])}, optional={"minimum": st.just(0), "title": WORDS})
    odd: list[Any] = [{}, True, False, {"const": 1}, {"enum": ["a", None]}, {"type": "array"}, {"type": "object"}]
    references = st.sampled_from(["A", "B", "gone"]).map(lambda name: {"$ref": f"#/$defs/{name}"})
    return st.recursive(st.one_of(text, number, st.sampled_from(odd), references), holding, max_leaves=5)


WORDS = st.sampled_from(["", "words"])


def holding(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    of = st.fixed_dictionaries
    kinds = st.sampled_from(["array", ["array", "null"], "string"])
    array = of({"type": kinds}, optional={"items": inner, "minItems": st.just(1), "default": st.just([])})
    return st.one_of(array, objects(inner), of({"anyOf": st.lists(inner, min_size=1, max_size=3)}))


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    return st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(st.sampled_from(["a", "an odd name"]), inner)},
        optional={"additionalProperties": st.booleans() | inner, "required": st.just(["a"]), "description": WORDS},
    )


def anchored(node: Any) -> Any:
    """The same schema with an anchor at each place, which no API is sent."""
    if isinstance(node, list):
        return [anchored(item) for item in node]
    if not isinstance(node, dict):
        return node
    inside = {
        key: anchored(item) if key in ("items", "anyOf", "additionalProperties") else item for key, item in node.items()
    }
    for key in ("properties", "$defs"):
        if key in node:
            inside[key] = {name: anchored(item) for name, item in node[key].items()}
    return {**inside, "$anchor": f"n{next(NUMBERS)}"}


NUMBERS = iter(range(10**9))


def outcome(module: Any, schema: Schema) -> Any:
    try:
        subject = made(schema)
    except DefinitionError:
        assume(False)
        raise
    try:
        found = sent(module, subject)
    except DefinitionError as error:
        return str(error)
    return json.loads(re.sub(r'(, )?\\?"\$anchor\\?": \\?"n\d+\\?"', "", json.dumps(found)))


@ALL
@given(root=objects(schemas()), definitions=st.fixed_dictionaries({}, optional={"A": schemas(), "B": schemas()}))
@example(root=taking(a={"$ref": "#/$defs/A"}), definitions={"A": taking(a={"$ref": "#/$defs/A"})})
@example(root=taking(), definitions={"unused": {}})
def test_what_is_sent_unread_is_what_rewriting_gives(module: Any, root: Schema, definitions: Schema) -> None:
    """But for a definition that nothing leads to but itself, which may stay."""
    used = {name: {"$ref": f"#/$defs/{name}"} for name in definitions if name != "unused"}
    schema = {**root, "properties": {**root["properties"], **used}, "$defs": definitions} if definitions else root
    assert outcome(module, schema) == outcome(module, anchored(schema))
