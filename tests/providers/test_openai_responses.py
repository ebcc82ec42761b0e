"""OpenAI's Responses: what only it has, streamed and not."""

from __future__ import annotations

import copy
import json
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest
from apis import ADD, ALL, GREET, TOOLS, result
from openai.types.responses import ParsedResponse, Response, ResponseInputItemParam, ResponseOutputItem
from pydantic import TypeAdapter

from ferrule import Runner, tool
from ferrule.providers import openai_responses

API = ALL["openai_responses"]
add = TOOLS.get("add")


def test_a_field_spelled_otherwise_in_python_goes_back_as_it_came() -> None:
    response = API.write("", [ADD], "calls")
    response["output"][0]["async"] = True
    assert openai_responses.turn(Response.model_validate(response))[0]["async"] is True


def test_what_the_sdk_parsed_stays_behind() -> None:
    response = API.write("Text.", [ADD], "calls")
    extended = copy.deepcopy(response)
    extended["output"][0]["content"][0]["parsed"] = None
    extended["output"][1]["parsed_arguments"] = {"a": 1, "b": 2}
    assert openai_responses.turn(ParsedResponse.model_validate(extended)) == response["output"]


def test_a_custom_call_is_answered_as_one() -> None:
    response = API.write("", [], "calls")
    response["output"] = [{"type": "custom_tool_call", "id": "i", "call_id": "c", "name": "sql", "input": "select 1"}]
    call = openai_responses.calls(Response.model_validate(response))[0]
    assert dict(call.arguments) == {"input": "select 1"}
    assert openai_responses.results([result(call, "1")]) == [
        {"type": "custom_tool_call_output", "call_id": "c", "output": "1"}
    ]
    assert openai_responses.turn(response) == response["output"]


def test_namespace_and_caller_go_back_with_the_answer() -> None:
    response = API.write("", [ADD], "calls")
    caller = {"type": "program", "caller_id": "p1"}
    response["output"][0] |= {"namespace": "maths", "caller": caller}
    item = openai_responses.results([result(openai_responses.calls(response)[0], 3)])[0]
    assert (item["namespace"], item["name"], item["caller"]) == ("maths", "add", caller)


def test_an_incomplete_call_does_not_run() -> None:
    response = API.write("", [ADD, GREET], "calls")
    response["output"][1]["status"] = "incomplete"
    assert [call.problem is None for call in openai_responses.calls(response)] == [True, False]


def test_a_refusal_in_words_is_a_refusal() -> None:
    response = API.write("x", [], "done")
    response["output"][0]["content"] = [{"type": "refusal", "refusal": "No."}]
    assert openai_responses.stop(response) == "refused"


def members(union: Any) -> list[Any]:
    if get_origin(union) is Annotated:
        return members(get_args(union)[0])
    inner = get_args(union)
    if not inner or get_origin(union) is Literal:
        return [union]
    return [one for member in inner for one in members(member)]


def types_of(hint: Any) -> tuple[str, ...]:
    while get_origin(hint) is not Literal and get_args(hint):
        hint = get_args(hint)[0]
    return get_args(hint)


def test_no_item_goes_back_with_a_field_for_outputs_alone() -> None:
    taken: dict[str, set[str]] = {}
    for kind in members(ResponseInputItemParam):
        hints = get_type_hints(kind)
        for type in types_of(hints.get("type")):
            taken.setdefault(type, set()).update(hints)
    refused = 0
    for kind in members(ResponseOutputItem):
        [type] = get_args(kind.model_fields["type"].annotation)
        names = {field.alias or name for name, field in kind.model_fields.items()}
        refused += len(names - taken[type])
        follows = {"type": "message", "role": "assistant", "content": []}
        items = [{**dict.fromkeys(names, "x"), "type": type}, follows]
        first = openai_responses.turn({"output": items, "status": "completed"})[0]
        assert first["type"] == type and first.keys() <= taken[type], type
    assert refused > 5


BROKEN: list[Response] = [
    {"error": {"code": "server_error", "message": "boom"}},
    {"incomplete_details": {"reason": "max_output_tokens"}},
]


@pytest.mark.parametrize("more", BROKEN)
def test_a_completed_response_with_an_error_or_cut_off_runs_nothing(more: Response) -> None:
    response = API.write("", [("call_a", "add", {"a": 1})], "calls") | more
    (call,) = openai_responses.calls(response)
    assert call.problem and openai_responses.stop(response) in {"other", "cut"}


# Items that the API leaves to the program

