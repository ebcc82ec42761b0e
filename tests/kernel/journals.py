"""What the kernel's tests share of journals: one in memory that says what it was given, and waits or breaks first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ferrule.journal import MemoryJournal
from ferrule.types import Begun
from ferrule.values.frozen import JsonObject
from ferrule.values.journal_entry import Intent, JournalEntry

First = Callable[[], Awaitable[object]]


async def forever() -> None:
    """Never end."""
    await asyncio.Event().wait()


def breaks(error: BaseException) -> First:
    """Raises `error` once it has waited."""

    async def broken() -> None:
        await asyncio.sleep(0)
        raise error

    return broken


class WatchedJournal(MemoryJournal):
    """Notes in `log` what is begun and ended, after it has awaited `begins` or `ends`.

    Attributes:
        log: `("begin", tool name, arguments)` and `("end", tool name, status)`, `None` for one that is forgotten.
        intents: What was begun.
        outcomes: What was ended with an outcome.
    """

    def __init__(self, log: list[Any] | None = None, *, begins: First | None = None, ends: First | None = None) -> None:
        super().__init__()
        self.log: list[Any] = [] if log is None else log
        self.intents: list[Intent] = []
        self.outcomes: list[JsonObject] = []
        self._begins, self._ends = begins, ends

    async def begin(self, intent: Intent, *, after: JournalEntry | None = None) -> Begun:
        """Commit the intent."""
        if self._begins is not None:
            await self._begins()
        begun = await super().begin(intent, after=after)
        self.log.append(("begin", intent.tool_name, dict(intent.arguments)))
        self.intents.append(intent)
        return begun

    async def end(self, intent: Intent, outcome: JsonObject | None) -> None:
        """Commit the outcome."""
        if self._ends is not None:
            await self._ends()
        await super().end(intent, outcome)
        self.log.append(("end", intent.tool_name, None if outcome is None else outcome["status"]))
        if outcome is not None:
            self.outcomes.append(outcome)
