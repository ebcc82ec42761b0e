"""What every provider module promises, streamed or not, as dicts and as the objects of its SDK."""

from __future__ import annotations

import copy
import itertools
import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from apis import (
    ADD,
    ALL,
    GREET,
    PNG,
    TOOLS,
    WAYS,
    WITH_IDS,
    Api,
    Response,
    add,
    broken_at_each_place,
    dicts_in,
    encode,
    fields_of,
    read_notes,
    result,
    with_index,
)
from hypothesis import example, given
from hypothesis import strategies as st

from ferrule import DefinitionError, Runner, ToolCall, Toolset, tool
from ferrule.providers import anthropic, openai_chat, openai_responses
from ferrule.values.content import Media, Text
from ferrule.values.result import ToolResult

pytestmark = pytest.mark.slow
EACH_WITH_IDS = pytest.mark.parametrize("api", [ALL[name] for name in WITH_IDS], ids=WITH_IDS)


@pytest.fixture(params=ALL)
def api(request: pytest.FixtureRequest) -> Api:
    return ALL[request.param]


def first_call(api: Api) -> ToolCall:
    return api.module.calls(api.write("", [ADD], "calls"))[0]


def text_of(api: Api, *args: Any, **more: Any) -> str:
    """The text that answers a call with this result."""
    ((_, text),) = api.answers(api.module.results([result(first_call(api), *args, **more)]))
    return text


# Calls and turns


@pytest.mark.parametrize("way", WAYS)
def test_calls_come_in_order_and_can_run(api: Api, way: str) -> None:
    calls, turn, stop = api.read(api.write("Text.", [ADD, GREET], "calls"), way, list)
    assert [(call.name, dict(call.arguments), call.problem, call.data) for call in calls] == [
        ("add", {"a": 1, "b": 2}, None, api.data),
        ("greet", {"name": "Ada"}, None, api.data),
    ]
    assert stop == "calls" and turn
    if api.call_ids:
        assert [call.id for call in calls] == ["call_a", "call_b"]
        assert api.ids(turn) == [api.wire_id(call.id) for call in calls]


@pytest.mark.parametrize("form", ["dict", "sdk"])
@pytest.mark.parametrize("asked", [[], [ADD], [ADD, GREET]], ids=len)
def test_a_stream_reads_as_its_response(api: Api, form: str, asked: list[Any]) -> None:
    response = api.write("Let me see.", asked, "calls" if asked else "done")
    stream, whole = api.feed(api.events(response, list), form), api.in_form(response, form)
    partial = stream.partial()
    read = api.module
    assert fields_of(stream.calls()) == fields_of(read.calls(whole)) == fields_of(read.calls(partial))
    assert stream.turn() == read.turn(whole) == read.turn(response)
    assert stream.stop == read.stop(whole) == read.stop(partial) == ("calls" if asked else "end")
    assert stream.reason is stream.error is read.reason(whole) is None
    assert read.text(partial) == read.text(whole) and "Let me see." in json.dumps(stream.turn())
    assert json.loads(json.dumps(partial)) == partial
    assert api.sdk(partial)  # the SDK takes it for a response of its own


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_nothing_runs_before_the_end_of_a_stream(api: Api, form: str) -> None:
    events = list(api.events(api.write("Text.", [ADD, GREET], "calls"), list))
    stream, ended = api.module.Stream(), False
    for event in events:
        assert ended or all(call.problem and "Nothing was run" in call.problem for call in stream.calls())
        assert ended or (stream.stop == "other" and "no end" in str(stream.reason))
        stream.feed(api.sdk_event(event) if form == "sdk" else event)
        ended = ended or stream.stop != "other"
    assert [call.problem for call in stream.calls()] == [None, None]


@pytest.mark.parametrize("way", WAYS)
def test_calls_of_a_cut_off_turn_do_not_run(api: Api, way: str) -> None:
    calls, _, stop = api.read(api.write("", [ADD, GREET], "cut"), way)
    assert stop == "cut"
    assert [call.problem and "cut off" in call.problem for call in calls] == [True, True]


@pytest.mark.parametrize("name", ["anthropic", "openai_responses", "openai_chat", "gemini", "bedrock"])
def test_calls_of_a_refused_turn_do_not_run(name: str) -> None:
    response = ALL[name].write("", [ADD], "refused")
    assert ALL[name].module.stop(response) == "refused"
    assert all(call.problem for call in ALL[name].module.calls(response))


