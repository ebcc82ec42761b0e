"""What every provider module promises, streamed or not, as dicts and as the objects of its SDK."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import pytest
from apis_more import MORE
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response as OpenAIResponse
from openai.types.responses import ResponseErrorEvent, ResponseFailedEvent
from test_providers import ADD, APIS, GREET, TOOLS, read_notes
from test_streams import STREAMS

from ferrule import DefinitionError, Runner, ToolCall, tool
from ferrule.values.content import Text
from ferrule.values.result import Status, ToolResult
from products import every
from steps import calls as functions_called

Response = dict[str, Any]


@dataclass(frozen=True)
class Ours:
    """The same questions as `apis_more.More` answers, of the other three."""

    name: str

    @property
    def module(self) -> Any:
        return APIS[self.name].module

    def write(self, *said: Any) -> Response:
        return APIS[self.name].write(*said)

    def events(self, *said: Any) -> Any:
        return STREAMS[self.name].events(*said)

    def sdk_event(self, event: Response) -> Any:
        return STREAMS[self.name].sdk(event)

    def fed(self, events: Any, form: str = "dict") -> Any:
        return STREAMS[self.name].fed(map(STREAMS[self.name].sdk, events) if form == "sdk" else events)

    def read(self, response: Response, form: str) -> Any:
        return APIS[self.name].sdk(response) if form == "sdk" else response

    def definitions(self, toolset: Any, **more: Any) -> list[Response]:
        return [item.get("function", item) for item in self.module.tools(toolset, **more)]

    def ids(self, turn: list[Response]) -> list[str]:
        return APIS[self.name].ids(turn)

    def answers(self, messages: list[Response]) -> list[tuple[str, str]]:
        return APIS[self.name].answers(messages)

    def wire_id(self, id: str) -> str:
        return id

    call_ids = True


ALL: dict[str, Any] = {**{name: Ours(name) for name in APIS}, **MORE}
IN_ONE = {"anthropic", "bedrock", "gemini"}
WAYS = ("dict", "sdk", "stream", "sdk stream")

pytestmark = pytest.mark.slow


@pytest.fixture(params=ALL)
def api(request: pytest.FixtureRequest) -> Any:
    return ALL[request.param]


def whole(text: str) -> list[str]:
    return [text]


def read(api: Any, response: Response, way: str, cut: Any = whole) -> Any:
    """The calls, the turn and the stop of a response, read in one of four ways."""
    if "stream" in way:
        stream = api.fed(api.events(response, cut), "sdk" if "sdk" in way else "dict")
        return stream.calls(), stream.turn(), stream.stop
    given = api.read(response, way)
    return api.module.calls(given), api.module.turn(given), api.module.stop(given)


def answer(call: ToolCall, output: Any = None, **more: Any) -> ToolResult:
    return ToolResult(output, call=call, tool_name=call.name, **more)


# Calls


@pytest.mark.parametrize("way", WAYS)
def test_calls_come_in_order_whole_and_runnable(api: Any, way: str) -> None:
    calls, turn, stop = read(api, api.write("Text.", [ADD, GREET], "calls"), way)
    assert [(call.name, dict(call.arguments), call.problem) for call in calls] == [
        ("add", {"a": 1, "b": 2}, None),
        ("greet", {"name": "Ada"}, None),
    ]
    assert stop == "calls" and turn
    if api.call_ids:
        assert [api.wire_id(call.id) for call in calls] == api.ids(turn)


@pytest.mark.parametrize("way", WAYS)
def test_a_cut_off_turn_has_a_problem_for_every_call(api: Any, way: str) -> None:
    calls, _, stop = read(api, api.write("", [ADD, GREET], "cut"), way)
    assert stop == "cut"
    assert [bool(call.problem) for call in calls] == [True, True]


def test_a_stream_without_its_end_has_a_problem_for_every_call(api: Any) -> None:
    events = list(api.events(api.write("Text.", [ADD, GREET], "calls")))
    for end in range(len(events)):
        stream = api.fed(events[:end])
        runnable = [call for call in stream.calls() if call.problem is None]
        assert not runnable or stream.stop == "calls", events[end - 1]
    assert [call.problem is None for call in api.fed(events).calls()] == [True, True]


FAILED = {"id": "r", "object": "response", "created_at": 1, "model": "m", "output": [], "status": "failed"}
ERRORS: list[tuple[str, Response, str]] = [
    (
        "anthropic",
        {"type": "error", "error": {"type": "overloaded_error", "message": "Full."}},
        "overloaded_error: Full.",
    ),
    (
        "openai_responses",
        {"type": "error", "code": "server_error", "message": "Full.", "param": None},
        "server_error: Full.",
    ),
    (
        "openai_responses",
        {"type": "response.failed", "response": {**FAILED, "error": {"code": "server_error", "message": "Full."}}},
        "server_error: Full.",
    ),
    ("openai_responses", {"type": "response.failed", "response": {**FAILED, "error": None}}, "the response failed"),
    ("openai_chat", {"error": {"message": "Full.", "type": "server_error", "code": 500}}, "server_error: Full."),
    ("openai_chat", {"object": "error", "message": "Full.", "type": "BadRequestError"}, "BadRequestError: Full."),
    (
        "openai_chat",
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "error", "error": {"code": 502, "message": "Full."}}]},
        "Full.",
    ),
    ("gemini", {"error": {"code": 503, "message": "Full.", "status": "UNAVAILABLE"}}, "UNAVAILABLE: Full."),
    ("interactions", {"event_type": "error", "error": {"code": "internal", "message": "Full."}}, "internal: Full."),
    ("bedrock", {"modelStreamErrorException": {"message": "Full."}}, "modelStreamErrorException: Full."),
    ("mistral", {"data": {"object": "error", "message": "Full.", "code": "3230"}}, "3230: Full."),
    ("mistral", {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}]}, "'error'"),
    ("cohere", {"type": "message-end", "delta": {"finish_reason": "ERROR", "error": "Full."}}, "Full."),
    ("cohere", {"type": "message-end", "delta": {"finish_reason": "TIMEOUT"}}, "'TIMEOUT'"),
    ("ollama", {"error": "Full."}, "Full."),
]


@pytest.mark.parametrize(("name", "event", "text"), ERRORS, ids=lambda value: value if isinstance(value, str) else "")
def test_an_error_in_a_stream_is_told_in_its_own_words_and_nothing_of_the_turn_runs(
    name: str, event: Response, text: str
) -> None:
    api = ALL[name]
    before = [*api.events(api.write("Text.", [ADD], "calls"))]
    last = next(n for n in range(len(before), 0, -1) if api.fed(before[:n]).stop == "other")
    assert api.fed(before[:last]).error is None
    stream = api.fed([*before[:last], event])
    assert (stream.error, stream.stop) == (text, "other")
    assert [call.problem and text in call.problem for call in stream.calls()] == [True]


def test_an_error_counts_also_after_the_end_of_a_turn(api: Any) -> None:
    stream = api.fed([*api.events(api.write("", [ADD], "calls")), {"error": {"message": "Full."}}])
    assert (stream.error, stream.stop, [bool(call.problem) for call in stream.calls()]) == ("Full.", "other", [True])


@pytest.mark.parametrize("kind", [ResponseErrorEvent, ResponseFailedEvent])
def test_an_error_that_the_sdk_gives_as_an_object_is_told(kind: Any) -> None:
    failed = {**FAILED, "error": {"code": "server_error", "message": "Full."}}
    event = kind.construct(type="response.failed", response=OpenAIResponse.construct(**failed))
    if kind is ResponseErrorEvent:
        event = kind(type="error", code="server_error", message="Full.", param=None, sequence_number=1)
    assert ALL["openai_responses"].fed([event]).error == "server_error: Full."


REASONS: list[tuple[str, list[Response], str, str]] = [
    (
        "anthropic",
        [
            {
                "type": "message_delta",
                "delta": {"stop_reason": "refusal", "stop_details": {"explanation": "No."}},
            },
            {"type": "message_stop"},
        ],
        "refused",
        "No.",
    ),
    (
        "openai_responses",
        [
            {
                "type": "response.incomplete",
                "response": {**FAILED, "status": "incomplete", "incomplete_details": {"reason": "content_filter"}},
            }
        ],
        "refused",
        "content_filter",
    ),
    (
        "gemini",
        [{"promptFeedback": {"blockReason": "SAFETY", "blockReasonMessage": "Not that."}}],
        "refused",
        "SAFETY: Not that.",
    ),
    ("gemini", [{"candidates": [{"finishReason": "SPII", "finishMessage": "Not that."}]}], "refused", "Not that."),
]


@pytest.mark.parametrize(("name", "events", "stop", "reason"), REASONS, ids=lambda value: value[:3])
def test_what_an_api_says_of_a_refusal_is_kept(name: str, events: list[Response], stop: str, reason: str) -> None:
    stream = ALL[name].fed(events)
    assert (stream.stop, stream.reason, stream.error) == (stop, reason, None)


def test_an_answer_has_no_reason_of_its_own(api: Any) -> None:
    stream = api.fed(api.events(api.write("Done.", [], "done")))
    assert (stream.reason, stream.error) == (None, None)


@pytest.mark.parametrize("way", WAYS)
def test_text_alone_is_an_end(api: Any, way: str) -> None:
    calls, turn, stop = read(api, api.write("Done.", [], "done"), way)
    assert (calls, stop) == ([], "end") and "Done." in json.dumps(turn)


@pytest.mark.parametrize("name", [n for n, api in ALL.items() if api.call_ids])
def test_missing_ids_are_derived_once_and_for_all(name: str) -> None:
    api = ALL[name]
    response = api.write("", [(None, "add", {"a": 1, "b": 2}), (None, "add", {"a": 1, "b": 3})], "calls")
    found = [read(api, response, way) for way in ("dict", "stream", "dict", "stream")]
    ids = [[call.id for call in calls] for calls, _, _ in found]
    assert len(set(ids[0])) == 2 and all(ids[0] == each for each in ids)
    for calls, turn, _ in found:
        assert api.ids(turn) == [api.wire_id(call.id) for call in calls]
        answered = api.answers(api.module.results([answer(call, 1) for call in calls]))
        assert [id for id, _ in answered] == api.ids(turn)


@pytest.mark.parametrize("name", [n for n, api in ALL.items() if api.call_ids])
def test_a_turn_of_many_calls_without_ids_is_read_once_for_all_of_them(name: str) -> None:
    api = ALL[name]

    def reading(count: int) -> Callable[[], object]:
        response = api.write("", [(None, "add", {"a": 1, "b": number}) for number in range(count)], "calls")
        response = {key: value for key, value in response.items() if key not in ("id", "created", "responseId")}
        return lambda: (api.module.calls(response), api.module.turn(response))

    reading(2)()  # what is made once for all
    few, many = functions_called(reading(100)), functions_called(reading(800))
    assert many["_hash_of"] == few["_hash_of"] and many["to_json_text"] == few["to_json_text"]
    assert many.total() < 10 * few.total()


# Results


def test_results_answer_in_order_and_in_the_form_of_the_api(api: Any, request: pytest.FixtureRequest) -> None:
    calls = api.module.calls(api.write("", [ADD, GREET], "calls"))
    messages = api.module.results([answer(calls[0], 3), answer(calls[1], error="no", status="failed")])
    (one, first), (other, second) = api.answers(messages)
    expected = [api.wire_id(call.id) if api.call_ids else call.name for call in calls]
    assert [one, other] == expected
    assert first == "3" and "no" in second
    assert len(messages) == (1 if request.node.callspec.params["api"] in IN_ONE else 2)


@pytest.mark.parametrize("output", [0, 0.0, False, [], {}, None, ""], ids=repr)
def test_a_falsy_output_stays_what_it_is(api: Any, output: Any) -> None:
    ((_, text),) = api.answers(api.module.results([answer(api.module.calls(api.write("", [ADD], "calls"))[0], output)]))
    assert text in ("", '""') if output == "" else json.loads(text) == output


@pytest.mark.parametrize("status", sorted({*get_args(Status)} - {"ok", "suspended"}))
def test_an_error_does_not_look_like_a_success(api: Any, status: Any) -> None:
    call = api.module.calls(api.write("", [ADD], "calls"))[0]
    failed = api.module.results([answer(call, error="out of reach", status=status)])
    fine = api.module.results([answer(call, content=[Text("out of reach")])])
    assert "out of reach" in json.dumps(failed) and failed != fine


class Breaks:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


DEEP: Any = []
for _ in range(5_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "output",
    ["a\ud800b", float("nan"), [float("inf")], {1, 2}, b"\xff\x00", 10**5_000, {"k\udfff": "\ud83d"}, Breaks(), DEEP],
    ids=lambda value: type(value).__name__,
)
def test_what_goes_into_the_history_is_json_and_utf8_whatever_a_tool_returned(api: Any, output: Any) -> None:
    @tool
    def add(a: int, b: int) -> Any:
        """Add."""
        return output

    calls = api.module.calls(api.write("", [ADD], "calls"))
    history = api.module.results([Runner([add]).run_sync(calls[0])])
    json.dumps(history, ensure_ascii=False, allow_nan=False).encode()


# Definitions


def test_definitions_have_the_wire_names_in_the_order_of_the_toolset(api: Any) -> None:
    assert [item["name"] for item in api.definitions(TOOLS)] == [each.wire_name for each in TOOLS]
    assert api.definitions(TOOLS) == api.definitions(TOOLS)


def test_a_tool_that_comes_later_changes_nothing_before_it(api: Any) -> None:
    before = api.definitions(TOOLS.without("greet"))
    assert api.definitions(TOOLS, deferred=["greet"])[: len(before)] == before


def test_changing_a_definition_changes_no_other(api: Any) -> None:
    first = api.definitions(TOOLS)
    first[0]["name"] = "spoilt"
    assert api.definitions(TOOLS)[0]["name"] == "add"


def test_a_copy_of_a_tool_is_written_anew(api: Any) -> None:
    api.definitions(TOOLS)
    assert api.definitions([next(iter(TOOLS)).replace(description="Other.")])[0]["description"] == "Other."


@pytest.mark.parametrize("name", ["anthropic", "bedrock"])
def test_the_cache_marker_stands_behind_the_last_tool_of_the_stable_prefix(name: str) -> None:
    written = ALL[name].module.tools(TOOLS, cache=True, deferred=["greet"])
    shown = json.dumps(written)
    marker = shown.index("cache_control" if name == "anthropic" else "cachePoint")
    assert shown.index(read_notes.wire_name) < marker < shown.index('"greet"')


# Any value


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
def test_any_value_survives_as_an_argument(name: str, value: Any) -> None:
    api = ALL[name]
    asked = [("call_a", "add", {"value": value})]
    for way in WAYS:
        calls, turn, _ = read(api, api.write("", asked, "calls"), way)
        assert json.dumps(dict(calls[0].arguments), sort_keys=True) == json.dumps({"value": value}, sort_keys=True), way
        json.dumps(turn, allow_nan=False).encode()


@pytest.mark.parametrize("name", ALL)
@given(value=values())
def test_any_value_survives_as_a_result(name: str, value: Any) -> None:
    api = ALL[name]
    call = api.module.calls(api.write("", [ADD], "calls"))[0]
    messages = json.loads(json.dumps(api.module.results([answer(call, value)])))
    ((_, text),) = api.answers(messages)
    if isinstance(value, str):
        assert text == value or json.loads(text) == value
    else:
        assert json.dumps(json.loads(text), sort_keys=True) == json.dumps(value, sort_keys=True)


@pytest.mark.parametrize("name", ALL)
@given(cuts=st.lists(st.integers(0, 40), max_size=6))
def test_any_chunking_of_a_stream_gives_the_same_calls(name: str, cuts: list[int]) -> None:
    api = ALL[name]
    arguments = {"name": "Zoë 😀", "b": "a {quoted}\n text"}
    response = api.write("Some text.", [("c1", "greet", arguments), ("c2", "greet", {"name": "b"})], "calls")

    def cut(text: str) -> list[str]:
        edges = [0, *sorted(min(at, len(text)) for at in cuts), len(text)]
        return [text[a:b] for a, b in itertools.pairwise(edges)]

    expected, turn, stop = read(api, response, "dict")
    calls, streamed, stopped = read(api, response, "stream", cut)
    assert [(c.id, c.name, dict(c.arguments)) for c in calls] == [(c.id, c.name, dict(c.arguments)) for c in expected]
    assert stopped == stop and len(json.dumps(streamed)) > 0 and api.ids(streamed) == api.ids(turn)


# What should not be


def nested(levels: int) -> Any:
    found: Any = {}
    for _ in range(levels):
        found = {"a": found}
    return found


@tool
def take(value: Any = None) -> str:
    """Take anything."""
    return "ran"


MANY = 10_000_000 if os.environ.get("FERRULE_TESTS") == "all" else 100_000
"""Characters; ten megabytes are in the runs that have time for them."""
BAD = {
    "deep text": '{"value":' * 100_000,
    "deep and closed": '{"value":' * 100_000 + "1" + "}" * 100_000,
    "deep lists": '{"value":' + "[" * 100_000,
    "long and cut off": '{"value": "' + "x" * MANY,
    "long and quotes alone": '{"value": ' + '"' * MANY,
    "long and backslashes alone": '{"value": "' + "\\" * (MANY - 1),
    "long and escaped quotes, cut off": '{"value": "' + '\\"' * (MANY // 2),
    "glued": '{"value": 1}{"value": 2}',
    "twice": '{"value": 1, "value": 2}',
    "not a number": '{"value": NaN}',
    "surrogate": '{"value": "\\ud800"}',
}


@pytest.mark.parametrize(("bad", "name", "way"), every(BAD, ALL, ["dict", "stream"], each=3))
def test_arguments_that_cannot_be_trusted_run_nothing_and_come_to_an_end(name: str, bad: str, way: str) -> None:
    api = ALL[name]
    calls, turn, _ = read(api, api.write("", [("call_a", "take", bad)], "calls"), way)
    result = Runner([take]).run_sync(calls[0])
    assert result.status == "invalid" and result.executed is False
    json.dumps(turn, allow_nan=False).encode()
    json.dumps(api.module.results([result]), allow_nan=False).encode()


@pytest.mark.parametrize("name", ALL)
def test_objects_nested_without_end_run_nothing_and_do_not_poison_the_history(name: str) -> None:
    api = ALL[name]
    deep = nested(100_000)
    if json.dumps(api.write("", [("call_a", "take", {})], "calls")).count('"{}"'):
        return  # its arguments are text
    response = api.write("", [("call_a", "take", {"value": deep})], "calls")
    calls = api.module.calls(response)
    assert Runner([take]).run_sync(calls[0]).status == "invalid"
    json.dumps(api.module.turn(response))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("wrong", [Runner(TOOLS), *TOOLS, [read_notes, len]], ids=repr)
def test_what_is_no_toolset_is_told_with_what_is_one(name: str, wrong: Any) -> None:
    with pytest.raises(DefinitionError, match=r"^tools\(…\) takes a toolset, such as runner.tools, not "):
        ALL[name].module.tools(wrong)