SHELL = {"commands": ["ls"], "timeout_ms": None, "max_output_length": None}
DONE = {"id": "i", "call_id": "c", "status": "completed"}
ITEMS: dict[str, Any] = {
    "shell_call": {**DONE, "action": SHELL, "environment": {"type": "local"}},
    "local_shell_call": {**DONE, "action": {"type": "exec", "command": ["ls"], "env": {}}},
    "computer_call": {**DONE, "action": {"type": "screenshot"}, "pending_safety_checks": []},
    "apply_patch_call": {**DONE, "operation": {"type": "delete_file", "path": "a.txt"}},
    "mcp_approval_request": {"id": "c", "name": "delete", "server_label": "files", "arguments": "{}"},
}
NOT_DONE = {
    "shell_call": '"exit_code": 1',
    "apply_patch_call": '"status": "failed"',
    "mcp_approval_request": '"approve": false',
}
INPUT_ITEMS: TypeAdapter[Any] = TypeAdapter(list[ResponseInputItemParam])


@pytest.mark.parametrize("form", ["dict", "sdk"])
@pytest.mark.parametrize("kind", ITEMS)
async def test_an_item_for_the_program_does_not_run_and_is_answered_in_its_form(kind: str, form: str) -> None:
    response = API.write("", [], "done") | {"output": [{"type": kind, **ITEMS[kind]}]}
    given = API.in_form(response, form)
    (call,) = openai_responses.calls(given)
    assert openai_responses.stop(given) == "calls"
    assert kind in str(call.problem) and "Nothing was run" in str(call.problem)
    asked = {key: value for key, value in ITEMS[kind].items() if key not in {"id", "call_id", "status"}}
    assert {key: call.arguments[key] for key in asked} == asked
    ran: list[str] = []

    @tool(name=kind)
    async def same(**arguments: Any) -> None:
        """Run what has the name by chance."""
        ran.append(kind)

    refused, unknown = await Runner([same]).run(call), await Runner([add]).run(call)
    assert (refused.status, ran) == ("invalid", [])
    assert (unknown.status, unknown.error) == ("invalid", refused.error)
    assert str(unknown.error).count("Nothing was run") == 1
    (output,) = openai_responses.results([refused])
    INPUT_ITEMS.validate_python([output])
    assert "c" in (output.get("call_id"), output.get("approval_request_id"))
    assert NOT_DONE.get(kind, "") in json.dumps(output)
    assert "Nothing was run" in json.dumps(output) or kind == "computer_call"  # it takes no text
    assert openai_responses.turn(given) == response["output"]


@pytest.mark.parametrize("form", ["dict", "sdk"])
async def test_safety_checks_are_told_and_never_acknowledged(form: str) -> None:
    checks = [{"id": "cu_sc_1", "code": "malicious_instructions", "message": "A page gives orders."}]
    item = {"type": "computer_call", **ITEMS["computer_call"], "pending_safety_checks": checks}
    (call,) = openai_responses.calls(API.in_form(API.write("", [], "done") | {"output": [item]}, form))
    assert "acknowledges malicious_instructions" in str(call.problem)
    assert call.arguments["pending_safety_checks"] == checks
    (output,) = openai_responses.results([await Runner([add]).run(call)])
    assert "acknowledged_safety_checks" not in output


@pytest.mark.parametrize(
    "item",
    [
        {"type": "shell_call", "environment": {"type": "container_reference", "container_id": "k"}, "action": SHELL},
        {"type": "tool_search_call", "execution": "server", "arguments": {}},
        {"type": "mcp_call", "name": "delete", "arguments": "{}", "server_label": "files"},
        {"type": "web_search_call", "action": {"type": "search", "query": "q"}},
    ],
    ids=lambda item: str(item["type"]),
)
def test_an_item_that_the_api_runs_itself_is_no_call(item: Response) -> None:
    written = {**item, "id": "i", "call_id": "c", "status": "completed"}
    response = API.write("Done.", [], "done")
    response["output"].append(written)
    assert openai_responses.calls(response) == [] and openai_responses.stop(response) == "end"


# Streams


def test_encrypted_content_is_that_of_the_finished_item() -> None:
    response = API.write("", [ADD], "calls")
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "late"}
    response["output"].insert(0, reasoning)
    events = list(API.events(response, list))
    events[-1]["response"] = {
        **response,
        "output": [{**reasoning, "encrypted_content": "other"}, response["output"][1]],
    }
    assert API.feed(events).turn()[0]["encrypted_content"] == "late"


def test_custom_input_is_streamed() -> None:
    item = {"type": "custom_tool_call", "id": "i", "call_id": "c", "name": "sql", "input": ""}
    events = [{"type": "response.output_item.added", "output_index": 0, "item": item}]
    for piece in ("select", " 1"):
        at = {"item_id": "i", "output_index": 0}
        events.append({"type": "response.custom_tool_call_input.delta", "delta": piece, **at})
    stream = API.feed(events)
    assert dict(stream.calls()[0].arguments) == {"input": "select 1"} and stream.calls()[0].problem
