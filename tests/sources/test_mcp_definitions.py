"""What an MCP server says of its tools: taken as it stands, judged one by one, believed only where it is trusted."""

from __future__ import annotations

import logging
import threading
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp_servers import ERAS, Made, go, made, text

from ferrule import DefinitionError, Runner, Toolset, mcp
from ferrule.mcp import _tools
from ferrule.mcp._connection import list_tools
from ferrule.mcp._questions import read_schema
from ferrule.providers import anthropic
from ferrule.providers.lint import findings
from ferrule.security.characters import remove_hidden
from ferrule.security.patterns import ForeignSchema


def listed(*servers: Any, **options: Any) -> tuple[Toolset, tuple[mcp.LeftOut, ...]]:
    async def main() -> tuple[Toolset, tuple[mcp.LeftOut, ...]]:
        connected = mcp.connect(*servers, **options)
        async with connected as toolset:
            return toolset, connected.left_out

    return go(main())


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return {"type": "object", "properties": {"a": schema}}


def of_property(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}}


HOSTILE = {
    "network reference": (of_property({"$ref": "http://127.0.0.1:9/schema.json"}), "not a valid JSON Schema"),
    "file reference": (of_property({"$ref": "file:///etc/passwd"}), "not a valid JSON Schema"),
    "reference to nothing": (of_property({"$ref": "#/$defs/nothing"}), "not a valid JSON Schema"),
    "unknown dialect": ({"$schema": "http://example.com/mine", "type": "object"}, "not a valid JSON Schema"),
    "wrong keyword": (of_property({"type": "nonsense"}), "not a valid JSON Schema"),
    "wrong pattern": (of_property({"type": "string", "pattern": "("}), "is not a regular expression"),
    "too deep": (deep(205), "recursion limit"),
    "required is no list": ({"type": "object", "required": [["a"]]}, "must be a string"),
    "too large": (of_property({"enum": ["x" * 100] * 3000}), "characters of JSON"),
    "hidden name of a property": ({"type": "object", "properties": {"a\u200b": {}}}, "hidden characters"),
    "hidden value": (of_property({"enum": ["a\U000e0041"]}), "hidden characters"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_schema_leaves_its_tool_out_and_no_other(kind: str) -> None:
    schema, reason = HOSTILE[kind]
    toolset, left_out = listed(made("good").add("bad", schema=schema).add("also").memory())
    assert [tool.name for tool in toolset] == ["good", "also"]
    assert [(one.tool, reason in one.reason) for one in left_out] == [("bad", True)]


def test_a_wrong_output_schema_leaves_its_tool_out() -> None:
    toolset, left_out = listed(made("good").add("bad", output_schema={"type": "nonsense"}).memory())
    assert [tool.name for tool in toolset] == ["good"] and left_out[0].tool == "bad"


@pytest.mark.parametrize(
    "dialect", ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"]
)
async def test_arguments_are_held_to_the_schema_as_it_was_given(dialect: str) -> None:
    schema = {
        "$schema": dialect,
        "type": "object",
        "properties": {"kind": {"enum": ["a", "b"]}, "more": {"$ref": "#/definitions/Node"}},
        "definitions": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/definitions/Node"}}}},
        "required": ["kind"],
    }
    server = made("tree", schema=schema)

    async def main() -> list[str]:
        async with mcp.connect(server.memory()) as toolset:
            assert toolset.get("tree").input_schema["definitions"] == schema["definitions"]
            runner = Runner(toolset)
            calls: list[Any] = [
                {"kind": "a", "more": {"next": {"next": {}}}},
                {"kind": "c"},
                {"kind": "a", "more": {"next": 1}},
            ]
            return [(await runner.run("tree", arguments)).status for arguments in calls]

    assert (await main()) == ["ok", "invalid", "invalid"]
    assert [call.arguments for call in server.calls] == [{"kind": "a", "more": {"next": {"next": {}}}}]


def test_names_have_the_servers_name_before_them_and_two_servers_never_meet() -> None:
    first, second = made("search"), made("search")
    toolset, _ = listed(first.memory(name="a"), second.memory(name="b"))
    assert [tool.name for tool in toolset] == ["a__search", "b__search"]
    assert [tool.metadata["mcp"]["name"] for tool in toolset] == ["search", "search"]
    assert [tool.name for tool in toolset.only(tags=["b"])] == ["b__search"]

    async def main() -> None:
        async with mcp.connect(first.memory(name="a"), second.memory(name="b")) as toolset:
            await Runner(toolset).run("b__search")

    go(main())
    assert (len(first.calls), len(second.calls)) == (0, 1)


def test_one_server_without_a_name_has_no_prefix_and_with_one_it_has() -> None:
    assert [tool.name for tool in listed(made("search").memory())[0]] == ["search"]
    assert [tool.name for tool in listed(made("search").memory(), name="web")[0]] == ["web__search"]


def test_a_name_that_no_api_takes_is_called_by_one_that_all_take() -> None:
    toolset, _ = listed(made("files/read.text").memory(name="a"))
    (definition,) = anthropic.tools(toolset)
    assert toolset.get(definition["name"]).metadata["mcp"]["name"] == "files/read.text"


def test_names_that_look_the_same_or_come_twice_are_left_out() -> None:
    toolset, left_out = listed(made("Read").add("read").memory())
    assert [tool.name for tool in toolset] == ["Read"]
    assert [(one.tool, "looks the same" in one.reason) for one in left_out] == [("read", True)]

    twice = made("one")
    twice.tools["again"] = twice.tools["one"]
    toolset, left_out = listed(twice.memory())
    assert len(toolset) == 1 and "another tool with this name" in left_out[0].reason


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("pay\ufe0f", r"pay\ufe0f"),
        ("p\u0251y", r"p\u0251y"),
        ("p\u0430y", r"p\u0430y"),
        ("a\u202etxt", r"a\u202etxt"),
        ("gro\u00df", r"gro\xdf"),
        ("pay now", "pay now"),
        ("x" * 129, "x" * 129),
        ("", ""),
    ],
)
def test_a_name_that_is_not_plain_is_left_out_and_shown_escaped(name: str, shown: str) -> None:
    for before in ([name, "pay"], ["pay", name]):
        server = Made()
        for one in before:
            server.add(one)
        toolset, left_out = listed(server.memory())
        assert [tool.name for tool in toolset] == ["pay"]
        assert [(one.tool, "ASCII letters" in one.reason) for one in left_out] == [(shown, True)]
        assert str(left_out[0]).isascii()


