"""What is kept from one turn to the next: arguments that were repaired, the state that is no message, why a turn ended,
and an answer for all that an API leaves to the program."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from anthropic.types.beta import BetaMessage
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response as OpenAIResponse
from openai.types.responses import ResponseInputItemParam
from pydantic import TypeAdapter
from test_history import inside
from test_provider_contract import ALL, WAYS, answer, read

from ferrule import Runner, tool
from ferrule.loop import LoopResult, run
from ferrule.models import Reply, Scripted
from ferrule.providers import anthropic, bedrock, gemini, ollama, openai_chat, openai_responses
from steps import steps

Response = dict[str, Any]
TEXT_ARGUMENTS = [name for name in ALL if name in {"openai_responses", "openai_chat", "mistral", "cohere"}]
COMPLETE = ("end", "calls")


@pytest.fixture(params=ALL)
def api(request: pytest.FixtureRequest) -> Any:
    return ALL[request.param]


def given_in(turn: list[Response]) -> list[Any]:
    """The arguments in a turn, as objects."""
    keys = ("arguments", "input", "args")
    found = [item[key] for item in inside(turn) for key in keys if key in item]
    return [json.loads(value) if isinstance(value, str) else value for value in found]


# Arguments that were repaired

REPAIRED = [
    ('{"a": 1, "b": 2,}', {"a": 1, "b": 2}),
    ('```json\n{"a": 1, "b": 2}\n```', {"a": 1, "b": 2}),
    ('"{\\"a\\": 1, \\"b\\": 2}"', {"a": 1, "b": 2}),
    ('{"a": "one\ntwo"}', {"a": "one\ntwo"}),
    ("", {}),
    ("{oops", {}),
    ("[1]", {}),
    ('{"a": NaN}', {}),
    ('{"a": 1}{"a": 2}', {}),
]


@pytest.mark.parametrize(("text", "meant"), REPAIRED)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TEXT_ARGUMENTS)
def test_arguments_go_back_as_the_repairs_of_the_text_read_them(name: str, way: str, text: str, meant: Any) -> None:
    calls, turn, _ = read(ALL[name], ALL[name].write("", [("call_a", "add", text)], "calls"), way)
    assert given_in(turn) == [meant]
    assert [call.raw for call in calls] == [text]


def test_arguments_that_were_read_without_repairs_go_back_letter_by_letter() -> None:
    text = '{ "a":1.0,"b" : 2e3}'
    (message,) = openai_chat.turn(ALL["openai_chat"].write("", [("call_a", "add", text)], "calls"))
    assert message["tool_calls"][0]["function"]["arguments"] == text


@given(st.text(st.sampled_from('{}[]":,\\ \n1ae'), max_size=24))
def test_whatever_a_model_writes_goes_back_as_the_json_of_an_object(text: str) -> None:
    for name in TEXT_ARGUMENTS:
        turn = ALL[name].module.turn(ALL[name].write("", [("call_a", "add", text)], "calls"))
        assert [type(found) for found in given_in(turn)] == [dict]


@pytest.mark.parametrize("form", ["dict", "sdk"])
@pytest.mark.parametrize("name", [*TEXT_ARGUMENTS, "anthropic"])
def test_an_empty_object_before_the_real_arguments_is_no_part_of_them(name: str, form: str) -> None:
    api = ALL[name]
    response = api.write("", [("call_a", "add", {"a": 1, "b": 2})], "calls")
    stream = api.fed(api.events(response, lambda text: ["{}", *text]), form)
    assert [dict(call.arguments) for call in stream.calls()] == [{"a": 1, "b": 2}]
    assert given_in(stream.turn()) == [{"a": 1, "b": 2}]


@pytest.mark.parametrize("form", ["dict", "sdk"])
@pytest.mark.parametrize("name", [*TEXT_ARGUMENTS, "anthropic"])
def test_an_empty_object_alone_is_the_arguments(name: str, form: str) -> None:
    api = ALL[name]
    stream = api.fed(api.events(api.write("", [("call_a", "add", {}), ("call_b", "add", {})], "calls")), form)
    assert [(call.raw, call.problem) for call in stream.calls()] == [("{}", None), ("{}", None)]
    assert given_in(stream.turn()) == [{}, {}]


@pytest.mark.parametrize("form", ["dict", "sdk"])
@pytest.mark.parametrize("first", ["added", "delta"])
def test_an_empty_object_before_the_real_arguments_is_dropped_where_no_event_says_them_whole(
    first: str, form: str
) -> None:
    api = ALL["openai_responses"]
    *events, end = api.events(
        api.write("", [("call_a", "add", {"a": 1})], "calls"),
        lambda text: [*(["{}"] if first == "delta" else []), *text],
    )
    kept = [event for event in events if not event["type"].endswith(".done")]
    for event in kept:
        if event["type"] == "response.output_item.added":
            event["item"]["arguments"] = "{}" if first == "added" else ""
    stream = api.fed([*kept, {**end, "response": {**end["response"], "output": []}}], form)
    assert [call.raw for call in stream.calls()] == ['{"a": 1}']


# Why a turn ended

WORDS = ["", "eos", "max_tokens", "BRAND_NEW", "network_error", "no such word"]


def with_word(name: str, response: Response, word: Any) -> Response:
    """The response with this word for its end."""
    if name in ("openai_chat", "mistral"):
        response["choices"][0]["finish_reason"] = word
    elif name == "gemini":
        response["candidates"][0]["finishReason"] = word
    else:
        keys = {"anthropic": "stop_reason", "bedrock": "stopReason", "cohere": "finish_reason", "ollama": "done_reason"}
        response[keys.get(name, "status")] = word
    return response


@pytest.mark.parametrize("asked", [[], [("call_a", "add", {})]], ids=["text", "call"])
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("name", ALL)
def test_there_is_a_reason_wherever_a_turn_has_no_ordinary_end(name: str, word: str, asked: Any) -> None:
    api = ALL[name]
    response = with_word(name, api.write("Text.", asked, "calls" if asked else "done"), word)
    stop, reason = api.module.stop(response), api.module.reason(response)
    assert (reason is None) is (stop in COMPLETE), (stop, reason)
    if stop == "other" and word:
        assert word in str(reason)
    for call in api.module.calls(response):
        assert call.problem is None or stop not in COMPLETE


@pytest.mark.parametrize("said", ["done", "cut"])
@pytest.mark.parametrize("way", ["dict", "sdk"])
def test_a_stream_says_the_same_reason_and_text_as_the_response(api: Any, way: str, said: str) -> None:
    response = api.write("Some text.", [], said)
    stream = api.fed(api.events(response), way)
    given = api.read(response, way)
    assert (stream.reason, api.module.text(stream.partial())) == (api.module.reason(given), api.module.text(given))
    assert api.module.text(given) == "Some text."
    assert (stream.reason is None) is (stream.stop in COMPLETE)


def test_a_stream_that_broke_off_says_that_it_has_no_end(api: Any) -> None:
    events = list(api.events(api.write("Some text.", [], "done")))
    stream = api.fed(events[:1])
    assert stream.stop == "other" and "no end" in str(stream.reason)


@pytest.mark.parametrize("word", ["eos", "eos_token", "end", "end_turn", "STOP"])
@pytest.mark.parametrize("asked", [[], [("call_a", "add", {})]], ids=["text", "call"])
def test_words_of_compatible_servers_end_a_turn(word: str, asked: Any) -> None:
    response = with_word("openai_chat", ALL["openai_chat"].write("Text.", asked, "done"), word)
    assert openai_chat.stop(response) == ("calls" if asked else "end")
    assert [call.problem for call in openai_chat.calls(response)] == [None] * len(asked)


@pytest.mark.parametrize("way", WAYS[:1])
def test_a_compaction_is_a_pause_and_runs_nothing(way: str) -> None:
    response = with_word("anthropic", ALL["anthropic"].write("", [("call_a", "add", {})], "calls"), "compaction")
    calls, turn, stop = read(ALL["anthropic"], response, way)
    assert stop == "pause" and turn and "compaction" in str(calls[0].problem)


# State

CONTAINER = {"id": "container_1", "expires_at": "2026-11-22T10:00:00Z"}


def test_a_container_is_what_the_next_request_needs() -> None:
    response = ALL["anthropic"].write("", [("call_a", "add", {})], "calls")
    assert anthropic.state(response) == {}
    response |= {"container": CONTAINER}
    assert anthropic.state(response) == {"container": "container_1"}
    assert anthropic.state(BetaMessage.model_validate(response)) == {"container": "container_1"}
    stream = anthropic.Stream()
    for event in ALL["anthropic"].events(response):
        if event["type"] == "message_start":
            event["message"].pop("container", None)
        if event["type"] == "message_delta":
            event["delta"]["container"] = CONTAINER
        stream.feed(event)
    assert stream.state() == {"container": "container_1"}


@pytest.mark.parametrize("name", [name for name in ALL if name not in {"anthropic", "gemini"}])
def test_most_apis_need_nothing_but_the_messages(name: str) -> None:
    api = ALL[name]
    response = api.write("", [("call_a", "add", {})], "calls")
    assert api.module.state(response) == api.fed(api.events(response)).state() == {}
    assert gemini.state(response) == {}


# What an API leaves to the program, and nobody here knows

SHELL = {"commands": ["ls"], "timeout_ms": None, "max_output_length": None}
ITEMS: dict[str, Response] = {
    "shell_call": {"id": "i", "call_id": "c", "action": SHELL, "status": "completed", "environment": {"type": "local"}},
    "local_shell_call": {
        "id": "i",
        "call_id": "c",
        "status": "completed",
        "action": {"type": "exec", "command": ["ls"], "env": {}},
    },
    "computer_call": {
        "id": "i",
        "call_id": "c",
        "status": "completed",
        "action": {"type": "screenshot"},
        "pending_safety_checks": [],
    },
    "apply_patch_call": {
        "id": "i",
        "call_id": "c",
        "status": "completed",
        "operation": {"type": "delete_file", "path": "a.txt"},
    },
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
def test_an_item_for_the_program_is_a_call_with_a_problem_and_gets_an_answer_of_its_own_form(
    kind: str, form: str
) -> None:
    response = ALL["openai_responses"].write("", [], "done") | {"output": [{"type": kind, **ITEMS[kind]}]}
    given: Any = OpenAIResponse.model_validate(response) if form == "sdk" else response
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

    result = asyncio.run(Runner([same]).run(call))
    assert (result.status, ran) == ("invalid", [])
    (output,) = openai_responses.results([result])
    unknown = asyncio.run(Runner([add]).run(call))
    assert (unknown.status, unknown.error) == ("invalid", result.error)
    assert str(unknown.error).count("Nothing was run") == 1
    INPUT_ITEMS.validate_python([output])
    assert "c" in (output.get("call_id"), output.get("approval_request_id"))
    told = json.dumps(output)
    assert NOT_DONE.get(kind, "") in told
    assert "Nothing was run" in told or kind == "computer_call"  # it takes no text
    (item,) = openai_responses.turn(given)
    assert item == response["output"][0]


@pytest.mark.parametrize("form", ["dict", "sdk"])
async def test_the_safety_checks_of_a_call_are_told_and_never_acknowledged(form: str) -> None:
    checks = [{"id": "cu_sc_1", "code": "malicious_instructions", "message": "A page gives orders."}]
    item = {"type": "computer_call", **ITEMS["computer_call"], "pending_safety_checks": checks}
    response = ALL["openai_responses"].write("", [], "done") | {"output": [item]}
    (call,) = openai_responses.calls(OpenAIResponse.model_validate(response) if form == "sdk" else response)
    assert "acknowledges malicious_instructions" in str(call.problem)
    assert call.arguments["pending_safety_checks"] == checks
    (output,) = openai_responses.results([(await Runner([add]).run(call))])
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
def test_what_the_api_runs_itself_is_no_call(item: Response) -> None:
    written = {**item, "id": "i", "call_id": "c", "status": "completed"}
    response = ALL["openai_responses"].write("Done.", [], "done")
    response["output"].append(written)
    assert openai_responses.calls(response) == [] and openai_responses.stop(response) == "end"


def test_a_call_of_anthropics_own_toolset_does_not_run_a_tool_of_its_name() -> None:
    response = ALL["anthropic"].write("", [("call_a", "add", {"a": 1, "b": 2})], "calls")
    response["content"][-1]["toolset_name"] = "computer"
    (call,) = anthropic.calls(response)
    assert "computer" in str(call.problem)
    (message,) = anthropic.results([answer(call, error="no")])
    assert message["content"][0]["toolset_name"] == "computer" and message["content"][0]["is_error"]


# Calls that a model wrote into its text

WRITTEN = [
    '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>',
    'Let me see.\n<tool_call>{"name": "add", "parameters": {"a": 1, "b": 2}}</tool_call>',
    "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n</function>\n</tool_call>",
    '<function=add>{"a": 1, "b": 2}</function>',
    '<think>Add them.</think><tool_call>{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2}"}</tool_call>',
]
UNREADABLE = [
    "<tool_call>",
    '<tool_call>{"name": "add", "arguments": {"a": 1',
    '<tool_call>{"name": "add"}</tool_call><tool_call>{oops}</tool_call>',
    "<function=add><parameter=a>1</function>",
    "<tool_call>Not JSON.</tool_call>",
    "<function=add><parameter=a>1</parameter><parameter=a>2</parameter></function>",
]
MODULES: dict[str, Any] = {"openai_chat": openai_chat, "ollama": ollama}


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.mark.parametrize("text", [*WRITTEN, *UNREADABLE])
@pytest.mark.parametrize("name", MODULES)
def test_a_call_in_the_text_is_malformed_and_runs_nothing(name: str, text: str) -> None:
    response = ALL[name].write(text, [], "done")
    for read_as in (response, ALL[name].fed(ALL[name].events(response)).partial()):
        assert MODULES[name].stop(read_as) == "malformed" and MODULES[name].calls(read_as) == []
        assert "text" in str(MODULES[name].reason(read_as))


@pytest.mark.parametrize("text", WRITTEN)
@pytest.mark.parametrize("name", MODULES)
async def test_a_call_in_the_text_is_read_where_that_is_wanted(name: str, text: str) -> None:
    module = MODULES[name]
    response = module.with_text_calls(ALL[name].write(text, [], "done"))
    (call,) = module.calls(response)
    assert (module.stop(response), call.problem) == ("calls", None)
    assert (await Runner([add]).run(call)).output == 3
    assert not any(mark in json.dumps(module.turn(response)) for mark in ("<function", "<tool_call>"))
    assert given_in(module.turn(response)) in ([{"a": 1, "b": 2}], [{"a": "1", "b": "2"}])


@pytest.mark.parametrize("message", [None, "Hello.", ["x"]])
@pytest.mark.parametrize("name", MODULES)
def test_a_response_without_a_message_has_no_call_in_its_text(name: str, message: Any) -> None:
    response = {"message": message, "choices": [{"message": message}]}
    assert MODULES[name].with_text_calls(response) == response


@pytest.mark.parametrize("text", [*UNREADABLE, "Write <tool_call> and </tool_call> round it.", "Hello."])
@pytest.mark.parametrize("name", MODULES)
def test_text_that_holds_no_whole_call_stays_text(name: str, text: str) -> None:
    response = ALL[name].write(text, [], "done")
    assert MODULES[name].with_text_calls(response) == response


@pytest.mark.parametrize("name", MODULES)
def test_only_the_call_behind_thoughts_and_code_is_read(name: str) -> None:
    other = WRITTEN[0].replace("1", "9")
    text = f"<think>\n{other}\n</think>\nAs in\n```\n{other}\n```\nI call\n{WRITTEN[0]}"
    (call,) = MODULES[name].calls(MODULES[name].with_text_calls(ALL[name].write(text, [], "done")))
    assert call.arguments["a"] == 1


ELSEWHERE = [f"{WRITTEN[0]}\nThen.\n{WRITTEN[0]}", f"Go.\n{WRITTEN[0]}<|im_end|>", "Go.\n<tool_call>\n{"]


@pytest.mark.parametrize("text", ELSEWHERE)
@pytest.mark.parametrize("name", MODULES)
def test_a_call_in_the_text_that_is_not_at_its_end_is_malformed(name: str, text: str) -> None:
    response = MODULES[name].with_text_calls(ALL[name].write(text, [], "done"))
    assert MODULES[name].calls(response) == [] and MODULES[name].stop(response) == "malformed"


# An answer that is no text

DRAWN = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "aGk="}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "An image of a cat."}]}
SPOKEN_ALOUD = {"id": "audio_1", "data": "aGk=", "expires_at": 1, "transcript": "Hi."}
INLINE = {"inlineData": {"mimeType": "image/png", "data": "aGk="}}
IMAGE = {"image": {"format": "png", "source": {"bytes": b"hi"}}}
FILE = {"type": "file", "file_id": "3f0b6a1c-5d2e-4c8e-9a53-0d8a4c1b7e11"}
MEDIA: dict[str, Response] = {
    "openai_responses": {"output": [THOUGHT, DRAWN]},
    "openai_chat": {"content": None, "audio": SPOKEN_ALOUD},
    "gemini": {"parts": [INLINE]},
    "interactions": {"steps": [{"type": "model_output", "content": [{"type": "image", "data": "aGk="}]}]},
    "bedrock": {"content": [IMAGE]},
    "mistral": {"content": [FILE]},
}


def with_content(name: str, content: Response) -> Response:
    """A response that ended, and says this."""
    response: Response = ALL[name].write("", [], "done")
    if name in ("openai_chat", "mistral"):
        response["choices"][0]["message"] |= content
    elif name == "gemini":
        response["candidates"][0]["content"] |= content
    elif name == "bedrock":
        response["output"]["message"] |= content
    else:
        response |= content
    return response


def run_with(name: str, response: Any) -> LoopResult:
    """What the loop makes of this answer."""
    module = ALL[name].module
    said = Reply(module.text(response), module.calls(response), module.turn(response), module.stop(response))

    async def main() -> LoopResult:
        return await run(Scripted([said]), [], Runner([]))

    return asyncio.run(main())


@pytest.mark.parametrize("form", ["dict", "sdk"])
@pytest.mark.parametrize("name", MEDIA)
def test_an_answer_that_is_an_image_a_sound_or_a_file_alone_is_an_answer(name: str, form: str) -> None:
    result = run_with(name, ALL[name].read(with_content(name, MEDIA[name]), form))
    assert (result.status, result.text.strip(), result.reason) == ("done", "", None)


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_thoughts_alone_are_no_answer(form: str) -> None:
    response = with_content("openai_responses", {"output": [THOUGHT]})
    assert run_with("openai_responses", ALL["openai_responses"].read(response, form)).status == "failed"
    message = {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}]}
    assert Reply("", (), [message]).is_empty


# A turn with an error


@pytest.mark.parametrize("where", ["choice", "beside"])
@pytest.mark.parametrize("way", ["whole", "stream"])
def test_calls_beside_an_error_do_not_run(way: str, where: str) -> None:
    response = ALL["openai_chat"].write("", [("call_a", "add", {"a": 1, "b": 2})], "calls")
    error = {"message": "boom", "code": "server_error"}
    if way == "whole":
        (response["choices"][0] if where == "choice" else response)["error"] = error
        calls, stop, reason = openai_chat.calls(response), openai_chat.stop(response), openai_chat.reason(response)
    else:
        stream = openai_chat.Stream()
        *events, last = ALL["openai_chat"].events(response)
        content = {"index": 0, "delta": {"content": "x"}, "finish_reason": None}
        broken = {"choices": [content | ({"error": error} if where == "choice" else {})]}
        for event in [*events, broken | ({"error": error} if where == "beside" else {}), last]:
            stream.feed(event)
        calls, stop, reason = stream.calls(), stream.stop, stream.reason
    assert [call.problem is not None for call in calls] == [True]
    assert stop == "other" and "boom" in str(reason)


BROKEN: list[Response] = [
    {"error": {"code": "server_error", "message": "boom"}},
    {"incomplete_details": {"reason": "max_output_tokens"}},
]


@pytest.mark.parametrize("more", BROKEN)
def test_a_completed_response_with_an_error_or_cut_off_runs_nothing(more: Response) -> None:
    response = ALL["openai_responses"].write("", [("call_a", "add", {"a": 1})], "calls") | more
    (call,) = openai_responses.calls(response)
    assert call.problem and openai_responses.stop(response) in {"other", "cut"}


def test_an_approval_and_a_call_without_an_id_have_the_same_ids_in_calls_and_turn() -> None:
    response = ALL["openai_responses"].write("", [(None, "add", {"a": 1})], "calls")
    response["output"].insert(0, {"type": "mcp_approval_request", **ITEMS["mcp_approval_request"]})
    turn = openai_responses.turn(response)
    assert [call.id for call in openai_responses.calls(response)] == ["c", turn[-1]["call_id"]]


@pytest.mark.parametrize("end", ["cut", None])
@pytest.mark.parametrize("name", MODULES)
def test_a_call_in_the_text_of_a_turn_that_was_cut_off_does_not_run(name: str, end: str | None) -> None:
    response = MODULES[name].with_text_calls(ALL[name].write(WRITTEN[0], [], end))
    (call,) = MODULES[name].calls(response)
    assert call.problem and MODULES[name].stop(response) in {"cut", "other"}


def test_text_beside_real_calls_is_text() -> None:
    response = ALL["openai_chat"].write(WRITTEN[0], [("call_a", "add", {"a": 1, "b": 2})], "calls")
    assert openai_chat.with_text_calls(response) == response
    assert openai_chat.stop(response) == "calls" and len(openai_chat.calls(response)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" * 100_000,
        "Look:\n" + "<tool_call> {\n" * 100_000,
        "Look:\n```\n" + "<tool_call> {\n" * 100_000,
        "<tool_call><function=add>" + "<parameter=a>" * 100_000 + "</function></tool_call>",
    ],
    ids=["marks", "calls", "code", "parameters"],
)
def test_the_marks_are_found_in_few_steps_for_each(text: str) -> None:
    response = ALL["openai_chat"].write(text, [], "done")
    assert openai_chat.with_text_calls(response) == response
    assert openai_chat.stop(response) in {"end", "malformed"}
    assert steps(lambda: openai_chat.stop(openai_chat.with_text_calls(response))) < 20 * 100_000


# Bedrock's status


def test_the_status_of_a_result_can_be_left_out() -> None:
    (call,) = bedrock.calls(ALL["bedrock"].write("", [("call_a", "add", {})], "calls"))
    (message,) = bedrock.results([answer(call, error="no")], status=False)
    block = message["content"][0]["toolResult"]
    assert "status" not in block and "Error" in block["content"][0]["text"]
