"""A call as its handler sees it in another process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from time import monotonic
from typing import Any, NoReturn

from ferrule.definition.tool import Tool
from ferrule.errors import ToolError
from ferrule.executors.process.nested_calls import NestedCallClient
from ferrule.executors.process.protocol import Connection, Kind
from ferrule.executors.process.transfer import Plain, ReceivedItems, unpack_items
from ferrule.values.arguments import Arguments
from ferrule.values.call import ToolCall, make_judged_call
from ferrule.values.context import ContextFields, RunningCall, ToolContext, make_context
from ferrule.values.event import Event
from ferrule.values.input import Answer, InputRequired
from ferrule.values.result import ToolResult


class DetachedAttempt:
    """The one run of the handler in this process."""

    runs = 1
    refusal: ToolResult | None = None
    answer: Answer | None = None
    answered_by: str | None = None
    asked = False

    def __init__(self) -> None:
        self.chunks: list[Any] = []


class DetachedCall:
    """A call whose handler runs outside the program: the `RunningCall` of its context.

    Args:
        tool: The tool as it was made in this process.
        call: The call with its judged arguments.
        fields: The fields of the context.
        key: The idempotency key of the call.
        remaining: Seconds from now until the deadline, or None.

    Attributes:
        attempt: The handler's run, with the chunks that it has yielded so far.
        ended: Whether the handler has ended. Nothing is sent for the call afterwards.
    """

    parent: RunningCall | None = None
    cancelled = False
    clock = None
    holds_slots = True
    may_run_again = True
    is_trial = is_job = False
    run_id: float | str = 0.0

    def __init__(self, tool: Tool, call: ToolCall, fields: ContextFields, key: str, remaining: float | None) -> None:
        self.tool = tool
        self.call = call
        self.fields = fields
        self.call_key = key
        self.attempt = DetachedAttempt()
        self.ended = False
        self.deadline = None if remaining is None else monotonic() + remaining

    @property
    def context(self) -> ToolContext:
        """The handler's context."""
        return make_context(self.fields, self)

    def pause_deadline(self) -> AbstractContextManager[None]:
        """Pause nothing: the program keeps the deadline."""
        return nullcontext()

    def announce(self, data: Mapping[str, Any]) -> None:
        """Send progress to the program, unless the call has ended. Any thread of the handler may call this."""
        raise NotImplementedError

    def remaining(self, *, own: bool = False) -> float | None:
        """Return the seconds until the deadline, or None."""
        return None if self.deadline is None else max(0.0, self.deadline - monotonic())

    async def run_nested_call(self, name: str, arguments: object, level: int | None, id: str | None) -> ToolResult:
        """Raise: the runner and its guards are in the program."""
        raise _unavailable("run")

    async def ask(self, question: InputRequired) -> NoReturn:
        """Raise: the approver is in the program."""
        raise _unavailable("ask")

    async def find_job(self, ticket: str) -> NoReturn:
        """Raise: background jobs are in the program."""
        raise _unavailable("find_job")

    def mark_started(self) -> None:
        """Do nothing: the program knows that the handler runs."""

    def observe(self, observer: Callable[[Event], object]) -> None:
        """Do nothing: the program emits the events."""

    def store_note(self, name: str, text: str) -> None:
        """Do nothing: the program has the record."""

    def read_note(self, name: str) -> str | None:
        """Return None: the program has the record."""
        return None

    def failure(self, error: BaseException) -> NoReturn:
        """Raise: no middleware runs here."""
        raise ToolError("context.failure(...) is for middleware, which runs in the program")


def _unavailable(method: str, given: str = "...") -> ToolError:
    return ToolError(
        f"context.{method}({given}) is not available where the handler of a tool runs outside of its program"
    )


class WorkerCall(DetachedCall):
    """The call that a worker process runs. It is never cancelled, because the worker is killed instead.

    Args:
        tool: The tool as it was made in this process.
        head: The head of the order.
        arguments: The judged arguments.
        token: The token of the call's messages.
    """

    def __init__(self, tool: Tool, head: Plain, arguments: Arguments, connection: Connection, token: bytes) -> None:
        transfer = head["transfer"]
        metadata, secrets = (unpack_items(head[name], transfer) for name in ("metadata", "secrets"))
        tool = tool if head["context"] is None else _apply_context(tool, unpack_items(head["context"], transfer))
        call = make_judged_call(ToolCall(head["id"], tool.name, parent=head["parent"]), arguments)
        caller = (head["session"], head["principal"], head["working_directory"])
        super().__init__(tool, call, ContextFields(*caller, None, metadata, secrets), head["key"], head["remaining"])
        self._nested_calls = NestedCallClient(connection, token, transfer)
        self._connection = connection
        self._token = token
        self._send_lock = threading.Lock()

    def announce(self, data: Mapping[str, Any]) -> None:
        """Send progress to the program, unless the call has ended. Any thread of the handler may call this."""
        self._send(Kind.PROGRESS, dict(data))

    def report_start(self) -> None:
        """Tell the program that the handler starts."""
        self._send(Kind.STARTED)

    def end(self) -> None:
        """Send and receive nothing more for this call."""
        with self._send_lock:
            self.ended = True
        self._nested_calls.close()

    def _send(self, kind: Kind, head: object = None, body: bytes = b"") -> bool:
        """Send a message of the call. Return False if the call has ended."""
        with self._send_lock, suppress(OSError):  # a forked child has no connection
            if not self.ended:
                self._connection.send(kind, head, body, self._token)
                return True
        return False

    async def run_nested_call(self, name: str, arguments: object, level: int | None, id: str | None) -> ToolResult:
        """Run a tool in the program, with the guards and slots there, and return its result.

        Raises:
            ToolError: It has an `id`, which only a handler in the program can use.
        """
        if id is not None:
            raise _unavailable("run", "…, id=…")
        result = None if self.ended else await self._nested_calls.run(name, arguments, self._send)
        if result is not None:
            return result
        error = "The call that made this one has ended. Nothing was run."
        return ToolResult(None, error, tool_name=name, status="cancelled", executed=False)


def _apply_context(tool: Tool, received: ReceivedItems) -> Tool:
    """Return the tool with the program's `context=`. Items that could not be sent come from the module's own."""
    own = tool.context if isinstance(tool.context, Mapping) else {}
    missing = {key: reason for key, reason in received.missing.items() if key not in own}
    return tool.replace(context=ReceivedItems({**own, **received}, missing))
