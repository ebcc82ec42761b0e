"""What a tool says for one API alone, its examples too, and what of that is refused."""

from __future__ import annotations

from typing import Any

import pytest
from apis import ALL

from ferrule import DefinitionError, Tool, tool
from ferrule.providers import NAMES, anthropic, openai_responses


@tool(examples=[{"city": "Rome"}, {"city": "Oslo", "days": 2}])
def weather(city: str, days: int = 1, token: str = "") -> str:
    """The weather."""
    return city


@tool
def plain(a: int) -> int:
    return a


def first_definition(name: str, *tools: Tool, **options: Any) -> dict[str, Any]:
    return ALL[name].definitions(tools, **options)[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_key_for_one_api_is_in_its_definition_and_in_no_other(name: str) -> None:
    one = plain.replace(provider={name: {"own_key": {"a": [1]}}})
    assert name != "anthropic" or first_definition(name, one, strict=True)["own_key"] == {"a": [1]}
    assert name != "gemini" or first_definition("interactions", one)["own_key"] == {"a": [1]}
    for other in NAMES:
        written = first_definition(other, one)
        assert written.get("own_key") == ({"a": [1]} if other == name else None)
        assert {**written, "own_key": 0} == {**first_definition(other, plain), "own_key": 0}


def test_a_cache_mark_of_the_tool_itself_stays() -> None:
    own = plain.replace(provider={"anthropic": {"cache_control": {"type": "ephemeral", "ttl": "1h"}}})
    assert anthropic.tools([own], cache=True)[0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert anthropic.tools([plain], cache=True)[0]["cache_control"] == {"type": "ephemeral"}


@pytest.mark.parametrize("api", [anthropic, openai_responses], ids=["anthropic", "openai_responses"])
def test_a_tool_that_defers_itself_stands_behind_the_others(api: Any) -> None:
    name = api.__name__.rpartition(".")[2]
    waiting = plain.replace(name="waiting", provider={name: {"defer_loading": True}})
    told = plain.replace(name="told")
    written = api.tools([waiting, plain, told], deferred=["told"])
    assert [(one["name"], one.get("defer_loading", False)) for one in written] == [
        ("plain", False),
        ("waiting", True),
        ("told", True),
    ]
    assert waiting.provider[name] == {"defer_loading": True}


def test_examples_hide_bound_values() -> None:
    assert first_definition("anthropic", weather.bind(days=3))["input_examples"] == [{"city": "Rome"}, {"city": "Oslo"}]


@pytest.mark.parametrize("how", ["deferred", "provider"])
def test_beside_a_deferred_tool_there_are_no_examples(how: str) -> None:
    later = plain if how == "deferred" else plain.replace(provider={"anthropic": {"defer_loading": True}})
    written = anthropic.tools([weather, later], deferred=["plain"] if how == "deferred" else ())
    assert [("input_examples" in one) for one in written] == [False, False]
    assert "input_examples" in anthropic.tools([weather])[0]


@pytest.mark.parametrize("key", ["name", "description", "type", "input_schema", "input_examples", "strict"])
def test_a_key_of_ferrules_own_is_refused_with_its_place(key: str) -> None:
    one = plain.replace(provider={"anthropic": {key: "x"}})
    with pytest.raises(DefinitionError, match=rf"tool 'plain': .*'anthropic'.*{key!r}"):
        anthropic.tools([one])
