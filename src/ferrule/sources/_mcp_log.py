"""What an MCP server writes to its standard error, says in log messages, or makes the SDK log, in the log: bounded."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
from collections import deque
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any, TextIO

from pydantic import ValidationError

from ferrule.sources._mcp_text import visible
from ferrule.values.content import text_of
from ferrule.values.masking import MASK, masked_text, without_credentials

log = logging.getLogger("ferrule.mcp")
_MOST_LINE = 1_000
_MOST_LOGGED = 100
"""In one second; what is more is counted."""
_LEAST_SECRET = 6
"""Characters of a value of `env` or `headers` (of a header, of what follows its scheme as well) that becomes stars."""
_MOST_KEPT = 20
_CHUNK = 65_536


class ServerLog:
    """What one server says, line by line, and the end of it for whoever wants to know why it ended."""

    def __init__(self, label: str, secrets: Iterable[str] = ()) -> None:
        self._label = label
        found = {part for value in secrets for part in (value, value.partition(" ")[2]) if len(part) >= _LEAST_SECRET}
        self._secrets = sorted(found, key=len, reverse=True)
        self._kept: deque[str] = deque(maxlen=_MOST_KEPT)
        self._rest = b""
        self._second = 0
        self._lines = 0

    @property
    def end(self) -> str:
        """The last lines, at most 1,000 characters."""
        return "\n".join(self._kept)[-_MOST_LINE:].strip()

    def clear(self) -> None:
        """Forget what an earlier process said."""
        self._kept.clear()
        self._rest = b""

    def starred(self, text: str) -> str:
        """The text with stars in the place of the values of `env` and `headers`."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text

    def text_of(self, error: BaseException) -> str:
        """What an exception says, at most 500 characters."""
        if isinstance(error, ValidationError):  # this leaves out what was given to it
            return masked_text(error)
        return without_credentials(self.starred(visible(text_of(error))[0]))  # before it is cut

    def say(self, text: str, level: int = logging.INFO) -> None:
        """One line."""
        text = self.starred(visible(text[: 4 * _MOST_LINE])[0])[:_MOST_LINE].rstrip()
        if not text:
            return
        self._kept.append(text)
        second = int(asyncio.get_running_loop().time())
        if second != self._second:
            if self._lines > _MOST_LOGGED:
                log.warning("%s: %d more lines were not logged", self._label, self._lines - _MOST_LOGGED)
            self._second, self._lines = second, 0
        self._lines += 1
        if self._lines <= _MOST_LOGGED:
            log.log(level, "%s: %s", self._label, text)

    def feed(self, data: bytes) -> None:
        """What came from its standard error."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[: 4 * _MOST_LINE]
        for line in lines:
            self.say(line[: 4 * _MOST_LINE].decode("utf-8", "replace"))

    @contextlib.contextmanager
    def stderr(self) -> Iterator[Any]:
        """A file for the standard error of a process. A loop that cannot wait for a pipe (Windows) gets none of it."""
        loop = asyncio.get_running_loop()
        read, write = os.pipe()
        os.set_blocking(read, False)

        def take() -> None:
            try:
                self.feed(os.read(read, _CHUNK))
            except BlockingIOError:
                return

        try:
            loop.add_reader(read, take)
        except NotImplementedError:
            os.close(read)
            os.close(write)
            yield subprocess.DEVNULL
            return
        file: TextIO = os.fdopen(write, "w")
        try:
            with file:
                yield file
        finally:
            loop.remove_reader(read)
            take()
            self.feed(b"\n")
            os.close(read)


SDK_LOGS: ContextVar[ServerLog | None] = ContextVar("ferrule_mcp_sdk_logs", default=None)
"""Where warnings of the SDK go: it logs a traceback for whatever a server sends that is no message."""
DROPPED: ContextVar[list[tuple[str | None, str]] | None] = ContextVar("ferrule_mcp_dropped", default=None)
"""Takes the tools that the SDK leaves out of a list, each with what is wrong with it: only its log tells of them."""
_SDK_LOGGERS = ("client", "mcp.client.stdio", "mcp.client.streamable_http", "mcp.shared.jsonrpc_dispatcher")


def _is_of_others(record: logging.LogRecord) -> bool:
    """Whether a record of the SDK is not about a server of this package, which has its own log."""
    if record.levelno < logging.WARNING:
        return True
    if (dropped := DROPPED.get()) is not None and str(record.msg).startswith("dropping tool"):
        name, *reason = record.args if isinstance(record.args, tuple) else ()
        dropped.append((str(name), f"invalid x-mcp-header: {' '.join(map(str, reason))}"))
        return False
    if (server := SDK_LOGS.get()) is None:
        return True
    text = record.getMessage()[:_MOST_LINE]
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, ValidationError):  # of what was no message
        text += f": {str(error.errors(include_url=False)[0]['input'])[: 4 * _MOST_LINE]}"
    elif error is not None:
        text += f": {type(error).__name__}: {server.text_of(error)}"
    server.say(" ".join(text.split()), logging.WARNING)
    return False


for sdk_logger in map(logging.getLogger, _SDK_LOGGERS):
    sdk_logger.addFilter(_is_of_others)
