"""Resources and prompts of a served runner: listed, read and completed, within the guards and limits of the runner."""

from __future__ import annotations

import asyncio
import enum
from typing import Any, Literal
from urllib.parse import quote

import mcp_types as wire
import pytest
from connected import LEGACY, MODERN, both_eras, policy_with
from hypothesis import given
from hypothesis import strategies as st
from mcp.client import Client
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from ferrule import DefinitionError, Event, Media, Runner, Sizes, Text, ToolContext, ToolResult, deny, mcp, serve, tool
from ferrule.journal import memory

ICON = "https://example.com/tea.png"


@tool(metadata={"icons": [{"src": "data:image/png;base64,AA==", "mimeType": "image/png", "sizes": ["48x48"]}]})
async def order(article: str) -> str:
    return article


@serve.resource("shop://hours", title="Opening hours", icons=ICON)
def hours() -> str:
    """When we are open."""
    return "8 to 17"


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


@serve.resource("shop://articles/{article}/{size}")
async def article(article: Literal["tea", "Toast", "coffee"], size: Size, context: ToolContext) -> dict[str, Any]:
    """An article."""
    return {"article": article, "size": size, "for": context.principal}


@serve.resource("shop://logo")
def logo() -> Media:
    """The logo."""
    return Media("image", b"\x89PNG", "image/png")


def restock(article: Literal["tea", "coffee"], count: int = 1) -> str:
    """Restock an article.

    Args:
        article: The article to order.
    """
    return f"Order {count!r} of {article}."


@serve.prompt(name="greet", title="Greeting", icons=[ICON])
async def greeting() -> ToolResult:
    """Greet."""
    return ToolResult(content=[Text("Look:"), Media("image", b"x", "image/png")])


SHOP: dict[str, Any] = {"resources": [hours, article, logo], "prompts": [restock, greeting]}


def shop(era: str, *, runner: Runner | None = None, **options: Any) -> Client:
    app = serve.mcp(runner or Runner([order]), **{**SHOP, **options})
    return Client(app.server, mode=era)


@both_eras
async def test_resources_templates_and_prompts_are_listed(era: str) -> None:
    async with shop(era) as client:
        listed = (await client.list_resources()).resources
        [template] = (await client.list_resource_templates()).resource_templates
        prompts = (await client.list_prompts()).prompts
    assert [(one.name, str(one.uri)) for one in listed] == [("hours", "shop://hours"), ("logo", "shop://logo")]
    assert (listed[0].title, listed[0].description) == ("Opening hours", "When we are open.")
    assert [one.src for one in listed[0].icons or ()] == [ICON]
    assert (template.name, template.uri_template) == ("article", "shop://articles/{article}/{size}")
    assert [(one.name, one.title, one.description) for one in prompts] == [
        ("restock", None, "Restock an article."),
        ("greet", "Greeting", "Greet."),
    ]
    arguments = [(one.name, one.required, one.description) for one in prompts[0].arguments or ()]
    assert arguments == [("article", True, "The article to order."), ("count", False, None)]


@pytest.mark.parametrize("era", ["auto", LEGACY])
async def test_a_server_shows_its_title_and_icons_and_those_of_its_tools(era: str) -> None:
    async with shop(era, title="The shop", icons=[ICON]) as client:
        about: Any = client.server_info
        assert (about.title, [one.src for one in about.icons]) == ("The shop", [ICON])
        [listed] = (await client.list_tools()).tools
        [icon] = listed.icons or ()
    assert (icon.src, icon.mime_type, icon.sizes) == ("data:image/png;base64,AA==", "image/png", ["48x48"])


@pytest.mark.parametrize(("trusted", "shown"), [(True, [ICON]), (False, [])])
async def test_the_icons_of_a_trusted_server_are_passed_on(trusted: bool, shown: list[str]) -> None:
    async def list_tools(context: Any, params: Any) -> wire.ListToolsResult:
        icons = [wire.Icon(src=source) for source in ("http://tracker.example/x.png", ICON, "javascript:alert(1)")]
        return wire.ListToolsResult(tools=[wire.Tool(name="buy", input_schema={"type": "object"}, icons=icons)])

    async with mcp.connect(mcp.Memory(Server("shop", on_list_tools=list_tools)), trusted=trusted) as toolset:
        async with Client(serve.mcp(Runner(toolset)).server, mode=MODERN) as client:
            [listed] = (await client.list_tools()).tools
    assert [one.src for one in listed.icons or ()] == shown


@both_eras
async def test_a_resource_is_read_with_its_type(era: str) -> None:
    async with shop(era, context=ToolContext(principal="ann")) as client:
        [text] = (await client.read_resource("shop://hours")).contents
        [data] = (await client.read_resource("shop://articles/coffee/large")).contents
        [image] = (await client.read_resource("shop://logo")).contents
    assert isinstance(text, wire.TextResourceContents) and isinstance(data, wire.TextResourceContents)
    assert (text.text, text.mime_type, text.uri) == ("8 to 17", "text/plain", "shop://hours")
    assert (data.text, data.mime_type) == (
        '{"article": "coffee", "size": "large", "for": "ann"}',
        "application/json",
    )
    assert isinstance(image, wire.BlobResourceContents)
    assert (image.blob, image.mime_type) == ("iVBORw==", "image/png")


@both_eras
async def test_a_prompt_gives_messages_and_its_arguments_become_their_types(era: str) -> None:
    async with shop(era) as client:
        [order_three] = (await client.get_prompt("restock", {"article": "tea", "count": "3"})).messages
        greeted = (await client.get_prompt("greet")).messages
    assert (order_three.role, order_three.content) == ("user", wire.TextContent(text="Order 3 of tea."))
    assert [message.content.type for message in greeted] == ["text", "image"]


