"""The models, each with the server that plays its API; one suite runs them all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import BaseModel
from tests.models.servers.anthropic import Anthropic
from tests.models.servers.bedrock import Bedrock
from tests.models.servers.cohere import Cohere
from tests.models.servers.gemini import Gemini
from tests.models.servers.interactions import Interactions
from tests.models.servers.mistral import Mistral
from tests.models.servers.ollama import Ollama
from tests.models.servers.openai_chat import OpenAIChat
from tests.models.servers.openai_responses import OpenAIResponses
from tests.models.servers.serving import BOUND, Api, Asked, Turn, served
from tests.models.servers.vertex import Vertex

from ferrule import Runner, Toolset, models, tool
from ferrule.loop import LoopResult
from ferrule.loop import run as loop
from ferrule.models import Reply
from ferrule.models._over_sdk import SdkModel
from ferrule.providers import anthropic, bedrock, cohere, gemini, mistral, ollama, openai_chat, openai_responses


class Scale(BaseModel):
    """Settings of a scale; nested, because some client drops what is nested."""

    unit: Literal["g", "oz"]
    digits: int = 0


def tools(together: asyncio.Barrier, ran: list[str]) -> Toolset:
    """Two tools that say that they ran, and wait for each other; the second then fails."""

    @tool(read_only=True)
    async def weigh(item: str, scale: Scale) -> str:
        """Weigh an item."""
        ran.append("weigh")
        await asyncio.wait_for(together.wait(), BOUND)
        return f"{item}: 12 {scale.unit}"

    @tool(read_only=True)
    async def look(path: str) -> str:
        """Look at a file."""
        ran.append("look")
        await asyncio.wait_for(together.wait(), BOUND)
        raise LookupError(f"there is no {path!r}")

    return Toolset([weigh, look])


def conversation(ids: tuple[str, str]) -> list[Turn]:
    """Two calls in one turn, then the end."""
    weigh = Asked(ids[0], "weigh", {"item": "ferrule ☃", "scale": {"unit": "oz", "digits": 2}})
    look = Asked(ids[1], "look", {"path": "b.txt"})
    return [Turn("I will weigh it.", [weigh, look]), Turn("It weighs 12 oz.")]


@dataclass(frozen=True)
class Case:
    """One API.

    Attributes:
        api: Its server.
        model: Makes the model for an address.
        once: Asks the SDK without a stream.
        provider: Its module.
        environment: What the SDK needs to know who asks.
        ids: Of the two calls.
        retries: Whether the SDK asks again after a 429.
        lets_go: Whether the SDK ends its connection where its stream is left between two events. google-genai's answer
            refers to itself (`HttpResponse.segment_iterator`), so there it ends when the garbage is collected.
    """

    name: str
    api: type[Api]
    model: Callable[..., SdkModel]
    once: Callable[[str, Sequence[dict[str, Any]], Any], Any]
    provider: Any
    environment: Mapping[str, str] = field(default_factory=dict)
    ids: tuple[str, str] = ("call_1", "call_2")
    retries: bool = True
    lets_go: bool = True
    custom: bool = False
    """Whether it has custom tools, whose calls bring a text."""
    home: str = ""
    """What follows the server's address in `base_url`."""
    option: tuple[str, Any] = ("temperature", 0.25)
    """An option of the request."""
    lost: str = "peer closed|ncomplete|onnection|prematurely"
    """What the SDK says of a connection that is lost."""


async def _anthropic_once(address: str, messages: Any, definitions: Any) -> Any:
    from anthropic import AsyncAnthropic

    async with AsyncAnthropic(base_url=address) as client:
        return await client.messages.create(model="m", max_tokens=9, messages=messages, tools=definitions)


async def _responses_once(address: str, messages: Any, definitions: Any) -> Any:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=address) as client:
        return await client.responses.create(model="m", input=messages, tools=definitions)


async def _chat_once(address: str, messages: Any, definitions: Any) -> Any:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=address) as client:
        return await client.chat.completions.create(model="m", messages=messages, tools=definitions)


async def _gemini_once(address: str, messages: Any, definitions: Any) -> Any:
    from google import genai

    client = genai.Client(http_options=genai.types.HttpOptions(base_url=address))
    async with client.aio as calls:
        return await calls.models.generate_content(model="m", contents=messages, config={"tools": definitions})


async def _interactions_once(address: str, messages: Any, definitions: Any) -> Any:
    from google import genai

    async with genai.Client(http_options=genai.types.HttpOptions(base_url=address)).aio as calls:
        return await calls.interactions.create(model="m", input=messages, tools=definitions)


def _interactions(
    name: str,
    *,
    base_url: str | None = None,
    client: Any = None,
    stream: bool = True,
    **options: Any,
) -> SdkModel:
    """What a user writes for an API that `ferrule.models` does not ask."""
    from google import genai

    calls = (client or genai.Client(http_options=genai.types.HttpOptions(base_url=base_url))).aio
    return _Interactions(name, calls, options, is_own=True, stream=stream, deferred=())


class _Interactions(SdkModel):
    provider = gemini
    usage_names: ClassVar = {"total_input_tokens": "input_tokens", "total_output_tokens": "output_tokens"}

    def request(self, messages: Any, toolset: Toolset, state: Any, found: Any) -> dict[str, Any]:
        tools = gemini.tools(toolset, api="interactions")
        return {"model": self.name, "input": list(messages), **({"tools": tools} if tools else {}), **self.options}

    def stream_events(self, request: Any) -> Any:
        return self.client.interactions.create(stream=True, **request)

    def send(self, request: Any) -> Any:
        return self.client.interactions.create(**request)

    def read_event_text(self, event: Any) -> str:
        delta = getattr(event, "delta", None)
        return delta.text if getattr(delta, "type", "") == "text" else ""

    def user(self, text: str, /) -> list[dict[str, Any]]:
        return [{"type": "user_input", "content": [{"type": "text", "text": text}]}]

    def close_client(self) -> Any:
        return self.client.aclose()


