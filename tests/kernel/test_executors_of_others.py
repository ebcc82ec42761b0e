"""`isolation=` with an object of yours."""

from __future__ import annotations

import asyncio
from typing import Any

import isolated_tools as tools
import pytest

from ferrule import DefinitionError, Runner, Tool, Waits, tool
from ferrule.errors import NotStartedError
from ferrule.executors import Executor, StartedCall
from ferrule.testing import ManualClock


class Queued:
    """One whose handlers begin when somebody says so."""

    limiter = None

    def __init__(self) -> None:
        self.started: asyncio.Future[float | None] = asyncio.get_running_loop().create_future()

    def executor(self, tool: Tool) -> Executor:
        return self

    async def run(self, values: object, call: StartedCall) -> object:
        if not await call.wait_for_start(self.started):
            error = NotStartedError("nobody took it", limited=True)
            call.report_not_started(error)
            raise error
        return call.context.remaining()


@pytest.mark.parametrize("given", ["thread", Queued, object()])
def test_a_wrong_isolation_is_refused_when_the_tool_is_defined(given: Any) -> None:
    with pytest.raises(DefinitionError, match=r"isolation must be None, 'process', or an object with executor\(tool\)"):
        tool(tools.add, isolation=given)


async def test_an_executor_may_wait_for_the_start_as_long_as_for_a_slot() -> None:
    clock = ManualClock()
    for begins in (True, False):
        place = Queued()
        runner = Runner([tool(tools.add, isolation=place)], timeout=5, waits=Waits(slot=60), clock=clock)
        call = asyncio.ensure_future(runner.run("add", {"a": 1}))
        await clock.advance(59)
        assert not call.done()
        if begins:
            place.started.set_result(None)
            assert (await call).output == 5
        await clock.advance(1)
    result = await call
    assert (result.status, result.executed) == ("limited", False) and "nobody took it" in str(result.error)
