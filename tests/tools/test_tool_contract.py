"""The tools of `ferrule.tools` keep the contract that users run on theirs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ferrule import Runner, Tool, ToolContext, tool
from ferrule.testing import CallArguments, ToolContract
from ferrule.tools import code, files


class FilesContract(ToolContract):
    """Each of them in a folder with two files; none has a call that takes long."""

    test_a_call_stops_at_its_deadline = None  # type: ignore[assignment]
    test_a_cancelled_call_stops = None  # type: ignore[assignment]

    def context(self, folder: Path) -> ToolContext[Any]:
        (folder / "notes").mkdir()
        (folder / "notes" / "a.txt").write_text("one\ntwo\nthree\n")
        (folder / "b.txt").write_text("one\n")
        return super().context(folder)


class TestReadFile(FilesContract):
    def tool(self) -> Tool:
        return files.read_file

    def arguments(self) -> Iterable[CallArguments]:
        return [*super().arguments(), {"path": "notes/a.txt"}, {"path": "b.txt"}, {"path": "notes"}]

    def failing(self) -> Iterable[CallArguments]:
        return [{"path": "no.txt"}, {"path": "notes"}, {"path": "x" * 5000}, {"path": "\0"}]


class TestEditFile(FilesContract):
    def tool(self) -> Tool:
        return files.edit_file

    def arguments(self) -> Iterable[CallArguments]:
        return [*super().arguments(), {"path": "b.txt", "old": "one", "new": "one!"}]

    def failing(self) -> Iterable[CallArguments]:
        return [{"path": "b.txt", "old": "four", "new": "4"}, {"path": "no.txt", "old": "a", "new": "b"}]


@tool(read_only=True)
async def double(number: int) -> int:
    return 2 * number


class TestRunProgram(ToolContract):
    """A program with nothing but a function."""

    def tool(self) -> Tool:
        return code.tool(Runner([double]))

    def arguments(self) -> Iterable[CallArguments]:
        return [*super().arguments(), {"program": "double(3)"}, {"program": "print(double(1))"}]

    def failing(self) -> Iterable[CallArguments]:
        return [{"program": "1 / 0"}, {"program": "dubble(3)"}, {"program": "double('x')"}, {"program": "("}]

    def slow(self) -> CallArguments:
        return {"program": "while True: pass"}
