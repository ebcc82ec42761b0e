"""Handlers with `isolation="process"`: the seam behind which `ferrule.isolation` stands."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ferrule.definition.tool import Tool
from ferrule.errors import NotStartedError
from ferrule.executors import Executor, NotStarted, StartedCall
from ferrule.executors.threads import Raised


class InProcess(Executor):
    """Runs a handler in a worker process, which is killed with its whole group where this is cancelled. A first worker
    is started at once."""

    def __init__(self, tool: Tool) -> None:
        from ferrule import isolation  # 20 ms, for the programs that need it

        self._isolation = isolation
        self._recipe = isolation.Recipe(tool)
        isolation.shared().warm(1, [self._recipe])
        self.limiter = isolation.SLOTS  # as many as there may be workers

    async def run(self, values: object, call: StartedCall) -> Any:
        """The handler's value, as it came from the worker."""
        chunks: list[object] = []
        call.chunks = chunks

        def tell(data: Mapping[str, object]) -> None:
            if "chunk" in data:
                chunks.append(data["chunk"])
            call.announce(data)

        isolation = self._isolation
        try:
            order = isolation.Order(self._recipe, call.call, call.context.fields, values, call.context.remaining())
            job = isolation.shared().submit(order, tell)
            value = await job.future
        except NotStartedError as error:
            call.refused = NotStarted(str(error), "failed")
            raise call.refused from error
        except asyncio.CancelledError:
            if job.kill():
                call.not_started()
            raise
        if isinstance(value, Raised):
            raise value.error
        return value
