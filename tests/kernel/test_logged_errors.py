"""What the log has of a handler that raised: one quiet line of a `ToolError`, the traceback of all else."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import pytest
from isolated_tools import crashes, raises
from watched import go

from ferrule import DefinitionError, Runner, Tool, ToolError, tool
from ferrule.errors import GuardError, HandlerError

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
    assert not go(Runner([made], timeout=5).run(made.name, arguments or {})).success
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


def test_the_model_reads_the_text_of_a_tool_error_as_it_is() -> None:
    result = go(Runner([raising(ToolError("none left\nsee https://a:b@c"))], expose=()).run("act"))
    assert result.error == "act failed: none left\nsee https://a:b@c."


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
        ("INFO", "tool 'outer' raised a ToolError: 'act failed: none left.'"),
    ]


def test_what_a_tool_that_it_called_raised_otherwise_keeps_both_tracebacks(caplog: pytest.LogCaptureFixture) -> None:
    records = records_of(caplog, calling(raising(ValueError("no"))))
    kinds = [record.exc_info[0] for record in records if record.exc_info]
    assert kinds == [ValueError, HandlerError]


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
