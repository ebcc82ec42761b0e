"""Tools as classes: the fields are the parameters, an instance is one call, and guards judge the instance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import AliasChoices, ConfigDict, Field, SecretStr

from ferrule import (
    FerruleError,
    GuardError,
    HandlerError,
    Runner,
    Tool,
    ToolError,
    ToolHandler,
    ValidationError,
)


class WriteFile(ToolHandler):
    """Write a text to a file."""

    path: str
    content: str

    async def __call__(self) -> str:
        Path(self.path).write_text(self.content)
        return f"Wrote {len(self.content)} bytes to {self.path}"


class Upper:
    """A guard that changes the text."""

    def check(self, handler: WriteFile) -> WriteFile:
        handler.content = handler.content.upper()
        return handler


class OnlyIn:
    """An asynchronous guard that denies paths outside a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def check(self, handler: WriteFile) -> WriteFile:
        if not Path(handler.path).resolve().is_relative_to(self.folder.resolve()):
            raise GuardError(f"{handler.path} lies outside")
        return handler


def test_fields_and_docstring_define_the_tool() -> None:
    tool = Tool(name="write_file", handler=WriteFile)
    assert tool.handler is WriteFile
    assert tool.description == "Write a text to a file."
    assert tool.input_schema == {
        "type": "object",
        "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
        "required": ["path", "content"],
        "additionalProperties": False,
    }
    assert Tool(name="write_file", description="Keep a text.", handler=WriteFile).description == "Keep a text."


async def test_each_call_has_its_own_instance() -> None:
    class Counter(ToolHandler):
        marks: list[int] = []

        async def __call__(self) -> int:
            self.marks.append(1)
            return len(self.marks)

    tool = Tool(name="counter", handler=Counter)
    assert [await tool(), await tool()] == [1, 1]


async def test_invalid_arguments_make_no_instance() -> None:
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


async def test_the_instance_runs_as_the_guards_left_it(tmp_path: Path) -> None:
    seen: list[str] = []

    class Reader:
        def check(self, handler: WriteFile) -> WriteFile:
            seen.append(handler.content)
            return handler

    path = tmp_path / "a.txt"
    tool = Tool(name="write_file", handler=WriteFile, guards=(Upper(), Reader(), OnlyIn(tmp_path)))
    assert await tool(path=str(path), content="hello") == f"Wrote 5 bytes to {path}"
    assert path.read_text() == seen[-1] == "HELLO"


class Spoil:
    def check(self, handler: WriteFile) -> WriteFile:
        handler.content = 7  # type: ignore[assignment]
        return handler


class Broken:
    def check(self, handler: WriteFile) -> WriteFile:
        raise ZeroDivisionError


@pytest.mark.parametrize("guard", [Spoil(), Broken(), OnlyIn(Path("nowhere"))])
async def test_a_guard_that_denies_breaks_or_spoils_stops_the_call(guard: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with pytest.raises(GuardError):
        await Tool(name="write_file", handler=WriteFile, guards=(guard,))(path=str(path), content="x")
    assert not path.exists()


async def test_a_guard_can_change_aliased_and_secret_fields() -> None:
    class Login(ToolHandler):
        password: SecretStr
        user: str = Field(validation_alias="login", default="nobody")

        async def __call__(self) -> str:
            return f"{self.user} {self.password.get_secret_value()}"

    class Other:
        def check(self, handler: Login) -> Login:
            return handler.model_copy(update={"user": "ada", "password": SecretStr("other")})

    runner = Runner([Tool(name="login", handler=Login, guards=(Other(),))])
    assert (await runner.run("login", {"password": "first", "login": "bob"})).output == "ada other"


async def test_a_guard_can_change_bytes() -> None:
    class Put(ToolHandler):
        model_config = ConfigDict(val_json_bytes="base64")
        data: bytes
        coded: bytes = Field(validation_alias=AliasChoices("code", "encoded"))

        async def __call__(self) -> str:
            return f"{self.data!r} {self.coded!r}"

    class Changes:
        def check(self, handler: Put) -> None:
            handler.data, handler.coded = b"\xff\x00", b"ab"

    tool = Tool(name="put", handler=Put, guards=(Changes(),))
    assert await tool(data="/w==", code="YQ==") == r"b'\xff\x00' b'ab'"


async def test_an_exception_is_the_cause_of_a_handler_error(tmp_path: Path) -> None:
    with pytest.raises(HandlerError) as caught:
        await Tool(name="write_file", handler=WriteFile)(path=str(tmp_path / "missing" / "a.txt"), content="x")
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    for kind in (GuardError, HandlerError):
        assert issubclass(kind, ToolError) and issubclass(kind, FerruleError)
