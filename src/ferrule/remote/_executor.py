"""The executor in the program: write a judged call as an order, and read the messages about it."""

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
VALID_SECONDS = 86_400.0
"""The seconds after which no worker accepts an order."""
_WITHDRAW_SECONDS = 5.0
"""The seconds to find out whether a cancelled handler had begun."""


class OrderTransport(Protocol):
    """A way to send orders to the remote side and to get its messages. See docs/beyond-one-machine.md#other-engines."""

    def send(
        self, workflow: str, order: str, *, repeatable: bool, principal: str | None
    ) -> AsyncGenerator[str | None, None]:
        """Yield the messages of the remote side, up to its last one.

        `None` means that the order was handed over: the handler counts as begun from then on.

        If `repeatable` is true, the order may run again after the death of a worker. If the caller is cancelled while
        it waits for the next message, the handler over there is ended.

        Raises:
            NotStartedError: Certainly no handler was started, and none will be; also instead of a cancellation.
            UnknownOutcomeError: The outcome will never be known.
            WorkerDiedError: The process of the handler has died.
        """
        ...


class RemoteExecutor(Executor):
    """The executor of one tool's handler behind a transport. See docs/beyond-one-machine.md#other-engines.

    Args:
        tool: Another process must find it by its name in its module.
        transport: The way to send orders.
        seal: The seal to sign orders and verify messages.
        queue: The name of the remote side, which verifies it.

    Raises:
        DefinitionError: No other process could make the tool, or it has hidden values and the seal does not encrypt.
    """

    def __init__(self, tool: Tool, transport: OrderTransport, seal: Seal, queue: str) -> None:
        if tool.hidden and not seal.encrypts:
            names = ", ".join(sorted(tool.hidden))
            raise DefinitionError(
                f"tool {tool.name!r} has values that are bound or private ({names}), which others could read on the "
                "way: give encrypt_key=…, or set FERRULE_ENCRYPT_KEY"
            )
        self._tool = tool
        self._recipe = Recipe(tool).text
        self._transport = transport
        self._seal = seal
        self._queue = queue

    async def run(self, values: object, call: StartedCall) -> Any:
        """Run the handler remotely and return its value."""
        context = call.context
        workflow = f"ferrule-{context.idempotency_key}-{context.runs}"
        try:
            text = Order.of(self._recipe, call.call, context).text()
        except Exception as error:  # the context holds the caller's own values
            refused = NotStartedError(f"the call cannot be sent: {type(error).__name__}: {error}")
            call.report_not_started(refused)
            raise refused from error
        subject, repeatable = {"queue": self._queue, "workflow": workflow}, self._may_be_repeated(call.call)
        order = self._seal.close(text, valid=VALID_SECONDS, kind="order", repeatable=repeatable, **subject)
        messages = self._transport.send(workflow, order, repeatable=repeatable, principal=context.principal)
        incoming = Incoming(call, self._seal, subject)
        reading = asyncio.ensure_future(incoming.read(messages))
        reading.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # seen, even if nobody waits
        try:
            if await call.wait_for_start(incoming.start):
                return await asyncio.shield(reading)
            await _withdraw(reading)
            if incoming.not_started:
                log.warning(
                    "nobody took a call of %r from %r in time: is a worker running?", call.call.name, self._queue
                )
                raise NotStartedError("no worker was free for it in time", limited=True)
            raise UnknownOutcomeError(_describe_unknown(call.call.name))
        except NotStartedError as error:
            if incoming.not_started:  # not a NotStartedError of the handler itself
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
    """Take an order back, and wait until it is known whether that worked."""
    reading.cancel()
    await asyncio.wait([reading], timeout=_WITHDRAW_SECONDS)


class Incoming:
    """The messages about one order.

    Attributes:
        not_started: Whether certainly no handler was started.
        start: The time at which the handler began, by `time.monotonic()`; `None` if there is nothing to wait for.
    """

    def __init__(self, call: StartedCall, seal: Seal, subject: dict[str, str]) -> None:
        self._call = call
        self._seal = seal
        self._subject = subject
        self._run: str | None = None
        self._number = 0
        self._chunks: list[object] = []
        self.not_started = False
        self.start: asyncio.Future[float | None] = asyncio.get_running_loop().create_future()

    async def read(self, messages: AsyncGenerator[str | None, None]) -> Any:
        """Read all messages and return the handler's value.

        Raises:
            NotStartedError: The handler was not started.
            UnknownOutcomeError: A message cannot be verified, or no more messages come.
            BaseException: The handler's own exception.
        """
        try:
            async with aclosing(self._read_all(messages)) as texts:
                async for text in texts:
                    kind, what = self._verify(text) if text is not None else (Kind.BEGAN, None)
                    if kind == Kind.BEGAN:
                        self._set_start(time.monotonic())
                    elif kind == Kind.PROGRESS:
                        self._add_progress(what)
                    else:
                        return self._to_value(kind, what)
            raise UnknownOutcomeError(_describe_unknown(self._call.call.name))
        finally:
            self._set_start(None)

    async def _read_all(self, messages: AsyncGenerator[str | None, None]) -> AsyncGenerator[str | None, None]:
        """Yield the messages of a line. If the line breaks, raise that the outcome is unknown."""
        try:
            async with aclosing(messages):
                async for text in messages:
                    yield text
        except NotStartedError as error:
            if self._run is not None:  # a message had already arrived
                raise UnknownOutcomeError(_describe_unknown(self._call.call.name)) from error
            self.not_started = True
            raise
        except ToolError:
            raise
        except Exception as error:
            why = f"its messages cannot be read ({type(error).__name__})"
            raise UnknownOutcomeError(_describe_unknown(self._call.call.name, why)) from error

    def _verify(self, text: str) -> tuple[str, Any]:
        """Verify the next message. A run that begins anew starts with its first message."""
        try:
            body, subject = self._seal.open(text, kind="message", version=VERSION, **self._subject)
            if subject["number"] == 1:
                self._run, self._number, self._chunks = subject["run"], 0, self._call.create_chunk_list()
            self._number += 1
            if (subject["run"], subject["number"]) != (self._run, self._number):
                raise SealError("a message is missing or repeated")
            kind, what = json.loads(body)
        except (SealError, LookupError, ValueError, TypeError) as error:
            name = self._call.call.name
            raise UnknownOutcomeError(_describe_unknown(name, f"its messages cannot be trusted: {error}")) from error
        return kind, what

    def _set_start(self, at: float | None) -> None:
        if not self.start.done():
            self.start.set_result(at)

    def _add_progress(self, progress: Any) -> None:
        for data in progress:
            if "chunk" in data:
                self._chunks.append(data["chunk"])
            self._call.announce(data)

    def _to_value(self, kind: str, what: Any) -> Any:
        if kind == Kind.VALUE:
            return unpack(what.encode(), "json")
        error = rebuild_error(what)
        if kind == Kind.NOT_STARTED:
            self.not_started = True
            limited = isinstance(error, NotStartedError) and error.limited
            why = f"the other side could not start it: {type(error).__name__}: {error}"
            raise NotStartedError(why, limited=limited) from error
        raise error


def _describe_unknown(name: str, why: str = "it was sent, and its outcome is unknown") -> str:
    return f"{name}: {why}. Its effect may have happened. Do not repeat it; find out whether it happened, or ask."
