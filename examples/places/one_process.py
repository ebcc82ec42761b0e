"""The smallest engine, which stays in the process: `python examples/places/one_process.py`.

Change first: what `send` does with the order, so that your engine carries it to another machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from textwrap import shorten

from ferrule import Runner, Tool, tool
from ferrule.approval import printable
from ferrule.remote import OrderRunner, OrderTransport, RemoteExecutor, Seal, list_places


class InThisProcess(OrderTransport):
    def __init__(self, order_runner: OrderRunner) -> None:
        self.order_runner = order_runner

    async def send(self, workflow: str, order: str, *, repeatable: bool, principal: str | None) -> AsyncGenerator[str]:
        async for message in self.order_runner.run(order, queue="here", workflow=workflow):
            yield message  # your engine carries the order there and these back


class Here:
    def __init__(self, seal: Seal, transport: OrderTransport) -> None:
        self.seal, self.transport = seal, transport

    def executor(self, tool: Tool) -> RemoteExecutor:
        return RemoteExecutor(tool, self.transport, self.seal, "here")


async def main() -> None:
    seal = Seal(b"a key of at least 32 bytes, kept secret")
    order_runner = OrderRunner(list_places([tool(shorten, description="Shorten a text.")]), seal)
    isolation = Here(seal, InThisProcess(order_runner))
    shorten_there = tool(shorten, description="Shorten a text.", isolation=isolation)
    result = await Runner([shorten_there], timeout=5).run("shorten", {"text": "one two three", "width": 9})
    print(printable(result.text))


asyncio.run(main())
