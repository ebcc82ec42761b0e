"""How programs use a runner: without a loop, on one loop after the other, mounted, observed, and to its end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from journals import WatchedJournal, breaks

import probe
from ferrule import (
    CONTEXT,
    Decision,
    DefinitionError,
    Runner,
    Sizes,
    Tool,
    ToolCall,
    ToolContext,
    ToolResult,
    Toolset,
    Waits,
    ask,
    deny,
    tool,
)
from ferrule.executors import background_loop
from watched import BOUND, Watch, go, run


@tool(read_only=True)
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool(read_only=True)
def subtract(a: int, b: int) -> int:
    """Subtract."""
    return a - b


def aside(work: Callable[[], Any]) -> Any:
    """What `work` gives in a thread of its own, so that one that hangs fails its test alone."""
    found: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def report() -> None:
        try:
            found.set_result(work())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=report, daemon=True).start()
    return found.result(BOUND / 2)


# -- without a loop --------------------------------------------------------------------------------------------------


def test_run_sync_needs_no_loop() -> None:
    runner = Runner([add, subtract])
    assert aside(lambda: runner.run_sync("add", {"a": 1, "b": 2})).output == 3
    assert aside(lambda: runner.run_sync(ToolCall("c1", "subtract", {"a": 1, "b": 2}))).output == -1
    assert aside(lambda: runner.run_sync("nothing")).status == "not_found"
    assert aside(lambda: runner.run_sync("add", {"a": 1, "b": 2}, ToolContext(session="s"), timeout=BOUND)).output == 3


def test_run_sync_works_where_another_loop_runs() -> None:
    async def main() -> int:
        return Runner([add]).run_sync("add", {"a": 1, "b": 2}).output  # type: ignore[no-any-return]

    assert go(main()) == 3


def test_run_sync_works_in_many_threads_at_once() -> None:
    runner = Runner([add, subtract])
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        futures = [threads.submit(runner.run_sync, "subtract", {"a": n, "b": 1}) for n in range(50)]
        assert [future.result(BOUND).output for future in futures] == [n - 1 for n in range(50)]


def test_run_sync_in_a_handlers_thread_is_a_nested_call() -> None:
    runner: Runner
    watch = Watch()

    @tool(concurrency=1)
    def outer() -> int:
        return runner.run_sync("add", {"a": 1, "b": 2}).output  # type: ignore[no-any-return]

    runner = Runner([outer, add], observers=[watch], concurrency=1, waits=Waits(slot=BOUND))
    assert go(runner.run(ToolCall("o", "outer"))).output == 3
    assert aside(lambda: runner.run_sync(ToolCall("p", "outer"))).output == 3
    assert [event.call.parent for event in watch.events if event.call.name == "add"] == [*"ooo", *"ppp"]


def test_run_sync_on_the_runners_own_loop_says_what_to_do() -> None:
    runner: Runner

    @tool
    async def outer() -> str:
        try:
            runner.run_sync("add", {"a": 1, "b": 2})
        except RuntimeError as error:
            return str(error)
        return "no error"

    runner = Runner([outer, add])
    assert "await" in aside(lambda: runner.run_sync("outer")).output
    assert "await" in go(runner.run("outer")).output


def test_run_sync_tells_a_programmers_mistake_and_does_not_hang() -> None:
    runner = Runner([add])
    with pytest.raises(DefinitionError):
        aside(lambda: runner.run_sync("add", {"a": 1, "b": 2}, timeout=-1))
    with pytest.raises(DefinitionError, match="no option 'wrong'"):
        aside(lambda: runner.run_sync("add", {"a": 1, "b": 2}, wrong=1))
    assert aside(lambda: runner.run_sync("add", {"a": 1, "b": 2})).output == 3


@tool
async def where() -> int:
    """The thread of the loop."""
    return threading.get_ident()


def busy_runner() -> tuple[Runner, asyncio.Event]:
    """A runner, and what the call waits for that keeps it busy."""
    gate = asyncio.Event()

    @tool(read_only=True)
    async def waits() -> str:
        await gate.wait()
        return "waited"

    return Runner([waits, where, add]), gate


def test_run_sync_from_another_thread_runs_on_the_loop_that_the_runner_is_busy_on() -> None:
    async def main() -> list[ToolResult]:
        runner, gate = busy_runner()
        waiting = asyncio.create_task(runner.run("waits"))
        await asyncio.sleep(0)
        calls = [ToolCall("", "where"), ToolCall("", "add", {"a": 1, "b": 2})]
        found = [await asyncio.to_thread(runner.run_sync, "where", {}, ToolContext(session="s"), timeout=BOUND)]
        found += await asyncio.to_thread(runner.run_all_sync, calls, principal="ada")
        gate.set()
        assert (await waiting).output == "waited"
        return found

    assert [result.output for result in go(main())] == [threading.get_ident(), threading.get_ident(), 3]


async def test_run_sync_on_a_loop_that_the_runner_is_busy_on_is_an_error_at_once() -> None:

    runner, gate = busy_runner()
    waiting = asyncio.create_task(runner.run("waits"))
    await asyncio.sleep(0)
    for sync in (lambda: runner.run_sync("where"), lambda: runner.run_all_sync([ToolCall("", "where")])):
        with pytest.raises(RuntimeError, match=r"await runner\.run\(…\) here"):
            sync()
    gate.set()
    assert (await waiting).success


def test_who_waits_in_run_sync_is_told_where_the_loop_ends_before_the_call() -> None:
    told: list[Any] = []
    runner, _ = busy_runner()

    def call() -> None:
        with pytest.raises(RuntimeError, match="ended before it did") as error:
            runner.run_sync("waits")
        told.append(error)

    async def main() -> None:
        kept.append(asyncio.get_running_loop().create_task(runner.run("waits")))
        await asyncio.sleep(0)
        thread.start()
        while len(probe.live_calls(runner)) < 2:
            await asyncio.sleep(0)

    kept: list[asyncio.Task[ToolResult]] = []
    thread = threading.Thread(target=call)
    go(main())
    thread.join(BOUND)
    assert told


def test_who_waits_in_run_sync_is_told_where_the_loop_stops_and_is_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_loop, "_CHECK_SECONDS", 0.05)
    loop = asyncio.new_event_loop()
    runner, _ = busy_runner()
    threads = concurrent.futures.ThreadPoolExecutor()

    async def main() -> concurrent.futures.Future[ToolResult]:
        first = loop.create_task(runner.run("waits"))
        await asyncio.sleep(0)
        handed = threads.submit(runner.run_sync, "waits")
        while len(probe.live_calls(runner)) < 2:
            await asyncio.sleep(0)
        first.cancel()
        return handed

    handed = loop.run_until_complete(main())
    with pytest.raises(RuntimeError, match="ended before it did"):
        handed.result(BOUND)
    loop.run_until_complete(asyncio.sleep(0))
    threads.shutdown()
    loop.close()


def test_a_thread_that_is_interrupted_while_it_waits_in_run_sync_cancels_its_call_alone() -> None:
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


def test_run_all_sync_needs_no_loop_and_takes_what_run_all_takes() -> None:
    runner = Runner([add, subtract, tell_session])
    calls = [ToolCall("", "add", {"a": 1, "b": 2}), ToolCall("", "tell_session"), ToolCall("", "subtract", {})]
    found = aside(lambda: runner.run_all_sync(calls, session="s", offered=runner.tools.without("subtract")))
    assert [(result.status, result.output) for result in found] == [("ok", 3), ("ok", "s"), ("not_found", None)]


@tool(read_only=True)
def tell_session(context: ToolContext) -> str | None:
    return context.session


@pytest.mark.parametrize("timeout", [None, BOUND])
def test_ctrl_c_in_a_handler_reaches_who_waits_in_run_sync(timeout: float | None) -> None:
    @tool
    async def interrupted() -> None:
        raise KeyboardInterrupt

    runner = Runner([interrupted, add])
    with pytest.raises(KeyboardInterrupt):
        aside(lambda: runner.run_sync("interrupted", timeout=timeout))
    assert aside(lambda: runner.run_sync("add", {"a": 1, "b": 2})).output == 3


# -- one loop after the other ----------------------------------------------------------------------------------------


def test_an_idle_runner_moves_to_another_loop() -> None:
    runner = Runner([add, subtract], concurrency=2, timeout=BOUND)
    for n in range(3):
        assert go(runner.run("add", {"a": n, "b": 1})).output == n + 1
        assert go(runner.run("subtract", {"a": n, "b": 1})).output == n - 1
    assert aside(lambda: runner.run_sync("add", {"a": 1, "b": 2})).output == 3
    assert go(runner.run("add", {"a": 1, "b": 2})).output == 3


def test_a_loop_that_ended_in_the_middle_of_a_call_leaves_a_usable_runner() -> None:
    @tool(concurrency=1, resources=lambda arguments: ["k"])
    async def work(wait: bool) -> None:
        if wait:
            await asyncio.Event().wait()

    runner = Runner([work], concurrency=1, waits=Waits(slot=0.5))

    async def leaves() -> None:
        asyncio.ensure_future(runner.run("work", {"wait": True}))  # noqa: RUF006
        await asyncio.sleep(0.01)

    go(leaves())
    assert go(runner.run("work", {"wait": False})).success


def test_a_runner_that_is_busy_on_another_loop_says_so() -> None:
    started, release = threading.Event(), threading.Event()

    @tool
    def blocks() -> None:
        started.set()
        release.wait(BOUND)

    runner = Runner([blocks, add])
    other = threading.Thread(target=lambda: go(runner.run("blocks")))
    other.start()
    try:
        assert started.wait(BOUND)
        with pytest.raises(RuntimeError, match="busy on another event loop"):
            go(runner.run("add", {"a": 1, "b": 2}))
    finally:
        release.set()
        other.join(BOUND)
    assert go(runner.run("add", {"a": 1, "b": 2})).output == 3


# -- to its end ------------------------------------------------------------------------------------------------------


async def test_leaving_takes_no_new_calls_and_waits_for_those_that_run() -> None:

    watch = Watch()
    release, started = asyncio.Event(), asyncio.Event()

    @tool
    async def work(context: ToolContext) -> Any:
        started.set()
        await release.wait()
        return [(await context.run("add", {"a": 1, "b": 2})).output, await late()]

    async def late() -> Any:
        return (await runner.run("add", {"a": 2, "b": 2})).output

    runner = Runner([work, add], observers=[watch])

    async def use() -> None:
        async with runner:
            going.append(asyncio.create_task(runner.run("work")))
            await started.wait()

    going: list[asyncio.Task[ToolResult]] = []
    leaving = asyncio.create_task(use())
    await started.wait()
    await asyncio.sleep(0.005)
    assert not leaving.done()
    refused = await runner.run(ToolCall("late", "add", {"a": 1, "b": 2}))
    assert (refused.status, refused.executed) == ("cancelled", False)
    assert "closing" in str(refused.error) and watch.kinds("late") == ["tool:pre", "tool:error"]
    release.set()
    await leaving
    assert going[0].result().output == [3, 4]
    assert (await runner.run("add", {"a": 1, "b": 2})).status == "cancelled"


async def test_leaving_a_runner_leaves_its_replacements() -> None:

    release, started = asyncio.Event(), asyncio.Event()

    @tool
    async def work() -> str:
        started.set()
        await release.wait()
        return "done"

    runner = Runner([work, add])
    before = runner.replace(observers=[])
    async with runner:
        further = before.replace(tools=[work])
        going = asyncio.create_task(further.run("work"))
        await started.wait()
        asyncio.get_running_loop().call_later(0.005, release.set)
    assert going.done() and going.result().output == "done"
    for left in (before, further, runner.replace(observers=[])):
        assert (await left.run("work")).status == "cancelled"
    async with runner:
        assert (await before.run("add", {"a": 1, "b": 2})).output == 3


async def test_who_leaves_a_replacement_leaves_that_alone() -> None:

    runner = Runner([add])
    async with runner.replace(observers=[]):
        pass
    assert (await runner.run("add", {"a": 1, "b": 2})).output == 3


async def test_a_runner_may_be_entered_again() -> None:

    runner = Runner([add])
    for _ in range(2):
        async with runner:
            assert (await runner.run("add", {"a": 1, "b": 2})).success


async def test_leaving_does_not_wait_for_what_was_abandoned() -> None:

    release = asyncio.Event()

    @tool
    async def stubborn(forever: bool) -> None:
        while forever and not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                pass
        await asyncio.sleep(0.01)

    runner = Runner([stubborn], waits=Waits(grace=0.01))
    try:
        async with asyncio.timeout(BOUND), runner:
            assert (await runner.run("stubborn", {"forever": True}, timeout=0.01)).status == "timeout"
            going = asyncio.create_task(runner.run("stubborn", {"forever": False}))
            await asyncio.sleep(0)
        assert going.done() and runner.left_running == 1
    finally:
        release.set()


# -- mounted ---------------------------------------------------------------------------------------------------------


async def test_mounted_tools_carry_guards_middleware_and_limits_on_one_path() -> None:
    passed: list[str] = []
    inner_watch = Watch()

    def middle(name: str) -> Any:
        async def pass_by(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
            passed.append(name)
            return await next(call, context)

        return pass_by

    def judge(name: str) -> Any:
        return lambda call, context: passed.append(name)

    inner = Runner(
        [add],
        guards=[judge("inner guard")],
        around=[middle("inner around")],
        inside=[middle("inner inside")],
        observers=[inner_watch],
        sizes=Sizes(output=50),
    )
    watch = Watch()
    outer = Runner(
        inner.as_tools(),
        guards=[judge("outer guard")],
        around=[middle("outer around")],
        inside=[middle("outer inside")],
        observers=[watch],
    )
    assert (await outer.run("add", {"a": 1, "b": 2})).output == 3
    assert passed == [
        "outer around", "inner around", "outer guard", "inner guard", "outer inside", "inner inside",
    ]  # fmt: skip
    assert watch.kinds() == ["tool:pre", "tool:decided", "tool:post"]
    assert inner_watch.kinds() == []


def test_the_outer_runners_approver_answers_for_mounted_tools() -> None:
    asked: list[str] = []

    def person(name: str, answer: bool) -> Any:
        def approve(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
            asked.append(name)
            return answer

        return approve

    inner = Runner([add], guards=[lambda call, context: ask("?")], approve=person("inner", False))
    outer = Runner(inner.as_tools(), approve=person("outer", True))
    assert go(outer.run("add", {"a": 1, "b": 2})).success and asked == ["outer"]
    assert go(Runner(inner.as_tools()).run("add", {"a": 1, "b": 2})).status == "denied"


async def test_an_inner_guard_cannot_be_overruled_by_an_outer_one() -> None:
    inner = Runner([add], guards=[lambda call, context: deny("inner")])
    middle = Runner(inner.as_tools())
    outer = Runner(middle.as_tools(), guards=[lambda call, context: None], approve=lambda *rest: True)
    assert (await outer.run("add", {"a": 1, "b": 2})).status == "denied"


async def test_an_inner_limit_holds_for_both_runners() -> None:
    now = {"running": 0, "most": 0}

    @tool
    async def work() -> None:
        now["running"] += 1
        now["most"] = max(now["most"], now["running"])
        await asyncio.sleep(0.001)
        now["running"] -= 1

    inner = Runner([work], concurrency=2)
    outer = Runner(inner.as_tools())

    async def main() -> None:
        await asyncio.gather(*(runner.run("work") for runner in (inner, outer) for _ in range(5)))

    await main()
    assert now["most"] == 2


def test_what_a_mounted_tool_calls_is_a_tool_of_its_own_runner() -> None:
    def named(name: str, does: Any) -> Tool:
        return tool(does, name=name)

    async def inner_lookup() -> str:
        return "inner"

    async def hidden() -> str:
        return "hidden"

    async def outer_lookup() -> str:
        return "outer"

    async def entry(context: ToolContext, name: str) -> str:
        result = await context.run(name)
        return result.output if result.success else f"{result.status}: {result.error}"

    judged: list[tuple[str, str]] = []
    asked: list[str] = []

    def judge(name: str, decision: Decision | None = None) -> Any:
        def guard(call: ToolCall, context: ToolContext) -> Decision | None:
            judged.append((name, call.name))
            return decision if call.name != "entry" else None

        return guard

    def person(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
        asked.append(call.name)
        return True

    inner_watch, watch = Watch(), Watch()
    tools = [named("entry", entry), named("lookup", inner_lookup), named("hidden", hidden)]
    inner = Runner(tools, guards=[judge("inner", ask("?"))], observers=[inner_watch], approve=lambda *rest: False)
    middle = Runner(inner.as_tools(), guards=[judge("middle")])
    for mounted in (inner, middle):
        outer = Runner(
            [*Toolset(mounted.as_tools()).only("entry"), named("lookup", outer_lookup)],
            guards=[judge("outer")],
            observers=[watch],
            approve=person,
        )
        guards = ["outer", "inner"] if mounted is inner else ["outer", "middle", "inner"]
        for name, output in (("lookup", "inner"), ("hidden", "hidden")):
            judged.clear()
            asked.clear()
            watch.events.clear()
            assert go(outer.run("entry", {"name": name})).output == output
            assert list(dict.fromkeys(judged)) == [(one, called) for called in ("entry", name) for one in guards]
            assert asked == [name] and watch.kinds()[-2:] == ["tool:post", "tool:post"]
        assert go(outer.run("lookup")).output == "outer" and inner_watch.events == []
        assert go(outer.run("entry", {"name": "no"})).output.startswith("not_found")
        inner.disable("lookup", "closed")
        assert "closed" in go(outer.run("entry", {"name": "lookup"})).output
        inner.enable("lookup")
        assert go(outer.run("entry", {"name": "lookup"})).output == "inner"


def test_a_mounted_tool_that_was_renamed_is_called_as_the_outer_runner_has_it() -> None:
    async def lookup() -> str:
        return "inner"

    async def entry(context: ToolContext) -> str:
        result = await context.run("lookup")
        return f"{result.tool_name} {result.status}"

    inner = Runner([tool(lookup), tool(entry)])
    outer = Runner(Toolset(inner.as_tools()).prefixed("their_"))
    assert go(outer.run("their_entry")).output == "their_lookup ok"
    outer.disable("their_lookup", "closed")
    assert go(outer.run("their_entry")).output == "their_lookup denied"
    late = Runner(Toolset(Runner(outer.as_tools()).as_tools()).only("*entry"))
    assert go(late.run("their_entry")).output == "their_lookup denied"


# -- events ----------------------------------------------------------------------------------------------------------


async def test_progress_is_told_from_coroutines_and_threads_and_never_after_the_end() -> None:
    kept: list[ToolContext] = []

    @tool
    async def here(context: ToolContext) -> None:
        kept.append(context)
        context.progress(1, 2, "half")

    @tool
    def there(context: ToolContext) -> None:
        kept.append(context)
        context.progress(1, 2, "half")

    for one in (here, there):

        async def main(one: Tool = one) -> Watch:
            watch = Watch()
            runner = Runner([one], observers=[watch])
            assert (await runner.run(one.name)).success
            kept[-1].progress(2, 2, "late")
            await asyncio.to_thread(kept[-1].progress, 2, 2, "late")
            await asyncio.sleep(0.002)
            return watch

        watch = await main()
        assert watch.kinds() == ["tool:pre", "tool:progress", "tool:post"]
        (told,) = (event for event in watch.events if event.kind == "tool:progress")
        assert (told.data["done"], told.data["total"], told.data["message"]) == (1, 2, "half")


async def test_progress_costs_nothing_where_nobody_observes_and_breaks_nothing_outside_a_call() -> None:
    ToolContext().progress(1, 2)

    @tool
    async def work(context: ToolContext) -> None:
        context.progress(1)

    assert (await Runner([work]).run("work")).success


def test_events_are_data_about_the_call() -> None:
    result, watch = run(add, "add", '{"a": 1, "b": 2}')
    for event in watch.events:
        assert event.data["tool_name"] == "add" and event.data["input"] == {"a": 1, "b": 2} and event.at > 0
        with pytest.raises(AttributeError):
            event.kind = "tool:post"  # type: ignore[misc]
        with pytest.raises(TypeError):
            event.data["tool_name"] = "other"  # type: ignore[index]
    assert watch.events[-1].data["result"] is result
    failed, watch = run(add, "add", {"a": 1})
    assert watch.events[-1].data["error"] == failed.error and watch.events[-1].data["result"] is failed


def test_the_events_have_the_whole_exception_and_the_model_has_not() -> None:
    error = RuntimeError("password=1")

    @tool
    async def work() -> None:
        raise error

    result, watch = run(work, "work")
    assert watch.events[-1].data["exception"] is error
    assert "password" not in str(result.record()) + result.text


async def test_a_nested_call_names_its_parent() -> None:
    @tool
    async def outer(context: ToolContext) -> None:
        await context.run("add", {"a": 1, "b": 2})

    watch = Watch()
    runner = Runner([outer, add], observers=[watch])
    await runner.run(ToolCall("o", "outer"))
    assert [(e.call.name, e.call.parent) for e in watch.events if e.kind == "tool:post"] == [
        ("add", "o"),
        ("outer", None),
    ]


# -- context ---------------------------------------------------------------------------------------------------------


async def test_context_gives_helpers_what_the_tool_was_made_with() -> None:
    def helper() -> Any:
        return CONTEXT.get()

    @tool(context={"db": "inner"})
    async def inner() -> Any:
        return dict(helper())

    @tool(context={"db": "outer"})
    async def outer(context: ToolContext) -> list[Any]:
        return [dict(helper()), (await context.run("inner")).output, dict(helper())]

    @tool(context={"db": "thread"})
    def thread() -> Any:
        return dict(helper())

    @tool
    async def none() -> Any:
        return dict(helper())

    async def main() -> list[Any]:
        runner = Runner([inner, outer, thread, none])
        found = [(await runner.run(name)).output for name in ("outer", "thread", "none")]
        return [*found, dict(CONTEXT.get())]

    assert (await main()) == [[{"db": "outer"}, {"db": "inner"}, {"db": "outer"}], {"db": "thread"}, {}, {}]


def test_a_context_is_frozen_and_keeps_its_secrets() -> None:
    context = ToolContext(session="s", secrets={"key": "hidden"}, deps=1)
    with pytest.raises(AttributeError):
        context.session = "other"  # type: ignore[misc]
    assert "hidden" not in repr(context)
    assert context.replace(session="t").session == "t" and context.session == "s"


# -- journal ---------------------------------------------------------------------------------------------------------


def test_the_intent_is_committed_before_a_tool_that_changes_things_runs() -> None:
    log: list[Any] = []

    @tool
    async def write(n: int, more: str = "m") -> None:
        log.append("ran")

    run(write, "write", {"n": 1}, journal=WatchedJournal(log))
    assert log == [("begin", "write", {"n": 1, "more": "m"}), "ran", ("end", "write", "ok")]
    log.clear()
    reads = WatchedJournal(log)
    run(add, "add", {"a": 1, "b": 2}, journal=reads)
    assert log == [] and [event.kind for event in reads.events] == ["tool:pre", "tool:started", "tool:post"]


@pytest.mark.parametrize("error", [OSError("disk full"), SystemExit(1), asyncio.CancelledError()])
def test_nothing_runs_where_the_journal_does_not_take_the_intent(error: BaseException) -> None:
    log: list[Any] = []

    @tool
    async def write() -> None:
        log.append("ran")

    result, watch = run(write, "write", journal=WatchedJournal(log, begins=breaks(error)))
    assert (result.status, result.executed, watch.ends()) == ("failed", False, ["tool:error"])
    assert "ran" not in log and "Nothing was run" in str(result.error)


async def test_every_intent_has_its_outcome_also_where_the_call_was_cut_off() -> None:
    log: list[Any] = []

    @tool
    async def write() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with Runner([write], journal=WatchedJournal(log)) as runner:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await runner.run("write")
        await Runner([write], journal=WatchedJournal(log), timeout=0.01).run("write")

    await main()
    assert [entry[0] for entry in log] == ["begin", "end"] * 2
    assert [entry[2] for entry in log if entry[0] == "end"] == ["cancelled", "timeout"]


# -- another loop ----------------------------------------------------------------------------------------------------


def test_the_basics_work_on_uvloop() -> None:
    uvloop = pytest.importorskip("uvloop")

    @tool(parallel=True)
    async def forever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        watch = Watch()
        runner = Runner([add, subtract, forever], observers=[watch], concurrency=2)
        sent = [
            ToolCall("a", "add", {"a": 1, "b": 2}),
            ToolCall("b", "subtract", {"a": 1, "b": 2}),
            ToolCall("c", "nothing"),
        ]
        assert [result.output for result in await runner.run_all(sent)] == [3, -1, None]
        assert (await runner.run("forever", timeout=0.01)).status == "timeout"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await runner.run("forever")
        assert len(watch.ends()) == 5

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(main())


def test_it_is_imported_and_runs_where_there_are_no_forks() -> None:
    program = (
        "import os; del os.register_at_fork, os.fork\n"
        "from ferrule import Runner, tool\n"
        "@tool\ndef add(a: int, b: int) -> int:\n    return a + b\n"
        "print(Runner([add]).run_sync('add', {'a': 1, 'b': 2}).output)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=BOUND, check=False)
    assert (ran.stdout, ran.stderr) == ("3\n", "")