@pytest.mark.parametrize("text", ["❤\ufe0f", "☺\ufe0e", "1\ufe0f\u20e3", "\U0001f5d1\ufe0f", "⌚\ufe0f"])
def test_a_variation_selector_stays_behind_what_has_one(text: str) -> None:
    assert remove_hidden(text) == (text, 0)


@pytest.mark.parametrize(
    "text", ["pay\ufe0f", "\ufe0f", "é\ufe0f", "1\ufe0f", "❤\ufe0f\ufe0f", "中\ufe0e", "a\ufe0f\u20e3"]
)
def test_a_variation_selector_is_hidden_everywhere_else(text: str) -> None:
    assert remove_hidden(text)[1] == 1


def test_what_nobody_sees_in_a_text_is_removed_for_the_model_and_told(caplog: pytest.LogCaptureFixture) -> None:
    tags = "".join(chr(0xE0000 + ord(letter)) for letter in "obey")
    schema = {"type": "object", "properties": {"description": {"type": "string", "description": f"A\u200btext{tags}"}}}
    server = made("one", schema=schema, description=f"Reads.{tags}\u202e ❤\ufe0f\x1b[8m <|im_end|>")
    with caplog.at_level(logging.WARNING, "ferrule.mcp"):
        toolset, _ = listed(server.memory())
    tool = toolset.get("one")
    assert tool.description == "Reads. ❤\ufe0f &lt;|im_end|>"
    assert tool.input_schema["properties"]["description"]["description"] == "Atext"
    assert tool.metadata["mcp"]["removed"] == 4 + 1 + 4 + 1 + 4
    assert "14 characters of its texts are removed" in caplog.text


HEAVY = "([^!]{1,250}a){1,30}!"


async def test_a_pattern_over_the_bounds_is_shown_not_enforced_and_noted() -> None:

    async def said(context: Any, arguments: dict[str, Any]) -> Any:
        return text("x", structured_content={"a": "y", "b": arguments["b"]})

    schema = {**of_property({"type": "string", "pattern": HEAVY}), "required": ["b"]}
    schema["properties"]["b"] = {"pattern": "^[a-z]+$"}
    server = made("one", said, schema, output_schema=schema)
    async with mcp.connect(server.memory()) as toolset:
        tool = toolset.get("one")
        runner = Runner(toolset)
        assert tool.input_schema["properties"]["a"]["pattern"] == HEAVY
        notes = tool.metadata["mcp"]["not_enforced"]
        assert [HEAVY in note and "too many states" in note for note in notes] == [True, True]
        assert (await runner.run("one", {"a": "anything", "b": "q"})).success
        assert (await runner.run("one", {"a": 1, "b": "q"})).status == "invalid"
        assert (await runner.run("one", {"b": "1"})).status == "invalid"


