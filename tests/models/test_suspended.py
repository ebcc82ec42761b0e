"""A suspended run goes on over every SDK with the request that would have been sent without the wait."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.models.cases import CASES, Case, serving
from tests.models.servers.serving import BOUND, Api, Asked, Turn

from ferrule import Decision, Media, Runner, Text, ToolContext, ToolResult, Toolset, ask, tool
from ferrule.loop import LoopResult, resume
from ferrule.loop import run as loop
from ferrule.values.call import ToolCall

pytestmark = pytest.mark.slow
KEY = b"k" * 32
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010804000000b51c0c020000000b4944415478da6364600000000600023081d02f"
    "0000000049454e44ae426082"
)


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Case:
    """One API, with dummy credentials in the environment."""
    chosen: Case = request.param
    for name, value in {"NO_PROXY": "127.0.0.1", **chosen.environment}.items():
        monkeypatch.setenv(name, value)
    return chosen


@tool(read_only=True)
async def weigh(item: str, scale: dict[str, Any]) -> ToolResult:
    """Weigh an item."""
    return ToolResult(content=[Text(f"{item}: 12 {scale['unit']}"), Media("image", PNG, "image/png", name="scale.png")])


@tool
async def look(path: str) -> list[Any]:
    """Look at a file."""
    return [Text(f"{path} is a picture"), Media("image", PNG, "image/png")]


def asks(call: ToolCall, context: ToolContext) -> Decision | None:
    return ask("really?") if call.name == "look" else None


def turns(case: Case) -> list[Turn]:
    called = [
        Asked(case.ids[0], "weigh", {"item": "ferrule ☃", "scale": {"unit": "oz"}}),
        Asked(case.ids[1], "look", {"path": "b.png"}),
    ]
    return [Turn("I will weigh it.", called), Turn("It weighs 12 oz.")]


def runner(answer: Decision | bool) -> Runner:
    return Runner(Toolset([weigh, look]), guards=[asks], approve=lambda call, decision, context: answer, resume_key=KEY)


async def at_once(case: Case, address: str) -> LoopResult:
    async with case.model("model-1", base_url=address) as model:
        return await loop(model, model.user("How heavy is it?"), runner(True))


async def after_a_wait(case: Case, address: str) -> LoopResult:
    """The same, with each half as in a process of its own."""
    async with case.model("model-1", base_url=address) as model:
        came = await loop(model, model.user("How heavy is it?"), runner(ask("not now")))
    assert came.status == "suspended"
    state = json.loads(json.dumps(came.suspended))
    [call_id] = state["waiting"]
    assert state["api"] == model.api != ""
    async with case.model("model-1", base_url=address) as model:
        return await resume(state, {call_id: True}, model, runner(False))


def sent(case: Case, way: Any) -> tuple[Api, LoopResult]:
    with serving(case, turns(case)) as (api, address):
        return api, asyncio.run(asyncio.wait_for(way(case, address), BOUND))


def test_the_model_is_sent_what_it_would_have_been_sent_without_the_wait_and_the_run_comes_to_the_same(
    case: Case,
) -> None:
    expected_api, expected = sent(case, at_once)
    api, came = sent(case, after_a_wait)
    assert api.refusals == expected_api.refusals == []
    assert [request.body for request in api.requests] == [request.body for request in expected_api.requests]
    assert len(api.requests) == 2 and "b.png is a picture" in str(api.requests[1].body)
    assert came.messages == expected.messages
    assert (came.status, came.text, came.turns) == ("done", "It weighs 12 oz.", 2)
    assert (
        came.usage == expected.usage and came.usage_by_turn == expected.usage_by_turn and len(came.usage_by_turn) == 2
    )
    assert [result.content for result in came.results] == [result.content for result in expected.results]
