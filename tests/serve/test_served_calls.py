"""What a client of a served runner sees: the list, each outcome of a call, progress, cancellation, other tools."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import anyio
import mcp_types as wire
import pytest
from connected import ERAS, Person, call, client, go, text
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from ferrule import (
    DefinitionError,
    Event,
    Media,
    Runner,
    Text,
    Tool,
    ToolCall,
    ToolContext,
    ToolResult,
    build_tool,
    deny,
    serve,
    tool,
)
from ferrule.journal import memory
from ferrule.middleware import limit_output
from ferrule.tools import background

both_eras = pytest.mark.parametrize("era", ERAS)


@tool(read_only=True, metadata={"title": "Adding"})
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@tool(idempotent=True, open_world=False)
async def remove(name: str) -> str:
    """Remove it."""
    return f"removed {name}"


class Point(BaseModel):
    x: int
    y: int


@tool(read_only=True)
async def origin() -> Point:
    """Give a point."""
    return Point(x=0, y=0)


def listed(runner: Runner, era: str, **options: Any) -> list[wire.Tool]:
    async def main() -> list[wire.Tool]:
        async with client(runner, era, **options) as connected:
            return (await connected.list_tools()).tools

    return go(main())


# -- the list ----------------------------------------------------------------------------------------------------------


@both_eras
def test_the_tools_are_listed_in_their_order_with_what_is_known_of_them(era: str) -> None:
    tools = listed(Runner([remove, add]), era)
    assert [one.name for one in tools] == ["remove", "add"]
    assert (tools[1].title, tools[1].description) == ("Adding", "Add two integers.")
    assert tools[1].input_schema["required"] == ["a", "b"] and tools[1].input_schema["additionalProperties"] is False
    hints = [one.annotations and one.annotations.model_dump(exclude={"title"}) for one in tools]
    names = ("read_only_hint", "destructive_hint", "idempotent_hint", "open_world_hint")
    assert hints == [
        dict(zip(names, (False, True, True, False), strict=True)),
        dict(zip(names, (True, False, False, True), strict=True)),
    ]


def test_an_output_schema_that_is_no_object_is_for_clients_of_2026_alone() -> None:
    modern, legacy = (listed(Runner([add, origin]), era) for era in ERAS)
    assert [one.output_schema and one.output_schema["type"] for one in modern] == ["integer", "object"]
    assert [one.output_schema and one.output_schema["type"] for one in legacy] == [None, "object"]


@both_eras
async def test_a_tool_that_may_return_none_tells_no_output_schema_and_its_calls_succeed(era: str) -> None:
    @tool
    async def forget() -> None:
        """Forget."""

    @tool
    async def find(name: str) -> str | None:
        """Find."""
        return name or None

    async def main() -> list[Any]:
        async with client(Runner([forget, find]), era) as connected:
            found: list[Any] = [one.output_schema for one in (await connected.list_tools()).tools]
            calls = [("forget", {}), ("find", {"name": ""}), ("find", {"name": "key"})]
            for name, arguments in calls:
                result = await connected.call_tool(name, arguments)
                found.append((result.is_error, text(result), result.structured_content))
            return found

    assert (await main()) == [None, None, (False, "null", None), (False, "null", None), (False, "key", None)]


def test_a_result_of_the_handlers_own_that_does_not_fit_is_told_so() -> None:
    @tool
    async def measure() -> int:
        """Measure."""
        return ToolResult(None)  # type: ignore[return-value]

    result = call(Runner([measure]), ERAS[0], "measure")
    assert result.is_error and "The tool ran" in text(result) and "or JSON cannot express it" in text(result)
    assert text(result).endswith("\nnull") and result.structured_content is None


@both_eras
@pytest.mark.parametrize(
    ("returns", "value", "structured"),
    [
        (float, float("nan"), None),
        (dict[str, float], {"mean": float("nan"), "max": 1.5}, {"mean": None, "max": 1.5}),
        (dict[str, Decimal], {"price": Decimal("Infinity")}, {"price": None}),
        (bytes, b"abc", None),
        (list[Text | Media], [Text("a"), Media("image", b"x", "image/png")], None),
    ],
)
def test_what_is_no_json_is_a_valid_answer(era: str, returns: Any, value: Any, structured: Any) -> None:
    async def give() -> Any:
        """Give."""
        return value

    give.__annotations__["return"] = returns
    result = call(Runner([tool(give)]), era, "give")  # the SDK's client compares it with the output schema
    assert (result.is_error, result.structured_content) == (False, structured)


@both_eras
def test_without_structured_content_no_output_schema_is_told(era: str) -> None:
    assert [one.output_schema for one in listed(Runner([origin]), era, structured=False)] == [None]
    assert call(Runner([origin]), era, "origin", structured=False).structured_content is None


@both_eras
def test_a_name_that_mcp_does_not_take_is_written_otherwise_and_can_be_called(era: str) -> None:
    @tool(name="say:hello")
    async def hello() -> str:
        """Say hello."""
        return "hello"

    [one] = listed(Runner([hello]), era)
    assert one.name == hello.wire_name != "say:hello"
    assert text(call(Runner([hello]), era, one.name)) == "hello"


@both_eras
async def test_many_tools_come_in_pages_and_a_cursor_of_another_list_is_refused(era: str) -> None:
    many = [add.replace(name=f"add_{number}") for number in range(250)]

    async def main() -> tuple[list[str], list[int]]:
        app = serve.mcp(Runner(many))
        names, sizes, cursor = [], [], None
        async with Client(app.server, mode=era) as connected:
            while True:
                page = await connected.list_tools(cursor=cursor)
                names += [one.name for one in page.tools]
                sizes.append(len(page.tools))
                if page.next_cursor is None:
                    break
                cursor = page.next_cursor
            await app.use(Runner(many[:-1]))
            for wrong in (cursor, "", "1"):
                with pytest.raises(MCPError) as refused:
                    await connected.list_tools(cursor=wrong)
                assert refused.value.code == wire.INVALID_PARAMS
        return names, sizes

    names, sizes = await main()
    assert names == [one.name for one in many] and sizes == [100, 100, 50]


# -- each outcome ------------------------------------------------------------------------------------------------------


@both_eras
def test_a_success_has_its_content_and_the_value_in_the_declared_form(era: str) -> None:
    result = call(Runner([origin]), era, "origin")
    assert (result.is_error, result.structured_content, text(result)) == (False, {"x": 0, "y": 0}, '{"x": 0, "y": 0}')


@both_eras
async def test_a_tool_that_there_is_not_is_an_error_of_the_protocol(era: str) -> None:
    async def main() -> MCPError:
        async with client(Runner([add]), era) as connected:
            with pytest.raises(MCPError) as refused:
                await connected.call_tool("subtract")
            return refused.value

    error = await main()
    assert error.code == wire.INVALID_PARAMS and "subtract" in error.message


@both_eras
def test_arguments_that_do_not_fit_are_a_result_that_says_what_would(era: str) -> None:
    result = call(Runner([add]), era, "add", {"a": "x", "b": 2, "c": 3})
    assert result.is_error and "'a' must be a valid integer" in text(result) and "Nothing was run" in text(result)


def fails() -> Tool:
    @tool
    async def break_it() -> str:
        """Break."""
        raise ValueError("it is broken")

    return break_it


def slow() -> Tool:
    @tool(timeout=0.01)
    async def wait() -> None:
        """Wait."""
        await asyncio.Event().wait()

    return wait


REFUSING: dict[str, Any] = {"guards": [lambda call, context: deny("not on a Sunday")]}
OUTCOMES = [
    (add, {"a": 1, "b": 2}, REFUSING, "not on a Sunday"),
    (fails(), {}, {}, "it is broken"),
    (slow(), {}, {}, "0.01"),
]


@both_eras
@pytest.mark.parametrize(("tried", "arguments", "options", "error"), OUTCOMES)
def test_what_stood_in_the_way_is_a_result_with_its_error(
    tried: Tool, arguments: Any, options: Any, error: str, era: str
) -> None:
    result = call(Runner([tried], **options), era, tried.name, arguments)
    assert result.is_error and error in text(result) and result.structured_content is None


@both_eras
def test_a_tool_that_is_turned_off_stays_in_the_list_and_says_why(era: str) -> None:
    runner = Runner([add])
    runner.disable("add", "the calculator is at lunch")
    assert [one.name for one in listed(runner, era)] == ["add"]
    assert "at lunch" in text(call(runner, era, "add", {"a": 1, "b": 2}))


@both_eras
def test_a_call_passes_the_runners_guards_and_observers(era: str) -> None:
    judged: list[ToolCall] = []
    events: list[Event] = []

    def judge(call: ToolCall, context: ToolContext) -> None:
        judged.append(call)

    assert not call(Runner([add], guards=[judge], observers=[events.append]), era, "add", {"a": 1, "b": 2}).is_error
    assert [dict(one.arguments) for one in judged] == [{"a": 1, "b": 2}]
    assert [event.kind for event in events] == ["tool:pre", "tool:decided", "tool:started", "tool:post"]


@both_eras
async def test_more_calls_than_there_may_be_at_once_are_told_to_come_later(era: str) -> None:
    async def main() -> tuple[str, str]:
        entered, leave = asyncio.Event(), asyncio.Event()

        @tool
        async def hold() -> str:
            """Hold."""
            entered.set()
            await leave.wait()
            return "held"

        async with client(Runner([hold, add]), era, in_flight=1) as connected:
            async with asyncio.TaskGroup() as group:
                first = group.create_task(connected.call_tool("hold"))
                await entered.wait()
                second = await connected.call_tool("add", {"a": 1, "b": 2})
                leave.set()
            third = await connected.call_tool("add", {"a": 1, "b": 2})
        return text(second), text(first.result()) + text(third)

    assert (await main()) == ("Too many calls are under way; try again later. Nothing was run.", "held3")


# -- content -----------------------------------------------------------------------------------------------------------


BLOCKS = [
    (Text("hello"), {"type": "text", "text": "hello"}),
    (Media("image", b"png", "image/png"), {"type": "image", "data": "cG5n", "mimeType": "image/png"}),
    (Media("audio", b"wav", "audio/wav"), {"type": "audio", "data": "d2F2", "mimeType": "audio/wav"}),
    (
        Media("image", None, "image/png", "https://example.com/a/b.png"),
        {"type": "resource_link", "uri": "https://example.com/a/b.png", "name": "b.png", "mimeType": "image/png"},
    ),
    (
        Media("file", b"pdf", "application/pdf", name="a.pdf"),
        {
            "type": "resource",
            "resource": {
                "uri": "ferrule:result/0",
                "blob": "cGRm",
                "mimeType": "application/pdf",
                "_meta": {"name": "a.pdf"},
            },
        },
    ),
    (
        Media("file", None, "application/pdf"),
        {"type": "text", "text": "[file of the type application/pdf, without data]"},
    ),
]


@both_eras
@pytest.mark.parametrize(("block", "expected"), BLOCKS)
def test_each_kind_of_block_is_one_of_mcp(block: Text | Media, expected: dict[str, Any], era: str) -> None:
    @tool
    async def give() -> Any:
        """Give it."""
        return block

    [found] = call(Runner([give]), era, "give").content
    assert found.model_dump(by_alias=True, exclude_none=True) == expected


def test_what_middleware_has_cut_is_cut_in_the_structured_content_too() -> None:
    @tool(read_only=True)
    async def letter() -> str:
        """Give a letter."""
        return "x" * 10_000

    result = call(Runner([letter], around=[limit_output(100)]), "2026-07-28", "letter")
    assert not result.is_error and result.structured_content == text(result) and len(text(result)) <= 100


@both_eras
@pytest.mark.parametrize("masked", ["masked", '{"x": 0}', '{"x": 0, "y": null}'])
def test_what_middleware_has_changed_so_that_it_fits_no_more_is_told_and_nothing_of_the_output(
    masked: str, era: str
) -> None:
    async def mask(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        result: ToolResult = await next(call, context)
        return result.replace(content=[Text(masked)])

    result = call(Runner([origin], around=[mask]), era, "origin")
    assert result.is_error and result.structured_content is None
    assert text(result).startswith("The tool ran") and text(result).endswith(masked)


@both_eras
def test_a_handler_with_content_of_its_own_gives_the_value_where_its_text_is_that(era: str) -> None:
    async def execute(payload: Any, context: ToolContext) -> ToolResult:
        return ToolResult(output={"x": 1}, content=[Text('{"x":1}')])

    made = {"name": "point", "description": "Give it.", "input_schema": {"type": "object"}, "execute": execute}
    made |= {"output_schema": {"type": "object", "required": ["x"]}, "check_permissions": lambda *_: None}
    assert call(Runner([build_tool(made)]), era, "point").structured_content == {"x": 1}


# -- while a call runs -------------------------------------------------------------------------------------------------


@both_eras
async def test_progress_reaches_the_client_before_the_result_and_only_increases(era: str) -> None:
    seen: list[tuple[float, float | None, str | None]] = []

    @tool
    def work(context: ToolContext) -> str:
        """Work in a thread."""
        for done in (1, 3, 2, 4):
            context.progress(done, 4, f"step {done}")
        return "done"

    async def note(done: float, total: float | None, message: str | None) -> None:
        seen.append((done, total, message))

    async def main() -> list[tuple[float, float | None, str | None]]:
        async with client(Runner([work]), era) as connected:
            assert text(await connected.call_tool("work", progress_callback=note)) == "done"
            return list(seen)

    assert (await main()) == [(1, 4, "step 1"), (3, 4, "step 3"), (4, 4, "step 4")]


@both_eras
async def test_progress_beyond_what_mcp_can_say_is_passed_over(era: str, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[float] = []

    @tool
    def work(context: ToolContext) -> str:
        """Work in a thread."""
        for done in (1, 10**400, float("inf"), 2):
            context.progress(done)
        return "done"

    async def note(done: float, total: float | None, message: str | None) -> None:
        seen.append(done)

    async def main() -> None:
        async with client(Runner([work]), era) as connected:
            await connected.call_tool("work", progress_callback=note)

    await main()
    assert (seen, caplog.text) == ([1, 2], "")


@both_eras
async def test_a_call_that_its_client_cancels_is_cancelled_and_has_its_grace(era: str) -> None:
    async def main() -> list[str]:
        order: list[str] = []
        entered = asyncio.Event()

        @tool
        async def hold() -> None:
            """Hold."""
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
        return order  # the connection ends after its calls

    assert (await main()) == ["tidied up", "cancelled"]


@both_eras
async def test_a_client_that_goes_leaves_no_call_behind(era: str) -> None:
    async def main() -> int:
        entered, ended = asyncio.Event(), asyncio.Event()

        @tool
        async def hold() -> None:
            """Hold."""
            entered.set()
            await asyncio.Event().wait()

        def observe(event: Event) -> None:
            if event.kind == "tool:error":
                ended.set()

        runner = Runner([hold], observers=[observe])
        with anyio.CancelScope() as scope:
            async with client(runner, era) as connected, anyio.create_task_group() as group:
                group.start_soon(connected.call_tool, "hold")
                await entered.wait()
                scope.cancel()
        await ended.wait()
        return runner.left_running

    assert (await main()) == 0


# -- other tools -------------------------------------------------------------------------------------------------------


async def test_a_listening_client_of_2026_is_told_of_other_tools_and_of_nothing_else() -> None:
    async def main() -> tuple[int, list[str]]:
        app = serve.mcp(Runner([add]))
        async with Client(app.server, mode="2026-07-28") as connected:
            told = 0
            async with connected.listen(tools_list_changed=True) as changes:
                await app.use(app.runner.replace(tools=[add]))  # the same list
                await app.use(app.runner.replace(tools=[add, remove]))
                names = [one.name for one in (await connected.list_tools()).tools]
                await app.drain()  # which ends the stream
                async for _ in changes:
                    told += 1
            return told, names

    assert (await main()) == (1, ["add", "remove"])


async def test_a_client_of_2025_is_told_of_other_tools_and_a_call_under_way_goes_on() -> None:
    async def main() -> tuple[list[str], str]:
        entered, leave, told = asyncio.Event(), asyncio.Event(), asyncio.Event()

        @tool
        async def hold() -> str:
            """Hold."""
            entered.set()
            await leave.wait()
            return "held"

        async def note(message: Any) -> None:
            if isinstance(message, wire.ToolListChangedNotification):
                told.set()

        app = serve.mcp(Runner([hold]))
        async with Client(app.server, mode="legacy", message_handler=note) as connected:
            assert connected.server_capabilities.tools and connected.server_capabilities.tools.list_changed
            async with asyncio.TaskGroup() as group:
                held = group.create_task(connected.call_tool("hold"))
                await entered.wait()
                await app.use(app.runner.replace(tools=[hold]))  # the same list
                await connected.list_tools()
                assert not told.is_set()
                await app.use(app.runner.replace(tools=[add]))
                await told.wait()
                leave.set()
            return [one.name for one in (await connected.list_tools()).tools], text(held.result())

    assert (await main()) == (["add"], "held")


async def test_a_client_that_is_initialized_twice_is_told_once() -> None:
    async def main() -> int:
        told: list[object] = []

        async def note(message: Any) -> None:
            if isinstance(message, wire.ToolListChangedNotification):
                told.append(message)

        app = serve.mcp(Runner([add]))
        async with Client(app.server, mode="legacy", message_handler=note) as connected:
            await connected.session.send_notification(wire.InitializedNotification())
            await connected.list_tools()
            await app.use(app.runner.replace(tools=[remove]))
            for _ in range(3):
                await connected.list_tools()
            return len(told)

    assert (await main()) == 1


async def test_a_client_that_initializes_itself_again_and_again_is_told_once() -> None:
    async def main() -> int:
        told: list[object] = []

        async def note(message: Any) -> None:
            if isinstance(message, wire.ToolListChangedNotification):
                told.append(message)

        app = serve.mcp(Runner([add]))
        async with Client(app.server, mode="legacy", message_handler=note) as connected:
            for _ in range(5):
                who = wire.Implementation(name="client", version="1")
                params = wire.InitializeRequestParams(
                    protocol_version="2025-11-25", capabilities=wire.ClientCapabilities(), client_info=who
                )
                await connected.session.send_request(wire.InitializeRequest(params=params), wire.InitializeResult)
                await connected.session.send_notification(wire.InitializedNotification())
            await connected.list_tools()
            await app.use(app.runner.replace(tools=[remove]))
            for _ in range(3):
                await connected.list_tools()
            return len(told)

    assert (await main()) == 1


async def test_two_connected_clients_of_2025_are_both_told() -> None:
    async def main() -> list[int]:
        told = [asyncio.Event(), asyncio.Event()]
        app = serve.mcp(Runner([add]))

        def noting(one: asyncio.Event) -> Any:
            async def note(message: Any) -> None:
                if isinstance(message, wire.ToolListChangedNotification):
                    one.set()

            return note

        first, second = (Client(app.server, mode="legacy", message_handler=noting(one)) for one in told)
        async with first, second:
            for one in (first, second):
                await one.list_tools()
            await app.use(app.runner.replace(tools=[remove]))
            return [await one.wait() for one in told]

    assert (await main()) == [True, True]


async def test_clients_that_listen_take_no_place_of_a_call_and_are_bounded_too() -> None:
    async def main() -> str:
        app = serve.mcp(Runner([add]), in_flight_each=1)
        async with Client(app.server, mode=ERAS[0]) as connected, connected.listen(tools_list_changed=True):
            with pytest.raises(MCPError, match="Too many clients listen"):
                async with connected.listen(tools_list_changed=True):
                    raise AssertionError
            return text(await connected.call_tool("add", {"a": 1, "b": 2}))

    assert (await main()) == "3"


# -- what cannot be served ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"state_key": b"short"}, "state_key: request-state keys must be at least 32 bytes"),
        ({"in_flight": 0}, "in_flight must be a number greater than 0"),
        ({"answer_within": float("inf")}, "answer_within must be a number greater than 0"),
        ({"keep_list": -1}, "keep_list must be a number greater than 0"),
        ({"keep_list": float("inf")}, "keep_list must be a number greater than 0"),
        ({"context": {"principal": "ann"}}, "context must be a ToolContext, not dict"),
        (
            {"tokens": "a token of some length"},
            r"^tokens must be a Path, a text that ends in '\.toml' .* serve\.fixed_token",
        ),
        ({"hosts": ["https://tools.example.com"]}, "hosts: 'https://tools.example.com' is invalid"),
        ({"hosts": ["*"]}, r"hosts: '\*' is invalid; write 'tools.example.com'"),
        ({"origins": ["*"]}, r"origins: '\*' is invalid; write 'https://app.example.com'"),
        ({"origins": ["https://app.example.com/"]}, "origins: 'https://app.example.com/' is invalid"),
        ({"origins": ["app.example.com"]}, "origins: 'app.example.com' is invalid"),
    ],
)
def test_what_could_not_work_is_told_where_it_is_written(options: Any, error: str) -> None:
    with pytest.raises(DefinitionError, match=error):
        serve.mcp(Runner([add]), **options)


def test_what_is_no_runner_is_told_how_to_become_one() -> None:
    with pytest.raises(DefinitionError, match=r"Runner\(tools\) makes one"):
        serve.mcp([add])  # type: ignore[arg-type]


def test_a_person_is_not_asked_where_nothing_asks() -> None:
    person = Person("decline")
    assert text(call(Runner([add]), "2026-07-28", "add", {"a": 1, "b": 2}, person)) == "3" and person.asked == []


@both_eras
async def test_a_request_that_is_sent_again_is_a_call_of_its_own(era: str) -> None:
    keys: list[str] = []

    @tool
    async def pay(euros: int, context: ToolContext) -> str:
        """Pay."""
        keys.append(context.idempotency_key)
        return "paid"

    journal = memory()
    served = Runner([pay], journal=journal)

    async def main() -> None:
        async with client(served, era, context=ToolContext(session="s1")) as connected:
            for _ in range(2):
                assert not (await connected.call_tool("pay", {"euros": 5})).is_error

    await main()
    assert len({*keys}) == 2 and [event.kind for event in journal.events].count("tool:post") == 2


@both_eras
def test_what_nobody_knows_is_an_error_that_says_so(era: str) -> None:
    async def far_away(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        return ToolResult(error="its effect may have happened", status="unknown", executed=None)

    result = call(Runner([remove], around=[far_away]), era, "remove", {"name": "a"})
    assert result.is_error and "its effect may have happened" in text(result)


@both_eras
async def test_a_client_gets_the_ticket_of_a_call_in_the_background_and_looks_at_it_with_that(era: str) -> None:
    may_end = asyncio.Event()

    @tool(background=True)
    async def square(number: int) -> int:
        """Square a number."""
        await may_end.wait()
        return number * number

    async with client(Runner([square, *background.tools]), era) as connected:
        begun = (await connected.call_tool("square", {"number": 5})).structured_content
        assert begun is not None and begun["status"] == "running"
        look = {"ticket": begun["ticket"], "wait_seconds": 30}
        assert "running" in text(await connected.call_tool("check_call", {"ticket": begun["ticket"]}))
        may_end.set()
        assert text(await connected.call_tool("check_call", look)) == "25"
    async with client(Runner([square, *background.tools]), era) as other:
        assert "There is no call with the ticket" in text(await other.call_tool("check_call", look))
