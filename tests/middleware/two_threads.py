"""Two threads that begin at the same moment, each with an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ferrule import ToolCall, ToolContext, ToolResult
from waits import BOUND

T = TypeVar("T")


def in_two_threads(main: Callable[[], Coroutine[Any, Any, T]]) -> list[T]:
    """What `main` gives in each. They give way at every line of a middleware: what is not locked is met half done."""
    found: list[T] = []
    together = threading.Barrier(2, timeout=BOUND)

    def one() -> None:
        together.wait()
        found.append(asyncio.run(main()))

    threads = [threading.Thread(target=one) for _ in range(2)]
    with giving_way():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(BOUND)
    return found


@contextmanager
def giving_way() -> Iterator[None]:
    def trace(frame: Any, event: str, argument: Any) -> Any:
        if "middleware" not in frame.f_code.co_filename:
            return None
        time.sleep(0)
        return trace

    usual = threading.gettrace()
    threading.settrace(trace)
    try:
        yield
    finally:
        threading.settrace(usual)  # type: ignore[arg-type]


def let_through(limit: Any) -> int:
    """How many calls of 300 sessions, each of which asks once in each thread, come through a limit."""

    async def done(call: ToolCall, context: ToolContext[Any]) -> ToolResult:
        return ToolResult("done")

    async def many() -> int:
        call = ToolCall("c", "look")
        results = [await limit(call, ToolContext(session=str(n)), done) for n in range(300)]
        return sum(result.success for result in results)

    return sum(in_two_threads(many))
