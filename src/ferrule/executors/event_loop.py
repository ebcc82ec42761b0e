"""Run async handlers and async generators in the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from math import inf
from time import monotonic
from typing import Any

from ferrule.definition.handler import Handler
from ferrule.executors import Executor, StartedCall
from ferrule.values.content import to_output


class LoopExecutor(Executor):
    """Awaits an async handler."""

    def __init__(self, handler: Handler) -> None:
        self._function = handler.kwargs_call
        self._call = handler.call

    def run(self, values: Any, call: StartedCall) -> Awaitable[object]:
        """Return the handler's coroutine."""
        if self._function is not None:
            return self._function(**values)  # type: ignore[no-any-return]
        return self._call(values, call.context)  # type: ignore[no-any-return]


class StreamExecutor(Executor):
    """Collects the chunks of an async generator, and announces each as a `tool:progress`.

    If the call is stopped, the generator is closed and the chunks so far stay with the call.

    Args:
        text: Whether no chunks at all are an empty text rather than an empty list.
    """

    def __init__(self, handler: Handler, *, text: bool) -> None:
        self._handler = handler
        self._text = text

    async def run(self, values: object, call: StartedCall) -> Any:
        """Return the joined chunks."""
        chunks = call.create_chunk_list()
        seconds = call.context.remaining()
        deadline = inf if seconds is None else monotonic() + seconds
        stream = self._handler.call(values, call.context)
        return await collect_chunks(stream, chunks, call.announce, text=self._text, deadline=deadline)


async def collect_chunks(
    stream: AsyncIterator[object],
    outputs: list[object],
    announce: Callable[[Mapping[str, object]], object],
    *,
    text: bool,
    deadline: float = inf,
) -> Any:
    """Return the joined chunks of `stream`. Append the output of each chunk to `outputs`, and announce it.

    After `deadline`, by `time.monotonic()`, let the loop run once for each chunk, so that it can cancel a stream that
    never waits.
    """
    chunks: list[object] = []
    try:
        async for chunk in stream:
            chunks.append(chunk)
            outputs.append(chunk if type(chunk) is str else to_output(chunk, strict=False))
            announce({"chunk": outputs[-1]})
            if monotonic() >= deadline:
                await asyncio.sleep(0)
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()
    return join_chunks(chunks, text=text)


def join_chunks(chunks: Iterable[Any], *, text: bool = False) -> Any:
    """Return one text if all chunks are texts, else a list. No chunks are an empty text if `text`."""
    items = list(chunks)
    return "".join(items) if all(isinstance(chunk, str) for chunk in items) and (items or text) else items
