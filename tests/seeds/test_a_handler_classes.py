"""Tools as classes: the fields are the parameters, an instance is one call, guards judge the instance."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import AliasChoices, ConfigDict, Field, SecretStr

from ferrule import (
    DefinitionError,
    FerruleError,
    GuardError,
    HandlerError,
    Runner,
    Tool,
    ToolCall,
    ToolError,
    ToolHandler,
    ValidationError,
)
from ferrule.providers import anthropic
from waits import BOUND


class WriteFile(ToolHandler):
    """Write a text to a file."""

    path: str
    content: str

    async def __call__(self) -> str:
        Path(self.path).write_text(self.content)
        return f"Wrote {len(self.content)} bytes to {self.path}"


class Upper:
    """A guard that changes what will be written."""

    def check(self, handler: WriteFile) -> WriteFile:
        handler.content = handler.content.upper()
        return handler


class OnlyIn:
    """A guard that refuses what lies outside a folder; asynchronous."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def check(self, handler: WriteFile) -> WriteFile:
        if not Path(handler.path).resolve().is_relative_to(self.folder.resolve()):
            raise GuardError(f"{handler.path} lies outside")
        return handler


def test_a_class_becomes_a_tool_by_its_fields_and_docstring() -> None:
    tool = Tool(name="write_file", handler=WriteFile)
    assert tool.description == "Write a text to a file."
    assert tool.input_schema == {
        "type": "object",
        "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
        "required": ["path", "content"],
        "additionalProperties": False,
    }


def test_a_description_given_to_the_tool_wins_over_the_docstring() -> None:
    assert Tool(name="write_file", description="Keep a text.", handler=WriteFile).description == "Keep a text."


async def test_calling_the_tool_writes_the_file_and_gives_the_string(tmp_path: Path) -> None:
    tool = Tool(name="write_file", handler=WriteFile)
    path = tmp_path / "a.txt"
    assert (await tool(path=str(path), content="hello")) == f"Wrote 5 bytes to {path}"
    assert path.read_text() == "hello"


def test_the_tool_is_frozen_and_keeps_the_class_and_not_an_instance() -> None:
    tool = Tool(name="write_file", handler=WriteFile)
    assert tool.handler is WriteFile
    for name, value in {"name": "other", "handler": None, "guards": (), "concurrency": 3}.items():
        with pytest.raises(AttributeError):
            setattr(tool, name, value)


async def test_each_call_has_an_instance_of_its_own() -> None:
    seen: list[ToolHandler] = []

    class Counter(ToolHandler):
        marks: list[int] = []

        async def __call__(self) -> int:
            seen.append(self)
            self.marks.append(1)
            return len(self.marks)

    tool = Tool(name="counter", handler=Counter)

    async def twice() -> list[int]:
        return [await tool(), await tool()]

    assert (await twice()) == [1, 1]
    assert seen[0] is not seen[1]


async def test_arguments_that_do_not_fit_make_no_instance() -> None:
    made: list[int] = []

    class Strict(ToolHandler):
        number: int

        def model_post_init(self, context: Any) -> None:
            made.append(self.number)

        async def __call__(self) -> str:
            return "ran"

    with pytest.raises(ValidationError, match="'number'"):
        await Tool(name="strict", handler=Strict)(number="many")
    assert made == []


