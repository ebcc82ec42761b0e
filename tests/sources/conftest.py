"""Each test of a source must end the tasks that it began, and none waits for a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from waits import BOUND


@pytest.fixture(autouse=True)
async def no_task_left() -> AsyncIterator[None]:
    """Fail a test whose source leaves a task behind."""
    yield
    # sse_starlette keeps one task for each loop that serves.
    left = {task for task in asyncio.all_tasks() if "_shutdown_watcher" not in str(task.get_coro())}
    left.discard(asyncio.current_task())  # type: ignore[arg-type]
    assert not left, left


@pytest.fixture
async def let_time_pass(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Ends every timeout of at most `BOUND` seconds that the loop has by then."""
    loop, later = asyncio.get_running_loop(), [0.0]
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + later[0])
    return lambda: later.append(later.pop() + 2 * BOUND)
