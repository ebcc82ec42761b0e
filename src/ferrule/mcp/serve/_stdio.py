"""Over standard input and output."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any

import anyio
import anyio.to_thread
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCResponse

from ferrule.mcp.lines import Envelope, LineBuffer, MessageStream, MessageWriter, UnreadableLine
from ferrule.mcp.serve._server import RunnerServer

MOST_LINE = 4 * 1024 * 1024
_READ_AT_ONCE = 65_536
_LINES_AHEAD = 16
_UNREADABLE = {
    PARSE_ERROR: "Parse error: a message is one line of JSON in UTF-8, of at most 4 MiB, without half a surrogate pair",
    INVALID_REQUEST: "Invalid request: a message is one object of JSON-RPC 2.0, and a request has an id",
}
_output_is_free = threading.Lock()


async def serve_stdio(served: RunnerServer, stop: asyncio.Event | None) -> None:
    """Serve until standard input ends, nobody reads the output any more, or `stop` is set. Meanwhile the program's
    output goes to standard error."""
    sys.stdout.flush()
    with _claimed_input() as input_, _claimed_output() as output:
        lines = _Lines(input_)
        answers = _Answers(output, lines.end)
        served.server.middleware.insert(0, answers.track_request)
        with redirect_stdout(sys.stderr):
            stopping = asyncio.ensure_future(_end_serving(served, stop, answers, lines))
            try:
                messages = MessageStream(_read_messages(lines, answers))
                await served.server.run(messages, answers, served.server.create_initialization_options())
            finally:
                stopping.cancel()


async def _end_serving(served: RunnerServer, stop: asyncio.Event | None, answers: _Answers, lines: _Lines) -> None:
    if stop is not None:
        await stop.wait()
        await served.drain()
        await answers.wait_for_all()
        lines.end()


async def _read_messages(lines: _Lines, answers: _Answers) -> AsyncGenerator[SessionMessage, None]:
    """Yield the messages of the client, and answer unreadable lines with an error."""
    async for line in lines:
        found = answers.requests.parse(line)
        if isinstance(found, JSONRPCResponse | JSONRPCError):
            for message in answers.requests.on_answer(found):
                yield SessionMessage(message)
        elif not isinstance(found, UnreadableLine):
            yield SessionMessage(found)
        else:
            for part in found.envelopes or [Envelope(is_answer=False, id=None)]:
                if part.is_answer:
                    for message in answers.requests.on_lost_answer(part.id):
                        yield SessionMessage(message)
                    continue
                reason = ErrorData(code=found.code, message=_UNREADABLE[found.code])
                with suppress(anyio.BrokenResourceError):
                    await answers.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=part.id, error=reason)))


class _Answers(MessageWriter):
    """The stream of messages to the client, with the requests that have no answer yet."""

    def __init__(self, descriptor: int, on_broken: Callable[[], object]) -> None:
        super().__init__(lambda data: anyio.to_thread.run_sync(_write_all, descriptor, data))
        self._on_broken = on_broken
        self._open: set[Any] = set()
        self._all: asyncio.Event = asyncio.Event()
        self._all.set()

    async def track_request(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Count a request as open until its answer is written, or it is cancelled. A middleware of the SDK's server."""
        if ctx.request_id is None:
            return await call_next(ctx)
        self._open.add(ctx.request_id)
        self._all.clear()
        try:
            return await call_next(ctx)
        except asyncio.CancelledError:
            self._close(ctx.request_id)
            raise

    async def wait_for_all(self) -> None:
        """Wait until every request has its answer."""
        await self._all.wait()

    async def send(self, item: SessionMessage) -> None:
        """Write one message.

        Raises:
            BrokenResourceError: Nobody reads it.
        """
        try:
            await super().send(item)
        except anyio.BrokenResourceError:
            self._on_broken()
            raise
        if isinstance(item.message, JSONRPCResponse | JSONRPCError):
            self._close(item.message.id)

    def _close(self, request_id: Any) -> None:
        self._open.discard(request_id)
        if not self._open:
            self._all.set()


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


@contextmanager
def _claimed_input() -> Iterator[int]:
    """Yield the real standard input; for tools and their programs it is empty meanwhile."""
    standard = _get_descriptor("input", sys.stdin)
    private = os.dup(standard)
    _point_to_nothing(standard, os.O_RDONLY)
    try:
        yield private
    finally:
        os.dup2(private, standard)


@contextmanager
def _claimed_output() -> Iterator[int]:
    """Yield the real standard output; the output of tools and their programs goes to standard error meanwhile.

    Its descriptor stays open, because a thread may still write to it.
    """
    standard = _get_descriptor("output", sys.stdout)
    if not _output_is_free.acquire(blocking=False):
        raise RuntimeError("another serve.stdio of this process uses its standard output")
    private = os.dup(standard)
    try:
        os.dup2(2, standard)
    except OSError:
        _point_to_nothing(standard, os.O_WRONLY)
    try:
        yield private
    finally:
        os.dup2(private, standard)
        _output_is_free.release()


def _get_descriptor(name: str, stream: Any) -> int:
    try:
        return int(stream.fileno())
    except (AttributeError, OSError, ValueError):
        raise RuntimeError(f"serve.stdio needs a standard {name}, which is missing") from None


def _point_to_nothing(descriptor: int, flags: int) -> None:
    nothing = os.open(os.devnull, flags)
    os.dup2(nothing, descriptor)
    os.close(nothing)


class _Lines:
    """The lines of a file, read by a thread that nothing waits for: a wait for a line can be cancelled."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._room = threading.Semaphore(_LINES_AHEAD)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        threading.Thread(target=self._read, name="ferrule-stdin", daemon=True).start()
        while (line := await self._queue.get()) is not None:
            self._room.release()
            yield line

    def end(self) -> None:
        """End the lines, as at the end of the file."""
        self._queue.put_nowait(None)

    def _read(self) -> None:
        buffer = LineBuffer(MOST_LINE)
        at_end = False
        while not at_end:
            data = self._read_some()
            at_end = not data
            for line in filter(bytes.strip, buffer.feed(data or b"\n")):  # the last line may have no end
                self._give(line)
        self._give(None)

    def _read_some(self) -> bytes:
        try:
            return os.read(self._descriptor, _READ_AT_ONCE)
        except OSError:
            return b""

    def _give(self, line: bytes | None) -> None:
        self._room.acquire()
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, line)
        except RuntimeError:  # the loop was closed
            return
