"""A call whose handler runs away from its runner, as the handler's context sees it; `WorkerCall` is a worker's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from time import monotonic
from typing import Any, NoReturn

from ferrule.definition.tool import Tool
from ferrule.errors import ToolError
from ferrule.isolation.children import Requests
from ferrule.isolation.protocol import Connection, Kind
from ferrule.isolation.transfer import Plain, SentMapping, unpack_items
from ferrule.values.arguments import Arguments
from ferrule.values.call import ToolCall, judged_call
from ferrule.values.context import ContextFields, RunningCall, ToolContext, bound_context
from ferrule.values.event import Event
from ferrule.values.input import Answer, InputRequired
from ferrule.values.result import ToolResult


class WorkerAttempt:
    """The one run of a handler that a worker knows of."""

    runs = 1
    refusal: ToolResult | None = None
    answer: Answer | None = None
    answered_by: str | None = None
    asked = False

    def __init__(self) -> None:
        self.chunks: list[Any] = []


class FarCall:
    """A call whose handler runs away from its runner, as the handler's context sees it: a context's `RunningCall`.

    Args:
        tool: As it was made there.
        call: With the judged arguments.
        fields: What its context has.
        key: What the call is known by when it comes again.
        remaining: Seconds until its deadline, from now on.

    Attributes:
        attempt: What is known of the handler's run, with what it, an async generator, has yielded so far.
        ended: Whether the handler has; nothing is told of the call after that.
    """

    parent: RunningCall | None = None
    cancelled = False
    clock = None
    inside = True
    may_run_again = True

    def __init__(self, tool: Tool, call: ToolCall, fields: ContextFields, key: str, remaining: float | None) -> None:
        self.tool = tool
        self.call = call
        self.fields = fields
        self.key = key
        self.attempt = WorkerAttempt()
        self.ended = False
        self.deadline = None if remaining is None else monotonic() + remaining

    @property
    def context(self) -> ToolContext:
        """What the handler gets."""
        return bound_context(self.fields, self)

    def paused(self) -> AbstractContextManager[None]:
        """Pause nothing: the program counts the deadline."""
        return nullcontext()

    def announce(self, data: Mapping[str, Any]) -> None:
        """Tell the program of progress; from any thread of the handler's, and nothing after the end."""
        raise NotImplementedError

    def remaining(self, *, own: bool = False) -> float | None:
        """Seconds until the deadline, by the clock that all processes of a machine share."""
        return None if self.deadline is None else max(0.0, self.deadline - monotonic())

    async def run_nested(self, name: str, arguments: object, level: int | None) -> ToolResult:
        """Refuse: the tools of the runner, and who judges their calls, are in the program."""
        raise _not_there("run")

    async def ask(self, wanted: InputRequired) -> NoReturn:
        """Refuse: whoever answers is in the program."""
        raise _not_there("ask")

    async def find_work(self, ticket: str) -> NoReturn:
        """Refuse: the calls in the background are the program's."""
        raise _not_there("find_work")

    def note_started(self) -> None:
        """Nothing: its handler runs."""

    def observe(self, observer: Callable[[Event], object]) -> None:
        """Nothing: its events are the program's."""

    def keep(self, name: str, text: str) -> None:
        """Nothing: its record is the program's."""

    def kept(self, name: str) -> str | None:
        """Nothing."""
        return None

    def failure(self, error: BaseException) -> NoReturn:
        """Refuse: no middleware runs here."""
        raise ToolError("context.failure(...) is for middleware, which runs in the program")


def _not_there(method: str) -> ToolError:
    return ToolError(f"context.{method}(...) is not available where the handler of a tool runs outside of its program")


class WorkerCall(FarCall):
    """The call that a worker process runs; what is cancelled is killed.

    Args:
        tool: As the program made it, with the program's `context=`.
        head: The order's, as it was sent.
        arguments: What was judged.
        mark: The call's, for what is told of it.
    """

    def __init__(self, tool: Tool, head: Plain, arguments: Arguments, connection: Connection, mark: bytes) -> None:
        transfer = head["transfer"]
        metadata, secrets = (unpack_items(head[name], transfer) for name in ("metadata", "secrets"))
        tool = tool if head["context"] is None else _with_context(tool, unpack_items(head["context"], transfer))
        call = judged_call(ToolCall(head["id"], tool.name, parent=head["parent"]), arguments)
        who = (head["session"], head["principal"], head["working_directory"])
        super().__init__(tool, call, ContextFields(*who, None, metadata, secrets), head["key"], head["remaining"])
        self._requests = Requests(connection, mark, transfer)
        self._connection = connection
        self._mark = mark
        self._telling = threading.Lock()

    def paused(self) -> AbstractContextManager[None]:
        """Pause nothing: the program counts the deadline."""
        return nullcontext()

    def announce(self, data: Mapping[str, Any]) -> None:
        """Tell the program of progress; from any thread of the handler's, and nothing after the end."""
        self._send(Kind.PROGRESS, dict(data))

    def start(self) -> None:
        """Tell the program that the handler begins."""
        self._send(Kind.STARTED)

    def end(self) -> None:
        """Tell nothing more."""
        with self._telling:
            self.ended = True
        self._requests.end()

    def _send(self, kind: Kind, head: object = None, body: bytes = b"") -> bool:
        """Send what belongs to the call; whether it was sent, as nothing is after the end."""
        with self._telling, suppress(OSError):  # a forked child has no connection
            if not self.ended:
                self._connection.send(kind, head, body, self._mark)
                return True
        return False

    async def run_nested(self, name: str, arguments: object, level: int | None) -> ToolResult:
        """What the program makes of it: guards, approvals and slots are there."""
        result = None if self.ended else await self._requests.run(name, arguments, self._send)
        if result is not None:
            return result
        error = "The call that made this one has ended. Nothing was run."
        return ToolResult(None, error, tool_name=name, status="cancelled", executed=False)


def _with_context(tool: Tool, sent: SentMapping) -> Tool:
    """The tool with the program's `context=`; what could not be sent is taken from the module's own."""
    own = tool.context if isinstance(tool.context, Mapping) else {}
    missing = {key: why for key, why in sent.missing.items() if key not in own}
    return tool.replace(context=SentMapping({**own, **sent}, missing))
