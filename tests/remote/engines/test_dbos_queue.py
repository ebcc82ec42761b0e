"""Calls in a queue of DBOS: shared limits, repeated calls, and refusals."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import far_tools
import psycopg
import pytest
from workers import worker

from ferrule import Event, Runner, Tool, ToolCall, ToolContext, ToolResult, Waits, tool
from ferrule.errors import DefinitionError
from ferrule.remote import dbos
from ferrule.remote._dbos_database import VERSION, WORKFLOWS, Database
from waits import wait_until

BOUND = 120.0


@pytest.fixture
def url(databases: Callable[[str], str]) -> str:
    return databases("queue")


@pytest.fixture(scope="module")
def drained(databases: Callable[[str], str]) -> Iterator[str]:
    """A database with a worker."""
    made = databases("drained")
    with worker(made):
        yield made


def queued(handler: Any, url: str, *, key: bytes | None = None, name: str = "far", **options: Any) -> Tool:
    return tool(handler, isolation=dbos.queue(name, url=url, key=key), **options)


def send(
    made: Tool, arguments: Any, id: str = "c1", *, context: ToolContext | None = None, **options: Any
) -> ToolResult:
    runner = Runner([made], **options)
    return asyncio.run(runner.run(ToolCall(id, made.name, arguments), context or ToolContext(session="s")))


def noted(file: Path) -> list[list[str]]:
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def most_at_once(lines: list[list[str]], counted: Callable[[list[str]], str]) -> dict[str, int]:
    """How many ran at once at most, of each kind."""
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for line in sorted(lines, key=lambda one: float(one[3])):
        now[counted(line)] += 1 if line[0] == "+" else -1
        most[counted(line)] = max(most[counted(line)], now[counted(line)])
    return dict(most)


async def test_two_workers_together_keep_the_limits(url: str, tmp_path: Path) -> None:
    file, limits = tmp_path / "noted", {"concurrency": 10, "per_worker": 6, "rate": [120, 1.0]}
    made = tool(far_tools.occupy, read_only=True, isolation=dbos.queue("far", url=url))
    calls = [ToolCall(str(n), "occupy", {"file": str(file), "line": str(n), "seconds": 0.02}) for n in range(500)]
    with worker(url, **limits), worker(url, **limits):
        results = await Runner([made], concurrency=500, waits=Waits(slot=BOUND)).run_all(calls)
    assert Counter(result.status for result in results) == {"ok": 500}
    lines = noted(file)
    assert Counter(line[1] for line in lines if line[0] == "+") == {str(n): 1 for n in range(500)}
    assert most_at_once(lines, lambda line: "all")["all"] <= 10
    of_each = most_at_once(lines, lambda line: line[2])
    assert len(of_each) == 2 and max(of_each.values()) <= 6
    with psycopg.connect(url) as connection:
        begun = [
            row[0] for row in connection.execute("SELECT started_at_epoch_ms FROM dbos.workflow_status ORDER BY 1")
        ]
    assert all(later - first >= 1000 for first, later in zip(begun, begun[120:], strict=False))


async def test_principals_take_turns(url: str, tmp_path: Path) -> None:
    file, limits = tmp_path / "noted", {"concurrency": 4, "per_worker": 4, "per_principal": 2}
    made = tool(far_tools.occupy, read_only=True, isolation=dbos.queue("far", url=url, concurrency=4, per_principal=2))
    with worker(url, **limits):
        runner = Runner([made], concurrency=200, waits=Waits(slot=BOUND))

        def call(who: str, n: int) -> Any:
            arguments = {"file": str(file), "line": who, "seconds": 0.01}
            return runner.run(ToolCall(f"{who}{n}", "occupy", arguments), principal=who)

        first = [asyncio.ensure_future(call("ann", n)) for n in range(100)]
        await asyncio.to_thread(wait_until, lambda: len(noted(file)) > 4)
        results = await asyncio.gather(*[call("bob", n) for n in range(10)], *first)
    assert Counter(result.status for result in results) == {"ok": 110}
    lines = noted(file)
    assert max(most_at_once(lines, lambda line: line[1]).values()) <= 2
    ended = [line[1] for line in lines if line[0] == "-"]
    last_of_bob = max(place for place, who in enumerate(ended) if who == "bob")
    assert ended[:last_of_bob].count("ann") < 60, "bob waited for all of ann's"


def test_a_repeated_call_gets_the_earlier_outcome(drained: str, tmp_path: Path) -> None:
    file = tmp_path / "noted"
    arguments = {"file": str(file), "line": "once"}
    first = send(queued(far_tools.note, drained), arguments)
    again = send(queued(far_tools.note, drained), arguments)  # as another program would
    other = send(queued(far_tools.note, drained), {**arguments, "line": "other"})
    somebody = send(queued(far_tools.note, drained), arguments, context=ToolContext(session="s", principal="bob"))
    assert [one.output for one in (first, again, other, somebody)] == ["once", "once", "other", "once"]
    assert noted(file) == [["once"], ["other"], ["once"]]


async def test_a_stopping_worker_finishes_its_call(url: str, tmp_path: Path) -> None:
    file = tmp_path / "noted"
    made = queued(far_tools.occupy, url)

    with worker(url) as running:
        arguments = {"file": str(file), "line": "x", "seconds": 1.0}
        task = asyncio.ensure_future(Runner([made]).run("occupy", arguments))
        await asyncio.to_thread(wait_until, lambda: len(noted(file)) == 1)
        running.terminate()
        assert (await task).output == "x"


def test_calls_that_ended_long_ago_are_deleted(url: str) -> None:
    with worker(url):
        assert send(queued(far_tools.add, url), {"a": 1}).status == "ok"
    database = Database(url)
    database.prune(1)
    assert kept(url) == 1
    database.prune(0)
    assert kept(url) == 0


def kept(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM dbos.workflow_status").fetchone()
        return 0 if row is None else int(row[0])


def test_a_call_that_no_worker_takes_is_limited_and_never_runs(url: str, tmp_path: Path) -> None:
    file = tmp_path / "noted"
    made = queued(far_tools.note, url)
    result = send(made, {"file": str(file), "line": "x"}, waits=Waits(slot=0.5))
    assert (result.status, result.executed) == ("limited", False)
    with worker(url):
        assert send(made, {"file": str(file), "line": "y"}, "c2").status == "ok"
    assert noted(file) == [["y"]]


async def test_a_call_cancelled_in_the_queue_never_runs(url: str, tmp_path: Path) -> None:
    file = tmp_path / "noted"
    made = queued(far_tools.note, url)
    seen: list[Event] = []
    runner = Runner([made], observers=[seen.append])
    task = asyncio.ensure_future(runner.run(ToolCall("c1", "note", {"file": str(file), "line": "x"})))
    await asyncio.to_thread(wait_until, lambda: enqueued(url) == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (seen[-1].data["result"].status, seen[-1].data["result"].executed) == ("cancelled", False)
    with worker(url):
        assert (await asyncio.to_thread(send, made, {"file": str(file), "line": "y"}, "c2")).status == "ok"
    assert noted(file) == [["y"]]


def enqueued(url: str) -> int:
    try:
        with psycopg.connect(url) as connection:
            row = connection.execute("SELECT count(*) FROM dbos.workflow_status WHERE status = 'ENQUEUED'").fetchone()
            return 0 if row is None else int(row[0])
    except psycopg.errors.UndefinedTable:
        return 0


def test_an_unreachable_database_runs_nothing_and_hides_the_password() -> None:
    made = queued(far_tools.add, "postgresql://somebody:sesame@127.0.0.1:1/nothing")
    result = send(made, {"a": 1})
    assert (result.status, result.executed) == ("limited", False)
    assert "cannot be reached" in (result.error or "") and "sesame" not in (result.error or "")


def test_a_broken_commit_leaves_the_call_unknown(drained: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dbos import DBOSClient
    from sqlalchemy.exc import OperationalError

    file, put = tmp_path / "noted", DBOSClient.enqueue

    def kept_and_broken(*args: Any) -> None:
        put(*args)
        raise OperationalError(None, None, ConnectionError("in the answer to COMMIT"))  # type: ignore[arg-type]

    monkeypatch.setattr(DBOSClient, "enqueue", kept_and_broken)
    result = send(queued(far_tools.note, drained), {"file": str(file), "line": "x"}, "commit")
    assert (result.status, result.executed) == ("unknown", None)
    wait_until(lambda: noted(file) == [["x"]])


def test_a_replayed_order_does_not_run_again(drained: str, tmp_path: Path) -> None:
    file = tmp_path / "noted"
    assert send(queued(far_tools.note, drained), {"file": str(file), "line": "x"}, "replayed").status == "ok"
    with psycopg.connect(drained) as connection:
        rows = connection.execute(
            "SELECT coalesce(i.inputs, s.inputs) FROM dbos.workflow_status s "
            "LEFT JOIN dbos.workflow_input i ON i.workflow_uuid = s.workflow_uuid ORDER BY s.created_at DESC LIMIT 1"
        ).fetchall()
    queue_name, order = json.loads(rows[0][0])["positionalArgs"]
    status = put_in(drained, queue_name, order)
    assert status == "SUCCESS" and noted(file) == [["x"]]


class Touches:
    """A pickle that runs code where it is read."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return (Path.touch, (self.file,))


