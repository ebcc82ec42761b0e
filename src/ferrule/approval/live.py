"""Live questions: a running call waits in a queue, and its answer comes back through the row in the store."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ferrule.approval.request import Asked, run_blocking
from ferrule.stores.store import Store, StoreError
from ferrule.values.content import to_jsonable
from ferrule.values.decision import Decision
from ferrule.values.frozen import JsonObject, thaw

_POLL_SECONDS = 2.0
"""The seconds between two looks at the row. An answer given to this queue object wakes the call at once."""
_TRIES = 100


class LiveQuestion:
    """The question of a running call, while it waits.

    Args:
        store: The store of the queue.
        key: The key of the row.
        tool: The tool of the call, for previews.
    """

    def __init__(self, store: Store, key: str, tool: Any) -> None:
        self._store = store
        self._key = key
        self.tool = tool
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """Have the call look at its row. Any thread may call this."""
        with suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._changed.set)

    async def wait(self) -> None:
        """Wait until `wake`, or for two seconds: another process may have answered."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_POLL_SECONDS):
                await self._changed.wait()
        self._changed.clear()

    async def read_answer(self) -> Decision | None:
        """Return the answer, or None."""
        row = await run_blocking(lambda: self._store.get(self._key))
        answer = row.get("decision") if isinstance(row, Mapping) else None
        return None if answer is None else Decision(**answer)

    async def close(self) -> Decision | None:
        """Remove the question, and return its answer, or None. The store keeps who answered."""
        return await run_blocking(self._close)

    def _close(self) -> Decision | None:
        for _ in range(_TRIES):
            row = self._store.get(self._key)
            answer = row.get("decision") if isinstance(row, Mapping) else None
            kept = None if answer is None else {name: row[name] for name in row if name != "decision"}
            if self._store.compare_and_set(self._key, row, kept):
                return None if answer is None else Decision(**answer)
        raise StoreError("the answer to a question cannot be taken from the store")


def make_live_row(request: Asked, id: str, channel: str, shown: JsonObject, expires_at: float) -> dict[str, Any]:
    """Return the row of a live question, in the form of a suspended call without a seal."""
    call, decision, fields = request.call, request.decision, request.context.fields
    context = {"session": fields.session, "principal": fields.principal}
    pending = {
        "key": id,
        "kind": "approval" if decision.schema is None else "input",
        "call": {"id": call.id, "name": call.name, "parent": call.parent},
        "listed": True,
        "arguments": to_jsonable(thaw(call.arguments)),
        "context": {**context, "working_directory": fields.working_directory},
        "reason": decision.reason,
        "into": decision.into,
        "rule": decision.rule,
        "schema": thaw(decision.schema),
        "asked_at": time.time(),
        "expires_at": expires_at,
    }
    live = {"channel": channel, "shown": to_jsonable(thaw(shown)), "salt": os.urandom(16).hex()}
    return {"pending": pending, "live": live}


def format_answer(decision: Decision) -> dict[str, Any]:
    """Return an answer as JSON, for the row."""
    arguments = None if decision.arguments is None else to_jsonable(thaw(decision.arguments))
    return {"kind": decision.kind, "reason": decision.reason, "arguments": arguments, "by": decision.by}
