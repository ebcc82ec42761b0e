"""Connections to MCP servers: started, lost, started again, and left without a trace."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp_servers import ERAS, PROGRAM, made, start_error

from ferrule import Runner, mcp
from products import sampled
from waits import BOUND, until


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("mode", sampled(ERAS, one_in=2))
async def test_a_program_that_dies_is_started_again_and_gone_at_the_end(mode: mcp.Mode) -> None:
    servers = mcp.connect(mcp.Stdio(PROGRAM[0], PROGRAM[1:], mode=mode))
    async with servers as toolset:
        runner = Runner(toolset)
        assert (await runner.run("echo", {"text": "héllo"})).output == "héllo"
        [status] = servers.status.values()
        assert status.protocol == {"auto": "2026-07-28", "legacy": "2025-11-25"}[mode]
        first = int((await runner.run("pid")).output)
        beside = asyncio.ensure_future(runner.run("die", {"text": "beside"}))
        died = await runner.run("die")
        assert [died.status, died.executed] == ["failed", None]
        assert "connection to" in str(died.error) and "effect may have happened" in str(died.error)
        assert (await beside).executed is None
        second = int((await runner.run("pid")).output)
    assert first != second and not is_running(first) and not is_running(second)


@pytest.mark.parametrize("does", ["", "echo a line;"])
async def test_a_program_that_dies_fails_its_open_calls_although_a_child_holds_its_pipes(
    does: str, tmp_path: Path
) -> None:
    """Also a call that it has read a part of, and the one behind that."""
    alive = tmp_path / "alive"
    alive.touch()
    child = f"while test -e {alive}; do {does} sleep 0.02; done"
    setsid = 'import os, sys; os.setsid(); os.execvp("sh", ["sh", "-c", sys.argv[1]])'  # so that it outlives its group
    program = ["sh", "-c", 'exec 3<&0; "$0" -c "$1" "$2" <&3 & exec "$0" "$3"', sys.executable, setsid, child]
    program.append(str(Path(__file__).parent / "raw_server.py"))
    try:
        async with mcp.connect(mcp.Stdio(program[0], program[1:], name="p", mode="legacy")) as toolset:
            runner = Runner(toolset, timeout=BOUND)
            for size in (0, 900_000):
                pid = int((await runner.run("p__pid")).output)
                os.kill(pid, signal.SIGSTOP)  # it reads no more
                calls = [asyncio.ensure_future(runner.run("p__hi", {"data": size * "x"})) for _ in range(2)]
                for _ in range(100):
                    await asyncio.sleep(0)
                os.kill(pid, signal.SIGKILL)
                results = await asyncio.gather(*calls)
                assert [(one.status, one.executed) for one in results] == [("failed", None)] * 2
            assert (await runner.run("p__hi")).output == "hi"
    finally:
        alive.unlink()


async def test_a_program_that_cannot_start_is_named_with_the_end_of_what_it_wrote() -> None:
    assert "the program '/nowhere/at-all' does not exist" in await start_error(["/nowhere/at-all"])
    code = "import os, sys; print('not a key:', os.environ['OPAQUE'], file=sys.stderr); sys.exit(1)"
    error = await start_error(mcp.Stdio(sys.executable, ["-c", code], env={"OPAQUE": "blue-horse-7"}))
    assert "not a key: ***" in error and "blue-horse" not in error


async def test_a_silent_program_is_given_up_and_its_process_is_gone(
    tmp_path: Path, let_time_pass: Callable[[], None]
) -> None:
    file = tmp_path / "pid"
    silent = ["sh", "-c", f"read asked; echo $$ > {file}; exec sleep 3600"]
    starting = asyncio.ensure_future(start_error(silent, start_timeout=BOUND))
    await until(lambda: file.exists() and file.read_text())
    let_time_pass()
    assert "did not answer within 60 s" in await starting
    assert not is_running(int(file.read_text()))


async def test_a_server_that_cannot_start_does_not_stop_the_others() -> None:
    there, missing = made().memory(name="there"), mcp.Stdio("/nowhere/at-all", name="missing")
    servers = mcp.connect(there, missing)
    async with servers as toolset:
        assert [tool.name for tool in toolset] == ["there__one"]
        assert servers.status["missing"].state == "down"
        assert "/nowhere/at-all" in servers.status["missing"].reason
    assert "missing is down" in await start_error(made().memory(name="there"), missing, required=True)


async def test_nothing_is_sent_after_the_servers_are_left() -> None:
    servers = mcp.connect(made().memory())
    assert {status.state for status in servers.status.values()} == {"idle"}
    async with servers as toolset:
        assert {status.state for status in servers.status.values()} == {"ready"}
    result = await Runner(toolset).run("one")
    assert result.executed is False and "closed" in str(result.error)
    assert {status.state for status in servers.status.values()} == {"closed"}
    with pytest.raises(RuntimeError, match="entered once"):
        async with servers:
            pass


@pytest.mark.parametrize("mode", ERAS)
async def test_leaving_the_servers_ends_running_calls(mode: mcp.Mode) -> None:
    entered = asyncio.Event()

    async def wait(context: Any, arguments: Any) -> Any:
        entered.set()
        await asyncio.Event().wait()

    async with mcp.connect(made("wait", wait).memory(mode)) as toolset:
        waiting = asyncio.ensure_future(Runner(toolset).run("wait"))
        await entered.wait()
    result = await waiting
    assert (result.status, result.executed) == ("failed", None) and "was left before" in str(result.error)


async def test_a_call_on_another_event_loop_is_refused() -> None:
    async with mcp.connect(made().memory()) as toolset:
        result = await asyncio.to_thread(lambda: asyncio.run(Runner(toolset).run("one")))
        assert result.executed is False and "another event loop" in str(result.error)


@pytest.mark.large
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_noise_of_a_program_is_logged_bounded_and_without_its_secrets(
    stream: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ferrule.mcp._log.monotonic", lambda: 7.0)  # all lines are written within one second
    code = f"""
import os, runpy, sys
for number in range(2_000):
    print("loading", os.environ["OPAQUE"], number, "x" * 5_000, file=sys.{stream})
sys.{stream}.flush()
runpy.run_path({PROGRAM[1]!r})
"""
    server = mcp.Stdio(sys.executable, ["-c", code], env={"OPAQUE": "blue-horse-7"}, name="p")
    with caplog.at_level(logging.INFO):
        async with mcp.connect(server) as toolset:
            assert (await Runner(toolset).run("p__echo", {"text": "there"})).output == "there"
    lines = [record.getMessage() for record in caplog.records if "loading" in record.getMessage()]
    assert "loading *** 0 xxx" in lines[0] and max(map(len, lines)) < 1100 and len(lines) == 100
    assert {record.name for record in caplog.records if record.levelno >= logging.WARNING} <= {"ferrule.mcp"}
    assert "blue-horse" not in caplog.text and "Traceback" not in caplog.text


async def test_a_program_gets_the_few_usual_variables_and_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "of the parent")
    async with mcp.connect(mcp.Stdio(PROGRAM[0], PROGRAM[1:], env={"ITS_OWN": "value"})) as toolset:
        runner = Runner(toolset)
        found = [(await runner.run("environment", {"text": name})).output for name in ("A_SECRET", "ITS_OWN")]
    assert found == ["(not there)", "value"]
