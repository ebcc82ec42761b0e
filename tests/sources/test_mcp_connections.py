"""Connections to MCP servers: started, lost, started again, and left without a trace."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp.server.lowlevel import Server
from mcp_servers import ERAS, PROGRAM, made

from ferrule import DefinitionError, Event, Runner, mcp
from products import sampled
from waits import BOUND


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("mode", sampled(ERAS, one_in=2))
async def test_a_program_is_called_killed_started_again_and_gone(mode: mcp.Mode) -> None:
    async def main() -> list[int]:
        servers = mcp.connect(mcp.Stdio(PROGRAM[0], PROGRAM[1:], mode=mode))
        async with servers as toolset:
            runner = Runner(toolset)
            assert (await runner.run("echo", {"text": "héllo"})).output == "héllo"
            assert [status.protocol for status in servers.status.values()] == [
                {"auto": "2026-07-28", "legacy": "2025-11-25"}[mode]
            ]
            pids = [int((await runner.run("pid")).output)]
            beside = asyncio.ensure_future(runner.run("die", {"text": "beside"}))
            died = await runner.run("die")
            assert [died.status, died.executed] == ["failed", None]
            assert "connection to" in str(died.error) and "effect may have happened" in str(died.error)
            assert (await beside).executed is None
            pids.append(int((await runner.run("pid")).output))
            return pids

    pids = await main()
    assert pids[0] != pids[1] and not any(map(is_running, pids))


@pytest.mark.parametrize("does", ["", "echo a line;"])
async def test_one_that_dies_fails_all_open_calls_although_a_child_holds_its_pipes(does: str, tmp_path: Path) -> None:
    """Also a call that it has read a part of, and the one behind that."""
    alive = tmp_path / "alive"
    alive.touch()
    child = f"while test -e {alive}; do {does} sleep 0.02; done"
    setsid = 'import os, sys; os.setsid(); os.execvp("sh", ["sh", "-c", sys.argv[1]])'  # so that it outlives its group
    program = ["sh", "-c", 'exec 3<&0; "$0" -c "$1" "$2" <&3 & exec "$0" "$3"', sys.executable, setsid, child]
    program.append(str(Path(__file__).parent / "raw_server.py"))

    async def main() -> None:
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

    try:
        await main()
    finally:
        alive.unlink()


async def test_one_that_dies_again_and_again_is_not_started_at_every_call() -> None:

    servers = mcp.connect(PROGRAM, name="p")
    async with servers as toolset:
        runner = Runner(toolset)
        for _ in range(2):  # each time it writes to its standard error, which is not for a model
            assert "told to die" not in (await runner.run("p__die")).text
        assert "told to die" in servers.status["p"].reason
        refused = await runner.run("p__echo", {"text": "x"})
        assert (refused.status, refused.executed) == ("failed", False)
        assert "p is down; Ferrule tries again in 0." in str(refused.error)
        assert "Nothing was run" in str(refused.error)
        assert 0 < refused.metadata["retry_after"] <= 0.5
        assert servers.status["p"].state == "down" and servers.status["p"].retry_in > 0


async def test_the_reason_has_the_end_of_what_a_program_wrote_before_it_ended() -> None:
    command = [sys.executable, "-c", "import sys; print('no key is set', file=sys.stderr); sys.exit(1)"]

    async def main() -> None:
        async with mcp.connect(command):
            raise AssertionError("it did not start")

    with pytest.raises(mcp.ServersDownError, match="no key is set"):
        await main()


async def test_a_program_that_is_not_there_is_named() -> None:
    async def main() -> None:
        async with mcp.connect(["/nowhere/at-all"]):
            raise AssertionError("it did not start")

    with pytest.raises(mcp.ServersDownError, match="the program '/nowhere/at-all' does not exist"):
        await main()


async def test_one_that_says_nothing_is_given_up_and_its_process_is_gone(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    code = f"import os, sys; open({str(told)!r}, 'w').write(str(os.getpid())); sys.stdin.read()"

    async def main() -> None:
        async with mcp.connect([sys.executable, "-c", code], start_timeout=1):
            raise AssertionError("it did not start")

    with pytest.raises(mcp.ServersDownError, match="did not answer within 1 s"):
        await main()
    assert not is_running(int(told.read_text()))


async def test_one_that_cannot_start_does_not_stop_the_others() -> None:
    there, missing = made().memory(name="there"), mcp.Stdio("/nowhere/at-all", name="missing")

    servers = mcp.connect(there, missing)
    async with servers as toolset:
        assert [tool.name for tool in toolset] == ["there__one"]
        assert servers.status["missing"].state == "down"
        assert "/nowhere/at-all" in servers.status["missing"].reason

    with pytest.raises(mcp.ServersDownError, match="missing is down"):
        async with mcp.connect(made().memory(name="there"), missing, required=True):
            raise AssertionError("one is missing")


async def test_after_it_is_left_nothing_is_sent() -> None:

    servers = mcp.connect(made().memory())
    assert {status.state for status in servers.status.values()} == {"idle"}
    async with servers as toolset:
        assert {status.state for status in servers.status.values()} == {"ready"}
    result = await Runner(toolset).run("one")
    assert result.executed is False and "closed" in str(result.error)
    assert {status.state for status in servers.status.values()} == {"closed"}
    with pytest.raises(RuntimeError, match="entered once"):
        async with servers:
            raise AssertionError("it was entered twice")


@pytest.mark.parametrize("mode", ERAS)
async def test_leaving_ends_the_calls_under_way(mode: mcp.Mode) -> None:

    entered = asyncio.Event()

    async def wait(context: Any, arguments: Any) -> Any:
        entered.set()
        await asyncio.Event().wait()

    async with mcp.connect(made("wait", wait).memory(mode)) as toolset:
        waiting = asyncio.ensure_future(Runner(toolset).run("wait"))
        await entered.wait()
    async with asyncio.timeout(BOUND):
        result = await waiting
    assert (result.status, result.executed) == ("failed", None) and "was left before" in str(result.error)


async def test_a_server_in_memory_that_ended_is_started_again() -> None:

    async def end(context: Any, arguments: Any) -> Any:
        raise asyncio.CancelledError

    servers = mcp.connect(made("end", end).add("other").memory("legacy"))
    async with servers as toolset:
        runner = Runner(toolset)
        assert (await runner.run("end")).executed is None
        while servers.status["made"].state == "ready":
            await asyncio.sleep(0)
        assert (await runner.run("other")).success


async def test_another_loop_is_told_so() -> None:

    async with mcp.connect(made().memory()) as toolset:
        result = await asyncio.to_thread(lambda: asyncio.run(Runner(toolset).run("one")))
        assert result.executed is False and "another event loop" in str(result.error)


@pytest.mark.parametrize(
    ("mode", "how"),
    sampled([("auto", "deadline"), ("auto", "cancel"), ("legacy", "cancel"), ("legacy", "deadline")], one_in=2),
)
async def test_a_deadline_and_a_cancellation_reach_the_program(mode: mcp.Mode, how: str, tmp_path: Path) -> None:
    told = tmp_path / "told"

    started = asyncio.Event()

    def observe(event: Event) -> None:
        if event.kind == "tool:progress":
            started.set()

    async with mcp.connect(mcp.Stdio(PROGRAM[0], [*PROGRAM[1:], str(told)], mode=mode)) as toolset:
        runner = Runner(toolset, observers=[observe])
        if how == "deadline":
            result = await runner.run("wait", {"text": how}, timeout=0.5)
            assert result.status == "timeout"
        else:
            waiting = asyncio.ensure_future(runner.run("wait", {"text": how}))
            await started.wait()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert (await runner.run("echo", {"text": "still there"})).output == "still there"
        assert told.read_text() == f"cancelled {how}"


@pytest.fixture
def within_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock of the log, so that all lines are written within one second."""
    monkeypatch.setattr("ferrule.mcp._log.monotonic", lambda: 7.0)


