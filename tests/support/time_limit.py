"""A pytest plugin that fails a test which runs longer than two minutes, so that one hang does not end a whole run.

The failure shows the stack of every thread and of every asyncio task. `@pytest.mark.time_limit(600)` gives a test more
seconds. Where the signal cannot help (code that never returns to Python, or a system without interval timers), pytest's
`faulthandler_timeout` ends the run later.
"""

from __future__ import annotations

import asyncio
import gc
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

SECONDS = 800.0 if os.environ.get("FERRULE_TESTS") == "explore" else 120.0  # below pytest's `faulthandler_timeout`
REPEAT = 10.0
"""The signal comes again after so many seconds, because the code under test may have caught the first failure."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"time_limit(seconds): more time than {SECONDS:.0f} seconds for each phase")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    with limit_time(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    with limit_time(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    with limit_time(item):
        return (yield)


@contextmanager
def limit_time(item: pytest.Item) -> Iterator[None]:
    """Fail what runs inside once the item's time is over."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    marker = item.get_closest_marker("time_limit")
    seconds = float(marker.args[0]) if marker else SECONDS
    failures: list[str] = []

    def on_alarm(_signal: int, frame: FrameType | None) -> None:
        if not failures:
            failures.append(f"{item.nodeid} ran longer than {seconds:g} seconds\n{format_stacks()}")
        pytest.fail(failures[0], pytrace=False)

    handler_before = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds, REPEAT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler_before)
    if failures:
        pytest.fail(failures[0], pytrace=False)


def format_stacks() -> str:
    """Return the stacks of all threads, then those of all unfinished asyncio tasks."""
    text = io.StringIO()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        text.write(f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}")
    for task in [found for found in gc.get_objects() if isinstance(found, asyncio.Task) and not found.done()]:
        task.print_stack(file=text)
    return text.getvalue()
