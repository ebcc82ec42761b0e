"""Google's Gemini API, generateContent and Interactions: what only it has, streamed and not."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from apis import ADD, ALL, GREET, TOOLS, result
from google.genai._gaos.types.interactions import CreateModelInteraction, CreateModelInteractionParam
from google.genai.types import GenerateContentConfig
from tests.models.servers.fitting import misfit

from ferrule import Toolset
from ferrule.errors import DefinitionError
from ferrule.providers import gemini
from ferrule.values.call import ToolCall

GENERATE, INTERACTIONS = ALL["gemini"], ALL["interactions"]

# generateContent


def test_a_parameter_name_that_interactions_refuse_is_refused() -> None:
    schema = {"type": "object", "properties": {"x-y": {"type": "string"}}}
    odd = Toolset([{"name": "odd", "input_schema": schema, "execute": lambda input: input}])
    with pytest.raises(DefinitionError, match=r"'odd'.*Gemini.*properties"):
        gemini.tools(odd, api="interactions")


@pytest.mark.parametrize(
    ("choice", "only", "said"),
    [
        ("none", None, {"mode": "NONE"}),
        ("add", None, {"mode": "ANY", "allowedFunctionNames": ["add"]}),
        ("auto", ["add"], {"mode": "VALIDATED", "allowedFunctionNames": ["add"]}),
        ("required", ["add"], {"mode": "ANY", "allowedFunctionNames": ["add"]}),
    ],
)
def test_names_stand_beside_any_and_validated_alone(choice: str, only: Any, said: Any) -> None:
    written = gemini.tool_choice(choice, only=only)
    assert written == {"toolConfig": {"functionCallingConfig": said}}
    assert GenerateContentConfig(**written).tool_config is not None


def signed(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_each_signature_goes_back_on_its_own_part(form: str) -> None:
    api = GENERATE
    response = api.write("Text.", [ADD, GREET], "calls")
    parts = response["candidates"][0]["content"]["parts"]
    parts.insert(0, {"text": "Hm.", "thought": True})
    parts[1]["thoughtSignature"] = signed(b"\xff\xfe\xfa??>")
    parts[2]["thoughtSignature"] = signed(b"second")
    parts.append({"text": "", "thoughtSignature": signed(b"last")})
    assert gemini.turn(api.in_form(response, form)) == [{"role": "model", "parts": parts}]
    assert api.feed(api.events(response), form).turn() == [{"role": "model", "parts": parts}]


def test_texts_with_and_without_a_signature_are_never_made_one() -> None:
    stream = gemini.Stream()
    for part in ({"text": "a"}, {"text": "b"}, {"text": "c", "thoughtSignature": "czE="}, {"text": "d"}, {"text": "e"}):
        stream.feed({"candidates": [{"content": {"parts": [part]}}]})
    assert [part["text"] for part in stream.turn()[0]["parts"]] == ["ab", "c", "de"]


def test_a_call_whose_arguments_come_in_parts_does_not_run() -> None:
    stream = gemini.Stream()
    argument = {"jsonPath": "$.a", "stringValue": "x"}
    for call in ({"name": "f", "willContinue": True}, {"partialArgs": [argument], "willContinue": True}, {}):
        stream.feed({"responseId": "r", "candidates": [{"content": {"parts": [{"functionCall": call}]}}]})
    stream.feed({"candidates": [{"finishReason": "STOP"}]})
    (call,) = stream.calls()
    assert call.name == "f" and call.problem
    assert stream.turn()[0]["parts"] == [{"functionCall": {"id": call.id, "name": "f"}}]


def test_a_chunk_alone_is_no_whole_turn() -> None:
    (call,) = gemini.calls({"candidates": [{"content": {"parts": [{"functionCall": {"name": "add"}}]}}]})
    assert call.problem and "finishReason" in call.problem


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_a_turn_that_can_be_continued_is_a_pause_with_its_token(form: str) -> None:
    api = GENERATE
    response = api.write("Half a", [ADD], "calls")
    token = signed(b"\xff\xfe\xfa??>")
    ending = {"finishReason": "CONTINUATION", "continuationToken": token}
    response["candidates"][0] |= ending
    stream = api.feed([*api.events(GENERATE.write("Half a", [ADD], None))], form)
    assert (stream.stop, stream.state()) == ("other", {})
    stream.feed(api.in_form({"candidates": [ending]}, form))
    whole = api.in_form(response, form)
    assert gemini.stop(whole) == stream.stop == gemini.stop(stream.partial()) == "pause"
    assert gemini.reason(whole) == stream.reason == "CONTINUATION"
    for calls in (gemini.calls(whole), stream.calls()):
        assert [call.problem and "paused" in call.problem for call in calls] == [True]
    state = gemini.state(whole)
    assert state == stream.state() == gemini.state(stream.partial()) == {"continuation_token": token}
    assert GenerateContentConfig(**state).continuation_token == b"\xff\xfe\xfa??>"


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_a_stream_keeps_the_fields_beside_its_content(form: str) -> None:
    grounding = {"webSearchQueries": ["ferrules"]}
    response = GENERATE.write("Found.", [], "done")
    events = list(GENERATE.events(response, list))
    events[-1]["candidates"][0]["groundingMetadata"] = grounding
    (candidate,) = GENERATE.feed(events, form).partial()["candidates"]
    assert candidate["groundingMetadata"] == grounding and candidate["finishReason"] == "STOP"


def test_a_result_with_a_reference_goes_as_text() -> None:
    for output, goes_as_text in (({"a": [{"$ref": "x"}]}, True), ({"ref": 'a "$ref": "x"', "$refs": ["$ref"]}, False)):
        (message,) = gemini.results([result(ToolCall("c", "add"), output)])
        said = message["parts"][0]["functionResponse"]["response"]["output"]
        assert said == (json.dumps(output) if goes_as_text else output)


@pytest.mark.parametrize("output", ["", '{"a":1}', '{"a": 1, "a": 2}', {"n": 2**60}, "[1e400]", 0, None])
def test_an_output_that_doubles_or_objects_would_change_goes_as_text(output: Any) -> None:
    (message,) = gemini.results([result(ToolCall("c", "add"), output)])
    said = message["parts"][0]["functionResponse"]["response"]["output"]
    assert said == (output if isinstance(output, str) else json.dumps(output))


# Interactions


def test_tools_a_turn_and_its_results_are_a_request_of_interactions() -> None:
    response = INTERACTIONS.write("Text.", [ADD, GREET], "calls")
    results = gemini.results([result(call, 1) for call in gemini.calls(response)])
    request = {"model": "gemini-flash-latest", "input": [*gemini.turn(response), *results]}
    request["tools"] = gemini.tools(TOOLS, api="interactions")
    assert misfit(request, CreateModelInteractionParam, "request") is None


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_thoughts_go_back_signed_and_user_input_does_not(form: str) -> None:
    api = INTERACTIONS
    response = api.write("Text.", [ADD], "calls")
    thought = {"type": "thought", "signature": signed(b"sig"), "summary": [{"type": "text", "text": "Hm."}]}
    response["steps"].insert(0, thought)
    expected = list(response["steps"])
    assert api.feed(api.events(response, list), form).turn() == expected
    response["steps"].insert(0, {"type": "user_input", "content": [{"type": "text", "text": "Add."}]})
    assert gemini.turn(api.in_form(response, form)) == expected


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_an_interaction_that_failed_says_why(form: str) -> None:
    failed = {"id": "int_1", "status": "failed", "errors": [{"code": "internal", "message": "Full."}], "steps": []}
    whole = INTERACTIONS.in_form(failed, form)
    assert (gemini.stop(whole), gemini.reason(whole)) == ("other", "internal: Full.")


ENDS = ("interaction.status_update", "interaction.completed")
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
    api = INTERACTIONS
    response = api.write("Half a", [ADD], "calls") | CONTINUED
    begun = [event for event in api.events(response, list) if event["event_type"] not in ENDS]
    stream, whole = api.feed([*begun, *ending], form), api.in_form(response, form)
    assert gemini.stop(whole) == stream.stop == "pause"
    assert gemini.reason(whole) == stream.reason == "requires_continuation"
    for calls in (gemini.calls(whole), stream.calls()):
        assert [call.problem and "paused" in call.problem for call in calls] == [True]
    state = gemini.state(whole)
    assert state == stream.state() == {"previous_interaction_id": "int_1", "continuation_token": "t1"}
    assert CreateModelInteraction(model="m", **state).continuation_token == "t1"
