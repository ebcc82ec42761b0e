"""What users write with artifacts; checked and never run."""

from __future__ import annotations

from typing import assert_type

from ferrule import Journal, Runner, Tool, ToolContext, tool
from ferrule.middleware import limit_output
from ferrule.stores import Artifact, Artifacts, Memory
from ferrule.tools.artifacts import read_artifact


@tool(read_only=True)
async def query(sql: str) -> list[dict[str, int]]:
    """Query the orders."""
    return [{"order": 1}]


kept = Artifacts("/var/lib/desk", keep=3_600, count=100, size=10_000_000, apart_from=["notes"])
places = [Artifacts(), Artifacts(Journal.open("calls.db")), Artifacts(Memory(), across_sessions=True)]
assert_type(read_artifact(kept, page=5_000), Tool)
runner = Runner([query, read_artifact(kept)], around=[limit_output(16_000, artifacts=kept)])


def open_whole(id: str, context: ToolContext) -> str:
    """The whole result, for a person."""
    found = kept.get(id, context)
    assert_type(found, Artifact | None)
    return "" if found is None else f"{found.shape}: {found.text}"
