"""The processes of isolated tools: what crosses, what ends them, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import isolated_tools as tools
import pytest
import uvloop
from pydantic import SecretStr

import probe
from ferrule import (
    DefinitionError,
    Media,
    Runner,
    Text,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    ToolResult,
    build_tool,
    tool,
)
from ferrule.errors import NotStartedError, RemoteError, ToolTimeoutError, WorkerDiedError
from ferrule.executors.process import Recipe
from ferrule.executors.process.order import Order
from ferrule.executors.process.pool import Job, WorkerPool, shared_pool
from ferrule.executors.process.transfer import Transfer
from ferrule.executors.threads import Raised
from waits import wait_until
from watched import BOUND, go

HERE = str(Path(__file__).parent)
BUFFERED = {"PYTHONUNBUFFERED": ""}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    made = WorkerPool(4)
    yield made
    made.close()


@pytest.fixture
def own_pool() -> Iterator[WorkerPool]:
    made = WorkerPool(1)
    yield made
    made.close()


def order(
    handler: Any,
    arguments: Any = None,
    *,
    context: ToolContext | None = None,
    values: Any = None,
    transfer: Transfer = "json",
    remaining: float | None = None,
    **options: Any,
) -> Order:
    made = handler if isinstance(handler, Tool) else tool(handler, **options)
    made = made.replace(isolation="process")
    call = ToolCall("c1", made.name, json.dumps(arguments or {}), parent="p1")
    return Order(Recipe(made, transfer), call, (context or ToolContext()).fields, values, remaining, key="k1")


async def outcome(pool: WorkerPool, handler: Any, arguments: Any = None, **options: Any) -> Any:
    on_progress = options.pop("on_progress", None)
    return await ended(pool.submit(order(handler, arguments, **options), on_progress))


async def ended(job: Job) -> Any:
    """What the handler returned, or `Raised`, also with what the pool says of it."""
    try:
        return await job.future
    except (NotStartedError, ToolTimeoutError, WorkerDiedError) as error:
        return Raised(error)


def value(pool: WorkerPool, handler: Any, arguments: Any = None, **options: Any) -> Any:
    found = go(outcome(pool, handler, arguments, **options))
    if isinstance(found, Raised):
        raise found.error
    return found


def error(pool: WorkerPool, handler: Any, arguments: Any = None, **options: Any) -> BaseException:
    found = go(outcome(pool, handler, arguments, **options))
    assert isinstance(found, Raised), found
    return found.error


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def noted(path: Path) -> list[int]:
    """The process ids that a handler has written."""
    wait_until(path.exists)
    return [int(line) for line in path.read_text().split()]


async def started(pool: WorkerPool, handler: Any, path: Path) -> tuple[Job, list[int]]:
    job = pool.submit(order(handler, {"path": str(path)}))
    return job, await asyncio.to_thread(noted, path)


# -- what crosses ----------------------------------------------------------------------------------------------------


def test_sync_and_async_functions_run_in_another_process(pool: WorkerPool) -> None:
    assert value(pool, tools.add, {"a": 1}) == 3
    assert value(pool, tools.add_async, {"a": 1, "b": 5}) == 6
    assert value(pool, tools.pid) not in {os.getpid(), os.getppid()}


def test_a_warm_worker_is_used_again(own_pool: WorkerPool) -> None:
    assert len({value(own_pool, tools.pid) for _ in range(5)}) <= 2


def test_a_decorated_function_is_found_through_the_tool_that_it_became(pool: WorkerPool) -> None:
    assert value(pool, tools.decorated, {"a": 4}) == 8
    assert value(pool, tools.decorated.replace(name="twice"), {"a": 5}) == 10


def test_the_handler_gets_objects_and_not_their_json(pool: WorkerPool) -> None:
    given = {"item": {"name": "pen", "count": 2}, "when": "2024-05-06"}
    assert value(pool, tools.describe, given) == ["Item", "pen", "date", "2024-05-06"]


def test_every_way_of_writing_a_tool_can_be_isolated(pool: WorkerPool) -> None:
    assert value(pool, tools.of_model, {"name": "pen", "count": 1}, input_schema=tools.Item) == "Item pen"
    assert value(pool, Tool("greet", tools.Greet), {"name": "Ada"}) == "hello Ada"
    assert value(pool, tools.Kept.shout, {"text": "a"}) == "Kept: A"
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    built = build_tool({"name": "built", "input_schema": schema, "execute": tools.execute})
    result = value(pool, built, {"n": 1}, context=ToolContext(session="s1"))
    assert isinstance(result, ToolResult) and result.output == [{"n": 1}, "s1"]


def test_bound_and_private_parameters_come_with_the_judged_text(pool: WorkerPool) -> None:
    for made in (tool(tools.add).bind(b=40), tool(tools.add, private=("b",)).bind(b=40).replace(name="plus")):
        text = made.handling.parameters.validate_with_repairs(made.name, '{"a": 2}')[1]
        assert value(pool, made, json.loads(text)) == 42


def test_arguments_that_do_not_fit_in_the_worker_start_nothing(pool: WorkerPool, tmp_path: Path) -> None:
    wrong = error(pool, tools.touches, {"path": 3})
    assert isinstance(wrong, NotStartedError) and "path" in str(wrong)


def test_values_that_json_cannot_hold_cross_pickled_by_choice(pool: WorkerPool) -> None:
    values = {"value": {date(2024, 1, 1), 1j}}
    assert "datetime.date(2024, 1, 1)" in value(pool, tools.takes_any, {"value": 1}, values=values, transfer="pickle")
    assert value(pool, tools.gives, {"what": "complex"}, values={"what": "complex"}, transfer="pickle") == 1j
    item = value(pool, tools.gives, {"what": "item"}, values={"what": "item"}, transfer="pickle")
    assert type(item) is tools.Item
    with pytest.raises(NotStartedError, match="its arguments cannot be pickled"):
        order(tools.takes_any, {"value": 1}, values={"value": threading.Lock()}, transfer="pickle")


def test_results_of_the_kernels_own_kinds_arrive_as_they_were(pool: WorkerPool) -> None:
    gives = partial(value, pool, tools.gives)
    assert gives({"what": "bytes"}) == b"\xff\x00"
    assert gives({"what": "surrogate"}) == "\ufffd"  # as UTF-8 can hold it, and so a result
    assert gives({"what": "text"}) == Text("a")
    assert gives({"what": "media"}) == [Text("a"), Media("image", b"\xff", "image/png", "s3://b/n", "n", fetch=True)]
    assert gives({"what": "item"}) == {"name": "i", "count": 1}
    result = gives({"what": "result"})
    assert (result.output, dict(result.metadata), result.status) == ([1, "fe"], {"m": 1}, "ok")
    assert result.content == (Media("file", b"\x00", "a/b"),)
    failed = gives({"what": "error"})
    assert (failed.error, failed.status, failed.text) == ("went wrong", "failed", "went wrong")


def test_a_result_without_a_json_form_arrives_as_the_text_that_it_is_anywhere(pool: WorkerPool) -> None:
    assert value(pool, tools.gives, {"what": "object"}).startswith("<object object at ")
    assert value(pool, tools.add, {"a": 1}) == 3


@pytest.mark.parametrize("transfer", ["json", "pickle"])
def test_five_megabytes_cross_both_ways(pool: WorkerPool, transfer: Transfer) -> None:
    text = "ü€😀x" * 500_000
    assert value(pool, tools.echo, {"text": text}, values={"text": text}, transfer=transfer) == text


async def test_submitting_a_large_call_does_not_wait_for_the_worker_to_read_it(pool: WorkerPool) -> None:

    await outcome(pool, tools.add, {"a": 1})
    large = order(tools.echo, {"text": "x" * 20_000_000})
    pids = set(probe.worker_pids(pool))
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        job = pool.submit(large)  # waited for somebody who is stopped, it would not end
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    assert len(await job.future) == 20_000_000


def test_what_a_handler_prints_does_not_disturb_the_line(pool: WorkerPool, capfd: pytest.CaptureFixture[str]) -> None:
    made = WorkerPool(1)
    try:
        assert value(made, tools.prints, {"text": "said"}) == ""
        wait_until(lambda: made.idle_count)
    finally:
        made.close()
    captured = capfd.readouterr()
    assert captured.out.splitlines() == ["said", "raw", "to the end"] and "said" in captured.err


def test_the_handler_is_where_the_program_is(pool: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value(pool, tools.wander, {"place": "/"})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FERRULE_TEST", "set after the workers were started")
    monkeypatch.syspath_prepend("/nowhere/else")
    sys.path.append("/the/last")
    try:
        for _ in range(3):
            found = value(pool, tools.where)
            assert found == [str(tmp_path), "set after the workers were started", "/the/last"]
    finally:
        sys.path.remove("/the/last")


# -- the context -----------------------------------------------------------------------------------------------------


def test_the_context_crosses_without_deps(pool: WorkerPool) -> None:
    given = ToolContext(
        session="s1",
        principal="ada",
        working_directory="/tmp",
        deps=object(),
        metadata={"k": [1]},
        secrets={"token": SecretStr("t")},
    )
    named = Tool("named", tools.context, context={"own": 1}, read_only=True)
    found = value(pool, named, context=given, remaining=30)
    assert 25 < found.pop("remaining") <= 30
    assert found == {
        "session": "s1",
        "principal": "ada",
        "directory": "/tmp",
        "deps": None,
        "metadata": {"k": [1]},
        "secret": "t",
        "call": ["c1", "named", {}, "p1"],
        "traits": ["named", True],
        "own": {"own": 1},
        "running": True,
    }
    bare = value(pool, tools.context)
    assert (bare["remaining"], bare["session"], bare["directory"], bare["own"]) == (None, None, os.getcwd(), {})


def test_what_of_the_context_cannot_cross_is_missed_only_by_who_asks(pool: WorkerPool) -> None:
    given = ToolContext(metadata={"request": object(), "fine": 1})
    assert value(pool, tools.metadata, {"key": "fine"}, context=given) == 1
    missing = error(pool, tools.metadata, {"key": "request"}, context=given)
    assert isinstance(missing, KeyError) and "did not come to the isolated process" in str(missing)


def test_helpers_find_the_tools_own_context_with_what_only_its_module_can_make(pool: WorkerPool) -> None:
    assert value(pool, tools.own_context) == ["object", "module"]
    changed = tools.own_context.replace(context={"db": object(), "shared": "changed"})
    assert value(pool, changed) == ["object", "changed"]


def test_progress_comes_back_in_order_and_not_after_the_end(own_pool: WorkerPool) -> None:
    told: list[Any] = []
    assert value(own_pool, tools.progress, on_progress=told.append) == "done"
    assert told == [{"done": n, "total": 3, "message": text} for n, text in ((1, "one"), (2, "two"))]
    value(own_pool, tools.late_progress, on_progress=told.append)
    assert len(told) == 2


def test_a_call_of_no_runner_has_no_other_tools(pool: WorkerPool) -> None:
    wrong = error(pool, tools.calls_another)
    assert isinstance(wrong, ToolError) and "works in a call of a runner" in str(wrong)


# -- what is raised --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "made", "text"),
    [
        ("value", ValueError, "no such value"),
        ("key", KeyError, "'k'"),
        ("file", FileNotFoundError, "[Errno 2] No such file or directory: '/no/such/file'"),
        ("ferrule", ToolError, "come back later"),
    ],
)
def test_built_in_exceptions_and_ferrules_own_come_back_as_themselves(
    pool: WorkerPool, kind: str, made: type, text: str
) -> None:
    raised: Any = error(pool, tools.raises, {"kind": kind})
    assert type(raised) is made and str(raised) == text
    assert "isolated_tools.py" in "".join(traceback.format_exception(raised))
    if kind == "file":
        assert (raised.errno, raised.filename) == (2, "/no/such/file")
    if kind == "ferrule":
        assert (raised.retry_after, raised.result) == (7, None)


@pytest.mark.parametrize(
    ("kind", "is_a", "text"),
    [
        ("stock", tools.OutOfStock, "none left"),
        ("stock", ToolError, "none left"),
        ("coded", tools.Coded, "code 7: so"),
        ("unpicklable", tools.Unpicklable, "1 and 2"),
        ("exit", SystemExit, "3"),
        ("interrupt", KeyboardInterrupt, ""),
        ("unicode", UnicodeDecodeError, "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        ("group", ExceptionGroup, "several (1 sub-exception)"),
        ("local", LookupError, "of no module"),
        ("nested", tools.Coded, "code 7: so"),
    ],
)
def test_other_exceptions_come_back_as_remote_errors_with_the_names_of_their_classes(
    pool: WorkerPool, kind: str, is_a: type[BaseException], text: str
) -> None:
    raised = error(pool, tools.raises, {"kind": kind})
    assert isinstance(raised, RemoteError) and str(raised) == text
    assert raised.matches((OSError, is_a)) and not raised.matches((OSError, TypeError))
    assert raised.kinds[-1] == "builtins.BaseException"
    assert "in raises" in raised.traceback and raised.traceback in "".join(traceback.format_exception(raised))


def test_a_remote_error_has_the_name_of_its_class_and_when_to_try_again(pool: WorkerPool) -> None:
    busy = error(pool, tools.raises, {"kind": "busy"})
    assert isinstance(busy, RemoteError) and (busy.name, busy.retry_after) == ("OutOfStock", 9)
    assert busy.kinds[:2] == ("isolated_tools.OutOfStock", "ferrule.errors.ToolError")
    local = error(pool, tools.raises, {"kind": "local"})
    assert isinstance(local, RemoteError) and local.name == "Local" and local.retry_after is None


def test_leaving_in_a_handler_ends_the_call_and_not_the_worker(own_pool: WorkerPool) -> None:
    before = value(own_pool, tools.pid)
    exited = error(own_pool, tools.exits_async)
    assert isinstance(exited, RemoteError) and exited.name == "SystemExit"
    for kind in ("exit", "interrupt"):
        error(own_pool, tools.raises, {"kind": kind})
    assert before in probe.worker_pids(own_pool)


def test_tasks_that_a_handler_leaves_behind_end_with_its_call(own_pool: WorkerPool) -> None:
    assert value(own_pool, tools.leaves_a_task) == "done"
    assert value(own_pool, tools.left_tasks) in ([True], [])


def test_a_module_that_cannot_be_imported_there_starts_nothing(
    pool: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "only_here.py"
    file.write_text(
        "import os\nif os.path.exists(__file__ + '.gone'): raise ImportError('gone')\ndef f() -> int: return 1"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    only_here = __import__("only_here")
    try:
        made = tool(only_here.f)
        Path(f"{file}.gone").touch()
        wrong = error(pool, made)
        assert isinstance(wrong, NotStartedError) and "gone" in str(wrong)
    finally:
        del sys.modules["only_here"]


def test_a_module_that_was_loaded_from_a_file_is_loaded_from_it_there(pool: WorkerPool, tmp_path: Path) -> None:
    file = tmp_path / "loaded.py"
    file.write_text("def f() -> str: return __name__")
    name = f"file:{file}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        assert value(pool, module.f) == name
    finally:
        del sys.modules[name]


# -- what can be isolated --------------------------------------------------------------------------------------------


def test_functions_that_no_other_process_finds_are_refused_with_the_way_out() -> None:
    def local() -> None: ...

    unnamed = lambda: None  # noqa: E731
    script: dict[str, Any] = {"__name__": "__main__"}
    exec("def in_script() -> None: ...", script)
    for handler, match in (
        (local, "top level"),
        (unnamed, "lambda"),
        (script["in_script"], "a module of its own"),
        (tools.Kept().bound, "which cannot find"),
        (partial(tools.add, a=1), "which cannot find"),
    ):
        with pytest.raises(DefinitionError, match=match):
            Recipe(tool(handler, name="some"))


def test_a_function_whose_name_leads_to_another_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = tool(tools.echo)
    monkeypatch.setattr(tools, "echo", tools.add)
    with pytest.raises(DefinitionError, match=r"isolated_tools:echo would be <function add"):
        Recipe(made)
    monkeypatch.delattr(tools, "echo")
    with pytest.raises(DefinitionError, match="would be None"):
        Recipe(made)


# -- what ends a worker ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("handler", "arguments", "why"),
    [
        (tools.leaves, {"code": 3}, "exit code 3"),
        (tools.crashes, {}, "SIGSEGV"),
        (tools.closes_everything, {}, "closed its connection"),
    ],
)
async def test_a_crash_fails_its_own_call_only(own_pool: WorkerPool, handler: Any, arguments: Any, why: str) -> None:

    crashed = own_pool.submit(order(handler, arguments))
    behind = [own_pool.submit(order(tools.add, {"a": n})) for n in range(3)]
    died = await ended(crashed)
    assert isinstance(died, Raised) and isinstance(died.error, WorkerDiedError) and why in str(died.error)
    assert [await job.future for job in behind] == [2, 3, 4]


@pytest.mark.parametrize("handler", [tools.ignores_sigterm, tools.holds_the_gil, tools.has_children, tools.waits_async])
async def test_a_kill_ends_the_whole_group(pool: WorkerPool, tmp_path: Path, handler: Any) -> None:

    job, pids = await started(pool, handler, tmp_path / "pids")
    assert job.pid == pids[0] and all(map(lives, pids))
    assert job.kill() is False
    await asyncio.to_thread(wait_until, lambda: not any(map(lives, pids)))
    assert isinstance((await ended(job)).error, ToolTimeoutError)
    assert job.kill() is False
    assert await outcome(pool, tools.add, {"a": 1}) == 3


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux tells who started whom")


@needs_proc
@pytest.mark.parametrize("then", ["waits", "dies"])
async def test_what_went_to_a_group_or_session_of_its_own_ends_too(pool: WorkerPool, tmp_path: Path, then: str) -> None:

    path = tmp_path / "pids"
    job = pool.submit(order(tools.goes_elsewhere, {"path": str(path), "then": then}))
    pids = await asyncio.to_thread(noted, path)
    assert len(pids) == 5
    if then == "waits":
        assert all(map(lives, pids))
        job.kill()
    await asyncio.to_thread(wait_until, lambda: not any(map(lives, pids)))
    assert isinstance((await ended(job)).error, ToolTimeoutError if then == "waits" else WorkerDiedError)


@needs_proc
def test_what_went_to_a_session_of_its_own_does_not_survive_a_program_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "pids"
    with program("asyncio.run(call(tools.goes_elsewhere, path=sys.argv[1]))", str(path)) as parent:
        pids = noted(path)
        parent.kill()
        parent.wait(BOUND)
        wait_until(lambda: not any(map(lives, pids)))


def busy(condition: Callable[[], Any]) -> float:
    """Let nothing else run on this thread until it is true; when that is."""
    deadline = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
    return time.monotonic()


async def test_what_is_late_is_killed_while_the_loop_is_blocked(own_pool: WorkerPool, tmp_path: Path) -> None:

    await outcome(own_pool, tools.add, {"a": 1})
    for seconds in (0.3, 0.2, 30):  # what is watched for next comes before what was watched for, and after it
        path = tmp_path / str(seconds)
        job = own_pool.submit(order(tools.waits, {"path": str(path)}, remaining=seconds))
        (pid,) = await asyncio.to_thread(noted, path)
        await job.start_time
        deadline = job.deadline
        assert deadline is not None
        if seconds == 30:
            job.kill()
        else:
            assert deadline <= busy(lambda pid=pid: not lives(pid))
        assert isinstance((await ended(job)).error, ToolTimeoutError)


async def test_a_kill_at_the_deadline_logs_no_traceback_though_the_loop_was_blocked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker's thread kills it then, and the loop hears of that before it hears of the deadline."""
    caplog.set_level(logging.DEBUG)

    async def main() -> ToolResult:
        path = tmp_path / "pid"
        runner = Runner([tool(tools.waits, isolation="process")], timeout=1)
        call = asyncio.ensure_future(runner.run("waits", {"path": str(path)}))
        (pid,) = await asyncio.to_thread(noted, path)
        (state,) = probe.live_calls(runner)
        while state.attempt.deadline.at == inf:  # it is not told yet that the handler has begun
            await asyncio.sleep(0)
        for _ in range(5):  # who waits for the deadline goes by the one that was moved
            await asyncio.sleep(0)
        busy(lambda: not lives(pid) and not probe.workers_busy(shared_pool()))
        return await call

    assert (await main()).status == "timeout"
    assert [record for record in caplog.records if record.exc_info] == []


