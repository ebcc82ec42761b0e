"""What leaves each SDK is what Ferrule wrote, apart from the order of keys and filled-in defaults."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.models.cases import Case, each, serving, tools

from ferrule import Runner, Toolset, build_tool
from ferrule.loop import run

pytestmark = pytest.mark.slow
HISTORY = {"openai": "input", "gemini": "contents", "vertex": "contents"}
NOT_STRICT = ("gemini", "vertex", "ollama")
PAIR = {
    "type": "object",
    "properties": {"key": {"type": "string"}, "any_of": {"type": "boolean"}, "camelCase": {"type": "null"}},
    "required": ["key", "any_of", "camelCase"],
    "additionalProperties": False,
}
SCHEMA = {
    "type": "object",
    "title": "Order",
    "properties": {
        "count": {"type": "integer", "minimum": 1, "maximum": 10, "default": 1},
        "weight": {"type": "number", "multipleOf": 0.5, "exclusiveMinimum": 0.0},
        "name": {"type": "string", "pattern": "^a", "maxLength": 5, "examples": ["q"]},
        "kind": {"enum": ["a", "b", None]},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}], "description": "A ☃ union."},
        "pairs": {"type": "array", "items": {"$ref": "#/$defs/Pair"}, "minItems": 1},
    },
    "required": ["count", "pairs"],
    "additionalProperties": False,
    "$defs": {"Pair": PAIR},
}
ORDER = build_tool(
    {"name": "order", "description": "Order ☃.", "input_schema": SCHEMA, "execute": lambda payload, context: payload}
)


def rename_schema(value: Any) -> None:
    """As google-genai says it to generateContent."""
    for tool in value if isinstance(value, list) else ():
        for declaration in tool.get("functionDeclarations", ()):
            declaration["parameters_json_schema"] = declaration.pop("parametersJsonSchema")


def add_defaults(value: Any) -> None:
    """As mistralai says a turn of the model."""
    for message in value:
        if message.get("role") == "assistant" and "tool_calls" in message:
            message.setdefault("prefix", False)
            message["tool_calls"] = [{"type": "function", "index": 0, **call} for call in message["tool_calls"]]


CHANGES: dict[str, Callable[[Any], None]] = {
    "gemini": rename_schema,
    "vertex": rename_schema,
    "mistral": add_defaults,
}
"""Of these SDKs the keys of an object may come in another order as well."""


def assert_sent(case: Case, sent: Any, given: Any) -> None:
    given = json.loads(json.dumps(given, default=dict))
    if case.name in CHANGES:
        CHANGES[case.name](given)
        assert sent == given
    else:
        assert json.dumps(sent) == json.dumps(given)  # in the same order, too


@each()
@pytest.mark.parametrize("stream", [True, False])
async def test_an_sdk_sends_tools_and_messages_as_ferrule_wrote_them(case: Case, stream: bool) -> None:
    strict = {} if case.name in NOT_STRICT else {"strict": True}
    with serving(case) as (api, address):
        async with case.model("model-1", base_url=address, stream=stream, **strict) as model:
            messages = (await run(model, model.user("How heavy is it?"), Runner(tools([])))).messages
            api.turns.append(api.turns[-1])
            await model(model.user("Order."), Toolset([ORDER]))
    bodies = [request.body for request in api.requests]
    history = bodies[1][HISTORY.get(case.name, "messages")]
    assert_sent(case, history, messages[: len(history)])
    sent = bodies[2].get("tools") or bodies[2]["toolConfig"]["tools"]
    written = case.provider.tools(Toolset([ORDER]), **strict)
    assert_sent(case, sent, written["tools"] if isinstance(written, dict) else written)
