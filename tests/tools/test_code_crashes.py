"""A program whose process is killed: it goes on in another one, and repeats no call that had ended."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ferrule import Decision, Journal, Runner, ToolCall, ToolContext, ToolResult, tool
from ferrule.guards import ask_before_changes
from ferrule.tools import code
from waits import BOUND

KEY = b"k" * 32
STEPS = 4
PROGRAM = f"""
import random
done = []
for number in range({STEPS}):
    done.append(read(number))
    done.append(write(number, random.randint(0, 10 ** 9)))
done
"""


def make_runner(folder: Path, journal: Journal, *, dies_at: str = "") -> Runner:
    """A runner whose tools write into files; the process is killed at the point `dies_at`."""

    def log(line: str) -> None:
        with (folder / "log.txt").open("a") as file:
            file.write(line + "\n")

    def die(point: str) -> None:
        if point == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    @tool(read_only=True)
    async def read(number: int) -> int:
        """Return how many lines there are: another number each time."""
        log(f"read {number}")
        die(f"read {number}")
        return len((folder / "log.txt").read_text().splitlines())

    @tool
    async def write(number: int, value: int) -> str:
        die(f"before write {number}")
        log(f"write {number} {value}")
        return f"wrote {number} {value}"

    async def dies_after(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        result: ToolResult = await next(call, context)
        die(f"after {call.name} {call.arguments.get('number')}")
        return result

    def later(call: ToolCall, decision: Decision, context: ToolContext) -> Decision | bool:
        return decision if (folder / "asks").exists() else True

    shop = Runner([read, write], guards=[ask_before_changes], around=[dies_after])
    return Runner([code.tool(shop)], approve=later, journal=journal, resume_key=KEY)


async def run_once(folder: Path, dies_at: str = "") -> ToolResult:
    """Send the call, or resume it if there is a record of it."""
    record = folder / "record.json"
    with closing(Journal.open(folder / "calls.db")) as journal:
        runner = make_runner(folder, journal, dies_at=dies_at)
        if record.exists():
            return await runner.resume(json.loads(record.read_text()), True)
        call = ToolCall("p1", "run_program", {"program": PROGRAM})
        return await runner.run(call, session="s")


def die_at(folder: Path, point: str) -> None:
    """Run in a process of its own, which is killed at this point."""
    command = [sys.executable, __file__, str(folder), point]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, timeout=BOUND, check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr


def writes(folder: Path) -> list[str]:
    return [line for line in (folder / "log.txt").read_text().splitlines() if line.startswith("write")]


POINTS = ["read 0", "after read 1", "after write 0", f"after write {STEPS - 1}"]


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
async def test_a_killed_program_repeats_nothing(tmp_path: Path, point: str) -> None:
    die_at(tmp_path, point)

    result = await run_once(tmp_path)
    assert result.success, result.text
    lines = writes(tmp_path)
    assert [line.split()[1] for line in lines] == [str(number) for number in range(STEPS)]
    assert [f"wrote {line.removeprefix('write ')}" for line in lines] == result.output[1::2]


@pytest.mark.slow
async def test_a_change_that_was_cut_off_is_not_repeated(tmp_path: Path) -> None:
    die_at(tmp_path, "before write 1")

    result = await run_once(tmp_path)
    assert result.status == "failed" and "it is not known what came of that" in result.text
    assert [line.split()[1] for line in writes(tmp_path)] == ["0"]


async def test_ids_of_inner_calls_come_from_the_program(tmp_path: Path) -> None:
    for turn in ("1", "2"):  # a provider may use an id again in another turn
        with closing(Journal.open(tmp_path / "calls.db")) as journal:
            call = ToolCall("p1", "run_program", {"program": "write(1, 1)"})
            await make_runner(tmp_path, journal).run(call, session="s", turn=turn)
    assert writes(tmp_path) == ["write 1 1"] * 2


if __name__ == "__main__":
    asyncio.run(run_once(Path(sys.argv[1]), sys.argv[2]))
