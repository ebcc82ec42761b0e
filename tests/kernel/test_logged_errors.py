"""Errors that leave a tool, for the model and in the log."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from ferrule import DefinitionError, Runner, Sizes, Tool, ToolError, ToolResult, tool
from ferrule.errors import GuardError
from ferrule.runner import EXPOSED
from gates import Gate
from waits import BOUND

SECRET = "geheim"


class OutOfStock(ToolError):
    """A tool's own."""


class Odd(Exception):
    """Of no kind that is exposed."""


def raising(error: BaseException, name: str = "act") -> Tool:
    @tool(read_only=True, name=name)
    async def act() -> str:
        raise error

    return act


def calling(inner: Tool, name: str = "outer") -> Tool:
    @tool(name=name)
    async def outer() -> Any:
        return await inner()

    return outer


async def test_the_model_reads_the_text_of_a_tool_error_as_it_is() -> None:
    result = await Runner([raising(ToolError("none left\nsee https://a:b@c"))], expose=()).run("act")
    assert (result.error, result.status, result.executed) == ("none left\nsee https://a:b@c", "failed", True)
    assert result.text == result.error

    class Executes:
        name = "act"
        description = "Act."

        def execute(self, payload: Any) -> Any:
            raise OutOfStock("none left")

    assert (await Runner([Executes()]).run("act")).error == "none left"


async def test_the_text_of_a_tool_error_is_bounded_cleaned_and_never_empty() -> None:
    result = await Runner([raising(ToolError("\udc00" + "x" * 5000))], sizes=Sizes(output=100)).run("act")
    assert result.error is not None and len(result.error) == 100
    assert result.error.startswith("\ufffdxx") and "characters left out]\nxxx" in result.error
    for error in (OutOfStock(" "), OutOfStock()):
        assert ((await Runner([raising(error)]).run("act")).error or "").startswith("act failed: ")


async def test_the_outer_tools_expose_decides_about_an_inner_tools_exception() -> None:
    for error, expose, shown in (
        (Odd(SECRET), EXPOSED, False),
        (ValueError(SECRET), EXPOSED, True),
        (ValueError(SECRET), (), False),
        (Odd(SECRET), (Odd,), True),
        (ToolError(SECRET), (), True),
        (ValueError(f"https://u:{SECRET}@h"), EXPOSED, False),
    ):
        made = calling(calling(raising(error)), "outermost")
        result = await Runner([made], expose=expose).run("outermost")
        assert result.status == "failed"
        assert (SECRET in (result.error or "")) is shown
        assert type(error).__name__ in (result.error or "") or shown


@pytest.mark.parametrize("at", ["around", "inside"])
async def test_the_error_of_a_tool_that_middleware_calls_does_not_leave(at: str) -> None:
    inner = raising(Odd(SECRET))

    async def asks(call: Any, context: Any, next: Any) -> ToolResult:
        await inner()
        raise AssertionError

    result = await Runner([Gate().tool], **{at: [asks]}).run("wait")
    assert result.status == "failed" and SECRET not in (result.error or "")
    assert isinstance(result.exception, ToolError) and SECRET in str(result.exception)


class Row(BaseModel):
    model_config = ConfigDict(extra="forbid")
    dsn: str


@pytest.mark.parametrize("by", ["find", "outer"])
@pytest.mark.parametrize("schema", [None, {"properties": {"dsn": {}}, "additionalProperties": False}])
async def test_the_error_about_an_output_that_does_not_fit_has_no_credentials(by: str, schema: Any) -> None:
    async def find() -> Row:
        url = f"postgres://ada:{SECRET}@h/db?api_key={SECRET}"
        return {"dsn": url, url: 1}

    made = tool(find, output_schema=schema)
    error = (await Runner([made, calling(made)], expose=()).run(by)).error or ""
    assert "does not fit its output schema" in error and "postgres://" in error
    assert SECRET not in error


async def log_of(caplog: pytest.LogCaptureFixture, made: Tool, arguments: Any = None) -> list[logging.LogRecord]:
    """Return the log of one call, which fails."""
    caplog.set_level(logging.DEBUG, logger="ferrule")
    assert not (await Runner([made], timeout=BOUND).run(made.name, arguments or {})).success
    return [record for record in caplog.records if record.name == "ferrule"]


@pytest.mark.parametrize("kind", [ToolError, OutOfStock, GuardError])
async def test_a_tool_error_is_one_quiet_line(kind: type[ToolError], caplog: pytest.LogCaptureFixture) -> None:
    (record,) = await log_of(caplog, raising(kind("none left\nforged line" + "x" * 5000)))
    assert (record.levelname, record.exc_info) == ("INFO", None)
    assert record.getMessage().startswith("tool 'act' raised a ToolError: 'none left\\nforged line")
    assert 500 < len(record.getMessage()) < 600


@pytest.mark.parametrize("error", [ValueError("no"), DefinitionError("no")])
async def test_any_other_exception_keeps_its_traceback(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    (record,) = await log_of(caplog, raising(error))
    assert record.levelname == "WARNING" and record.exc_info is not None and record.exc_info[1] is error
    assert "test_logged_errors.py" in logging.Formatter().format(record)