async def test_a_call_that_waits_for_a_process_has_all_its_time_once_it_begins(
    own_pool: WorkerPool, tmp_path: Path
) -> None:

    first, _ = await started(own_pool, tools.waits, tmp_path / "pid")
    second = own_pool.submit(order(tools.add, {"a": 1}, remaining=BOUND))
    assert second.deadline is None and not second.start_time.done()
    free = time.monotonic()
    first.kill()
    await second.start_time
    assert second.deadline is not None and second.deadline >= free + BOUND
    assert await second.future == 3
    assert isinstance((await ended(first)).error, ToolTimeoutError)


def test_what_a_crashed_handler_had_started_ends_with_it(pool: WorkerPool, tmp_path: Path) -> None:
    path = tmp_path / "pids"
    assert isinstance(error(pool, tools.dies_beside_its_child, {"path": str(path)}), WorkerDiedError)
    children = noted(path)
    wait_until(lambda: not any(map(lives, children)))


def test_a_worker_that_dies_while_it_is_idle_is_replaced_unnoticed(own_pool: WorkerPool) -> None:
    for _ in range(3):
        assert value(own_pool, tools.add, {"a": 1}) == 3
        for pid in wait_until(lambda: probe.worker_pids(own_pool)):
            os.kill(pid, signal.SIGKILL)
        assert value(own_pool, tools.add, {"a": 2}) == 4


