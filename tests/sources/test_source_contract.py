"""Every source passes what every source promises."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import httpx2
import pytest
from mcp_servers import Made, text
from openapi_wire import document

from ferrule import Tool, ToolError, Toolset, mcp
from ferrule.sources import openapi, plugins, python
from ferrule.testing import Offer, SourceContract
from ferrule.testing.source_contract import OpenSource

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
    async def open_source(self, offers: Mapping[str, Offer]) -> AsyncIterator[OpenSource]:
        connected = mcp.connect(self.server(offers).memory())
        async with connected as tools:
            yield tools, connected.left_out

    @asynccontextmanager
    async def open_duplicates(self, name: str) -> AsyncIterator[OpenSource]:
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
    async def open_source(self, offers: Mapping[str, Offer]) -> AsyncIterator[OpenSource]:
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
    async def open_source(self, offers: Mapping[str, Offer]) -> AsyncIterator[OpenSource]:
        with folder_of(offers) as folder:
            tools = python(folder)
            yield tools, tools.report.left_out

    @asynccontextmanager
    async def open_duplicates(self, name: str) -> AsyncIterator[OpenSource]:
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
        with mock.patch("ferrule.security.import_path.IMPORT_PATH", (name,)):
            yield Path(name)


class TestPlugins(SourceContract):
    same_name = "left out"

    @asynccontextmanager
    async def open_source(self, offers: Mapping[str, Offer]) -> AsyncIterator[OpenSource]:
        with installed(("shop", {name: source_of(name, offer) for name, offer in offers.items()})):
            tools = plugins("*")
            yield tools, tools.report.left_out

    @asynccontextmanager
    async def open_duplicates(self, name: str) -> AsyncIterator[OpenSource]:
        with installed(("shop", {name: source_of(name, Offer())}), ("zoo", {name: source_of(name, Offer())})):
            tools = plugins("*")
            yield tools, tools.report.left_out


class Broken(TestPython):
    """A source that keeps the contract but for what `spoil` does."""

    __test__ = False

    def spoil(self, tool: Tool) -> Tool:
        return tool

    @asynccontextmanager
    async def open_source(self, offers: Mapping[str, Offer]) -> AsyncIterator[OpenSource]:
        async with super().open_source(offers) as (tools, left_out):
            yield Toolset(self.spoil(tool) for tool in tools), left_out


def spoiled(spoil: Callable[[Tool], Tool]) -> type[Broken]:
    return type("Spoiled", (Broken,), {"spoil": lambda self, tool: spoil(tool)})


def giving(change: Callable[[list[Tool], list[object]], OpenSource]) -> type[Broken]:
    """A source that gives other tools, or other reports of what is left out."""

    class Giving(Broken):
        @asynccontextmanager
        async def open_source(self, offers: Mapping[str, Offer]) -> AsyncIterator[OpenSource]:
            async with super().open_source(offers) as (tools, left_out):
                yield change(list(tools), [*left_out])

    return Giving


def answering(handler: Callable[[dict[str, Any]], Any], **schema: Any) -> Callable[[Tool], Tool]:
    def made(tool: Tool) -> Tool:
        options = {"description": tool.description, "input_schema": {**TEXT, "additionalProperties": False, **schema}}
        return Tool(tool.name, handler, **options)

    return made


async def say(payload: dict[str, Any]) -> str:
    return f"said {payload['text']}"


async def say_nothing(payload: dict[str, Any]) -> str:
    return "done"


async def fail(payload: dict[str, Any]) -> str:
    raise ToolError("it is broken")


class IsNewEachTime(Broken):
    count = 0

    def spoil(self, tool: Tool) -> Tool:
        IsNewEachTime.count += 1
        return tool.replace(metadata={"version": self.count})


class BreaksForGood(Broken):
    """After a failure every call fails."""

    broken = False

    def spoil(self, tool: Tool) -> Tool:
        async def handler(payload: dict[str, Any]) -> str:
            self.broken = self.broken or tool.name == "failing"
            return await (fail if self.broken else say)(payload)

        return answering(handler)(tool)


class TakesOneOfTwo(Broken):
    """And says nothing of the other."""

    @asynccontextmanager
    async def open_duplicates(self, name: str) -> AsyncIterator[OpenSource]:
        async with super().open_source({name: Offer()}) as (tools, _):
            yield tools, ()


def with_another(name: str) -> Callable[[list[Tool], list[object]], OpenSource]:
    return lambda tools, left_out: (Toolset([*tools, answering(say)(Tool(name, say, input_schema=TEXT))]), left_out)


def by_their_count(tools: list[Tool], left_out: list[object]) -> OpenSource:
    return Toolset(tool.replace(metadata={"version": len(tools)}) for tool in tools), left_out


WRONG: dict[str, type[Broken]] = {
    "every_tool_is_listed_with_its_name_and_description": spoiled(lambda tool: tool.replace(description="A tool.")),
    "a_source_without_tools_is_empty": giving(with_another("help")),
    "the_list_is_the_same_each_time": IsNewEachTime,
    "a_change_of_one_tool_changes_its_fingerprint_alone": giving(by_their_count),
    "a_tool_claims_no_traits_by_itself": spoiled(lambda tool: tool.replace(parallel=True)),
    "each_tool_is_found_by_its_name_and_its_wire_name": spoiled(lambda tool: tool.replace(name=f"shop_{tool.name}")),
    "two_tools_with_one_name_are_never_confused": TakesOneOfTwo,
    "a_call_goes_to_its_tool_with_its_arguments": spoiled(answering(say_nothing)),
    "wrong_and_unknown_arguments_reach_no_tool": spoiled(answering(say, additionalProperties=True)),
    "the_schema_lists_the_parameters_and_is_closed": spoiled(answering(say, required=[])),
    "a_wrong_tool_is_left_out_and_reported": giving(lambda tools, left_out: (Toolset(tools), ())),
    "a_failing_tool_does_not_stop_the_next_call": BreaksForGood,
}
"""For each test, a source that breaks its promise."""


def test_every_test_of_the_contract_has_a_source_that_fails_it() -> None:
    assert WRONG.keys() == {name.removeprefix("test_") for name in vars(SourceContract) if name.startswith("test_")}


@pytest.mark.parametrize("name", WRONG)
def test_a_source_that_breaks_a_promise_fails_its_test(name: str) -> None:
    with pytest.raises(AssertionError):
        getattr(WRONG[name](), f"test_{name}")()
