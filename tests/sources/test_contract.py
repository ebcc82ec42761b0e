"""Every source passes what every source promises."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import httpx2
import pytest
from mcp_servers import Made, text
from openapi_wire import document

from ferrule import DefinitionError, Tool, Toolset
from ferrule.sources import mcp, openapi, plugins, python
from ferrule.testing import Offer, SourceContract
from ferrule.testing.source_contract import Opened

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


class TestMCP(SourceContract):
    same_name = "left out"

    def server(self, offers: Mapping[str, Offer]) -> Made:
        async def say(context: Any, arguments: dict[str, Any]) -> Any:
            return text(f"said {arguments['text']}")

        async def fail(context: Any, arguments: dict[str, Any]) -> Any:
            return text("it failed", is_error=True)

        server = Made()
        for name, offer in offers.items():
            schema = {**TEXT, "properties": {"text": {"$ref": "#/nowhere"}}} if offer.is_wrong else TEXT
            server.add(name, fail if offer.fails else say, schema, description=offer.description)
        return server

    @asynccontextmanager
    async def opened(self, offers: Mapping[str, Offer]) -> AsyncIterator[Opened]:
        connected = mcp.connect(self.server(offers).memory())
        async with connected as tools:
            yield tools, connected.left_out

    @asynccontextmanager
    async def twice(self, name: str) -> AsyncIterator[Opened]:
        connected = mcp.connect(self.server({name: Offer(), name.upper(): Offer()}).memory())
        async with connected as tools:
            yield tools, connected.left_out


class Answering(httpx2.AsyncBaseTransport):
    """The API: says what it was sent."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path.startswith("/fails"):
            return httpx2.Response(400, text="it failed")
        return httpx2.Response(200, json={"said": json.loads(await request.aread())["text"]})


def api(offers: Mapping[str, Offer]) -> dict[str, Any]:
    """A document with these operations."""
    paths = {}
    for name, offer in offers.items():
        schema = {"$ref": "#/nowhere"} if offer.is_wrong else TEXT
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        path = f"/{'fails' if offer.fails else 'works'}/{name}"
        paths[path] = {"post": {"operationId": name, "description": offer.description, "requestBody": body}}
    return document(paths)


class TestOpenAPI(SourceContract):
    same_name = "cannot be"  # an operation whose id another one has is called by its path

    @asynccontextmanager
    async def opened(self, offers: Mapping[str, Offer]) -> AsyncIterator[Opened]:
        async with httpx2.AsyncClient(transport=Answering(), trust_env=False) as client:
            tools = openapi(api(offers), server="https://api.example.com", client=client)
            yield tools, tools.report.left_out


def source_of(name: str, offer: Offer) -> str:
    """The code of a tool."""
    body = "raise ValueError('it failed')" if offer.fails else "return f'said {text}'"
    wrong = "import nothing_that_is_installed\n" if offer.is_wrong else ""
    return f"{wrong}def {name}(text: str) -> str:\n    '''{offer.description}'''\n    {body}\n"


@contextmanager
def folder_of(offers: Mapping[str, Offer]) -> Iterator[Path]:
    """A folder with a file for each."""
    with tempfile.TemporaryDirectory() as name:
        for at, (called, offer) in enumerate(offers.items()):
            (Path(name) / f"f{at}_{called}.py").write_text(source_of(called, offer), encoding="utf-8")
        yield Path(name)


class TestPython(SourceContract):
    same_name = "refused"

    @asynccontextmanager
    async def opened(self, offers: Mapping[str, Offer]) -> AsyncIterator[Opened]:
        with folder_of(offers) as folder:
            tools = python(folder)
            yield tools, tools.report.left_out

    @asynccontextmanager
    async def twice(self, name: str) -> AsyncIterator[Opened]:
        with folder_of({name: Offer()}) as folder:
            (folder / "another.py").write_text(source_of(name, Offer()), encoding="utf-8")
            tools = python(folder)
            yield tools, tools.report.left_out


