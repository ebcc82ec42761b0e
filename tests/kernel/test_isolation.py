"""Isolated tools through a runner."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import isolated_tools as tools
import pytest

from ferrule import DefinitionError, Runner, Tool, ToolCall, ToolContext, allow, tool
from ferrule.errors import NotStartedError
from ferrule.executors.workers import Workers
from waits import BOUND, wait_until
from watched import Watch


def isolated(handler: Any, **options: Any) -> Tool:
    if isinstance(handler, Tool):
        return handler.replace(isolation="process", **options)
    return tool(handler, isolation="process", **options)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def read_pid(path: Path) -> int:
    await asyncio.to_thread(wait_until, path.exists)
    return int(path.read_text())


async def test_an_isolated_handler_runs_in_another_process_on_the_judged_arguments() -> None:
    def makes_two(call: ToolCall, context: ToolContext) -> Any:
        return allow({**call.arguments, "a": 2})

    runner = Runner([isolated(tools.add, guards=[makes_two]), isolated(tools.pid)], timeout=BOUND)
    assert (await runner.run("pid")).output != os.getpid()
    assert (await runner.run("add", {"a": 1, "b": 5})).output == 7
    result = await runner.run("add", '{"a": "x"}')
    assert (result.status, result.executed) == ("invalid", False)
    assert await isolated(tools.pid)() != os.getpid()  # a direct call is isolated too


async def test_an_isolated_handler_gets_what_was_judged_or_is_not_started() -> None:
    shown: list[Any] = []

    def sees(call: ToolCall, context: ToolContext) -> None:
        shown.append(call.arguments["name"])

    runner = Runner([isolated(tools.greets), isolated(tools.depends)], guards=[sees])
    assert (await runner.run("greets", {"name": " Ada"})).output == {"name": "ada", "judged": "ada"}
    result = await runner.run("depends", {"name": "x"})
    assert (result.status, result.executed) == ("failed", False)
    assert "otherwise than judged" in str(result.error)
    assert shown == ["ada", f"x in {os.getpid()}"]


async def test_a_default_that_differs_in_the_worker_does_not_run() -> None:
    runner = Runner([tools.clean_of], guards=[lambda call, context: None])
    result = await runner.run("clean_of", {"scratch": {}})
    assert (result.status, result.executed) == ("failed", False)
    assert "has other defaults in the process" in str(result.error)


async def test_chunks_come_from_the_process_and_are_kept_when_it_is_killed(tmp_path: Path) -> None:
    watch, path = Watch(), tmp_path / "pid"
    runner = Runner([isolated(tools.speaks)], observers=[watch])
    assert (await runner.run("speaks", {"count": 2})).output == "word 0 word 1 "
    batch = runner.batch([ToolCall("c1", "speaks", {"count": 2, "path": str(path)})])
    pid = await read_pid(path)
    while watch.kinds("c1").count("tool:progress") < 2:
        await asyncio.sleep(0)
    batch.cancel(now=True)
    (result,) = await batch
    assert (result.status, result.output) == ("cancelled", "word 0 word 1 ")
    await asyncio.to_thread(wait_until, lambda: gone(pid))


async def test_a_call_whose_context_cannot_cross_is_not_started() -> None:
    runner = Runner([isolated(tools.add)])
    result = await runner.run("add", {"a": 1}, ToolContext(metadata={"lock": threading.Lock()}))
    assert result.success  # a value that nobody reads there need not cross
    result = await runner.run("add", {"a": 1}, ToolContext(metadata={b"": 0}))
    assert (result.status, result.executed) == ("failed", False)
    assert isinstance(result.exception, NotStartedError) and "Nothing was run" in str(result.error)


MAY_HAVE = " It had been started, so its effect may have happened."


@pytest.mark.parametrize(
    ("kind", "expose", "shown"),
    [
        ("coded", (tools.Coded,), f"raises failed: Coded: code 7: so.{MAY_HAVE}"),
        ("coded", (ValueError,), f"raises failed: Coded.{MAY_HAVE}"),
        ("key", (LookupError,), f"raises failed: KeyError: k.{MAY_HAVE}"),
        ("stock", (), "none left"),
    ],
)
async def test_expose_goes_by_the_class_names_of_an_isolated_handlers_error(
    kind: str, expose: tuple[type[Exception], ...], shown: str
) -> None:
    result = await Runner([isolated(tools.raises)], expose=expose).run("raises", {"kind": kind})
    assert (result.status, result.error) == ("failed", shown)


@pytest.mark.parametrize("kind", ["unsent", "unsent and plain"])
async def test_an_isolated_handlers_tool_error_says_what_to_do_next(kind: str) -> None:
    runner = Runner([isolated(tools.raises)])
    result = await runner.run("raises", {"kind": kind})
    assert (result.status, result.executed, result.retryable) == ("failed", False, False)
    assert "the bank could not be reached" in (result.error or "")
    assert (await runner.run("raises", {"kind": "busy"})).metadata["retry_after"] == 9


WORKERS = Workers(1, transfer="pickle")


async def test_pickled_values_cross_if_the_developer_says_so() -> None:
    pickled = tool(tools.gives, isolation=WORKERS, name="pickled")
    assert await pickled(what="set") == {1}
    assert (await Runner([pickled]).run("pickled", {"what": "set"})).output == [1]


@pytest.mark.parametrize(
    ("define", "said"),
    [
        (lambda: tool(lambda: 1, name="x", isolation="process"), "lambda"),
        (lambda: tool(isolated_locally(), isolation="process"), "top level"),
        (lambda: tool(tools.add, isolation=Workers(1, transfer="yaml")), "transfer"),
        (lambda: tool(tools.Kept().bound, isolation="process"), "object"),
        (lambda: tool(partial(tools.add, a=1), name="x", isolation="process"), "which cannot find"),
    ],
)
def test_a_runner_refuses_a_handler_that_no_other_process_finds(define: Callable[[], Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        Runner([define()])


def isolated_locally() -> Any:
    def local() -> None: ...

    return local


SCRIPT = """
    import asyncio, sys
    print("top")
    sys.path.insert(0, sys.argv[1])
    import isolated_tools as tools
    from ferrule import DefinitionError, Runner, tool

    def here() -> int:
        return 1

    try:
        Runner([tool(here, isolation="process")])
    except DefinitionError as error:
        print("refused" if "my_tools.py" in str(error) else error)
    print(asyncio.run(Runner([tool(tools.add, isolation="process")]).run("add", {"a": 1})).output)
"""


def test_a_script_is_not_run_again_and_its_functions_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    here = str(Path(__file__).parent)
    done = subprocess.run([sys.executable, str(script), here], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["top", "refused", "3"], done.stderr


def test_importing_ferrule_starts_no_process() -> None:
    code = "import sys, ferrule; print([m for m in sys.modules if m in ('ferrule.executors.process', 'subprocess')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout.replace("'", '"')) in ([], ["subprocess"]), done.stderr