def test_the_stop_follows_the_content_of_an_ordinary_end(api: Api) -> None:
    assert api.module.stop(api.write("", [ADD], "done")) == "calls"
    assert api.module.calls(api.write("", [ADD], "done"))[0].problem is None
    empty = api.write("", [], "done")
    assert (api.module.calls(empty), api.module.turn(empty), api.module.stop(empty)) == ([], [], "end")
    assert (api.module.calls({}), api.module.turn({})) == ([], []) and api.module.stop({}) in {"end", "other"}
    assert api.module.stop(api.write("", [], None)) == "other"


def test_reading_changes_neither_the_response_nor_the_events(api: Api) -> None:
    response = api.write("Text.", [(None, "add", {"a": 1}), GREET], "calls")
    events = list(api.events(response))
    before = copy.deepcopy((response, events))
    stream = api.module.Stream()
    for event in events:
        stream.feed(event)
        stream.calls(), stream.partial(), stream.turn(), stream.stop
    assert fields_of(stream.calls()) == fields_of(api.module.calls(response)) and api.module.turn(response)
    assert (response, events) == before


# Errors of the API

FAILED = {"id": "r", "object": "response", "created_at": 1, "model": "m", "output": [], "status": "failed"}
FULL = {"code": "server_error", "message": "Full."}
ENDS = "message-end"
ERRORS: list[tuple[str, Response, str]] = [
    ("anthropic", {"type": "error", "error": {"type": "overloaded", "message": "Full."}}, "overloaded: Full."),
    ("openai_responses", {"type": "error", **FULL, "param": None}, "server_error: Full."),
    ("openai_responses", {"type": "response.failed", "response": {**FAILED, "error": FULL}}, "server_error: Full."),
    ("openai_responses", {"type": "response.failed", "response": {**FAILED, "error": None}}, "the response failed"),
    ("openai_chat", {"error": {"message": "Full.", "type": "server_error", "code": 500}}, "server_error: Full."),
    ("openai_chat", {"object": "error", "message": "Full.", "type": "BadRequestError"}, "BadRequestError: Full."),
    ("gemini", {"error": {"code": 503, "message": "Full.", "status": "UNAVAILABLE"}}, "UNAVAILABLE: Full."),
    ("interactions", {"event_type": "error", "error": {"code": "internal", "message": "Full."}}, "internal: Full."),
    ("bedrock", {"modelStreamErrorException": {"message": "Full."}}, "modelStreamErrorException: Full."),
    ("mistral", {"data": {"object": "error", "message": "Full.", "code": "3230"}}, "3230: Full."),
    ("mistral", {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}]}, "'error'"),
    ("cohere", {"type": ENDS, "delta": {"finish_reason": "ERROR", "error": "Full."}}, "Full."),
    ("cohere", {"type": ENDS, "delta": {"finish_reason": "TIMEOUT"}}, "'TIMEOUT'"),
    ("ollama", {"error": "Full."}, "Full."),
]


@pytest.mark.parametrize(("name", "event", "text"), ERRORS, ids=lambda value: value if isinstance(value, str) else "")
def test_an_error_in_a_stream_is_told_in_its_words_and_nothing_runs(name: str, event: Response, text: str) -> None:
    api = ALL[name]
    before = [*api.events(api.write("Text.", [ADD], "calls"))]
    last = next(n for n in range(len(before), 0, -1) if api.feed(before[:n]).stop == "other")
    assert api.feed(before[:last]).error is None
    stream = api.feed([*before[:last], event])
    assert (stream.error, stream.stop) == (text, "other")
    assert [call.problem and text in call.problem for call in stream.calls()] == [True]


def test_an_error_counts_after_the_end_of_a_turn(api: Api) -> None:
    stream = api.feed([*api.events(api.write("", [ADD], "calls")), {"error": {"message": "Full."}}])
    assert (stream.error, stream.stop, [bool(call.problem) for call in stream.calls()]) == ("Full.", "other", [True])


