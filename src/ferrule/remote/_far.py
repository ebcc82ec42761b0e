"""Where the handler runs: an order is verified, its tool made again, its arguments validated, and no guard is asked."""

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
_MOST_MADE = 1000
_GRACE = 2.0
"""Seconds that a handler may outlive its deadline: the program counts that, and cancels; this ends what it has lost."""
_VALID = 30 * 86_400.0
"""Seconds for which a call that comes again gets what it came to."""
_MOST_IN_MESSAGE = 1000
"""How much one message holds."""


def places_of(tools: Iterable[Tool]) -> set[Place]:
    """What is imported where these tools are made again: handlers, models of arguments, what adapts them. See
    docs/beyond-one-machine.md#other-engines.

    Raises:
        DefinitionError: for a tool that no other process could make.
    """
    return {place for tool in tools for place in _places_in(Recipe(tool).text)}


def _places_in(recipe: str) -> set[Place]:
    written = json.loads(recipe)
    found = [written[part] for part in ("target", "model", "wrap") if written[part] is not None]
    return {(module, qualname) for module, qualname, *_ in found}


class FarSide:
    """Runs orders. See docs/beyond-one-machine.md#other-engines.

    Args:
        places: What may be imported for an order, and nothing else is: `places_of` the tools that may be ordered.
        seal: What verifies orders, and signs what is told.
        deps: What the contexts of its handlers have, which no order brings.
        secrets: The same.
    """

    def __init__(
        self, places: Iterable[Place], seal: Seal, *, deps: object = None, secrets: Mapping[str, object] | None = None
    ) -> None:
        self.places = set(places)
        self._seal = seal
        self._deps = deps
        self._secrets = dict(secrets or {})
        self._tools: dict[str, Tool] = {}

    async def run(self, text: str, **about: object) -> AsyncGenerator[str, None]:
        """What is told of an order, signed message by message; the last one says what it came to. Of what no program
        has ordered nothing is told: a word of it could be shown as one on the call that it says it is.

        A caller that closes the iterator, or is cancelled while it waits for the next one, cancels the handler.

        Args:
            about: What the order has to be about: `queue=` and `workflow=`, and `repeatable=` where that is known.
        """
        telling = Telling(self._seal, about["queue"], about["workflow"])
        try:
            body, _ = self._seal.open(text, kind="order", **about)
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
            yield telling.message(Kind.NOT_STARTED, describe_error(error))
            return
        yield telling.message(Kind.BEGAN)
        with continue_trace(order.trace):
            handling = asyncio.create_task(_handle(tool, values, call))
        handling.add_done_callback(call.wake)
        try:
            while told := await call.next(handling):
                yield telling.message(Kind.TOLD, told)
            yield telling.message(*handling.result())
        finally:
            await _end_handling(handling, call)

    def _tool(self, recipe: str) -> Tool:
        """The tool of a recipe, which imports nothing but what may be.

        Raises:
            PermissionError: where it would.
        """
        tool = self._tools.get(recipe)
        if tool is None:
            if strangers := _places_in(recipe) - self.places:
                module, qualname = min(strangers)
                raise PermissionError(f"{module}:{qualname} is no handler of a tool that this worker was started with")
            if len(self._tools) >= _MOST_MADE:
                self._tools.clear()
            tool = self._tools[recipe] = make_tool(recipe)
        return tool


class Telling:
    """Signs the messages of one run of an order, in their order."""

    def __init__(self, seal: Seal, queue: object, workflow: object) -> None:
        self._seal = seal
        self._about = {
            "kind": "message",
            "version": VERSION,
            "queue": queue,
            "workflow": workflow,
            "run": os.urandom(8).hex(),
        }
        self._number = 0

    def message(self, kind: Kind, what: object = None) -> str:
        """The next message."""
        self._number += 1
        return self._seal.close(json.dumps([kind, what], default=str), valid=_VALID, number=self._number, **self._about)


class RemoteCall(DetachedCall):
    """The call that is run, as its handler's context and its executor see it: a `RunningCall` and a `StartedCall`.

    Attributes:
        unstarted: Why its handler was not started, as its executor says; a handler may raise the like.
    """

    def __init__(
        self, tool: Tool, order: Order, arguments: Arguments, deps: object, secrets: dict[str, object]
    ) -> None:
        call = make_judged_call(ToolCall(order.id, tool.name, parent=order.parent), arguments)
        super().__init__(tool, call, order.fields(deps, secrets), order.key, order.remaining)
        self.cancelled = False
        self.unstarted: NotStartedError | None = None
        self._loop = asyncio.get_running_loop()
        self._unsent: list[Mapping[str, Any]] = []
        self._news = asyncio.Event()

    def announce(self, data: Mapping[str, Any]) -> None:
        """Tell the program of progress; from any thread, and nothing after the end."""
        if not self.ended:
            self._unsent.append(dict(data))
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._news.set)

    def wake(self, handling: object) -> None:
        """The handler has ended."""
        self._news.set()

    async def next(self, handling: asyncio.Task[Any]) -> list[Mapping[str, Any]]:
        """What was told since, as soon as there is something; nothing once the handler has ended."""
        while not self._unsent and not handling.done():
            self._news.clear()
            if not self._unsent:
                await self._news.wait()
        told, self._unsent = self._unsent[:_MOST_IN_MESSAGE], self._unsent[_MOST_IN_MESSAGE:]
        return told

    def create_chunk_list(self) -> list[object]:
        return self.attempt.chunks

    def report_not_started(self, error: NotStartedError | None = None) -> None:
        self.unstarted = error

    async def wait_for_start(self, started: asyncio.Future[float | None]) -> bool:
        await started
        return True

    def abandon(self, job: Job) -> None:
        log.warning("the handler of %r goes on in its thread, although it was given up", self.tool.name)


def _executor(tool: Tool) -> Executor:
    """What runs the handler here; what is made of its value is the program's."""
    handler = tool.handling
    if handler.streams:
        return StreamExecutor(handler, text=tool.output.is_text)
    return LoopExecutor(handler) if handler.is_async else ThreadExecutor(handler, lambda value: value)


async def _handle(tool: Tool, values: object, call: RemoteCall) -> tuple[Kind, object]:
    """The last message. Nothing is raised: a `SystemExit` in a task would end the loop."""
    CURRENT.set(call)
    try:
        seconds = None if (left := call.remaining()) is None else left + _GRACE
        async with asyncio.timeout(seconds):
            value = await _executor(tool).run(values, call)
        return Kind.VALUE, pack(value, "json").decode()
    except BaseException as error:
        return Kind.NOT_STARTED if error is call.unstarted else Kind.RAISED, describe_error(error)
    finally:
        call.ended = True


async def _end_handling(handling: asyncio.Task[Any], call: RemoteCall) -> None:
    """Cancel a handler that nobody waits for, and give it the time to clean up."""
    if handling.done():
        return
    call.cancelled = True
    handling.cancel()
    await asyncio.wait([handling], timeout=_GRACE)
