"""A server that is a program: started, spoken to line by line, and ended.

The SDK has a transport for this. It waits for an answer that it could not parse, keeps a line without an end in memory,
and its reader dies of one byte that is not UTF-8. Here each line is a message, noise, or an answer that is lost, and a
lost answer fails its request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
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

from ferrule.mcp_lines import LineBuffer, MessageStream, MessageWriter, OpenRequests
from ferrule.sources._mcp_log import ServerLog
from ferrule.sources._mcp_settings import Stdio

_LONGEST_MESSAGE = 100_000_000
"""Bytes, as of an answer over HTTP."""
_EXIT_SECONDS = 2.0
"""How long a process has to end by itself once its input is closed, and once it was told to end."""
_EXIT_POLL_SECONDS = 0.01
_SILENT_SECONDS = 1.0
"""Seconds of silence after which the output of an ended process counts as ended, too."""
_PIPE_ERRORS = (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)


@contextlib.asynccontextmanager
async def run_program(server: Stdio, stderr: Any, server_log: ServerLog) -> AsyncIterator[tuple[Any, Any]]:
    """Start the program, yield the streams of its messages, and end it with all that it has started.

    Raises:
        OSError: If it cannot be started.
    """
    process = await _start_process(server, stderr)
    try:
        writer = MessageWriter(process.stdin.send)
        output = _Output(process)
        yield MessageStream(read_messages(output.receive, writer.requests, server_log)), writer
    finally:
        with anyio.CancelScope(shield=True):
            await _end_process(process)


async def read_messages(
    receive: Callable[[], Awaitable[bytes]], requests: OpenRequests, server_log: ServerLog
) -> AsyncGenerator[SessionMessage, None]:
    """Yield the messages of a program until its output ends, or cannot be read for any other reason."""
    buffer = LineBuffer(_LONGEST_MESSAGE)
    warn = partial(server_log.say, level=logging.WARNING)
    try:
        while True:
            for line in buffer.feed(await receive()):
                for message in requests.read(line, warn):
                    yield SessionMessage(message)
                await asyncio.sleep(0)  # a flood of lines must not hold the loop
    except _PIPE_ERRORS:
        pass
    except Exception as error:  # the end of the stream fails the open calls, and the next call starts the program
        server_log.tell_error(logging.ERROR, "its output could not be read any further", error)


class _Output:
    """The standard output of a process. What the process has started may hold it open after its end."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self._has_served = False

    async def receive(self) -> bytes:
        """Return the next bytes.

        A launcher may end before its server says anything. The output of any other process ends soon after the process.

        Raises:
            EndOfStream: The output has ended.
        """
        while True:
            has_ended = self._has_served and self._process.returncode is not None
            with anyio.move_on_after(_SILENT_SECONDS):
                data = bytes(await self._process.stdout.receive())
                self._has_served = self._has_served or self._process.returncode is None
                return data
            if has_ended:
                raise anyio.EndOfStream


async def _start_process(server: Stdio, stderr: Any) -> Any:
    """Start the program in a group of its own, by which it is ended with all that it has started."""
    environment = get_default_environment() | {**server.env}
    cwd = None if server.cwd is None else os.fspath(server.cwd)
    if sys.platform == "win32":  # pragma: no cover
        command = await asyncio.to_thread(get_windows_executable_command, server.command)
        return await create_windows_process(command, [*server.args], environment, stderr, cwd)
    command = [server.command, *server.args]
    return await anyio.open_process(command, env=environment, cwd=cwd, stderr=stderr, start_new_session=True)


async def _end_process(process: Any) -> None:
    """Close the input, and end the program by force if that does not. Meanwhile its output is read: a program that
    cannot write does not end."""
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
        await asyncio.wait([reading], timeout=_EXIT_SECONDS)
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _has_ended(process: Any) -> bool:
    """Wait until the program has ended, not for long. `wait()` would wait for those who hold its pipes as well."""
    with anyio.move_on_after(_EXIT_SECONDS):
        while process.returncode is None:  # noqa: ASYNC110 (there is no event for the end of the process alone)
            await asyncio.sleep(_EXIT_POLL_SECONDS)
        return True
    return False


async def _skip_output(output: Any) -> None:
    with contextlib.suppress(*_PIPE_ERRORS):
        while True:
            await output.receive()
