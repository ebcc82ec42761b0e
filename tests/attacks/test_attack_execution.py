"""Attacks on execution: deadlines, slots, order, archive bombs, calls delivered twice."""

from __future__ import annotations

import asyncio
import gzip
import os
import threading
import zipfile
from pathlib import Path
from typing import Any

from sample import CASES, make_folder

from ferrule import Runner, ToolCall, ToolContext, tool
from ferrule.guards import ask_before_changes, within
from ferrule.testing import ManualClock
from ferrule.tools import files
from waits import BOUND


async def test_a_hanging_tool_with_a_limit_blocks_no_other() -> None:
    free = threading.Event()

    @tool(read_only=True, concurrency=8)
    def hangs() -> str:
        free.wait()
        return "late"

    @tool(read_only=True)
    def answers() -> str:
        return "here"

    async def main() -> str:
        runner = Runner([hangs, answers])
        hung = [asyncio.create_task(runner.run("hangs")) for _ in range(CASES["atk067"]["input"]["hung"])]
        await asyncio.sleep(0)
        try:
            return (await runner.run("answers", timeout=BOUND)).text
        finally:
            free.set()
            await asyncio.gather(*hung)

    assert (await main()) == "here"


async def test_the_file_tools_unpack_no_archive_bomb(tmp_path: Path) -> None:
    folder = make_folder(Path(os.path.realpath(tmp_path)))
    with zipfile.ZipFile(folder / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../new.txt", b"\0" * 20_000_000)
    (folder / "bomb.gz").write_bytes(gzip.compress(b"a\n" * 10_000_000))
    runner = Runner(files.tools, guards=[within(folder)])
    for name in ("bomb.zip", "bomb.gz"):
        for call, arguments in (("read_file", {}), ("search_files", {"pattern": "a"})):
            context = ToolContext[Any](working_directory=folder)
            result = await runner.run(call, {"path": name, **arguments}, context, timeout=BOUND)
            assert len(result.text) < 20_000 and result.status != "timeout"
    assert not (tmp_path / "new.txt").exists()


async def test_a_call_delivered_twice_runs_once() -> None:
    ran: list[str] = []

    @tool
    async def act(n: int) -> str:
        ran.append("act")
        await asyncio.sleep(0)
        return "done"

    twice = [ToolCall("c1", "act", '{"n": 1}') for _ in range(CASES["atk097"]["input"]["deliveries"])]
    results = await Runner([act]).run_all(twice)
    assert len(ran) == 1 and [result.call_id for result in results] == ["c1", "c1"]


async def test_a_waiting_call_holds_nothing() -> None:
    asked, answered, clock = asyncio.Event(), asyncio.Event(), ManualClock()

    async def approve(call: ToolCall, decision: Any, context: Any) -> bool:
        asked.set()
        await answered.wait()
        return True

    @tool(resources=lambda arguments: ["one"])
    async def act() -> str:
        return "acted"

    @tool(read_only=True, resources=lambda arguments: ["one"])
    async def look() -> str:
        return "looked"

    guards: Any = [ask_before_changes]
    runner = Runner([act, look], guards=guards, approve=approve, concurrency=1, timeout=5, clock=clock)
    first = asyncio.create_task(runner.run("act"))
    await asked.wait()
    assert (await runner.run("look")).output == "looked"
    await clock.advance(10)  # longer than the deadline
    answered.set()
    assert (await first).output == "acted"