def put_in(url: str, *args: Any, pickled: bool = False) -> str:
    """An order that was not written by Ferrule; what became of its workflow."""
    from dbos import DBOSClient, DBOSPortableJSONSerializer
    from dbos._serialization import DefaultSerializer

    serializer = DefaultSerializer() if pickled else DBOSPortableJSONSerializer()
    client = DBOSClient(system_database_url=url, serializer=serializer, application_name=VERSION)
    try:
        options: Any = {"queue_name": "far", "workflow_name": WORKFLOWS[False], "app_version": VERSION}
        handle = client.enqueue(options, *args)

        def status() -> str:
            [found] = client.list_workflows(workflow_ids=[handle.workflow_id], load_input=False, load_output=False)
            return str(found.status)

        wait_until(lambda: status() in {"SUCCESS", "ERROR", "CANCELLED"})
        return status()
    finally:
        client.destroy()


def test_a_worker_reads_no_pickled_order(drained: str, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    assert put_in(drained, "far", Touches(touched), pickled=True) == "ERROR"
    assert not touched.exists()


async def test_a_program_reads_no_pickled_answer(url: str, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    made = queued(far_tools.add, url)
    running = asyncio.ensure_future(Runner([made], waits=Waits(slot=BOUND)).run("add", {"a": 1}))
    await asyncio.to_thread(wait_until, lambda: enqueued(url) == 1)
    text = base64.b64encode(pickle.dumps(Touches(touched))).decode()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            'INSERT INTO dbos.streams (workflow_uuid, key, value, serialization, "offset", function_id) '
            "SELECT workflow_uuid, 'ferrule', %s, 'py_pickle', 0, 0 FROM dbos.workflow_status",
            [text],
        )
        connection.execute("NOTIFY dbos_streams_channel")
    result = await running
    assert (result.status, result.executed, result.success) == ("unknown", None, False)
    assert not touched.exists()


def test_encrypted_values_are_nowhere_in_the_database(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FERRULE_ENCRYPT_KEY", os.urandom(32).hex())
    limits = {"concurrency": 16, "per_principal": 2}
    bound = tool(far_tools.guarded, isolation=dbos.queue("far", url=url, **limits)).bind(token="sesame")
    with worker(url, **limits):
        result = send(bound, {"path": "the door"}, context=ToolContext(session="s", principal="ann@bank.example"))
    assert result.output == "the door with sesame"
    with psycopg.connect(url) as connection:
        tables = connection.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'dbos'")
        texts = [str(connection.execute(f'SELECT * FROM dbos."{name}"').fetchall()) for (name,) in tables.fetchall()]
    assert not [text for text in ("sesame", "the door", "ann@bank.example") if text in "".join(texts)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 2, "per_worker": 3}, "per_worker=3"),
        ({"rate": 20}, r"rate.*\(20, 1.0\)"),
        ({"poll": 0}, "poll"),
    ],
)
def test_impossible_limits_are_refused(options: Any, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        dbos.queue("far", **options)
