"""Models: callables that take the messages and a toolset and give one reply.

A model is anything of this shape, and `messages` are its provider's own dicts:

    async def model(messages, toolset) -> Reply: ...
    model.results(results) -> the messages that answer the calls

There is one over each official SDK, whose extra has its name: `anthropic`, `openai` (also for whatever is compatible
with it), `gemini`, `bedrock`, `mistral`, `cohere` and `ollama`. They stream; `on_text` hears each chunk of text as it
comes; retries are the SDK's:

    from ferrule.models.anthropic import anthropic

    async with anthropic("claude-sonnet-5-5", on_text=print) as model:
        result = await run(model, model.user("What is in notes.txt?"), runner)

The smallest one of your own, over an official SDK:

    class Claude:
        def __init__(self, client, name):
            self.client, self.name = client, name

        async def __call__(self, messages, toolset):
            reply = await self.client.messages.create(
                model=self.name, max_tokens=4096, messages=messages, tools=anthropic.tools(toolset)
            )
            text = "".join(block.text for block in reply.content if block.type == "text")
            return Reply(text, anthropic.calls(reply), anthropic.turn(reply), anthropic.stop(reply))

        results = staticmethod(anthropic.results)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ferrule.errors import FerruleError
from ferrule.providers import Stop
from ferrule.values.call import ToolCall
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.definition.toolset import Toolset


Message: TypeAlias = Any
"""A dict in the form of the model's own API. To type checkers it is whatever that API's SDK calls it, and the SDKs have
no type in common."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's answer: one turn."""

    text: str
    """Its text; may be empty."""
    calls: Sequence[ToolCall] = ()
    """What it asks for, in order."""
    messages: Sequence[Message] = ()
    """The turn as it is appended to the history."""
    stop: Stop = "end"
    """Why it stopped, as the provider's `stop` says it."""
    usage: Mapping[str, Any] = field(default_factory=dict)
    """Counts by name, such as `{"input_tokens": 12}`."""
    reason: str | None = None
    """Why there is no answer, or not all of it, in the API's own words, where it says more than `stop`."""


class ModelError(FerruleError):
    """The API reported an error in the middle of a turn; the message quotes it."""


class Model(Protocol):
    """Asks a model once."""

    async def __call__(self, messages: Sequence[Message], toolset: Toolset, /) -> Reply: ...

    def results(self, results: Iterable[ToolResult], /) -> list[Message]:
        """The messages that answer the calls of a turn."""
        ...


__all__ = ["Message", "Model", "ModelError", "Reply"]
