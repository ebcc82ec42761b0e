"""How programs use a runner."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import probe
from cast import add
from ferrule import CONTEXT, Runner, ToolCall, ToolContext, ToolResult, Waits, tool
from ferrule.executors import background_loop
from gates import Blocker, Gate
from waits import BOUND
from watched import Watch, go

SUM = {"a": 1, "b": 2}


@tool(read_only=True)
def subtract(a: int, b: int) -> int:
    """Subtract."""
    return a - b


@tool(read_only=True)
async def where(context: ToolContext) -> list[Any]:
    """Tell the thread of the loop, and whose call it is."""
    return [threading.get_ident(), context.session, context.principal]


def in_thread(work: Callable[[], Any]) -> Any:
    """Return what `work` gives in a thread of its own, so that one that hangs fails its test alone."""
    found: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def report() -> None:
        try:
            found.set_result(work())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=report, daemon=True).start()
    return found.result(BOUND)


def test_run_sync_needs_no_loop() -> None:
    runner = Runner([add, subtract, where])
    assert in_thread(lambda: runner.run_sync("add", SUM)).output == 3
    assert in_thread(lambda: runner.run_sync(ToolCall("c1", "subtract", SUM))).output == -1
    assert in_thread(lambda: runner.run_sync("nothing")).status == "not_found"
    assert in_thread(lambda: runner.run_sync("where", {}, ToolContext(session="s"), timeout=BOUND)).output[1] == "s"
    calls = [ToolCall("", "add", SUM), ToolCall("", "subtract", {})]
    found = in_thread(lambda: runner.run_all_sync(calls, offered=runner.tools.without("subtract")))
    assert [(result.status, result.output) for result in found] == [("ok", 3), ("not_found", None)]


def test_run_sync_in_a_handlers_thread_is_a_nested_call() -> None:
    runner: Runner
    watch = Watch()

    @tool(concurrency=1)
    def outer() -> int:
        return runner.run_sync("add", SUM).output

    runner = Runner([outer, add], observers=[watch], concurrency=1, waits=Waits(slot=BOUND))
    assert go(runner.run(ToolCall("o", "outer"))).output == 3
    assert in_thread(lambda: runner.run_sync(ToolCall("p", "outer"))).output == 3
    assert [event.call.parent for event in watch.events if event.call.name == "add"] == [*"ooo", *"ppp"]


def test_run_sync_on_the_runners_own_loop_says_what_to_do() -> None:
    runner: Runner

    @tool
    async def outer() -> str:
        for sync in (lambda: runner.run_sync("add", SUM), lambda: runner.run_all_sync([ToolCall("", "add", SUM)])):
            with pytest.raises(RuntimeError, match=r"await runner\.run\(…\) here"):
                sync()
        return "refused"

    runner = Runner([outer, add])
    assert in_thread(lambda: runner.run_sync("outer")).output == "refused"
    assert go(runner.run("outer")).output == "refused"


@pytest.mark.parametrize("closed", [True, False])
def test_run_sync_raises_if_the_loop_ends_before_the_call(closed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_loop, "_CHECK_SECONDS", 0.05)
    loop = asyncio.new_event_loop()
    gate = Gate()
    runner = Runner([gate.tool])
    threads = concurrent.futures.ThreadPoolExecutor()

    async def main() -> concurrent.futures.Future[ToolResult]:
        first = loop.create_task(runner.run("wait"))
        await gate.inside.wait()
        handed = threads.submit(runner.run_sync, "wait")
        while len(probe.live_calls(runner)) < 2:
            await asyncio.sleep(0)
        first.cancel()
        return handed

    handed = loop.run_until_complete(main())
    if closed:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    with pytest.raises(RuntimeError, match="ended before it did"):
        handed.result(BOUND)
    threads.shutdown()
    if not closed:
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def test_ctrl_c_while_run_sync_waits_cancels_its_call_alone() -> None:
    program = """
import asyncio, os, signal, sys, threading
from ferrule import Runner, tool

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its jobs in the background ignore it
main, begun, ended = threading.get_ident(), threading.Event(), asyncio.Event()
found = []

@tool(read_only=True)
async def first() -> str:
    begun.set()
    await ended.wait()
    return "waited"

@tool(read_only=True)
async def second() -> None:
    while (code := sys._current_frames()[main].f_code).co_name != "wait" or "threading" not in code.co_filename:
        await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGINT)
    try:
        await asyncio.Event().wait()
    finally:
        ended.set()

runner = Runner([first, second])
thread = threading.Thread(target=lambda: found.append(asyncio.run(runner.run("first"))))
thread.start()
begun.wait()
try:
    runner.run_sync("second")
except KeyboardInterrupt:
    thread.join()
    print("interrupted", found[0].output)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=BOUND)
    assert done.stdout == "interrupted waited\n", done.stderr


@pytest.mark.parametrize("timeout", [None, BOUND])
def test_ctrl_c_in_a_handler_reaches_the_caller_of_run_sync(timeout: float | None) -> None:
    @tool
    async def interrupted() -> None:
        raise KeyboardInterrupt

    runner = Runner([interrupted, add])
    with pytest.raises(KeyboardInterrupt):
        in_thread(lambda: runner.run_sync("interrupted", timeout=timeout))
    assert in_thread(lambda: runner.run_sync("add", SUM)).output == 3