EXPLAINED = {"stop_reason": "refusal", "stop_details": {"explanation": "No."}}
FILTERED = {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}
REFUSED: list[tuple[str, list[Response], str]] = [
    ("anthropic", [{"type": "message_delta", "delta": EXPLAINED}, {"type": "message_stop"}], "No."),
    ("openai_responses", [{"type": "response.incomplete", "response": {**FAILED, **FILTERED}}], "content_filter"),
    ("gemini", [{"promptFeedback": {"blockReason": "SAFETY", "blockReasonMessage": "Not so."}}], "SAFETY: Not so."),
    ("gemini", [{"candidates": [{"finishReason": "SPII", "finishMessage": "Not that."}]}], "Not that."),
]


@pytest.mark.parametrize(("name", "events", "reason"), REFUSED, ids=lambda value: value[:3])
def test_a_refusal_has_the_reason_that_the_api_gave(name: str, events: list[Response], reason: str) -> None:
    stream = ALL[name].feed(events)
    assert (stream.stop, stream.reason, stream.error) == ("refused", reason, None)


# Ids


@pytest.mark.parametrize(
    ("name", "index"), [("anthropic", "index"), ("interactions", "index"), ("bedrock", "contentBlockIndex")]
)
def test_a_new_id_under_a_used_index_is_a_new_call(name: str, index: str) -> None:
    response = ALL[name].write("", [ADD, GREET], "calls")
    events = [with_index(event, index, 0) for event in ALL[name].events(response)]
    assert fields_of(ALL[name].feed(events).calls()) == fields_of(ALL[name].module.calls(response))


@pytest.mark.parametrize("missing", [None, "", "null"])
def test_missing_ids_are_the_same_wherever_they_stand(api: Api, missing: Any) -> None:
    response = api.write("", [(missing, "add", {"a": 1}), (missing, "add", {"a": 1})], "calls")
    ids = [call.id for call in api.module.calls(response)]
    assert len(set(ids)) == 2 and all(0 < len(id) <= 64 for id in ids)
    stream = api.feed(api.events(response, list))
    assert [call.id for call in stream.calls()] == [call.id for call in api.module.calls(stream.partial())] == ids
    if api.call_ids:
        answers = api.answers(api.module.results([result(call, 1) for call in stream.calls()]))
        on_the_wire = [api.wire_id(id) for id in ids]
        assert api.ids(api.module.turn(response)) == api.ids(stream.turn()) == [id for id, _ in answers] == on_the_wire


def test_missing_ids_of_two_responses_differ() -> None:
    for name, key in {"anthropic": "id", "openai_responses": "id", "openai_chat": "id", "ollama": "created_at"}.items():
        one, other = (ALL[name].write("", [(None, "add", {})], "calls") | {key: id} for id in ("r1", "r2"))
        assert ALL[name].module.calls(one)[0].id != ALL[name].module.calls(other)[0].id


TWICE = [("call_a", "add", {"a": 1}), ("call_a", "add", {"a": 1}), ("call_a", "add", {"a": 5}), ("call_b", "add", {})]


@EACH_WITH_IDS
async def test_a_repeated_id_belongs_to_one_call_and_a_copy_does_not_run(api: Api) -> None:
    first = [call.id for call in api.module.calls(api.write("", TWICE, "calls"))]
    assert (first[0], first[3], len(set(first))) == ("call_a", "call_b", 4)
    for way in WAYS:
        ran = []

        @tool(name="add", parallel=True)
        async def count(a: int = 0) -> int:
            """Count."""
            ran.append(a)  # noqa: B023
            return a

        calls, turn, stop = api.read(api.write("", TWICE, "calls"), way)
        assert ([call.id for call in calls], stop) == (first, "calls"), way
        assert [dict(call.arguments) for call in calls] == [given for _, _, given in TWICE], way
        results = await Runner([count]).run_all(calls)
        assert [one.status for one in results] == ["ok", "invalid", "ok", "ok"] and sorted(ran) == [0, 1, 5]
        assert "Nothing was run" in str(results[1].error)
        answered = [id for id, _ in api.answers(api.module.results(results))]
        assert api.ids(turn) == [api.wire_id(id) for id in first] == answered, way


# Results


