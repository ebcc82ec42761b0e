"""Long calls as tasks of MCP, as a client of 2026-07-28 sees them: status, result, questions, cancellation, expiry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import mcp_types as wire
import pytest
from connected import LEGACY, MODERN, text
from hypothesis import given
from hypothesis import strategies as st
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from test_over_http import listening

from ferrule import InputRequired, Runner, ToolContext, ToolError, serve, tool
from ferrule.mcp._tasks import TaskSupport
from ferrule.mcp.task_messages import TASKS, CreatedTask, TaskRequest, TaskState
from gates import Gate
from waits import BOUND

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
UNKNOWN = "work_" + "0" * 32


@tool(background=True, read_only=True)
async def bake(loaves: int, context: ToolContext) -> dict[str, int]:
    if not loaves:
        raise ToolError("there is no flour")
    return {"loaves": loaves}


@tool(background=True, read_only=True)
async def greet(context: ToolContext) -> str:
    asked = [InputRequired(f"Who is {which}?", NAME) for which in ("first", "second")]
    answers = await asyncio.gather(*map(context.ask, asked))
    return " and ".join("nobody" if one is None else str(one["name"]) for one in answers)


@tool(background=True, read_only=True)
async def break_protocol() -> str:
    raise MCPError(-32000, "the oven is cold", {"degrees": 12})


async def answer_nothing(context: Any, params: Any) -> wire.ElicitResult:
    return wire.ElicitResult(action="cancel")


class TaskClient:
    """A client that declares the extension, and sends its requests one by one."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def begin(self, name: str, **arguments: Any) -> str:
        created = await self.client.session.call_tool(name, arguments, allow_claimed=True)
        assert isinstance(created, CreatedTask), created
        return created.task_id

    async def send(self, method: str, task_id: str, **params: Any) -> TaskState:
        request = TaskRequest(method=method, params={"taskId": task_id, **params})
        answer: type[Any] = TaskState if method == "tasks/get" else wire.EmptyResult
        found: TaskState = await self.client.session.send_request(request, answer)
        return found

    async def get(self, task_id: str) -> TaskState:
        return await self.send("tasks/get", task_id)

    async def wait(self, task_id: str, *statuses: str) -> TaskState:
        """Poll until the task has one of these statuses."""
        async with asyncio.timeout(BOUND):
            while (state := await self.get(task_id)).status not in statuses:
                await asyncio.sleep(0.001)
        return state


@asynccontextmanager
async def task_client(server: Any) -> AsyncIterator[TaskClient]:
    async with Client(
        server, mode=MODERN, extensions=[TaskSupport()], elicitation_callback=answer_nothing
    ) as connected:
        yield TaskClient(connected)


@asynccontextmanager
async def served(*tools: Any, **options: Any) -> AsyncIterator[TaskClient]:
    async with task_client(serve.mcp(Runner(tools), **options).server) as client:
        yield client


async def refusal(client: TaskClient, method: str, task_id: str, **params: Any) -> tuple[int, str]:
    with pytest.raises(MCPError) as raised:
        await client.send(method, task_id, **params)
    return raised.value.code, raised.value.message


async def test_a_task_shows_its_progress_and_then_its_result() -> None:
    entered, opened = asyncio.Event(), asyncio.Event()

    @tool(background=True, read_only=True)
    async def work(context: ToolContext) -> list[int]:
        context.progress(1, 2, "half")
        entered.set()
        await opened.wait()
        return [1, 2]

    async with served(work) as client:
        task_id = await client.begin("work")
        await entered.wait()
        before = await client.get(task_id)
        opened.set()
        after = await client.wait(task_id, "completed")
    assert (before.status, before.status_message) == ("working", "half (1 of 2)")
    assert after.result is not None and after.result.structured_content == [1, 2]


async def test_an_error_of_the_tool_is_a_result_and_one_of_the_protocol_a_failure() -> None:
    async with served(bake, break_protocol) as client:
        failed = await client.wait(await client.begin("bake", loaves=0), "completed", "failed")
        broken = await client.wait(await client.begin("break_protocol"), "completed", "failed")
    assert failed.status == "completed" and failed.result is not None and failed.result.is_error
    assert "no flour" in text(failed.result)
    assert broken.status == "failed" and broken.result is None and broken.error is not None
    assert broken.error.code == -32000 and broken.error.data is None


@pytest.mark.parametrize("era", ["auto", LEGACY])
async def test_a_client_without_the_extension_gets_the_ticket(era: str) -> None:
    async with Client(serve.mcp(Runner([bake])).server, mode=era) as client:
        assert "ticket" in text(await client.call_tool("bake", {"loaves": 1}))
        with pytest.raises(MCPError) as raised:
            await client.session.send_request(TaskRequest(method="tasks/get", params={"taskId": UNKNOWN}), TaskState)
        wanted = {"taskId": UNKNOWN, "notifications": {"taskIds": []}}
        listen = TaskRequest(method="subscriptions/listen", params=wanted)
        with pytest.raises(MCPError) as not_told:
            await client.session.send_request(listen, wire.EmptyResult)
        capabilities = client.server_capabilities
    if era == "auto":
        assert raised.value.code == not_told.value.code == wire.MISSING_REQUIRED_CLIENT_CAPABILITY
        assert raised.value.data == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        assert capabilities is not None and capabilities.extensions == {TASKS: {}}
    else:
        assert raised.value.code == wire.METHOD_NOT_FOUND
        assert capabilities is None or TASKS not in (capabilities.extensions or {})