@contextmanager
def installed(*packages: tuple[str, Mapping[str, str]], group: str = "ferrule.tools") -> Iterator[Path]:
    """Packages, each with its modules, which offer the functions that are called like these."""
    with tempfile.TemporaryDirectory() as name, mock.patch.object(sys, "path", [name, *sys.path]):
        for package, modules in packages:
            info = Path(name) / f"{package}-1.2.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
            points = "".join(f"{called} = {package}_{called}:{called}\n" for called in modules)
            (info / "entry_points.txt").write_text(f"[{group}]\n{points}")
            for called, code in modules.items():
                (Path(name) / f"{package}_{called}.py").write_text(code, encoding="utf-8")
                sys.modules.pop(f"{package}_{called}", None)
        with mock.patch("ferrule.startup.IMPORT_PATH", (name,)):
            yield Path(name)


class TestPlugins(SourceContract):
    same_name = "left out"

    @asynccontextmanager
    async def opened(self, offers: Mapping[str, Offer]) -> AsyncIterator[Opened]:
        with installed(("shop", {name: source_of(name, offer) for name, offer in offers.items()})):
            tools = plugins("*")
            yield tools, tools.report.left_out

    @asynccontextmanager
    async def twice(self, name: str) -> AsyncIterator[Opened]:
        with installed(("shop", {name: source_of(name, Offer())}), ("zoo", {name: source_of(name, Offer())})):
            tools = plugins("*")
            yield tools, tools.report.left_out


# -- the contract finds what is wrong ----------------------------------------------------------------------------------


class Broken(TestPython):
    """A source that keeps the contract but for what `spoil` does."""

    __test__ = False

    def spoil(self, tool: Tool) -> Tool:
        return tool

    @asynccontextmanager
    async def opened(self, offers: Mapping[str, Offer]) -> AsyncIterator[Opened]:
        async with super().opened(offers) as (tools, left_out):
            yield Toolset(self.spoil(tool) for tool in tools), left_out


class SaysThatItReads(Broken):
    def spoil(self, tool: Tool) -> Tool:
        return tool.replace(read_only=True)


class IsOpen(Broken):
    def spoil(self, tool: Tool) -> Tool:
        async def handler(payload: dict[str, Any]) -> str:
            return f"said {payload['text']}"

        return Tool(
            tool.name, handler, description=tool.description, input_schema={**TEXT, "additionalProperties": True}
        )


class DropsWhatItDoesNotKnow(Broken):
    def spoil(self, tool: Tool) -> Tool:
        return tool.replace(unknown="drop")


class IsNewEachTime(Broken):
    count = 0

    def spoil(self, tool: Tool) -> Tool:
        IsNewEachTime.count += 1
        return tool.replace(version=str(self.count))


class KeepsSilent(Broken):
    @asynccontextmanager
    async def opened(self, offers: Mapping[str, Offer]) -> AsyncIterator[Opened]:
        async with super().opened(offers) as (tools, _):
            yield tools, ()


class StopsAtTheFirst(Broken):
    @asynccontextmanager
    async def opened(self, offers: Mapping[str, Offer]) -> AsyncIterator[Opened]:
        async with super().opened(offers) as (tools, left_out):
            if left_out:
                raise DefinitionError(str(left_out[0]))
            yield tools, left_out


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (SaysThatItReads, "test_a_tool_says_nothing_of_itself_that_it_does_not_know"),
        (IsOpen, "test_wrong_and_unknown_arguments_reach_no_tool"),
        (IsOpen, "test_the_schema_says_what_is_taken_and_that_nothing_else_is"),
        (DropsWhatItDoesNotKnow, "test_wrong_and_unknown_arguments_reach_no_tool"),
        (IsNewEachTime, "test_it_lists_the_same_each_time"),
        (IsNewEachTime, "test_what_has_changed_is_another_tool_and_nothing_else_is"),
        (KeepsSilent, "test_what_is_wrong_is_left_out_and_told_and_stops_nothing"),
        (StopsAtTheFirst, "test_what_is_wrong_is_left_out_and_told_and_stops_nothing"),
    ],
)
def test_a_source_that_breaks_a_promise_fails_its_test(broken: type[Broken], test: str) -> None:
    with pytest.raises((AssertionError, DefinitionError)):
        getattr(broken(), test)()