async def test_a_worker_whose_supervisor_is_killed_does_not_go_on_alone(pool: WorkerPool, tmp_path: Path) -> None:

    job, (pid,) = await started(pool, tools.waits, tmp_path / "pid")
    supervisor = int(Path(f"/proc/{pid}/stat").read_text().split()[3])
    os.kill(supervisor, signal.SIGKILL)
    assert isinstance((await ended(job)).error, WorkerDiedError)


@needs_proc
def test_what_a_handler_returned_before_its_supervisor_was_killed_is_not_lost(pool: WorkerPool) -> None:
    def reads_on_when_it_is_dead(progress: Any) -> None:
        wait_until(lambda: not runs(progress["done"]))

    assert value(pool, tools.kills_its_supervisor, on_progress=reads_on_when_it_is_dead) == "done"


def runs(pid: int) -> bool:
    """Whether it lives; one that has ended stays until the first process of the system collects it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_the_workers_of_a_worker_end_with_it(pool: WorkerPool, tmp_path: Path) -> None:

    job, (inner,) = await started(pool, tools.has_an_isolated_call, tmp_path / "pid")
    assert job.pid != inner and lives(inner)
    job.kill()
    await asyncio.to_thread(wait_until, lambda: not lives(inner))


def test_a_module_that_warms_the_pool_when_imported_starts_no_workers_of_workers(pool: WorkerPool) -> None:
    assert value(pool, tools.own_workers) == 0


def test_a_handler_has_no_children_but_its_own(pool: WorkerPool) -> None:
    assert value(pool, tools.counts_its_children) == 0


async def test_a_queued_call_that_is_killed_never_runs(own_pool: WorkerPool, tmp_path: Path) -> None:

    job, _ = await started(own_pool, tools.waits, tmp_path / "pid")
    queued = own_pool.submit(order(tools.touches, {"path": str(tmp_path / "touched")}))
    after = own_pool.submit(order(tools.touches, {"path": str(tmp_path / "after")}))
    await asyncio.to_thread(wait_until, lambda: own_pool.idle_count)  # the spare, which is no more than that
    assert queued.pid is None and after.pid is None
    assert queued.kill() is True
    assert isinstance((await ended(queued)).error, NotStartedError)
    job.kill()
    await after.future
    assert (tmp_path / "after").exists() and not (tmp_path / "touched").exists()


async def test_calls_beyond_the_bound_wait_in_order(tmp_path: Path) -> None:
    pool = WorkerPool(2)

    async def main() -> None:
        order_of_ends: list[int] = []
        jobs = [pool.submit(order(tools.naps, {"seconds": 0.01})) for _ in range(12)]
        for number, job in enumerate(jobs):
            job.future.add_done_callback(lambda _, number=number: order_of_ends.append(number))
        pids = {await job.future for job in jobs}
        assert len(pids) <= 3 and len(probe.worker_pids(pool)) <= 3
        assert all(abs(place - number) <= 2 for place, number in enumerate(order_of_ends))

    try:
        await main()
    finally:
        pool.close()


def test_idle_workers_beyond_one_end_after_a_while() -> None:
    pool = WorkerPool(3, idle_seconds=0.05)
    try:
        pool.warm(3)
        wait_until(lambda: len(probe.worker_pids(pool)) == 3)
        wait_until(lambda: len(probe.worker_pids(pool)) == 1)
        assert value(pool, tools.add, {"a": 1}) == 3
    finally:
        pool.close()


def test_a_module_that_kills_whoever_imports_it_ahead_stops_no_other_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deadly.py").write_text(
        "import os\nif os.getpid() != int(os.environ['TEST_PID']): os._exit(9)\ndef f() -> None: ..."
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TEST_PID", str(os.getpid()))
    deadly = __import__("deadly")
    pool = WorkerPool(2)
    try:
        pool.warm(1, [Recipe(tool(deadly.f))])
        assert value(pool, tools.add, {"a": 1}) == 3
        wrong = error(pool, deadly.f)
        assert isinstance(wrong, NotStartedError) and "before the handler began: it left with exit code 9" in str(wrong)
    finally:
        pool.close()
        del sys.modules["deadly"]


def test_where_no_process_can_be_started_the_call_fails_and_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    pool = WorkerPool(1)
    wrong = error(pool, tools.add, {"a": 1})
    assert isinstance(wrong, NotStartedError) and "FileNotFoundError" in str(wrong)
    pool.close()


# -- programs --------------------------------------------------------------------------------------------------------


def test_two_threads_with_loops_of_their_own_share_the_pool(pool: WorkerPool) -> None:
    found: list[list[int]] = []

    async def many(start: int) -> list[int]:
        return list(await asyncio.gather(*(outcome(pool, tools.add, {"a": start + n}) for n in range(30))))

    threads = [threading.Thread(target=lambda s=s: found.append(go(many(s)))) for s in (0, 1000)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(BOUND)
    assert sorted(found) == [[start + n + 2 for n in range(30)] for start in (0, 1000)]


def test_it_works_under_uvloop(pool: WorkerPool, tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(BOUND):
            assert await outcome(pool, tools.echo, {"text": "x" * 1_000_000}) == "x" * 1_000_000
            job, _ = await started(pool, tools.waits, tmp_path / "pid")
            job.kill()
            assert isinstance((await ended(job)).error, ToolTimeoutError)

    uvloop.run(main())


def test_a_forked_child_has_workers_of_its_own_and_keeps_none_alive(pool: WorkerPool, tmp_path: Path) -> None:
    value(pool, tools.add, {"a": 1})
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            assert value(shared_pool(), tools.add, {"a": 1}) == 3
            os.write(writing, b"1")
            shared_pool().close()
        finally:
            os._exit(0)
    os.close(writing)
    assert os.read(reading, 1) == b"1"
    os.close(reading)
    os.waitpid(child, 0)
    assert value(pool, tools.add, {"a": 1}) == 3


def program(text: str, *arguments: str, stdin: int | None = None) -> subprocess.Popen[str]:
    """A program of its own, which has `tools`, `order` and `pool`."""
    head = """
        import asyncio, atexit, os, signal, sys, threading
        import isolated_tools as tools
        from ferrule import ToolCall, ToolContext, tool
        from ferrule.executors.process import Recipe
        from ferrule.executors.process.order import Order
        from ferrule.executors.process.pool import shared_pool
        import json
        pool = shared_pool()
        def order(handler, arguments):
            made = tool(handler)
            call = ToolCall("c1", made.name, json.dumps(arguments))
            return Order(Recipe(made), call, ToolContext().fields, None, None, key="k1")
        async def call(handler, **arguments):
            return await pool.submit(order(handler, arguments)).future
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(head) + textwrap.dedent(text), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")]), **BUFFERED},
        stdin=stdin,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("handler", ["has_children", "holds_the_gil"])
