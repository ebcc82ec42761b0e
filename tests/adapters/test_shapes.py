"""Tools from definitions in the formats of model APIs and MCP, with a handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, Field

from ferrule import DefinitionError, Runner, Tool, ToolContext, build_tool
from ferrule.guards import ask_before_changes
from ferrule.providers import anthropic, openai_chat, openai_responses

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}},
    "required": ["city"],
    "additionalProperties": False,
}
CHAT = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather.", "parameters": SCHEMA, "strict": True},
}
RESPONSES = {
    "type": "function",
    "name": "weather",
    "description": "The weather.",
    "parameters": SCHEMA,
    "strict": False,
}
ANTHROPIC = {"name": "weather", "description": "The weather.", "input_schema": SCHEMA, "type": "custom"}
MCP = {"name": "weather", "description": "The weather.", "inputSchema": SCHEMA}
BEDROCK = {"toolSpec": {"name": "weather", "description": "The weather.", "inputSchema": {"json": SCHEMA}}}
DECLARATION = {"name": "weather", "description": "The weather.", "parametersJsonSchema": SCHEMA}
GEMINI = {"functionDeclarations": [DECLARATION]}
SHAPES = {"chat": CHAT, "responses": RESPONSES, "anthropic": ANTHROPIC, "mcp": MCP}
SHAPES |= {"bedrock": BEDROCK, "gemini": GEMINI, "declaration": DECLARATION}


def weather(city: str, days: int = 1) -> str:
    return f"{city}: {days}"


def of_payload(payload: dict[str, Any]) -> str:
    return f"{payload['city']}: {payload.get('days', 1)}"


async def of_both(payload: dict[str, Any], context: ToolContext) -> str:
    return of_payload(payload)


HANDLERS = (weather, of_payload, of_both, weather, weather, of_both, weather)


@pytest.mark.parametrize(("shape", "handler"), [*zip(SHAPES, HANDLERS, strict=True)])
def test_a_definition_and_a_handler_make_a_tool(shape: str, handler: Callable[..., Any]) -> None:
    made = build_tool(SHAPES[shape], handler)
    assert (made.name, made.description, made.input_schema) == ("weather", "The weather.", SCHEMA)
    assert (made.read_only, made.parallel, made.ask) == (False, False, False)
    runner = Runner([made])
    assert runner.run_sync("weather", {"city": "Rome"}).output == "Rome: 1"
    assert runner.run_sync("weather", {"city": "Rome", "days": "much"}).status == "invalid"
    assert runner.run_sync("weather", {"town": "Rome"}).status == "invalid"


def test_several_functions_of_gemini_are_given_one_by_one() -> None:
    with pytest.raises(DefinitionError, match="each function of 'functionDeclarations' by itself"):
        build_tool({"functionDeclarations": [DECLARATION, {**DECLARATION, "name": "other"}]}, weather)


def test_options_beside_a_definition_apply_to_the_tool() -> None:
    made = build_tool(MCP, handler=weather, read_only=True, timeout=3, description="Other.")
    assert (made.read_only, made.parallel, made.timeout, made.description) == (True, True, 3.0, "Other.")


def test_a_definition_goes_back_to_its_api_unchanged() -> None:
    assert openai_chat.tools([build_tool(CHAT, weather)], strict=False) == [
        {"type": "function", "function": {key: CHAT["function"][key] for key in ("name", "description", "parameters")}}  # type: ignore[index]
    ]
    assert openai_responses.tools([build_tool(RESPONSES, weather)]) == [RESPONSES]
    assert anthropic.tools([build_tool(ANTHROPIC, weather)]) == [
        {key: ANTHROPIC[key] for key in ("name", "description", "input_schema")}
    ]


def test_options_of_one_api_go_into_provider() -> None:
    cached = {"cache_control": {"type": "ephemeral"}, "eager_input_streaming": True}
    made = build_tool({**ANTHROPIC, **cached, "defer_loading": True, "input_examples": [{"city": "Rome"}]}, weather)
    assert made.provider == {"anthropic": {**cached, "defer_loading": True}}
    assert made.examples == ({"city": "Rome"},)
    assert build_tool({**RESPONSES, "defer_loading": True}, weather).provider == {
        "openai_responses": {"defer_loading": True}
    }
    chat = {**CHAT, "cache_control": {"type": "ephemeral"}}
    assert build_tool(chat, weather).provider == {"openai_chat": {"cache_control": {"type": "ephemeral"}}}


@pytest.mark.parametrize(
    "hints", [{"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}, None]
)
async def test_hints_of_a_definition_do_not_skip_the_question(hints: Any) -> None:
    made = build_tool({**MCP, "annotations": hints}, weather)
    assert (made.read_only, made.destructive, made.idempotent, made.open_world) == (False, True, False, True)
    assert made.metadata == {"annotations": hints}
    guarded = Runner([made], guards=[ask_before_changes])
    assert (await guarded.run("weather", {"city": "Bern", "days": 1})).status == "denied"


@pytest.mark.parametrize("own", ["is_read_only", "is_concurrency_safe", "ask", "timeout", "guards", "private"])
def test_a_definition_cannot_set_options_of_the_handler(own: str) -> None:
    nested = {**CHAT, "function": {**CHAT["function"], own: True}}  # type: ignore[dict-item]
    for definition in (nested, {**MCP, own: True}):
        with pytest.raises(DefinitionError, match=rf"has '{own}', which describes the handler"):
            build_tool(definition, weather)


def test_other_fields_of_mcp_become_metadata() -> None:
    made = build_tool(
        {**MCP, "title": "Weather", "_meta": {"a": 1}, "icons": [], "outputSchema": {"type": "string"}}, weather
    )
    assert (made.title, made.output_schema) == ("Weather", {"type": "string"})
    assert made.metadata == {"_meta": {"a": 1}, "icons": [], "title": "Weather"}
    assert build_tool({**MCP, "annotations": {"title": "From hints"}}, weather).title == "From hints"


def test_a_definition_may_be_an_mcp_object() -> None:
    class Listed(BaseModel):
        name: str
        input_schema: dict[str, Any] = Field(serialization_alias="inputSchema")
        annotations: dict[str, Any] | None = None
        meta: dict[str, Any] | None = Field(None, serialization_alias="_meta")

    made = build_tool(Listed(name="weather", input_schema=SCHEMA, annotations={"readOnlyHint": True}), weather)
    assert (made.name, made.input_schema, made.read_only) == ("weather", SCHEMA, False)
    assert made.metadata == {"annotations": {"readOnlyHint": True}}


NOTHING_RUNS = r"'weather' has no 'execute'.*build_tool\(definition, handler\)"
WRONG: list[tuple[Callable[[], Any], str]] = [
    *((lambda one=one: build_tool(one), NOTHING_RUNS) for one in SHAPES.values()),
    (lambda: Runner([CHAT]), r"build_tool\(definition, handler\)"),
    (lambda: build_tool({**MCP, "inputShema": SCHEMA}, weather), "no option 'inputShema'"),
    (lambda: Tool("weather", MCP), "handler, or execute, must be a function"),  # type: ignore[arg-type]
    (lambda: build_tool(weather, CHAT), r"takes a definition as a dict, not <function"),  # type: ignore[arg-type]
    (lambda: build_tool({**ANTHROPIC, "execute": of_payload}, weather), "an 'execute' beside the handler; leave"),
    (lambda: build_tool({"type": "function", "function": {"parameters": SCHEMA}}, weather), "has no 'name'"),
    (lambda: build_tool({"type": "web_search_20260209", "name": "web_search"}, weather), "is not of a function"),
    (lambda: build_tool({**MCP, "input_schema": SCHEMA}, weather), "'inputSchema' and 'input_schema' say the same"),
    (lambda: build_tool({**ANTHROPIC, "cache_control": {}, "provider": {}}, weather), "'cache_control' stands beside"),
    (lambda: build_tool({**ANTHROPIC, "input_examples": [{"town": "Rome"}]}, weather), "the example .* does not fit"),
]  # fmt: skip


@pytest.mark.parametrize(("define", "said"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_definition_raises_with_the_remedy(define: Callable[[], Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        define()