def test_results_answer_in_order_and_in_the_form_of_the_api(api: Api) -> None:
    calls = api.module.calls(api.write("", [ADD, GREET], "calls"))
    messages = api.module.results([result(calls[0], 3), result(calls[1], error="no", status="failed")])
    (one, first), (other, second) = api.answers(messages)
    assert [one, other] == [api.wire_id(call.id) if api.call_ids else call.name for call in calls]
    assert first == "3" and "no" in second
    assert len(messages) == (1 if api.in_one else 2)
    assert api.module.results([]) == []


def test_a_result_shows_its_content_and_not_its_output(api: Api) -> None:
    assert text_of(api, "x" * 1000, content=[Text("short")]) == "short"
    assert text_of(api, Media("file", b"a,b", "TEXT/CSV;header=absent")) == "a,b"
    sound = text_of(api, Media("audio", b"1234", "audio/x", name="a.x"))
    assert "audio of 4 bytes" in sound and "a.x" in sound


def test_an_error_has_a_text_and_the_content_that_came_with_it(api: Api) -> None:
    for error, content in (("", []), (" ", []), (None, None)):
        assert "failed" in text_of(api, error=error, status="failed", content=content)
    text = text_of(api, error="exit code 2", content=[Text("line 3: oops"), Media("image", PNG, "image/png")])
    assert "exit code 2" in text and "line 3: oops" in text and "image/png" in text


@pytest.mark.parametrize("name", ["openai_chat", "openai_responses", "mistral", "ollama"])
def test_an_error_is_marked_once(name: str) -> None:
    assert text_of(ALL[name], error="Error: no", status="failed") == "Error: no"
    assert text_of(ALL[name], error="error-free until 3", status="failed") == "Error: error-free until 3"


def test_a_result_without_a_call_is_refused(api: Api) -> None:
    with pytest.raises(DefinitionError, match="no call"):
        api.module.results([ToolResult("x")])


@pytest.mark.parametrize("name", ["anthropic", "openai_responses", "gemini", "interactions", "bedrock", "mistral"])
def test_a_media_type_is_known_in_every_spelling(name: str) -> None:
    def written(kind: str) -> Any:
        return ALL[name].module.results([result(first_call(ALL[name]), Media("image", PNG, kind))])

    assert written("IMAGE/PNG;x=y") == written("image/png") and written("image/jpg") == written("image/jpeg")
    assert "cannot be shown" not in str(written("image/jpg"))


# Whatever a model says and a tool returns


class Breaks:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


def nested(levels: int, wrap: Callable[[Any], Any]) -> Any:
    found: Any = wrap(None)
    for _ in range(levels):
        found = wrap(found)
    return found


DEEP = nested(5_000, lambda inner: [inner])
ODD_OUTPUTS = ["a\ud800b", float("nan"), [float("inf")], {1, 2}, b"\xff\x00", {"k\udfff": 10**5_000}, Breaks(), DEEP]


def test_any_output_of_a_tool_is_json_and_utf8_in_the_history(api: Api) -> None:
    for output in ODD_OUTPUTS:

        @tool
        def add(a: int, b: int) -> Any:
            """Add."""
            return output  # noqa: B023

        encode(api.module.results([Runner([add]).run_sync(first_call(api))]))


NO_JSON = [float("nan"), [float("-inf")], 10**5_000, {"x": [-(10**5_000)]}, "a\ud800b"]


def beside(value: Any, more: Any) -> Any:
    """`value` with another field in every dict."""
    if isinstance(value, dict):
        return {**{key: beside(item, more) for key, item in value.items()}, "extra": more}
    return [beside(item, more) for item in value] if isinstance(value, list) else value


def with_arguments(response: Any, arguments: Any) -> Any:
    for found in [*dicts_in(response)]:
        for key in found.keys() & {"input", "args", "arguments"}:
            found[key] = arguments
    return response


def test_what_json_cannot_say_reaches_no_history(api: Api) -> None:
    for bad in NO_JSON:
        response = api.write("Text.\ud800", [ADD], "calls")
        encode(api.module.turn(beside(response, bad)))
        stream = api.feed([beside(event, bad) for event in api.events(response)])
        encode([stream.turn(), stream.partial()])
        encode(api.module.turn(with_arguments(response, {"a": bad})))


