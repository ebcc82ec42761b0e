"""The executor of `isolation="process"` and of `isolation=Workers(…)`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ferrule.definition.tool import Tool
from ferrule.errors import NotStartedError
from ferrule.executors import Executor, StartedCall
from ferrule.executors.process.order import Order
from ferrule.executors.process.pool import WorkerPool, shared_pool
from ferrule.executors.process.recipe import Recipe
from ferrule.executors.process.transfer import Transfer
from ferrule.executors.threads import Raised
from ferrule.scheduling.clock import MONOTONIC


class ProcessExecutor(Executor):
    """Runs a handler in a worker process, and kills the process group if the run is cancelled.

    Making one starts a first worker at once.
    """

    def __init__(self, tool: Tool, pool: WorkerPool | None = None, transfer: Transfer = "json") -> None:
        self._recipe = Recipe(tool, transfer)
        self._pool = shared_pool() if pool is None else pool
        self._pool.warm(1, [self._recipe])
        self.limiter = self._pool.slots

    async def run(self, values: object, call: StartedCall) -> Any:
        """Run the handler in a worker and return its value."""
        chunks = call.create_chunk_list()

        def on_progress(data: Mapping[str, object]) -> None:
            if "chunk" in data:
                chunks.append(data["chunk"])
            call.announce(data)

        context, job, in_time = call.context, None, True
        options: dict[str, Any] = {
            "key": context.idempotency_key,
            "nested": call.parent is not None,
            "enforce_deadline": context.clock is MONOTONIC,
        }
        try:
            order = Order(self._recipe, call.call, context.fields, values, context.remaining(), **options)
            job = self._pool.submit(order, on_progress, context.run)
            in_time = await call.wait_for_start(job.start_time)
            if not in_time:
                job.kill()
            value = await job.future
        except NotStartedError as error:
            reason = error if in_time else NotStartedError("no process was ready for it in time", limited=True)
            call.report_not_started(reason)
            raise reason from None
        except asyncio.CancelledError:
            if job is not None:
                if job.kill():
                    call.report_not_started()
            raise
        finally:
            if job is not None:
                await job.cancel_nested_calls()
        if isinstance(value, Raised):
            raise value.error
        return value
