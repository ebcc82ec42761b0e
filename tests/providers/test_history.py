"""What goes back into a history is what its API takes again, whatever a model said: one refused name or id would
break every later request."""

from __future__ import annotations

import copy
import gc
import json
import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from test_provider_contract import ALL, WAYS, answer, read
from test_providers import PNG, TOOLS, add

from ferrule import Runner, Toolset, build_tool, tool
from ferrule.providers import anthropic, mistral, openai_chat, openai_responses
from ferrule.values.content import Media, clean_text
from steps import lines

Response = dict[str, Any]
COMMON = re.compile(r"[a-zA-Z0-9_-]{1,64}")
GEMINI = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}")
PATTERNS = {
    **dict.fromkeys(ALL, COMMON),
    **dict.fromkeys(("gemini", "interactions"), GEMINI),
    "ollama": re.compile(r".*", re.DOTALL),
}
NAMES = ["add", "browser.tabs.open", "", "$x", "n" * 80, "n" * 200, "a b", "1st", "\ud800"]
STRICT = ("anthropic", "openai_responses", "openai_chat", "bedrock", "mistral", "cohere")
SHOW_IMAGES = ("anthropic", "openai_responses", "gemini", "interactions", "bedrock", "mistral")


@pytest.fixture(params=ALL)
def api(request: pytest.FixtureRequest) -> Any:
    return ALL[request.param]


def inside(value: Any) -> Iterator[Response]:
    """Every dict in `value`."""
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from inside(item)


def names(messages: list[Response]) -> list[str]:
    """The tools that messages name, whatever the API calls it."""
    return [found[key] for found in inside(messages) for key in ("name", "tool_name") if key in found]


def written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode().decode()


# Names


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("of", ALL)
def test_a_name_that_the_api_does_not_take_stays_out_of_the_history(of: str, way: str, name: str) -> None:
    api = ALL[of]
    calls, turn, _ = read(api, api.write("", [("call_a", name, {})], "calls"), way)
    (sent,) = names(turn)
    assert [call.name for call in calls] == [clean_text(name)]
    assert PATTERNS[of].fullmatch(sent)
    assert sent == clean_text(name) or not PATTERNS[of].fullmatch(clean_text(name))
    assert set(names(api.module.results([answer(calls[0], 1)]))) <= {sent}


def test_names_that_do_not_fit_stay_apart(api: Any) -> None:
    response = api.write("", [("call_a", "a.b c", {}), ("call_b", "a b.c", {})], "calls")
    assert len(set(names(api.module.turn(response)))) == 2


@pytest.mark.parametrize("name", [None, 3, ["x"], {"a": 1}], ids=repr)
def test_a_name_that_is_no_text_is_one_in_the_history(api: Any, name: Any) -> None:
    response = api.write("", [("call_a", "add", {})], "calls")
    for found in inside(response):
        if found.get("name") == "add":
            found["name"] = name
    assert [type(sent) for sent in names(api.module.turn(response))] == [str]


@pytest.mark.parametrize("length", [100, 129])
def test_responses_a_name_within_a_namespace_may_be_longer(length: int) -> None:
    response = ALL["openai_responses"].write("", [("c", "n" * length, {})], "calls")
    response["output"][0]["namespace"] = "maths"
    (item,) = openai_responses.turn(response)
    (output,) = openai_responses.results([answer(openai_responses.calls(response)[0], 1)])
    assert output["name"] == item["name"]
    assert (item["name"] == "n" * length) is (length < 129) and len(item["name"]) <= 128


def test_names_of_custom_tools_are_held_to_the_same() -> None:
    response = ALL["openai_chat"].write("", [], "calls")
    custom = {"id": "c", "type": "custom", "custom": {"name": "sql.run", "input": "select 1"}}
    response["choices"][0]["message"]["tool_calls"] = [custom]
    assert COMMON.fullmatch(names(openai_chat.turn(response))[0])
    item = {"type": "custom_tool_call", "id": "i", "call_id": "c", "name": "sql.run", "input": "select 1"}
    assert COMMON.fullmatch(names(openai_responses.turn({"output": [item]}))[0])


# Ids

TWICE = [("call_a", "add", {"a": 1}), ("call_a", "add", {"a": 1}), ("call_a", "add", {"a": 5}), ("call_b", "add", {})]