def test_no_process_survives_a_program_that_is_killed(tmp_path: Path, handler: str) -> None:
    path = tmp_path / "pids"
    with program(f"asyncio.run(call(tools.{handler}, path=sys.argv[1]))", str(path)) as parent:
        pids = noted(path)
        parent.kill()
        parent.wait(BOUND)
        wait_until(lambda: not any(map(lives, pids)))
        assert parent.stdout is not None and parent.stdout.read() == ""


def test_no_process_survives_a_program_that_is_killed_while_a_forked_child_of_it_lives(tmp_path: Path) -> None:
    path = tmp_path / "pids"
    text = """
        async def main():
            job = pool.submit(order(tools.waits, {"path": sys.argv[1]}))
            while not os.path.exists(sys.argv[1]):
                await asyncio.sleep(0.01)
            if os.fork() == 0:
                print(os.getpid(), flush=True)
                signal.pause()
            await job.future
        asyncio.run(main())
    """
    with program(text, str(path)) as parent:
        (pid,) = noted(path)
        assert parent.stdout is not None
        forked = int(parent.stdout.readline())
        parent.kill()
        parent.wait(BOUND)
        try:
            wait_until(lambda: not lives(pid))
            assert lives(forked)
        finally:
            os.kill(forked, signal.SIGKILL)


