"""Calls from the wild through every provider: the damage comes in that API's own form, and then to the kernel."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from test_provider_contract import ALL, WAYS, read

from ferrule import Runner, Tool, ToolResult
from products import every

DATA = Path(__file__).parent.parent / "data"
MALFORMED: list[dict[str, Any]] = json.loads((DATA / "malformed_calls.json").read_text(encoding="utf-8"))["cases"]
BFCL: list[dict[str, Any]] = json.loads((DATA / "bfcl_calls.json").read_text(encoding="utf-8"))["cases"]
TEXT_ALWAYS = {"openai_chat", "openai_responses", "mistral", "cohere"}
TEXT_STREAMED = {"anthropic", "bedrock", "interactions"}

pytestmark = pytest.mark.slow
"""Arguments are an object in a response, and chunks of JSON text in a stream. With the others they are never text."""


def is_text(name: str, way: str) -> bool:
    return name in TEXT_ALWAYS or (name in TEXT_STREAMED and "stream" in way)


def as_object(arguments: str | None) -> dict[str, Any] | None:
    """What an API whose arguments are objects can have made of a model's text; `None` where that is none."""
    try:
        found = json.loads(arguments or "")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def without_text(response: Any) -> Any:
    """The response with null where a call's arguments are the text of null."""
    if isinstance(response, dict):
        return {
            key: None if (key, item) == ("arguments", "null") else without_text(item) for key, item in response.items()
        }
    return [without_text(item) for item in response] if isinstance(response, list) else response


def made(case: dict[str, Any], name: str) -> tuple[Tool, list[Any]]:
    seen: list[Any] = []

    async def execute(payload: dict[str, Any]) -> str:
        seen.append(payload)
        return "done"

    return Tool(name, execute, input_schema=case["schema"], description="Take."), seen


def sent(name: str, way: str, called: str, arguments: Any, one: Tool) -> ToolResult:
    """The result of the one call in a provider's response, whose answer goes back in its form."""
    api = ALL[name]
    response = api.write("", [("call_1", called, arguments)], "calls")
    (call,), turn, stop = read(api, without_text(response) if arguments is None else response, way)
    result = asyncio.run(Runner([one]).run(call))
    answers = api.module.results([result])
    assert stop == "calls" and result.call is call
    assert len(api.answers(answers)) == 1
    json.dumps([turn, answers], ensure_ascii=False, allow_nan=False).encode()
    return result


def outcome(result: ToolResult, seen: list[Any]) -> str:
    if not seen:
        return "reject"
    if any(repair.startswith("read the name") for repair in result.repairs):
        return "resolve"
    return "ok_repaired" if result.repairs else "ok"


def damaged() -> list[Any]:
    """Every case in every form that a provider can have delivered it in."""
    return [param for param in every({case["id"]: case for case in MALFORMED}, ALL, WAYS) if is_sent(*param.values)]


def is_sent(case: dict[str, Any], name: str, way: str) -> bool:
    return arguments_of(case, name, way) is not None or (is_text(name, way) and way == "dict")


def arguments_of(case: dict[str, Any], name: str, way: str) -> Any:
    return case["arguments"] if is_text(name, way) else as_object(case["arguments"])


@pytest.mark.parametrize(("case", "name", "way"), damaged())
def test_a_damaged_call_comes_out_as_it_may_whichever_provider_delivers_it(
    case: dict[str, Any], name: str, way: str
) -> None:
    arguments = arguments_of(case, name, way)
    one, seen = made(case, case["tool"])
    result = sent(name, way, case["called"], arguments, one)
    assert outcome(result, seen) in case["outcome"], (result, seen)
    if seen:
        assert (seen, result.status) == ([case["args"]], "ok")
    else:
        assert result.status in {"invalid", "not_found"} and result.executed is False
        assert "Nothing was run" in str(result.error)


def test_every_damaged_call_is_sent_through_every_provider_that_can_have_delivered_it() -> None:
    sent_as = {(param.values[0]["id"], param.values[1]) for param in damaged()}
    everyday = [param.values for param in damaged() if not param.marks]
    assert {case["id"] for case, _, _ in everyday} == {case["id"] for case in MALFORMED}
    assert {(name, way) for _, name, way in everyday} == {(name, way) for name in ALL for way in WAYS}
    assert {(case["id"], name) for case in MALFORMED for name in TEXT_ALWAYS} <= sent_as
    assert {name for _, name in sent_as} == set(ALL)


@pytest.mark.parametrize(("case", "name"), every({case["id"]: case for case in BFCL}, ALL))
def test_a_call_to_a_real_signature_runs_as_it_was_sent_or_is_refused_for_what_is_wrong(
    case: dict[str, Any], name: str
) -> None:
    for way in WAYS:
        one, seen = made(case, case["name"])
        arguments = json.dumps(case["arguments"]) if is_text(name, way) else case["arguments"]
        result = sent(name, way, one.wire_name, arguments, one)
        assert result.tool_name == case["name"]
        if case["valid"]:
            assert (result.status, result.repairs) == ("ok", ())
            assert case["arguments"].items() <= seen[0].items()  # besides it there are defaults alone
        else:
            assert (result.status, result.executed, seen) == ("invalid", False, [])
            assert case["why"].partition(":")[2] in str(result.error)
