"""Where a handler runs: in the loop, in a thread, in a process.

Each executor is made for one tool. The smallest of your own, which an object with `executor(tool)` gives as a tool's
`isolation=`:

    class Immediate(Executor):
        def __init__(self, tool): self.handler = tool.handling
        async def run(self, values, call): return self.handler.call(values, call.context)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

from ferrule.errors import NotStartedError
from ferrule.scheduling.limiter import Limiter
from ferrule.values.context import ContextFields, RunningCall


class Job(Protocol):
    """Something that goes on after its call was answered."""

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` once it has ended; from any thread."""
        ...


class StartedCall(RunningCall, Protocol):
    """What an executor needs of the call whose handler it runs.

    Attributes:
        fields: The context as plain fields, for where no context can go.
    """

    fields: ContextFields

    def begin_chunks(self) -> list[object]:
        """A list for what the handler yields, which others see."""
        ...

    def not_started(self, error: NotStartedError | None = None) -> None:
        """Say that the handler was not started after all; `error` is then raised. A handler might raise its like."""
        ...

    async def wait_for_start(self, started: asyncio.Future[float | None]) -> bool:
        """Wait until a handler begins elsewhere, which does not count against its deadline; whether it did in the time
        that a call has to wait for a slot. `started` may say when that was, by `time.monotonic()`."""
        ...

    def abandon(self, job: Job) -> None:
        """Say that the handler goes on after it was given up."""
        ...


@runtime_checkable
class Executor(Protocol):
    """Where the handler of one tool runs.

    Attributes:
        limiter: Slots of its own that each call takes besides those of tool and runner; `None` for no limit.
    """

    limiter: Limiter | None = None

    def run(self, values: object, call: StartedCall) -> Awaitable[object]:
        """The handler's value.

        Raises:
            NotStartedError: where it was not started; `call.not_started` was told.
            BaseException: whatever the handler raised.
        """
        ...
