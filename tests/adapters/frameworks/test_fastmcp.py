"""FastMCP, driven by its own client over both revisions of the protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Literal

import httpx2
import mcp_types as wire
import pytest
import uvicorn
from fastmcp import Client, Context, FastMCP
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.exceptions import ToolError as TheirToolError
from fastmcp.server.auth.providers.jwt import StaticTokenVerifier
from fastmcp.server.middleware import Middleware
from fastmcp.tools.base import ToolResult
from fastmcp.utilities.types import Image
from mcp.server.request_state import RequestStateSecurity
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from ferrule import DefinitionError, InputRequired, Runner, ToolContext, ask, tool
from ferrule.adapters import fastmcp
from ferrule.guards import ask_before_changes
from ferrule.mcp.serve._http import MCPApp
from ferrule.middleware import limit_output, untrusted
from ferrule.testing import AdapterContract, Framework, FrameworkRun, ModelView, Question, ScriptedCall
from ferrule.testing.world import PNG

ASKED = {"approve": True}


def server(runner: Runner, **options: Any) -> FastMCP:
    @asynccontextmanager
    async def lifespan(app: FastMCP) -> AsyncIterator[dict[str, Any]]:
        yield {"deps": "DEPS"}

    def context(ctx: Context) -> ToolContext:
        return fastmcp.to_context(ctx).replace(deps=ctx.lifespan_context["deps"])

    mcp = FastMCP("tested", lifespan=lifespan, **options)
    mcp.add_provider(fastmcp.provider(runner, context=context))
    return mcp


@asynccontextmanager
async def served(mcp: FastMCP | MCPApp) -> AsyncIterator[str]:
    """Its address on loopback; who connects before it runs waits."""
    app: Any = mcp.http_app() if isinstance(mcp, FastMCP) else mcp
    with socket.create_server(("127.0.0.1", 0)) as listening:
        http = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        task = asyncio.create_task(http.serve(sockets=[listening]))
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        http.should_exit = True
        await task


def seen(result: wire.CallToolResult) -> ModelView:
    text = " ".join(block.text for block in result.content if isinstance(block, wire.TextContent))
    media = tuple(base64.b64decode(block.data) for block in result.content if isinstance(block, wire.ImageContent))
    return ModelView(text, result.is_error is True, media)


def question_of(message: str) -> Question:
    reason, _, call = message.partition("\n\n")
    lines = [line.partition(": ") for line in call.splitlines()[1:]]
    return Question({name: json.loads(value) for name, _, value in lines}, reason)


class DrivenClient(FrameworkRun):
    """Calls of one client, which sends them side by side and itself goes on with those that ask."""

    def __init__(self, client: Client[Any], calls: tuple[ScriptedCall, ...]) -> None:
        super().__init__()
        self._client = client
        self.calls = {said.id: said for said in calls}
        self.asked: dict[str, wire.InputRequiredResult] = {}

    async def send(self, *call_ids: str, **given: Any) -> None:
        await asyncio.gather(*[self._send(call_id, **given) for call_id in call_ids])

    async def _send(self, call_id: str, **given: Any) -> None:
        async def tell(done: float, total: float | None, message: str | None) -> None:
            self.progress.append((call_id, done, total, message))

        said = self.calls[call_id]
        assert isinstance(said.arguments, dict)
        try:
            result: Any = await self._client.session.call_tool(
                said.name, said.arguments, progress_callback=tell, allow_input_required=True, **given
            )
        except MCPError as error:
            self.results[call_id] = ModelView(str(error), failed=True)
            return
        if isinstance(result, wire.InputRequiredResult):
            [request] = (result.input_requests or {}).values()
            assert isinstance(request, wire.ElicitRequest)
            self.questions[call_id] = question_of(request.params.message)
            self.asked[call_id] = result
        else:
            self.results[call_id] = seen(result)

    async def run(self) -> None:
        await self.send(*self.calls)

    async def answer(
        self,
        answers: Mapping[str, bool | dict[str, Any]],
        record: Literal["unchanged", "changed", "lost"] = "unchanged",
    ) -> None:
        waiting, self.questions = dict(self.asked), {}
        for call_id, answer in answers.items():
            state = waiting[call_id].request_state
            assert state is not None
            if record == "changed":
                state = state[:-4] + ("AAAA" if state[-4:] != "AAAA" else "BBBB")
            said = wire.ElicitResult(action="accept", content={"approve": answer})
            given = {} if record == "lost" else {"request_state": state}
            await self.send(call_id, input_responses={"question": said}, **given)


class DrivenConnection(DrivenClient):
    """A client of 2025, which is asked while its requests wait."""

    def __init__(self, server: FastMCP, calls: tuple[ScriptedCall, ...]) -> None:
        super().__init__(Client(server, mode="legacy", elicitation_handler=self._elicited), calls)
        self._answers: dict[str, asyncio.Future[bool]] = {}
        self._sent: dict[str, asyncio.Task[None]] = {}

    async def _elicited(self, message: str, response_type: Any, params: Any, context: Any) -> Any:
        question = question_of(message)
        to = question.arguments.get("to")  # the rest may have defaults, or be changed by guards
        [call_id] = [said.id for said in self.calls.values() if dict(said.arguments).get("to") == to]
        self.questions[call_id] = question
        self._answers[call_id] = asyncio.get_running_loop().create_future()
        self._settled.set()
        return {"approve": await self._answers[call_id]}

    async def run(self) -> None:
        self._settled = asyncio.Event()
        await self._client.__aenter__()
        for call_id in self.calls:
            self._sent[call_id] = asyncio.create_task(self._send(call_id))
            self._sent[call_id].add_done_callback(lambda _: self._settled.set())
        try:
            await self._settle()
        except asyncio.CancelledError:
            for task in self._sent.values():
                task.cancel()
            await asyncio.wait(self._sent.values())
            raise

    async def _settle(self) -> None:
        """Wait until each call has ended or asks."""
        while any(not task.done() and call_id not in self.questions for call_id, task in self._sent.items()):
            self._settled.clear()
            await self._settled.wait()

    async def answer(
        self,
        answers: Mapping[str, bool | dict[str, Any]],
        record: Literal["unchanged", "changed", "lost"] = "unchanged",
    ) -> None:
        for call_id, answer in answers.items():
            if self.questions.pop(call_id, None) is not None:
                self._answers[call_id].set_result(answer is True)
        await self._settle()


class FastMCP2026(Framework):
    edits = False  # a client's form has a yes or a no
    knows_calls = False  # what comes without `request_state` is another request, of another connection

    async def start_run(self, runner: Runner, *calls: ScriptedCall) -> DrivenClient:
        async def refuse(*_: Any) -> Any:
            raise AssertionError("the driver answers")

        keys = RequestStateSecurity(keys=[b"f" * 32])
        client = Client(server(runner, request_state_security=keys), elicitation_handler=refuse, mode="2026-07-28")
        driven = DrivenClient(client, calls)
        await client.__aenter__()
        await driven.run()
        return driven

    def export_run(self, waiting: DrivenClient) -> Any:
        return waiting.calls, waiting.asked

    async def import_run(self, runner: Runner, stored: Any) -> FrameworkRun:
        driven = await self.start_run(runner)
        driven.calls, driven.asked = stored
        return driven


class FastMCP2025(Framework):
    edits = False
    brings_record = False  # the request waits for its answer
    waits_with_record = True

    async def start_run(self, runner: Runner, *calls: ScriptedCall) -> FrameworkRun:
        driven = DrivenConnection(server(runner), calls)
        await driven.run()
        return driven


class TestAsOf2026(AdapterContract):
    framework = FastMCP2026()


class TestAsOf2025(AdapterContract):
    framework = FastMCP2025()


MODES = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])


class Order(BaseModel):
    item: str
    euros: int


def paying(paid: list[str]) -> Any:
    @tool
    async def pay(to: str, euros: int) -> str:
        paid.append(f"{to} {euros}")
        return f"paid {to}"

    return pay


async def accept(message: str, response_type: Any, params: Any, context: Any) -> Any:
    return ASKED


@MODES
async def test_a_client_that_cannot_ask_gets_an_error(mode: str) -> None:
    paid: list[str] = []
    async with Client(server(Runner([paying(paid)], guards=[ask_before_changes])), mode=mode) as client:
        with pytest.raises((TheirToolError, MCPError)) as raised:
            await client.call_tool("pay", {"to": "ada", "euros": 5})
        assert "the client of this call cannot ask anybody" in str(raised.value)
    assert not paid


@MODES
async def test_a_client_answers_the_question_of_a_tool(mode: str) -> None:
    @tool
    async def book(context: ToolContext) -> Any:
        if context.answer is None:
            return InputRequired("Which seat?", {"type": "object", "properties": {"seat": {"type": "string"}}})
        return f"booked {context.answer.value['seat']}"

    async def tell(message: str, *_: Any) -> Any:
        assert "Which seat?" in message
        return {"seat": "7A"}

    async with Client(server(Runner([book])), mode=mode, elicitation_handler=tell) as client:
        assert seen(await client.call_tool_mcp("book", {})).text == "booked 7A"


@MODES
async def test_a_client_is_not_asked_for_a_private_value(mode: str) -> None:
    @tool(private=["pin"])
    async def pay(to: str, pin: str = "") -> str:
        return f"paid {to} {pin}"

    runner = Runner([pay], guards=[lambda call, context: ask("the pin", into="pin")])
    async with Client(server(runner), mode=mode, elicitation_handler=accept) as client:
        result = seen(await client.call_tool_mcp("pay", {"to": "ada"}))
    assert result.failed and "'pin' is never asked of a client" in result.text


@MODES
async def test_a_tool_is_listed_with_hints_and_output_schema(mode: str) -> None:
    @tool(read_only=True, open_world=False, metadata={"title": "An order"})
    async def order(item: str) -> Order:
        return Order(item=item, euros=4)

    async with Client(server(Runner([order], around=[limit_output(500)])), mode=mode) as client:
        [listed] = await client.list_tools()
        result = await client.call_tool_mcp("order", {"item": "tea"})
        async with Client(server(Runner([order], around=[untrusted])), mode=mode) as other:
            [enveloped] = await other.list_tools()
            assert (await other.call_tool_mcp("order", {"item": "tea"})).is_error is False
    assert (listed.title, listed.annotations.read_only_hint, listed.annotations.open_world_hint) == (
        "An order",
        True,
        False,
    )
    assert listed.input_schema["additionalProperties"] is False
    assert listed.output_schema["required"] == ["item", "euros"]
    assert result.structured_content == {"item": "tea", "euros": 4}
    assert enveloped.output_schema is None, "in an envelope a result has no form"


async def test_a_long_argument_hides_no_other_from_the_person() -> None:
    messages: list[str] = []

    async def look(message: str, *_: Any) -> Any:
        messages.append(message)
        return ASKED

    @tool
    async def pay(note: str, to: str) -> str:
        return "paid"

    runner = Runner([pay], guards=[ask_before_changes])
    async with Client(server(runner), elicitation_handler=look) as client:
        await client.call_tool("pay", {"note": "x" * 20_000 + "\u202e", "to": "mallory"})
    message = messages[0]
    assert 'to: "mallory"' in message and len(message) <= 8_000
    assert "\u202e" not in message


@MODES
async def test_progress_that_does_not_increase_is_skipped(mode: str) -> None:
    @tool(read_only=True)
    async def count(context: ToolContext) -> str:
        for done in (1, 3, 2, 3, 4):
            context.progress(done, 4)
        return "counted"

    told: list[float] = []

    async def tell(done: float, total: float | None, message: str | None) -> None:
        told.append(done)

    async with Client(server(Runner([count])), mode=mode, progress_handler=tell) as client:
        await client.call_tool("count", {})
    assert told == [1, 3, 4]


async def test_two_equal_requests_of_2026_are_two_calls() -> None:
    paid: list[str] = []
    mcp = server(Runner([paying(paid)]))
    for _ in range(2):  # each client counts its requests from the beginning
        async with Client(mcp, mode="2026-07-28") as client:
            await client.call_tool("pay", {"to": "ada", "euros": 5})
    assert paid == ["ada 5", "ada 5"]


async def test_a_repeated_message_of_2025_runs_once() -> None:
    """As one does whose answer was lost, sent again by what carries it."""
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}

    async def post(http: httpx2.AsyncClient, url: str, method: str, **message: Any) -> httpx2.Response:
        return await http.post(url, headers=headers, json={"jsonrpc": "2.0", "method": method, **message})

    paid: list[str] = []
    async with served(server(Runner([paying(paid)]))) as url, httpx2.AsyncClient() as http:
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        opened = await post(http, url, "initialize", id=0, params=hello)
        headers["mcp-session-id"] = opened.headers["mcp-session-id"]
        await post(http, url, "notifications/initialized")
        call = {"name": "pay", "arguments": {"to": "ada", "euros": 5}}
        texts = [(await post(http, url, "tools/call", id=id, params=call)).text for id in (7, 7, 8)]
    assert all("paid ada" in text for text in texts)
    assert paid == ["ada 5", "ada 5"], "the one with the id 7 once, and the one with the id 8"


async def test_another_user_cannot_answer_a_question() -> None:
    tokens = {name: {"client_id": "app", "sub": name, "scopes": []} for name in ("ada", "bob")}

    def connected(url: str, who: str) -> Client[Any]:
        return Client(StreamableHttpTransport(url, auth=who), elicitation_handler=accept, mode="2026-07-28")

    paid: list[str] = []
    seen_by: set[str | None] = set()
    runner = Runner([paying(paid)], guards=[ask_before_changes, lambda call, context: seen_by.add(context.principal)])
    async with served(server(runner, auth=StaticTokenVerifier(tokens))) as url:
        async with connected(url, "ada") as ada, connected(url, "bob") as bob:
            call = ("pay", {"to": "ada", "euros": 5})
            asked: Any = await ada.session.call_tool(*call, allow_input_required=True)
            answer: Any = {
                "input_responses": {"question": wire.ElicitResult(action="accept", content=ASKED)},
                "request_state": asked.request_state,
            }
            with pytest.raises(MCPError, match="requestState"):
                await bob.session.call_tool(*call, **answer)
            with pytest.raises(MCPError, match="requestState"):
                await ada.session.call_tool("pay", {"to": "ada", "euros": 500}, **answer)
            first, second = (
                seen(await ada.session.call_tool(*call, **answer)),
                seen(await ada.session.call_tool(*call, **answer)),
            )
    assert first == ModelView("paid ada")
    assert paid == ["ada 5"], second
    assert seen_by == {'["app", null, "ada"]'}


async def test_an_anonymous_client_of_2026_is_asked_over_http() -> None:
    """It has no session, so that its question is known by what it carries alone."""
    paid: list[str] = []
    async with served(server(Runner([paying(paid)], guards=[ask_before_changes]))) as url:
        transport = StreamableHttpTransport(url)
        async with Client(transport, elicitation_handler=accept, mode="2026-07-28") as client:
            assert seen(await client.call_tool_mcp("pay", {"to": "ada", "euros": 5})) == ModelView("paid ada")
    assert paid == ["ada 5"]


async def test_a_program_may_call_a_tool_without_a_client() -> None:
    paid: list[str] = []
    mcp = FastMCP("tested")
    mcp.add_provider(fastmcp.provider(Runner([paying(paid)], guards=[ask_before_changes])))
    asking = await mcp.call_tool("pay", {"to": "ada", "euros": 5})
    assert asking.is_error and "cannot ask anybody" in asking.content[0].text
    assert not paid


def theirs() -> FastMCP:
    mcp = FastMCP("theirs", middleware=[Counting()])

    @mcp.tool(annotations={"readOnlyHint": True, "openWorldHint": False}, timeout=7, tags={"dice"}, title="Roll")
    async def roll(sides: int, ctx: Context, times: int = 2) -> dict[str, str]:
        """Roll dice."""
        if sides < 2:
            raise TheirToolError("there are no dice with less than 2 sides")
        return {"rolled": f"{sides}x{times} on {ctx.fastmcp.name}"}

    @mcp.tool
    def total(numbers: list[int]) -> int:
        """Add."""
        return sum(numbers)

    @mcp.tool
    def dot() -> list[Any]:
        """A dot."""
        return ["a dot", Image(data=PNG, format="png")]

    @mcp.tool
    def seat(ctx: Context) -> Any:
        """Asks."""
        form = wire.ElicitRequestFormParams(message="Which?", requested_schema={"type": "object", "properties": {}})
        return wire.InputRequiredResult(input_requests={"q": wire.ElicitRequest(params=form)}, request_state="s")

    @mcp.tool
    def breaking() -> int:
        """Breaks."""
        raise RuntimeError("the database at 10.0.0.7 is down")

    @mcp.tool
    def failing() -> ToolResult:
        """Fails."""
        return ToolResult(content="it broke", is_error=True)

    return mcp


class Counting(Middleware):
    called: ClassVar[list[str]] = []

    async def on_call_tool(self, context: Any, call_next: Any) -> Any:
        self.called.append(context.message.name)
        return await call_next(context)


async def ran(name: str, arguments: dict[str, Any], **options: Any) -> Any:
    return await Runner(await fastmcp.from_tools(theirs()), **options).run(name, arguments)


async def test_a_server_tool_keeps_its_options_and_middleware() -> None:
    roll = (await fastmcp.from_tools(theirs())).get("roll")
    assert (roll.description, roll.title, roll.timeout, tuple(roll.tags)) == ("Roll dice.", "Roll", 7, ("dice",))
    assert (roll.read_only, roll.open_world) == (True, False)
    assert roll.input_schema["required"] == ["sides"]
    Counting.called.clear()
    assert (await ran("roll", {"sides": 6})).output == {"rolled": "6x2 on theirs"}
    assert Counting.called == ["roll"]


async def test_a_server_tool_gets_no_answers_of_the_outer_request() -> None:
    """Such as a yes to the question whether it may run, which is under the same key."""
    bank, found = FastMCP("bank"), list[Any]()

    @bank.tool
    async def pay(euros: int, ctx: Context) -> str:
        """Pay."""
        found.append((ctx.input_responses, ctx.request_state))
        return f"paid {euros}"

    runner = Runner(await fastmcp.from_tools(bank), guards=[ask_before_changes])
    async with Client(server(runner), mode="2026-07-28", elicitation_handler=accept) as client:
        assert seen(await client.call_tool_mcp("pay", {"euros": 5})) == ModelView("paid 5")
    assert found == [(None, None)]


async def test_media_of_a_server_tool_arrive() -> None:
    result = await ran("dot", {})
    assert [getattr(block, "data", None) for block in result.content] == [None, PNG]


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("roll", {"sides": 1}, "there are no dice with less than 2 sides"),
        ("failing", {}, "it broke"),
        ("seat", {}, "asks its client for input"),
    ],
)
async def test_a_failure_in_a_server_tool_is_a_failure(name: str, arguments: dict[str, Any], text: str) -> None:
    result = await ran(name, arguments)
    assert result.status == "failed" and text in result.text


@pytest.mark.parametrize(("expose", "told"), [({}, False), ({"expose": (RuntimeError,)}, True)])
async def test_an_exception_is_shown_only_if_the_runner_exposes_it(expose: Any, told: bool) -> None:
    result = await ran("breaking", {}, **expose)
    assert result.status == "failed" and ("10.0.0.7" in result.text) is told


async def test_a_client_is_refused_with_the_remedy() -> None:
    with pytest.raises(DefinitionError, match=r"mcp\.connect"):
        await fastmcp.from_tools(Client(theirs()))  # type: ignore[arg-type]
