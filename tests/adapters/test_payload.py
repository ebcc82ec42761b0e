"""Functions with their own JSON Schema take the whole payload, or a parameter for each property."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import DefinitionError, Runner, Tool, ToolContext, ToolResult, Toolset, build_tool

PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
PARIS = {"city": "Paris", "days": 3}


def run(made: Tool, arguments: Mapping[str, object] = PARIS) -> ToolResult:
    return Runner([made]).run_sync(made.name, arguments, ToolContext(session="s"))


def weather(city: str, days: int) -> str:
    return f"{city} {days}"


def of_payload(payload: Any, context: ToolContext) -> str:
    return f"{payload['city']} {payload['days']}" if context.session == "s" else ""


def with_named_context(city, days, ctx):  # type: ignore[no-untyped-def]
    return weather(city, days) if ctx.session == "s" else ""


class Weather:
    def forecast(self, city, days):  # type: ignore[no-untyped-def]
        return weather(city, days)

    def execute(self, payload):  # type: ignore[no-untyped-def]
        return weather(**payload)


@pytest.mark.parametrize(
    "function",
    [
        weather,
        lambda *, city, days: weather(city, days),
        with_named_context,
        lambda **payload: weather(**payload),
        of_payload,
        lambda *given: of_payload(*given),
        functools.partial(weather),
        Weather().forecast,
        Weather().execute,
    ],
)
def test_a_function_gets_the_payload_or_its_properties(function: Callable[..., Any]) -> None:
    assert run(Tool("weather", function, input_schema=PLACE)).output == "Paris 3"
    definition = {"name": "weather", "execute": function, "input_schema": PLACE, "check_permissions": lambda p: None}
    assert run(build_tool(definition)).output == "Paris 3"


def test_an_optional_property_needs_a_default() -> None:
    optional = {**PLACE, "required": ["city"]}
    with pytest.raises(DefinitionError, match=r"called with city, it says .*'days'"):
        Tool("weather", weather, input_schema=optional)
    days = {"type": "integer", "default": 2}
    filled = {**optional, "properties": {**PLACE["properties"], "days": days}}
    assert run(Tool("weather", weather, input_schema=filled), {"city": "Paris"}).output == "Paris 2"


def test_an_open_schema_needs_a_parameter_for_other_names() -> None:
    opened = {**PLACE, "additionalProperties": True}
    with pytest.raises(DefinitionError, match="other names"):
        Tool("weather", weather, input_schema=opened)
    assert (
        run(
            Tool("weather", lambda city, days, **more: weather(city, days), input_schema=opened),
            {**PARIS, "x": 1},
        ).output
        == "Paris 3"
    )


NAMES = st.sampled_from(["a", "b", "c", "payload", "context", "self_"])


@given(st.lists(NAMES, unique=True, max_size=4), st.lists(NAMES, unique=True, max_size=4), st.sets(NAMES))
def test_an_accepted_function_can_be_called_with_every_valid_payload(
    parameters: list[str], properties: list[str], optional: set[str]
) -> None:
    ordered = sorted(parameters, key=lambda name: name in optional)
    written = ", ".join(f"{name}=None" if name in optional else name for name in ordered)
    function = eval(f"lambda {written}: dict(locals())")
    schema = {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in properties},
        "required": [name for name in properties if name not in optional],
    }
    try:
        made = Tool("made", function, input_schema=schema)
    except DefinitionError:
        return
    for sent in (dict.fromkeys(properties, 1), {name: 1 for name in properties if name not in optional}):
        result = run(made, sent)
        assert result.success
        got = {name: value for name, value in dict(result.output).items() if not isinstance(value, ToolContext)}
        whole = [name for name, value in got.items() if value == sent and isinstance(value, dict)]
        first = [name for name in ordered if name != "context"][:1]
        assert whole == first or {name: got.get(name) for name in sent} == sent


def test_a_toolset_refuses_a_method_without_an_instance() -> None:
    for taken in (Weather.forecast, Tool("execute", Weather.execute, input_schema=PLACE)):
        with pytest.raises(DefinitionError, match="taken off its class; take it off an instance"):
            Toolset([taken])


def context_first(ctx: ToolContext, payload: dict[str, Any]) -> str:
    return of_payload(payload, ctx)


def context_before_the_rest(ctx: ToolContext, *payload: Any) -> str:
    return of_payload(payload[0], ctx)


@pytest.mark.parametrize("handler", [context_first, context_before_the_rest])
def test_a_context_may_stand_before_the_payload(handler: Callable[..., str]) -> None:
    result = run(Tool("weather", handler, description="W", input_schema=PLACE))
    assert (result.output, result.error) == ("Paris 3", None)
