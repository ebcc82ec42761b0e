"""A suspended run goes on over every SDK with the request that would have been sent without the wait."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.models.cases import Case, each, serving
from tests.models.servers.serving import BOUND, Api, Asked, Turn

from cast import Person
from ferrule import Decision, Media, Runner, Text, ToolContext, ToolResult, allow, ask, deny, tool
from ferrule.loop import LoopResult, resume
from ferrule.loop import run as loop
from ferrule.values.call import ToolCall

pytestmark = pytest.mark.slow
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010804000000b51c0c020000000b4944415478da6364600000000600023081d02f"
    "0000000049454e44ae426082"
)


@tool(read_only=True)
async def weigh(item: str, scale: dict[str, Any]) -> ToolResult:
    """Weigh an item."""
    return ToolResult(content=[Text(f"{item}: 12 {scale['unit']}"), Media("image", PNG, "image/png", name="scale.png")])


@tool
async def look(path: str) -> list[Any]:
    """Look at a file."""
    return [Text(f"{path} is a picture"), Media("image", PNG, "image/png")]


def ask_about_look(call: ToolCall, context: ToolContext) -> Decision | None:
    return ask("really?") if call.name == "look" else None


def runner(answer: Decision) -> Runner:
    return Runner([weigh, look], guards=[ask_about_look], approve=Person(answer), resume_key=b"k" * 32)


async def run_at_once(case: Case, address: str) -> LoopResult:
    async with case.model("model-1", base_url=address) as model:
        return await loop(model, model.user("How heavy is it?"), runner(allow()))


async def run_with_a_wait(case: Case, address: str) -> LoopResult:
    """The same, with each half as in a process of its own."""
    async with case.model("model-1", base_url=address) as model:
        waiting = await loop(model, model.user("How heavy is it?"), runner(ask("not now")))
    assert waiting.status == "suspended"
    state = json.loads(json.dumps(waiting.suspended))
    [call_id] = state["waiting"]
    assert state["api"] == model.api != ""
    async with case.model("model-1", base_url=address) as model:
        return await resume(state, {call_id: True}, model, runner(deny("no")))


async def run_in(case: Case, way: Any) -> tuple[Api, LoopResult]:
    calls = [
        Asked(case.ids[0], "weigh", {"item": "ferrule ☃", "scale": {"unit": "oz"}}),
        Asked(case.ids[1], "look", {"path": "b.png"}),
    ]
    with serving(case, [Turn("I will weigh it.", calls), Turn("It weighs 12 oz.")]) as (api, address):
        return api, await asyncio.wait_for(way(case, address), BOUND)


@each()
async def test_a_resumed_run_sends_the_same_messages(case: Case) -> None:
    expected_api, expected = await run_in(case, run_at_once)
    api, found = await run_in(case, run_with_a_wait)
    assert api.refusals == expected_api.refusals == []
    assert [request.body for request in api.requests] == [request.body for request in expected_api.requests]
    assert len(api.requests) == 2 and "b.png is a picture" in str(api.requests[1].body)
    assert found.messages == expected.messages
    assert (found.status, found.text, found.turns) == ("done", "It weighs 12 oz.", 2)
    assert (found.usage, found.usage_by_turn) == (expected.usage, expected.usage_by_turn)
    assert len(found.usage_by_turn) == 2
    assert [result.content for result in found.results] == [result.content for result in expected.results]
