"""The database of DBOS, for orders from programs, messages to them, and heartbeats of workers."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from ferrule.errors import DefinitionError, NotStartedError, UnknownOutcomeError

log = logging.getLogger("ferrule")
URL_VARIABLE = "DBOS_SYSTEM_DATABASE_URL"
"""DBOS's own variable for the address of its system database."""
DEFAULT_URL = "sqlite:///ferrule.sqlite"
VERSION = "ferrule-remote-1"
"""The name and version of workers as an application of DBOS. A worker accepts only orders of this version."""
WORKFLOWS = {False: "ferrule_changing", True: "ferrule_repeatable"}
"""The names of the workflows, by whether they may run again if a worker dies."""
STREAM = "ferrule"
"""The stream of a workflow with the messages about its call."""
ALIVE_SECONDS = 5.0
"""The seconds without a heartbeat after which a worker is lost."""
_READ_AGAIN = {"postgresql": 1.0, "sqlite": 0.02}
"""Seconds between two reads of a stream. PostgreSQL notifies its readers, and this covers missed notifications."""
_RETRY = 0.5
_FAILING_SECONDS = 60.0
"""The seconds to wait for an answer while the database fails."""
_NOW = {"postgresql": "extract(epoch from clock_timestamp())", "sqlite": "unixepoch('subsec')"}
_SQLITE = (3, 42)  # DBOS's tables use unixepoch('subsec')
_TABLE = "CREATE TABLE IF NOT EXISTS ferrule_workers (id text PRIMARY KEY, seen double precision NOT NULL)"
_CONNECT_OPTIONS = {"connect_timeout": 3, "tcp_user_timeout": 2000}  # a heartbeat must not wait long
_RECORD_SECONDS = 3600.0
_MOST_PRUNED = 1000
_JSON_ONLY: ContextVar[bool] = ContextVar("ferrule.json_only", default=False)
_patched = threading.Lock()


def import_dbos() -> Any:
    """Return the package `dbos`.

    Raises:
        DefinitionError: It is not installed.
    """
    try:
        import dbos  # takes seconds, so only programs that need it import it
    except ImportError:
        raise DefinitionError("remote.dbos needs DBOS: pip install 'ferrule[dbos]'") from None
    return dbos


