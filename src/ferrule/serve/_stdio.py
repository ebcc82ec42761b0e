"""Over standard input and output."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO, cast

import anyio
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCResponse

from ferrule.serve._server import RunnerServer

MOST_LINE = 4 * 1024 * 1024
_READ_AT_ONCE = 65_536
_LINES_AHEAD = 16
_LONG_LINE = "(a line of more than 4 MiB)"
_output_is_free = threading.Lock()


async def serve_stdio(served: RunnerServer, stop: asyncio.Event | None) -> None:
    """Serve until standard input ends, nobody reads the output any more, or `stop` is set. Meanwhile what the program
    prints goes to standard error."""
    try:
        await _serve_pipes(served, stop)
    except* BrokenPipeError:  # from the SDK's writer: the client is gone
        pass


async def _serve_pipes(served: RunnerServer, stop: asyncio.Event | None) -> None:
    sys.stdout.flush()
    with _claimed_input() as descriptor, _claimed_output() as out:
        lines = _Lines(descriptor)
        async with stdio_server(stdin=cast("Any", lines), stdout=anyio.wrap_file(out)) as (read, write):
            answers = _Answers(write)
            served.server.middleware.insert(0, answers.note)
            with redirect_stdout(sys.stderr):
                stopping = asyncio.ensure_future(_end_serving(served, stop, answers, lines))
                try:
                    await served.server.run(read, answers, served.server.create_initialization_options())
                finally:
                    stopping.cancel()


async def _end_serving(served: RunnerServer, stop: asyncio.Event | None, answers: _Answers, lines: _Lines) -> None:
    if stop is not None:
        await stop.wait()
        await served.drain()
        await answers.given()
        lines.end()


class _Answers:
    """The way out, which knows what is not answered yet: at the end of the input the SDK drops what it is writing."""

    def __init__(self, write: Any) -> None:
        self._write = write
        self._open: set[Any] = set()
        self._all: asyncio.Event = asyncio.Event()
        self._all.set()

    async def note(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """As a middleware of the SDK's server: a request is open until its answer is written, or it is cancelled."""
        if ctx.request_id is None:
            return await call_next(ctx)
        self._open.add(ctx.request_id)
        self._all.clear()
        try:
            return await call_next(ctx)
        except asyncio.CancelledError:
            self._close(ctx.request_id)
            raise

    async def given(self) -> None:
        """Wait until every request has its answer."""
        await self._all.wait()

    async def send(self, message: SessionMessage) -> None:
        """Write one message."""
        await self._write.send(message)
        if isinstance(message.message, JSONRPCResponse | JSONRPCError):
            self._close(message.message.id)

    async def aclose(self) -> None:
        """Write nothing more."""
        await self._write.aclose()

    async def __aenter__(self) -> _Answers:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    def _close(self, request_id: Any) -> None:
        self._open.discard(request_id)
        if not self._open:
            self._all.set()


@contextmanager
def _claimed_input() -> Iterator[int]:
    """The real standard input; for tools and their programs there is none meanwhile."""
    standard = _descriptor_of("input", sys.stdin)
    private = os.dup(standard)
    _point_to_nothing(standard, os.O_RDONLY)
    try:
        yield private
    finally:
        os.dup2(private, standard)


@contextmanager
def _claimed_output() -> Iterator[TextIO]:
    """The real standard output; what tools and their programs print goes to standard error meanwhile.

    Its descriptor stays open, as a thread may still write to it. Where nobody reads it, what is left in the file's
    buffer goes to nothing: Python would try to write it once more, and tell of that on standard error.
    """
    standard = _descriptor_of("output", sys.stdout)
    if not _output_is_free.acquire(blocking=False):
        raise RuntimeError("another serve.stdio of this process has its standard output")
    private = os.dup(standard)
    try:
        os.dup2(2, standard)
    except OSError:
        _point_to_nothing(standard, os.O_WRONLY)
    file = os.fdopen(private, "w", encoding="utf-8", newline="\n", closefd=False)
    try:
        yield file
    except* BrokenPipeError:
        _point_to_nothing(private, os.O_WRONLY)
        raise
    finally:
        os.dup2(private, standard)
        _output_is_free.release()


def _descriptor_of(name: str, stream: Any) -> int:
    try:
        return int(stream.fileno())
    except (AttributeError, OSError, ValueError):
        raise RuntimeError(f"serve.stdio needs a standard {name}, and there is none") from None


def _point_to_nothing(descriptor: int, flags: int) -> None:
    nothing = os.open(os.devnull, flags)
    os.dup2(nothing, descriptor)
    os.close(nothing)


class _Lines:
    """The lines of a file, read by a thread that nothing waits for: a wait for a line can be cancelled."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[str | None] = asyncio.Queue()
        self._room = threading.Semaphore(_LINES_AHEAD)

    async def __aiter__(self) -> AsyncIterator[str]:
        threading.Thread(target=self._read, name="ferrule-stdin", daemon=True).start()
        while (line := await self._queue.get()) is not None:
            self._room.release()
            yield line

    def end(self) -> None:
        """As if the file ended here."""
        self._queue.put_nowait(None)

    def _read(self) -> None:
        kept, too_long = bytearray(), False
        while data := self._some():
            *whole, rest = data.split(b"\n")
            for part in whole:
                kept += part
                self._give(_LONG_LINE if too_long or len(kept) > MOST_LINE else kept.decode("utf-8", "replace"))
                kept, too_long = bytearray(), False
            kept += rest
            if len(kept) > MOST_LINE:
                kept, too_long = bytearray(), True
        self._give(None)

    def _some(self) -> bytes:
        try:
            return os.read(self._descriptor, _READ_AT_ONCE)
        except OSError:
            return b""

    def _give(self, line: str | None) -> None:
        if line == "":
            return
        self._room.acquire()
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, line)
        except RuntimeError:  # the loop was closed
            return