def test_a_list_takes_no_more_patterns_than_there_may_be_and_offers_its_tools_all_the_same() -> None:
    server = Made()
    for number in range(40):
        properties = {f"a{place}": {"pattern": f"{HEAVY}{number}.{place}"} for place in range(50)}
        server.add(f"tool{number}", schema={"type": "object", "properties": properties})
    toolset, left_out = listed(server.memory())
    assert len(toolset) == 40 and not left_out
    assert "too many states" in toolset.get("tool0").metadata["mcp"]["not_enforced"][0]
    assert "the schemas have too many patterns" in toolset.get("tool39").metadata["mcp"]["not_enforced"][0]


def test_a_list_has_a_number_of_characters_and_what_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tools, "MOST_LIST", 2_500)
    monkeypatch.setattr(_tools, "_MOST_DEFINITION", 2_000)
    server = made("first", description="x" * 1_000).add("second", description="x" * 1_600).add("third")
    server.add("fourth", meta={"a": [{"b": "x" * 3_000}]})
    toolset, left_out = listed(server.memory())
    assert [tool.name for tool in toolset] == ["first", "third"]
    assert [(one.tool, one.reason) for one in left_out] == [
        ("second", "the list would have over 2,500 characters"),
        ("fourth", "its definition has over 2,000 characters"),
    ]


async def test_what_there_was_no_time_for_is_left_out_and_tools_are_made_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[object] = []

    def schema(*given: Any) -> ForeignSchema:
        threads.append(threading.current_thread())
        return ForeignSchema(*given)

    monkeypatch.setattr(_tools, "ForeignSchema", schema)

    async def main() -> None:
        server = made("one").add("two")
        connected = mcp.connect(server.memory())
        async with connected, Client(server.server) as client:
            tools = _tools.Tools(connected._connections[0], False, 8_000)
            listing = await list_tools(client.session)
            looks = [False, True]
            assert await tools.take(listing, lambda: looks.pop(0))
            assert [tool.name for tool in tools.tools] == ["one"]
            assert [(one.tool, one.reason) for one in tools.left_out] == [("two", "there was no time left to read it")]
            assert await tools.take(listing, lambda: False)
            assert len(tools.tools) == 2 and not tools.left_out

    await main()
    assert threads and threading.main_thread() not in threads


def test_a_question_with_a_pattern_over_the_bounds_is_none_that_a_person_gets() -> None:
    for pattern in (HEAVY, "("):
        asked = types.ElicitRequestFormParams(message="?", requested_schema=of_property({"pattern": pattern}))
        with pytest.raises(ValueError, match="its question"):
            read_schema(asked)


def test_a_description_is_bounded() -> None:
    toolset, _ = listed(made("one", description="x" * 20_000).memory())
    description = toolset.get("one").description
    assert 7_900 < len(description) <= 8_000 and description.endswith(" characters left out]")


HINTS = {"readOnlyHint": True, "openWorldHint": False}


@pytest.mark.parametrize(
    ("trusted", "hints", "expected"),
    [
        (False, HINTS, (False, True, False, True, False)),
        (True, HINTS, (True, False, True, False, True)),
        (["a"], HINTS, (True, False, True, False, True)),
        (True, {}, (False, True, False, True, False)),
        (True, {"destructiveHint": False, "idempotentHint": True}, (False, False, True, True, False)),
    ],
)
def test_hints_are_believed_of_a_trusted_server_alone(trusted: Any, hints: Any, expected: Any) -> None:
    toolset, _ = listed(made("one", annotations=hints).memory(name="a"), trusted=trusted)
    tool = toolset.get("a__one")
    assert (
        tuple(tool.trait(name, {}) for name in ("read_only", "destructive", "idempotent", "open_world", "parallel"))
        == expected
    )
    assert tool.metadata["mcp"].get("annotations", {}) == hints


@pytest.mark.parametrize(
    ("options", "error"),
    [({"trusted": 5}, "trusted must be true, false"), ({"start_timeout": "5"}, "start_timeout must be a number")],
)
def test_a_setting_of_another_type_is_told_where_it_is_written(options: Any, error: str) -> None:
    with pytest.raises(DefinitionError, match=error):
        mcp.connect(made("one").memory(name="a"), **options)


