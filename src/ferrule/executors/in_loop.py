"""Async handlers and async generators, in the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from math import inf
from time import monotonic
from typing import Any

from ferrule.definition.handler import Handler
from ferrule.executors import Executor, StartedCall
from ferrule.values.content import as_output


class InLoop(Executor):
    """Awaits an async handler."""

    def __init__(self, handler: Handler) -> None:
        self._function = handler.by_keywords
        self._call = handler.call

    def run(self, values: Any, call: StartedCall) -> Awaitable[object]:
        """The handler's own coroutine."""
        if self._function is not None:
            return self._function(**values)  # type: ignore[no-any-return]
        return self._call(values, call.context)  # type: ignore[no-any-return]


class InChunks(Executor):
    """Takes all that an async generator yields.

    Each chunk is kept in the call's `chunks` and told as a `tool:progress`. Where this is cut off, the generator is
    closed and what it had given stays there.

    Args:
        text: Whether nothing at all is an empty text, and not an empty list.
    """

    def __init__(self, handler: Handler, *, text: bool) -> None:
        self._handler = handler
        self._text = text

    async def run(self, values: object, call: StartedCall) -> Any:
        """All chunks, joined."""
        chunks = call.begin_chunks()
        left = call.context.remaining()
        until = inf if left is None else monotonic() + left
        yielded = self._handler.call(values, call.context)
        return await collect(yielded, chunks, call.announce, text=self._text, until=until)


async def collect(
    yielded: AsyncIterator[object],
    chunks: list[object],
    announce: Callable[[Mapping[str, object]], object],
    *,
    text: bool,
    until: float = inf,
) -> Any:
    """Add all that `yielded` gives to `chunks`, rendered, and announce each; all of them, joined. From `until` on, in
    the time of `monotonic`, one that never waits does."""
    given: list[object] = []
    try:
        async for chunk in yielded:
            given.append(chunk)
            chunks.append(chunk if type(chunk) is str else as_output(chunk, strict=False))
            announce({"chunk": chunks[-1]})
            if monotonic() >= until:
                await asyncio.sleep(0)
    finally:
        if isinstance(yielded, AsyncGenerator):
            await yielded.aclose()
    return joined(given, text=text)


def joined(chunks: Iterable[Any], *, text: bool = False) -> Any:
    """One text where all chunks are texts, else their list."""
    kept = list(chunks)
    return "".join(kept) if all(isinstance(chunk, str) for chunk in kept) and (kept or text) else kept
