"""The executor in the program: writes a judged call as an order, and reads what is told of it."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Protocol

from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError, NotStartedError, ToolError, UnknownOutcomeError
from ferrule.executors import Executor, StartedCall
from ferrule.executors.process import Recipe, rebuild_error, unpack
from ferrule.remote._seal import Seal, SealError
from ferrule.remote._wire import VERSION, Kind, Order
from ferrule.values.call import ToolCall

log = logging.getLogger("ferrule")
VALID = 86_400.0
"""Seconds after which no worker takes an order any more."""
_WITHDRAW_SECONDS = 5.0
"""How long it may take to find out whether a handler had begun that is cancelled."""


class Line(Protocol):
    """How orders get to where handlers run, and what is told of them comes back. See
    docs/beyond-one-machine.md#other-engines."""

    def send(
        self, workflow: str, order: str, *, repeatable: bool, principal: str | None
    ) -> AsyncGenerator[str | None, None]:
        """What the far side tells, as it comes, until its last message; `None` where the handler begins with the next
        word of this program's. `repeatable` says that it may be run again where a worker dies. Who is cancelled while
        waiting for the next has the handler ended over there.

        Raises:
            NotStartedError: where no handler was started for certain, and none will be; also in the place of a
                cancellation.
            UnknownOutcomeError: where nobody will tell what came of it.
            WorkerDiedError: where what ran it has died.
        """
        ...


class RemoteExecutor(Executor):
    """Runs the handler of one tool wherever a line leads. See docs/beyond-one-machine.md#other-engines.

    Args:
        tool: It has to be found by its name in its module, as for a process.
        line: Where orders go.
        seal: What signs them, and verifies what is told.
        queue: What the far side is called, which verifies it.

    Raises:
        DefinitionError: where no other process could make the tool, and for values that no model is to see where
            nothing encrypts them.
    """

    def __init__(self, tool: Tool, line: Line, seal: Seal, queue: str) -> None:
        if tool.hidden and not seal.encrypts:
            names = ", ".join(sorted(tool.hidden))
            raise DefinitionError(
                f"tool {tool.name!r} has values that are bound or private ({names}), which others could read on their "
                "way: give encrypt_key=…, or set FERRULE_ENCRYPT_KEY"
            )
        self._tool = tool
        self._recipe = Recipe(tool).text
        self._line = line
        self._seal = seal
        self._queue = queue

    async def run(self, values: object, call: StartedCall) -> Any:
        """The handler's value, as it came back."""
        context = call.context
        workflow = f"ferrule-{context.idempotency_key}-{context.runs}"
        try:
            text = Order.of(self._recipe, call.call, context).text()
        except Exception as error:  # what is in the context is the caller's own
            refused = NotStartedError(f"the call cannot be sent: {type(error).__name__}: {error}")
            call.report_not_started(refused)
            raise refused from error
        about, repeatable = {"queue": self._queue, "workflow": workflow}, self._may_be_repeated(call.call)
        order = self._seal.close(text, valid=VALID, kind="order", repeatable=repeatable, **about)
        messages = self._line.send(workflow, order, repeatable=repeatable, principal=context.principal)
        incoming = Incoming(call, self._seal, about)
        reading = asyncio.ensure_future(incoming.read(messages))
        reading.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # seen, where nobody waits
        try:
            if await call.wait_for_start(incoming.begun):
                return await asyncio.shield(reading)
            await _withdraw(reading)
            if incoming.not_started:
                log.warning(
                    "nobody took a call of %r from %r in time: is a worker running?", call.call.name, self._queue
                )
                raise NotStartedError("no worker was free for it in time", limited=True)
            raise UnknownOutcomeError(_untold(call.call.name))
        except NotStartedError as error:
            if incoming.not_started:  # and not what a handler raised
                call.report_not_started(error)
            raise
        except asyncio.CancelledError:
            await _withdraw(reading)
            if incoming.not_started:
                call.report_not_started()
            raise

    def _may_be_repeated(self, call: ToolCall) -> bool:
        return self._tool.trait("read_only", call.arguments) or self._tool.trait("idempotent", call.arguments)


