"""The executor of `isolation="process"` and of `isolation=Workers(…)`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ferrule.definition.tool import Tool
from ferrule.errors import NotStartedError
from ferrule.executors import Executor, StartedCall
from ferrule.executors.threads import Raised
from ferrule.isolation.orders import Order
from ferrule.isolation.pool import WorkerPool, shared
from ferrule.isolation.recipes import Recipe
from ferrule.scheduling.clock import MONOTONIC


class InProcess(Executor):
    """Runs a handler in a worker process, which is killed with its whole group where this is cancelled. A first worker
    is started at once."""

    def __init__(self, tool: Tool, pool: WorkerPool | None = None) -> None:
        self._recipe = Recipe(tool)
        self._pool = shared() if pool is None else pool
        self._pool.warm(1, [self._recipe])
        self.limiter = self._pool.slots  # as many as there may be workers

    async def run(self, values: object, call: StartedCall) -> Any:
        """The handler's value, as it came from the worker."""
        chunks = call.begin_chunks()

        def tell(data: Mapping[str, object]) -> None:
            if "chunk" in data:
                chunks.append(data["chunk"])
            call.announce(data)

        context, job, in_time = call.context, None, True
        options: dict[str, Any] = {
            "key": context.idempotency_key,
            "nested": call.parent is not None,
            "timed": context.clock is MONOTONIC,
        }
        try:
            order = Order(self._recipe, call.call, context.fields, values, context.remaining(), **options)
            job = self._pool.submit(order, tell, context.run)
            in_time = await call.wait_for_start(job.begun)
            if not in_time:
                job.kill()
            value = await job.future
        except NotStartedError as error:
            told = error if in_time else NotStartedError("no process was ready for it in time", limited=True)
            call.not_started(told)
            raise told from None
        except asyncio.CancelledError:
            if job is not None:
                job.future.cancel()  # nobody waits for it any more
                if job.kill():
                    call.not_started()
            raise
        finally:
            if job is not None:
                await job.end_children()
        if isinstance(value, Raised):
            raise value.error
        return value
