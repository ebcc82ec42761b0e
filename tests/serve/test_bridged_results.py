"""What a tool of an MCP server gives reaches the client of a runner that is served again as it came."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mcp_types as wire
import pytest
from connected import ERAS, Person, go, text
from mcp.client import Client
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer

from ferrule import Runner, Text, ToolCall, ToolContext, ToolResult, build_tool, mcp, serve
from ferrule.middleware import cache, limit_output, untrusted

both_eras = pytest.mark.parametrize("era", ERAS)
MODES: tuple[mcp.Mode, ...] = ("auto", "legacy")
OBJECT = {"type": "object"}
LONG = "a long text " * 20


def python_server() -> Server[Any]:
    """As the SDK's own way of writing servers makes one: what is no object is wrapped, `{"result": …}`."""
    server = MCPServer("python")

    @server.tool()
    def greet(name: str) -> str:
        return f"hello {name}"

    @server.tool()
    def names(count: int) -> list[str]:
        return [f"name {number}" for number in range(count)]

    @server.tool()
    def total() -> int:
        return 5

    @server.tool()
    def prices() -> dict[str, float]:
        return {"tea": 2.5}

    @server.tool()
    def rows(count: int) -> list[dict[str, int]]:
        return [{"row": number} for number in range(count)]

    return server._lowlevel_server


def server_of(result: wire.CallToolResult, output_schema: Any = None) -> Server[Any]:
    """A server whose tool `one` gives this."""

    async def list_tools(context: Any, params: Any) -> wire.ListToolsResult:
        reads = wire.ToolAnnotations(read_only_hint=True)
        one = wire.Tool(name="one", input_schema=OBJECT, output_schema=output_schema, annotations=reads)
        return wire.ListToolsResult(tools=[one])

    async def call_tool(context: Any, params: Any) -> wire.CallToolResult:
        return result

    return Server("made", on_list_tools=list_tools, on_call_tool=call_tool)


def bridged(
    server: Server[Any],
    era: str,
    name: str = "one",
    arguments: Any = None,
    *,
    mode: mcp.Mode = "auto",
    times: int = 1,
    **options: Any,
) -> wire.CallToolResult:
    """The last of so many calls of a client that knows the list, which the SDK compares each result with."""

    async def main() -> wire.CallToolResult:
        async with mcp.connect(mcp.Memory(server, mode=mode), trusted=True) as toolset:
            async with Client(serve.mcp(Runner(toolset, **options)).server, mode=era) as client:
                await client.list_tools()
                for _ in range(times - 1):
                    await client.call_tool(name, arguments or {})
                return await client.call_tool(name, arguments or {})

    return go(main())


PYTHON_CALLS: list[tuple[str, dict[str, Any], Any]] = [
    ("greet", {"name": "Ann"}, {"result": "hello Ann"}),
    ("names", {"count": 2}, {"result": ["name 0", "name 1"]}),
    ("names", {"count": 0}, {"result": []}),
    ("total", {}, {"result": 5}),
    ("prices", {}, {"tea": 2.5}),
]


@both_eras
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("name", "arguments", "structured"), PYTHON_CALLS)
def test_what_a_python_server_gives_arrives_as_it_came(
    name: str, arguments: Any, structured: Any, mode: mcp.Mode, era: str
) -> None:
    result = bridged(python_server(), era, name, arguments, mode=mode)
    assert (result.is_error, result.structured_content) == (False, structured)


STRUCTURED: list[tuple[str, wire.CallToolResult]] = [
    ("of a text", wire.CallToolResult(content=[wire.TextContent(text=LONG)], structured_content={"content": LONG})),
    ("in other words", wire.CallToolResult(content=[wire.TextContent(text="warm")], structured_content={"c": 5})),
    ("alone", wire.CallToolResult(content=[], structured_content={"c": [1, None]})),
    (
        "beside an image",
        wire.CallToolResult(
            content=[wire.ImageContent(data="cG5n", mime_type="image/png")], structured_content={"c": True}
        ),
    ),
]


@both_eras
@pytest.mark.parametrize("schema", [OBJECT, None], ids=["told", "not told"])
@pytest.mark.parametrize("given", [pytest.param(given, id=name) for name, given in STRUCTURED])
def test_structured_content_goes_through_as_it_came_whatever_the_content_says(
    given: wire.CallToolResult, schema: Any, era: str
) -> None:
    result = bridged(server_of(given, schema), era)
    assert (result.is_error, result.structured_content) == (False, given.structured_content)
    assert not given.content or result.content == given.content


def test_of_a_kept_result_too() -> None:
    given = STRUCTURED[1][1]
    result = bridged(server_of(given, OBJECT), ERAS[0], times=2, inside=[cache(60)])
    assert (result.is_error, result.structured_content) == (False, {"c": 5})


@both_eras
@pytest.mark.parametrize(
    ("name", "arguments"), [("greet", {"name": LONG}), ("names", {"count": 30}), ("rows", {"count": 300})]
)
@pytest.mark.parametrize("around", [[limit_output(100)], [untrusted], [untrusted, limit_output(100)]])
def test_a_success_that_was_cut_or_wrapped_on_its_way_is_one_still(
    name: str, arguments: Any, around: Any, era: str
) -> None:
    result = bridged(python_server(), era, name, arguments, around=around)
    assert not result.is_error and len(str(result.structured_content)) < 200


