"""Calls that a server answers with a task: polls, progress, questions, cancellation, and servers that mean no good."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError
from mcp_servers import Made, serving

from cast import Person
from ferrule import Event, Runner, ToolCall, ToolResult, allow, mcp, serve, tool
from ferrule.approval import later
from ferrule.guards import ask_before_changes
from ferrule.mcp.task_messages import TASKS
from ferrule.testing import ManualClock
from waits import BOUND

DONE = {"content": [{"type": "text", "text": "done"}], "isError": False}
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
KEY = b"k" * 32


class HastyClock(ManualClock):
    """A clock whose waits are over at once.

    Attributes:
        waits: The seconds of each.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    async def sleep(self, seconds: float, /) -> None:
        self.waits.append(seconds)
        await asyncio.sleep(0)


class TaskParams(types.RequestParams):
    task_id: str
    input_responses: dict[str, Any] = {}


class TaskServer(Made):
    """A server whose tool `work` is a task with these states, the last of them again and again.

    Attributes:
        requests: The methods of the extension that were called.
        answers: The answers to its questions.
    """

    def __init__(self, *states: Any, task_id: str = "t1", **created: Any) -> None:
        super().__init__()
        self.requests: list[str] = []
        self.answers: dict[str, Any] = {}
        self.states = [*states]

        async def work(context: Any, arguments: dict[str, Any]) -> Any:
            assert TASKS in context.session.client_capabilities.extensions
            return {"resultType": "task", "taskId": task_id, "status": "working", "ttlMs": None, **created}

        self.add("work", work)
        self.server.extensions[TASKS] = {}
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            self.server.add_request_handler(method, TaskParams, self.answer)

    async def answer(self, context: Any, params: TaskParams) -> Any:
        self.requests.append(context.method)
        if context.method == "tasks/update":
            self.answers |= params.input_responses
        if context.method != "tasks/get":
            return {}
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(state, Exception):
            raise state
        return {"taskId": params.task_id, "createdAt": "", "lastUpdatedAt": "", "ttlMs": None, **state}


def working(**more: Any) -> dict[str, Any]:
    return {"status": "working", **more}


def completed(**more: Any) -> dict[str, Any]:
    return {"status": "completed", "result": {**DONE, **more}}


def asking(*keys: str) -> dict[str, Any]:
    params = {"mode": "form", "message": "Who?", "requestedSchema": NAME}
    return {
        "status": "input_required",
        "inputRequests": {key: {"method": "elicitation/create", "params": params} for key in keys},
    }


async def run(server: Made, clock: ManualClock | None = None, **options: Any) -> ToolResult:
    async with mcp.connect(server.memory()) as toolset:
        async with asyncio.timeout(BOUND):
            return await Runner(toolset, clock=clock or HastyClock(), **options).run("work", {})


@pytest.mark.parametrize(
    ("interval", "expected"), [(None, 1.0), (0, 0.1), (-5, 0.1), (700, 0.7), (10**30, 60.0)], ids=str
)
async def test_the_interval_of_a_server_is_bounded(interval: int | None, expected: float) -> None:
    clock = HastyClock()
    await run(TaskServer(working(pollIntervalMs=interval), completed(), pollIntervalMs=interval), clock)
    assert clock.waits == [expected] * 2


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"status": "failed", "error": {"code": -5, "message": "no oven"}}, "refused the call: no oven (error -5)"),
        ({"status": "completed"}, "without a result: completed"),
        ({"status": "dancing"}, "could not be read"),
        ({"status": "completed", "result": {"content": "all"}}, "could not be read"),
        (MCPError(types.INVALID_PARAMS, "Task not found"), "refused the call: Task not found"),
    ],
    ids=str,
)
async def test_a_task_without_a_result_is_an_error_whose_effect_is_unknown(state: Any, expected: str) -> None:
    result = await run(TaskServer(working(), state))
    assert result.status in ("failed", "unknown") and expected in str(result.error)
    assert result.executed is None


async def test_a_very_long_id_is_refused() -> None:
    server = TaskServer(completed(), task_id="t" * 100_000)
    assert "id of more than" in str((await run(server)).error) and "tasks/get" not in server.requests


async def test_new_messages_are_progress() -> None:
    events: list[Event] = []
    server = TaskServer(
        working(statusMessage="half"), working(statusMessage="half"), working(statusMessage="almost"), completed()
    )
    await run(server, observers=[events.append])
    assert [event.data["message"] for event in events if event.kind == "tool:progress"] == ["half", "almost"]


