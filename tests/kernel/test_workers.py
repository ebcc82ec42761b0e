"""The worker processes of isolated tools."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import isolated_tools as tools
import pytest
from pydantic import SecretStr

import probe
from ferrule import DefinitionError, Media, Text, Tool, ToolCall, ToolContext, ToolError, build_tool, tool
from ferrule.errors import NotStartedError, RemoteError, ToolTimeoutError, WorkerDiedError
from ferrule.executors.process import Recipe
from ferrule.executors.process.order import Order
from ferrule.executors.process.pool import Job, WorkerPool
from ferrule.executors.process.transfer import Transfer
from ferrule.executors.threads import Raised
from waits import BOUND, wait_until

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
    return await wait_for(pool.submit(order(handler, arguments, **options), on_progress))


async def wait_for(job: Job) -> Any:
    """Return what the handler returned, or `Raised` with its exception or the pool's."""
    try:
        return await job.future
    except (NotStartedError, ToolTimeoutError, WorkerDiedError) as error:
        return Raised(error)


async def value(pool: WorkerPool, handler: Any, arguments: Any = None, **options: Any) -> Any:
    found = await outcome(pool, handler, arguments, **options)
    if isinstance(found, Raised):
        raise found.error
    return found


async def error(pool: WorkerPool, handler: Any, arguments: Any = None, **options: Any) -> Any:
    found = await outcome(pool, handler, arguments, **options)
    assert isinstance(found, Raised), found
    return found.error


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def read_pids(path: Path) -> list[int]:
    """Return the process ids that a handler has written."""
    wait_until(path.exists)
    return [int(line) for line in path.read_text().split()]


async def wait_until_dead(*pids: int) -> None:
    await asyncio.to_thread(wait_until, lambda: not any(map(lives, pids)))


async def start(pool: WorkerPool, handler: Any, path: Path, **arguments: Any) -> tuple[Job, list[int]]:
    job = pool.submit(order(handler, {"path": str(path), **arguments}))
    return job, await asyncio.to_thread(read_pids, path)


async def test_every_kind_of_tool_can_be_isolated(pool: WorkerPool) -> None:
    assert await value(pool, tools.decorated.replace(name="twice"), {"a": 5}) == 10
    assert await value(pool, tools.of_model, {"name": "pen", "count": 1}, input_schema=tools.Item) == "Item pen"
    assert await value(pool, Tool("greet", tools.Greet), {"name": "Ada"}) == "hello Ada"
    assert await value(pool, tools.Kept.shout, {"text": "a"}) == "Kept: A"
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    built = build_tool({"name": "built", "input_schema": schema, "execute": tools.execute})
    result = await value(pool, built, {"n": 1}, context=ToolContext(session="s1"))
    assert result.output == [{"n": 1}, "s1"]


async def test_bound_and_private_parameters_come_with_the_judged_text(pool: WorkerPool) -> None:
    for made in (tool(tools.add).bind(b=40), tool(tools.add, private=("b",)).bind(b=40).replace(name="plus")):
        text = made.handling.parameters.validate_with_repairs(made.name, '{"a": 2}')[1]
        assert await value(pool, made, json.loads(text)) == 42


async def test_results_arrive_as_they_were(pool: WorkerPool) -> None:
    def gives(what: str) -> Any:
        return value(pool, tools.gives, {"what": what})

    assert await gives("bytes") == b"\xff\x00"
    assert await gives("surrogate") == "\ufffd"  # as UTF-8 can hold it
    assert await gives("text") == Text("a")
    media = Media("image", b"\xff", "image/png", "s3://b/n", "n", fetch=True)
    assert await gives("media") == [Text("a"), media]
    assert await gives("item") == {"name": "i", "count": 1}
    result = await gives("result")
    assert (result.output, dict(result.metadata), result.status) == ([1, "fe"], {"m": 1}, "ok")
    assert result.content == (Media("file", b"\x00", "a/b"),)
    failed = await gives("error")
    assert (failed.error, failed.status, failed.text) == ("went wrong", "failed", "went wrong")


def test_a_value_that_cannot_be_pickled_is_not_sent() -> None:
    with pytest.raises(NotStartedError, match="its arguments cannot be pickled"):
        order(tools.echo, {"text": "a"}, values={"text": threading.Lock()}, transfer="pickle")


async def test_a_call_without_a_runner_has_no_other_tools(pool: WorkerPool) -> None:
    wrong = await error(pool, tools.asks_plainly, {"name": "add"})
    assert isinstance(wrong, ToolError) and "works in a call of a runner" in str(wrong)


