"""What the log has of a handler that raised: one quiet line of a `ToolError`, the traceback of all else."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import pytest
from isolated_tools import crashes, raises

from ferrule import DefinitionError, Runner, Sizes, Tool, ToolCall, ToolContext, ToolError, ToolResult, tool
from ferrule.errors import GuardError
from ferrule.types import Next
from waits import BOUND
from watched import go

needs_processes = pytest.mark.skipif(sys.platform == "win32", reason="isolation needs process groups")


class OutOfStock(ToolError):
    """A tool's own."""


def raising(error: BaseException) -> Tool:
    @tool(read_only=True)
    async def act() -> str:
        raise error

    return act


def calling(inner: Tool) -> Tool:
    @tool
    async def outer() -> Any:
        return await inner()

    return outer


def records_of(caplog: pytest.LogCaptureFixture, made: Tool, arguments: Any = None) -> list[logging.LogRecord]:
    """The log of one call, which fails."""
    caplog.set_level(logging.DEBUG, logger="ferrule")
    assert not go(Runner([made], timeout=BOUND).run(made.name, arguments or {})).success
    return [record for record in caplog.records if record.name == "ferrule"]


@pytest.mark.parametrize(
    "error",
    [ToolError("none left\nforged line"), OutOfStock("none left\nforged line"), GuardError("none left\nforged line")],
    ids=lambda error: type(error).__name__,
)
def test_a_tool_error_of_the_tools_own_is_one_quiet_line(error: ToolError, caplog: pytest.LogCaptureFixture) -> None:
    (record,) = records_of(caplog, raising(error))
    assert (record.levelname, record.exc_info) == ("INFO", None)
    assert record.getMessage() == "tool 'act' raised a ToolError: 'none left\\nforged line'"


async def test_the_model_reads_the_text_of_a_tool_error_as_it_is() -> None:
    result = await Runner([raising(ToolError("none left\nsee https://a:b@c"))], expose=()).run("act")
    assert (result.error, result.status, result.executed) == ("none left\nsee https://a:b@c", "failed", True)
    assert result.text == result.error


@pytest.mark.parametrize("error", [OutOfStock(" "), OutOfStock(), ToolError("")])
async def test_a_tool_error_without_a_text_is_no_empty_error(error: ToolError) -> None:
    result = await Runner([raising(error)]).run("act")
    assert result.error is not None and result.error.startswith("act failed: ")


async def test_the_text_of_a_tool_error_is_bounded_and_cleaned() -> None:
    result = await Runner([raising(ToolError("\udc00" + "x" * 5000))], sizes=Sizes(output=100)).run("act")
    assert result.error is not None and len(result.error) == 100
    assert result.error.startswith("\ufffdxx") and "characters left out]\nxxx" in result.error


class Executes:
    name = "act"
    description = "Act."

    def execute(self, payload: Any) -> Any:
        raise OutOfStock("none left")


async def test_the_tool_error_of_an_objects_execute_reaches_the_model_as_it_is() -> None:
    assert (await Runner([Executes()]).run("act")).error == "none left"


async def breaks(call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
    raise ToolError("none left")


def test_the_tool_error_of_a_middleware_or_a_guard_stands_in_a_sentence() -> None:
    def never(call: Any, context: Any) -> None:
        raise GuardError("not you")

    made = raising(ToolError("x"))
    assert go(Runner([made], inside=[breaks]).run("act")).error == "act could not be run: none left. Nothing was run."
    assert go(Runner([made], guards=[never]).run("act")).error == "Denied: not you. Nothing was run."


def test_a_long_text_is_cut_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    (record,) = records_of(caplog, raising(ToolError("x" * 5000)))
    assert 500 < len(record.getMessage()) < 600


@pytest.mark.parametrize("error", [ValueError("no"), RuntimeError("no"), DefinitionError("no")])
def test_any_other_exception_keeps_its_traceback(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    (record,) = records_of(caplog, raising(error))
    assert record.levelname == "WARNING" and record.exc_info is not None and record.exc_info[1] is error
    assert "test_logged_errors.py" in logging.Formatter().format(record)


def test_a_tool_error_of_a_tool_that_it_called_is_quiet_too(caplog: pytest.LogCaptureFixture) -> None:
    records = records_of(caplog, calling(raising(OutOfStock("none left"))))
    assert [(record.levelname, record.getMessage()) for record in records] == [
        ("INFO", "tool 'act' raised a ToolError: 'none left'"),
        ("INFO", "tool 'outer' raised a ToolError: 'none left'"),
    ]


def test_what_a_tool_that_it_called_raised_otherwise_has_one_traceback(caplog: pytest.LogCaptureFixture) -> None:
    inner, outer = records_of(caplog, calling(raising(ValueError("no"))))
    assert inner.exc_info is not None and inner.exc_info[0] is ValueError
    assert (outer.levelname, outer.exc_info) == ("WARNING", None)
    assert outer.getMessage().startswith("tool 'outer' raised what a tool that it called had raised: ")


def test_the_kernels_own_refusal_of_a_call_that_a_handler_made_keeps_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def never(call: Any, context: Any) -> None:
        raise PermissionError("not you")

    (record,) = records_of(caplog, calling(raising(ToolError("x")).replace(guards=[never])))
    assert record.levelname == "WARNING" and record.exc_info is not None and record.exc_info[0] is GuardError


def test_the_time_out_of_a_call_that_a_handler_made_keeps_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    @tool(timeout=0.01)
    async def slow() -> None:
        await asyncio.get_running_loop().create_future()

    (record,) = records_of(caplog, calling(slow))
    assert record.levelname == "WARNING" and record.exc_info is not None
    assert record.exc_info[0].__name__ == "ToolTimeoutError"  # type: ignore[union-attr]


@needs_processes
@pytest.mark.parametrize(("kind", "text"), [("ferrule", "come back later"), ("stock", "none left")])
def test_a_tool_error_of_an_isolated_tool_is_one_quiet_line(
    kind: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (record,) = records_of(caplog, tool(raises, isolation="process"), {"kind": kind})
    assert (record.levelname, record.exc_info) == ("INFO", None)
    assert record.getMessage() == f"tool 'raises' raised a ToolError: {text!r}"


@needs_processes
@pytest.mark.parametrize(("kind", "shown"), [("value", "ValueError"), ("coded", "RemoteError")])
def test_any_other_exception_of_an_isolated_tool_keeps_its_traceback(
    kind: str, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    (record,) = records_of(caplog, tool(raises, isolation="process"), {"kind": kind})
    assert record.levelname == "WARNING" and record.exc_info is not None
    assert record.exc_info[0].__name__ == shown  # type: ignore[union-attr]
    assert "isolated_tools.py" in logging.Formatter().format(record)


@needs_processes
def test_a_process_that_died_is_no_quiet_line(caplog: pytest.LogCaptureFixture) -> None:
    (record,) = records_of(caplog, tool(crashes, isolation="process"))
    assert record.levelname == "WARNING" and record.exc_info is not None
    assert record.exc_info[0].__name__ == "WorkerDiedError"  # type: ignore[union-attr]
