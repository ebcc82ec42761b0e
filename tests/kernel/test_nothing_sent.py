"""A handler of something elsewhere may know that nothing was sent, or that nobody knows, and is believed."""

from __future__ import annotations

import pytest

from ferrule import Runner, ToolError, ToolResult, tool
from ferrule.middleware import retry
from watched import go


def run(executed: bool | None, **options: object) -> ToolResult:
    @tool
    async def send() -> None:
        raise ToolError("the line is down", executed=executed, retry_after=0)

    return go(Runner([send], **options).run("send"))  # type: ignore[arg-type]


def test_what_was_certainly_not_sent_was_not_executed() -> None:
    result = run(False)
    assert (result.status, result.executed) == ("failed", False)
    assert result.error == "send could not be run: the line is down. Nothing was run."


@pytest.mark.parametrize("executed", [True, None])
def test_what_may_have_run_says_so_beside_its_text(executed: bool | None) -> None:
    result = run(executed)
    assert (result.status, result.executed, result.error) == ("failed", executed, "the line is down")


async def test_an_earlier_run_is_not_forgotten() -> None:
    said: list[bool | None] = [True, False]

    @tool(idempotent=True)
    async def send() -> None:
        raise ToolError("the line is down", executed=said.pop(0), retry_after=0)

    result = await Runner([send], inside=[retry(attempts=2)]).run("send")
    assert said == [] and result.executed is not False and "Nothing was run" not in str(result.error)


async def test_a_handler_says_nothing_of_a_tool_that_it_called() -> None:
    @tool
    async def inner() -> None:
        raise ToolError("the line is down", executed=False)

    @tool
    async def outer() -> None:
        await inner()

    assert (await Runner([inner, outer]).run("outer")).executed is True