@pytest.mark.parametrize("junk", [None, "", "{bad", 0, True, [], {}, [None], {"a": 1}], ids=repr)
def test_no_response_of_a_strange_shape_breaks_the_reading(api: Api, junk: Any) -> None:
    for base in (api.write("Text.", [ADD, GREET], "calls"), api.write("Text.", [], "done")):
        for response in broken_at_each_place(base, junk):
            calls, turn = api.module.calls(response), api.module.turn(response)
            encode([turn, api.module.stop(response), api.module.reason(response), api.module.state(response)])
            assert all(isinstance(call.id, str) and call.id for call in calls)
            if api.module in (anthropic, openai_chat, openai_responses):
                assert api.ids(turn) == [call.id for call in calls], response


@pytest.mark.parametrize("junk", [None, "{bad", 0, True, {}, [[None]], {"type": "text"}], ids=repr)
def test_no_event_of_a_strange_shape_breaks_the_stream(api: Api, junk: Any) -> None:
    response = api.write("Text.", [ADD], "calls")
    events = list(api.events(response))
    alone = api.feed([junk, {"data": None}, {"type": "?"}, {"choices": [None]}, {"message": 1}, {"delta": []}])
    assert (alone.calls(), alone.turn(), alone.stop) == ([], [], "other")
    passed_over = api.feed([other for event in events for other in (event, junk)])
    assert fields_of(passed_over.calls()) == fields_of(api.module.calls(response))
    for number, event in enumerate(events):
        for broken in broken_at_each_place(event, junk):
            stream = api.feed([*events[:number], broken, *events[number + 1 :]])
            encode([stream.stop, stream.partial(), stream.turn()])
            assert all(isinstance(call.id, str) and call.id for call in stream.calls())


def values() -> st.SearchStrategy[Any]:
    texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
    numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    return st.recursive(
        st.none() | st.booleans() | numbers | texts,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=8,
    )


@pytest.mark.parametrize("name", ALL)
@given(value=values())
@example(value="")
@example(value={})
def test_any_value_survives_as_an_argument_and_as_a_result(name: str, value: Any) -> None:
    api = ALL[name]
    for way in WAYS:
        calls, turn, _ = api.read(api.write("", [("call_a", "add", {"value": value})], "calls"), way)
        assert json.dumps(dict(calls[0].arguments), sort_keys=True) == json.dumps({"value": value}, sort_keys=True), way
        encode(turn)
    text = text_of(api, value)
    if isinstance(value, str):
        assert text == value or json.loads(text) == value
    else:
        assert json.dumps(json.loads(text), sort_keys=True) == json.dumps(value, sort_keys=True)


@pytest.mark.parametrize("name", ALL)
@given(cuts=st.lists(st.integers(0, 40), max_size=6))
def test_any_chunking_of_a_stream_gives_the_same_calls(name: str, cuts: list[int]) -> None:
    api = ALL[name]
    arguments = {"name": "Zoë 😀", "b": 'a {quoted}\n "text"'}
    response = api.write("Some text.", [("c1", "greet", arguments), ("c2", "greet", {"name": "b"})], "calls")

    def cut(text: str) -> list[str]:
        edges = [0, *sorted(min(at, len(text)) for at in cuts), len(text)]
        return [text[a:b] for a, b in itertools.pairwise(edges)]

    expected, turn, stop = api.read(response, "dict")
    calls, streamed, stopped = api.read(response, "stream", cut)
    assert [(c.id, c.name, dict(c.arguments)) for c in calls] == [(c.id, c.name, dict(c.arguments)) for c in expected]
    assert stopped == stop and len(json.dumps(streamed)) > 0 and api.ids(streamed) == api.ids(turn)


@pytest.mark.parametrize("name", ["anthropic", "openai_responses", "openai_chat"])
def test_a_character_that_was_cut_in_two_is_whole_again(name: str) -> None:
    response = ALL[name].write("", [("c", "add", "{}")], "calls")
    events = ALL[name].events(response, lambda _: ['{"a": "\ud83d', '\ude00"}'])
    deltas = [event for event in events if ".done" not in str(event.get("type")) and "response" not in event]
    assert ALL[name].feed(deltas).calls()[0].raw == '{"a": "😀"}'


@tool
def take(value: Any = None) -> str:
    """Take anything."""
    return "ran"