@pytest.mark.parametrize("name", [name for name, api in ALL.items() if api.call_ids])
def test_an_id_that_came_twice_is_one_calls_and_the_others_get_their_own(name: str) -> None:
    api = ALL[name]
    first = [call.id for call in api.module.calls(api.write("", TWICE, "calls"))]
    assert (first[0], first[3], len(set(first))) == ("call_a", "call_b", 4)
    for way in WAYS:
        calls, turn, stop = read(api, api.write("", TWICE, "calls"), way)
        assert [dict(call.arguments) for call in calls] == [given for _, _, given in TWICE], way
        assert ([call.id for call in calls], stop) == (first, "calls"), way
        answers = api.answers(api.module.results([answer(call, 1) for call in calls]))
        assert api.ids(turn) == [api.wire_id(id) for id in first] == [id for id, _ in answers], way


@pytest.mark.parametrize("name", [name for name, api in ALL.items() if api.call_ids])
@pytest.mark.parametrize("way", WAYS)
async def test_a_call_that_was_sent_twice_under_one_id_runs_once_and_both_have_an_answer(name: str, way: str) -> None:
    api, ran = ALL[name], []

    @tool(name="add", parallel=True)
    async def add(a: int = 0) -> int:
        """Add."""
        ran.append(a)
        return a

    calls, _, _ = read(api, api.write("", TWICE, "calls"), way)
    results = await Runner([add]).run_all(calls)
    assert sorted(ran) == [0, 1, 5]
    assert [result.status for result in results] == ["ok", "invalid", "ok", "ok"]
    assert "Nothing was run" in str(results[1].error)
    assert len({id for id, _ in api.answers(api.module.results(results))}) == 4


def responses_item(index: int, text: str, kind: str, **more: Any) -> Response:
    item = {"type": "function_call", "id": "fc", "call_id": f"c{index}", "name": "add", "arguments": text}
    return {"type": f"response.output_item.{kind}", "output_index": index, "item": item, **more}


def test_responses_an_item_id_under_a_new_index_is_a_new_item() -> None:
    def delta(index: int, text: str) -> Response:
        kind = "response.function_call_arguments.delta"
        return {"type": kind, "output_index": index, "item_id": "fc", "delta": text}

    begun = [responses_item(0, "", "added"), responses_item(1, "", "added")]
    deltas = [delta(0, '{"a"'), delta(1, '{"b"'), delta(0, ":1}"), delta(1, ":2}")]
    done = [responses_item(0, '{"a":1}', "done"), responses_item(1, '{"b":2}', "done")]
    for events in (begun + deltas, begun + deltas + done, done):
        calls = ALL["openai_responses"].fed(events).calls()
        assert [(call.id, call.raw) for call in calls] == [("c0", '{"a":1}'), ("c1", '{"b":2}')]


def test_reading_a_call_without_an_id_does_not_read_its_arguments() -> None:
    class Unread(dict[str, Any]):
        def items(self) -> Any:
            raise AssertionError("they were read")

    for name, api in ALL.items():
        if api.call_ids and name != "bedrock":  # whose responses have no id of their own
            response = api.write("", [(None, "add", {"a": 1})], "calls")
            for found in inside(response):
                for key in ("input", "args", "arguments"):
                    if key in found:
                        found[key] = Unread(a=1)
            assert api.module.calls(response)[0].id, name


# Values

TOO_LARGE = ["1" * 5_000, "1e999"]
NO_JSON = [float("nan"), float("-inf"), [float("inf")], 10**5_000, {"x": [-(10**5_000)]}, "a\ud800b"]