class Limits(NamedTuple):
    """The limits of all workers together; see `queue`."""

    name: str
    concurrency: int | None
    per_worker: int | None
    per_principal: int | None
    rate: tuple[int, float] | None
    poll: float

    @staticmethod
    def validate(
        name: object, concurrency: object, per_worker: object, per_principal: object, rate: object, poll: object
    ) -> Limits:
        """Return the limits if they are valid.

        Raises:
            DefinitionError: A limit is invalid.
        """
        if not isinstance(name, str) or not name or name.startswith("_dbos_"):
            raise DefinitionError(f"a queue needs a name that does not begin with '_dbos_', not {name!r}")
        counts = {"concurrency": concurrency, "per_worker": per_worker, "per_principal": per_principal}
        for word, value in counts.items():
            if value is not None and not _is_count(value):
                raise DefinitionError(f"queue({word}) must be a whole number of at least 1, not {value!r}")
        if rate is not None and not (
            isinstance(rate, tuple) and len(rate) == 2 and _is_count(rate[0]) and _is_duration(rate[1])
        ):
            raise DefinitionError(
                f"queue(rate) must be how many calls in how many seconds, such as (20, 1.0), not {rate!r}"
            )
        if not _is_duration(poll):
            raise DefinitionError(f"queue(poll) must be seconds above 0, not {poll!r}")
        for word in ("per_worker", "per_principal"):
            if isinstance(concurrency, int) and isinstance(value := counts[word], int) and value > concurrency:
                raise DefinitionError(f"queue({word}={value}) is more than its concurrency={concurrency}")
        return Limits(name, concurrency, per_worker, per_principal, rate, poll)  # type: ignore[arg-type]

    def to_dbos_options(self) -> dict[str, Any]:
        """Return the limits as options of DBOS."""
        rate = None if self.rate is None else {"limit": self.rate[0], "period": self.rate[1]}
        return {
            "global_concurrency": self.concurrency,
            "worker_concurrency": self.per_worker,
            "partition_concurrency": self.per_principal,
            "limiter": rate,
            "polling_interval_sec": self.poll,
        }


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_duration(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


class Database:
    """A system database of DBOS, for senders of orders and for workers.

    Args:
        url: Its address; by default that of the environment variable, or else an SQLite file in the working directory.

    Attributes:
        url: The address.

    Raises:
        DefinitionError: SQLite is older than DBOS needs, or the address is for no such database.
    """

    def __init__(self, url: str | None) -> None:
        self.url = url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
        self._dialect = self.url.partition(":")[0].partition("+")[0]
        if self._dialect not in _READ_AGAIN:
            raise DefinitionError("the database of a queue must be postgresql://… or sqlite:///…")
        if self._dialect == "sqlite" and sqlite3.sqlite_version_info < _SQLITE:
            raise DefinitionError(
                f"DBOS needs SQLite 3.42 or newer, and this Python has {sqlite3.sqlite_version}: use one of python.org "
                f"or uv, or set {URL_VARIABLE} to a PostgreSQL database"
            )
        self._lock = threading.Lock()
        self._client: Any = None
        self._engine: Any = None
        self._process = os.getpid()
        self._waiters = 0
        self._is_recovering = False
        self._sightings: dict[str, tuple[float, float]] = {}

    # -- for senders ---------------------------------------------------------------------------------------------------

    async def enqueue(
        self, workflow: str, order: str, limits: Limits, *, repeatable: bool, partition: str | None
    ) -> None:
        """Put an order into a queue, unless it is there. A cancellation waits until the attempt has ended.

        Raises:
            NotStartedError: The order is certainly not in the queue.
            UnknownOutcomeError: The order may be in the queue.
        """
        options = {
            "queue_name": limits.name,
            "workflow_name": WORKFLOWS[repeatable],
            "workflow_id": workflow,
            "app_version": VERSION,
        }
        if partition is not None:
            options["queue_partition_key"] = partition

        def put() -> None:
            client = self._connect(limits)
            try:
                client.check_connection()  # after this check, a failed write may still be stored
            except Exception as error:
                raise make_unreachable_error(error) from error
            client.enqueue(options, limits.name, order)

        putting = asyncio.ensure_future(asyncio.to_thread(put))
        try:
            await asyncio.shield(putting)
        except asyncio.CancelledError:
            await asyncio.wait([putting])
            await self._withdraw(workflow)
            raise
        except NotStartedError:
            raise
        except Exception as error:
            raise UnknownOutcomeError(
                f"the call may be in the queue {limits.name!r}, whose database failed ({type(error).__name__}): its "
                "effect may yet happen. Do not repeat it; find out whether it happened, or ask."
            ) from error

    async def read_messages(self, workflow: str) -> AsyncGenerator[str, None]:
        """Yield the messages about an order until the last one. A cancellation here also cancels the workflow.

        Raises:
            NotStartedError: The caller was cancelled, and certainly no worker has taken the order.
        """
        try:
            async with aclosing(self._read(workflow)) as messages:
                async for message in messages:
                    yield message
        except asyncio.CancelledError:
            await self._withdraw(workflow)
            raise

    async def _read(self, workflow: str) -> AsyncGenerator[str, None]:
        client = await asyncio.to_thread(self._connect)
        _JSON_ONLY.set(True)
        offset, every, failing = 0, _READ_AGAIN[self._dialect], 0.0
        with self._recover_during_wait():
            while True:
                try:
                    messages = client.read_stream_async(workflow, STREAM, offset=offset, polling_interval_sec=every)
                    async with aclosing(messages):
                        async for message in messages:
                            offset, failing = offset + 1, 0.0
                            yield str(message)
                    return
                except _database_errors() as error:
                    if not failing:
                        log.warning("the database of the queues failed: %s", describe_database_error(error))
                    failing += _RETRY
                    if failing > _FAILING_SECONDS:
                        raise
                    await asyncio.sleep(_RETRY)

    async def _withdraw(self, workflow: str) -> None:
        """Cancel a workflow. Raise a `NotStartedError` if certainly no worker has taken it."""
        if await self._cancel(workflow):
            raise NotStartedError("it was cancelled before a worker took it")

    async def _cancel(self, workflow: str) -> bool:
        """Cancel a workflow, unless it has ended. Return whether certainly no worker has taken it.

        In that case the workflow is deleted, and may be sent again.
        """
        client = await asyncio.to_thread(self._connect)
        await client.cancel_workflow_async(workflow)
        found = await client.list_workflows_async(workflow_ids=[workflow], load_input=False, load_output=False)
        untouched = bool(found) and found[0].executor_id is None
        if untouched:
            await client.delete_workflow_async(workflow)
        return untouched

    def _connect(self, limits: Limits | None = None) -> Any:
        """Return the client. Create a queue with these limits if the database has none.

        Raises:
            NotStartedError: The database cannot be reached.
        """
        with self._lock:
            self._reset_after_fork()
            if self._client is None:
                dbos = import_dbos()
                try:
                    self.prepare()
                    client = dbos.DBOSClient(
                        system_database_url=self.url,
                        serializer=dbos.DBOSPortableJSONSerializer(),
                        use_listen_notify=self._dialect == "postgresql",
                        application_name=VERSION,
                        retry_connection_errors=False,
                    )
                    weakref.finalize(self, client.destroy)
                    if limits is not None:
                        options = {"on_conflict": "never_update", **limits.to_dbos_options()}
                        client.register_queue(limits.name, **options)
                    self._client = client
                except Exception as error:
                    raise make_unreachable_error(error) from error
            return self._client

    # -- for workers ---------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the missing tables."""
        self._make_file()
        import_dbos().DBOS.migrate(self.url)
        with suppress(_database_errors()):  # another program was making it
            self._execute(_TABLE)
        self._execute("SELECT 1 FROM ferrule_workers WHERE id = ''")

    def _make_file(self) -> None:
        """Make an SQLite file that other users cannot read."""
        import sqlalchemy  # comes with DBOS

        file = sqlalchemy.make_url(self.url).database
        if self._dialect == "sqlite" and file and not os.path.exists(file):
            os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))

    def record_heartbeat(self, worker: str) -> None:
        """Record that a worker is alive."""
        now = _NOW[self._dialect]
        self._execute(
            f"INSERT INTO ferrule_workers (id, seen) VALUES (:id, {now}) "
            f"ON CONFLICT (id) DO UPDATE SET seen = excluded.seen",
            id=worker,
        )

    def remove_worker(self, worker: str) -> None:
        """Record that a worker has ended, and delete the records of workers lost long ago."""
        now = _NOW[self._dialect]
        self._execute(f"DELETE FROM ferrule_workers WHERE id = :id OR seen < {now} - {_RECORD_SECONDS}", id=worker)

    def prune(self, days: float) -> bool:
        """Delete at most a thousand calls that ended more than `days` ago. Return whether there may be more."""
        client = self._connect()
        before = datetime.now(UTC) - timedelta(days=days)
        ours = {"name": [*WORKFLOWS.values()], "app_version": VERSION, "load_input": False, "load_output": False}
        ended = client.list_workflows(completed_before=before.isoformat(), limit=_MOST_PRUNED, **ours)
        if ended:
            client.delete_workflows([one.workflow_id for one in ended])
        return len(ended) == _MOST_PRUNED

    def recover_calls(self) -> None:
        """Recover the calls of lost workers.

        A repeatable call goes back to its queue. All others are cancelled, so their callers learn of it.
        """
        client = self._connect()
        try:
            running = client.list_workflows(
                status="PENDING", name=[*WORKFLOWS.values()], app_version=VERSION, load_input=False, load_output=False
            )
            lost = self._find_lost_workers({one.executor_id for one in running})
        except Exception:
            self._sightings.clear()  # a worker may have lived between two looks
            raise
        for one in running:
            if one.executor_id not in lost:
                continue
            if one.name == WORKFLOWS[True]:
                # DBOS itself recovers in this way, in one step with the check that the call is still that worker's. Its
                # public `resume_workflow` checks nothing: two recovering processes would run one call twice at once,
                # and DBOS would let each wait for the other's outcome.
                client._sys_db.reenqueue_for_recovery(one.workflow_id, [one.executor_id], one.queue_name)
            else:
                client.cancel_workflow(one.workflow_id)

    def _find_lost_workers(self, workers: set[str]) -> set[str]:
        """Return the workers without a record, or without a heartbeat for as long as this process has watched them."""
        seen = dict(self._execute("SELECT id, seen FROM ferrule_workers")) if workers else {}
        now, sightings = time.monotonic(), self._sightings
        self._sightings = {
            one: sightings[one] if one in sightings and sightings[one][0] == seen[one] else (seen[one], now)
            for one in workers
            if one in seen
        }
        return {one for one in workers if one not in seen or now - self._sightings[one][1] > ALIVE_SECONDS}

    def _execute(self, statement: str, **values: object) -> list[Any]:
        import sqlalchemy  # comes with DBOS

        self._reset_after_fork()
        if self._engine is None:
            url, options = sqlalchemy.make_url(self.url), {}
            if self._dialect == "postgresql":
                url, options = url.set(drivername="postgresql+psycopg"), _CONNECT_OPTIONS
            self._engine = sqlalchemy.create_engine(
                url, connect_args=options, pool_size=1, max_overflow=1, pool_pre_ping=True
            )
            weakref.finalize(self, self._engine.dispose)
        with self._engine.begin() as connection:
            found = connection.execute(sqlalchemy.text(statement), values)
            return [tuple(row) for row in found] if found.returns_rows else []

    def _reset_after_fork(self) -> None:
        """Drop the connections in a forked process: it must not use its parent's."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._client = self._engine = None
            self._waiters, self._is_recovering = 0, False

    # -- recovery during a wait ----------------------------------------------------------------------------------------

    @contextmanager
    def _recover_during_wait(self) -> Iterator[None]:
        """Recover the calls of lost workers during the wait, because there may be no worker left to do it."""
        with self._lock:
            self._waiters += 1
            if not self._is_recovering:
                self._is_recovering = True
                threading.Thread(target=self._recover_in_background, name="ferrule-recover", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                self._waiters -= 1

    def _recover_in_background(self) -> None:
        while True:
            time.sleep(ALIVE_SECONDS / 5)
            with self._lock:
                if not self._waiters:
                    self._is_recovering = False
                    return
            with suppress(Exception):  # the next round tries again
                self.recover_calls()


def make_unreachable_error(error: Exception) -> NotStartedError:
    """Return the error for an order that was not sent, without the address, because that may hold a password."""
    log.warning("the database of the queues cannot be reached: %s", describe_database_error(error))
    return NotStartedError(f"the database of the queue cannot be reached ({type(error).__name__})", limited=True)


def describe_database_error(error: Exception) -> str:
    """Return a driver's text about a connection, in one line; it holds no password."""
    return (str(getattr(error, "orig", None) or error).strip() or type(error).__name__).partition("\n")[0]


