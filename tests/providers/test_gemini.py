"""Google's Gemini API, generateContent and Interactions: what only it has, streamed and not."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from apis_more import MORE
from asked import ADD, GREET, PNG, TOOLS, add, result
from google.genai._gaos.types.interactions import CreateModelInteraction
from google.genai.types import Content, GenerateContentConfig

from ferrule import Toolset
from ferrule.errors import DefinitionError
from ferrule.providers import gemini as MODULE
from ferrule.values.call import ToolCall
from ferrule.values.content import Media, Text

# generateContent


def test_a_definition_carries_the_json_schema_as_it_is() -> None:
    (listed,) = MODULE.tools(TOOLS)
    assert listed["functionDeclarations"][0] == {
        "name": "add",
        "description": "Add two numbers.",
        "parametersJsonSchema": add.input_schema,
    }
    assert MODULE.tools(Toolset([])) == []


@pytest.mark.parametrize("api", ["generate", "interactions"])
@pytest.mark.parametrize("name", ["x-y", "1x", "straße", "a" * 65, ""])
def test_a_parameter_whose_name_is_not_taken_is_refused_with_its_place(api: Any, name: str) -> None:
    schema = {"type": "object", "properties": {name: {"type": "string"}}, "additionalProperties": False}
    odd = Toolset([{"name": "odd", "input_schema": schema, "execute": lambda input: input}])
    with pytest.raises(DefinitionError, match=r"'odd'.*Gemini.*properties"):
        MODULE.tools(odd, api=api)


def test_strict_is_refused_and_says_what_to_do() -> None:
    with pytest.raises(DefinitionError, match=r"'add'.*Gemini.*tool_choice"):
        MODULE.tools(TOOLS, strict=["add"])
    with pytest.raises(DefinitionError, match="'subtract'"):
        MODULE.tools(TOOLS, strict=["subtract"])


def test_an_api_that_there_is_not_is_refused() -> None:
    with pytest.raises(DefinitionError, match="'live'"):
        MODULE.tools(TOOLS, api="live")  # type: ignore[arg-type]  # the mistake


@pytest.mark.parametrize(
    ("choice", "only", "said"),
    [
        ("auto", None, {"mode": "AUTO"}),
        ("required", None, {"mode": "ANY"}),
        ("none", None, {"mode": "NONE"}),
        ("add", None, {"mode": "ANY", "allowedFunctionNames": ["add"]}),
        ("auto", ["add"], {"mode": "VALIDATED", "allowedFunctionNames": ["add"]}),
        ("required", ["add"], {"mode": "ANY", "allowedFunctionNames": ["add"]}),
    ],
)
def test_names_stand_beside_any_and_validated_alone(choice: str, only: Any, said: Any) -> None:
    written = MODULE.tool_choice(choice, only=only)
    assert written == {"toolConfig": {"functionCallingConfig": said}}
    assert GenerateContentConfig(**written).tool_config is not None


def test_interactions_name_the_allowed_tools() -> None:
    assert MODULE.tool_choice("none", api="interactions") == {"generation_config": {"tool_choice": "none"}}
    assert MODULE.tool_choice("add", api="interactions") == {
        "generation_config": {"tool_choice": {"allowed_tools": {"mode": "any", "tools": ["add"]}}}
    }


def test_parallel_calls_cannot_be_turned_off() -> None:
    with pytest.raises(DefinitionError, match="parallel"):
        MODULE.tool_choice("auto", parallel=False)


def signed(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_each_signature_goes_back_on_its_own_part(form: str) -> None:
    api = MORE["gemini"]
    response = api.write("Text.", [ADD, GREET], "calls")
    parts = response["candidates"][0]["content"]["parts"]
    parts.insert(0, {"text": "Hm.", "thought": True})
    parts[1]["thoughtSignature"] = signed(b"\xff\xfe\xfa??>")
    parts[2]["thoughtSignature"] = signed(b"second")
    parts.append({"text": "", "thoughtSignature": signed(b"last")})
    assert MODULE.turn(api.read(response, form)) == [{"role": "model", "parts": parts}]
    assert api.fed(api.events(response), form).turn() == [{"role": "model", "parts": parts}]


def test_texts_with_and_without_a_signature_are_never_made_one() -> None:
    stream = MODULE.Stream()
    for part in ({"text": "a"}, {"text": "b"}, {"text": "c", "thoughtSignature": "czE="}, {"text": "d"}, {"text": "e"}):
        stream.feed({"candidates": [{"content": {"parts": [part]}}]})
    assert [part["text"] for part in stream.turn()[0]["parts"]] == ["ab", "c", "de"]


def test_a_call_whose_arguments_come_in_parts_does_not_run() -> None:
    stream = MODULE.Stream()
    argument = {"jsonPath": "$.a", "stringValue": "x"}
    for call in ({"name": "f", "willContinue": True}, {"partialArgs": [argument], "willContinue": True}, {}):
        stream.feed({"responseId": "r", "candidates": [{"content": {"parts": [{"functionCall": call}]}}]})
    stream.feed({"candidates": [{"finishReason": "STOP"}]})
    (call,) = stream.calls()
    assert call.name == "f" and call.problem
    assert stream.turn()[0]["parts"] == [{"functionCall": {"id": call.id, "name": "f"}}]


@pytest.mark.parametrize(
    "reason", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE"]
)
@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_a_malformed_turn_runs_nothing(reason: str, form: str) -> None:
    response = MORE["gemini"].write("", [ADD], "calls")
    response["candidates"][0]["finishReason"] = reason
    whole = MORE["gemini"].read(response, form)
    assert MODULE.stop(whole) == "malformed"
    assert [call.problem and reason in call.problem for call in MODULE.calls(whole)] == [True]


def test_a_chunk_alone_is_no_whole_turn() -> None:
    (call,) = MODULE.calls({"candidates": [{"content": {"parts": [{"functionCall": {"name": "add"}}]}}]})
    assert call.problem and "finishReason" in call.problem


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_a_blocked_prompt_is_a_refusal(form: str) -> None:
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}}
    assert MODULE.stop(MORE["gemini"].read(blocked, form)) == "refused"
    assert MORE["gemini"].fed([blocked], form).stop == "refused"


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_a_turn_that_can_be_continued_is_a_pause_with_its_token(form: str) -> None:
    api = MORE["gemini"]
    response = api.write("Half a", [ADD], "calls")
    token = signed(b"\xff\xfe\xfa??>")
    ending = {"finishReason": "CONTINUATION", "continuationToken": token}
    response["candidates"][0] |= ending
    stream = api.fed([*api.events(MORE["gemini"].write("Half a", [ADD], None))], form)
    assert (stream.stop, stream.state()) == ("other", {})
    stream.feed(api.read({"candidates": [ending]}, form))
    whole = api.read(response, form)
    assert MODULE.stop(whole) == stream.stop == MODULE.stop(stream.partial()) == "pause"
    assert MODULE.reason(whole) == stream.reason == "CONTINUATION"
    for calls in (MODULE.calls(whole), stream.calls()):
        assert [call.problem and "paused" in call.problem for call in calls] == [True]
    state = MODULE.state(whole)
    assert state == stream.state() == MODULE.state(stream.partial()) == {"continuation_token": token}
    assert GenerateContentConfig(**state).continuation_token == b"\xff\xfe\xfa??>"


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_a_token_of_a_turn_that_came_to_its_end_is_of_no_use(form: str) -> None:
    response = MORE["gemini"].write("Done.", [], "done")
    response["candidates"][0]["continuationToken"] = signed(b"t")
    assert MODULE.state(MORE["gemini"].read(response, form)) == {}


@pytest.mark.parametrize("form", ["dict", "sdk"])
@pytest.mark.parametrize(
    ("ending", "stop", "reason"),
    [
        ({"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": "call:add("}, "malformed", "call:add("),
        ({"finishReason": "SAFETY"}, "refused", "SAFETY"),
        ({"finishReason": "MAX_TOKENS"}, "cut", "MAX_TOKENS"),
        ({"finishReason": "LANGUAGE"}, "other", "LANGUAGE"),
        ({"finishReason": "STOP", "finishMessage": "Model generated function call(s)."}, "end", None),
        ({}, "other", "the turn has no end yet (its finishReason is null)"),
    ],
)
def test_what_ends_a_turn_early_is_the_reason(ending: Any, stop: str, reason: str | None, form: str) -> None:
    whole = MORE["gemini"].read({"candidates": [{"content": {"parts": [{"text": "So"}]}, **ending}]}, form)
    stream = MODULE.Stream()
    stream.feed(whole)
    assert (MODULE.stop(whole), MODULE.reason(whole)) == (stream.stop, stream.reason) == (stop, reason)


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_a_blocked_prompt_says_why_and_an_empty_response_that_it_has_no_end(form: str) -> None:
    feedback = {"blockReason": "SAFETY", "blockReasonMessage": "Not that."}
    assert MODULE.reason(MORE["gemini"].read({"promptFeedback": feedback}, form)) == "SAFETY: Not that."
    empty = MORE["gemini"].read({"responseId": "r"}, form)
    assert (MODULE.stop(empty), MODULE.reason(empty)) == ("other", "the turn has no end yet (its finishReason is null)")


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_what_a_stream_says_besides_its_content_is_there_to_read(form: str) -> None:
    grounding = {"webSearchQueries": ["ferrules"]}
    response = MORE["gemini"].write("Found.", [], "done")
    events = list(MORE["gemini"].events(response, list))
    events[-1]["candidates"][0]["groundingMetadata"] = grounding
    (candidate,) = MORE["gemini"].fed(events, form).partial()["candidates"]
    assert candidate["groundingMetadata"] == grounding and candidate["finishReason"] == "STOP"


@pytest.mark.parametrize("output", [{"$ref": "#/$defs/X"}, {"a": [{"$ref": "x", "b": 1}]}, [{"x": {"$ref": 1}}]])
def test_a_result_with_a_reference_goes_as_text(output: Any) -> None:
    (message,) = MODULE.results([result(ToolCall("c", "add"), output)])
    assert message["parts"][0]["functionResponse"]["response"] == {"output": json.dumps(output)}


def test_a_result_that_only_speaks_of_references_stays_an_object() -> None:
    output = {"ref": 'a "$ref": "x"', "$refs": ["$ref"]}
    (message,) = MODULE.results([result(ToolCall("c", "add"), output)])
    assert message["parts"][0]["functionResponse"]["response"] == {"output": output}


def test_as_many_responses_as_calls_stand_in_one_content() -> None:
    calls = [ToolCall("c1", "add"), ToolCall("c2", "greet")]
    assert MODULE.results([result(calls[0], {"sum": 3}), result(calls[1], error="no")]) == [
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "c1", "name": "add", "response": {"output": {"sum": 3}}}},
                {"functionResponse": {"id": "c2", "name": "greet", "response": {"error": "no"}}},
            ],
        }
    ]


@pytest.mark.parametrize("output", ["", "{", '{"a":1}', '{"a": 1, "a": 2}', {"n": 2**60}, "[1e400]", 0, None])
def test_an_output_that_doubles_or_objects_would_change_goes_as_text(output: Any) -> None:
    (message,) = MODULE.results([result(ToolCall("c", "add"), output)])
    said = message["parts"][0]["functionResponse"]["response"]["output"]
    assert said == (output if isinstance(output, str) else json.dumps(output))


def test_media_are_parts_of_the_response_where_they_are_taken() -> None:
    blocks = [Text("See:"), Media("image", PNG, "image/png"), Media("audio", b"1234", "audio/wav")]
    (message,) = MODULE.results([result(ToolCall("c", "add"), blocks)])
    response = message["parts"][0]["functionResponse"]
    assert response["parts"] == [{"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}]
    assert response["response"]["output"].startswith("See:\n[audio of 4 bytes")
    assert Content.model_validate(message).parts is not None


# Interactions


def test_deferred_functions_of_interactions_are_marked() -> None:
    written = MODULE.tools(TOOLS, deferred=["add"], api="interactions")
    assert [(item["name"], item.get("defer_loading")) for item in written] == [("greet", None), ("add", True)]


def test_an_interaction_is_answered_in_its_own_way() -> None:
    call, other = MODULE.calls(MORE["interactions"].write("", [ADD, GREET], "calls"))
    steps = MODULE.results([result(call, 3), result(other, error="no")])
    assert steps == [
        {"type": "function_result", "call_id": "call_a", "name": "add", "result": "3"},
        {"type": "function_result", "call_id": "call_b", "name": "greet", "result": "no", "is_error": True},
    ]


def test_an_interactions_images_are_shown() -> None:
    (call,) = MODULE.calls(MORE["interactions"].write("", [ADD], "calls"))
    (step,) = MODULE.results([result(call, [Text("See:"), Media("image", PNG, "image/png")])])
    assert [item["type"] for item in step["result"]] == ["text", "image"]


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_thoughts_go_back_with_their_signatures_and_what_the_caller_sent_does_not(form: str) -> None:
    api = MORE["interactions"]
    response = api.write("Text.", [ADD], "calls")
    thought = {"type": "thought", "signature": signed(b"sig"), "summary": [{"type": "text", "text": "Hm."}]}
    response["steps"].insert(0, thought)
    expected = list(response["steps"])
    assert api.fed(api.events(response, list), form).turn() == expected
    response["steps"].insert(0, {"type": "user_input", "content": [{"type": "text", "text": "Add."}]})
    assert MODULE.turn(api.read(response, form)) == expected


def test_a_new_id_under_a_used_index_is_a_new_step() -> None:
    stream = MODULE.Stream()
    for id in ("1", "2"):
        step = {"type": "function_call", "id": id, "name": "add", "arguments": {}}
        stream.feed({"event_type": "step.start", "index": 0, "step": step})
        stream.feed({"event_type": "step.delta", "index": 0, "delta": {"type": "arguments_delta", "arguments": "{}"}})
    assert [call.id for call in stream.calls()] == ["1", "2"]


@pytest.mark.parametrize("status", ["failed", "cancelled", "brand_new"])
def test_calls_of_an_interaction_that_was_not_completed_must_not_run(status: str) -> None:
    response = MORE["interactions"].write("", [ADD], "calls") | {"status": status}
    assert MODULE.stop(response) == "other"
    assert [call.problem and status in call.problem for call in MODULE.calls(response)] == [True]


@pytest.mark.parametrize("status", ["queued", "in_progress"])
def test_calls_of_an_interaction_that_goes_on_must_not_run(status: str) -> None:
    response = MORE["interactions"].write("", [ADD], "calls") | {"status": status}
    assert MODULE.stop(response) == "other"
    assert "no end yet" in str(MODULE.reason(response)) and status in str(MODULE.reason(response))
    assert [call.problem and "no end yet" in call.problem for call in MODULE.calls(response)] == [True]


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_an_interaction_that_failed_says_why(form: str) -> None:
    failed = {"id": "int_1", "status": "failed", "errors": [{"code": "internal", "message": "Full."}], "steps": []}
    whole = MORE["interactions"].read(failed, form)
    assert (MODULE.stop(whole), MODULE.reason(whole)) == ("other", "internal: Full.")


CONTINUED = {"status": "requires_continuation", "continuation_token": "t1"}


@pytest.mark.parametrize("form", ["dict", "sdk"])
@pytest.mark.parametrize(
    "ending",
    [
        [{"event_type": "interaction.completed", "interaction": {"id": "int_1", **CONTINUED}}],
        [{"event_type": "interaction.status_update", "interaction_id": "int_1", **CONTINUED}],
    ],
)
def test_an_interaction_that_can_be_continued_is_a_pause_with_its_token(ending: Any, form: str) -> None:
    api = MORE["interactions"]
    response = api.write("Half a", [ADD], "calls") | CONTINUED
    begun = [event for event in api.events(response, list) if event["event_type"] not in ENDS]
    stream, whole = api.fed([*begun, *ending], form), api.read(response, form)
    assert MODULE.stop(whole) == stream.stop == "pause"
    assert MODULE.reason(whole) == stream.reason == "requires_continuation"
    for calls in (MODULE.calls(whole), stream.calls()):
        assert [call.problem and "paused" in call.problem for call in calls] == [True]
    state = MODULE.state(whole)
    assert state == stream.state() == {"previous_interaction_id": "int_1", "continuation_token": "t1"}
    assert CreateModelInteraction(model="m", **state).continuation_token == "t1"


ENDS = ("interaction.status_update", "interaction.completed")


def test_an_ordinary_interaction_needs_nothing_in_the_next_request() -> None:
    response = MORE["interactions"].write("", [ADD], "calls") | {"continuation_token": "old"}
    assert MODULE.state(response) == MORE["interactions"].fed(MORE["interactions"].events(response)).state() == {}
    assert MODULE.reason(response) is None


def test_an_empty_object_before_the_arguments_is_not_theirs() -> None:
    response = MORE["interactions"].write("", [("c", "add", {"a": 1})], "calls")
    stream = MORE["interactions"].fed(MORE["interactions"].events(response, lambda text: ["{}", *text]))
    assert [dict(call.arguments) for call in stream.calls()] == [{"a": 1}]


STRANGE: list[Any] = [None, 1, "x", [], {}, [None], [1], {"a": 1}]


@pytest.mark.parametrize("api", ["gemini", "interactions"])
@pytest.mark.parametrize("strange", STRANGE, ids=str)
def test_no_response_of_a_strange_shape_breaks_the_reading(api: str, strange: Any) -> None:
    for key in ("candidates", "promptFeedback", "responseId", "steps", "status", "errors", "continuation_token", "id"):
        read_alone(MORE[api].write("Text.", [ADD], "calls") | {"status": "requires_continuation", key: strange})
    for key in ("content", "finishReason", "finishMessage", "continuationToken"):
        candidate = MORE["gemini"].write("Text.", [ADD], "calls")["candidates"][0]
        read_alone({"candidates": [{**candidate, "finishReason": "CONTINUATION", key: strange}]})


def read_alone(response: Any) -> None:
    stream = MODULE.Stream()
    stream.feed(response)
    for source in (response, stream.partial()):
        told = [MODULE.stop(source), MODULE.reason(source), MODULE.state(source), MODULE.turn(source)]
        json.dumps([told, [call.problem for call in MODULE.calls(source)]]).encode()
        assert all(isinstance(value, str) for value in MODULE.state(source).values())
