"""Calls on DBOS: as checkpoints in a workflow, as workflows of their own, or in a queue for workers on other machines.

    @tool(isolation=dbos.queue("tools", concurrency=8))
    def charge(order: int) -> str: ...

`step()` is middleware for a program that runs as a DBOS workflow; `workflows()` and `queue(…)` are for `isolation=`.
`ferrule worker my_tools:tools` runs `worker(tools)`. See docs/beyond-one-machine.md.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import os
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import cached_property
from typing import Any

from ferrule.definition.tool import Tool
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError, NotStartedError
from ferrule.executors import Executor
from ferrule.executors.process import judged_text, pack, unpack
from ferrule.remote._dbos_database import (
    ALIVE_SECONDS,
    STREAM,
    URL_VARIABLE,
    VERSION,
    WORKFLOWS,
    Database,
    Limits,
    describe_database_error,
    import_dbos,
    refuse_pickles,
)
from ferrule.remote._executor import OrderTransport, RemoteExecutor
from ferrule.remote._order_runner import OrderRunner, list_places
from ferrule.remote._seal import Seal
from ferrule.stores.store import StoreError
from ferrule.types import Next, ToolInput
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult

__all__ = ["Queue", "Step", "Worker", "Workflows", "queue", "step", "worker", "workflows"]

Keys = bytes | Sequence[bytes] | None
_ORDER_RUNNERS: dict[str, OrderRunner] = {}
"""The order runners that run orders in this process, by the name of the queue."""
_LOCAL_PREFIX = "this program's workflows "
_POLL = 0.05
_PRUNE_EVERY = 600.0
_END_SECONDS = 5.0
log = logging.getLogger("ferrule")


# -- a step of the caller's own workflow -------------------------------------------------------------------------------


def step() -> Step:
    """Return a middleware for `inside=`: each call in a DBOS workflow is a step of it.

    When the workflow runs again, the step's stored result is used. Outside of a workflow the middleware does nothing.
    See docs/beyond-one-machine.md.

    A tool that changes things has two steps. The first is stored before the handler runs. From it a recovered workflow
    knows that the handler may have run, and the call is `unknown`. The call is also `unknown` if the workflow made
    another call at this place before.

    Raises:
        DefinitionError: DBOS is not installed.
    """
    return Step()


class Step:
    """The middleware from `step`. See docs/beyond-one-machine.md#a-run-that-is-a-workflow."""

    def __init__(self) -> None:
        self._dbos = import_dbos().DBOS
        self._other_step: type[Exception] = import_dbos().error.DBOSUnexpectedStepError

    async def __call__(self, call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        if self._dbos.workflow_id is None:
            return await next(call, context)
        try:
            return await self._call_as_step(call, context, next)
        except self._other_step:
            why = "its workflow was resumed and made its calls in another order"
            return _make_unknown(call.name, why)

    async def _call_as_step(self, call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        # DBOS identifies steps by their number and name. The name includes the arguments: without them, a call made in
        # another order, or instead of one that is denied now, would get the result of another call.
        name = f"{call.name} {hashlib.sha256(judged_text(call).encode()).hexdigest()[:16]}"
        ran: list[ToolResult] = []
        begun = mark = uuid.uuid4().hex

        async def begin() -> str:
            return mark

        if not (context.tool.read_only or context.tool.idempotent):
            begun = await self._run_step(f"begin {name}", begin)

        async def run() -> str:
            ran.append(await next(call, context) if begun == mark else _make_unknown(call.name, _CUT_OFF))
            return pack(ran[0], "json").decode()

        text = await self._run_step(f"tool {name}", run)
        if ran:
            return ran[0]
        found: ToolResult = unpack(text.encode(), "json")  # type: ignore[assignment]
        return found.replace(metadata={**found.metadata, "replayed": True})

    async def _run_step(self, name: str, body: Callable[[], Awaitable[str]]) -> str:
        result: str = await self._dbos.run_step_async({"name": name}, body)
        return result


_CUT_OFF = "it began before its workflow was interrupted"


def _make_unknown(name: str, why: str) -> ToolResult:
    error = (
        f"{name}: {why}, and its outcome is unknown: its effect may have happened. Nothing ran now. Do "
        "not repeat it; find out whether it happened, or ask."
    )
    return ToolResult(None, error, tool_name=name, status="unknown", executed=None)


# -- a workflow for each call ------------------------------------------------------------------------------------------


def workflows(*, key: Keys = None, encrypt_key: Keys = None, url: str | None = None) -> Workflows:
    """Return a value for `isolation=`: each call is a workflow of its own in this program, which launches DBOS itself.

    A repeated call (principal, session, id and arguments the same) gets the earlier outcome, also in another process.

    Make the runner before `DBOS.launch()`, because that recovers interrupted workflows: a read-only or idempotent call
    runs again, and any other is `unknown`. See docs/beyond-one-machine.md#a-call-that-is-a-workflow.

    Args:
        key: The signing key; see `ferrule.remote.Seal`.
        encrypt_key: The encryption key.
        url: The address of DBOS's system database, the same as in its own config; by default that of the environment
            variable DBOS_SYSTEM_DATABASE_URL.

    Raises:
        DefinitionError: DBOS is not installed, a key is wrong, or there is no address.
    """
    if not (url or os.environ.get(URL_VARIABLE)):
        raise DefinitionError(f"workflows(url=…) must be the address in DBOS's own config; or set {URL_VARIABLE}")
    return Workflows(Seal(key, encrypt_key), Database(url))


class Workflows:
    """The value from `workflows`. See docs/beyond-one-machine.md#a-call-that-is-a-workflow."""

    def __init__(self, seal: Seal, database: Database) -> None:
        refuse_pickles()
        # The same after a restart of the program, which makes them again in the same order.
        self._name = f"{_LOCAL_PREFIX}{len(_ORDER_RUNNERS)}"
        self._seal = seal
        self._database = database
        self._order_runner = OrderRunner((), seal)
        self._started = register(self._name, self._order_runner)

    def executor(self, tool: Tool) -> Executor:
        """Return the executor of the handler of `tool`.

        Raises:
            DefinitionError: No other process could make the tool, or its values need an encryption key.
        """
        self._order_runner.places |= list_places([tool])
        transport = _WorkflowTransport(self._name, self._started, self._database)
        return RemoteExecutor(tool, transport, self._seal, self._name)


class _WorkflowTransport(OrderTransport):
    """A line to workflows in this program."""

    def __init__(self, name: str, started: Mapping[bool, Any], database: Database) -> None:
        self._name = name
        self._started = started
        self._database = database

    async def send(
        self, workflow: str, order: str, *, repeatable: bool, principal: str | None
    ) -> AsyncGenerator[str | None, None]:
        dbos = import_dbos()
        if not dbos.DBOS.application_version:
            raise NotStartedError("DBOS was not launched: call DBOS(config=…) and DBOS.launch() first")
        with dbos.SetWorkflowID(workflow):
            await dbos.DBOS.start_workflow_async(self._started[repeatable], self._name, order)
        async with aclosing(self._database.read_messages(workflow)) as messages:
            async for message in messages:
                yield message


# -- a queue for workers -----------------------------------------------------------------------------------------------


def queue(
    name: str,
    *,
    concurrency: int | None = None,
    per_worker: int | None = None,
    per_principal: int | None = None,
    rate: tuple[int, float] | None = None,
    poll: float = _POLL,
    key: Keys = None,
    encrypt_key: Keys = None,
    url: str | None = None,
) -> Queue:
    """Return a value for `isolation=`: workers run the handlers of these tools.

    Workers, `ferrule worker my_tools:tools`, take calls from a queue in a database. See docs/beyond-one-machine.md.

    Args:
        name: The name of the queue in the database. It must not begin with `_dbos_`.
        concurrency: The most calls at once, in all workers together.
        per_worker: The most calls at once in one worker.
        per_principal: The most calls of one principal at once, in all workers together. With it, principals take turns.
        rate: The most calls to begin in a number of seconds, such as `(20, 1.0)`.
        poll: The seconds between two looks of a worker for new calls.
        key: The signing key of orders and messages; see `ferrule.remote.Seal`. The workers have the same.
        encrypt_key: The encryption key.
        url: The address of the database, `postgresql://…` or `sqlite:///…` (for one machine). By default that of the
            environment variable DBOS_SYSTEM_DATABASE_URL, or `sqlite:///ferrule.sqlite`.

    Raises:
        DefinitionError: A limit is no whole number from 1, or the rate, the name or the time is invalid.
    """
    return Queue(Limits.validate(name, concurrency, per_worker, per_principal, rate, poll), key, encrypt_key, url)


class Queue:
    """The value from `queue`. See docs/beyond-one-machine.md#a-queue-and-its-workers.

    It connects to nothing, and reads no key, until a runner has one of its tools.

    Attributes:
        limits: Its name, and the limits of its workers.
    """

    def __init__(self, limits: Limits, key: Keys, encrypt_key: Keys, url: str | None) -> None:
        self.limits = limits
        self._keys = (key, encrypt_key)
        self._url = url

    @cached_property
    def seal(self) -> Seal:
        """The seal of its orders."""
        return Seal(*self._keys)

    @cached_property
    def database(self) -> Database:
        """Its database."""
        return Database(self._url)

    def executor(self, tool: Tool) -> Executor:
        """Return the executor of the handler of `tool`.

        Raises:
            DefinitionError: No other process could make the tool, a key is missing (its values may need one for
                encryption), DBOS is not installed or of an unknown version, or the database cannot be used.
        """
        refuse_pickles()
        return RemoteExecutor(tool, _QueueTransport(self), self.seal, self.limits.name)


class _QueueTransport(OrderTransport):
    """A line to a queue."""

    def __init__(self, tool_queue: Queue) -> None:
        self._queue = tool_queue

    async def send(
        self, workflow: str, order: str, *, repeatable: bool, principal: str | None
    ) -> AsyncGenerator[str | None, None]:
        limits, database = self._queue.limits, self._queue.database
        partition = None if limits.per_principal is None else self._queue.seal.pseudonym(repr(principal))
        await database.enqueue(workflow, order, limits, repeatable=repeatable, partition=partition)
        async with aclosing(database.read_messages(workflow)) as messages:
            async for message in messages:
                yield message


# -- running orders ----------------------------------------------------------------------------------------------------


def register(name: str, order_runner: OrderRunner) -> Mapping[bool, Any]:
    """Let the workflows of this process run the orders of a queue.

    Return the workflow functions, by whether they may run again after an interruption of the process.
    """
    _ORDER_RUNNERS[name] = order_runner
    dbos = import_dbos()
    portable = dbos.WorkflowSerializationFormat.PORTABLE
    functions = {}
    for repeatable, called in WORKFLOWS.items():
        again = {} if repeatable else {"max_recovery_attempts": 0}  # its effect may have happened: never repeat it
        options = {"name": called, "serialization_type": portable, **again}
        functions[repeatable] = dbos.DBOS.workflow(**options)(_WORKFLOW_FUNCTIONS[repeatable])
    return functions


async def _run_workflow(queue_name: str, order: str, repeatable: bool) -> None:
    """Run one call. Its messages and outcome are in its stream.

    A cancelled workflow ends the step, and so the handler.
    """
    dbos = import_dbos()
    options = {"name": "handler", "preemptible": True}
    await dbos.DBOS.run_step_async(options, _stream_messages, queue_name, order, repeatable)


async def _stream_messages(queue_name: str, order: str, repeatable: bool) -> None:
    dbos = import_dbos()
    portable = dbos.WorkflowSerializationFormat.PORTABLE
    subject = {"queue": queue_name, "workflow": dbos.DBOS.workflow_id, "repeatable": repeatable}
    messages = _ORDER_RUNNERS[queue_name].run(order, **subject)
    async with aclosing(messages):
        async for message in messages:
            await dbos.DBOS.write_stream_async(STREAM, message, serialization_type=portable)


async def _changing(queue_name: str, order: str) -> None:
    await _run_workflow(queue_name, order, False)


async def _repeatable(queue_name: str, order: str) -> None:
    await _run_workflow(queue_name, order, True)


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """Return whether a record is worth a line: DBOS logs each cancelled call with a traceback."""
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or "WorkflowCancelled" not in kind.__name__


_WORKFLOW_FUNCTIONS = {False: _changing, True: _repeatable}


def worker(
    tools: Iterable[ToolInput],
    *,
    deps: object = None,
    secrets: Mapping[str, object] | None = None,
    drain: float = 30.0,
    keep: float = 30.0,
) -> Worker:
    """Return a worker for the calls of these tools, from the queues in their `isolation=`; `ferrule worker` runs one.

    See docs/beyond-one-machine.md#a-queue-and-its-workers.

    Args:
        tools: The tools that may be ordered; nothing else is imported for an order.
        deps: The `deps` of the handlers' contexts; programs send none.
        secrets: The same for `secrets`.
        drain: The seconds for running calls to end when the worker stops.
        keep: The days after which ended calls are deleted from the database.

    Raises:
        DefinitionError: A time is wrong, no tool has a queue, or their queues are in several databases.
    """
    times: dict[str, object] = {"drain": drain, "keep": keep}
    for name, seconds in times.items():
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
            raise DefinitionError(f"worker({name}) must be a number from 0, not {seconds!r}")
    return Worker(tools, deps, secrets, drain, keep)


class Worker:
    """The value from `worker`. See docs/beyond-one-machine.md#a-queue-and-its-workers.

    `start()` and `stop()` block, and `async with` does both; there is one DBOS for each process.

    Attributes:
        queues: The queues of the worker, by name.
        drain: The seconds for running calls to end when the worker stops.
    """

    def __init__(
        self,
        tools: Iterable[ToolInput],
        deps: object,
        secrets: Mapping[str, object] | None,
        drain: float,
        keep: float,
    ) -> None:
        queued = [tool for tool in Toolset(tools) if isinstance(tool.isolation, Queue)]
        if not queued:
            raise DefinitionError('none of these tools has a queue: give them isolation=dbos.queue("…")')
        self.queues: dict[str, Queue] = {}
        self._order_runners: dict[str, OrderRunner] = {}
        for tool in queued:
            tool_queue: Any = tool.isolation
            name = tool_queue.limits.name
            if self.queues.setdefault(name, tool_queue) is not tool_queue:
                raise DefinitionError(f"two queues have the name {name!r}: make one, and give it to all of its tools")
            order_runner = self._order_runners.setdefault(
                name, OrderRunner((), tool_queue.seal, deps=deps, secrets=secrets)
            )
            order_runner.places |= list_places([tool])
        databases = {tool_queue.database.url for tool_queue in self.queues.values()}
        if len(databases) > 1:
            raise DefinitionError("a worker serves the queues of one database, but these are in several")
        self._database = next(iter(self.queues.values())).database
        self.drain = drain
        self._keep = keep
        self._stopped = threading.Event()
        self._heartbeat_thread: threading.Thread | None = None
        self._id = uuid.uuid4().hex

    def start(self) -> None:
        """Start to take calls.

        Raises:
            StoreError: The database cannot be reached.
            Exception: DBOS cannot be launched; this is its own exception.
        """
        dbos = import_dbos()
        refuse_pickles(everywhere=True)
        for name, order_runner in self._order_runners.items():
            register(name, order_runner)
        try:
            self._database.prepare()
            self._database.record_heartbeat(self._id)
        except Exception as error:
            raise StoreError(f"the database of the queues cannot be used: {describe_database_error(error)}") from error
        config = {
            "name": VERSION,
            "application_version": VERSION,
            "executor_id": self._id,
            "system_database_url": self._database.url,
            "serializer": dbos.DBOSPortableJSONSerializer(),
            "log_level": "ERROR",
        }
        logging.getLogger("dbos").addFilter(_is_no_cancellation)
        dbos.DBOS(config=config)
        dbos.DBOS.listen_queues(list(self.queues))
        dbos.DBOS.launch()
        for tool_queue in self.queues.values():
            dbos.DBOS.register_queue(
                tool_queue.limits.name, on_conflict="always_update", **tool_queue.limits.to_dbos_options()
            )
        self._heartbeat_thread = threading.Thread(target=self._send_heartbeats, name="ferrule-worker", daemon=True)
        self._heartbeat_thread.start()

    def stop(self) -> None:
        """Take no new calls, and let running calls end.

        A call that does not end in time is `unknown`, or runs elsewhere.
        """
        ending = threading.Thread(target=self._end, name="ferrule-worker-end", daemon=True)
        ending.start()
        ending.join(self.drain + _END_SECONDS)  # bounded, because a missing database would block it

    def _end(self) -> None:
        import_dbos().DBOS.destroy(workflow_completion_timeout_sec=math.ceil(self.drain))
        self._stopped.set()
        if self._heartbeat_thread is not None:
            self._heartbeat_thread.join()
        try:
            self._database.remove_worker(self._id)
        except Exception as error:  # others find out by themselves
            log.warning("the database of the queues failed: %s", describe_database_error(error))

    def _send_heartbeats(self) -> None:
        prune_at = time.monotonic()
        while not self._stopped.wait(ALIVE_SECONDS / 5):
            try:
                self._database.record_heartbeat(self._id)
                self._database.recover_calls()
                if time.monotonic() >= prune_at:
                    while self._database.prune(self._keep):
                        pass
                    prune_at = time.monotonic() + _PRUNE_EVERY
            except Exception as error:  # the next round tries again; meanwhile others may regard this worker as lost
                log.warning("the database of the queues failed: %s", describe_database_error(error))

    async def __aenter__(self) -> Worker:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)
