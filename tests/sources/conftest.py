"""Each test of a source must end the tasks that it began."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest


@pytest.fixture(autouse=True)
async def no_task_left() -> AsyncIterator[None]:
    """Fail a test whose source leaves a task behind."""
    yield
    # sse_starlette keeps one task for each loop that serves.
    left = {task for task in asyncio.all_tasks() if "_shutdown_watcher" not in str(task.get_coro())}
    left.discard(asyncio.current_task())  # type: ignore[arg-type]
    assert not left, left