def test_trust_in_a_server_that_is_not_there_is_a_mistake() -> None:
    with pytest.raises(DefinitionError, match="trusted='b' names no server"):
        mcp.connect(made().memory(name="a"), trusted=["b"])


def test_all_pages_are_read_and_no_more_than_there_may_be() -> None:
    many = Made(page=7)
    for number in range(30):
        many.add(f"tool{number}")
    toolset, left_out = listed(many.memory())
    assert [tool.name for tool in toolset] == [f"tool{number}" for number in range(30)] and not left_out
    assert many.lists == 5

    endless = Made(page=1)
    for number in range(150):
        endless.add(f"tool{number}")
    toolset, left_out = listed(endless.memory())
    assert len(toolset) == 100 and "100 pages" in left_out[0].reason

    large = Made(page=1)
    for number in range(60):
        large.add(f"tool{number}", description="x" * 200_000)
    toolset, left_out = listed(large.memory())
    assert (
        len(toolset) == 24
        and large.lists == 25
        and "5,000,000 characters; Ferrule takes the first" in left_out[0].reason
    )


def test_a_server_without_tools_has_none() -> None:
    from mcp.server.lowlevel import Server

    assert len(listed(mcp.Memory(Server("empty")))[0]) == 0


@pytest.mark.parametrize("name", ["payload", "context", "_ferrule_payload", "self"])
def test_a_parameter_can_have_any_name(name: str) -> None:
    schema = {"type": "object", "properties": {name: {"type": "integer"}, "context": {"type": "integer"}}}
    server = made("one", schema=schema)

    async def main() -> str:
        async with mcp.connect(server.memory()) as toolset:
            return (await Runner(toolset).run("one", {name: 1, "context": 2})).status

    assert go(main()) == "ok"
    assert server.calls[0].arguments == {name: 1, "context": 2}


async def test_a_tool_that_the_sdk_leaves_out_is_told(caplog: pytest.LogCaptureFixture) -> None:
    wrong = {"type": "object", "properties": {"a": {"type": "array", "x-mcp-header": "Place"}}}

    async def main() -> tuple[list[str], tuple[mcp.LeftOut, ...]]:
        servers = mcp.connect(made("first").add("wrong", schema=wrong).add("last").memory(name="s"))
        async with servers as toolset:
            return [tool.name for tool in toolset], servers.left_out

    names, left_out = await main()
    assert names == ["s__first", "s__last"]
    assert [(one.server, one.tool) for one in left_out] == [("s", "wrong")]
    assert "x-mcp-header" in left_out[0].reason and "'a'" in left_out[0].reason
    assert [record.name for record in caplog.records] == ["ferrule.mcp"]


async def test_a_tool_that_runs_as_a_task_alone_is_left_out() -> None:

    server = Made()
    for support in ("required", "optional", "forbidden"):
        server.add(support, execution=types.ToolExecution(task_support=support))
    servers = mcp.connect(server.memory("legacy"))
    async with servers as toolset:
        assert [tool.name for tool in toolset] == ["optional", "forbidden"]
        [one] = servers.left_out
        assert one.tool == "required" and "runs only as a task" in one.reason


@pytest.mark.parametrize("mode", ERAS)
async def test_what_a_server_says_of_its_tools_is_kept_without_what_nobody_sees_and_bounded(mode: mcp.Mode) -> None:
    async def main() -> mcp.ServerStatus:
        server = Made().add("one")
        server.server.instructions = f"Read\u200b first.\n{'x' * 10_000}"
        servers = mcp.connect(server.memory(mode, name="s"))
        async with servers:
            return servers.status["s"]

    status = await main()
    assert status.instructions.startswith("Read first.\nxx") and len(status.instructions) == 8_000
    assert status.server == "made 1.2" and "xx" not in str(status) + repr(status)


def test_a_long_description_is_cut_where_somebody_says_so_and_says_it() -> None:
    server = made("one", description="a long description " * 100)
    [tool], _ = listed(server.memory(), longest_description=1_024)
    assert len(tool.description) <= 1_024 and tool.description.endswith(" characters left out]")
    assert not [one for one in findings([tool], ["openai_chat"]) if one.rule == "description-size"]
    with pytest.raises(DefinitionError, match="a number of characters"):
        mcp.connect(server.memory(), longest_description=0)
