"""The texts of an MCP server beside its results: in errors, in its status, and in the log. All of them pass
`ServerLog.clean`: it bounds them and removes hidden characters and secrets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import subprocess
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from time import monotonic
from typing import Any, TextIO

from pydantic import ValidationError

from ferrule import ToolError
from ferrule.security.characters import remove_hidden
from ferrule.security.masking import format_masked_error
from ferrule.security.redactor import make_redactor
from ferrule.values.content import truncate_text
from ferrule.values.json_text import MASK
from ferrule.values.log import LogLines, make_logger

log = make_logger("ferrule.mcp")
_MOST_LINE = 1_000
_MOST_LOGGED = 100
"""Lines in one second; further ones are counted."""
_LEAST_SECRET = 6
"""Least characters of a value of `env` or `headers` to be masked. In a header, the part after the scheme is masked as
well."""
_ESCAPED_CHARACTER = re.compile(r"\\+(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")
_PREFIX_LENGTH = 16
"""Characters of the beginning of a secret. They are enough to find it if its end was cut off."""
_MOST_SIGNED = 400
"""Most values of requests to hide; each user's token is two. Searching for all of them takes 0.3 ms."""
_MOST_ERROR = 1_500
_MOST_TRACEBACK = 20_000
_MOST_KEPT = 20
_CHUNK = 65_536


class ServerLog:
    """The output of one server, line by line. Its last lines explain why the server ended.

    Args:
        label: The server's name, or else its address.
        secrets: Values of `env` or `headers`, hidden in every text. Those that OAuth finds are added.
    """

    def __init__(self, label: str, secrets: Iterable[str] = ()) -> None:
        self._label = label
        parts = _split_secrets(secrets)
        self._given = _list_spellings(parts)
        self._redact_encoded = make_redactor(parts)
        self._found: deque[str] = deque(maxlen=_MOST_SIGNED)
        self._kept: deque[str] = deque(maxlen=_MOST_KEPT)
        self._rest = b""
        self._second = 0
        self._lines = 0

    @property
    def end(self) -> str:
        """The last lines, at most 1,000 characters."""
        return "\n".join(self._kept)[-_MOST_LINE:].strip()

    def clear(self) -> None:
        """Forget the output of an earlier process."""
        self._kept.clear()
        self._rest = b""

    def hide(self, value: str) -> None:
        """From now on hide this value of a request in every text, until many others were hidden since."""
        forms = _list_spellings(_split_secrets([value]))
        for form in [form for form in forms if form in self._found]:
            self._found.remove(form)
        self._found += forms

    def clean(self, text: str, most: int = _MOST_LINE) -> str:
        """Return at most `most` characters of the text, without hidden characters, and with stars for secrets."""
        return truncate_text(self._clean(text[: 4 * most]), most)

    def clean_error(self, error: BaseException) -> str:
        """Return the text of an exception, at most 500 characters; for a `ValidationError`, without the validated
        input."""
        return format_masked_error(error, lambda text: self._clean(text[:_MOST_TRACEBACK]))

    def make_error(self, error: Exception) -> ToolError:
        """Return the error of a call for an exception. This is the only way to make an error of a connection."""
        if isinstance(error, ToolError):
            text = self.clean(str(error), _MOST_ERROR)
            return ToolError(text, executed=error.executed, retryable=error.retryable, retry_after=error.retry_after)
        self.write_error(logging.ERROR, "a call failed", error)
        return ToolError(f"the call to {self._label} failed: {type(error).__name__}", executed=None)

    def write(self, level: int, text: str, most: int = 2 * _MOST_LINE) -> None:
        """Write a record about the server to the log."""
        log.log(level, "%s", self.clean(text, most))

    def write_error(self, level: int, what: str, error: Exception) -> None:
        """Write a record about the server to the log, with a traceback."""
        if log.isEnabledFor(level):
            text = self.clean("".join(traceback.format_exception(error)), _MOST_TRACEBACK)
            log.log(level, "%s%s", self.clean(f"{self._label}: {what}"), LogLines(text.rstrip()))

    def _clean(self, text: str) -> str:
        shown = remove_hidden(text)[0]
        bare = _ESCAPED_CHARACTER.sub("", shown)  # hidden characters may stand escaped between the letters of a secret
        starred = self._mask_secrets(bare)
        return self._redact_encoded(self._mask_secrets(shown) if starred == bare and bare != shown else starred)

    def _mask_secrets(self, text: str) -> str:
        """Return the text with stars for secrets, and for beginnings of secrets, because the text may have been cut.
        Spellings of one secret begin alike, so the one that goes on longest counts."""
        secrets = (*self._given, *self._found)
        for secret in secrets:
            begin = secret[:_PREFIX_LENGTH]
            if (at := text.find(begin)) < 0:
                continue
            alike = [one for one in secrets if one.startswith(begin)]
            while at >= 0:
                end = at + max(_shared_length(text[at : at + len(one)], one) for one in alike)
                text = text[:at] + MASK + text[end:]
                at = text.find(begin, at + len(MASK))
        return text

    def add_line(self, text: str, level: int = logging.INFO) -> None:
        """Store and log one line."""
        text = self.clean(text).rstrip()
        if not text:
            return
        self._kept.append(text)
        second = int(monotonic())
        if second != self._second:
            if self._lines > _MOST_LOGGED:
                self.write(logging.WARNING, f"{self._label}: {self._lines - _MOST_LOGGED} more lines were not logged")
            self._second, self._lines = second, 0
        self._lines += 1
        if self._lines <= _MOST_LOGGED:
            log.log(level, "%s: %s", self._label, text)

    def feed(self, data: bytes) -> None:
        """Take bytes of the server's standard error."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[: 4 * _MOST_LINE]
        for line in lines:
            self.add_line(line[: 4 * _MOST_LINE].decode("utf-8", "replace"))

    @contextlib.contextmanager
    def stderr(self) -> Iterator[Any]:
        """Yield a file for the standard error of a process. A loop without readers for pipes (Windows) discards the
        output."""
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


def _shared_length(one: str, other: str) -> int:
    """Return how many characters two texts begin with in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((number for number, (mine, its) in pairs if mine != its), min(len(one), len(other)))


