"""A program of its own on DBOS: `step FOLDER`, whose run is a workflow, or `workflows FOLDER`, whose calls are. It is
started again after it has died."""

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
PLACE = dbos.workflows() if MODE == "workflows" else None
TOOLS = [
    tool(far_tools.note_or_die, isolation=PLACE),
    tool(far_tools.note_or_die, name="look", read_only=True, isolation=PLACE),
]
RUNNER = Runner(TOOLS, inside=[dbos.step()] if MODE == "step" else [])


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


@DBOS.workflow()
async def agent() -> list[list[Any]]:
    return await both()


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