def test_a_program_ends_while_a_call_runs_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pids"
    text = """
        thread = threading.Thread(target=lambda: asyncio.run(call(tools.waits, path=sys.argv[1])), daemon=True)
        thread.start()
        while not os.path.exists(sys.argv[1]):
            thread.join(0.01)
        print("left")
    """
    with program(text, str(path)) as parent:
        out, _ = parent.communicate(timeout=BOUND)
        assert (out, parent.returncode) == ("left\n", 0)
        (pid,) = noted(path)
        wait_until(lambda: not lives(pid))


def test_isolated_calls_work_while_the_program_is_being_shut_down() -> None:
    text = """
        assert asyncio.run(call(tools.add, a=1)) == 3
        atexit.register(lambda: print(asyncio.run(call(tools.add, a=2))))
        def later():
            threading.main_thread().join()
            print(asyncio.run(call(tools.add, a=3)), flush=True)
        threading.Thread(target=later).start()
    """
    with program(text) as parent:
        out, _ = parent.communicate(timeout=BOUND)
        assert (out, parent.returncode) == ("5\n4\n", 0)


def test_nothing_of_the_programs_main_is_run_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import asyncio, sys\nprint('top')\nsys.path.insert(0, sys.argv[1])\nimport isolated_tools as tools\n"
        "from ferrule import ToolCall, ToolContext, tool\nfrom ferrule.executors.process import Recipe\n"
        "from ferrule.executors.process.order import Order\nfrom ferrule.executors.process.pool import shared_pool\n"
        "recipe = Recipe(tool(tools.add))\n"
        "async def main():\n"
        "    made = Order(recipe, ToolCall('c', 'add', '{\"a\": 1}'), ToolContext().fields, None, None, key='k1')\n"
        "    print(await shared_pool().submit(made).future)\n"
        "asyncio.run(main())\n"
    )
    ended = subprocess.run([sys.executable, script, HERE], capture_output=True, text=True, timeout=BOUND)
    assert (ended.stdout, ended.stderr) == ("top\n3\n", "")


def test_what_is_typed_is_the_programs_and_not_the_handlers() -> None:
    text = """
        asyncio.run(call(tools.prints, text="said"))
        print(sys.stdin.read())
    """
    with program(text, stdin=subprocess.PIPE) as parent:
        out, _ = parent.communicate("typed", timeout=BOUND)
        assert out == "said\nraw\nto the end" + "typed\n"


def test_what_a_killed_handler_has_printed_is_not_lost(tmp_path: Path) -> None:
    text = """
        async def main():
            job = pool.submit(order(tools.prints_and_waits, {"path": sys.argv[1]}))
            while not os.path.exists(sys.argv[1]):
                await asyncio.sleep(0.01)
            job.kill()
            await job.future
        asyncio.run(main())
    """
    with program(text, str(tmp_path / "pid")) as parent:
        assert parent.communicate(timeout=BOUND)[0] == "said\n"