async def test_submitting_a_large_call_does_not_wait_until_it_is_read(pool: WorkerPool) -> None:
    await outcome(pool, tools.add, {"a": 1})
    pids = probe.worker_pids(pool)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:  # waited for somebody who is stopped, it would not end
        job = pool.submit(order(tools.echo, {"text": "x" * 20_000_000}))
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    assert len(await job.future) == 20_000_000


async def test_a_worker_has_the_folder_environment_and_path_of_the_program(
    pool: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await value(pool, tools.wander, {"place": "/"})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FERRULE_TEST", "set after the workers were started")
    monkeypatch.setattr(sys, "path", ["/nowhere/else", *sys.path, "/the/last"])
    for _ in range(3):
        assert await value(pool, tools.where) == [str(tmp_path), "set after the workers were started", "/the/last"]


async def test_the_context_crosses_without_deps(pool: WorkerPool) -> None:
    fields = {"session": "s1", "principal": "ada", "working_directory": "/tmp", "metadata": {"k": [1]}}
    given = ToolContext(**fields, deps=object(), secrets={"token": SecretStr("t")})
    named = Tool("named", tools.context, context={"own": 1}, read_only=True)
    found = await value(pool, named, context=given, remaining=30)
    assert 0 < found.pop("remaining") <= 30
    assert found == {
        **fields,
        "deps": None,
        "secret": "t",
        "call": ["c1", "named", {}, "p1"],
        "tool": ["named", True],
        "own": {"own": 1},
        "running": True,
    }
    bare = await value(pool, tools.context)
    assert (bare["remaining"], bare["session"], bare["own"]) == (None, None, {})
    assert bare["working_directory"] == os.getcwd()


async def test_metadata_that_cannot_cross_is_missed_only_when_it_is_read(pool: WorkerPool) -> None:
    given = ToolContext(metadata={"request": object(), "fine": 1})
    assert await value(pool, tools.metadata, {"key": "fine"}, context=given) == 1
    missing = await error(pool, tools.metadata, {"key": "request"}, context=given)
    assert isinstance(missing, KeyError) and "did not come to the isolated process" in str(missing)


async def test_a_tools_own_context_is_made_by_its_module_in_the_worker(pool: WorkerPool) -> None:
    assert await value(pool, tools.own_context) == ["object", "module"]
    changed = tools.own_context.replace(context={"db": object(), "shared": "changed"})
    assert await value(pool, changed) == ["object", "changed"]


async def test_progress_comes_back_in_order_and_not_after_the_end(own_pool: WorkerPool) -> None:
    heard: list[Any] = []
    assert await value(own_pool, tools.progress, on_progress=heard.append) == "done"
    assert heard == [{"done": n, "total": 3, "message": text} for n, text in ((1, "one"), (2, "two"))]
    await value(own_pool, tools.late_progress, on_progress=heard.append)
    assert len(heard) == 2


async def test_built_in_and_ferrules_exceptions_keep_their_class(pool: WorkerPool) -> None:
    missing = await error(pool, tools.raises, {"kind": "file"})
    assert type(missing) is FileNotFoundError and (missing.errno, missing.filename) == (2, "/no/such/file")
    assert "isolated_tools.py" in "".join(traceback.format_exception(missing))
    raised = await error(pool, tools.raises, {"kind": "ferrule"})
    assert type(raised) is ToolError and str(raised) == "come back later"
    assert (raised.retry_after, raised.result) == (7, None)


@pytest.mark.parametrize(
    ("kind", "is_a", "text"),
    [
        ("busy", ToolError, "none until tomorrow"),
        ("coded", tools.Coded, "code 7: so"),
        ("exit", SystemExit, "3"),
        ("group", ExceptionGroup, "several (1 sub-exception)"),
        ("local", LookupError, "of no module"),
        ("nested", tools.Coded, "code 7: so"),
    ],
)
async def test_other_exceptions_become_remote_errors_with_their_class_names(
    pool: WorkerPool, kind: str, is_a: type[BaseException], text: str
) -> None:
    raised = await error(pool, tools.raises, {"kind": kind})
    assert isinstance(raised, RemoteError) and str(raised) == text
    assert raised.matches((OSError, is_a)) and not raised.matches((OSError, TypeError))
    assert raised.kinds[-1] == "builtins.BaseException"
    assert "in raises" in raised.traceback and raised.traceback in "".join(traceback.format_exception(raised))
    if kind == "busy":
        assert (raised.name, raised.retry_after) == ("OutOfStock", 9)


async def test_exit_in_a_handler_ends_the_call_and_not_the_worker(own_pool: WorkerPool) -> None:
    before = await value(own_pool, tools.pid)
    assert (await error(own_pool, tools.exits_async)).name == "SystemExit"
    for kind in ("exit", "interrupt"):
        assert isinstance(await error(own_pool, tools.raises, {"kind": kind}), RemoteError)
    assert before in probe.worker_pids(own_pool)


async def test_tasks_that_a_handler_leaves_behind_end_with_its_call(own_pool: WorkerPool) -> None:
    assert await value(own_pool, tools.leaves_a_task) == "done"
    assert await value(own_pool, tools.left_tasks) in ([True], [])


async def test_a_module_loaded_from_a_file_is_loaded_from_it_in_the_worker(
    pool: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "loaded.py"
    file.write_text("def f() -> str: return __name__")
    name = f"file:{file}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    assert await value(pool, module.f) == name


@pytest.mark.large
async def test_a_module_that_kills_its_importer_stops_no_other_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deadly.py").write_text(
        f"import os\nif os.getpid() != {os.getpid()}: os._exit(9)\ndef f() -> None: ..."
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "deadly", deadly := __import__("deadly"))
    pool = WorkerPool(2)
    try:
        pool.warm(1, [Recipe(tool(deadly.f))])
        assert await value(pool, tools.add, {"a": 1}) == 3
        wrong = await error(pool, deadly.f)
        assert isinstance(wrong, NotStartedError) and "before the handler began: it left with exit code 9" in str(wrong)
    finally:
        pool.close()


def test_a_function_whose_name_leads_to_another_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = tool(tools.echo)
    monkeypatch.setattr(tools, "echo", tools.add)
    with pytest.raises(DefinitionError, match=r"isolated_tools:echo would be <function add"):
        Recipe(made)
    monkeypatch.delattr(tools, "echo")
    with pytest.raises(DefinitionError, match="would be None"):
        Recipe(made)


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
    died = (await wait_for(crashed)).error
    assert isinstance(died, WorkerDiedError) and why in str(died)
    assert [await job.future for job in behind] == [2, 3, 4]


@pytest.mark.large
@pytest.mark.parametrize("handler", [tools.ignores_sigterm, tools.holds_the_gil, tools.has_children])
async def test_a_kill_ends_the_whole_group(pool: WorkerPool, tmp_path: Path, handler: Any) -> None:
    job, pids = await start(pool, handler, tmp_path / "pids")
    assert job.pid == pids[0] and all(map(lives, pids))
    assert job.kill() is False
    await wait_until_dead(*pids)
    assert isinstance((await wait_for(job)).error, ToolTimeoutError)
    assert job.kill() is False
    assert await outcome(pool, tools.add, {"a": 1}) == 3


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux tells who started whom")


@needs_proc
@pytest.mark.parametrize("then", ["waits", "dies"])
async def test_children_in_groups_and_sessions_of_their_own_end_too(
    pool: WorkerPool, tmp_path: Path, then: str
) -> None:
    job, pids = await start(pool, tools.goes_elsewhere, tmp_path / "pids", then=then)
    assert len(pids) == 5
    if then == "waits":
        assert all(map(lives, pids))
        job.kill()
    await wait_until_dead(*pids)
    assert isinstance((await wait_for(job)).error, ToolTimeoutError if then == "waits" else WorkerDiedError)


async def test_a_late_handler_is_killed_while_the_loop_is_blocked(own_pool: WorkerPool, tmp_path: Path) -> None:
    await outcome(own_pool, tools.add, {"a": 1})
    for seconds in (0.3, 0.2, 30):  # each deadline is earlier or later than the one before
        job = own_pool.submit(order(tools.waits, {"path": str(tmp_path / str(seconds))}, remaining=seconds))
        await job.start_time
        pid, deadline = job.pid, job.deadline
        assert pid is not None and deadline is not None
        if seconds == 30:
            job.kill()
        else:
            wait_until(lambda pid=pid: not lives(pid))  # on this thread: the loop is blocked
            assert deadline <= time.monotonic()
        assert isinstance((await wait_for(job)).error, ToolTimeoutError)


@pytest.mark.large
async def test_a_worker_that_dies_while_it_is_idle_is_replaced(own_pool: WorkerPool) -> None:
    for _ in range(3):
        assert await value(own_pool, tools.add, {"a": 1}) == 3
        for pid in wait_until(lambda: probe.worker_pids(own_pool)):
            os.kill(pid, signal.SIGKILL)
        assert await value(own_pool, tools.add, {"a": 2}) == 4


@needs_proc
async def test_a_worker_ends_when_its_supervisor_is_killed(pool: WorkerPool, tmp_path: Path) -> None:
    job, (pid,) = await start(pool, tools.waits, tmp_path / "pid")
    supervisor = int(Path(f"/proc/{pid}/stat").read_text().split()[3])
    os.kill(supervisor, signal.SIGKILL)
    assert isinstance((await wait_for(job)).error, WorkerDiedError)


async def test_the_workers_of_a_worker_end_with_it(pool: WorkerPool, tmp_path: Path) -> None:
    assert await value(pool, tools.own_workers) == 0  # although its module warms the pool when it is imported
    job, (inner,) = await start(pool, tools.has_an_isolated_call, tmp_path / "pid")
    assert job.pid != inner and lives(inner)
    job.kill()
    await wait_until_dead(inner)


async def test_a_queued_call_that_is_killed_never_runs(own_pool: WorkerPool, tmp_path: Path) -> None:
    job, _ = await start(own_pool, tools.waits, tmp_path / "pid")
    queued = own_pool.submit(order(tools.touches, {"path": str(tmp_path / "touched")}))
    after = own_pool.submit(order(tools.touches, {"path": str(tmp_path / "after")}))
    await asyncio.to_thread(wait_until, lambda: own_pool.idle_count)  # the spare, which takes no call yet
    assert queued.pid is None and after.pid is None
    assert queued.kill() is True
    assert isinstance((await wait_for(queued)).error, NotStartedError)
    job.kill()
    await after.future
    assert (tmp_path / "after").exists() and not (tmp_path / "touched").exists()


@pytest.mark.large
async def test_idle_workers_beyond_one_end_after_a_while(tmp_path: Path) -> None:
    pool, pipes = WorkerPool(3, idle_seconds=0.05), [tmp_path / name for name in "abc"]
    for pipe in pipes:
        os.mkfifo(pipe)
    try:
        calls = [asyncio.create_task(value(pool, tools.reads, {"path": str(pipe)})) for pipe in pipes]
        ends = [await asyncio.to_thread(pipe.open, "w") for pipe in pipes]  # opens when its call reads
        assert len(probe.worker_pids(pool)) >= 3
        for end in ends:
            end.close()
        assert await asyncio.gather(*calls) == [""] * 3
        await asyncio.to_thread(wait_until, lambda: len(probe.worker_pids(pool)) == 1)
        assert await value(pool, tools.add, {"a": 1}) == 3
    finally:
        pool.close()


async def test_a_call_fails_when_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    pool = WorkerPool(1)
    wrong = await error(pool, tools.add, {"a": 1})
    assert isinstance(wrong, NotStartedError) and "FileNotFoundError" in str(wrong)
    pool.close()


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


@pytest.mark.parametrize("handler", ["has_children", "holds_the_gil", pytest.param("goes_elsewhere", marks=needs_proc)])
def test_no_process_survives_a_program_that_is_killed(tmp_path: Path, handler: str) -> None:
    path = tmp_path / "pids"
    with program(f"asyncio.run(call(tools.{handler}, path=sys.argv[1]))", str(path)) as parent:
        pids = read_pids(path)
        parent.kill()
        parent.wait(BOUND)
        wait_until(lambda: not any(map(lives, pids)))
        assert parent.stdout is not None and parent.stdout.read() == ""


def test_a_program_ends_while_a_call_runs_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pids"
    text = """
        thread = threading.Thread(target=lambda: asyncio.run(call(tools.waits, path=sys.argv[1])), daemon=True)
        thread.start()
        while not os.path.exists(sys.argv[1]):
            thread.join(0.01)
    """
    with program(text, str(path)) as parent:
        assert parent.wait(BOUND) == 0
        (pid,) = read_pids(path)
        wait_until(lambda: not lives(pid))


def test_isolated_calls_work_while_the_program_shuts_down() -> None:
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


def test_a_handler_does_not_read_the_programs_input() -> None:
    text = """
        asyncio.run(call(tools.prints, text="said"))
        print(sys.stdin.read())
    """
    with program(text, stdin=subprocess.PIPE) as parent:
        out, _ = parent.communicate("typed", timeout=BOUND)
        assert out == "said\nraw\nto the end" + "typed\n"