def _database_errors() -> type[Exception]:
    from sqlalchemy.exc import DBAPIError  # comes with DBOS

    errors: type[Exception] = DBAPIError
    return errors


def refuse_pickles(*, everywhere: bool = False) -> None:
    """Keep DBOS from unpickling, in the reads of this module or in the whole process.

    A row of its tables can claim to be a pickle, whatever serializer DBOS was configured with. The author of such a row
    would run code here.

    Raises:
        DefinitionError: DBOS has changed inside: the function to replace is gone, or the one that `Database.tend`
            needs.
    """
    import_dbos()
    from dbos import _serialization, _sys_db

    pickled: Any = getattr(_serialization, "DefaultSerializer", None)
    recovers = hasattr(_sys_db.SystemDatabase, "reenqueue_for_recovery")
    if pickled is None or not hasattr(pickled, "deserialize") or not recovers:
        raise DefinitionError("this version of DBOS is not supported: use an older one, from 3.4 on")
    with _patched:
        before = getattr(pickled.deserialize, "unpickles", pickled.deserialize)
        never = everywhere or getattr(pickled.deserialize, "never", False)

        def deserialize(self: object, serialized_data: str) -> Any:
            if never or _JSON_ONLY.get():
                raise ValueError("Ferrule reads no pickled row")
            return before(self, serialized_data)

        deserialize.unpickles, deserialize.never = before, never  # type: ignore[attr-defined]
        pickled.deserialize = deserialize