async def _bedrock_once(address: str, messages: Any, definitions: Any) -> Any:
    import boto3

    client = boto3.client("bedrock-runtime", endpoint_url=address)
    try:
        return await asyncio.to_thread(client.converse, modelId="m", messages=messages, toolConfig=definitions)
    finally:
        client.close()


async def _mistral_once(address: str, messages: Any, definitions: Any) -> Any:
    from mistralai.client import Mistral as Client

    with Client(api_key="dummy", server_url=address) as both:
        async with both as client:
            return await client.chat.complete_async(model="m", messages=messages, tools=definitions)


async def _cohere_once(address: str, messages: Any, definitions: Any) -> Any:
    from cohere import AsyncClientV2

    async with AsyncClientV2(base_url=address) as client:
        return await client.chat(model="m", messages=messages, tools=definitions)


async def _ollama_once(address: str, messages: Any, definitions: Any) -> Any:
    from ollama import AsyncClient

    async with AsyncClient(host=address) as client:
        return await client.chat(model="m", messages=messages, tools=definitions)


_AWS = {
    "AWS_ACCESS_KEY_ID": "dummy",
    "AWS_SECRET_ACCESS_KEY": "dummy",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": "none",
    "AWS_SHARED_CREDENTIALS_FILE": "none",
    "AWS_EC2_METADATA_DISABLED": "true",
}
_VERTEX = {"GOOGLE_GENAI_USE_VERTEXAI": "true", "GOOGLE_API_KEY": "dummy"}
_OPENAI = {"OPENAI_API_KEY": "dummy"}
_ANTHROPIC = {"ANTHROPIC_API_KEY": "dummy"}
_SYSTEM = ("system", "Be brief.")
_BEDROCK = ("inferenceConfig", {"temperature": 0.25})
_OLLAMA = ("options", {"temperature": 0.25})
_NINE = ("D681PevKs", "abCD12345")


def _responses(name: str, **given: Any) -> SdkModel:
    return models.OpenAI(name, api="responses", **given)


class InteractionsProvider:
    """The functions of `providers.gemini`, told which API is meant."""

    tools = staticmethod(partial(gemini.tools, api="interactions"))
    calls, turn, stop = map(staticmethod, (gemini.calls, gemini.turn, gemini.stop))
    text, results = map(staticmethod, (gemini.text, gemini.results))


CASES = [
    Case("anthropic", Anthropic, models.Anthropic, _anthropic_once, anthropic, _ANTHROPIC, option=_SYSTEM),
    Case(
        "openai",
        OpenAIResponses,
        _responses,
        _responses_once,
        openai_responses,
        _OPENAI,
        home="/v1",
        custom=True,
    ),
    Case("compatible", OpenAIChat, models.OpenAI, _chat_once, openai_chat, _OPENAI, home="/v1", custom=True),
    Case("gemini", Gemini, models.Gemini, _gemini_once, gemini, {"GEMINI_API_KEY": "dummy"}, lets_go=False),
    Case("vertex", Vertex, models.Gemini, _gemini_once, gemini, _VERTEX, lets_go=False),
    Case(
        "interactions",
        Interactions,
        _interactions,
        _interactions_once,
        InteractionsProvider,
        {"GEMINI_API_KEY": "dummy"},
        option=("system_instruction", "Be brief."),
    ),
    Case("bedrock", Bedrock, models.Bedrock, _bedrock_once, bedrock, _AWS, option=_BEDROCK),
    Case("mistral", Mistral, models.Mistral, _mistral_once, mistral, {"MISTRAL_API_KEY": "dummy"}, _NINE),
    Case("cohere", Cohere, models.Cohere, _cohere_once, cohere, {"CO_API_KEY": "dummy"}, retries=False),
    Case("ollama", Ollama, models.Ollama, _ollama_once, ollama, retries=False, option=_OLLAMA),
]


@contextmanager
def serving(case: Case, turns: Sequence[Turn] | None = None, **given: Any) -> Iterator[tuple[Api, str]]:
    """The server of `case`, and the address for its model."""
    api = case.api(conversation(case.ids) if turns is None else turns, **given)
    with served(api) as address:
        yield api, address + case.home


class AskedOnce:
    """A model over the SDK without a stream, by the provider's functions alone."""

    def __init__(self, case: Case, address: str, user: Callable[[str], list[dict[str, Any]]]) -> None:
        self._case, self._address, self.user = case, address, user

    async def __call__(self, messages: Sequence[dict[str, Any]], toolset: Toolset, /) -> Reply:
        provider = self._case.provider
        response = await self._case.once(self._address, messages, provider.tools(toolset))
        return Reply(
            provider.text(response), provider.calls(response), provider.turn(response), provider.stop(response)
        )

    def results(self, results: Any, /) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._case.provider.results(results)
        return found


async def told(model: Any, ran: list[str], **limits: Any) -> LoopResult:
    """What the loop makes of the conversation; what ran is in `ran`."""
    async with Runner(tools(asyncio.Barrier(2), ran)) as runner:
        async with asyncio.timeout(BOUND):
            return await loop(model, model.user("How heavy is it?"), runner, **limits)
