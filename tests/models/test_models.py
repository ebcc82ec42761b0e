"""Every model over its official SDK, against a server that holds the requests to the API's rules."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from anthropic.resources.messages.messages import DEPRECATED_MODELS
from anthropic.types.model import Model
from cohere.v2.types.v2chat_stream_response import ContentDeltaV2ChatStreamResponse
from tests.models.cases import CASES, AskedOnce, Case, serving, told, tools
from tests.models.servers.serving import BOUND, Api, Asked, Turn

from ferrule import DefinitionError, Runner, Toolset, tool
from ferrule.loop import LoopResult, ModelText
from ferrule.loop import run as loop
from ferrule.models import Reply
from ferrule.models._cohere import Cohere

ROOT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.slow


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Case:
    """One API, with dummy credentials in the environment."""
    chosen: Case = request.param
    for name, value in {"NO_PROXY": "127.0.0.1", **chosen.environment}.items():
        monkeypatch.setenv(name, value)
    return chosen


def run(case: Case, address: str, ran: list[str] | None = None, *, once: bool = False, **given: Any) -> LoopResult:
    """The conversation, through the loop and a runner."""

    async def main() -> LoopResult:
        async with case.model("model-1", base_url=address, **given) as model:
            return await told(AskedOnce(case, address, model.user) if once else model, [] if ran is None else ran)

    return asyncio.run(main())


def ask(case: Case, address: str, toolset: Toolset) -> Reply:
    """One turn."""

    async def main() -> Reply:
        async with case.model("model-1", base_url=address) as model:
            async with asyncio.timeout(BOUND):
                return await model(model.user("How heavy is it?"), toolset)

    return asyncio.run(main())


def both_answered(api: Api, result: LoopResult) -> None:
    assert api.refusals == []
    assert [one.status for one in result.results] == ["ok", "failed"]
    assert result.status == "done"
    assert len(api.requests) == 2


def test_two_parallel_calls_and_their_results_go_round_as_a_stream(case: Case) -> None:
    with serving(case) as (api, address):
        result = run(case, address)
    both_answered(api, result)
    assert result.text == "It weighs 12 oz."
    assert api.is_streamed(api.requests[0])


def test_two_parallel_calls_and_their_results_go_round_at_once(case: Case) -> None:
    with serving(case) as (api, address):
        result = run(case, address, once=True)
    both_answered(api, result)
    assert not api.is_streamed(api.requests[0])


def test_both_results_reach_the_api_as_they_are(case: Case) -> None:
    with serving(case) as (api, address):
        run(case, address)
    sent = str(api.requests[1].body)
    assert "ferrule ☃: 12 oz" in sent
    assert "b.txt" in sent.rpartition("12 oz")[2]


def heard(case: Case, address: str, **given: Any) -> tuple[list[str], LoopResult]:
    """What the events of the conversation say that the model says."""

    async def main() -> tuple[list[str], LoopResult]:
        toolset = tools(asyncio.Barrier(2), [])
        async with case.model("model-1", base_url=address, **given) as model, Runner(toolset) as runner:
            running = loop(model, model.user("How heavy is it?"), runner)
            async with asyncio.timeout(BOUND):
                return [event.text async for event in running if isinstance(event, ModelText)], running.result

    return asyncio.run(main())


def test_text_is_an_event_as_it_comes(case: Case) -> None:
    with serving(case) as (_, address):
        chunks, _ = heard(case, address)
    assert len(chunks) == 4
    assert "".join(chunks) == "I will weigh it.It weighs 12 oz."


def test_without_a_stream_the_same_conversation_goes_round_and_a_text_is_given_whole(case: Case) -> None:
    with serving(case) as (api, address):
        chunks, result = heard(case, address, stream=False)
    both_answered(api, result)
    assert not any(map(api.is_streamed, api.requests))
    assert chunks == ["I will weigh it.", "It weighs 12 oz."]
    assert result.text == chunks[1]


@pytest.mark.parametrize("stream", [True, False])
def test_tokens_are_counted(case: Case, stream: bool) -> None:
    with serving(case) as (_, address):
        usage = run(case, address, stream=stream).usage
    assert (usage["input_tokens"], usage["output_tokens"]) == (20, 10)


@pytest.mark.parametrize("stream", [True, False])
async def test_the_whole_response_is_there_to_read(case: Case, stream: bool) -> None:
    async def main(address: str) -> Reply:
        async with case.model("model-1", base_url=address, stream=stream) as model:
            return await asyncio.wait_for(model(model.user("How heavy is it?"), Toolset([])), BOUND)

    with serving(case) as (_, address):
        reply = await main(address)
    assert isinstance(reply.raw, dict) and reply.calls
    assert case.provider.calls(reply.raw) == reply.calls
    json.dumps(reply.raw)


def test_options_are_a_part_of_the_request(case: Case) -> None:
    option, value = case.option
    with serving(case) as (api, address):
        run(case, address, **{option: value})
    assert str(value) in str(api.requests[0].body)


def test_a_request_that_was_turned_away_is_sent_again_where_the_sdk_does_that(case: Case) -> None:
    with serving(case, busy=1) as (api, address):
        if case.retries:
            assert run(case, address).status == "done"
            assert len(api.requests) == 3
        else:
            with pytest.raises(Exception, match="too many requests"):
                run(case, address)
            assert len(api.requests) == 1


def test_a_stream_that_ends_early_runs_nothing(case: Case) -> None:
    ran: list[str] = []
    with serving(case, early="quietly") as (_, address):
        reply = ask(case, address, Toolset([]))
        assert reply.stop not in {"end", "calls"} and reply.reason
        assert all(call.problem for call in reply.calls)
        run(case, address, ran)
    assert ran == []


async def test_a_model_that_is_cancelled_in_mid_stream_lets_go_of_its_connection_and_runs_nothing(case: Case) -> None:
    ran: list[str] = []

    async def main(api: Api, address: str) -> None:
        said = asyncio.Event()
        toolset = tools(asyncio.Barrier(2), ran)
        async with case.model("model-1", base_url=address) as model, Runner(toolset) as runner:

            async def hear() -> None:
                async for event in loop(model, model.user("How heavy is it?"), runner):
                    if isinstance(event, ModelText):
                        said.set()

            asking = asyncio.ensure_future(hear())
            await asyncio.wait_for(said.wait(), BOUND)
            assert await asyncio.to_thread(api.held.wait, BOUND)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert await asyncio.to_thread(api.left.wait, BOUND)

    with serving(case, early="held") as (api, address):
        await main(api, address)
    assert ran == []
    assert len(api.requests) == 1


async def test_a_listener_that_raises_in_mid_stream_ends_the_turn_and_its_connection(case: Case) -> None:
    def refuse(chunk: str) -> None:
        raise RuntimeError("the screen is gone")

    async def main(api: Api, address: str) -> None:
        async with case.model("model-1", base_url=address) as model:
            with pytest.raises(RuntimeError, match="the screen is gone"):
                await model(model.user("How heavy is it?"), Toolset([]), on_text=refuse)
            assert not case.lets_go or await asyncio.to_thread(api.left.wait, BOUND)

    with serving(case, early="held") as (api, address):
        await main(api, address)


def test_an_error_in_mid_stream_is_told_in_the_words_of_the_api_and_nothing_runs(case: Case) -> None:
    ran: list[str] = []
    with serving(case, early="error") as (api, address):
        words = "'error'" if case.name == "mistral" else "overloaded today"  # Mistral has one word for all errors
        with pytest.raises(Exception, match=words):
            run(case, address, ran)
    assert ran == []
    assert len(api.requests) == 1


def test_a_connection_that_is_lost_is_an_error_and_runs_nothing(case: Case) -> None:
    ran: list[str] = []
    with serving(case, early="broken") as (api, address):
        with pytest.raises(Exception, match=case.lost):
            run(case, address, ran)
    assert ran == []
    assert len(api.requests) == 1


async def test_a_history_with_calls_is_taken_when_no_tools_are_offered_any_more(case: Case) -> None:
    async def main(address: str) -> LoopResult:
        async with case.model("model-1", base_url=address) as model:
            return await told(model, [], on_failure="degrade")

    with serving(case) as (api, address):
        result = await main(address)
    assert api.refusals == []
    assert (result.status, result.text) == ("degraded", "It weighs 12 oz.")


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("case", [case for case in CASES if case.custom], ids=lambda case: case.name, indirect=True)
async def test_a_call_of_a_custom_tool_brings_its_text_and_is_answered_as_one(case: Case, once: bool) -> None:
    text, seen = 'select "☃" from\n\tt', []

    @tool
    async def query(input: str) -> str:
        """Ask the database."""
        seen.append(input)
        return "one row"

    async def main(address: str) -> LoopResult:
        async with case.model("model-1", base_url=address) as model, Runner([query]) as runner:
            asked = AskedOnce(case, address, model.user) if once else model
            return await asyncio.wait_for(awaited(loop(asked, model.user("How many?"), runner)), BOUND)

    turns = [Turn("", [Asked("call_1", "query", {"input": text}, custom=True)]), Turn("One.")]
    with serving(case, turns) as (api, address):
        result = await main(address)
    assert (api.refusals, result.status, seen) == ([], "done", [text])
    assert "one row" in str(api.requests[1].body)


async def awaited(run: Any) -> LoopResult:
    found: LoopResult = await run
    return found


def test_the_models_that_the_pages_name_are_known_to_the_sdk_and_not_deprecated() -> None:
    listed = {name for kind in get_args(Model) for name in get_args(kind)} - set(DEPRECATED_MODELS)
    for page in ("README.md", "Makefile", "docs/models.md", "src/ferrule/models/__init__.py"):
        named = re.findall(r"claude-[a-z0-9-]+", (ROOT / page).read_text(encoding="utf-8"))
        assert named and set(named) <= listed, page


def test_the_whole_schema_of_a_tool_is_sent(case: Case) -> None:
    b: dict[str, Any] = {"type": "object", "properties": {"deep": {"enum": ["x"]}}, "additionalProperties": False}
    schema = {
        "type": "object",
        "properties": {"a": {"anyOf": [{"type": "integer", "minimum": 7}, {"$ref": "#/$defs/b"}]}},
        "$defs": {"b": b},
        "required": ["a"],
        "additionalProperties": False,
    }
    # Ollama's server reads neither of `minimum` and `additionalProperties`.
    least = [{"type": "integer", "description": "{minimum: 7}"}, {"type": "object", "properties": b["properties"]}]
    written_out = {
        "properties": {"a": {"anyOf": [{"type": "integer", "minimum": 7}, b]}},
        "additionalProperties": False,
    }
    said_otherwise = {
        **dict.fromkeys(("bedrock", "gemini", "vertex", "interactions"), written_out),
        "ollama": {"properties": {"a": {"anyOf": least}}},
    }
    otherwise = said_otherwise.get(case.name)
    expected = {"type": "object", "required": ["a"], **otherwise} if otherwise else schema

    def given(payload: Any) -> None:
        """Take it."""

    with serving(case, [Turn("Done.")]) as (api, address):
        ask(case, address, Toolset([tool(given, name="given", input_schema=schema)]))
    assert expected in every_object(api.requests[0].body)


def every_object(value: Any) -> list[Any]:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [value, *(found for item in inner for found in every_object(item))]


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if not case.name.startswith(("gemini", "vertex", "ollama", "interactions"))],
    ids=lambda case: case.name,
    indirect=True,
)
def test_strict_tools_are_sent_as_such(case: Case) -> None:
    with serving(case) as (api, address):
        result = run(case, address, strict=True)
    both_answered(api, result)
    body = api.requests[0].body
    assert body.get("strict_tools") is True or str(body).count("'strict': True") == 2


GEMINI = pytest.mark.parametrize(
    "case", [case for case in CASES if case.name in ("gemini", "vertex")], ids=lambda case: case.name, indirect=True
)


@GEMINI
@pytest.mark.parametrize("strict", [True, "where possible"])
@pytest.mark.parametrize(
    ("options", "modes"),
    [
        ({}, ["VALIDATED", "VALIDATED"]),
        ({"tool_config": {"function_calling_config": {"mode": "ANY"}}}, ["ANY", "VALIDATED"]),
        ({"toolConfig": {"functionCallingConfig": {"allowedFunctionNames": ["weigh", "look"]}}}, ["VALIDATED"] * 2),
    ],
)
def test_a_strict_gemini_is_asked_in_a_mode_that_holds_it_to_the_schemas(
    case: Case, strict: Any, options: dict[str, Any], modes: list[str]
) -> None:
    with serving(case) as (api, address):
        both_answered(api, run(case, address, strict=strict, **options))
    asked = [request.body["toolConfig"]["functionCallingConfig"]["mode"] for request in api.requests]
    assert asked == modes


@GEMINI
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"strict": ["weigh"]}, r"of all tools or of none: pass strict=True, not strict=\['weigh'\]"),
        (
            {"strict": True, "tool_config": {"function_calling_config": {"mode": "AUTO"}}},
            "needs the mode VALIDATED or ANY, and tool_config says AUTO",
        ),
    ],
)
def test_a_gemini_that_cannot_be_strict_is_refused_when_it_is_made(
    case: Case, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(DefinitionError, match=said):
        case.model("model-1", base_url="http://127.0.0.1:9", **options)


OURS = pytest.mark.parametrize(
    "case", [case for case in CASES if case.name != "interactions"], ids=lambda case: case.name, indirect=True
)


@tool
def first() -> None:
    """Come first."""


@tool
def second() -> None:
    """Come second."""


@tool
def given() -> None:
    """Come from the options."""


def options(case: Case) -> dict[str, Any]:
    """The options of a request that have the tool `given` in them."""
    definitions = case.provider.tools(Toolset([given]))
    return (
        {"toolConfig": {**definitions, "toolChoice": {"any": {}}}} if case.name == "bedrock" else {"tools": definitions}
    )


def sent(case: Case, toolset: Toolset, **more: Any) -> tuple[list[str], str]:
    """The names of the tools in a request, in order, and its whole text."""

    async def main(address: str) -> None:
        async with case.model("model-1", base_url=address, **more) as model:
            await asyncio.wait_for(model(model.user("Hi."), toolset), BOUND)

    with serving(case, [Turn("Done.")]) as (api, address):
        asyncio.run(main(address))
    assert api.refusals == []
    body = api.requests[0].body
    return [item for item in every_value(body, "name") if item in ("first", "second", "given")], str(body)


def every_value(value: Any, key: str) -> list[Any]:
    return [found[key] for found in every_object(value) if isinstance(found, dict) and key in found]


@OURS
def test_tools_in_the_options_stand_behind_those_of_the_toolset(case: Case) -> None:
    names, body = sent(case, Toolset([first, second]), **options(case))
    assert names == ["first", "second", "given"]
    assert case.name != "bedrock" or "'toolChoice': {'any': {}}" in body


@OURS
def test_tools_in_the_options_are_offered_where_the_toolset_has_none(case: Case) -> None:
    names, body = sent(case, Toolset([]), **options(case))
    assert names == ["given"] and (case.name != "bedrock" or "'toolChoice': {'any': {}}" in body)


@OURS
def test_without_any_tools_the_request_says_nothing_of_them(case: Case) -> None:
    empty: dict[str, Any] = {"toolConfig": {"toolChoice": {"any": {}}}} if case.name == "bedrock" else {"tools": []}
    names, body = sent(case, Toolset([]), **empty)
    assert names == [] and "tool" not in body


@OURS
def test_deferred_tools_are_placed_as_the_provider_places_them(case: Case) -> None:
    names, body = sent(case, Toolset([first, second]), deferred=["first"])
    assert names == ["second", "first"]
    assert ("'defer_loading': True" in body) is (case.name in {"anthropic", "openai"})


@pytest.mark.parametrize(
    ("delta", "said"),
    [
        (None, ""),
        ({}, ""),
        ({"message": {}}, ""),
        ({"message": {"content": {}}}, ""),
        ({"message": {"content": {"thinking": "Hm."}}}, ""),
        ({"message": {"content": {"text": "Hello"}}}, "Hello"),
    ],
)
def test_a_chunk_of_coheres_that_says_nothing_is_no_error(delta: Any, said: str) -> None:
    event = ContentDeltaV2ChatStreamResponse.model_validate({"type": "content-delta", "delta": delta})
    assert Cohere.read_event_text(None, event) == said  # type: ignore[arg-type]
