"""The messages between a program and its workers, and the connection that carries them.

A message has a kind, the token of its call, a head in JSON and a body of bytes. Each call has a new random token. So a
handler that writes to the connection cannot forge the result of another call. The program unpickles nothing that a
worker sends, unless the tool has `Workers(…, transfer="pickle")`.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
from enum import IntEnum
from typing import Any, NamedTuple

MAX_RECIPES = 255
"""Tools that a pool and a worker remember at most, because a program may make new tools without end."""
IN_WORKER = threading.Event()
"""Set if this process is a worker."""
_HEADER = struct.Struct("!B16sQQ")
NO_TOKEN = bytes(16)


class Kind(IntEnum):
    """The kind of a message."""

    PREPARE = 1
    """To the worker: make these tools ahead. Head: their recipes, and the process state."""
    READY = 2
    """From the worker: it takes calls."""
    CALL = 3
    """To the worker: run this call. Head: the recipe, the process state if it has changed, the order's head. Body: the
    arguments."""
    RECEIVED = 4
    """From the worker: it has received the call, and makes the tool first. The call is sent to no other worker now."""
    STARTED = 5
    """From the worker: the handler starts. It may have effects from now on, and its deadline runs."""
    PROGRESS = 6
    """From the worker: progress of the handler. Head: the data of a `tool:progress`."""
    VALUE = 7
    """From the worker: the handler returned. Body: its value."""
    RAISED = 8
    """From the worker: the handler raised. Head: the described error."""
    NOT_STARTED = 9
    """From the worker: the handler did not start. Head: the described error."""
    RUN_NESTED = 10
    """From the worker: run a tool below the call. Head: a number for the nested call, the tool's name. Body: the
    arguments."""
    CANCEL_NESTED = 11
    """From the worker: cancel a nested call. Head: its number."""
    NESTED_RESULT = 12
    """To the worker: a nested call has ended. Head: its number, and a described error if the program's own code
    raised. Body: the result."""


class Message(NamedTuple):
    """A message that was received."""

    kind: int
    token: bytes
    head: Any
    body: bytes


class Connection:
    """One end of the socket between a program and a worker. One thread receives at each end, and any thread sends."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._send_lock = threading.Lock()

    def send(self, kind: Kind, head: object = None, body: bytes = b"", token: bytes = NO_TOKEN) -> None:
        """Send a message, and wait until the system has taken it. Values in the head without a JSON form become text.

        Raises:
            OSError: The other end is closed.
        """
        text = json.dumps(head, default=str).encode()
        data = b"".join((_HEADER.pack(kind, token, len(text), len(body)), text, body))
        with self._send_lock:
            self._socket.sendall(data)

    def receive(self) -> Message:
        """Wait for the next message and return it.

        Raises:
            EOFError: The other end is closed.
        """
        kind, token, head, body = _HEADER.unpack(self._receive_bytes(_HEADER.size))
        return Message(kind, token, json.loads(self._receive_bytes(head)), self._receive_bytes(body))

    def _receive_bytes(self, size: int) -> bytes:
        data = bytearray(size)
        missing = memoryview(data)
        while missing:
            try:
                count = self._socket.recv_into(missing)
            except ConnectionResetError:  # the other end closed with unread data
                count = 0
            if not count:
                raise EOFError("the other end of the connection is gone")
            missing = missing[count:]
        return bytes(data)

    def fileno(self) -> int:
        """Return the descriptor, for `select`."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end when no thread is sending. The system may reuse the descriptor at once."""
        with self._send_lock:
            self._socket.close()

    def close_after_fork(self) -> None:
        """Close this end in a forked child. A thread of the parent may have held the lock."""
        self._send_lock = threading.Lock()
        self._socket.close()


class ProcessState(NamedTuple):
    """The state of the program's process that a worker takes over for each call."""

    directory: str | None
    import_path: list[str]
    environment: dict[str, str]


def read_process_state() -> ProcessState:
    """Return the working directory, import path and environment of this process."""
    try:
        directory = os.getcwd()
    except OSError:  # it was removed
        directory = None
    path: list[object] = [*sys.path]  # may hold objects, which only path hooks of this process understand
    return ProcessState(directory, [entry for entry in path if isinstance(entry, str)], dict(os.environ))
