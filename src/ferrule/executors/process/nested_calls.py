"""`context.run` in a worker: the program runs the call, with its guards and slots.

worker                                  program
NestedCallClient.run ── RUN_NESTED ──▶  NestedCalls.start ─ runs the tool below the handler's call
                     ◀─ NESTED_RESULT ──┘
"""

from __future__ import annotations

import asyncio
import itertools
import select
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, TypeAlias

from ferrule.errors import NotStartedError, ToolError
from ferrule.executors.process.protocol import Connection, Kind, Message
from ferrule.executors.process.remote_errors import describe_error, rebuild_error
from ferrule.executors.process.transfer import Transfer, pack, unpack
from ferrule.executors.threads import run_in_thread
from ferrule.values.json_text import format_arguments
from ferrule.values.result import ToolResult

RunNested: TypeAlias = Callable[[str, str], Awaitable[ToolResult]]
"""Runs a tool below the call of the handler."""
Reply: TypeAlias = Callable[[object, bytes], object]
"""Sends the head and body of a result to the worker, and may block."""


class NestedCalls:
    """In the program: the calls that one handler makes, on the loop of its own call."""

    def __init__(self, run: RunNested, reply: Reply, transfer: Transfer) -> None:
        self._run = run
        self._reply = reply
        self._transfer: Transfer = transfer
        self._context: Context = copy_context()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._ended = False

    def start(self, number: int, name: str, arguments: str) -> None:
        """Run a tool, and reply with its result."""
        if not self._ended:
            running = self._run_and_reply(number, name, arguments)
            task = self._tasks[number] = asyncio.get_running_loop().create_task(running, context=self._context)
            task.add_done_callback(lambda _: self._tasks.pop(number, None))

    def cancel(self, number: int) -> None:
        """Cancel the call, because the handler does not wait for it any more."""
        if (task := self._tasks.get(number)) is not None:
            task.cancel()

    async def cancel_all(self) -> None:
        """Cancel all calls, and wait until they have ended. Start no more."""
        self._ended = True
        if self._tasks:
            for task in (tasks := list(self._tasks.values())):
                task.cancel()
            try:
                await asyncio.wait(tasks)
            except asyncio.CancelledError:  # the deadline passed after the worker was killed: they still end first
                await asyncio.wait(tasks)
                raise

    async def _run_and_reply(self, number: int, name: str, arguments: str) -> None:
        head: dict[str, Any] = {"number": number}
        body = b""
        try:
            result = await self._run(name, arguments)
            body = pack(result.replace(exception=None), self._transfer)
        except Exception as error:
            head["raised"] = describe_error(error)
        try:
            await run_in_thread(partial(self._reply, head, body))  # the worker may be slow to read it
        except NotStartedError:
            self._reply(head, body)


class NestedCallClient:
    """In a worker: the nested calls of its handler.

    Each loop that waits for a result reads the connection. The worker's own thread runs the handler, and a second
    thread would be unsafe if a handler forks.
    """

    def __init__(self, connection: Connection, token: bytes, transfer: Transfer) -> None:
        self._connection = connection
        self._token = token
        self._transfer: Transfer = transfer
        self._numbers = itertools.count()
        self._results: dict[int, asyncio.Future[ToolResult]] = {}
        self._receive_lock = threading.Lock()
        self._ended = False

    async def run(self, name: str, arguments: object, send: Callable[..., bool]) -> ToolResult | None:
        """Return the result of the tool, or None if `send` returns False because the call has ended.

        Raises:
            ToolError: The arguments or the result cannot be sent.
        """
        text = _write_arguments(name, arguments)
        loop, number = asyncio.get_running_loop(), next(self._numbers)
        result: asyncio.Future[ToolResult] = loop.create_future()
        self._results[number] = result
        loop.add_reader(self._connection.fileno(), self._receive_results)
        try:
            if not send(Kind.RUN_NESTED, [number, name], text.encode("utf-8", "surrogatepass")):
                return None
            return await result
        except asyncio.CancelledError:
            send(Kind.CANCEL_NESTED, [number])
            raise
        finally:
            del self._results[number]
            if all(other.get_loop() is not loop for other in list(self._results.values())):
                loop.remove_reader(self._connection.fileno())

    def close(self) -> None:
        """Receive nothing more, because the next message belongs to another call."""
        with self._receive_lock:
            self._ended = True

    def _receive_results(self) -> None:
        with self._receive_lock:
            while not self._ended and self._results and _is_readable(self._connection):
                try:
                    self._on_message(self._connection.receive())
                except EOFError:  # the program has ended, and the supervisor is about to kill this process
                    return

    def _on_message(self, message: Message) -> None:
        if message.kind != Kind.NESTED_RESULT or message.token != self._token:
            return
        result = self._results.get(message.head["number"])
        if result is not None:
            with suppress(RuntimeError):  # its loop is closed
                result.get_loop().call_soon_threadsafe(_set_result, result, message, self._transfer)


def _write_arguments(name: str, arguments: object) -> str:
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    try:
        return format_arguments(arguments)
    except Exception as error:
        raise ToolError(f"the arguments for {name!r} cannot be sent as JSON: {error}") from error


def _is_readable(connection: Connection) -> bool:
    events = select.poll()
    events.register(connection.fileno(), select.POLLIN)
    return bool(events.poll(0))


def _set_result(result: asyncio.Future[ToolResult], message: Message, transfer: Transfer) -> None:
    if result.done():
        return
    raised: Mapping[str, Any] | None = message.head.get("raised")
    try:
        if raised is not None:
            raise rebuild_error(dict(raised))
        result.set_result(unpack(message.body, transfer))  # type: ignore[arg-type]
    except Exception as error:
        result.set_exception(error)
