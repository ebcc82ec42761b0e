"""What an API wants besides the messages goes from one turn to the next, and from one run to another."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types.beta import message_create_params as beta_params
from google import genai
from tests.models.servers.anthropic import Anthropic
from tests.models.servers.containers import WithContainer
from tests.models.servers.fitting import must_fit
from tests.models.servers.gemini import Gemini
from tests.models.servers.serving import Asked, Request, Turn, refuse_unless, served, sse

from ferrule import Runner, models, tool
from ferrule.errors import DefinitionError
from ferrule.loop import LoopResult, run

pytestmark = pytest.mark.slow
STREAMED = pytest.mark.parametrize("stream", [True, False])
SKILLS = [{"type": "anthropic", "skill_id": "xlsx", "version": "latest"}]


@tool(read_only=True)
async def weigh(item: str) -> str:
    """Weigh an item."""
    return f"{item}: 12 oz"


class WithBeta(Anthropic):
    """The beta surface, which a header opens."""

    def check(self, request: Request) -> None:
        refuse_unless(request.headers.get("anthropic-beta") == "mcp-client-2026-09-15", "anthropic-beta: missing")
        streamed = self.is_streamed(request)
        kind = beta_params.MessageCreateParamsStreaming if streamed else beta_params.MessageCreateParamsNonStreaming
        must_fit(request.body, kind, "body")


async def converse(model: Any, messages: Any = None, **options: Any) -> LoopResult:
    async with model:
        return await run(model, messages or model.user("How heavy?"), Runner([weigh]), **options)


def anthropic(address: str, **options: Any) -> models.Anthropic:
    return models.Anthropic("model-1", base_url=address, **options)


def weighing(place: int) -> Turn:
    return Turn("", [Asked(f"toolu_{place}", "weigh", {"item": "a"})])


@STREAMED
async def test_a_container_is_in_every_later_request(stream: bool) -> None:
    api = WithContainer([weighing(0), weighing(1), Turn("12 oz.")])
    with served(api) as address:
        result = await converse(anthropic(address, stream=stream))
    assert (api.refusals, result.status) == ([], "done")
    assert [request.body.get("container") for request in api.requests] == [None, "container_1", "container_1"]
    assert result.state == {"container": "container_1"}


@STREAMED
async def test_the_skills_of_a_container_stay_beside_its_id(stream: bool) -> None:
    api = WithContainer([weighing(0), Turn("12 oz.")])
    with served(api) as address:
        result = await converse(anthropic(address, stream=stream, container={"skills": SKILLS}))
    assert (api.refusals, result.status) == ([], "done")
    assert [request.body["container"] for request in api.requests] == [
        {"skills": SKILLS},
        {"skills": SKILLS, "id": "container_1"},
    ]


@STREAMED
async def test_options_of_the_beta_surface_reach_it(stream: bool) -> None:
    api = WithBeta([Turn("Done.")])
    given = {
        "betas": ["mcp-client-2026-09-15"],
        "mcp_servers": [{"type": "url", "url": "https://example.org", "name": "far"}],
        "tools": [{"type": "mcp_toolset", "mcp_server_name": "far"}],
    }
    with served(api) as address:
        assert (await converse(anthropic(address, stream=stream, **given))).text == "Done."
    assert api.refusals == []
    assert [each.get("name") for each in api.requests[0].body["tools"]] == ["weigh", None]


class InParts(Gemini):
    """The first turn ends at the limit of one request, and goes on in the next: the same contents, with the token."""

    def check(self, request: Request) -> None:
        body = dict(request.body)
        token = body.pop("continuationToken", None)
        super().check(Request(request.path, request.headers, body))
        refuse_unless(token == ("bmV4dA==" if self.answered == 1 else None), f"continuationToken: {token}")
        refuse_unless(self.answered != 1 or body == self.requests[0].body, "contents: not those that the token is for")

    def whole(self, turn: Turn, number: int) -> dict[str, Any]:
        return self._paused(super().whole(turn, number)) if not number else super().whole(turn, number)

    def stream(self, turn: Turn, number: int) -> tuple[list[bytes], list[bytes]]:
        body, end = super().stream(turn, number)
        if not number:
            end = [sse(self._paused(json.loads(end[0].removeprefix(b"data: "))))]
        return body, end

    def _paused(self, response: dict[str, Any]) -> dict[str, Any]:
        response["candidates"][0] |= {"finishReason": "CONTINUATION", "continuationToken": "bmV4dA=="}
        return response


@STREAMED
async def test_a_turn_of_gemini_in_parts_is_one_turn(stream: bool) -> None:
    api = InParts([Turn("I will "), Turn("weigh it.", [Asked("call_1", "weigh", {"item": "a"})]), Turn("12 oz.")])
    # The signature of the calls is that of the second request's turn.
    with served(api) as address:
        result = await converse(models.Gemini("model-1", base_url=address, stream=stream))
    assert (api.refusals, result.status, result.turns, result.text) == ([], "done", 2, "12 oz.")
    assert result.messages[1]["parts"][0]["text"].startswith("I will ")
    assert [one.output for one in result.results] == ["a: 12 oz"]


@pytest.mark.parametrize("name", ["automatic_continuation", "automaticContinuation"])
def test_gemini_takes_no_switch_against_going_on(name: str) -> None:
    with pytest.raises(DefinitionError, match="automatic_continuation=False"):
        models.Gemini("model-1", client=genai.Client(api_key="dummy"), **{name: False})
    models.Gemini("model-1", client=genai.Client(api_key="dummy"), **{name: True})
