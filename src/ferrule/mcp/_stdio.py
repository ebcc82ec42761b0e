"""A server that is a program: start it, exchange lines with it, and end it.

The SDK has a transport for this. It waits for an answer that it could not parse, buffers a line without an end in
memory, and its reader dies of one byte that is not UTF-8. Here each line is a message, noise, or a lost answer, and a
lost answer fails its request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial
from typing import Any

import anyio
from mcp.client.stdio import get_default_environment
from mcp.os.posix.utilities import terminate_posix_process_tree
from mcp.os.win32.utilities import (
    close_process_job,
    create_windows_process,
    get_windows_executable_command,
    terminate_windows_process_tree,
)
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCResponse

from ferrule.mcp._log import ServerLog
from ferrule.mcp._settings import Stdio
from ferrule.mcp.lines import LineBuffer, MessageStream, MessageWriter, OpenRequests

_LONGEST_MESSAGE = 100_000_000
"""Most bytes of a message, as of an answer over HTTP."""
_EXIT_SECONDS = 2.0
"""Seconds for a process to end by itself after its input was closed, and again after the signal to end."""
_EXIT_POLL_SECONDS = 0.01
_SILENT_SECONDS = 1.0
"""Seconds without an answer until the output of an ended process counts as ended, too."""
_PIPE_ERRORS = (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)


@contextlib.asynccontextmanager
async def run_program(server: Stdio, stderr: Any, server_log: ServerLog) -> AsyncIterator[tuple[Any, Any]]:
    """Start the program, yield the streams of its messages, and end it with all processes that it started.

    Raises:
        OSError: It cannot be started.
    """
    process = await _start_process(server, stderr)
    pipes = Pipes(process)
    writing = asyncio.create_task(pipes.write_lines())
    try:
        writer = MessageWriter(pipes.write)
        yield MessageStream(read_messages(pipes, writer.requests, server_log)), writer
    finally:
        with anyio.CancelScope(shield=True):
            writing.cancel()
            await _end_process(process)


async def read_messages(
    pipes: Pipes, requests: OpenRequests, server_log: ServerLog
) -> AsyncGenerator[SessionMessage, None]:
    """Yield the messages of a program until its output ends, or cannot be read for any other reason."""
    buffer = LineBuffer(_LONGEST_MESSAGE)
    warn = partial(server_log.add_line, level=logging.WARNING)
    try:
        while True:
            for line in buffer.feed(await pipes.receive()):
                for message in requests.read(line, warn):
                    pipes.on_message(message)
                    yield SessionMessage(message)
                await asyncio.sleep(0)  # a flood of lines must not hold the loop
    except _PIPE_ERRORS:
        pass
    except Exception as error:  # the end of the stream fails the open calls, and the next call starts the program
        server_log.write_error(logging.ERROR, "its output could not be read any further", error)


class Pipes:
    """The standard input and output of a process. They end soon after the process.

    Processes that it started may hold the pipes open, and may go on writing. So a second without an answer ends the
    pipes once the process has ended, or reads no more. A launcher is an exception: if the process has ended before the
    first message, another process has sent that.
    """

    def __init__(self, process: Any) -> None:
        self._process = process
        self._is_server = False
        self._is_broken = False
        self._silent = 0.0  # seconds without an answer since the end of the process
        self._time = asyncio.get_running_loop().time
        self._last_time = self._time()
        self._lines = asyncio.Queue[bytes]()
        self._unwritten = 0  # bytes
        self._has_room = asyncio.Event()

    async def write(self, line: bytes) -> None:
        """Queue a line for writing. A call does not wait for the writing but for its answer, and so for the end of the
        pipes."""
        self._lines.put_nowait(line)
        self._unwritten += len(line)
        while self._unwritten > _LONGEST_MESSAGE and not self._is_broken:
            self._has_room.clear()
            await self._has_room.wait()

    async def write_lines(self) -> None:
        """Write the lines, until the process reads no more, or this is cancelled."""
        try:
            while True:
                line = await self._lines.get()
                await self._process.stdin.send(line)
                self._unwritten -= len(line)
                self._has_room.set()
        except _PIPE_ERRORS:
            pass
        finally:
            self._is_broken = True
            self._has_room.set()

    async def receive(self) -> bytes:
        """Return the next bytes of the output.

        Raises:
            EndOfStream: The output has ended.
        """
        turn = _SILENT_SECONDS / 4
        while self._silent <= _SILENT_SECONDS:
            last, self._last_time = self._last_time, self._time()
            if self._is_broken or (self._is_server and self._process.returncode is not None):
                self._silent += min(self._last_time - last, turn)  # answers may wait if the loop stood still for longer
            with anyio.move_on_after(turn):
                return bytes(await self._process.stdout.receive())
        raise anyio.EndOfStream

    def on_message(self, message: JSONRPCMessage) -> None:
        """Update the state of the pipes for a message that was read."""
        self._is_server = self._is_server or self._process.returncode is None
        if isinstance(message, JSONRPCResponse | JSONRPCError) and not self._is_broken:
            self._silent = 0.0


async def _start_process(server: Stdio, stderr: Any) -> Any:
    """Start the program in a group of its own. The group is used to end it with all processes that it started."""
    environment = get_default_environment() | {**server.env}
    cwd = None if server.cwd is None else os.fspath(server.cwd)
    if sys.platform == "win32":  # pragma: no cover
        command = await asyncio.to_thread(get_windows_executable_command, server.command)
        return await create_windows_process(command, [*server.args], environment, stderr, cwd)
    command = [server.command, *server.args]
    return await anyio.open_process(command, env=environment, cwd=cwd, stderr=stderr, start_new_session=True)


async def _end_process(process: Any) -> None:
    """Close the input, and end the program by force if it does not end by itself. Its output is read during that time:
    a program that cannot write does not end."""
    reading = asyncio.create_task(_skip_output(process.stdout))
    try:
        with contextlib.suppress(*_PIPE_ERRORS):
            await process.stdin.aclose()
        if not await _has_ended(process):
            if sys.platform == "win32":  # pragma: no cover
                await terminate_windows_process_tree(process)
            else:
                await terminate_posix_process_tree(process, _EXIT_SECONDS)
            await _has_ended(process)
        if sys.platform == "win32":  # pragma: no cover
            close_process_job(process)
        else:  # a launcher, or a process that died, may have left others in its group
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        _close_pipes(process)


def _close_pipes(process: Any) -> None:
    """Close our ends of the pipes. A process outside the group may hold the other ends, and read nothing."""
    transport = getattr(getattr(process, "_process", None), "_transport", None)
    if transport is not None:  # on Windows, a program may be started without one
        unwritten = transport.get_pipe_transport(0)
        if unwritten.get_write_buffer_size():
            unwritten.abort()
        transport.close()


async def _has_ended(process: Any) -> bool:
    """Wait a short time until the program has ended. `wait()` would also wait for other holders of its pipes."""
    with anyio.move_on_after(_EXIT_SECONDS):
        while process.returncode is None:  # noqa: ASYNC110 (there is no event for the end of the process alone)
            await asyncio.sleep(_EXIT_POLL_SECONDS)
        return True
    return False


async def _skip_output(output: Any) -> None:
    with contextlib.suppress(*_PIPE_ERRORS):
        while True:
            await output.receive()
