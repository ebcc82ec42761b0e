"""The program of a worker process, which runs handlers, one call at a time.

It imports the handler's module, validates the judged arguments again with the tool's own parameters, runs the handler,
and sends back its value or exception. `supervisor.py` starts this program, `worker_process.py` has the other end of the
connection, and `protocol.py` has the messages.
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
from ferrule.executors.event_loop import collect_chunks
from ferrule.executors.process.call import WorkerCall
from ferrule.executors.process.protocol import IN_WORKER, MAX_RECIPES, Connection, Kind, Message
from ferrule.executors.process.recipe import make_tool, validate_judged_arguments
from ferrule.executors.process.remote_errors import describe_error
from ferrule.executors.process.traces import continue_trace
from ferrule.executors.process.transfer import Plain, pack
from ferrule.executors.threads import Raised
from ferrule.security.import_path import load_searching_modules
from ferrule.values.arguments import Arguments
from ferrule.values.context import CURRENT

_CANCEL_SECONDS = 1.0
"""Seconds that the tasks left behind by a handler have to end after they are cancelled."""


def run_worker(end: socket) -> None:
    """Run calls until the other end of the socket is closed."""
    connection = Connection(end)
    # A child that a handler forks must not send for it, and must not keep the connection open after the worker's death.
    os.register_at_fork(after_in_child=connection.close_after_fork)
    IN_WORKER.set()
    if isinstance(sys.stdout, TextIOWrapper):  # the lines that a handler prints survive a kill
        sys.stdout.reconfigure(line_buffering=True)
    worker = Worker(connection)
    with suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            worker.on_message(connection.receive())


class Worker:
    """The state that lasts from one call to the next: the tools, the event loop, and the program's directory."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._tools: dict[str, Tool] = {}
        self._loop = HandlerLoop()
        self._directory: str | None = None

    def on_message(self, message: Message) -> None:
        """Make tools ahead, or run a call."""
        if message.kind == Kind.PREPARE:
            recipes, state = message.head
            self._apply_process_state(state)
            for recipe in recipes:
                with suppress(BaseException):  # a call of this tool will report the error
                    self._get_tool(recipe)
            self._connection.send(Kind.READY)
        elif message.kind == Kind.CALL:
            if message.head[0] not in self._tools:  # otherwise the handler starts at once, and `STARTED` says so
                self._connection.send(Kind.RECEIVED, token=message.token)
            self._run_call(message)

    def _run_call(self, message: Message) -> None:
        recipe, state, order_head = message.head
        try:
            self._apply_process_state(state)
            tool, head = self._get_tool(recipe), json.loads(order_head)
            values, text = _read_values(tool, head, message.body)
            arguments = Arguments(text, values, tool.handling.parameters)
            call = WorkerCall(tool, head, arguments, self._connection, message.token)
            call.report_start()
        except BaseException as error:
            self._connection.send(Kind.NOT_STARTED, describe_error(error), token=message.token)
            return
        with continue_trace(head["trace"]):
            outcome: object = copy_context().run(self._call_handler, call, values)
        if not isinstance(outcome, Raised):
            try:
                outcome = pack(outcome, head["transfer"])
            except BaseException as error:
                outcome = Raised(error)
        _flush_output()
        call.end()
        if isinstance(outcome, bytes):
            self._connection.send(Kind.VALUE, None, outcome, message.token)
        elif isinstance(outcome, Raised):
            self._connection.send(Kind.RAISED, describe_error(outcome.error), token=message.token)

    def _get_tool(self, recipe: str) -> Tool:
        tool = self._tools.get(recipe)
        if tool is None:
            tool = make_tool(recipe)
            if len(self._tools) >= MAX_RECIPES:
                self._tools.clear()
            self._tools[recipe] = tool
        return tool

    def _apply_process_state(self, state: list[Any] | None) -> None:
        """Take over the program's import path and environment if they have changed, and its directory in any case."""
        if state is not None:
            self._directory, path, environment = state
            if path != sys.path:
                load_searching_modules()  # with the path from before the program added folders of its user
                sys.path[:] = path
            for name in os.environ.keys() - environment.keys():
                del os.environ[name]
            os.environ.update({k: v for k, v in environment.items() if os.environ.get(k) != v})
        if self._directory is not None:
            with suppress(OSError):  # it was removed
                os.chdir(self._directory)

    def _call_handler(self, call: WorkerCall, values: object) -> object:
        CURRENT.set(call)
        handling = call.tool.handling
        try:
            value = handling.call(values, call.context)
            if handling.streams:
                value = collect_chunks(value, call.attempt.chunks, call.announce, text=call.tool.output.is_text)
            return self._loop.run(value) if inspect.isawaitable(value) else value
        except BaseException as error:
            return Raised(error)


class HandlerLoop:
    """The one event loop of all async handlers, because they may keep clients that belong to it."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def run(self, awaitable: Awaitable[object]) -> object:
        """Return the value of `awaitable`, or `Raised`. Cancel the tasks that it leaves on the loop."""
        outcome = self._runner.run(_capture(awaitable), context=copy_context())
        if tasks := asyncio.all_tasks(self._runner.get_loop()):
            self._runner.run(_cancel_tasks(tasks))
        return outcome


async def _capture(awaitable: Awaitable[object]) -> object:
    """Return the value of `awaitable`, or `Raised`, because a `SystemExit` from a task would end the loop."""
    try:
        return await awaitable
    except BaseException as error:
        return Raised(error)


async def _cancel_tasks(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=_CANCEL_SECONDS)


def _read_values(tool: Tool, head: Plain, body: bytes) -> tuple[object, str]:
    """Return the handler's values, and the text of the judged arguments.

    Raises:
        ValueError: The values would not be those that were judged.
    """
    if head["transfer"] == "pickle":
        values, text = pickle.loads(body)
        return values, text
    text = body.decode("utf-8", "surrogatepass")
    return validate_judged_arguments(tool, text), text


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the handler may have closed or replaced it
            stream.flush()
