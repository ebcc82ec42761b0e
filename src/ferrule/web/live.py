"""Tells open pages what has changed: topics with a version, as server-sent events.

An event carries the name of a topic and nothing else. The page then fetches its parts again, so there is one way in
which content reaches it. Files of a journal are looked at only while a page that shows them is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator

from ferrule.approval.request import run_blocking

HEARTBEAT = 15.0
"""Seconds after which a stream without news sends a comment, so that a page notices a dead server."""
_POLL_SECONDS = 1.0
_PAUSE = 0.1
MOST_STREAMS = 100


class Topics:
    """The versions of topics, and the streams that wait for them.

    Attributes:
        closed: Whether all streams have to end.
        streams: The number of open streams.
    """

    def __init__(self) -> None:
        self._versions: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched: Counter[str] = Counter()
        self._watchers: dict[str, Callable[[], object]] = {}
        self._seen: dict[str, object] = {}
        self._polling: asyncio.Task[None] | None = None
        self.closed = False
        self.streams = 0

    def watch(self, topic: str, look: Callable[[], object]) -> None:
        """Look at something outside of this process while a page shows the topic, and announce each change.

        Args:
            look: Returns a value that differs after a change. It may block.
        """
        self._watchers[topic] = look

    def announce(self, *topics: str) -> None:
        """Tell the streams that the topics have changed. Any thread may call this."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._announce, topics)

    def _announce(self, topics: Collection[str]) -> None:
        self._versions.update(topics)
        self._changed.set()
        self._changed = asyncio.Event()

    def close(self) -> None:
        """End all streams."""
        self.closed = True
        self._announce(())

    async def stream(self, topics: Collection[str]) -> AsyncIterator[str]:
        """Yield server-sent events: one for each topic that changes, and one at the start."""
        self._loop = asyncio.get_running_loop()
        before = {topic: self._versions[topic] for topic in topics}
        for topic in self._watchers.keys() & set(topics):
            await self._look(topic)  # the page is read after this, so no change falls between
        with self._watch_topics(topics):
            yield "data: open\n\n"
            while not self.closed:
                changed = self._changed
                news = [topic for topic in topics if self._versions[topic] != before[topic]]
                if not news:
                    try:
                        await asyncio.wait_for(changed.wait(), HEARTBEAT)
                    except TimeoutError:
                        yield ": still here\n\n"
                    continue
                before = {topic: self._versions[topic] for topic in topics}
                yield "".join(f"data: {topic}\n\n" for topic in news)
                await asyncio.sleep(_PAUSE)  # a call may report thousands of times

    @contextlib.contextmanager
    def _watch_topics(self, topics: Collection[str]) -> Iterator[None]:
        watched = self._watchers.keys() & set(topics)
        self._watched.update(watched)
        self.streams += 1
        if self._polling is None and watched:
            self._polling = asyncio.ensure_future(self._poll())
        try:
            yield
        finally:
            self._watched.subtract(watched)
            self.streams -= 1

    async def _poll(self) -> None:
        """Look at the watched topics once a second, as long as there are any."""
        try:
            while wanted := [topic for topic in self._watchers if self._watched[topic] > 0]:
                for topic in wanted:
                    await self._look(topic)
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            self._polling = None

    async def _look(self, topic: str) -> None:
        """Look at a topic, and announce it if it has changed since the last look."""
        with contextlib.suppress(Exception):  # a store that is away; the page says so when it is read
            found = await run_blocking(self._watchers[topic])
            if topic in self._seen and self._seen[topic] != found:
                self._announce([topic])
            self._seen[topic] = found


def file_state(path: str) -> tuple[tuple[int, int] | None, ...]:
    """Return the size and the time of change of a journal's file and of its write-ahead log."""
    return tuple(map(_stat, (path, f"{path}-wal")))


def _stat(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