async def _withdraw(reading: asyncio.Future[Any]) -> None:
    """Have an order taken back, and wait until it is known whether it could be."""
    reading.cancel()
    await asyncio.wait([reading], timeout=_WITHDRAW_SECONDS)


class Incoming:
    """What is told of one order.

    Attributes:
        not_started: Whether it is certain that no handler was started.
        begun: When the handler began, by `time.monotonic()`; `None` where nothing is to be waited for.
    """

    def __init__(self, call: StartedCall, seal: Seal, about: dict[str, str]) -> None:
        self._call = call
        self._seal = seal
        self._about = about
        self._run: str | None = None
        self._number = 0
        self._chunks: list[object] = []
        self.not_started = False
        self.begun: asyncio.Future[float | None] = asyncio.get_running_loop().create_future()

    async def read(self, messages: AsyncGenerator[str | None, None]) -> Any:
        """Take what is told until it ends: the value of the handler.

        Raises:
            NotStartedError: where it was not started.
            UnknownOutcomeError: where what came was not told by who may, or nothing more comes.
            BaseException: whatever the handler raised.
        """
        try:
            async with aclosing(self._told(messages)) as told:
                async for text in told:
                    kind, what = self._opened(text) if text is not None else (Kind.BEGAN, None)
                    if kind == Kind.BEGAN:
                        self._begin(time.monotonic())
                    elif kind == Kind.TOLD:
                        self._take(what)
                    else:
                        return self._ended(kind, what)
            raise UnknownOutcomeError(_untold(self._call.call.name))
        finally:
            self._begin(None)

    async def _told(self, messages: AsyncGenerator[str | None, None]) -> AsyncGenerator[str | None, None]:
        """What a line gives; where it breaks, nobody knows what came of the call."""
        try:
            async with aclosing(messages):
                async for text in messages:
                    yield text
        except NotStartedError as error:
            if self._run is not None:  # it was told that it had begun
                raise UnknownOutcomeError(_untold(self._call.call.name)) from error
            self.not_started = True
            raise
        except ToolError:
            raise
        except Exception as error:
            why = f"what is told of it cannot be read ({type(error).__name__})"
            raise UnknownOutcomeError(_untold(self._call.call.name, why)) from error

    def _opened(self, text: str) -> tuple[str, Any]:
        """The next message: of a run that begins anew, the first."""
        try:
            body, about = self._seal.open(text, kind="message", version=VERSION, **self._about)
            if about["number"] == 1:
                self._run, self._number, self._chunks = about["run"], 0, self._call.create_chunk_list()
            self._number += 1
            if (about["run"], about["number"]) != (self._run, self._number):
                raise SealError("a message is missing, or came twice")
            kind, what = json.loads(body)
        except (SealError, LookupError, ValueError, TypeError) as error:
            name = self._call.call.name
            raise UnknownOutcomeError(_untold(name, f"what came back cannot be believed: {error}")) from error
        return kind, what

    def _begin(self, at: float | None) -> None:
        if not self.begun.done():
            self.begun.set_result(at)

    def _take(self, told: Any) -> None:
        for data in told:
            if "chunk" in data:
                self._chunks.append(data["chunk"])
            self._call.announce(data)

    def _ended(self, kind: str, what: Any) -> Any:
        if kind == Kind.VALUE:
            return unpack(what.encode(), "json")
        error = rebuild_error(what)
        if kind == Kind.NOT_STARTED:
            self.not_started = True
            limited = isinstance(error, NotStartedError) and error.limited
            why = f"it could not be started where it was sent: {type(error).__name__}: {error}"
            raise NotStartedError(why, limited=limited) from error
        raise error


def _untold(name: str, why: str = "it was handed over, and nobody tells what came of it") -> str:
    return f"{name}: {why}. Its effect may have happened. Do not repeat it; find out whether it happened, or ask."