async def test_a_task_that_never_ends_is_cancelled_at_the_deadline() -> None:
    server, clock = TaskServer(working()), ManualClock()
    async with mcp.connect(server.memory()) as toolset:
        running = asyncio.create_task(Runner(toolset, clock=clock, timeout=30).run("work", {}))
        async with asyncio.timeout(BOUND):
            while not running.done():
                await clock.advance(1)
        result = await running
    assert result.status == "timeout" and server.requests[-1] == "tasks/cancel"


@pytest.mark.parametrize("moment", ["before the task", "before a poll", "within a poll"])
async def test_a_cancelled_call_cancels_its_task(moment: str) -> None:
    entered, held = asyncio.Event(), asyncio.Event()

    class Holding(TaskServer):
        async def answer(self, context: Any, params: TaskParams) -> Any:
            found = await super().answer(context, params)
            if context.method == "tasks/get" and moment == "within a poll":
                entered.set()
                await held.wait()
            return found

    class Pausing(HastyClock):
        async def sleep(self, seconds: float, /) -> None:
            if moment == "before a poll":
                entered.set()
                await held.wait()
            await super().sleep(seconds)

    server = Holding(working())
    if moment == "before the task":

        async def work(context: Any, arguments: dict[str, Any]) -> Any:
            entered.set()
            await held.wait()

        server.add("work", work)
    async with mcp.connect(server.memory()) as toolset:
        runner = Runner(toolset, clock=Pausing())
        batch = runner.batch([ToolCall("1", "work", "{}")])
        await asyncio.wait_for(entered.wait(), BOUND)
        batch.cancel(now=True)
        (result,) = await batch
    assert result.status == "cancelled"
    assert ("tasks/cancel" in server.requests) is (moment != "before the task")


async def test_a_question_of_a_task_goes_to_the_approver_once() -> None:
    person = Person(allow({"name": "Ada"}))
    server = TaskServer(asking("who"), asking("who"), working(), asking("who", "else"), completed())
    result = await run(server, approve=person)
    assert result.output == "done" and [one.reason for one in person.decisions] == ["made asks: Who?"] * 2
    assert server.answers == {key: {"action": "accept", "content": {"name": "Ada"}} for key in ("who", "else")}


async def test_a_suspended_question_leads_back_to_its_task() -> None:
    server = TaskServer(asking("who"), completed())
    first = await run(server, approve=later, resume_key=KEY)
    assert first.status == "suspended" and server.requests == ["tasks/get"]
    record = json.loads(json.dumps(first.record()))
    async with mcp.connect(server.memory()) as toolset:
        result = await Runner(toolset, resume_key=KEY, clock=HastyClock()).resume(record, allow({"name": "Ada"}))
    assert result.output == "done" and len(server.calls) == 1
    assert server.answers == {"who": {"action": "accept", "content": {"name": "Ada"}}}


@pytest.mark.parametrize("url", ["javascript:alert(1)", "https://example.com/in"])
async def test_a_form_cannot_pretend_to_be_an_address_to_visit(url: str) -> None:
    person = Person()
    params = {"mode": "form", "message": "Who?", "requestedSchema": {**NAME, "x-mcp-url": url}}
    state = {"status": "input_required", "inputRequests": {"a": {"method": "elicitation/create", "params": params}}}
    server = TaskServer(state)
    result = await run(server, approve=person)
    assert result.status == "failed" and "pretends to be an address to visit" in str(result.error)
    assert person.decisions == [] and server.requests == ["tasks/get", "tasks/cancel"]


async def test_a_served_call_is_approved_before_its_task_begins() -> None:
    @tool(background=True, guards=[ask_before_changes])
    async def order(count: int) -> str:
        return f"ordered {count}"

    person, near = Person(allow({"approve": True})), Runner([order])
    async with serving(serve.mcp(near)) as address, mcp.connect(address) as toolset:
        runner = Runner(toolset, approve=person, clock=HastyClock())
        assert (await runner.run("order", {"count": 3})).output == "ordered 3"
    assert len(person.decisions) == len(near.jobs) == 1


@pytest.mark.large
@pytest.mark.parametrize(("moment", "status"), [("after", "ok"), ("inside", "failed")])
async def test_a_task_survives_the_death_of_its_server(moment: str, status: str, tmp_path: Path) -> None:
    program = [sys.executable, str(Path(__file__).parent / "task_program.py"), str(tmp_path / "calls.db"), moment]
    async with mcp.connect(program) as toolset:
        result = await Runner(toolset, timeout=BOUND).run("order", {"count": 3})
    assert (tmp_path / "calls.db.died").exists()
    assert result.status == status, result
    assert result.output == "ordered 3" if moment == "after" else "not known what came of" in str(result.error)
