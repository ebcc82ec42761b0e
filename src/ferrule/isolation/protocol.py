"""The messages between a program and its workers, and the connection that they are sent over.

A message is its kind, the mark of the call that it belongs to, a head in JSON and a body of bytes. A mark is random and
new for each call: a handler that writes to the connection cannot put its text in the place of another call's result.
Nothing that a worker sends is ever unpickled, unless the program itself asked for `transfer="pickle"`.
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

MOST_RECIPES = 255
"""Tools that a pool and its workers remember: a program may make new ones without end."""
IN_WORKER = threading.Event()
"""Set where this process is a worker."""
_HEADER = struct.Struct("!B16sQQ")
NO_MARK = bytes(16)


class Kind(IntEnum):
    """What a message says."""

    PREPARE = 1
    """To the worker: tools that will be needed. Head: their recipes, and the surroundings."""
    READY = 2
    """From the worker: it takes calls."""
    CALL = 3
    """To the worker: run this. Head: the recipe, the surroundings where they have changed, the order's head. Body: the
    arguments."""
    READ = 4
    """From the worker: it has read the call, which no other gets any more, and has to make the tool first."""
    STARTED = 5
    """From the worker: the handler begins. Anything of it may happen from now on, and its deadline is counted."""
    PROGRESS = 6
    """From the worker: the data of a `tool:progress`, as the head."""
    VALUE = 7
    """From the worker: what the handler returned, as the body."""
    RAISED = 8
    """From the worker: what the handler raised, as the head."""
    NOT_STARTED = 9
    """From the worker: why the handler was not even started, as the head."""
    RUN = 10
    """From the worker: run a tool as a child of the call. Head: a number for it, the name. Body: the arguments."""
    STOP = 11
    """From the worker: that is not wanted any more. Head: its number."""
    RESULT = 12
    """To the worker: what that came to. Head: its number, and what was raised in the program's own code. Body: the
    result."""


class Message(NamedTuple):
    """What was received."""

    kind: int
    mark: bytes
    head: Any
    body: bytes


class Connection:
    """One end of the socket between a program and a worker. Each end has one thread that receives; any may send."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()

    def send(self, kind: Kind, head: object = None, body: bytes = b"", mark: bytes = NO_MARK) -> None:
        """Send a message and wait until it is on its way; what has no JSON form in its head becomes text.

        Raises:
            OSError: where the other end is gone.
        """
        text = json.dumps(head, default=str).encode()
        data = b"".join((_HEADER.pack(kind, mark, len(text), len(body)), text, body))
        with self._sending:
            self._socket.sendall(data)

    def receive(self) -> Message:
        """Wait for the next message.

        Raises:
            EOFError: where the other end is gone.
        """
        kind, mark, head, body = _HEADER.unpack(self._receive(_HEADER.size))
        return Message(kind, mark, json.loads(self._receive(head)), self._receive(body))

    def _receive(self, size: int) -> bytes:
        data = bytearray(size)
        missing = memoryview(data)
        while missing:
            try:
                count = self._socket.recv_into(missing)
            except ConnectionResetError:  # it was gone before it had read what was sent to it
                count = 0
            if not count:
                raise EOFError("the other end of the connection is gone")
            missing = missing[count:]
        return bytes(data)

    def fileno(self) -> int:
        """For `select`."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end, once nobody sends: the number of its descriptor may be another's at once."""
        with self._sending:
            self._socket.close()

    def abandon(self) -> None:
        """Close it in a forked child, where whoever was sending is not."""
        self._sending = threading.Lock()
        self._socket.close()


class Surroundings(NamedTuple):
    """Where code runs: what a worker takes over from the program with each call."""

    directory: str | None
    path: list[str]
    environment: dict[str, str]


def surroundings() -> Surroundings:
    """Working directory, path of imports and environment of this process."""
    try:
        directory = os.getcwd()
    except OSError:  # it was removed
        directory = None
    path: list[object] = [*sys.path]  # which may hold anything: what is no text leads nowhere
    return Surroundings(directory, [entry for entry in path if isinstance(entry, str)], dict(os.environ))
