"""`LiveCall`: the state of a call with what its context and its executor ask of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager
from math import inf
from typing import TYPE_CHECKING

from ferrule.errors import NotStartedError
from ferrule.executors import Job
from ferrule.pipeline.acquire import abandon, end_of_wait
from ferrule.pipeline.authorize import ask_running
from ferrule.pipeline.call_key import in_journal
from ferrule.pipeline.hiding import hide
from ferrule.pipeline.invoke import deadline_above, extend_idle, handler_raised, standing_still
from ferrule.pipeline.state import CallState, Origin
from ferrule.scheduling.clock import MONOTONIC, Clock, end_of, running_loop, wait_until
from ferrule.types import Coro, Observer
from ferrule.values.call import ToolCall, new_id
from ferrule.values.content import cut, jsonable
from ferrule.values.frozen import JsonObject, freeze
from ferrule.values.input import InputRequired
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.pipeline.background import Work

_MOST_SAID = 500
"""Characters of what a handler says of its progress."""


class LiveCall(CallState):
    """The `RunningCall` of a context, and the `StartedCall` of an executor."""

    @property
    def clock(self) -> Clock:
        return self.plan.runner.clock

    @property
    def cancelled(self) -> bool:
        task, deadline = self.task, self.attempt.deadline
        stopped = self.attempt.stop is not None or (deadline is not None and deadline.stopped)
        return stopped or task is None or task.cancelling() > max(self.cancels, self.attempt.cancels)

    @property
    def key(self) -> str:
        return in_journal(self).key

    def remaining(self, *, own: bool) -> float | None:
        above, deadline = deadline_above(self), self.attempt.deadline
        first = min(above, inf if deadline is None else deadline.at)
        if first == inf or (own and first == above):  # a call that inherits its deadline has none
            return None
        return max(0.0, first - self.plan.runner.timer.time())

    def run_nested(
        self, name: str, arguments: Mapping[str, object] | str | None, level: int | None
    ) -> Coro[ToolResult]:
        """Run another call as a child of this one: of a tool of the runner that who asks belongs to."""
        runner = self.plan.runner.view_of(self.plan, level)
        call = ToolCall(new_id(), name, arguments, parent=self.call.id)
        return runner.receive(runner, call, self.fields, Origin(parent=self))

    def find_work(self, ticket: str) -> Coro[Work | None]:
        return self.plan.runner.find_work(self.fields, ticket)

    async def ask(self, wanted: InputRequired) -> JsonObject | None:
        """Put a question of the running handler; its deadline stands still meanwhile."""
        if self.ended or not self.inside:
            return None
        with self.paused():
            return await ask_running(self.plan, self, wanted)

    def paused(self) -> AbstractContextManager[None]:
        """Pause the deadline of the run."""
        return standing_still(self.attempt.deadline)

    async def wait_for_start(self, started: asyncio.Future[float | None]) -> bool:
        with self.paused():
            await wait_until(end_of(started), end_of_wait(self), self.plan.runner.timer)
        at, deadline = started.result() if started.done() else None, self.attempt.deadline
        if at is not None and deadline is not None and self.clock is MONOTONIC:
            late = self.clock.time() - at  # the loop may have been blocked since
            deadline.at -= late
            deadline.heard -= late
        return started.done()

    def announce(self, data: Mapping[str, object]) -> None:
        """Emit a `tool:progress` while the call runs, on the loop's own thread."""
        if self.attempt.idle_deadlines and not self.ended:
            extend_idle(self)
        loop = self.plan.runner.loop
        if not self.observers or self.ended or loop is None:
            return
        shown = hide(self, jsonable(data))
        if isinstance(message := shown.get("message"), str):  # cut before, it could end with half of a secret
            shown = {**shown, "message": message[:_MOST_SAID]}
        told = freeze(shown)  # the handler may change a chunk, and no observer may

        def tell() -> None:
            if not self.ended:
                self.tell("tool:progress", told)

        if running_loop() is loop:
            tell()
        else:
            loop.call_soon_threadsafe(tell)

    def observe(self, observer: Observer) -> None:
        self.observers = (*self.observers, observer)

    def keep(self, name: str, text: str) -> None:
        if self.inside:
            raise RuntimeError("context.keep(...) is for middleware around a call, and this one runs")
        shown = cut(hide(self, text), _MOST_SAID)  # cut before, it could hold half of a secret
        self.attempt.noted = {**self.attempt.noted, name: shown}

    def kept(self, name: str) -> str | None:
        answered = self.origin.answered
        return None if answered is None else answered.record.get("noted", {}).get(name)

    def note_started(self) -> None:
        self.attempt.executed = None

    def failure(self, error: BaseException) -> ToolResult:
        return handler_raised(self.plan, self, error)

    def begin_chunks(self) -> list[object]:
        chunks = self.attempt.chunks = []
        return chunks

    def not_started(self, error: NotStartedError | None = None) -> None:
        self.attempt.note_not_started(error)

    def abandon(self, job: Job) -> None:
        abandon(self, job)