def _split_secrets(secrets: Iterable[str]) -> set[str]:
    """Return each secret, and the part after its scheme."""
    return {part for value in secrets for part in (value, value.partition(" ")[2]) if len(part) >= _LEAST_SECRET}


def _list_spellings(parts: Iterable[str]) -> list[str]:
    """Return the parts to search for: plain, and as in JSON or a `repr`."""
    forms = {form for part in parts for form in (part, ascii(part)[1:-1], json.dumps(part)[1:-1])}
    return sorted(forms, key=len, reverse=True)


SDK_LOGS: ContextVar[ServerLog | None] = ContextVar("ferrule_mcp_sdk_logs", default=None)
"""The receiver of the SDK's warnings: the SDK logs a traceback for anything from a server that is no message."""
DROPPED: ContextVar[list[tuple[str | None, str]] | None] = ContextVar("ferrule_mcp_dropped", default=None)
"""Collects the tools that the SDK leaves out of a list, each with the problem: the SDK reports them in its log only."""
_SDK_LOGGERS = (
    "client",
    "mcp.client.auth.oauth2",
    "mcp.client.client",
    "mcp.client.streamable_http",
    "mcp.shared.jsonrpc_dispatcher",
)


def _should_log(record: logging.LogRecord) -> bool:
    """Return whether a record of the SDK is about no server of this package. Such servers have their own log."""
    if record.levelno < logging.WARNING:
        return SDK_LOGS.get() is None  # the SDK logs addresses, and a key may stand in one
    if (dropped := DROPPED.get()) is not None and str(record.msg).startswith("dropping tool"):
        name, *reason = record.args if isinstance(record.args, tuple) else ()
        dropped.append((str(name), f"invalid x-mcp-header: {' '.join(map(str, reason))}"))
        return False
    if (server := SDK_LOGS.get()) is None:
        return True
    text = record.getMessage()[:_MOST_LINE]
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, ValidationError):  # of an input that was no message
        text += f": {str(error.errors(include_url=False)[0]['input'])[: 4 * _MOST_LINE]}"
    elif error is not None:
        text += f": {type(error).__name__}: {server.clean_error(error)}"
    server.add_line(" ".join(text.split()), logging.WARNING)
    return False


for sdk_logger in map(logging.getLogger, _SDK_LOGGERS):
    sdk_logger.addFilter(_should_log)
