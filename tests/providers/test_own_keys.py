"""What a tool says for one API alone, its examples too, and what of that is refused."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types import ToolParam
from openai.types.responses import FunctionToolParam
from pydantic import TypeAdapter
from test_provider_contract import ALL

from ferrule import DefinitionError, Tool, tool
from ferrule.providers import NAMES, anthropic, gemini, openai_responses


@tool(examples=[{"city": "Rome"}, {"city": "Oslo", "days": 2}])
def weather(city: str, days: int = 1, token: str = "") -> str:
    """The weather."""
    return city


@tool
def plain(a: int) -> int:
    return a


def entry(written: Any) -> dict[str, Any]:
    """The part of the first definition that has the tool's name."""
    first = (written["tools"] if isinstance(written, dict) else written)[0]
    for key in ("function", "toolSpec"):
        first = first.get(key, first)
    found: dict[str, Any] = first.get("functionDeclarations", [first])[0]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_what_is_for_one_api_stands_beside_the_name_in_its_definition_and_in_no_other(name: str) -> None:
    one = plain.replace(provider={name: {"own_key": {"a": [1]}}})
    for other in NAMES:
        written = entry(ALL[other].module.tools([one]))
        assert written.get("own_key") == ({"a": [1]} if other == name else None)
        assert {**written, "own_key": 0} == {**entry(ALL[other].module.tools([plain])), "own_key": 0}


@pytest.mark.parametrize("strict", [False, True])
def test_it_is_there_in_strict_definitions_and_both_apis_of_google(strict: bool) -> None:
    one = plain.replace(provider={"anthropic": {"eager_input_streaming": True}, "gemini": {"behavior": "NON_BLOCKING"}})
    assert entry(anthropic.tools([one], strict=strict))["eager_input_streaming"] is True
    assert entry(gemini.tools([one]))["behavior"] == entry(gemini.tools([one], api="interactions"))["behavior"]


def test_the_sdk_takes_what_is_written() -> None:
    own = {
        "anthropic": {"allowed_callers": ["direct"], "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        "openai_responses": {"allowed_callers": ["direct"]},
    }
    one = weather.replace(provider=own)
    TypeAdapter(ToolParam).validate_python(anthropic.tools([one])[0])
    TypeAdapter(FunctionToolParam).validate_python(openai_responses.tools([one])[0])


def test_a_cache_mark_of_the_tools_own_is_left_as_it_is() -> None:
    own = plain.replace(provider={"anthropic": {"cache_control": {"type": "ephemeral", "ttl": "1h"}}})
    assert anthropic.tools([own], cache=True)[0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert anthropic.tools([plain], cache=True)[0]["cache_control"] == {"type": "ephemeral"}


@pytest.mark.parametrize("api", [anthropic, openai_responses], ids=["anthropic", "openai_responses"])
def test_a_tool_that_says_itself_that_it_is_deferred_stands_behind_the_others(api: Any) -> None:
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


def test_examples_reach_the_api_that_takes_them_and_no_other() -> None:
    for name in NAMES:
        written = entry(ALL[name].module.tools([weather]))
        assert ("Oslo" in str(written)) is (name == "anthropic")
    assert entry(anthropic.tools([weather]))["input_examples"] == [{"city": "Rome"}, {"city": "Oslo", "days": 2}]
    assert "input_examples" not in entry(anthropic.tools([plain]))


def test_examples_show_nothing_that_is_bound() -> None:
    assert entry(anthropic.tools([weather.bind(days=3)]))["input_examples"] == [{"city": "Rome"}, {"city": "Oslo"}]


@pytest.mark.parametrize("how", ["deferred", "provider"])
def test_with_a_deferred_tool_there_are_no_examples_as_the_two_are_refused_together(how: str) -> None:
    later = plain if how == "deferred" else plain.replace(provider={"anthropic": {"defer_loading": True}})
    written = anthropic.tools([weather, later], deferred=["plain"] if how == "deferred" else ())
    assert [("input_examples" in one) for one in written] == [False, False]
    assert "input_examples" in anthropic.tools([weather])[0]


SAID = [
    *(("name", "an option of the tool"), ("description", "an option of the tool"), ("type", "leave it out")),
    *(("input_schema", "the tool's schema"), ("parameters", "the tool's schema")),
    *(("input_examples", "examples=… of the tool"), ("strict", r"strict=… of tools\(…\)")),
]


@pytest.mark.parametrize(("key", "said"), SAID)
def test_what_a_definition_says_itself_is_refused_with_the_place_for_it(key: str, said: str) -> None:
    one = plain.replace(provider={"anthropic": {key: "x"}})
    with pytest.raises(DefinitionError, match=rf"tool 'plain': .*'anthropic'.*{key!r}.*{said}"):
        anthropic.tools([one])
    assert openai_responses.tools([one]) == openai_responses.tools([plain])


def test_what_was_written_before_is_not_changed_by_what_is_written_later() -> None:
    one: Tool = weather.replace(provider={"anthropic": {"cache_control": {"type": "ephemeral"}}})
    first = anthropic.tools([one])
    anthropic.tools([one, plain], deferred=["plain"])
    assert first == anthropic.tools([one]) and "input_examples" in first[0]
