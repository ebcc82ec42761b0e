"""The models, each with the server that plays its API; one suite runs them all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from tests.models.servers.anthropic import Anthropic
from tests.models.servers.bedrock import Bedrock
from tests.models.servers.cohere import Cohere
from tests.models.servers.gemini import Gemini
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

NO_TOOLS = Toolset([])


class Scale(BaseModel):
    """Settings of a scale; nested, because some client drops what is nested."""

    unit: Literal["g", "oz"]
    digits: int = 0


def tools(ran: list[str]) -> Toolset:
    """Two tools that say that they ran, and wait for each other; the second then fails."""
    together = asyncio.Barrier(2)

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
        provider: Its module.
        environment: What the SDK needs to know who asks.
        ids: Of the two calls.
        retries: Whether the SDK asks again after a 429.
    """

    name: str
    api: type[Api]
    model: Callable[..., SdkModel]
    provider: Any
    environment: Mapping[str, str] = field(default_factory=dict)
    ids: tuple[str, str] = ("call_1", "call_2")
    retries: bool = True
    home: str = ""
    """What follows the server's address in `base_url`."""
    option: tuple[str, Any] = ("temperature", 0.25)
    """An option of the request."""
    lost: str = "peer closed|ncomplete|onnection|prematurely"
    """What the SDK says of a connection that is lost."""


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


CASES = [
    Case("anthropic", Anthropic, models.Anthropic, anthropic, _ANTHROPIC, option=_SYSTEM),
    Case("openai", OpenAIResponses, _responses, openai_responses, _OPENAI, home="/v1"),
    Case("compatible", OpenAIChat, models.OpenAI, openai_chat, _OPENAI, home="/v1"),
    Case("gemini", Gemini, models.Gemini, gemini, {"GEMINI_API_KEY": "dummy"}),
    Case("vertex", Vertex, models.Gemini, gemini, _VERTEX),
    Case("bedrock", Bedrock, models.Bedrock, bedrock, _AWS, option=_BEDROCK),
    Case("mistral", Mistral, models.Mistral, mistral, {"MISTRAL_API_KEY": "dummy"}, _NINE),
    Case("cohere", Cohere, models.Cohere, cohere, {"CO_API_KEY": "dummy"}, retries=False),
    Case("ollama", Ollama, models.Ollama, ollama, retries=False, option=_OLLAMA),
]


BY_NAME = {case.name: case for case in CASES}


def each(*names: str) -> Any:
    """Parametrize a test with the cases of these names, or with all."""
    chosen = [case for case in CASES if not names or case.name in names]
    return pytest.mark.parametrize("case", chosen, ids=lambda case: case.name)


@contextmanager
def serving(case: Case, turns: Sequence[Turn] | None = None, **given: Any) -> Iterator[tuple[Api, str]]:
    """The server of `case`, and the address for its model."""
    api = case.api(conversation(case.ids) if turns is None else turns, **given)
    with served(api) as address:
        yield api, address + case.home


async def ask(case: Case, address: str, toolset: Toolset = NO_TOOLS, text: str = "Hi.", **options: Any) -> Reply:
    """One turn of the model."""
    on_text = options.pop("on_text", None)
    async with case.model("model-1", base_url=address, **options) as model, asyncio.timeout(BOUND):
        return await model(model.user(text), toolset, **({} if on_text is None else {"on_text": on_text}))


async def converse(case: Case, address: str, ran: list[str] | None = None, **options: Any) -> LoopResult:
    """The conversation, through the loop and a runner; the tools that ran are in `ran`."""
    limits = {key: options.pop(key) for key in ("on_failure",) if key in options}
    async with case.model("model-1", base_url=address, **options) as model:
        return await run(model, tools([] if ran is None else ran), **limits)


async def run(model: Any, toolset: Any, **limits: Any) -> LoopResult:
    async with Runner(toolset) as runner, asyncio.timeout(BOUND):
        return await loop(model, model.user("How heavy is it?"), runner, **limits)
