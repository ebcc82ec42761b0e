"""What leaves a tool: what its own `expose` shows of what was raised first, and log lines that nobody else writes."""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar
from typing import Any

import pytest
from isolated_tools import calls_one_that_raises
from pydantic import BaseModel, ConfigDict

from ferrule import Runner, Tool, ToolCall, ToolError, ToolResult, tool
from ferrule.runner import EXPOSED
from waits import BOUND
from watched import go

SECRET = "geheim"


class Odd(Exception):
    """Of no kind that is exposed."""


def chain(error: BaseException, depth: int) -> Tool:
    """A tool whose handler awaits another one, and so on, of which the last one raises `error`."""

    @tool(name="last")
    async def last() -> str:
        raise error

    made = last
    for number in range(depth):

        def calling(inner: Tool = made) -> Any:
            async def call() -> Any:
                return await inner()

            return call

        made = tool(calling(), name=f"outer_{number}")
    return made


@pytest.mark.parametrize("depth", [1, 2, 5])
async def test_what_a_tool_that_was_called_raised_is_judged_by_the_outer_ones_expose(depth: int) -> None:
    for error, expose, shown in (
        (Odd(SECRET), EXPOSED, False),
        (ValueError(SECRET), EXPOSED, True),
        (ValueError(SECRET), (), False),
        (Odd(SECRET), (Odd,), True),
        (ToolError(SECRET), (), True),
        (ValueError(f"https://u:{SECRET}@h"), EXPOSED, False),
    ):
        result = await Runner([chain(error, depth)], expose=expose).run(f"outer_{depth - 1}")
        assert result.status == "failed"
        assert (SECRET in (result.error or "")) is shown
        assert type(error).__name__ in (result.error or "") or shown


@pytest.mark.parametrize("at", ["around", "inside"])
async def test_what_a_middleware_gets_of_a_tool_that_it_calls_does_not_leave(at: str) -> None:
    inner = chain(Odd(SECRET), 0)

    async def asks(call: Any, context: Any, next: Any) -> ToolResult:
        await inner()
        raise AssertionError

    @tool
    async def act() -> str:
        return ""

    result = await Runner([act], **{at: [asks]}).run("act")
    assert result.status == "failed" and SECRET not in (result.error or "")
    assert isinstance(result.exception, ToolError) and SECRET in str(result.exception)


def test_what_a_tool_that_was_called_in_a_process_raised_is_judged_by_the_outer_runners_expose() -> None:
    made = tool(calls_one_that_raises, isolation="process")
    hidden = go(Runner([made], expose=()).run("calls_one_that_raises"))
    assert hidden.status == "failed" and "ZeroDivisionError" in (hidden.error or "")
    assert SECRET not in (hidden.error or "")
    assert SECRET in (go(Runner([made], expose=(ArithmeticError,)).run("calls_one_that_raises")).error or "")


class Row(BaseModel):
    model_config = ConfigDict(extra="forbid")
    dsn: str


@pytest.mark.parametrize("by", ["itself", "another tool"])
@pytest.mark.parametrize("schema", [None, {"properties": {"dsn": {}}, "additionalProperties": False}])
async def test_what_is_said_of_an_output_that_does_not_fit_has_no_credentials(by: str, schema: Any) -> None:
    async def find() -> Row:
        url = f"postgres://ada:{SECRET}@h/db?api_key={SECRET}"
        return {"dsn": url, url: 1}  # type: ignore[return-value]

    made = tool(find, output_schema=schema)

    @tool
    async def outer() -> str:
        return str(await made())

    runner = Runner([made, outer], expose=())
    error = (await runner.run("find" if by == "itself" else "outer")).error or ""
    assert "does not fit its output schema" in error and "postgres://" in error
    assert SECRET not in error


async def test_an_exception_that_is_its_own_results_ends() -> None:
    error = ToolError(SECRET)
    error.result = ToolResult(exception=error)
    assert SECRET not in ((await Runner([chain(error, 1)]).run("outer_0")).error or "")


async def test_no_name_of_a_models_making_begins_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def breaks(event: Any) -> None:
        raise RuntimeError("an observer")

    @tool
    async def act(word: str) -> str:
        return ""

    async def guard_of_another(call: Any, context: Any) -> Any:
        return {"word": 5, "more\nforged line": "x\nforged line"}

    line = "x\nforged line\r\x85\u2028forged line"
    runner = Runner([act], observers=[breaks], guards=[guard_of_another])
    with caplog.at_level(logging.DEBUG, logger="ferrule"):
        await runner.run_all([ToolCall(line, line, "{}"), ToolCall(line, "act", {"word": line})])
    assert len(caplog.records) > 3
    for record in caplog.records:
        assert len(record.getMessage().splitlines()) == 1


TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


def test_an_async_handler_without_a_deadline_runs_in_the_callers_context() -> None:
    @tool
    async def switch(to: str) -> str:
        TENANT.set(to)
        return TENANT.get()

    async def after(**options: Any) -> str:
        TENANT.set("a")
        await Runner([switch], **options).run("switch", {"to": "b"})
        return TENANT.get()

    assert asyncio.run(after(timeout=BOUND)) == "a"
    assert asyncio.run(after()) == "b"
