"""The tools of `ferrule.tools` keep the contract that users run on theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx2

from ferrule import Runner, Tool, ToolContext, tool
from ferrule.testing import CallArguments, ToolContract
from ferrule.tools import background, code, files, http


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


class TestWriteFile(FilesContract):
    def tool(self) -> Tool:
        return files.write_file

    def failing(self) -> Iterable[CallArguments]:
        return [{"path": "notes", "content": ""}, {"path": "b.txt/c.txt", "content": ""}]


class TestEditFile(FilesContract):
    def tool(self) -> Tool:
        return files.edit_file

    def arguments(self) -> Iterable[CallArguments]:
        return [*super().arguments(), {"path": "b.txt", "old": "one", "new": "one!"}]

    def failing(self) -> Iterable[CallArguments]:
        return [{"path": "b.txt", "old": "four", "new": "4"}, {"path": "no.txt", "old": "a", "new": "b"}]


class TestListFiles(FilesContract):
    def tool(self) -> Tool:
        return files.list_files

    def arguments(self) -> Iterable[CallArguments]:
        return [*super().arguments(), {}, {"path": "notes"}]

    def failing(self) -> Iterable[CallArguments]:
        return [{"path": "no"}, {"path": "b.txt"}]


class TestSearchFiles(FilesContract):
    def tool(self) -> Tool:
        return files.search_files

    def arguments(self) -> Iterable[CallArguments]:
        return [*super().arguments(), {"pattern": "t.o"}]

    def failing(self) -> Iterable[CallArguments]:
        return [{"pattern": "("}, {"pattern": "a", "path": "no"}]


class TestHttp(ToolContract):
    """Each URL of a short site, and one whose answer never comes."""

    def tool(self) -> Tool:
        async def answer(request: httpx2.Request) -> httpx2.Response:
            if request.url.path == "/slow":
                await asyncio.Event().wait()
            return httpx2.Response(404 if request.url.path == "/none" else 200, html="<h1>Lamps</h1>")

        return http.tool(["a.test"], resolve=lambda name: ["93.184.216.34"], transport=httpx2.MockTransport(answer))

    def arguments(self) -> Iterable[CallArguments]:
        return [*super().arguments(), {"url": "https://a.test/"}]

    def failing(self) -> Iterable[CallArguments]:
        return [{"url": "https://b.test/"}, {"url": "https://a.test/none"}, {"url": "x" * 100_000}]

    def slow(self) -> CallArguments:
        return {"url": "https://a.test/slow"}


class OfWorkContract(ToolContract):
    """There is no work of any ticket, so no call goes well and none takes long."""

    test_outputs_fit_the_output_schema = None  # type: ignore[assignment]
    test_a_call_stops_at_its_deadline = None  # type: ignore[assignment]
    test_a_cancelled_call_stops = None  # type: ignore[assignment]

    def failing(self) -> Iterable[CallArguments]:
        return [{"ticket": ""}, {"ticket": "t" * 5000}]


class TestCheckCall(OfWorkContract):
    def tool(self) -> Tool:
        return background.check_call


class TestCancelCall(OfWorkContract):
    def tool(self) -> Tool:
        return background.cancel_call


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
