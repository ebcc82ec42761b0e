"""Run the async tests of a contract as plain functions, each in a loop of its own and for a minute at most."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, TypeVar

_T = TypeVar("_T")
SECONDS = 60.0
"""Seconds that any test of a contract waits for an event."""


async def bounded(work: Coroutine[Any, Any, _T], describe_hang: Callable[[], str] = str) -> _T:
    """Return the result of the coroutine. A run that hangs fails after a minute, and the error ends with
    `describe_hang()`.
    """
    try:
        async with asyncio.timeout(SECONDS) as limit:
            return await work
    except TimeoutError as error:
        if limit.expired():
            raise AssertionError(f"the run has not ended after {SECONDS:g} s{describe_hang()}") from error
        raise


def in_time(work: Coroutine[Any, Any, _T], describe_hang: Callable[[], str] = str) -> _T:
    """Return the result of the coroutine, run in a new loop and bounded."""
    return asyncio.run(bounded(work, describe_hang))


def bounded_test(test: Callable[[Any], Coroutine[Any, Any, Any]]) -> Callable[[Any], None]:
    """Return an async test as a plain one, so that pytest needs no plugin to run it."""
    return make_test(lambda self, check: in_time(check()))(test)


def make_test(
    run: Callable[[Any, Callable[..., Coroutine[Any, Any, Any]]], object],
) -> Callable[[Callable[..., Coroutine[Any, Any, Any]]], Callable[[Any], None]]:
    """Return a decorator for an async test, whose arguments `run(self, check)` passes to `check`.

    The plain test has no parameters: pytest would take them for fixtures.
    """

    def decorate(test: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[[Any], None]:
        @wraps(test)
        def run_test(self: Any) -> None:
            __tracebackhide__ = True
            run(self, lambda *arguments: test(self, *arguments))

        del run_test.__wrapped__
        return run_test

    return decorate