def beside(value: Any, more: Any) -> Any:
    """`value` with another field in every dict."""
    if isinstance(value, dict):
        return {**{key: beside(item, more) for key, item in value.items()}, "extra": more}
    return [beside(item, more) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("bad", NO_JSON, ids=lambda value: type(value).__name__)
def test_what_json_cannot_say_reaches_no_history(api: Any, bad: Any) -> None:
    response = api.write("Text.", [("call_a", "add", {"a": 1})], "calls")
    written(api.module.turn(beside(response, bad)))
    stream = api.fed([beside(event, bad) for event in api.events(response)])
    written([stream.turn(), stream.partial()])


@pytest.mark.parametrize("bad", NO_JSON, ids=lambda value: type(value).__name__)
def test_arguments_that_json_cannot_say_reach_no_history(api: Any, bad: Any) -> None:
    response = api.write("", [("call_a", "add", {"a": 1})], "calls")
    for found in inside(response):
        for key in ("input", "args", "arguments"):
            if key in found:
                found[key] = {"a": bad}
    written(api.module.turn(response))


@pytest.mark.parametrize("number", TOO_LARGE, ids=len)
def test_a_number_that_is_too_large_reaches_no_history(api: Any, number: str) -> None:
    stream = api.fed(api.events(api.write("", [("call_a", "add", f'{{"a": {number}}}')], "calls")))
    written([stream.turn(), stream.partial()])


def test_anthropic_a_text_alone_is_cleaned() -> None:
    written(anthropic.turn({"content": "a\ud800b"}))


# Tools of the server


def anthropic_served(text: str, stop: str) -> Any:
    block = {"type": "server_tool_use", "id": "srv", "name": "web.search", "input": {}}
    delta = {"type": "input_json_delta", "partial_json": text}
    return [
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "message_delta", "delta": {"stop_reason": stop}},
        {"type": "message_stop"},
    ]


def bedrock_served(text: str, stop: str) -> Any:
    start = {"toolUseId": "srv", "name": "web.search", "type": "server_tool_use"}
    return [
        {"contentBlockStart": {"contentBlockIndex": 0, "start": {"toolUse": start}}},
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"toolUse": {"input": text}}}},
        {"messageStop": {"stopReason": stop}},
    ]


@pytest.mark.parametrize(("text", "given"), [('{"query": "x"}', {"query": "x"}), ('{"query": "x', {}), ("[1]", {})])
@pytest.mark.parametrize(("name", "events"), [("anthropic", anthropic_served), ("bedrock", bedrock_served)])
def test_the_input_of_a_servers_tool_is_an_object_and_its_name_stays(
    name: str, events: Callable[[str, str], Any], text: str, given: Any
) -> None:
    stream = ALL[name].fed(events(text, "max_tokens"))
    for said in (stream.turn(), stream.partial()):
        (found,) = [found for found in inside(said) if "input" in found]
        assert (found["input"], found["name"]) == (given, "web.search")
    assert stream.calls() == []


@pytest.mark.parametrize("number", TOO_LARGE, ids=len)
@pytest.mark.parametrize(("name", "events"), [("anthropic", anthropic_served), ("bedrock", bedrock_served)])
def test_a_number_that_is_too_large_reaches_no_history_by_a_servers_tool(
    name: str, events: Callable[[str, str], Any], number: str
) -> None:
    stream = ALL[name].fed(events(f'{{"a": {number}}}', "end_turn"))
    written([stream.turn(), stream.partial()])


# Definitions


def spoil(value: Any) -> None:
    """Changes every container that can be changed."""
    for item in list(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()):
        spoil(item)
    if type(value) is dict:
        value["spoilt"] = True
    elif type(value) is list:
        value.append("spoilt")


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_nothing_that_is_done_to_an_export_shows_in_the_next(name: str, strict: bool) -> None:
    options = {**getattr(ALL[name], "options", {}), "strict": strict and name in STRICT}
    first = ALL[name].module.tools(TOOLS, **options)
    before = copy.deepcopy(first)
    spoil(first)
    assert ALL[name].module.tools(TOOLS, **options) == before != first


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_a_tool_that_was_exported_is_freed_with_its_last_user(name: str, strict: bool) -> None:
    exported = add.replace(description="Add two numbers to each other.")
    ALL[name].module.tools([exported], **getattr(ALL[name], "options", {}), strict=strict and name in STRICT)
    alive = weakref.ref(exported)
    del exported
    gc.collect()
    assert alive() is None


def many(count: int, parameters: int) -> Toolset:
    schema = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(parameters)}}

    def one(number: int) -> Any:
        return build_tool({"name": f"tool_{number}", "input_schema": schema, "execute": lambda payload, context: 1})

    return Toolset([one(number) for number in range(count)])


def test_exporting_again_costs_the_same_with_many_parameters(api: Any) -> None:
    few, more = many(50, 1), many(50, 40)
    options = getattr(api, "options", {})
    assert api.module.tools(few, **options) and api.module.tools(more, **options)
    assert lines(lambda: api.module.tools(more, **options)) < 1.1 * lines(lambda: api.module.tools(few, **options))


