"""`strict="where possible"`: as many tools as can be are strict, the others stay plain, and somebody can ask which."""

from __future__ import annotations

from typing import Any

import pytest
from any_schema import tools as any_tool
from apis import ALL
from hypothesis import given
from hypothesis import strategies as st

from ferrule import DefinitionError, Tool, Toolset, build_tool, models
from ferrule.providers import NAMES, cohere
from ferrule.providers.lint import costs, findings, not_strict

WITH_STRICT = ("anthropic", "bedrock", "mistral", "openai_chat", "openai_responses")
OPEN = {"type": "object", "additionalProperties": {"type": "integer"}}


def tool_with(name: str, **parameters: Any) -> Tool:
    schema = {
        "type": "object",
        "properties": parameters,
        "required": [key for key in parameters if key != "optional"],
        "additionalProperties": False,
    }
    definition = {"name": name, "description": "Do it.", "input_schema": schema, "execute": lambda payload: payload}
    return build_tool(definition)


GOOD = [tool_with(f"good_{number}_x", x={"type": "string"}) for number in range(3)]
ODD = tool_with("odd", x=OPEN)


def strict_names(api: Any, tools: Any, **more: Any) -> list[str]:
    written = api.definitions(Toolset(tools), strict="where possible", **more)
    return [item["name"] for item in written if item.get("strict")]


@pytest.mark.parametrize("name", ALL)
def test_a_tool_that_can_be_is_strict_and_another_is_sent_plain(name: str) -> None:
    api, provider = ALL[name], "gemini" if name == "interactions" else name
    tools = [GOOD[0], ODD, GOOD[1]]
    plain = {item["name"]: item for item in api.definitions(Toolset(tools))}
    written = {item["name"]: item for item in api.definitions(Toolset(tools), strict="where possible")}
    left = not_strict(tools, provider)
    assert strict_names(api, tools) == ([tool.name for tool in (GOOD[0], GOOD[1])] if name in WITH_STRICT else [])
    if name in WITH_STRICT:
        assert left.keys() == {"odd"} and "$.properties.x" in left["odd"]
        alone = {item["name"]: item for item in api.definitions(Toolset(GOOD[:2]), strict=True)}
        assert {key: item for key, item in written.items() if key != "odd"} == alone
        assert written["odd"] == plain["odd"]
    elif provider != "cohere":
        assert written == plain and left == dict.fromkeys(plain, "it has no strict mode for single tools")


@pytest.mark.parametrize("name", ["anthropic", "bedrock"])
def test_one_more_tool_changes_none_of_the_first_strict_ones(name: str) -> None:
    many = [tool_with(f"tool_{number}_x", x={"type": "string"}) for number in range(25)]
    first = strict_names(ALL[name], many[:20])
    assert first == [tool.name for tool in many[:20]] == strict_names(ALL[name], many)
    assert strict_names(ALL[name], many, deferred=["tool_0_x"]) == [*first[1:], first[0]]
    left = not_strict(many, name)
    assert [*left] == [tool.name for tool in many[20:]]
    assert left["tool_20_x"] == "with it the request would have 21 strict tools, and takes 20"


def test_cohere_is_strict_for_all_tools_or_for_none() -> None:
    fits, mixed = Toolset(GOOD), Toolset([*GOOD, tool_with("odd", optional={"type": "string"})])
    assert cohere.tools(fits, strict="where possible") == cohere.tools(fits, strict=True)
    assert cohere.tools(mixed, strict="where possible") == cohere.tools(mixed)
    assert [cohere.strict_tools(each, "where possible") for each in (fits, mixed)] == [True, False]
    assert not_strict(fits, "cohere") == {}
    left = not_strict(mixed, "cohere")
    assert [*left] == [tool.name for tool in mixed]
    assert "at least one has to be required" in left["odd"] and "'odd' cannot be" in left[GOOD[0].name]


@pytest.mark.large
@given(tools=st.lists(any_tool(), max_size=3), name=st.sampled_from(sorted(ALL)))
def test_no_tool_is_refused_for_being_strict_where_possible(tools: list[Tool], name: str) -> None:
    api = ALL[name]
    given = [tool.replace(name=f"tool_{number}") for number, tool in enumerate(tools)]
    try:
        api.definitions(given)
    except DefinitionError:
        return
    assert [item["name"] for item in api.definitions(given, strict="where possible")] == [tool.name for tool in given]


def test_lint_notes_what_stays_plain_and_counts_what_is_sent() -> None:
    tools = [*GOOD, ODD]
    found = [one for one in findings(tools, NAMES, "where possible") if one.rule.startswith("strict")]
    assert {one.level for one in found} == {"note"}
    assert {one.tool for one in found if one.provider == "anthropic"} == {"odd"}
    assert {one.provider for one in found} == {*NAMES} - {"cohere"}
    [good, *_, odd] = costs(tools, ["anthropic", "ollama"], "where possible")
    [strict, *_], [*_, plain] = costs(GOOD, ["anthropic"], True), costs(tools, ["anthropic", "ollama"])
    assert good.tokens["anthropic"] == strict.tokens["anthropic"] and odd.tokens == plain.tokens
    with pytest.raises(DefinitionError, match="no provider 'claude'"):
        not_strict(tools, "claude")


def test_a_model_decides_for_the_tools_of_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "dummy")
    monkeypatch.setenv("CO_API_KEY", "dummy")
    loose = tool_with("loose", optional={"type": "string"})
    for model, odd in (
        (models.Anthropic("m", strict="where possible"), ODD),
        (models.Cohere("m", strict="where possible"), loose),
    ):
        for later in (None, ()):
            request = model.request([], Toolset([*GOOD, odd]), {}, later)
            assert len(request["tools"]) == 4 and "strict_tools" not in request
        assert all(tool.get("strict") for tool in request["tools"][:3]) is isinstance(model, models.Anthropic)
    assert models.Cohere("m", strict="where possible").request([], Toolset(GOOD), {}, None)["strict_tools"] is True
