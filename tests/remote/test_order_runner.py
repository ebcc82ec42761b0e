"""Orders go from the executor to the worker and back, over a transport in memory."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest
import remote_handlers
from hypothesis import given
from hypothesis import strategies as st

from ferrule import DefinitionError, Event, Runner, Tool, ToolCall, ToolContext, ToolResult, Toolset, tool
from ferrule.executors import Executor
from ferrule.remote import OrderRunner, OrderTransport, RemoteExecutor, Seal, _executor, list_places
from ferrule.remote._wire import Order
from ferrule.testing import ManualClock
from waits import until

KEY = b"k" * 32
HANDLERS = [
    *(remote_handlers.add, remote_handlers.steps, remote_handlers.wait, remote_handlers.ask, remote_handlers.own),
    *(remote_handlers.guarded, remote_handlers.traced, remote_handlers.pretends, remote_handlers.chunks),
    remote_handlers.odd_progress,
]


class Memory(OrderTransport):
    """A transport to an order runner; `between` may change its messages."""

    def __init__(self, order_runner: OrderRunner, between: Callable[[list[str]], list[str]] | None = None) -> None:
        self.order_runner = order_runner
        self.between = between
        self.orders: list[tuple[str, str]] = []

    async def send(
        self, workflow: str, order: str, *, repeatable: bool, principal: str | None
    ) -> AsyncGenerator[str | None, None]:
        self.orders.append((workflow, order))
        told: asyncio.Queue[str | None] = asyncio.Queue()
        pump = asyncio.create_task(self.pump(order, workflow, told), context=Context())  # nothing of the caller's
        try:
            messages = []
            while (message := await told.get()) is not None:
                messages.append(message)
                if self.between is None:
                    yield message
            for message in self.between(messages) if self.between is not None else ():
                yield message
        finally:
            if not pump.done():
                pump.cancel()
                await asyncio.wait([pump])

    async def pump(self, order: str, workflow: str, told: asyncio.Queue[str | None]) -> None:
        async with aclosing(self.order_runner.run(order, queue="memory", workflow=workflow)) as messages:
            async for message in messages:
                told.put_nowait(message)
        told.put_nowait(None)


class Place:
    def __init__(self, transport: OrderTransport, seal: Seal | None = None) -> None:
        self.transport = transport
        self.seal = seal or Seal(KEY, ())

    def executor(self, tool: Tool) -> Executor:
        return RemoteExecutor(tool, self.transport, self.seal, "memory")


def make_order_runner(seal: Seal | None = None, **given: Any) -> OrderRunner:
    return OrderRunner(list_places(Toolset(HANDLERS)), seal or Seal(KEY, ()), **given)


async def run(handler: Any, transport: OrderTransport, arguments: Any = None, **options: Any) -> ToolResult:
    [known] = Toolset([handler])
    made = known.replace(isolation=Place(transport))
    return await Runner([made], **options).run(ToolCall("c1", made.name, arguments or {}))


async def test_a_handler_runs_in_the_worker() -> None:
    result = await run(remote_handlers.add, Memory(make_order_runner()), {"a": 1})
    assert (result.status, result.output, result.executed) == ("ok", 3, True)


async def test_a_worker_imports_only_its_own_handlers() -> None:
    result = await run(textwrap.shorten, Memory(make_order_runner()), {"text": "one two", "width": 5})
    assert (result.status, result.executed) == ("failed", False)
    assert "textwrap:shorten is not a handler of this worker's tools" in (result.error or "")


async def test_an_expired_order_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_executor, "VALID_SECONDS", -1.0)
    result = await run(remote_handlers.add, Memory(make_order_runner()), {"a": 1})
    assert (result.status, result.executed) == ("unknown", None)


async def test_an_order_for_another_call_runs_nothing() -> None:
    transport = Memory(make_order_runner())
    assert (await run(remote_handlers.add, transport, {"a": 1})).success
    [(workflow, order)] = transport.orders

    async def told(text: str, **about: object) -> list[str]:
        return [message async for message in transport.order_runner.run(text, **about)]

    assert len(await told(order, queue="memory", workflow=workflow)) == 2
    for text, about in (
        (order, {"queue": "memory", "workflow": "w2"}),
        (order, {"queue": "other", "workflow": workflow}),
        (order, {"queue": "memory", "workflow": workflow, "repeatable": True}),
        ("no order", {"queue": "memory", "workflow": workflow}),
    ):
        assert await told(text, **about) == []


async def test_an_error_of_a_handler_does_not_deny_its_start() -> None:
    result = await run(remote_handlers.pretends, Memory(make_order_runner()))
    assert (result.status, result.executed) == ("failed", True)


PROGRESS = 4


@given(order=st.lists(st.integers(0, 6), max_size=9))
def test_lost_moved_or_doubled_messages_make_no_other_result(order: list[int]) -> None:
    def between(messages: list[str]) -> list[str]:
        return [messages[place % len(messages)] for place in order]

    seen: list[str] = []

    def observe(event: Event) -> None:
        if event.kind == "tool:progress":
            seen.append(event.data["chunk"])

    call = run(remote_handlers.chunks, Memory(make_order_runner(), between), {"count": PROGRESS}, observers=[observe])
    result = asyncio.run(call)
    whole = [f"{chunk} " for chunk in range(PROGRESS)]
    assert result.status != "ok" or (result.output, seen[-PROGRESS:]) == ("".join(whole), whole)
    assert result.status == "ok" or (result.status, result.executed) == ("unknown", None)


async def test_messages_of_two_runs_do_not_make_one_result() -> None:
    kept: list[list[str]] = []

    def between(messages: list[str]) -> list[str]:
        kept.append(messages)
        return messages

    transport = Memory(make_order_runner(), between)
    made = tool(remote_handlers.add, isolation=Place(transport))
    assert (await Runner([made]).run(ToolCall("c1", "add", {"a": 1}), session="s")).success
    assert (await Runner([made]).run(ToolCall("c1", "add", {"a": 1}), session="s")).success
    transport.between = lambda messages: [kept[0][0], kept[1][1]]
    assert (await Runner([made]).run(ToolCall("c1", "add", {"a": 1}), session="s")).status == "unknown"


async def test_an_order_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = Memory(make_order_runner())
    write = Order.text
    monkeypatch.setattr(Order, "text", lambda order: write(order).replace('"version": 1', '"version": 2'))
    result = await run(remote_handlers.add, transport, {"a": 1})
    assert (result.status, result.executed) == ("failed", False) and "version 2" in (result.error or "")


async def test_a_broken_connection_leaves_the_call_unknown(caplog: pytest.LogCaptureFixture) -> None:
    class Breaks(Memory):
        async def send(self, *args: Any, **options: Any) -> AsyncGenerator[str | None, None]:
            async for message in super().send(*args, **options):
                yield message
                raise OSError("the password is sesame")

    result = await run(remote_handlers.add, Breaks(make_order_runner()), {"a": 1})
    assert (result.status, result.executed) == ("unknown", None) and "sesame" not in result.text


async def test_a_deadline_ends_the_handler(tmp_path: Path) -> None:
    began, clock = tmp_path / "began", ManualClock()
    made = tool(remote_handlers.wait, isolation=Place(Memory(make_order_runner())))
    call = asyncio.ensure_future(Runner([made], timeout=10, clock=clock).run("wait", {"began": str(began)}))
    await until(began.exists)
    await clock.advance(10)
    result = await call
    assert Path(f"{began}.cancelled").exists()  # and not when the loop ends
    assert (result.status, result.executed) == ("timeout", None)


def test_hidden_values_need_a_seal_that_encrypts() -> None:
    bound = tool(remote_handlers.guarded, isolation=Place(Memory(make_order_runner()))).bind(token="sesame")
    with pytest.raises(DefinitionError, match=r"bound or private \(token\)"):
        Runner([bound])


async def test_hidden_values_are_encrypted_on_their_way() -> None:
    seal = Seal(KEY, KEY)
    transport = Memory(make_order_runner(seal))
    bound = tool(remote_handlers.guarded, isolation=Place(transport, seal)).bind(token="sesame")
    result = await Runner([bound]).run("guarded", {"path": "door"})
    assert result.output == "door with sesame" and "sesame" not in transport.orders[0][1]


async def test_an_order_has_no_deps_and_no_secrets() -> None:
    transport = Memory(make_order_runner())
    made = tool(remote_handlers.steps, isolation=Place(transport))
    context = ToolContext(deps="sesame", secrets={"token": "sesame"}, session="s1", metadata={"tenant": 7})
    assert (await Runner([made]).run("steps", {"count": 1}, context)).success
    assert "sesame" not in transport.orders[0][1] and "tenant" in transport.orders[0][1]
