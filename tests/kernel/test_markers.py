"""The kernel's own signs, made by a handler, a guard or a worker, and a journal that hangs."""

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

from ferrule import Runner, ask, deny, tool
from ferrule.errors import NotStartedError
from ferrule.kernel import tasks
from ferrule.kernel.results import Rejected
from ferrule.middleware import retry
from waits import BOUND
from watched import run


@pytest.mark.parametrize("error", [NotStartedError("no", limited=True), Rejected("limited", "Nothing was run.")])
@pytest.mark.parametrize("way", ["async", "thread", "awaited", "chunks"])
@pytest.mark.parametrize("timeout", [None, BOUND])
def test_a_handler_that_raises_a_sign_of_the_kernel_has_run_and_failed(
    error: BaseException, way: str, timeout: float | None
) -> None:
    runs: list[int] = []

    async def asynchronous() -> Any:
        runs.append(1)
        raise error

    def blocking() -> Any:
        runs.append(1)
        raise error

    async def chunks() -> Any:
        runs.append(1)
        yield 1
        raise error

    made = {"async": asynchronous, "thread": blocking, "awaited": lambda: asynchronous(), "chunks": chunks}[way]
    result, watch = run(tool(made, name="give"), "give", inside=[retry(3)], timeout=timeout)
    assert (result.status, result.executed, len(runs)) == ("failed", True, 1)
    assert watch.ends() == ["tool:error"] and "Nothing was run" not in (result.error or "")


@pytest.mark.parametrize("reason", [None, 42, b"no", object()])
def test_a_decision_with_a_reason_that_is_no_text_is_a_decision(reason: Any) -> None:
    @tool
    async def give() -> None:
        raise AssertionError

    for decision in (deny(reason), ask(reason)):
        result, _ = run(give, "give", guards=[lambda call, context, decision=decision: decision])
        assert (result.status, result.executed) == ("denied", False)
        assert (result.error or "").startswith("Denied: ")


async def test_an_awaited_guard_that_ignores_its_cancellation_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "ANSWER_SECONDS", 0.02)

    finish = asyncio.Event()

    async def stubborn(call: Any, context: Any) -> None:
        while not finish.is_set():
            with suppress(asyncio.CancelledError):
                await finish.wait()

    @tool
    async def give() -> None:
        raise AssertionError

    runner = Runner([give], guards=[stubborn])
    assert (await runner.run("give")).status == "denied"
    batch = asyncio.ensure_future(runner.run("give"))
    await asyncio.sleep(0)
    batch.cancel()
    await asyncio.wait({batch})
    assert batch.cancelled()
    finish.set()


@pytest.mark.parametrize("kind", ["begins", "ends"])
def test_a_journal_that_hangs_is_given_up(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert tasks.ANSWER_SECONDS == 10.0
    monkeypatch.setattr(tasks, "ANSWER_SECONDS", 0.02)
    runs: list[int] = []

    @tool
    async def give() -> str:
        runs.append(1)
        return "given"

    result, watch = run(give, "give", journal=WatchedJournal(**{kind: forever}))
    assert len(watch.ends()) == 1
    if kind == "begins":
        assert (result.status, result.executed, runs) == ("failed", False, []) and "Nothing was run" in str(
            result.error
        )
    else:
        assert (result.status, runs) == ("ok", [1])
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


@pytest.mark.parametrize("frames", [1, 2, 3])
async def test_a_handler_that_writes_to_its_workers_socket_shifts_no_result(frames: int) -> None:

    runner = Runner([tool(forge, isolation="process"), tool(plainly, isolation="process", parallel=True)])
    forged = await runner.run("forge", {"frames": frames})
    assert (forged.status, forged.executed) == ("failed", None)
    for _ in range(2):
        found = await asyncio.gather(*(runner.run("plainly", {"n": n}) for n in range(4)))
        assert [result.output for result in found] == [0, 1, 2, 3]