async def test_a_guard_changes_the_instance_that_runs(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    tool = Tool(name="write_file", handler=WriteFile, guards=(Upper(),))
    await tool(path=str(path), content="hello")
    assert path.read_text() == "HELLO"


async def test_guards_see_what_the_guards_before_them_changed(tmp_path: Path) -> None:
    seen: list[str] = []

    class Reader:
        def check(self, handler: WriteFile) -> WriteFile:
            seen.append(handler.content)
            return handler

    path = tmp_path / "a.txt"
    tool = Tool(name="write_file", handler=WriteFile, guards=(Upper(), Reader()))
    await tool(path=str(path), content="hello")
    assert seen[-1] == "HELLO"


async def test_what_a_guard_changes_has_to_be_valid(tmp_path: Path) -> None:
    class Spoil:
        def check(self, handler: WriteFile) -> WriteFile:
            handler.content = 7  # type: ignore[assignment]
            return handler

    path = tmp_path / "a.txt"
    with pytest.raises(GuardError):
        await Tool(name="write_file", handler=WriteFile, guards=(Spoil(),))(path=str(path), content="x")
    assert not path.exists()


SENT = {"password": "first", "login": "bob"}


@pytest.mark.parametrize(
    ("changes", "expected"), [({"user": "ada"}, "ada first"), ({"password": SecretStr("other")}, "bob other")]
)
async def test_a_guard_changes_fields_under_another_name_and_secrets(changes: dict[str, Any], expected: str) -> None:
    class Login(ToolHandler):
        password: SecretStr
        user: str = Field(validation_alias="login", default="nobody")

        async def __call__(self) -> str:
            return f"{self.user} {self.password.get_secret_value()}"

    class Other:
        def check(self, handler: Login) -> Login:
            return handler.model_copy(update=changes)

    result = await Runner([Tool(name="login", handler=Login, guards=(Other(),))]).run("login", SENT)
    assert result.output == expected, result.error


class Put(ToolHandler):
    data: bytes = b""
    coded: bytes = Field(default=b"", validation_alias=AliasChoices("code", "encoded"))
    label: str = ""

    async def __call__(self) -> str:
        return f"{self.data!r} {self.coded!r} {self.label}"


@pytest.mark.parametrize("changes", [{"data": object()}, {"label": object()}])
async def test_what_a_guard_changes_to_something_without_a_json_form_is_denied(changes: dict[str, Any]) -> None:
    class Changes:
        def check(self, handler: Put) -> Put:
            return handler.model_copy(update=changes)

    with pytest.raises(
        GuardError, match=f"changed the handler, and its parameter '{next(iter(changes))}' has no JSON form"
    ):
        await Tool(name="put", handler=Put, guards=(Changes(),))(data="YQ==")


@pytest.mark.parametrize("own", [ConfigDict(), ConfigDict(val_json_bytes="base64")])
@pytest.mark.parametrize("data", [b"\xff\x00", b"abcd"])
def test_a_guard_changes_bytes_that_are_read_from_base64(data: bytes, own: ConfigDict) -> None:
    class PutCoded(Put):
        model_config = own

    class Changes:
        def check(self, handler: PutCoded) -> None:
            handler.label = "changed"
            if handler.coded:
                handler.data = data

    tool = Tool(name="put", handler=PutCoded, guards=(Changes(),))
    assert asyncio.run(tool(data="/w==")) == "b'\\xff' b'' changed"
    assert asyncio.run(tool(data="/w==", code="YQ==")) == f"{data!r} b'a' changed"


async def test_a_guard_changes_a_field_that_has_several_names() -> None:
    class Changes:
        def check(self, handler: Put) -> None:
            handler.coded = handler.coded.removesuffix(b"b") + b"b"

    assert (await Tool(name="put", handler=Put, guards=(Changes(),))(code="YQ==")) == "b'' b'ab' "


def test_a_guard_that_raises_guard_error_denies_and_nothing_is_written(tmp_path: Path) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    outside = tmp_path / "in-between.txt"
    tool = Tool(name="write_file", handler=WriteFile, guards=(OnlyIn(inside),))
    with pytest.raises(GuardError, match="outside"):
        asyncio.run(tool(path=str(outside), content="x"))
    assert not outside.exists()
    asyncio.run(tool(path=str(inside / "b.txt"), content="x"))
    assert (inside / "b.txt").read_text() == "x"


async def test_a_guard_that_crashes_denies(tmp_path: Path) -> None:
    class Broken:
        def check(self, handler: WriteFile) -> WriteFile:
            raise ZeroDivisionError

    path = tmp_path / "a.txt"
    with pytest.raises(GuardError):
        await Tool(name="write_file", handler=WriteFile, guards=(Broken(),))(path=str(path), content="x")
    assert not path.exists()


async def test_the_first_guard_that_refuses_is_enough(tmp_path: Path) -> None:
    tool = Tool(name="write_file", handler=WriteFile, guards=(OnlyIn(tmp_path / "nowhere"), Upper()))
    with pytest.raises(GuardError):
        await tool(path=str(tmp_path / "a.txt"), content="x")


async def test_whatever_a_handler_raises_comes_as_a_handler_error_with_its_cause(tmp_path: Path) -> None:
    tool = Tool(name="write_file", handler=WriteFile)
    with pytest.raises(HandlerError) as caught:
        await tool(path=str(tmp_path / "missing" / "a.txt"), content="x")
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_both_errors_are_tool_errors_of_this_library() -> None:
    for kind in (GuardError, HandlerError):
        assert issubclass(kind, ToolError)
        assert issubclass(kind, FerruleError)


@pytest.mark.parametrize("limit", [1, 2])
async def test_at_most_so_many_calls_run_at_once(limit: int) -> None:
    running = most = 0

    class Slow(ToolHandler):
        number: int

        async def __call__(self) -> int:
            nonlocal running, most
            running += 1
            most = max(most, running)
            for _ in range(5):
                await asyncio.sleep(0)
            running -= 1
            return self.number

    tool = Tool(name="slow", handler=Slow, concurrency=limit)

    async def several() -> list[int]:
        return await asyncio.wait_for(asyncio.gather(*(tool(number=n) for n in range(6))), BOUND)

    assert (await several()) == list(range(6))
    assert most == limit


async def test_without_a_limit_all_run_at_once() -> None:
    together = asyncio.Event()
    count = 0

    class Meet(ToolHandler):
        async def __call__(self) -> str:
            nonlocal count
            count += 1
            if count == 5:
                together.set()
            await together.wait()
            return "met"

    tool = Tool(name="meet", handler=Meet)

    async def several() -> list[str]:
        return await asyncio.wait_for(asyncio.gather(*(tool() for _ in range(5))), BOUND)

    assert (await several()) == ["met"] * 5


async def test_the_model_is_told_of_a_refusal_and_of_a_failure_as_errors(tmp_path: Path) -> None:
    runner = Runner([Tool(name="write_file", handler=WriteFile, guards=(OnlyIn(tmp_path),))])
    calls = [
        ToolCall("c1", "write_file", {"path": "/elsewhere/a.txt", "content": "x"}),
        ToolCall("c2", "write_file", {"path": str(tmp_path / "missing" / "a.txt"), "content": "x"}),
        ToolCall("c3", "write_file", {"path": str(tmp_path / "a.txt"), "content": "x"}),
    ]
    results = await runner.run_all(calls)
    assert [result.status for result in results] == ["denied", "failed", "ok"]
    (message,) = anthropic.results(results)
    assert [bool(block.get("is_error")) for block in message["content"]] == [True, True, False]
    assert "lies outside" in str(message["content"][0]["content"])


def test_a_class_without_a_call_of_its_own_is_no_tool() -> None:
    class Nothing(ToolHandler):
        path: str

    with pytest.raises(DefinitionError, match="__call__"):
        Tool(name="nothing", handler=Nothing)