@given(task_id=st.text(max_size=60) | st.from_regex(r"work_[0-9a-f]{32}", fullmatch=True))
async def test_an_unknown_task_is_an_error_for_every_method(task_id: str) -> None:
    async with served(bake) as client:
        for method, params in (("tasks/get", {}), ("tasks/cancel", {}), ("tasks/update", {"inputResponses": {}})):
            code, message = await refusal(client, method, task_id, **params)
            assert code == wire.INVALID_PARAMS and "Unknown task" in message


async def test_only_its_principal_sees_a_task() -> None:
    gate = Gate(background=True, read_only=True)
    app = serve.mcp(Runner([gate.tool]), tokens=lambda token: token.partition("-")[0])

    @asynccontextmanager
    async def connect(url: str, token: str) -> AsyncIterator[TaskClient]:
        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http,
            task_client(streamable_http_client(f"{url}/mcp", http_client=http)) as client,
        ):
            yield client

    async with listening(app) as url:
        async with connect(url, "ann-1") as ann, connect(url, "bob-1") as bob, connect(url, "ann-2") as ann_again:
            task_id = await ann.begin("wait")
            await gate.inside.wait()
            for method, params in (("tasks/get", {}), ("tasks/cancel", {}), ("tasks/update", {"inputResponses": {}})):
                assert (await refusal(bob, method, task_id, **params))[0] == wire.INVALID_PARAMS
            assert (await ann_again.get(task_id)).status == "working"
            gate.open.set()
            assert (await ann.wait(task_id, "completed")).result is not None


async def test_each_principal_has_a_bounded_number_of_tasks() -> None:
    gate = Gate(background=True, read_only=True)
    async with served(gate.tool, in_flight_each=2) as client:
        first, _ = [await client.begin("wait") for _ in range(2)]
        refused = await client.client.call_tool("wait", {})
        assert refused.is_error and "Too many calls" in text(refused)
        gate.open.set()
        await client.wait(first, "completed")
        await client.wait(await client.begin("wait"), "completed")


async def test_an_expired_task_is_an_error() -> None:
    async with served(bake, keep_tasks=1e-9) as client:
        code, message = await refusal(client, "tasks/get", await client.begin("bake", loaves=1))
    assert code == wire.INVALID_PARAMS and "expired" in message


@pytest.mark.parametrize("moment", ["before it begins", "while it runs", "while it asks", "at its end"])
async def test_a_task_can_be_cancelled_at_any_moment(moment: str) -> None:
    gate = Gate(background=True, read_only=True)
    async with served(gate.tool, greet) as client:
        task_id = await client.begin("greet" if moment == "while it asks" else "wait")
        if moment == "while it runs":
            await gate.inside.wait()
        elif moment == "while it asks":
            await client.wait(task_id, "input_required")
        elif moment == "at its end":
            gate.open.set()
            await client.wait(task_id, "completed")
        for _ in range(2):  # the second time, it has ended
            await client.send("tasks/cancel", task_id)
        state = await client.wait(task_id, "cancelled", "completed")
    assert state.status == ("completed" if moment == "at its end" else "cancelled")


async def test_a_client_that_leaves_does_not_end_its_task() -> None:
    gate = Gate(background=True, read_only=True)
    app = serve.mcp(Runner([gate.tool]))
    async with task_client(app.server) as client:
        task_id = await client.begin("wait")
    gate.open.set()
    async with task_client(app.server) as client:
        assert (await client.wait(task_id, "completed")).result is not None


async def test_questions_of_a_task_are_answered_one_by_one() -> None:
    async with served(greet) as client:
        task_id = await client.begin("greet")
        while len(asked := (await client.wait(task_id, "input_required")).input_requests or {}) < 2:
            await asyncio.sleep(0)
        first, second = asked
        yes = {"action": "accept", "content": {"name": "Ada"}}
        await client.send("tasks/update", task_id, inputResponses={first: yes, "unknown": {"odd": True}})
        left = await client.wait(task_id, "input_required")
        assert list(left.input_requests or {}) == [second]
        assert (await refusal(client, "tasks/update", task_id, inputResponses={second: {"odd": 1}}))[0] == -32602
        await client.send("tasks/update", task_id, inputResponses={first: yes, second: {"action": "decline"}})
        done = await client.wait(task_id, "completed")
    assert done.result is not None and sorted(text(done.result).split(" and ")) == ["Ada", "nobody"]


async def test_a_question_without_an_answer_in_time_is_a_no() -> None:
    async with served(greet, answer_within=0.01) as client:
        done = await client.wait(await client.begin("greet"), "completed")
    assert done.result is not None and text(done.result) == "nobody and nobody"
