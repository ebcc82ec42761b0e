"""The deadline of one run of a handler, and of a wait for slots."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

from ferrule.kernel.state import CallState, ancestors
from ferrule.scheduling.clock import Timer, wake

NESTED_TIMEOUT = 60.0
"""Seconds that a nested call waits at most for slots if the runner sets no limit."""


class Deadline:
    """The deadline of a run, and its task.

    Attributes:
        seconds: Seconds for the run; `inf` for no limit.
        at: When the run is stopped, by `timer`; `inf` while the deadline is paused.
        timer: Tells the time.
        task: The task of the run, or None if the run has none of its own.
        stopped: Whether the kernel has cancelled the task.
        waiter: The future that wakes whoever waits for the run.
        pauses: Number of active pauses.
        remaining: Seconds left while paused.
        paused_at: When the current pause began.
        idle: Seconds without progress after which the run is stopped; None for no limit.
        progress_at: When progress was last reported. Written from any thread.
    """

    # Class attributes are defaults that few runs overwrite.
    stopped: bool = False
    task: asyncio.Task[Any] | None = None
    waiter: asyncio.Future[None] | None = None
    pauses: int = 0
    remaining: float = 0.0
    paused_at: float = 0.0
    idle: float | None = None
    progress_at: float = 0.0

    def __init__(self, seconds: float, timer: Timer) -> None:
        self.seconds = seconds
        self.timer = timer
        self.at = timer.time() + seconds

    def expires_at(self) -> float:
        """Return when the run is stopped unless it reports progress before."""
        return self.at if self.idle is None or self.pauses else min(self.at, self.progress_at + self.idle)

    def expiry_reason(self) -> str:
        """Say which limit has passed."""
        if self.idle is not None and self.timer.time() < self.at:
            return f"reported no progress for {self.idle:g} s, its idle limit"
        return f"did not end by its deadline of {self.seconds:g} s"

    def wake(self, ended: object = None) -> None:
        """Wake whoever waits for the run: it has ended, its time has passed, or a pause has ended."""
        if self.waiter is not None:
            wake(self.waiter)


@contextmanager
def paused(deadline: Deadline | None) -> Iterator[None]:
    """Pause the deadline, if there is one.

    Used while the handler itself asks by `context.ask`, waits by `context.pause(timed=False)`, or gets a worker.
    """
    if deadline is None:
        yield
        return
    if not deadline.pauses:
        deadline.paused_at = deadline.timer.time()
        deadline.remaining, deadline.at = deadline.at - deadline.paused_at, inf
    deadline.pauses += 1
    try:
        yield
    finally:
        deadline.pauses -= 1
        if not deadline.pauses:
            now = deadline.timer.time()
            deadline.at = now + deadline.remaining
            deadline.progress_at = min(now, deadline.progress_at + now - deadline.paused_at)
            deadline.wake()


def report_progress(state: CallState) -> None:
    """Restart the idle limits of the call and its ancestors. Call it from any thread."""
    for deadline in state.attempt.idle_deadlines:
        deadline.progress_at = deadline.timer.time()


def inherited_deadline(state: CallState) -> float:
    """Return the first deadline of the ancestors; `inf` if none has a deadline.

    Middleware around a call is not under the deadline of that call.
    """
    found = [call.attempt.deadline for call in ancestors(state) if call.holds_slots]
    return min([deadline.at for deadline in found if deadline is not None], default=inf)


def wait_deadline(state: CallState) -> float | None:
    """Return when a wait that starts now has to end, or None if it may last forever."""
    runner = state.plan.runner
    timeout = runner.waits.slot
    if timeout is None and state.parent is not None:
        timeout = NESTED_TIMEOUT
    return None if timeout is None else runner.timer.time() + timeout
