"""What the tests of one's own tools look like to a type checker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ferrule import Runner, ToolCall, ToolHandler, tool
from ferrule.loop import run
from ferrule.models import Scripted
from ferrule.testing import Recorder, fake


@tool
async def delete_note(path: str, force: bool = False) -> str:
    """Delete a note."""
    return path


class Move(ToolHandler):
    """Move something."""

    to: str

    async def __call__(self) -> str:
        return self.to


def by_name(path: str, force: bool) -> str:
    return path if force else ""


async def of_all(arguments: Mapping[str, Any]) -> str:
    return str(arguments["path"])


async def a_test() -> None:
    recorder = Recorder()
    tools = fake([delete_note, Move], answers={"delete_note": by_name, "move": of_all})
    runner = Runner(tools, observers=[recorder])
    async with Scripted([[("delete_note", {"path": "a"})], ("Done.", [ToolCall("1", "move")]), "Bye."]) as model:
        result = await run(model, model.user("Delete a."), runner)
    text: str = result.text
    recorder.assert_called(delete_note, path=text, times=1)
    recorder.assert_called("delete_note", {"path": text})
    recorder.assert_not_called(Move, to="there")
    kinds: list[str] = [event.kind for event in recorder.events]
    names: list[str] = [one.name for request in model.requests for one in request.tools]
    assert kinds and names and model.requests[0].messages
    with Scripted(["Hello."]) as other:
        other.assert_done()
