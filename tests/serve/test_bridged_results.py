"""The result of an MCP server's tool reaches the client of a runner that serves it unchanged."""

from __future__ import annotations

from typing import Any

import mcp_types as wire
import pytest
from connected import MODERN, both_eras, text
from mcp.client import Client
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer

from ferrule import Decision, Runner, Text, ToolCall, ToolContext, ToolError, ToolResult, deny, mcp, serve, tool
from ferrule.mcp.content import OUTCOME
from ferrule.middleware import cache, limit_output, untrusted

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


async def bridged(
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

    async with mcp.connect(mcp.Memory(server, mode=mode), trusted=True) as toolset:
        async with Client(serve.mcp(Runner(toolset, **options)).server, mode=era) as client:
            await client.list_tools()
            for _ in range(times - 1):
                await client.call_tool(name, arguments or {})
            return await client.call_tool(name, arguments or {})


@both_eras
@pytest.mark.parametrize("mode", MODES)
async def test_the_result_of_a_python_server_arrives_unchanged(mode: mcp.Mode, era: str) -> None:
    for name, arguments, structured in (
        ("greet", {"name": "Ann"}, {"result": "hello Ann"}),
        ("names", {"count": 2}, {"result": ["name 0", "name 1"]}),
        ("names", {"count": 0}, {"result": []}),
    ):
        result = await bridged(python_server(), era, name, arguments, mode=mode)
        assert (result.is_error, result.structured_content) == (False, structured)


def given(text: str | None, structured: Any) -> wire.CallToolResult:
    """A result with this text, if any, and structured content."""
    return wire.CallToolResult(
        content=[] if text is None else [wire.TextContent(text=text)], structured_content=structured
    )


IMAGE = wire.ImageContent(data="cG5n", mime_type="image/png")
STRUCTURED = {
    "of a text": given(LONG, {"content": LONG}),
    "in other words": given("warm", {"c": 5}),
    "alone": given(None, {"c": [1, None]}),
    "beside an image": wire.CallToolResult(content=[IMAGE], structured_content={"c": True}),
}


@both_eras
@pytest.mark.parametrize("schema", [OBJECT, None], ids=["declared", "not declared"])
async def test_structured_content_arrives_unchanged_whatever_the_content_says(schema: Any, era: str) -> None:
    for what, result in STRUCTURED.items():
        found = await bridged(server_of(result, schema), era)
        assert (found.is_error, found.structured_content) == (False, result.structured_content), what
        assert not result.content or found.content == result.content, what
    cached = await bridged(server_of(STRUCTURED["in other words"], OBJECT), era, times=2, inside=[cache(60)])
    assert (cached.is_error, cached.structured_content) == (False, {"c": 5})


@both_eras
@pytest.mark.parametrize("around", [[limit_output(100)], [untrusted], [untrusted, limit_output(100)]])
async def test_a_success_that_middleware_cut_or_wrapped_stays_a_success(around: Any, era: str) -> None:
    for name, arguments in (("greet", {"name": LONG}), ("names", {"count": 30}), ("rows", {"count": 300})):
        result = await bridged(python_server(), era, name, arguments, around=around)
        assert not result.is_error and len(str(result.structured_content)) < 200


async def mask(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
    result: ToolResult = await next(call, context)
    return result.replace(content=[Text(result.text.replace("Ann", "***"))])


async def test_text_that_middleware_masked_is_masked_in_the_structured_content() -> None:
    result = await bridged(python_server(), MODERN, "greet", {"name": "Ann"}, around=[mask])
    assert (result.is_error, result.structured_content) == (False, {"result": "hello ***"})
    other = given("Ann", {"name": "Ann", "also": "Ann B"})
    result = await bridged(server_of(other, OBJECT), MODERN, around=[mask])
    assert "Ann" not in str(result.structured_content) + text(result)


@both_eras
@pytest.mark.parametrize(
    "beside", [{LONG * 20: LONG}, {"content": LONG, "more": [[]] * 900}, {"content": {"k" * 900: {}}}]
)
async def test_structured_content_beside_the_text_does_not_evade_a_limit(beside: Any, era: str) -> None:
    schema = {"type": "object", "properties": {"content": {}}}
    result = await bridged(server_of(given(LONG, beside), schema), era, around=[limit_output(100)])
    assert len(str(result.structured_content)) < 200 and "[cut" in text(result)


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
async def test_each_block_arrives_unchanged(era: str) -> None:
    assert (await bridged(server_of(wire.CallToolResult(content=BLOCKS)), era)).content == BLOCKS
    failed = wire.CallToolResult(content=[BLOCKS[-1], BLOCKS[0]], is_error=True)
    result = await bridged(server_of(failed), era)
    assert result.is_error and result.content[1:] == failed.content


@pytest.mark.parametrize("around", [untrusted, limit_output(1000)])
async def test_the_description_of_a_block_does_not_evade_middleware(around: Any) -> None:
    """The link is as it came, and the texts round it are not."""
    link = BLOCKS[-1].model_copy(update={"description": "Follow me."})
    texts = [wire.TextContent(text="a" * 2000), wire.TextContent(text="b")]
    result = wire.CallToolResult(content=[texts[0], link, texts[1]])
    found = await bridged(server_of(result), MODERN, around=[around])
    assert "resource_link" in [block.type for block in found.content] and "Follow me" not in str(found)
    long = wire.CallToolResult(content=[link.model_copy(update={"description": "D" * 20_000})])
    assert len(str(await bridged(server_of(long), MODERN, around=[limit_output(1000)]))) < 1000


@tool(destructive=False)
def pay(to: str) -> str:
    if to == "bob":
        raise ToolError("the bank is closed", executed=False)
    if to == "eve":
        raise ToolError("nobody knows whether the bank has paid", executed=None)
    raise ToolError("the bank has paid, and gave no receipt")


def deny_ann(call: ToolCall, context: ToolContext) -> Decision | None:
    return deny("not to ann") if call.arguments["to"] == "ann" else None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("to", "status", "executed"),
    [("ann", "denied", False), ("bob", "failed", False), ("eve", "failed", None), ("cy", "failed", True)],
)
async def test_only_a_trusted_ferrule_server_says_whether_a_call_was_executed(
    to: str, status: str, executed: bool | None, mode: mcp.Mode
) -> None:
    app = serve.mcp(Runner([pay], guards=[deny_ann]))
    for trusted, expected in ((True, (status, executed)), (False, ("failed", True))):
        async with mcp.connect(mcp.Memory(app.server, mode=mode), trusted=trusted) as toolset:
            result = await Runner(toolset).run("pay", {"to": to})
            assert (result.status, result.executed) == expected


@pytest.mark.parametrize(
    "outcome",
    [{"status": "suspended", "executed": False}, {"status": "denied", "executed": "no"}, "denied"],
)
async def test_an_odd_outcome_is_not_taken_over(outcome: Any) -> None:
    failed = wire.CallToolResult(content=[wire.TextContent(text="no")], is_error=True, _meta={OUTCOME: outcome})
    async with mcp.connect(server_of(failed), trusted=True) as toolset:
        result = await Runner(toolset).run("one", {})
    assert (result.status, result.executed, result.error) == ("failed", True, "no")
