"""`LiveCall`: the state of a call, with the methods that its context and its executor call."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager
from math import inf
from typing import TYPE_CHECKING

from ferrule.errors import DefinitionError, NotStartedError
from ferrule.executors import Job
from ferrule.kernel.acquire import leave_running
from ferrule.kernel.authorize import ask_during_run
from ferrule.kernel.deadline import inherited_deadline, paused, report_progress, wait_deadline
from ferrule.kernel.invoke import result_of_raised
from ferrule.kernel.journal_status import journal_status
from ferrule.kernel.redact import redact
from ferrule.kernel.state import CallState, Origin
from ferrule.kernel.suspension import open_question
from ferrule.scheduling.clock import MONOTONIC, Clock, running_loop, wait_until, waiter_for_end
from ferrule.types import Coro, Observer
from ferrule.values.call import ToolCall, new_id
from ferrule.values.content import to_jsonable, truncate_text
from ferrule.values.frozen import JsonObject, freeze
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.kernel.background import BackgroundJob
    from ferrule.values.input import InputRequired

_MAX_MESSAGE = 500
"""Characters of a handler's progress message."""


class LiveCall(CallState):
    """The `RunningCall` of a context, and the `StartedCall` of an executor."""

    @property
    def clock(self) -> Clock:
        return self.plan.runner.clock

    @property
    def is_trial(self) -> bool:
        return self not in self.plan.runner.live

    @property
    def is_job(self) -> bool:
        resumed = self.origin.resumed
        return resumed is not None and resumed.record["kind"] == "background"

    @property
    def cancelled(self) -> bool:
        task, deadline = self.task, self.attempt.deadline
        stopped = self.attempt.runner_rejection is not None or (deadline is not None and deadline.stopped)
        return stopped or task is None or task.cancelling() > max(self.cancels_before, self.attempt.cancels_left_over)

    @property
    def call_key(self) -> str:
        return journal_status(self).call_key

    def remaining(self, *, own: bool) -> float | None:
        inherited, deadline = inherited_deadline(self), self.attempt.deadline
        first = min(inherited, inf if deadline is None else deadline.at)
        if first == inf or (own and first == inherited):
            return None
        return max(0.0, first - self.plan.runner.timer.time())

    def run_nested_call(
        self, name: str, arguments: Mapping[str, object] | str | None, level: int | None, id: str | None
    ) -> Coro[ToolResult]:
        """Run another call as a child of this one, or go on with it if this call was suspended for its question.

        Args:
            level: The depth of the mounted runner whose tools may be called; None for the last.
            id: The id within this call, if the nested call is the same one when this call runs again.

        Raises:
            DefinitionError: A recorded tool gives no id to a call that changes something.
        """
        runner = self.plan.runner.view_for_mount(self.plan, level)
        if id is None:
            nested = runner.plans.get(name)
            if self.tool.recorded and nested is not None and nested.changes and nested.tool.idempotent is not True:
                raise DefinitionError(
                    f"{self.tool.name!r} is recorded, and its call of {name!r} needs an id, such as "
                    f"context.run({name!r}, …, id='1'): without one, it would run again after a crash"
                )
            call, origin = ToolCall(new_id(), name, arguments, parent=self.call.id), Origin(parent=self)
        else:
            resumed = open_question(runner.resume_keys, self.origin.resumed, own_id := f"{self.call.id}.{id}")
            call = ToolCall(own_id, name, arguments, parent=self.call.id) if resumed is None else resumed.call
            origin = Origin(parent=self, resumed=resumed, turn=self.call_key, has_fixed_id=True)
        return runner.receive(runner, call, self.fields, origin)

    def find_job(self, ticket: str) -> Coro[BackgroundJob | None]:
        return self.plan.runner.find_job(self.fields, ticket)

    async def ask(self, question: InputRequired) -> JsonObject | None:
        """Ask a question of the running handler. Its deadline is paused meanwhile."""
        if self.ended or not self.holds_slots:
            return None
        with self.pause_deadline():
            return await ask_during_run(self.plan, self, question)

    def pause_deadline(self) -> AbstractContextManager[None]:
        """Pause the deadline of the run."""
        return paused(self.attempt.deadline)

    async def wait_for_start(self, started: asyncio.Future[float | None]) -> bool:
        with self.pause_deadline():
            await wait_until(waiter_for_end(started), wait_deadline(self), self.plan.runner.timer)
        at, deadline = started.result() if started.done() else None, self.attempt.deadline
        if at is not None and deadline is not None and self.clock is MONOTONIC:
            delay = self.clock.time() - at  # the loop may have been blocked since
            deadline.at -= delay
            deadline.progress_at -= delay
        return started.done()

    def announce(self, data: Mapping[str, object]) -> None:
        """Emit a `tool:progress` while the call runs, on the loop's own thread."""
        if self.attempt.idle_deadlines and not self.ended:
            report_progress(self)
        loop = self.plan.runner.loop
        if not self.observers or self.ended or loop is None:
            return
        shown = redact(self, to_jsonable(data))
        if isinstance(message := shown.get("message"), str):  # cutting it before could leave half of a secret
            shown = {**shown, "message": message[:_MAX_MESSAGE]}
        frozen = freeze(shown)  # the handler may go on to change a chunk

        def emit_progress() -> None:
            if not self.ended:
                self.emit("tool:progress", frozen)

        if running_loop() is loop:
            emit_progress()
        else:
            loop.call_soon_threadsafe(emit_progress)

    def observe(self, observer: Observer) -> None:
        self.observers = (*self.observers, observer)

    def store_note(self, name: str, text: str) -> None:
        if self.holds_slots:
            raise RuntimeError("context.store_note(...) is for middleware around a call, and this one runs")
        shown = truncate_text(redact(self, text), _MAX_MESSAGE)  # cutting it before could leave half of a secret
        self.attempt.record_notes = {**self.attempt.record_notes, name: shown}

    def read_note(self, name: str) -> str | None:
        resumed = self.origin.resumed
        return None if resumed is None else resumed.record.get("notes", {}).get(name)

    def mark_started(self) -> None:
        self.attempt.executed = None

    def failure(self, error: BaseException) -> ToolResult:
        return result_of_raised(self.plan, self, error)

    def create_chunk_list(self) -> list[object]:
        chunks = self.attempt.chunks = []
        return chunks

    def report_not_started(self, error: NotStartedError | None = None) -> None:
        self.attempt.undo_start(error)

    def abandon(self, job: Job) -> None:
        leave_running(self, job)