class Name(str):
    """A text whose comparisons are steps."""

    def __eq__(self, other: object) -> bool:
        return str(self) == other

    __hash__ = str.__hash__


@pytest.mark.parametrize("option", ["deferred", "strict"])
def test_a_list_of_names_costs_about_what_a_set_does(option: str) -> None:
    tools, listed = many(200, 0), [Name(f"tool_{number}") for number in range(199)]
    in_a_list, in_a_set = {option: listed}, {option: set(listed)}
    assert mistral.tools(tools, **in_a_list) == mistral.tools(tools, **in_a_set)
    assert lines(lambda: mistral.tools(tools, **in_a_list)) < 2 * lines(lambda: mistral.tools(tools, **in_a_set))


# Media


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("IMAGE/PNG", "image/png"),
        ("image/png;x=y", "image/png"),
        ("image/jpg", "image/jpeg"),
        ("Application/PDF; version=1.7", "application/pdf"),
    ],
)
@pytest.mark.parametrize("name", SHOW_IMAGES)
def test_a_type_is_known_in_every_spelling(name: str, given: str, meant: str) -> None:
    api = ALL[name]
    call = api.module.calls(api.write("", [("call_a", "add", {})], "calls"))[0]
    one, other = ([answer(call, Media("image", PNG, kind))] for kind in (given, meant))
    assert api.module.results(one) == api.module.results(other)
    assert "cannot be shown" not in str(api.module.results(one))


def test_a_text_file_is_text_in_every_spelling_of_its_type(api: Any) -> None:
    call = api.module.calls(api.write("", [("call_a", "add", {})], "calls"))[0]
    ((_, text),) = api.answers(api.module.results([answer(call, Media("file", b"a,b", "TEXT/CSV;header=absent"))]))
    assert text == "a,b"


@pytest.mark.parametrize("error", ["errors are listed below", "error-free until line 3", "Error: no", "no"])
@pytest.mark.parametrize("name", ["openai_chat", "openai_responses", "mistral", "ollama"])
def test_an_error_is_marked_once(name: str, error: str) -> None:
    api = ALL[name]
    call = api.module.calls(api.write("", [("call_a", "add", {})], "calls"))[0]
    ((_, text),) = api.answers(api.module.results([answer(call, error=error, status="failed")]))
    assert text == (error if error == "Error: no" else f"Error: {error}")


# Long streams


def test_anthropic_many_blocks_cost_no_more_each_than_few() -> None:
    def fed(count: int) -> int:
        stream = anthropic.Stream()

        def feed() -> None:
            for number in range(count):
                block = {"type": "tool_use", "id": f"t{number}", "name": "add", "input": {}}
                stream.feed({"type": "content_block_start", "index": number, "content_block": block})

        work = lines(feed)
        assert len(stream.calls()) == count
        return work

    assert fed(2_000) < 5 * fed(500)


@pytest.mark.parametrize("text", ["{", '{"', '{"a": {}', '{\\"}', "{a}"])
def test_chat_fragments_that_repeat_the_name_cost_no_more_each_than_few(text: str) -> None:
    stream = openai_chat.Stream()
    function = {"name": "add", "arguments": text}
    chunk = {"id": "c", "choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": function}]}}]}
    first, last = (lines(lambda: [stream.feed(chunk) for _ in range(1_000)]) for _ in range(2))
    assert last < 1.5 * first
    assert [call.raw for call in stream.calls()] == [text * 2_000]


@pytest.mark.parametrize(
    ("pieces", "raws"),
    [
        (['{"a": "\\', '"{"}', '{"c": 1}'], ['{"a": "\\"{"}', '{"c": 1}']),
        (['{"a": "x\\\\"}', '{"c": 1}'], ['{"a": "x\\\\"}', '{"c": 1}']),
        (["{}", "{}", "{}"], ["{}", "{}", "{}"]),
        (["{a}", "{}"], ["{a}{}"]),
        (["{} x", "{}"], ["{} x{}"]),
    ],
)
def test_chat_a_fragment_with_a_name_begins_a_call_where_the_one_before_is_whole(
    pieces: list[str], raws: list[str]
) -> None:
    stream = openai_chat.Stream()
    for text in pieces:
        call = {"index": 0, "function": {"name": "add", "arguments": text}}
        stream.feed({"id": "c", "choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})
    assert [call.raw for call in stream.calls()] == raws
