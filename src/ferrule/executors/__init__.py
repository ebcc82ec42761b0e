"""Executors run handlers: in the event loop, in a thread, in a worker process, or on another machine.

An executor is made for one tool. Any object with `executor(tool)` can be a tool's `isolation=`. This is the smallest
executor:

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
    """Work that may go on after its call has a result. See docs/long-work.md#somewhere-else."""

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the work has ended, in any thread."""
        ...


class StartedCall(RunningCall, Protocol):
    """The call whose handler an executor runs. See docs/long-work.md#somewhere-else.

    Attributes:
        fields: The fields of the context as plain values, for a place that a context cannot be sent to.
    """

    fields: ContextFields

    def create_chunk_list(self) -> list[object]:
        """Return a new list for the chunks that the handler yields. Events and partial results show its items."""
        ...

    def report_not_started(self, error: NotStartedError | None = None) -> None:
        """Report that the handler did not start. `error` is the exception that the executor raises next, if any.

        Without this report a `NotStartedError` counts as raised by the handler.
        """
        ...

    async def wait_for_start(self, started: asyncio.Future[float | None]) -> bool:
        """Wait until the handler starts elsewhere. Return False if that takes longer than a call may wait for a slot.

        The deadline is paused meanwhile. `started` may have the time of the start, by `time.monotonic()`.
        """
        ...

    def abandon(self, job: Job) -> None:
        """Report that the handler goes on although the call has ended."""
        ...


@runtime_checkable
class Executor(Protocol):
    """Runs the handler of one tool. See docs/long-work.md#somewhere-else.

    Attributes:
        limiter: Slots that each call takes besides those of its tool and runner, or None.
    """

    limiter: Limiter | None = None

    def run(self, values: object, call: StartedCall) -> Awaitable[object]:
        """Run the handler and return its value.

        Raises:
            NotStartedError: The handler did not start, and `call.report_not_started` was called.
            BaseException: The handler raised it.
        """
        ...
