"""`isolation=` with an object of yours: the tool's handler runs where its executor says, through public names only."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import isolated_tools as tools
import pytest

from ferrule import DefinitionError, Media, Runner, Text, Tool, ToolCall, ToolContext, Waits, deny, tool
from ferrule.errors import NotStartedError
from ferrule.executors import Executor, StartedCall
from ferrule.executors.process import Recipe, describe_error, judged_text, make_tool, pack, rebuild_error, unpack
from ferrule.testing import ManualClock
from waits import BOUND
from watched import Watch


async def far_side(order: str) -> bytes:
    """Another machine: it has the text alone."""
    sent = json.loads(order)
    made = make_tool(sent["recipe"])
    context = ToolContext(session=sent["session"], principal=sent["principal"])
    call = ToolCall(sent["id"], made.name, sent["arguments"])
    result = await Runner([made]).run(call, context, timeout=sent["seconds"])
    return pack(describe_error(result.exception) if result.exception else result, "json")


class Elsewhere:
    """What `isolation=` takes."""

    def __init__(self) -> None:
        self.orders: list[dict[str, Any]] = []

    def executor(self, tool: Tool) -> Executor:
        return There(self, Recipe(tool))

    async def send(self, order: str) -> object:
        self.orders.append(json.loads(order))
        return unpack(await far_side(order), "json")


class There(Executor):
    def __init__(self, place: Elsewhere, recipe: Recipe) -> None:
        self._place = place
        self._recipe = recipe

    async def run(self, values: object, call: StartedCall) -> object:
        fields = call.context.fields
        order = {
            "recipe": self._recipe.text,
            "id": call.call.id,
            "arguments": judged_text(call.call),
            "session": fields.session,
            "principal": fields.principal,
            "seconds": call.context.remaining(),
        }
        found = await self._place.send(json.dumps(order))
        if isinstance(found, dict) and "kinds" in found:
            raise rebuild_error(found)
        return found


async def test_a_handler_runs_where_the_executor_says_on_the_judged_text() -> None:
    place, watch = Elsewhere(), Watch()
    runner = Runner([tool(tools.describe, isolation=place)], observers=[watch], timeout=BOUND)
    given = {"item": {"name": "pen", "count": "2"}, "when": "2026-01-02"}
    result = await runner.run("describe", given, session="s1", principal="ada")
    assert result.output == ["Item", "pen", "date", "2026-01-02"]
    (order,) = place.orders
    assert json.loads(order["arguments"]) == {"item": {"name": "pen", "count": 2}, "when": "2026-01-02"}
    assert (order["session"], order["principal"]) == ("s1", "ada") and 0 < order["seconds"] <= BOUND
    assert watch.kinds()[-1] == "tool:post"
    denied = await runner.replace(guards=[lambda *_: deny("no")]).run("describe", given)
    assert (denied.status, denied.executed, len(place.orders)) == ("denied", False, 1)


async def test_content_and_exceptions_come_back() -> None:
    place = Elsewhere()
    runner = Runner([tool(tools.gives, isolation=place), tool(tools.raises, isolation=place)])
    result = await runner.run("gives", {"what": "media"})
    assert result.content == (Text("a"), Media("image", b"\xff", "image/png", "s3://b/n", "n", fetch=True))
    failed = await runner.run("raises", {"kind": "value"})
    assert failed.status == "failed" and isinstance(failed.exception, ValueError)
    assert "no such value" in str(failed.error)


@pytest.mark.parametrize("given", ["thread", Elsewhere, object()])
def test_a_wrong_isolation_is_refused_when_the_tool_is_defined(given: Any) -> None:
    with pytest.raises(DefinitionError, match=r"isolation must be None, 'process', or an object with executor\(tool\)"):
        tool(tools.add, isolation=given)


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