async def refused(awaited: Any) -> MCPError:
    with pytest.raises(MCPError) as found:
        await awaited
    return found.value


@both_eras
async def test_what_cannot_be_read_is_a_protocol_error(era: str) -> None:
    async with shop(era) as client:
        for uri in ("shop://hour", "shop://articles/coffee", "shop://articles/%2e%2e/large", "shop://articles/a%2Fb/c"):
            error = await refused(client.read_resource(uri))
            assert (error.code, error.data) == (wire.INVALID_PARAMS, {"uri": uri})
        wrong = await refused(client.read_resource("shop://articles/beer/large"))
        assert wrong.code == wire.INVALID_PARAMS and "'tea', 'Toast' or 'coffee'" in wrong.message
        missing = await refused(client.get_prompt("restock"))
        assert missing.code == wire.INVALID_PARAMS and "'article'" in missing.message
        assert (await refused(client.get_prompt("stock"))).code == wire.INVALID_PARAMS
        assert (await refused(client.list_prompts(cursor="1"))).code == wire.INVALID_PARAMS


@both_eras
async def test_choices_are_completed(era: str) -> None:
    async with shop(era) as client:

        async def complete(ref: Any, name: str, value: str) -> list[str]:
            return (await client.complete(ref, {"name": name, "value": value})).completion.values

        template = wire.ResourceTemplateReference(uri="shop://articles/{article}/{size}")
        prompt = wire.PromptReference(name="restock")
        assert await complete(template, "article", "t") == ["tea", "Toast"]
        assert await complete(template, "size", "") == ["small", "large"]
        assert await complete(prompt, "article", "c") == ["coffee"]
        assert await complete(prompt, "count", "") == await complete(prompt, "unknown", "") == []
        unknown = wire.PromptReference(name="stock")
        assert (await refused(client.complete(unknown, {"name": "a", "value": ""}))).code == wire.INVALID_PARAMS


@both_eras
async def test_guards_and_observers_see_each_reading_and_no_change_of_tools(era: str) -> None:
    events: list[Event] = []
    judged: list[str] = []

    def judge(call: Any, context: ToolContext) -> Any:
        judged.append(call.name)
        return deny("closed today") if call.name == "resource:hours" else None

    journal = memory()
    runner = Runner([order], guards=[judge], observers=[events.append], journal=journal)
    async with shop(era, runner=runner) as client:
        assert "closed today" in (await refused(client.read_resource("shop://hours"))).message
        await client.get_prompt("greet")
    assert judged == ["resource:hours", "prompt:greet"]
    assert {event.call.name for event in events} == {"resource:hours", "prompt:greet"}


@both_eras
async def test_a_policy_hides_resources_and_prompts_like_tools(era: str) -> None:
    runner = Runner([order], guards=[policy_with('deny = ["resource:a*", "resource:hours", "prompt:greet"]')])
    async with shop(era, runner=runner) as client:
        assert [one.name for one in (await client.list_resources()).resources] == ["logo"]
        assert (await client.list_resource_templates()).resource_templates == []
        assert [one.name for one in (await client.list_prompts()).prompts] == ["restock"]
        assert (await refused(client.read_resource("shop://hours"))).data == {"uri": "shop://hours"}
        assert "Unknown prompt" in (await refused(client.get_prompt("greet"))).message


async def test_readings_count_as_calls_and_are_bounded() -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        entered.set()
        await go_on.wait()
        return "x" * 500

    app = serve.mcp(Runner([order], sizes=Sizes(output=100)), prompts=[wait], in_flight=1)
    async with Client(app.server, mode=MODERN) as client:
        waiting = asyncio.ensure_future(client.get_prompt("wait"))
        await entered.wait()
        assert "Too many calls" in (await refused(client.get_prompt("wait"))).message
        go_on.set()
        [message] = (await waiting).messages
    assert isinstance(message.content, wire.TextContent) and len(message.content.text) < 200


def one(name: str) -> str:
    return name


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: serve.resource("hours", one), "is not the address of a resource"),
        (lambda: serve.resource("shop://{name}.txt", one), "a variable is a whole segment"),
        (lambda: serve.resource("shop://hours", one), r"must be the parameters of its function, each once: \['name'\]"),
        (lambda: serve.resource("shop://{name}", one, icons="http://example.com/a.png"), "an icon of the resource"),
        (lambda: serve.prompt(one, icons=[ICON] * 9), "at most 8"),
        (lambda: serve.mcp(Runner([order]), resources=[one]), r"give serve.resource\(uri, function\)"),
        (lambda: serve.mcp(Runner([order]), prompts=[one, one]), "two resources or prompts are called 'prompt:one'"),
        (lambda: serve.mcp(Runner([order.replace(metadata={"icons": [1]})])), "an icon of the tool 'order'"),
    ],
)
def test_a_wrong_definition_is_an_error(make: Any, error: str) -> None:
    with pytest.raises(DefinitionError, match=error):
        make()


SEGMENTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)


@given(SEGMENTS)
def test_a_variable_is_one_segment_that_leads_nowhere_else(segment: str) -> None:
    made = serve.resource("shop://articles/{name}", one)
    found = made.match(f"shop://articles/{quote(segment, safe='')}")
    leads_elsewhere = segment in (".", "..") or any(mark in segment for mark in "/\\\0")
    assert found == (None if leads_elsewhere else {"name": segment})
