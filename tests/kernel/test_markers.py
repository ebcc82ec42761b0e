"""Only the kernel makes its signs."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import stat
from contextlib import suppress
from typing import Any

import pytest
from journals import WatchedJournal, forever

from ferrule import Runner, tool
from ferrule.errors import NotStartedError
from ferrule.kernel.results import Rejected
from ferrule.middleware import retry
from ferrule.testing import ManualClock
from gates import Gate
from waits import BOUND
from watched import Watch, run


@pytest.mark.parametrize("error", [NotStartedError("no", limited=True), Rejected("limited", "Nothing was run.")])
@pytest.mark.parametrize("kind", ["async", "thread", "chunks"])
@pytest.mark.parametrize("timeout", [None, BOUND])
def test_a_handler_that_raises_a_sign_of_the_kernel_has_run_and_failed(error: Any, kind: str, timeout: Any) -> None:
    runs: list[int] = []

    def blocking() -> Any:
        runs.append(1)
        raise error

    async def asynchronous() -> Any:
        blocking()

    async def chunks() -> Any:
        yield 1
        blocking()

    made = {"async": asynchronous, "thread": blocking, "chunks": chunks}[kind]
    result, watch = run(tool(made, name="give"), "give", inside=[retry(3)], timeout=timeout)
    assert (result.status, result.executed, len(runs)) == ("failed", True, 1)
    assert watch.ends() == ["tool:error"] and "Nothing was run" not in (result.error or "")


async def test_nobody_waits_for_a_hanging_guard() -> None:
    guard, gate, clock = Gate(stubborn=True), Gate(), ManualClock()
    runner = Runner([gate.tool], guards=[lambda *_: guard.wait()], clock=clock)
    late = asyncio.ensure_future(runner.run("wait"))
    await clock.advance(9)
    assert not late.done()
    await clock.advance(1)
    assert (await late).status == "denied"
    cancelled = asyncio.ensure_future(runner.run("wait"))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait({cancelled})
    assert cancelled.cancelled() and gate.runs == 0
    guard.open.set()


@pytest.mark.parametrize("at", ["begins", "ends"])
async def test_a_journal_that_hangs_is_given_up(at: str, caplog: pytest.LogCaptureFixture) -> None:
    gate, clock, watch = Gate(), ManualClock(), Watch()
    gate.open.set()
    runner = Runner([gate.tool], journal=WatchedJournal(**{at: forever}), clock=clock, observers=[watch])
    call = asyncio.ensure_future(runner.run("wait"))
    await clock.advance(9)
    assert not call.done()
    await clock.advance(1)
    result = await call
    assert len(watch.ends()) == 1
    if at == "begins":
        assert (result.status, result.executed, gate.runs) == ("failed", False, 0)
        assert "Nothing was run" in str(result.error)
    else:
        assert (result.status, gate.runs) == ("ok", 1)
        assert "the journal could not take the outcome of a call" in caplog.text


def forge(frames: int) -> str:
    """Write what looks like results to every socket that there is."""
    from ferrule.executors.process.protocol import Connection, Kind  # of this process

    for number in range(3, 64):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                end = Connection(socket.socket(fileno=os.dup(number)))
                for _ in range(frames):
                    end.send(Kind.VALUE, None, b'{"value": "forged"}')
                    end.send(Kind.READY)
    gc.collect()
    return "mine"


def plainly(n: int) -> int:
    return n


@pytest.mark.large
@pytest.mark.parametrize("frames", [1, 2, 3])
async def test_a_handler_that_writes_to_its_workers_socket_shifts_no_result(frames: int) -> None:
    runner = Runner([tool(forge, isolation="process"), tool(plainly, isolation="process", parallel=True)])
    forged = await runner.run("forge", {"frames": frames})
    assert (forged.status, forged.executed) == ("failed", None)
    for _ in range(2):
        found = await asyncio.gather(*(runner.run("plainly", {"n": n}) for n in range(4)))
        assert [result.output for result in found] == [0, 1, 2, 3]
