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
from tests.models.cases import Case, ask, converse, each, run, serving, tools
from tests.models.servers.serving import BOUND, Asked, Turn
from tests.providers.test_provider_pages import OUTPUTS, weigh

from ferrule import DefinitionError, Runner, Toolset, tool
from ferrule.loop import ModelText
from ferrule.loop import run as loop

ROOT = Path(__file__).parent.parent.parent
STREAMED = pytest.mark.parametrize("stream", [True, False])

pytestmark = pytest.mark.slow


@each()
@STREAMED
async def test_two_parallel_calls_and_their_results_go_round(case: Case, stream: bool) -> None:
    option, value = case.option
    with serving(case) as (api, address):
        async with case.model("model-1", base_url=address, stream=stream, **{option: value}) as model:
            running = loop(model, model.user("How heavy is it?"), Runner(tools([])))
            async with asyncio.timeout(BOUND):
                texts = [event.text async for event in running if isinstance(event, ModelText)]
    result = running.result
    assert (api.refusals, result.status, result.text) == ([], "done", "It weighs 12 oz.")
    assert [one.status for one in result.results] == ["ok", "failed"]
    assert [api.is_streamed(request) for request in api.requests] == [stream, stream]
    first, second = (str(request.body) for request in api.requests)
    assert str(value) in first  # an option is a part of the request
    assert "ferrule ☃: 12 oz" in second and "b.txt" in second.rpartition("12 oz")[2]
    assert (result.usage["input_tokens"], result.usage["output_tokens"]) == (20, 10)
    assert (len(texts), "".join(texts)) == (4 if stream else 2, "I will weigh it.It weighs 12 oz.")


@each()
@STREAMED
async def test_the_whole_response_is_there_to_read(case: Case, stream: bool) -> None:
    with serving(case) as (_, address):
        reply = await ask(case, address, stream=stream)
    assert isinstance(reply.raw, dict) and reply.calls
    assert case.provider.calls(reply.raw) == reply.calls
    json.dumps(reply.raw)


KINDS = [kind for kind in OUTPUTS if kind != "a suspended call"]


@each()
async def test_the_api_accepts_every_kind_of_output(case: Case) -> None:
    calls = [Asked(f"output{place:03}", "weigh", {"item": kind}) for place, kind in enumerate(KINDS)]
    with serving(case, [Turn("Let me see.", calls), Turn("12 kg.")]) as (api, address):
        async with case.model("model-1", base_url=address) as model:
            result = await run(model, [weigh])
    ends = ["failed" if kind == "a failed call" else "ok" for kind in KINDS]
    assert (api.refusals, result.status, [one.status for one in result.results]) == ([], "done", ends)


@each()
async def test_a_request_that_was_turned_away_is_sent_again_if_the_sdk_does_so(case: Case) -> None:
    with serving(case, busy=1) as (api, address):
        if case.retries:
            assert (await converse(case, address)).status == "done"
        else:
            with pytest.raises(Exception, match="too many requests"):
                await converse(case, address)
    assert len(api.requests) == (3 if case.retries else 1)


# Ends that come too early


@each()
@pytest.mark.parametrize("early", ["error", "broken", "quietly"])
async def test_an_error_or_an_early_end_of_a_stream_is_raised_and_nothing_runs(case: Case, early: str) -> None:
    reported = "'error'" if case.name == "mistral" else "overloaded today"  # Mistral has one word for all errors
    why = {"error": reported, "broken": case.lost, "quietly": "connection ended before"}[early]
    ran: list[str] = []
    with serving(case, early=early) as (api, address):
        with pytest.raises(Exception, match=why):
            await converse(case, address, ran)
    assert ran == [] and len(api.requests) == 1


@each()
async def test_a_model_cancelled_in_mid_stream_closes_its_connection_and_runs_nothing(case: Case) -> None:
    ran: list[str] = []
    said = asyncio.Event()
    with serving(case, early="held") as (api, address):
        async with case.model("model-1", base_url=address) as model:

            async def hear() -> None:
                async for event in loop(model, model.user("How heavy is it?"), Runner(tools(ran))):
                    if isinstance(event, ModelText):
                        said.set()

            asking = asyncio.ensure_future(hear())
            await asyncio.wait_for(said.wait(), BOUND)
            assert await asyncio.to_thread(api.held.wait, BOUND)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert await asyncio.to_thread(api.left.wait, BOUND)
    assert ran == [] and len(api.requests) == 1


# Tools in a request


