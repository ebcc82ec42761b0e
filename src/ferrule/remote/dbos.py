"""Calls on DBOS: checkpointed, each a workflow of its own, or drained from a queue by workers on other machines.

    @tool(isolation=dbos.queue("tools", concurrency=8))
    def charge(order: int) -> str: ...

`step()` is middleware for a program whose run is a DBOS workflow; `workflows()` and `queue(…)` are for `isolation=`,
and `worker(tools)` is what `ferrule worker my_tools:tools` runs. See docs/beyond-one-machine.md.
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
    imported,
    reason,
    refuse_pickles,
)
from ferrule.remote._far import FarSide, places_of
from ferrule.remote._near import Line, RemoteExecutor
from ferrule.remote._seal import Seal
from ferrule.stores.store import StoreError
from ferrule.types import Next, ToolInput
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult

__all__ = ["Queue", "Step", "Worker", "Workflows", "queue", "step", "worker", "workflows"]

Keys = bytes | Sequence[bytes] | None
_FAR_SIDES: dict[str, FarSide] = {}
"""What runs the orders of this process, by the name of the queue."""
_OWN = "this program's workflows "
_POLL = 0.05
_PRUNE_EVERY = 600.0
_END_SECONDS = 5.0
log = logging.getLogger("ferrule")


# -- a step of the caller's own workflow -------------------------------------------------------------------------------


def step() -> Step:
    """A middleware for `inside=`: within a DBOS workflow each call is a step of it, whose result is not made again when
    the workflow is. Outside of one it does nothing. See docs/beyond-one-machine.md.

    A tool that changes things has two steps: of the first, which is kept before the handler runs, a workflow that is
    taken up again knows that the handler may have run, and the call is `unknown`. So it is where the workflow makes
    another call than it made at this place before.

    Raises:
        DefinitionError: where DBOS is not installed.
    """
    return Step()


class Step:
    """What `step` makes. See docs/beyond-one-machine.md#a-run-that-is-a-workflow."""

    def __init__(self) -> None:
        self._dbos = imported().DBOS
        self._other_step: type[Exception] = imported().error.DBOSUnexpectedStepError

    async def __call__(self, call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        if self._dbos.workflow_id is None:
            return await next(call, context)
        try:
            return await self._as_step(call, context, next)
        except self._other_step:
            why = "its workflow was taken up again and made its calls in another order than before"
            return _unknown_now(call.name, why)

    async def _as_step(self, call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        # DBOS knows steps by their number and name: without the arguments in it, a call that is made in another order,
        # or in the place of one that is denied now, would get what another one came to.
        name = f"{call.name} {hashlib.sha256(judged_text(call).encode()).hexdigest()[:16]}"
        ran: list[ToolResult] = []
        begun = mark = uuid.uuid4().hex

        async def begin() -> str:
            return mark

        if not (context.tool.read_only or context.tool.idempotent):
            begun = await self._kept(f"begin {name}", begin)

        async def run() -> str:
            ran.append(await next(call, context) if begun == mark else _unknown_now(call.name, _CUT_OFF))
            return pack(ran[0], "json").decode()

        text = await self._kept(f"tool {name}", run)
        if ran:
            return ran[0]
        found: ToolResult = unpack(text.encode(), "json")  # type: ignore[assignment]
        return found.replace(metadata={**found.metadata, "replayed": True})

    async def _kept(self, name: str, body: Callable[[], Awaitable[str]]) -> str:
        kept: str = await self._dbos.run_step_async({"name": name}, body)
        return kept


_CUT_OFF = "it was begun before its workflow was cut off"


def _unknown_now(name: str, why: str) -> ToolResult:
    error = (
        f"{name}: {why}, and it is not known what came of it: its effect may have happened. Nothing was run now. Do "
        "not repeat it; find out whether it happened, or ask."
    )
    return ToolResult(None, error, tool_name=name, status="unknown", executed=None)


# -- a workflow for each call ------------------------------------------------------------------------------------------


def workflows(*, key: Keys = None, encrypt_key: Keys = None, url: str | None = None) -> Workflows:
    """For `isolation=`: each call is a workflow of its own in this program, which has launched DBOS itself. A call that
    comes again (principal, session, id and arguments the same) gets what it came to before, also in another process.

    Make the runner before `DBOS.launch()`, which takes up again what was cut off: what is read-only or idempotent runs
    again, all else is `unknown`. See docs/beyond-one-machine.md#a-call-that-is-a-workflow.

    Args:
        key: What signs; see `ferrule.remote.Seal`.
        encrypt_key: What encrypts.
        url: The address of DBOS's system database, the one that its own config names; left out, that of the environment
            variable DBOS_SYSTEM_DATABASE_URL.

    Raises:
        DefinitionError: where DBOS is not installed, a key is wrong, or no address is given.
    """
    if not (url or os.environ.get(URL_VARIABLE)):
        raise DefinitionError(f"workflows(url=…) is the address that DBOS's own config names; or set {URL_VARIABLE}")
    return Workflows(Seal(key, encrypt_key), Database(url))


class Workflows:
    """What `workflows` makes. See docs/beyond-one-machine.md#a-call-that-is-a-workflow."""

    def __init__(self, seal: Seal, database: Database) -> None:
        refuse_pickles()
        self._name = f"{_OWN}{len(_FAR_SIDES)}"  # the same in a program that is started again, which makes them again
        self._seal = seal
        self._database = database
        self._far = FarSide((), seal)
        self._started = register(self._name, self._far)

    def executor(self, tool: Tool) -> Executor:
        """What runs the handler of `tool`.

        Raises:
            DefinitionError: where no other process could make it, or its values need a key that encrypts.
        """
        self._far.places |= places_of([tool])
        return RemoteExecutor(tool, _InProgram(self._name, self._started, self._database), self._seal, self._name)


class _InProgram(Line):
    """Starts workflows in this program."""

    def __init__(self, name: str, started: Mapping[bool, Any], database: Database) -> None:
        self._name = name
        self._started = started
        self._database = database

    async def send(
        self, workflow: str, order: str, *, repeatable: bool, principal: str | None
    ) -> AsyncGenerator[str | None, None]:
        dbos = imported()
        if not dbos.DBOS.application_version:
            raise NotStartedError("DBOS was not launched: call DBOS(config=…) and DBOS.launch() first")
        with dbos.SetWorkflowID(workflow):
            await dbos.DBOS.start_workflow_async(self._started[repeatable], self._name, order)
        async with aclosing(self._database.told(workflow)) as messages:
            async for message in messages:
                yield message


# -- a queue that workers drain ----------------------------------------------------------------------------------------


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
    """For `isolation=`: the handlers of these tools run in workers, `ferrule worker my_tools:tools`, which take calls
    from a queue in a database. See docs/beyond-one-machine.md.

    Args:
        name: What the queue is called in the database; not beginning with `_dbos_`.
        concurrency: How many calls run at once, in all workers together.
        per_worker: How many run at once in one worker.
        per_principal: How many of one principal run at once, in all workers together; with it, principals take turns.
        rate: So many calls begin in so many seconds, such as `(20, 1.0)`.
        poll: Seconds after which a worker looks for new calls.
        key: What signs orders and what is told of them; see `ferrule.remote.Seal`. It is the workers', too.
        encrypt_key: What encrypts them.
        url: The address of the database, `postgresql://…` or `sqlite:///…` (for one machine); left out, that of the
            environment variable DBOS_SYSTEM_DATABASE_URL, or `sqlite:///ferrule.sqlite`.

    Raises:
        DefinitionError: for limits that are no whole numbers from 1, a rate that is none, or a wrong name or time.
    """
    return Queue(Limits.checked(name, concurrency, per_worker, per_principal, rate, poll), key, encrypt_key, url)


class Queue:
    """What `queue` makes. See docs/beyond-one-machine.md#a-queue-and-its-workers.

    Nothing is connected, and no key is looked for, until a runner has one of its tools.

    Attributes:
        limits: Its name, and what workers keep to.
    """

    def __init__(self, limits: Limits, key: Keys, encrypt_key: Keys, url: str | None) -> None:
        self.limits = limits
        self._given = (key, encrypt_key)
        self._url = url

    @cached_property
    def seal(self) -> Seal:
        """What signs its orders."""
        return Seal(*self._given)

    @cached_property
    def database(self) -> Database:
        """Where it is."""
        return Database(self._url)

    def executor(self, tool: Tool) -> Executor:
        """What runs the handler of `tool`.

        Raises:
            DefinitionError: where no other process could make it, there is no key, its values need one that encrypts,
                DBOS is not installed or is none that is known, or the database cannot be one.
        """
        refuse_pickles()
        return RemoteExecutor(tool, _Queued(self), self.seal, self.limits.name)


class _Queued(Line):
    """Puts orders into a queue."""

    def __init__(self, its: Queue) -> None:
        self._queue = its

    async def send(
        self, workflow: str, order: str, *, repeatable: bool, principal: str | None
    ) -> AsyncGenerator[str | None, None]:
        limits, database = self._queue.limits, self._queue.database
        whose = None if limits.per_principal is None else self._queue.seal.pseudonym(repr(principal))
        await database.enqueue(workflow, order, limits, repeatable=repeatable, partition=whose)
        async with aclosing(database.told(workflow)) as messages:
            async for message in messages:
                yield message


# -- what runs orders --------------------------------------------------------------------------------------------------


def register(name: str, far: FarSide) -> Mapping[bool, Any]:
    """Have the workflows of this process run the orders of a queue; the workflow functions, by whether they may be run
    again where a process was cut off."""
    _FAR_SIDES[name] = far
    dbos = imported()
    portable = dbos.WorkflowSerializationFormat.PORTABLE
    made = {}
    for repeatable, called in WORKFLOWS.items():
        again = {} if repeatable else {"max_recovery_attempts": 0}  # its effect may have happened: nobody repeats it
        options = {"name": called, "serialization_type": portable, **again}
        made[repeatable] = dbos.DBOS.workflow(**options)(_BODIES[repeatable])
    return made


async def _workflow(queue_name: str, order: str, repeatable: bool) -> None:
    """One call. What it tells and comes to is in its stream; a cancelled workflow ends the step, and so the handler."""
    dbos = imported()
    options = {"name": "handler", "preemptible": True}
    await dbos.DBOS.run_step_async(options, _stream_messages, queue_name, order, repeatable)


async def _stream_messages(queue_name: str, order: str, repeatable: bool) -> None:
    dbos = imported()
    portable = dbos.WorkflowSerializationFormat.PORTABLE
    about = {"queue": queue_name, "workflow": dbos.DBOS.workflow_id, "repeatable": repeatable}
    messages = _FAR_SIDES[queue_name].run(order, **about)
    async with aclosing(messages):
        async for message in messages:
            await dbos.DBOS.write_stream_async(STREAM, message, serialization_type=portable)


async def _changing(queue_name: str, order: str) -> None:
    await _workflow(queue_name, order, False)


async def _repeatable(queue_name: str, order: str) -> None:
    await _workflow(queue_name, order, True)


def _no_cancellation(record: logging.LogRecord) -> bool:
    """Whether it is worth a line: DBOS logs each cancelled call with a traceback."""
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or "WorkflowCancelled" not in kind.__name__


_BODIES = {False: _changing, True: _repeatable}


def worker(
    tools: Iterable[ToolInput],
    *,
    deps: object = None,
    secrets: Mapping[str, object] | None = None,
    drain: float = 30.0,
    keep: float = 30.0,
) -> Worker:
    """What runs the calls of these tools, of the queues that they have as `isolation=`; `ferrule worker` runs one.
    See docs/beyond-one-machine.md#a-queue-and-its-workers.

    Args:
        tools: What may be ordered; nothing else is imported for an order.
        deps: What the contexts of the handlers have as `deps`; programs send none.
        secrets: The same of `secrets`.
        drain: Seconds that calls which run have to end when it stops.
        keep: Days after which calls that have ended are deleted from the database.

    Raises:
        DefinitionError: for wrong times, and where none of them has a queue, or they have some in several databases.
    """
    times: dict[str, object] = {"drain": drain, "keep": keep}
    for name, given in times.items():
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < math.inf:
            raise DefinitionError(f"worker({name}) must be a number from 0, not {given!r}")
    return Worker(tools, deps, secrets, drain, keep)


class Worker:
    """What `worker` makes. See docs/beyond-one-machine.md#a-queue-and-its-workers.

    `start()` and `stop()` block, and `async with` does both; DBOS is one for each process.

    Attributes:
        queues: What it drains, by name.
        drain: Seconds that calls which run have to end when it stops.
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
        self._far_sides: dict[str, FarSide] = {}
        for tool in queued:
            its: Any = tool.isolation
            name = its.limits.name
            if self.queues.setdefault(name, its) is not its:
                raise DefinitionError(f"two queues are called {name!r}: make it once, and give it to all of its tools")
            far = self._far_sides.setdefault(name, FarSide((), its.seal, deps=deps, secrets=secrets))
            far.places |= places_of([tool])
        databases = {its.database.url for its in self.queues.values()}
        if len(databases) > 1:
            raise DefinitionError("a worker drains the queues of one database, and these are in several")
        self._database = next(iter(self.queues.values())).database
        self.drain = drain
        self._keep = keep
        self._stopped = threading.Event()
        self._beating: threading.Thread | None = None
        self._id = uuid.uuid4().hex

    def start(self) -> None:
        """Take calls.

        Raises:
            StoreError: where the database cannot be reached.
            Exception: whatever DBOS raises where it cannot be launched.
        """
        dbos = imported()
        refuse_pickles(everywhere=True)
        for name, far in self._far_sides.items():
            register(name, far)
        try:
            self._database.prepare()
            self._database.beat(self._id)
        except Exception as error:
            raise StoreError(f"the database of the queues cannot be used: {reason(error)}") from error
        config = {
            "name": VERSION,
            "application_version": VERSION,
            "executor_id": self._id,
            "system_database_url": self._database.url,
            "serializer": dbos.DBOSPortableJSONSerializer(),
            "log_level": "ERROR",
        }
        logging.getLogger("dbos").addFilter(_no_cancellation)
        dbos.DBOS(config=config)
        dbos.DBOS.listen_queues(list(self.queues))
        dbos.DBOS.launch()
        for its in self.queues.values():
            dbos.DBOS.register_queue(its.limits.name, on_conflict="always_update", **its.limits.of_dbos())
        self._beating = threading.Thread(target=self._beat, name="ferrule-worker", daemon=True)
        self._beating.start()

    def stop(self) -> None:
        """Take no new calls, and let those that run end; what does not in time is `unknown`, or runs elsewhere."""
        ending = threading.Thread(target=self._end, name="ferrule-worker-end", daemon=True)
        ending.start()
        ending.join(self.drain + _END_SECONDS)  # a database that is gone would be waited for

    def _end(self) -> None:
        imported().DBOS.destroy(workflow_completion_timeout_sec=math.ceil(self.drain))
        self._stopped.set()
        if self._beating is not None:
            self._beating.join()
        try:
            self._database.bury(self._id)
        except Exception as error:  # others find out by themselves
            log.warning("the database of the queues failed: %s", reason(error))

    def _beat(self) -> None:
        prune_at = time.monotonic()
        while not self._stopped.wait(ALIVE_SECONDS / 5):
            try:
                self._database.beat(self._id)
                self._database.tend()
                if time.monotonic() >= prune_at:
                    while self._database.prune(self._keep):
                        pass
                    prune_at = time.monotonic() + _PRUNE_EVERY
            except Exception as error:  # it is tried again; meanwhile others may take this worker for lost
                log.warning("the database of the queues failed: %s", reason(error))

    async def __aenter__(self) -> Worker:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)
