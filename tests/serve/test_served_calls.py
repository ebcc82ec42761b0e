"""What a client of a served runner sees: the list, each outcome of a call, progress, cancellation, other tools."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import anyio
import mcp_types as wire
import pytest
from connected import ERAS, LEGACY, MODERN, both_eras, call, client, text
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from ferrule import (
    DefinitionError,
    Event,
    Media,
    Runner,
    Text,
    ToolCall,
    ToolContext,
    ToolResult,
    serve,
    tool,
)
from ferrule.journal import memory
from gates import Gate


@tool(read_only=True, metadata={"title": "Adding"})
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@tool(idempotent=True, open_world=False)
async def remove(name: str) -> str:
    return f"removed {name}"


class Point(BaseModel):
    x: int
    y: int


@tool(read_only=True)
async def origin() -> Point:
    return Point(x=0, y=0)


async def listed(runner: Runner, era: str, **options: Any) -> list[wire.Tool]:
    async with client(runner, era, **options) as connected:
        return (await connected.list_tools()).tools


@both_eras
async def test_the_tools_are_listed_in_order_with_their_hints(era: str) -> None:
    tools = await listed(Runner([remove, add]), era)
    assert [one.name for one in tools] == ["remove", "add"]
    assert (tools[1].title, tools[1].description) == ("Adding", "Add two integers.")
    assert tools[1].input_schema["required"] == ["a", "b"] and tools[1].input_schema["additionalProperties"] is False
    hints = [one.annotations and one.annotations.model_dump(exclude={"title"}) for one in tools]
    names = ("read_only_hint", "destructive_hint", "idempotent_hint", "open_world_hint")
    assert hints == [
        dict(zip(names, (False, True, True, False), strict=True)),
        dict(zip(names, (True, False, False, True), strict=True)),
    ]


async def test_only_clients_of_2026_see_an_output_schema_that_is_no_object() -> None:
    modern, legacy = [await listed(Runner([add, origin]), era) for era in ERAS]
    assert [one.output_schema and one.output_schema["type"] for one in modern] == ["integer", "object"]
    assert [one.output_schema and one.output_schema["type"] for one in legacy] == [None, "object"]


@both_eras
@pytest.mark.parametrize(
    ("returns", "value", "structured"),
    [
        (float, float("nan"), None),
        (dict[str, Decimal], {"price": Decimal("Infinity")}, {"price": None}),
        (list[Text | Media], [Text("a"), Media("image", b"x", "image/png")], None),
    ],
)
async def test_a_value_that_json_cannot_express_is_a_valid_answer(
    era: str, returns: Any, value: Any, structured: Any
) -> None:
    async def give() -> Any:
        """Give."""
        return value

    give.__annotations__["return"] = returns
    result = await call(Runner([tool(give)]), era, "give")  # the SDK's client compares it with the output schema
    assert (result.is_error, result.structured_content) == (False, structured)


@both_eras
async def test_without_structured_content_there_is_no_output_schema(era: str) -> None:
    assert [one.output_schema for one in await listed(Runner([origin]), era, structured=False)] == [None]
    assert (await call(Runner([origin]), era, "origin", structured=False)).structured_content is None


@both_eras
async def test_a_served_call_passes_the_guards(era: str) -> None:
    judged: list[ToolCall] = []
    events: list[Event] = []

    def judge(call: ToolCall, context: ToolContext) -> None:
        judged.append(call)

    runner = Runner([add], guards=[judge], observers=[events.append])
    assert not (await call(runner, era, "add", {"a": 1, "b": 2})).is_error
    assert [dict(one.arguments) for one in judged] == [{"a": 1, "b": 2}]
    assert [event.kind for event in events] == ["tool:pre", "tool:decided", "tool:started", "tool:post"]


IMAGE, PDF = "image/png", "application/pdf"
HELD = {"uri": "ferrule:result/0", "blob": "cGRm", "mimeType": PDF, "_meta": {"name": "a.pdf"}}
URL = "https://example.com/a/b.png"
BLOCKS = [
    (Text("hello"), {"type": "text", "text": "hello"}),
    (Media("image", b"png", IMAGE), {"type": "image", "data": "cG5n", "mimeType": IMAGE}),
    (Media("audio", b"wav", "audio/wav"), {"type": "audio", "data": "d2F2", "mimeType": "audio/wav"}),
    (Media("image", None, IMAGE, URL), {"type": "resource_link", "uri": URL, "name": "b.png", "mimeType": IMAGE}),
    (Media("file", b"pdf", PDF, name="a.pdf"), {"type": "resource", "resource": HELD}),
    (Media("file", None, PDF), {"type": "text", "text": "[file of the type application/pdf, without data]"}),
]


@both_eras
@pytest.mark.parametrize(("block", "expected"), BLOCKS)
async def test_each_kind_of_block_becomes_one_of_mcp(block: Text | Media, expected: dict[str, Any], era: str) -> None:
    @tool
    async def give() -> Any:
        return block

    [found] = (await call(Runner([give]), era, "give")).content
    assert found.model_dump(by_alias=True, exclude_none=True) == expected


@both_eras
@pytest.mark.parametrize("masked", ["masked", '{"x": 0}', '{"x": 0, "y": null}'])
async def test_a_result_that_middleware_made_invalid_shows_nothing_of_the_output(masked: str, era: str) -> None:
    async def mask(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        result: ToolResult = await next(call, context)
        return result.replace(content=[Text(masked)])

    result = await call(Runner([origin], around=[mask]), era, "origin")
    assert result.is_error and result.structured_content is None
    assert text(result).startswith("The tool ran") and text(result).endswith(masked)


@both_eras
async def test_progress_reaches_the_client_before_the_result_and_only_increases(
    era: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[float, float | None, str | None]] = []

    @tool
    def work(context: ToolContext) -> str:
        for done in (1, 3, 2, 10**400, float("inf"), 4):
            context.progress(done, 4, f"step {done}")
        return "done"

    async def note(done: float, total: float | None, message: str | None) -> None:
        seen.append((done, total, message))

    async with client(Runner([work]), era) as connected:
        assert text(await connected.call_tool("work", progress_callback=note)) == "done"
        assert seen == [(1, 4, "step 1"), (3, 4, "step 3"), (4, 4, "step 4")]
    assert caplog.text == ""


@both_eras
async def test_a_call_that_its_client_cancels_has_its_grace(era: str) -> None:
    order: list[str] = []
    entered = asyncio.Event()

    @tool
    async def hold() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(300):  # turns of the loop, at each of which AnyIO would cancel again
                await asyncio.sleep(0)
            order.append("tidied up")

    def observe(event: Event) -> None:
        if event.kind == "tool:error":
            order.append(event.data["result"].status)

    async with client(Runner([hold], observers=[observe]), era) as connected:
        async with anyio.create_task_group() as group:
            group.start_soon(connected.call_tool, "hold")
            await entered.wait()
            group.cancel_scope.cancel()
    assert order == ["tidied up", "cancelled"]  # the connection ends after its calls


async def test_a_listening_client_of_2026_is_told_of_other_tools_only() -> None:
    app = serve.mcp(Runner([add]))
    async with Client(app.server, mode=MODERN) as connected:
        told = 0
        async with connected.listen(tools_list_changed=True) as changes:
            await app.use(app.runner.replace(tools=[add]))  # the same list
            await app.use(app.runner.replace(tools=[add, remove]))
            names = [one.name for one in (await connected.list_tools()).tools]
            await app.drain()  # which ends the stream
            async for _ in changes:
                told += 1
        assert (told, names) == (1, ["add", "remove"])


async def test_clients_of_2025_are_told_of_other_tools_and_running_calls_go_on() -> None:
    gate, first, second = Gate(), asyncio.Event(), asyncio.Event()

    def note(told: asyncio.Event) -> Any:
        async def handle(message: Any) -> None:
            if isinstance(message, wire.ToolListChangedNotification):
                told.set()

        return handle

    app = serve.mcp(Runner([gate.tool]))
    async with (
        Client(app.server, mode=LEGACY, message_handler=note(first)) as connected,
        Client(app.server, mode=LEGACY, message_handler=note(second)),
        asyncio.TaskGroup() as group,
    ):
        assert connected.server_capabilities.tools and connected.server_capabilities.tools.list_changed
        held = group.create_task(connected.call_tool("wait"))
        await gate.inside.wait()
        await app.use(app.runner.replace(tools=[gate.tool]))  # the same list
        await connected.list_tools()
        assert not first.is_set()
        await app.use(app.runner.replace(tools=[add]))
        await asyncio.gather(first.wait(), second.wait())
        gate.open.set()
        assert text(await held) == "through"
        assert [one.name for one in (await connected.list_tools()).tools] == ["add"]


async def test_listening_clients_take_no_place_of_a_call_and_are_bounded() -> None:
    app = serve.mcp(Runner([add]), in_flight_each=1)
    async with Client(app.server, mode=MODERN) as connected, connected.listen(tools_list_changed=True):
        with pytest.raises(MCPError, match="Too many clients listen"):
            async with connected.listen(tools_list_changed=True):
                raise AssertionError
        assert text(await connected.call_tool("add", {"a": 1, "b": 2})) == "3"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"state_key": b"short"}, "state_key: request-state keys must be at least 32 bytes"),
        ({"in_flight": 0}, "in_flight must be a number greater than 0"),
        ({"answer_within": float("inf")}, "answer_within must be a number greater than 0"),
        ({"context": {"principal": "ann"}}, "context must be a ToolContext, not dict"),
        ({"hosts": ["https://tools.example.com"]}, "hosts: 'https://tools.example.com' is invalid"),
        ({"origins": ["*"]}, r"origins: '\*' is invalid; write 'https://app.example.com'"),
    ],
)
def test_an_invalid_option_is_an_error(options: Any, error: str) -> None:
    with pytest.raises(DefinitionError, match=error):
        serve.mcp(Runner([add]), **options)


@both_eras
async def test_a_repeated_request_is_a_call_of_its_own(era: str) -> None:
    keys: list[str] = []

    @tool
    async def pay(euros: int, context: ToolContext) -> str:
        keys.append(context.idempotency_key)
        return "paid"

    journal = memory()
    served = Runner([pay], journal=journal)
    async with client(served, era, context=ToolContext(session="s1")) as connected:
        for _ in range(2):
            assert not (await connected.call_tool("pay", {"euros": 5})).is_error
    assert len({*keys}) == 2 and [event.kind for event in journal.events].count("tool:post") == 2