@pytest.mark.usefixtures("within_a_second")
async def test_what_a_program_writes_to_its_standard_error_is_logged_and_bounded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with mcp.connect(PROGRAM, name="p") as toolset:
            runner = Runner(toolset)
            assert (await runner.run("p__complain", {"text": "500"})).success

    with caplog.at_level(logging.INFO, "ferrule.mcp"):
        await main()
    lines = [record.getMessage() for record in caplog.records if "complaint" in record.getMessage()]
    assert lines[0].startswith("p: complaint 0 x") and max(map(len, lines)) < 1100
    assert len(lines) == 100


async def test_no_value_of_its_variables_is_shown_of_what_a_program_says(caplog: pytest.LogCaptureFixture) -> None:
    code = "import os, sys; print('I have', os.environ['OPAQUE'], file=sys.stderr); sys.exit(1)"

    async def main() -> None:
        async with mcp.connect(mcp.Stdio(sys.executable, ["-c", code], env={"OPAQUE": "blue-horse-7"})):
            raise AssertionError("it did not start")

    with caplog.at_level(logging.INFO, "ferrule.mcp"), pytest.raises(mcp.ServersDownError) as raised:
        await main()
    assert "I have ***" in str(raised.value)
    assert "I have ***" in caplog.text and "blue-horse" not in str(raised.value) + caplog.text


