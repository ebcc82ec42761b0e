"""A program of its own on DBOS: `step FOLDER` and `order FOLDER`, whose run is a workflow, or `workflows FOLDER`, whose
calls are. It is started again after it has died."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pysqlite3

sys.modules["sqlite3"] = pysqlite3
sys.modules["sqlite3.dbapi2"] = pysqlite3.dbapi2

import far_tools  # noqa: E402
from dbos import DBOS, SetWorkflowID  # noqa: E402

from ferrule import Runner, ToolCall, ToolResult, tool  # noqa: E402
from ferrule.remote import dbos  # noqa: E402

MODE, FOLDER = sys.argv[1], Path(sys.argv[2])
EFFECT, SEEN = str(FOLDER / "effect"), str(FOLDER / "seen")
TOOLS = [
    tool(far_tools.note_or_die, isolation=dbos.workflows() if MODE == "workflows" else None),
    tool(
        far_tools.look_or_die, name="look", read_only=True, isolation=dbos.workflows() if MODE == "workflows" else None
    ),
]
RUNNER = Runner(TOOLS, inside=[] if MODE == "workflows" else [dbos.step()])


def told(result: ToolResult) -> list[Any]:
    return [result.status, result.output, result.executed, bool(result.metadata.get("replayed"))]


async def both() -> list[list[Any]]:
    changed = await RUNNER.run(ToolCall("1", "note_or_die", {"file": EFFECT, "line": "changed"}), session="s")
    between = FOLDER / "between.die"
    if between.exists():
        between.unlink()
        os._exit(9)
    looked = await RUNNER.run(ToolCall("2", "look", {"file": SEEN, "line": "seen"}), session="s")
    return [told(changed), told(looked)]


async def in_another_order() -> list[list[Any]]:
    """Two calls of one tool that only reads; the first time the first one first, and then the other way round."""
    places = [FOLDER / "ann", FOLDER / "bob"]
    again = places[0].exists()
    results = {}
    for place in reversed(places) if again else places:
        call = ToolCall(place.name, "look", {"file": str(place), "line": place.name})
        results[place.name] = told(await RUNNER.run(call, session="s"))
    if not again:
        os._exit(9)
    return [results["ann"], results["bob"]]


@DBOS.workflow()
async def agent() -> list[list[Any]]:
    return await (in_another_order() if MODE == "order" else both())


async def main() -> list[list[Any]]:
    if MODE == "workflows":
        return await both()
    with SetWorkflowID("the-run"):
        return await agent()  # or what it came to


if __name__ == "__main__":
    url = os.environ["DBOS_SYSTEM_DATABASE_URL"]
    DBOS(config={"name": "durable", "system_database_url": url, "application_version": "1", "log_level": "CRITICAL"})
    DBOS.launch()
    print(json.dumps(asyncio.run(main())))
    DBOS.destroy()
