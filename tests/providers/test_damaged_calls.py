"""Calls from the wild through every provider: the damage comes in that API's own form, and then to the kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from apis import ALL, WAYS, encode

from ferrule import Runner, Tool

DATA = Path(__file__).parent.parent / "data"
MALFORMED: list[dict[str, Any]] = json.loads((DATA / "malformed_calls.json").read_text(encoding="utf-8"))["cases"]
TEXT_IN_STREAMS = {"anthropic", "bedrock", "interactions"}
"""The APIs whose arguments are an object in a response and chunks of JSON text in a stream."""

pytestmark = pytest.mark.slow


def is_text(name: str, way: str) -> bool:
    return ALL[name].text_arguments or (name in TEXT_IN_STREAMS and "stream" in way)


def parse_object(text: str | None) -> dict[str, Any] | None:
    """Return what an API whose arguments are objects can make of a model's text; None if that is no object."""
    try:
        found = json.loads(text or "")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


async def run_through(
    name: str, way: str, called: str, arguments: Any, tool: str, schema: Any
) -> tuple[Any, list[Any]]:
    """Run the one call of a response. Return its result, whose answer goes back, and what the tool got."""
    ran: list[Any] = []

    async def execute(payload: dict[str, Any]) -> str:
        ran.append(payload)
        return "done"

    api, one = ALL[name], Tool(tool, execute, input_schema=schema, description="Take.")
    response = api.write("", [("call_1", one.wire_name if called is None else called, arguments)], "calls")
    (call,), turn, stop = api.read(response, way)
    result = await Runner([one]).run(call)
    encode([turn, api.module.results([result])])
    assert stop == "calls" and result.call is call
    return result, ran


@pytest.mark.parametrize("number", range(len(MALFORMED)), ids=[case["id"] for case in MALFORMED])
async def test_a_damaged_call_ends_as_it_may_through_every_provider(number: int) -> None:
    case = MALFORMED[number]
    for place, name in enumerate(ALL):
        way = WAYS[(number + place) % len(WAYS)]
        arguments = case["arguments"] if is_text(name, way) else parse_object(case["arguments"])
        if arguments is None:
            continue  # this API cannot send it in this way
        result, ran = await run_through(name, way, case["called"], arguments, case["tool"], case["schema"])
        resolved = any(repair.startswith("read the name") for repair in result.repairs)
        outcome = "resolve" if resolved else "ok_repaired" if result.repairs else "ok"
        assert (outcome if ran else "reject") in case["outcome"], (name, way, result)
        if ran:
            assert (ran, result.status) == ([case["args"]], "ok")
        else:
            assert result.status in {"invalid", "not_found"} and result.executed is False
            assert "Nothing was run" in str(result.error)
