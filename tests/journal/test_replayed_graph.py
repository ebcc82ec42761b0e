"""A graph that runs a step again from its start, as frameworks of graphs do after an interruption or a crash: what the
step has changed before is not changed again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ferrule import Journal, Runner, ToolCall, tool
from ferrule.journal import memory

CALLS = [("call_0", "pay", {"euros": 5}), ("call_1", "note", {"text": "paid"}), ("call_2", "pay", {"euros": 7})]


class Interrupted(Exception):
    """The step waits for a person."""


class Graph:
    """What is saved is what each step has ended with; a step that was interrupted begins anew."""

    def __init__(self, file: Path, *steps: Callable[[dict[str, Any]], Any]) -> None:
        self.file, self.steps = file, steps

    async def run(self, thread: str) -> dict[str, Any]:
        state = json.loads(self.file.read_text()) if self.file.exists() else {"thread": thread, "done": 0}
        for step in self.steps[state["done"] :]:
            state = {**state, **await step(state), "done": state["done"] + 1}
            self.file.write_text(json.dumps(state))
        return state


class Desk:
    """A model's turn, and a step that makes its calls; before the last of them a person is waited for."""

    def __init__(self, folder: Path, interrupt: Callable[[], None], **options: Any) -> None:
        bank = self.bank = folder / "bank.txt"

        @tool
        async def pay(euros: int) -> str:
            """Pay."""
            with bank.open("a") as file:
                file.write(f"{euros}\n")
            return f"paid {euros}"

        @tool(destructive=False)
        async def note(text: str) -> str:
            """Write a note."""
            return "noted"

        self.interrupt, self.runner = interrupt, Runner([pay, note], **options)
        self.graph = Graph(folder / "state.json", self.model, self.tools)

    async def model(self, state: dict[str, Any]) -> dict[str, Any]:
        return {"calls": CALLS}

    async def tools(self, state: dict[str, Any]) -> dict[str, Any]:
        *first, last = [ToolCall(*one) for one in state["calls"]]
        results = await self.run(first, state)
        self.interrupt()
        return {"said": [*results, *await self.run([last], state)]}

    async def run(self, calls: Sequence[ToolCall], state: dict[str, Any]) -> list[str]:
        return [result.text for result in await self.runner.run_all(calls, session=state["thread"], turn="1")]

    def paid(self) -> list[str]:
        return self.bank.read_text().split()


@pytest.mark.parametrize(("journal", "paid"), [(None, ["5", "5", "5", "7"]), (memory, ["5", "7"])], ids=["none", "one"])
async def test_a_graph_that_is_run_again_from_its_start_pays_once(
    journal: Any, paid: list[str], tmp_path: Path
) -> None:
    waits = [Interrupted(), Interrupted()]

    def interrupt() -> None:
        if waits:
            raise waits.pop()

    async def main() -> dict[str, Any]:
        desk = Desk(tmp_path, interrupt, journal=journal and journal())
        for _ in range(2):
            with pytest.raises(Interrupted):
                await desk.graph.run("t1")
        state = await desk.graph.run("t1")
        assert desk.paid() == paid
        return state

    assert (await main())["said"] == ["paid 5", "noted", "paid 7"]


def main(folder: Path, killed: bool) -> None:
    """The program of the test below."""

    def interrupt() -> None:
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)

    journal = Journal.open(folder / "calls.db")
    print(asyncio.run(Desk(folder, interrupt, journal=journal).graph.run("t1"))["said"])
    journal.close()


@pytest.mark.slow
def test_a_graph_that_is_run_again_in_another_process_pays_once(tmp_path: Path) -> None:
    codes = []
    for killed in ("killed", "killed", ""):
        command = [sys.executable, __file__, os.fspath(tmp_path), killed]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
        codes.append(ended.returncode)
    assert codes == [-9, -9, 0] and ended.stdout == "['paid 5', 'noted', 'paid 7']\n", ended.stderr
    assert (tmp_path / "bank.txt").read_text().split() == ["5", "7"]


if __name__ == "__main__":
    main(Path(sys.argv[1]), bool(sys.argv[2]))
