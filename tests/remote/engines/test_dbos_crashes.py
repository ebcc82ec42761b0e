"""A worker is killed at each point of a call: nothing that changes something happens twice, and who waits knows."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import far_tools
import pytest
from killed_worker import POINTS
from workers import start

from ferrule import Runner, Tool, ToolCall, ToolResult, tool
from ferrule.remote import _dbos_database, dbos
from waits import wait_until

ROUNDS = int(os.environ.get("FERRULE_KILLS", "5"))
pytestmark = pytest.mark.time_limit(600)  # ROUNDS times three seconds each


class Workers:
    """Two workers, of which each that was killed is replaced."""

    def __init__(self, url: str, wanted: Path) -> None:
        self.url = url
        self.wanted = wanted
        self.running: list[subprocess.Popen[str]] = []

    def complete(self) -> None:
        for gone in [one for one in self.running if one.poll() is not None]:
            self.running.remove(gone)
            self.close(gone)
        while len(self.running) < 2:
            self.running.append(start(self.url, how="killed_worker.py"))

    def killed(self) -> None:
        """Wait until one of them was."""
        wait_until(lambda: not self.wanted.exists())

    def settled(self) -> None:
        """Wait until no call of before is left that could meet the next point."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            open_calls = "SELECT count(*) FROM dbos.workflow_status WHERE status IN ('PENDING', 'ENQUEUED')"
            wait_until(lambda: connection.execute(open_calls).fetchone() == (0,))

    def close(self, one: subprocess.Popen[str]) -> None:
        one.kill()
        one.wait()
        assert one.stderr is not None
        one.stderr.close()


@pytest.fixture(scope="module")
def workers(databases: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    made = Workers(databases("crashes"), tmp_path_factory.mktemp("kill") / "point")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAR_KILL", str(made.wanted))
        patch.setattr(_dbos_database, "ALIVE_SECONDS", 1.0)
        yield made
        for one in made.running:
            made.close(one)


def send(made: Tool, call_id: str, effect: Path) -> ToolResult:
    """The call, also where it comes again."""
    call = ToolCall(call_id, made.name, {"file": str(effect), "line": "done"})
    return asyncio.run(Runner([made]).run(call, session="s", principal="ann"))


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.parametrize("round", range(ROUNDS))
@pytest.mark.parametrize("point", POINTS)
def test_a_changing_call_happens_once_at_most(workers: Workers, tmp_path: Path, point: str, round: int) -> None:
    effect = tmp_path / "effect"
    made = tool(far_tools.note, isolation=dbos.queue("far", url=workers.url))
    workers.complete()
    workers.wanted.write_text(point)
    result = send(made, f"{point}{round}", effect)
    workers.killed()
    acknowledged = point in ("told", "recorded")
    assert (result.status, result.executed) == (("ok", True) if acknowledged else ("unknown", None)), result.error
    workers.settled()
    again = send(made, f"{point}{round}", effect)
    assert (again.status, again.output, again.executed) == (result.status, result.output, result.executed)
    assert lines(effect) == (["done"] if point in ("effect", "told", "recorded") else [])


@pytest.mark.parametrize("options", [{"read_only": True}, {"idempotent": True}])
@pytest.mark.parametrize("point", POINTS)
def test_a_repeatable_call_runs_on_another_worker(workers: Workers, tmp_path: Path, point: str, options: Any) -> None:
    effect = tmp_path / "effect"
    made = tool(far_tools.note, isolation=dbos.queue("far", url=workers.url), **options)
    workers.complete()
    workers.wanted.write_text(point)
    result = send(made, f"{point}{options}", effect)
    workers.killed()
    workers.settled()
    assert (result.status, result.output) == ("ok", "done")
    assert len(lines(effect)) == (2 if point in ("effect", "told") else 1)  # with the step recorded, nothing runs


async def test_a_caller_learns_that_no_worker_is_left(workers: Workers, tmp_path: Path) -> None:
    effect = tmp_path / "effect"
    made = tool(far_tools.die, isolation=dbos.queue("far", url=workers.url))
    workers.complete()
    workers.close(workers.running.pop())
    result = await Runner([made]).run("die", {"file": str(effect)})
    assert (result.status, result.executed, lines(effect)) == ("unknown", None, ["died"])
