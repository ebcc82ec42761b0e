"""The calls in the background that a runner knows: what they say, what they came to, and what stops them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ferrule.executors.threads import Raised
from ferrule.pipeline.call_key import TICKET
from ferrule.pipeline.invoke import interrupt
from ferrule.pipeline.journaling import unknown_text
from ferrule.pipeline.results import CANCELLED, Rejected
from ferrule.pipeline.state import CallState
from ferrule.pipeline.tasks import within_time
from ferrule.scheduling.clock import wait_until, wake
from ferrule.values.call import ToolCall
from ferrule.values.event import Event
from ferrule.values.kept import Kept, restored
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.pipeline.runner_state import RunnerState

_MOST_WORKS = 1000
_OF_CALL = ("tool_name", "input")  # in the data of every event


class Work:
    """A call in the background. See docs/long-work.md#in-the-background.

    Attributes:
        ticket: Its id.
        tool_name: The tool's own name.
        principal: On whose behalf it runs.
        session: The conversation that it belongs to.
        progress: What it said last of its progress.
        result: What it came to, or how it waits where it is suspended; `None` while it runs.
        told: Whether its end was told to the model; whoever tells it notes that here.
    """

    # For the kernel, which takes it as it takes the entry of a batch.
    admitted = True
    beside = False
    stopping = False

    def __init__(
        self, runner: RunnerState, ticket: str, tool_name: str, principal: str | None, session: str | None
    ) -> None:
        self._runner = runner
        self._waiters: set[asyncio.Future[None]] = set()
        self.state: CallState | None = None
        self.ticket = ticket
        self.tool_name = tool_name
        self.principal = principal
        self.session = session
        self.progress: Mapping[str, Any] | None = None
        self.result: ToolResult | None = None
        self.told = False

    @property
    def has_ended(self) -> bool:
        """Whether it has come to an end, and not to wait."""
        return self.result is not None and self.result.status != "suspended"

    def note(self, event: Event) -> None:
        """Keep what it says of its progress."""
        if event.kind == "tool:progress":
            self.progress = {key: value for key, value in event.data.items() if key not in _OF_CALL}

    def end(self, result: ToolResult) -> None:
        """Keep what it came to; what is suspended may come to something else."""
        if not self.has_ended:
            self.result, self.state = result, None
        for waiter in self._waiters:
            wake(waiter)

    async def wait(self, seconds: float) -> None:
        """Wait until it has ended, at most so many seconds by the runner's clock."""
        runner = self._runner
        if self.result is not None or seconds <= 0:
            return
        if runner.works.get(self.ticket) is not self:  # it runs in another process
            await _kept(runner, self.ticket, seconds)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await wait_until(waiter, runner.timer.time() + seconds, runner.timer)
        finally:
            self._waiters.discard(waiter)

    async def cancel(self) -> bool:
        """Stop it, where it runs in this process; whether it was running here."""
        await asyncio.sleep(0)  # it begins before this goes on
        if self.state is None:
            return False
        interrupt(self.state, Rejected("cancelled", CANCELLED))
        await self.wait(self._runner.grace)
        return True


def add_work(runner: RunnerState, work: Work) -> None:
    """Note that it is begun; where there are too many, the first one that has ended goes."""
    works = runner.works
    works[work.ticket] = work
    ended = (ticket for ticket, one in works.items() if one.has_ended)
    if len(works) > _MOST_WORKS and (first := next(ended, None)) is not None:
        del works[first]


async def find_work(state: CallState, ticket: str) -> Work | None:
    """The work of that ticket, perhaps of another process that shares the journal; `None` for that of another principal
    or session.

    Raises:
        JournalError: where the journal cannot be read.
    """
    runner, fields = state.plan.runner, state.fields
    work = runner.works.get(ticket)
    if work is None and runner.journal is not None and ticket.startswith(TICKET):
        kept = await _kept(runner, ticket)
        work = None if kept is None or kept.intent.call_id != ticket else _work_of(runner, kept)
    whose = work and (work.principal, work.session)
    return work if whose == (fields.principal, fields.session) else None


async def _kept(runner: RunnerState, ticket: str, wait: float = 0.0) -> Kept | None:
    """What the journal has of it, at most `wait` seconds later where it runs."""
    assert runner.journal is not None
    find = partial(runner.journal.find, wait=wait > 0)
    found: Any = await within_time(runner, find, ticket.removeprefix(TICKET), seconds=wait or None)
    if not isinstance(found, Raised):
        return found  # type: ignore[no-any-return]
    if isinstance(found.error, TimeoutError):
        return None
    raise found.error


def _work_of(runner: RunnerState, kept: Kept) -> Work:
    """The work as the journal has it."""
    intent = kept.intent
    work = Work(runner, intent.call_id, intent.tool_name, intent.principal, intent.session)
    if kept.outcome is not None:
        work.result = restored(kept.outcome, ToolCall(intent.call_id, intent.tool_name), intent.tool_name)
    elif kept.state == "cut_off":
        work.result = ToolResult(None, unknown_text(intent.tool_name), status="unknown", executed=None)
    return work