def test_an_idle_runner_moves_to_another_loop() -> None:
    gate = Gate(concurrency=1, resources=lambda arguments: ["k"])
    gate.open.set()
    runner = Runner([add, gate.tool], concurrency=1, timeout=BOUND, waits=Waits(slot=BOUND))
    for _ in range(2):
        assert go(runner.run("add", SUM)).output == 3
        assert in_thread(lambda: runner.run_sync("add", SUM)).output == 3

    async def leaves_a_call_behind() -> None:
        gate.open.clear()
        asyncio.ensure_future(runner.run("wait"))  # noqa: RUF006
        await gate.inside.wait()

    go(leaves_a_call_behind())
    gate.open.set()
    assert go(runner.run("wait")).success


def test_a_runner_that_is_busy_on_another_loop_says_so() -> None:
    blocker = Blocker()
    runner = Runner([blocker.tool, add])
    other = threading.Thread(target=lambda: go(runner.run("block")))
    other.start()
    try:
        assert blocker.inside.wait(BOUND)
        with pytest.raises(RuntimeError, match="busy on another event loop"):
            go(runner.run("add", SUM))
    finally:
        blocker.release.set()
        other.join(BOUND)
    assert go(runner.run("add", SUM)).output == 3


def test_a_runner_works_on_a_system_without_forks() -> None:
    program = (
        "import os; del os.register_at_fork, os.fork\n"
        "from ferrule import Runner, tool\n"
        "@tool\ndef add(a: int, b: int) -> int:\n    return a + b\n"
        "print(Runner([add]).run_sync('add', {'a': 1, 'b': 2}).output)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=BOUND, check=False)
    assert (ran.stdout, ran.stderr) == ("3\n", "")


@pytest.mark.parametrize("threaded", [False, True])
async def test_progress_is_an_event_and_says_nothing_after_the_end(threaded: bool) -> None:
    kept: list[ToolContext] = []

    def report(context: ToolContext) -> None:
        kept.append(context)
        context.progress(1, 2, "half \ud800way")

    async def work(context: ToolContext) -> None:
        report(context)

    watch = Watch()
    assert (await Runner([tool(report if threaded else work, name="work")], observers=[watch]).run("work")).success
    kept[0].progress(2, 2, "late")
    await asyncio.to_thread(kept[0].progress, 2, 2, "late")
    await asyncio.sleep(0)
    assert watch.kinds() == ["tool:pre", "tool:progress", "tool:post"]
    (event,) = (event for event in watch.events if event.kind == "tool:progress")
    assert (event.data["done"], event.data["total"], event.data["message"]) == (1, 2, "half \ufffdway")
    ToolContext().progress(1, 2)  # breaks nothing outside a call


async def test_helpers_read_the_context_that_the_tool_was_made_with() -> None:
    @tool(context={"db": "inner"})
    def inner() -> Any:
        return dict(CONTEXT.get())

    @tool(context={"db": "outer"})
    async def outer(context: ToolContext) -> list[Any]:
        return [dict(CONTEXT.get()), (await context.run("inner")).output, dict(CONTEXT.get())]

    result = await Runner([inner, outer]).run("outer")
    assert result.output == [{"db": "outer"}, {"db": "inner"}, {"db": "outer"}]
    assert dict(CONTEXT.get()) == {}


def forks(test: Any) -> Any:
    """Mark a test that forks this process."""
    test = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")(test)
    return pytest.mark.slow(pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")(test))


def in_child(work: Callable[[], Any]) -> Any:
    """Return what `work` gives in a thread of a forked child, as JSON."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            found: list[Any] = []
            thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
            thread.start()
            thread.join(BOUND)
            os.write(writing, json.dumps(found).encode())
        finally:
            os._exit(0)
    os.close(writing)
    try:
        assert select.select([reading], [], [], 2 * BOUND)[0], "the child hangs"
        found = json.loads(os.read(reading, 10_000) or "[]")
        assert found, "the child's work hangs or fails"
        return found[0]
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@forks
def test_run_sync_works_in_a_forked_child_of_a_program_that_has_used_it() -> None:
    keyed = tool(lambda: "ran", name="work", concurrency=1, resources=lambda arguments: ["key"])
    runner = Runner([keyed], concurrency=1, per_principal=1)

    def work() -> list[Any]:
        return [runner.run_sync("work").output, runner.left_running, runner.waiting]

    assert work() == in_child(work) == work() == ["ran", 0, 0]


@forks
def test_a_runner_that_was_busy_when_it_was_forked_says_what_to_do() -> None:
    blocker = Blocker()
    runner = Runner([blocker.tool])
    thread = threading.Thread(target=lambda: runner.run_sync("block"))
    thread.start()
    assert blocker.inside.wait(BOUND)

    def child() -> str:
        with pytest.raises(RuntimeError) as raised:
            runner.run_sync("block")
        return str(raised.value)

    try:
        assert "forked while they ran" in in_child(child)
    finally:
        blocker.release.set()
        thread.join(BOUND)
