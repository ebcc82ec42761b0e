"""A worker: the program of a process that runs handlers, one call at a time.

It imports the handler's module, validates the judged text again with the tool's own parameters, so that the handler
gets real objects, and sends back what the handler returned or raised. `supervisor.py` starts it, `process.py` holds the
other end of the connection, and `protocol.py` is the language that they speak.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pickle
import sys
from collections.abc import Awaitable
from contextlib import suppress
from contextvars import copy_context
from io import TextIOWrapper
from socket import socket
from typing import Any

from ferrule.definition.tool import Tool
from ferrule.executors.in_loop import collect
from ferrule.executors.threads import Raised
from ferrule.isolation.call import WorkerCall
from ferrule.isolation.protocol import IN_WORKER, MOST_RECIPES, Connection, Kind, Message
from ferrule.isolation.recipes import judged_values, make_tool
from ferrule.isolation.remote_errors import describe
from ferrule.isolation.traces import in_trace
from ferrule.isolation.transfer import Plain, pack
from ferrule.startup import load_what_looks_further
from ferrule.values.arguments import Arguments
from ferrule.values.context import CURRENT

_LEFTOVER_SECONDS = 1.0


def serve(end: socket) -> None:
    """Take calls until the other end is closed."""
    connection = Connection(end)
    # A forked child of a handler's must neither answer for it nor hold the connection when it has died.
    os.register_at_fork(after_in_child=connection.abandon)
    IN_WORKER.set()
    if isinstance(sys.stdout, TextIOWrapper):  # what a handler prints is not lost when it is killed
        sys.stdout.reconfigure(line_buffering=True)
    worker = Worker(connection)
    with suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            worker.take(connection.receive())


class Worker:
    """What lasts from one call to the next: the tools that were made, the loop, and where the program stands."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._tools: dict[str, Tool] = {}
        self._loop = Loop()
        self._directory: str | None = None

    def take(self, message: Message) -> None:
        """Do what a message says."""
        if message.kind == Kind.PREPARE:
            recipes, surroundings = message.head
            self._move(surroundings)
            for recipe in recipes:
                with suppress(BaseException):  # the call that needs it will say what is wrong
                    self._tool(recipe)
            self._connection.send(Kind.READY)
        elif message.kind == Kind.CALL:
            if message.head[0] not in self._tools:  # else it begins at once
                self._connection.send(Kind.READ, mark=message.mark)
            self._run(message)

    def _run(self, message: Message) -> None:
        recipe, surroundings, order = message.head
        try:
            self._move(surroundings)
            tool, head = self._tool(recipe), json.loads(order)
            values, text = _handler_values(tool, head, message.body)
            arguments = Arguments(text, values, tool.handling.parameters)
            call = WorkerCall(tool, head, arguments, self._connection, message.mark)
            call.start()
        except BaseException as error:
            self._connection.send(Kind.NOT_STARTED, describe(error), mark=message.mark)
            return
        with in_trace(head["trace"]):
            outcome: object = copy_context().run(self._handle, call, values)
        if not isinstance(outcome, Raised):
            try:
                outcome = pack(outcome, head["transfer"])
            except BaseException as error:
                outcome = Raised(error)
        _flush()
        call.end()
        if isinstance(outcome, bytes):
            self._connection.send(Kind.VALUE, None, outcome, message.mark)
        elif isinstance(outcome, Raised):
            self._connection.send(Kind.RAISED, describe(outcome.error), mark=message.mark)

    def _tool(self, recipe: str) -> Tool:
        tool = self._tools.get(recipe)
        if tool is None:
            tool = make_tool(recipe)
            if len(self._tools) >= MOST_RECIPES:
                self._tools.clear()
            self._tools[recipe] = tool
        return tool

    def _move(self, surroundings: list[Any] | None) -> None:
        """Be where the program is: directory, path of imports, environment."""
        if surroundings is not None:
            self._directory, path, environment = surroundings
            if path != sys.path:
                load_what_looks_further()  # of the path that the program had, before it put folders of its user's on it
                sys.path[:] = path
            for name in os.environ.keys() - environment.keys():
                del os.environ[name]
            os.environ.update({k: v for k, v in environment.items() if os.environ.get(k) != v})
        if self._directory is not None:
            with suppress(OSError):  # it was removed meanwhile
                os.chdir(self._directory)

    def _handle(self, call: WorkerCall, values: object) -> object:
        CURRENT.set(call)
        handling = call.tool.handling
        try:
            value = handling.call(values, call.context)
            if handling.streams:
                value = collect(value, call.attempt.chunks, call.announce, text=call.tool.output.exact is str)
            return self._loop.run(value) if inspect.isawaitable(value) else value
        except BaseException as error:
            return Raised(error)


class Loop:
    """The event loop of async handlers, the same for all: they may keep clients that belong to it."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def run(self, awaitable: Awaitable[object]) -> object:
        """What `awaitable` gives, or `Raised`; what it leaves running on the loop is cancelled."""
        outcome = self._runner.run(_without_raising(awaitable), context=copy_context())
        if tasks := asyncio.all_tasks(self._runner.get_loop()):
            self._runner.run(_cancelled(tasks))
        return outcome


async def _without_raising(awaitable: Awaitable[object]) -> object:
    """Nothing is raised out of it: a `SystemExit` in a task would end the loop."""
    try:
        return await awaitable
    except BaseException as error:
        return Raised(error)


async def _cancelled(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=_LEFTOVER_SECONDS)


def _handler_values(tool: Tool, head: Plain, body: bytes) -> tuple[object, str]:
    """What the handler gets, and the text that it was read from.

    Raises:
        ValueError: where that is not what was judged.
    """
    if head["transfer"] == "pickle":
        values, text = pickle.loads(body)
        return values, text
    text = body.decode("utf-8", "surrogatepass")
    return judged_values(tool, text), text


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the handler may have closed or replaced it
            stream.flush()
