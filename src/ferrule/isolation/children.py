"""`context.run` in a worker: the call is run in the program, as a child of the handler's, with all guards there.

handler ─ Requests.run ── RUN ──▶ Children.start ─ context.run of the call
                 ◀── RESULT ──────┘
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
from ferrule.executors.threads import in_own_thread
from ferrule.isolation.protocol import Connection, Kind, Message
from ferrule.isolation.remote_errors import describe, rebuild
from ferrule.isolation.transfer import Transfer, pack, unpack
from ferrule.values.encoded_bytes import dumps_in_base64
from ferrule.values.result import ToolResult

Run: TypeAlias = Callable[[str, str], Awaitable[ToolResult]]
"""Runs a tool as a child of the call."""
Reply: TypeAlias = Callable[[object, bytes], object]
"""Sends a worker the head and the body of an answer, and may block."""


class Children:
    """In the program: the calls that the handler of one call makes, on the loop of that."""

    def __init__(self, run: Run, reply: Reply, transfer: Transfer) -> None:
        self._run = run
        self._reply = reply
        self._transfer: Transfer = transfer
        self._context: Context = copy_context()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._ended = False

    def start(self, number: int, name: str, arguments: str) -> None:
        """Run a tool, and send what it came to."""
        if not self._ended:
            answering = self._answer(number, name, arguments)
            task = self._tasks[number] = asyncio.get_running_loop().create_task(answering, context=self._context)
            task.add_done_callback(lambda _: self._tasks.pop(number, None))

    def stop(self, number: int) -> None:
        """The handler does not wait for it any more."""
        if (task := self._tasks.get(number)) is not None:
            task.cancel()

    async def end(self) -> None:
        """Cancel those that run, and wait for their ends."""
        self._ended = True
        if self._tasks:
            for task in (tasks := list(self._tasks.values())):
                task.cancel()
            try:
                await asyncio.wait(tasks)
            except asyncio.CancelledError:  # the deadline, noticed after its worker was killed: they still end first
                await asyncio.wait(tasks)
                raise

    async def _answer(self, number: int, name: str, arguments: str) -> None:
        head: dict[str, Any] = {"number": number}
        body = b""
        try:
            result = await self._run(name, arguments)
            body = pack(result.replace(exception=None), self._transfer)
        except Exception as error:
            head["raised"] = describe(error)
        try:
            await in_own_thread(partial(self._reply, head, body))  # the worker may be slow to read it
        except NotStartedError:
            self._reply(head, body)


class Requests:
    """In a worker: what its handler asks for. Each loop on which something waits reads the connection: its own thread
    runs the handler, and a second one would stand in the way of a handler that forks."""

    def __init__(self, connection: Connection, mark: bytes, transfer: Transfer) -> None:
        self._connection = connection
        self._mark = mark
        self._transfer: Transfer = transfer
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[ToolResult]] = {}
        self._reading = threading.Lock()
        self._ended = False

    async def run(self, name: str, arguments: object, send: Callable[..., bool]) -> ToolResult | None:
        """What the tool came to; `None` where `send` says that the call has ended.

        Raises:
            ToolError: where the arguments or the result cannot be sent.
        """
        text = _sendable(name, arguments)
        loop, number = asyncio.get_running_loop(), next(self._numbers)
        answer: asyncio.Future[ToolResult] = loop.create_future()
        self._waiting[number] = answer
        loop.add_reader(self._connection.fileno(), self._read)
        try:
            if not send(Kind.RUN, [number, name], text.encode("utf-8", "surrogatepass")):
                return None
            return await answer
        except asyncio.CancelledError:
            send(Kind.STOP, [number])
            raise
        finally:
            del self._waiting[number]
            if all(other.get_loop() is not loop for other in list(self._waiting.values())):
                loop.remove_reader(self._connection.fileno())

    def end(self) -> None:
        """Read nothing more: what comes next is another call's."""
        with self._reading:
            self._ended = True

    def _read(self) -> None:
        with self._reading:
            while not self._ended and self._waiting and _is_readable(self._connection):
                try:
                    self._take(self._connection.receive())
                except EOFError:  # the program has gone, and this process goes with it
                    return

    def _take(self, message: Message) -> None:
        if message.kind != Kind.RESULT or message.mark != self._mark:
            return
        answer = self._waiting.get(message.head["number"])
        if answer is not None:
            with suppress(RuntimeError):  # its loop is closed
                answer.get_loop().call_soon_threadsafe(_settle, answer, message, self._transfer)


def _sendable(name: str, arguments: object) -> str:
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    try:
        return dumps_in_base64(arguments, plain=False)
    except Exception as error:
        raise ToolError(f"the arguments for {name!r} cannot be sent as JSON: {error}") from error


def _is_readable(connection: Connection) -> bool:
    events = select.poll()
    events.register(connection.fileno(), select.POLLIN)
    return bool(events.poll(0))


def _settle(answer: asyncio.Future[ToolResult], message: Message, transfer: Transfer) -> None:
    if answer.done():
        return
    raised: Mapping[str, Any] | None = message.head.get("raised")
    try:
        if raised is not None:
            raise rebuild(dict(raised))
        answer.set_result(unpack(message.body, transfer))  # type: ignore[arg-type]
    except Exception as error:
        answer.set_exception(error)