def test_what_middleware_has_masked_in_a_text_is_masked_in_the_structured_content() -> None:
    async def mask(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        result: ToolResult = await next(call, context)
        return result.replace(content=[Text(result.text.replace("Ann", "***"))])

    result = bridged(python_server(), ERAS[0], "greet", {"name": "Ann"}, around=[mask])
    assert (result.is_error, result.structured_content) == (False, {"result": "hello ***"})


def test_what_middleware_has_masked_is_not_told_by_the_side_of_other_structured_content() -> None:
    async def mask(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        result: ToolResult = await next(call, context)
        return result.replace(content=[Text("***")])

    given = wire.CallToolResult(
        content=[wire.TextContent(text="Ann")], structured_content={"name": "Ann", "also": "Ann B"}
    )
    result = bridged(server_of(given, OBJECT), ERAS[0], around=[mask])
    assert "Ann" not in str(result.structured_content) + text(result)


@both_eras
@pytest.mark.parametrize(
    "beside", [{LONG * 20: LONG}, {"content": LONG, "more": [[]] * 900}, {"content": {"k" * 900: {}}}]
)
def test_what_is_no_text_of_the_content_does_not_get_by_a_limit(beside: Any, era: str) -> None:
    given = wire.CallToolResult(content=[wire.TextContent(text=LONG)], structured_content=beside)
    schema = {"type": "object", "properties": {"content": {}}}
    result = bridged(server_of(given, schema), era, around=[limit_output(100)])
    assert len(str(result.structured_content)) < 200 and "[cut" in text(result)


async def test_a_handler_of_ones_own_gives_both_as_well() -> None:
    async def execute(payload: Any, context: ToolContext) -> ToolResult:
        return ToolResult(output={"degrees": 5}, content=[Text("five degrees")])

    made = {"name": "one", "description": "Give it.", "input_schema": OBJECT, "execute": execute}
    made |= {"output_schema": OBJECT, "check_permissions": lambda *_: None}

    async def main() -> wire.CallToolResult:
        async with Client(serve.mcp(Runner([build_tool(made)])).server) as client:
            return await client.call_tool("one")

    result = await main()
    assert (result.is_error, result.structured_content, text(result)) == (False, {"degrees": 5}, "five degrees")


# -- content -----------------------------------------------------------------------------------------------------------

BLOCKS = [
    wire.TextContent(text="for you", annotations=wire.Annotations(audience=["user"], priority=0.5)),
    wire.TextContent(text="marked", _meta={"example.com/mark": 1}),
    wire.EmbeddedResource(
        resource=wire.TextResourceContents(uri="file:///a.txt", text="words", mime_type="text/plain"),
        annotations=wire.Annotations(audience=["assistant"]),
    ),
    wire.EmbeddedResource(
        resource=wire.TextResourceContents(uri="file:///a.json", text='{"a": 1}', mime_type="application/json")
    ),
    wire.EmbeddedResource(
        resource=wire.BlobResourceContents(uri="file:///a.bin", blob="AAH/", mime_type="application/octet-stream")
    ),
    wire.ResourceLink(
        name="a.txt", uri="file:///a.txt", mime_type="text/plain", title="A", description="What it is", size=7
    ),
]


@both_eras
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.type)
def test_each_block_arrives_as_it_came(block: Any, era: str) -> None:
    assert bridged(server_of(wire.CallToolResult(content=[block])), era).content == [block]


def test_a_text_of_whatever_type_stays_text() -> None:
    held = wire.TextResourceContents(uri="file:///a.yaml", text="a: 1", mime_type="application/yaml")
    given = wire.CallToolResult(content=[wire.EmbeddedResource(resource=held)])
    [block] = bridged(server_of(given), ERAS[0]).content
    assert block.resource.text == "a: 1"  # type: ignore[union-attr]


def test_what_is_said_of_a_block_that_middleware_has_changed_goes_with_it() -> None:
    given = wire.CallToolResult(content=[BLOCKS[0]])
    [block] = bridged(server_of(given), ERAS[0], around=[untrusted]).content
    assert block.annotations is None


@pytest.mark.parametrize("around", [untrusted, limit_output(1000)])
def test_what_is_said_of_a_block_gets_by_no_middleware(around: Any) -> None:
    """The link is as it came, and the texts round it are not."""
    link = BLOCKS[-1].model_copy(update={"description": "Follow me."})
    given = wire.CallToolResult(content=[wire.TextContent(text="a" * 2000), link, wire.TextContent(text="b")])
    result = bridged(server_of(given), ERAS[0], around=[around])
    assert "resource_link" in [block.type for block in result.content]
    assert "Follow me" not in str(result)


def test_what_is_said_of_a_block_is_little_or_nothing() -> None:
    given = wire.CallToolResult(content=[BLOCKS[-1].model_copy(update={"description": "D" * 20_000})])
    assert len(str(bridged(server_of(given), ERAS[0], around=[limit_output(1000)]))) < 1000


def test_what_is_said_of_a_block_stays_with_it_in_an_error() -> None:
    given = wire.CallToolResult(content=[BLOCKS[-1], BLOCKS[0]], is_error=True)
    result = bridged(server_of(given), ERAS[0])
    assert result.is_error and result.content[1:] == given.content


# -- a server of 2025 that asks while its tool runs --------------------------------------------------------------------

PROGRAM = Path(__file__).parent.parent / "sources" / "stdio_server.py"


async def test_the_client_whose_call_it_is_answers_what_a_server_of_2025_asks() -> None:
    person = Person({"day": 4})

    async def main() -> wire.CallToolResult:
        program = mcp.Stdio(sys.executable, [str(PROGRAM)], name="calendar", mode="legacy")
        async with mcp.connect(program) as toolset:
            served = serve.mcp(Runner(toolset)).server
            async with Client(served, mode="legacy", elicitation_callback=person) as client:
                return await client.call_tool("calendar__ask", {})

    assert text(await main()) == "accept {'day': 4} None"
    assert "calendar asks: Which day?" in person.asked[0].message