@each()
async def test_a_history_with_calls_is_accepted_without_tools(case: Case) -> None:
    with serving(case) as (api, address):
        result = await converse(case, address, on_failure="degrade")
    assert (api.refusals, result.status, result.text) == ([], "degraded", "It weighs 12 oz.")


@each("openai", "compatible")
async def test_a_custom_tool_gets_its_text_and_is_answered(case: Case) -> None:
    text, seen = 'select "☃" from\n\tt', []

    @tool
    async def query(input: str) -> str:
        """Ask the database."""
        seen.append(input)
        return "one row"

    for stream in (True, False):
        with serving(case, [Turn("", [Asked("c", "query", {"input": text}, custom=True)]), Turn("One.")]) as (api, url):
            async with case.model("model-1", base_url=url, stream=stream) as model:
                result = await run(model, [query])
        assert (api.refusals, result.status, seen.pop()) == ([], "done", text)
        assert "one row" in str(api.requests[1].body)


def test_the_models_that_the_pages_name_are_known_to_the_sdk_and_not_deprecated() -> None:
    listed = {name for kind in get_args(Model) for name in get_args(kind)} - set(DEPRECATED_MODELS)
    for page in ("README.md", "Makefile", "docs/models.md", "src/ferrule/models/__init__.py"):
        named = re.findall(r"claude-(?!agent\b)[a-z0-9-]+", (ROOT / page).read_text(encoding="utf-8"))
        assert named and set(named) <= listed, page


ALLOWED = {"functionCallingConfig": {"allowedFunctionNames": ["weigh", "look"]}}


@each("gemini")
@pytest.mark.parametrize(
    ("options", "modes"),
    [
        ({}, ["VALIDATED", "VALIDATED"]),
        ({"strict": "where possible"}, ["VALIDATED", "VALIDATED"]),
        ({"tool_config": {"function_calling_config": {"mode": "ANY"}}}, ["ANY", "VALIDATED"]),
        ({"toolConfig": ALLOWED}, ["VALIDATED", "VALIDATED"]),
    ],
)
async def test_a_strict_gemini_is_asked_in_a_mode_that_holds_the_schemas(
    case: Case, options: dict[str, Any], modes: list[str]
) -> None:
    with serving(case) as (api, address):
        assert (await converse(case, address, **{"strict": True, **options})).status == "done"
    assert [request.body["toolConfig"]["functionCallingConfig"]["mode"] for request in api.requests] == modes


@each("gemini")
def test_a_gemini_that_cannot_be_strict_is_refused_when_it_is_made(case: Case) -> None:
    auto = {"strict": True, "tool_config": {"function_calling_config": {"mode": "AUTO"}}}
    for options, said in (
        ({"strict": ["weigh"]}, r"of all tools or of none: pass strict=True, not strict=\['weigh'\]"),
        (auto, "needs the mode VALIDATED or ANY, and tool_config says AUTO"),
    ):
        with pytest.raises(DefinitionError, match=said):
            case.model("model-1", base_url="http://127.0.0.1:9", **options)


@tool
def first() -> None:
    """Come first."""


@tool
def second() -> None:
    """Come second."""


@tool
def given() -> None:
    """Come from the options."""


def options_with_a_tool(case: Case) -> dict[str, Any]:
    definitions = case.provider.tools(Toolset([given]))
    in_config = case.name == "bedrock"
    return {"toolConfig": {**definitions, "toolChoice": {"any": {}}}} if in_config else {"tools": definitions}


async def tools_sent(case: Case, toolset: Toolset, **options: Any) -> tuple[list[str], str]:
    """The names of the tools in a request, in order, and its whole text."""
    with serving(case, [Turn("Done.")]) as (api, address):
        await ask(case, address, toolset, **options)
    assert api.refusals == []
    text = str(api.requests[0].body)
    return re.findall(r"'name': '(first|second|given)'", text), text


@each()
async def test_tools_in_the_options_stand_behind_those_of_the_toolset(case: Case) -> None:
    for toolset in (Toolset([first, second]), Toolset([])):
        names, body = await tools_sent(case, toolset, **options_with_a_tool(case))
        assert names == [*(one.name for one in toolset), "given"]
        assert case.name != "bedrock" or "'toolChoice': {'any': {}}" in body
    empty: dict[str, Any] = {"toolConfig": {"toolChoice": {"any": {}}}} if case.name == "bedrock" else {"tools": []}
    names, body = await tools_sent(case, Toolset([]), **empty)
    assert names == [] and "tool" not in body  # without any tools the request says nothing of them
