"""The side of the handler: verify an order, make its tool again, validate its arguments, and run it without guards."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import suppress
from typing import Any

from ferrule.definition.tool import Tool
from ferrule.errors import NotStartedError
from ferrule.executors import Executor, Job
from ferrule.executors.event_loop import LoopExecutor, StreamExecutor
from ferrule.executors.process import Recipe, continue_trace, describe_error, make_tool, pack, validate_judged_arguments
from ferrule.executors.process.call import DetachedCall
from ferrule.executors.threads import ThreadExecutor
from ferrule.remote._seal import Seal, SealError
from ferrule.remote._wire import VERSION, Kind, Order
from ferrule.values.arguments import Arguments
from ferrule.values.call import ToolCall, make_judged_call
from ferrule.values.context import CURRENT

log = logging.getLogger("ferrule")
Place = tuple[str, str]
_MOST_TOOLS = 1000
_GRACE_SECONDS = 2.0
"""The seconds that a handler may outlive its deadline. The program watches the deadline and cancels; this limit ends
handlers that the program has lost.
"""
_VALID_SECONDS = 30 * 86_400.0
"""The seconds during which a repeated call gets the earlier outcome."""
_MOST_IN_MESSAGE = 1000
"""The most items in one message."""


def list_places(tools: Iterable[Tool]) -> set[Place]:
    """Return the places to import in order to make these tools again: handlers, argument models and wrappers.

    See docs/beyond-one-machine.md#other-engines.

    Raises:
        DefinitionError: No other process could make a tool.
    """
    return {place for tool in tools for place in _read_places(Recipe(tool).text)}


def _read_places(recipe: str) -> set[Place]:
    written = json.loads(recipe)
    found = [written[part] for part in ("target", "model", "wrap") if written[part] is not None]
    return {(module, qualname) for module, qualname, *_ in found}


class OrderRunner:
    """The runner of orders. See docs/beyond-one-machine.md#other-engines.

    Args:
        places: The only places to import for an order: `list_places` the tools that may be ordered.
        seal: The seal to verify orders and sign messages.
        deps: The `deps` of its handlers' contexts. Orders have none.
        secrets: The `secrets` of the same.
    """

    def __init__(
        self, places: Iterable[Place], seal: Seal, *, deps: object = None, secrets: Mapping[str, object] | None = None
    ) -> None:
        self.places = set(places)
        self._seal = seal
        self._deps = deps
        self._secrets = dict(secrets or {})
        self._tools: dict[str, Tool] = {}

    async def run(self, text: str, **subject: object) -> AsyncGenerator[str, None]:
        """Yield the signed messages about an order. The last one has the outcome.

        An order from no known program gets no message: a signed one could be shown as a message about the call that the
        order names.

        A caller that closes the iterator, or is cancelled while it waits for the next message, cancels the handler.

        Args:
            subject: The required subject of the order: `queue=` and `workflow=`, and `repeatable=` if it is known.
        """
        messages = MessageSigner(self._seal, subject["queue"], subject["workflow"])
        try:
            body, _ = self._seal.open(text, kind="order", **subject)
        except SealError as error:
            log.warning("an order was refused: %s", error)
            return
        try:
            order = Order.read(body)
            tool = self._tool(order.recipe)
            values = validate_judged_arguments(tool, order.arguments)
            arguments = Arguments(order.arguments, values, tool.handling.parameters)
            call = RemoteCall(tool, order, arguments, self._deps, self._secrets)
        except Exception as error:
            log.warning("an order was refused: %s: %s", type(error).__name__, error)
            yield messages.message(Kind.NOT_STARTED, describe_error(error))
            return
        yield messages.message(Kind.BEGAN)
        with continue_trace(order.trace):
            handling = asyncio.create_task(_run_handler(tool, values, call))
        handling.add_done_callback(call.wake)
        try:
            while progress := await call.next(handling):
                yield messages.message(Kind.PROGRESS, progress)
            yield messages.message(*handling.result())
        finally:
            await _end_handling(handling, call)

    def _tool(self, recipe: str) -> Tool:
        """Return the tool of a recipe. Only the allowed places are imported.

        Raises:
            PermissionError: The recipe needs another import.
        """
        tool = self._tools.get(recipe)
        if tool is None:
            if strangers := _read_places(recipe) - self.places:
                module, qualname = min(strangers)
                raise PermissionError(f"{module}:{qualname} is not a handler of this worker's tools")
            if len(self._tools) >= _MOST_TOOLS:
                self._tools.clear()
            tool = self._tools[recipe] = make_tool(recipe)
        return tool


class MessageSigner:
    """A signer of the messages about one run of an order, in their order."""

    def __init__(self, seal: Seal, queue: object, workflow: object) -> None:
        self._seal = seal
        self._subject = {
            "kind": "message",
            "version": VERSION,
            "queue": queue,
            "workflow": workflow,
            "run": os.urandom(8).hex(),
        }
        self._number = 0

    def message(self, kind: Kind, what: object = None) -> str:
        """Return the next message."""
        self._number += 1
        return self._seal.close(
            json.dumps([kind, what], default=str), valid=_VALID_SECONDS, number=self._number, **self._subject
        )


class RemoteCall(DetachedCall):
    """The running call for its handler's context and its executor: a `RunningCall` and a `StartedCall`.

    Attributes:
        start_error: The executor's reason not to start the handler. A handler may raise a similar error itself.
    """

    def __init__(
        self, tool: Tool, order: Order, arguments: Arguments, deps: object, secrets: dict[str, object]
    ) -> None:
        call = make_judged_call(ToolCall(order.id, tool.name, parent=order.parent), arguments)
        super().__init__(tool, call, order.fields(deps, secrets), order.key, order.remaining)
        self.cancelled = False
        self.start_error: NotStartedError | None = None
        self._loop = asyncio.get_running_loop()
        self._unsent: list[Mapping[str, Any]] = []
        self._changed = asyncio.Event()

    def announce(self, data: Mapping[str, Any]) -> None:
        """Send progress to the program, from any thread. Data after the end is dropped."""
        if not self.ended:
            self._unsent.append(dict(data))
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._changed.set)

    def wake(self, handling: object) -> None:
        """Handle the end of the handler."""
        self._changed.set()

    async def next(self, handling: asyncio.Task[Any]) -> list[Mapping[str, Any]]:
        """Wait for new progress and return it; empty after the handler has ended."""
        while not self._unsent and not handling.done():
            self._changed.clear()
            if not self._unsent:
                await self._changed.wait()
        progress, self._unsent = self._unsent[:_MOST_IN_MESSAGE], self._unsent[_MOST_IN_MESSAGE:]
        return progress

    def create_chunk_list(self) -> list[object]:
        return self.attempt.chunks

    def report_not_started(self, error: NotStartedError | None = None) -> None:
        self.start_error = error

    async def wait_for_start(self, started: asyncio.Future[float | None]) -> bool:
        await started
        return True

    def abandon(self, job: Job) -> None:
        log.warning("the handler of %r continues in its thread after its cancellation", self.tool.name)


def _make_executor(tool: Tool) -> Executor:
    """Return an executor for the handler in this process. The program converts the value."""
    handler = tool.handling
    if handler.streams:
        return StreamExecutor(handler, text=tool.output.is_text)
    return LoopExecutor(handler) if handler.is_async else ThreadExecutor(handler, lambda value: value)


async def _run_handler(tool: Tool, values: object, call: RemoteCall) -> tuple[Kind, object]:
    """Run the handler and return the last message. Raise nothing: a `SystemExit` in a task would end the loop."""
    CURRENT.set(call)
    try:
        seconds = None if (left := call.remaining()) is None else left + _GRACE_SECONDS
        async with asyncio.timeout(seconds):
            value = await _make_executor(tool).run(values, call)
        return Kind.VALUE, pack(value, "json").decode()
    except BaseException as error:
        return Kind.NOT_STARTED if error is call.start_error else Kind.RAISED, describe_error(error)
    finally:
        call.ended = True


async def _end_handling(handling: asyncio.Task[Any], call: RemoteCall) -> None:
    """Cancel a handler that nobody waits for, and give it the time to clean up."""
    if handling.done():
        return
    call.cancelled = True
    handling.cancel()
    await asyncio.wait([handling], timeout=_GRACE_SECONDS)