MANY, LEVELS = (10_000_000, 100_000) if os.environ.get("FERRULE_TESTS") == "all" else (100_000, 20_000)
"""Characters and levels; ten megabytes are in the runs that have time for them."""
BAD = {
    "deep text": '{"value":' * LEVELS,
    "deep and closed": '{"value":' * LEVELS + "1" + "}" * LEVELS,
    "long and cut off": '{"value": "' + "x" * MANY,
    "long and quotes alone": '{"value": ' + '"' * MANY,
    "glued": '{"value": 1}{"value": 2}',
    "not a number": '{"value": NaN}',
    "surrogate": '{"value": "\\ud800"}',
}


@pytest.mark.large
@pytest.mark.parametrize("bad", BAD.values(), ids=list(BAD))
def test_arguments_that_cannot_be_trusted_run_nothing_and_come_to_an_end(bad: str) -> None:
    for name, api in ALL.items():
        for way in ("dict", "stream"):
            calls, turn, _ = api.read(api.write("", [("call_a", "take", bad)], "calls"), way)
            refused = Runner([take]).run_sync(calls[0])
            assert (refused.status, refused.executed) == ("invalid", False), (name, way)
            encode([turn, api.module.results([refused])])


# Definitions


def test_definitions_have_the_wire_names_in_the_order_of_the_toolset(api: Api) -> None:
    assert [item["name"] for item in api.definitions(TOOLS)] == [each.wire_name for each in TOOLS]
    assert api.module.tools(Toolset([]), cache=True) in ([], None)


def test_deferred_tools_stand_behind_the_others_and_change_nothing_before_them(api: Api) -> None:
    before = api.definitions(TOOLS.without("greet"))
    assert api.definitions(TOOLS, deferred=["greet"])[: len(before)] == before
    names = [item["name"] for item in api.definitions(TOOLS, deferred=["greet", "add"])]
    assert names == [read_notes.wire_name, "greet", "add"]
    for name in (read_notes.name, read_notes.wire_name):
        assert api.definitions(Toolset([read_notes, add]), deferred=[name])[-1]["name"] == read_notes.wire_name


@pytest.mark.parametrize("option", ["deferred", "strict"])
def test_an_option_for_a_tool_that_is_not_there_is_refused(api: Api, option: str) -> None:
    with pytest.raises(DefinitionError, match="'subtract'"):
        api.module.tools(TOOLS, **{option: ["subtract"]})


def test_a_tool_with_other_words_is_written_anew(api: Api) -> None:
    api.definitions(TOOLS)
    assert api.definitions([add.replace(description="Other.")])[0]["description"] == "Other."


def spoil(value: Any) -> None:
    """Change every container that can be changed."""
    for item in list(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()):
        spoil(item)
    if type(value) is dict:
        value["spoilt"] = True
    elif type(value) is list:
        value.append("spoilt")


@pytest.mark.parametrize("strict", [False, True])
def test_nothing_that_is_done_to_an_export_shows_in_the_next(api: Api, strict: bool) -> None:
    options = {**api.options, "strict": strict and api.strict}
    first = api.module.tools(TOOLS, **options)
    before = copy.deepcopy(first)
    spoil(first)
    assert api.module.tools(TOOLS, **options) == before != first


def test_what_is_no_toolset_is_refused_with_what_is_one(api: Api) -> None:
    for wrong in (Runner(TOOLS), *TOOLS, [read_notes, len]):
        with pytest.raises(DefinitionError, match=r"^tools\(…\) takes a toolset, such as runner.tools, not "):
            api.module.tools(wrong)


# Choices


def test_a_choice_uses_the_name_on_the_wire() -> None:
    for name in ("anthropic", "openai_responses", "openai_chat", "gemini", "bedrock", "mistral"):
        assert read_notes.wire_name in json.dumps(ALL[name].module.tool_choice("notes.read"))


def test_a_choice_that_says_nothing_is_refused() -> None:
    """The pages of docs/providers have the other choices, and test_provider_pages.py tries them."""
    assert anthropic.tool_choice("none", parallel=False) == {"tool_choice": {"type": "none"}}
    with pytest.raises(DefinitionError):
        anthropic.tool_choice("")
    for module in (openai_responses, openai_chat):
        for choice, only in (("auto", []), ("add", ["add"])):
            with pytest.raises(DefinitionError):
                module.tool_choice(choice, only=only)