@pytest.mark.usefixtures("within_a_second")
async def test_what_a_program_writes_to_its_standard_output_that_is_no_message_is_logged_and_bounded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    code = f"""
import os, runpy, sys
for number in range(2_000):
    print("loading", os.environ["OPAQUE"], number, "x" * 5_000)
sys.stdout.flush()
runpy.run_path({PROGRAM[1]!r})
"""

    async def main() -> None:
        server = mcp.Stdio(sys.executable, ["-c", code], env={"OPAQUE": "blue-horse-7"}, name="p")
        async with mcp.connect(server) as toolset:
            assert (await Runner(toolset).run("p__echo", {"text": "there"})).output == "there"

    with caplog.at_level(logging.INFO):
        await main()
    lines = [record.getMessage() for record in caplog.records if "loading" in record.getMessage()]
    assert "loading *** 0 xxx" in lines[0] and max(map(len, lines)) < 1100 and len(lines) == 100
    assert {record.name for record in caplog.records if record.levelno >= logging.WARNING} == {"ferrule.mcp"}
    assert "blue-horse" not in caplog.text and "Traceback" not in caplog.text


async def test_a_program_gets_the_few_usual_variables_and_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "of the parent")

    async def main() -> list[str]:
        async with mcp.connect(mcp.Stdio(PROGRAM[0], PROGRAM[1:], env={"ITS_OWN": "value"})) as toolset:
            runner = Runner(toolset)
            return [(await runner.run("environment", {"text": name})).output for name in ("A_SECRET", "ITS_OWN")]

    assert (await main()) == ["(not there)", "value"]


async def test_without_the_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("ferrule.mcp._c")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp", None)

    async def main() -> None:
        async with mcp.connect(PROGRAM):
            raise AssertionError("it is not there")

    with pytest.raises(DefinitionError, match=r"pip install \"ferrule\[mcp\]\""):
        await main()


async def test_what_a_server_calls_itself_is_one_short_line_without_what_nobody_sees() -> None:
    async def main() -> str:
        name = "odd\n\x1b[31mroot is \u202eready" + "x" * 100_000
        servers = mcp.connect(Server(name, version="1"))
        async with servers:
            return next(iter(servers.status.values())).server

    found = await main()
    assert found.startswith("odd root is readyxxx") and len(found) <= 200
