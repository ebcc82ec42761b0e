"""Models: callables that take the messages and a toolset and return one reply.

A model is any object of this shape, and `messages` are its provider's own dicts:

    async def model(messages, toolset) -> Reply: ...
    model.results(results) -> the messages that answer the calls

There is one model class for each official SDK, imported on first use, with an extra of the same name in small letters:
`Anthropic`, `OpenAI` (also for compatible servers), `Gemini`, `Bedrock`, `Mistral`, `Cohere` and `Ollama`. They stream,
unless you pass `stream=False`; the SDK retries. `Scripted` answers from a script. Three kinds of SDK errors have one
class for all SDKs: "too many requests" is `RateLimited`, "overloaded" is `Overloaded` and "too long" is
`ContextTooLong`.

    from ferrule import models

    async with models.Anthropic("claude-sonnet-5-5") as model:
        result = await run(model, model.user("What is in notes.txt?"), runner)

`model_from_name("anthropic:claude-sonnet-5-5")` makes the same model from a text, such as a setting.

The smallest model of your own, over an official SDK:

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

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ferrule.errors import DefinitionError, FerruleError
from ferrule.providers import Stop
from ferrule.security.similar_names import NameIndex
from ferrule.values.call import ToolCall
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.definition.toolset import Toolset
    from ferrule.models._anthropic import Anthropic
    from ferrule.models._bedrock import Bedrock
    from ferrule.models._cohere import Cohere
    from ferrule.models._gemini import Gemini
    from ferrule.models._mistral import Mistral
    from ferrule.models._ollama import Ollama
    from ferrule.models._openai import OpenAI
    from ferrule.models._over_sdk import SdkModel
    from ferrule.models._scripted import Scripted

NAMES = ("Anthropic", "Bedrock", "Cohere", "Gemini", "Mistral", "Ollama", "OpenAI", "Scripted")
"""The models in this package; see docs/models.md#models-and-the-loop."""

Message: TypeAlias = Any
"""A dict in the form of the model's own API, as in docs/models.md#models-and-the-loop. Its type is `Any`, because the
SDKs have no type in common."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's answer: one turn. A model of your own returns it, as in docs/models.md#models-and-the-loop."""

    text: str
    """Its text; may be empty."""
    calls: Sequence[ToolCall] = ()
    """The calls, in order."""
    messages: Sequence[Message] = ()
    """The turn as it is appended to the history."""
    stop: Stop = "end"
    """The reason for the stop, as from the provider's `stop`."""
    usage: Mapping[str, Any] = field(default_factory=dict)
    """Counts by name, such as `{"input_tokens": 12}`."""
    reason: str | None = None
    """The reason why the answer is missing or incomplete, in the API's own words if it has some; never `None` if `stop`
    is neither `"end"` nor `"calls"`."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """Data for the next request besides the messages, by name, as from the provider's `state`. The model gets it as the
    keyword `state` when it is asked again."""
    raw: Any = None
    """The whole response as plain data, to read the rest of it: grounding, citations, reasoning."""

    @property
    def is_empty(self) -> bool:
        """Whether the reply is empty: no text, no call, and no image, sound or file in its messages."""
        return not (self.calls or self.text.strip() or any(map(_holds_media, self.messages)))


Call: TypeAlias = ToolCall | tuple[str, str | Mapping[str, Any] | None]
Answer: TypeAlias = str | Sequence[Call] | tuple[str, Sequence[Call]] | Reply
Step: TypeAlias = Answer | Callable[[Sequence[Message]], Answer]
"""A turn of `Scripted`: a text, a list of calls, both, a `Reply`, or a function from the messages to one of these. See
docs/testing.md."""

# The types or keys of media in a turn, in Responses, Chat (`images`: OpenRouter), generateContent, Interactions,
# Converse and Mistral.
_MEDIA = (
    *("image_generation_call", "image", "images", "image_url", "audio", "input_audio", "video", "document"),
    *("document_url", "file", "inlineData", "inline_data", "fileData", "file_data"),
)


def _holds_media(message: Any) -> bool:
    """Return whether a message, or one of its parts, is an image, a sound or a file."""
    if not isinstance(message, Mapping):
        return False
    if message.get("type") in _MEDIA or any(message.get(key) for key in _MEDIA):
        return True
    parts = message.get("content") or message.get("parts")
    return isinstance(parts, list) and any(map(_holds_media, parts))


class ModelError(FerruleError):
    """The API reported an error. Its `__cause__` is the SDK's error, if that raised one. See docs/models.md#errors.

    Attributes:
        retry_after: Seconds to wait before the next try, if the API gives them.
    """

    def __init__(self, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class RateLimited(ModelError):
    """Too many requests: wait, and ask again, as in docs/models.md#errors."""


class Overloaded(ModelError):
    """The API or the model is overloaded: wait, and ask again, as in docs/models.md#errors."""


class ContextTooLong(ModelError):
    """The messages are longer than the model's context: the same request never succeeds. See docs/models.md#errors."""


class Model(Protocol):
    """Asks a model once; docs/models.md#models-and-the-loop shows the ready ones.

    If a reply has a `state`, the next call passes it as the keyword `state`. The loop also supports these optional
    parts of a model:

    - A parameter `on_text` of the call: a function, to be called with each chunk of text as it comes.
    - A parameter `deferred` of the call: the wire names of the tools found by search, when the loop offers a part of
    the tools. These tools come last in the toolset.
    - A method `find_referred_tools(messages)`: the wire names of the tools to which the messages refer. They are
    offered from the start.
    - A method `user(text)`: the messages in which a user says a text. The loop then reports a malformed turn without
    calls.
    - A method `without_forced_choice()`: the same model without a choice that forces a call. The loop asks it from the
    second turn on.
    - A text `api`: the name of the form of its messages. The loop then refuses a suspended run of another API.
    """

    async def __call__(self, messages: Sequence[Message], toolset: Toolset, /) -> Reply: ...

    def results(self, results: Iterable[ToolResult], /) -> list[Message]:
        """Return the messages that answer the calls of a turn."""
        ...


__all__ = [
    "NAMES",
    "Anthropic",
    "Bedrock",
    "Cohere",
    "ContextTooLong",
    "Gemini",
    "Message",
    "Mistral",
    "Model",
    "ModelError",
    "Ollama",
    "OpenAI",
    "Overloaded",
    "RateLimited",
    "Reply",
    "Scripted",
    "Step",
    "model_from_name",
]


def model_from_name(name: str, **options: Any) -> SdkModel:
    """Return the model for `PROVIDER:NAME`, such as `Anthropic("claude-sonnet-5-5")` for
    `model_from_name("anthropic:claude-sonnet-5-5")`.

    Use it if the model of your program is set from outside. `options` are those of the class, as in
    docs/models.md#models-and-the-loop.

    Raises:
        DefinitionError: The provider has no model over an SDK, or the class raised it.
    """
    provider, _, model = str(name).partition(":")
    classes = {one.lower(): one for one in NAMES if one != "Scripted"}
    if provider not in classes or not model:
        near = NameIndex(classes).find_nearest(provider, 1)
        hint = f" Did you mean '{near[0]}:{model or 'NAME'}'?" if near else ""
        raise DefinitionError(f"{name!r} is not PROVIDER:NAME.{hint} The providers are {', '.join(classes)}")
    made: SdkModel = getattr(import_module(f"ferrule.models._{provider}"), classes[provider])(model, **options)
    return made


def __getattr__(name: str) -> object:
    if name in NAMES:
        return getattr(import_module(f"ferrule.models._{name.lower()}"), name)
    raise AttributeError(f"ferrule.models has no {name!r}; the models in it are {', '.join(NAMES)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *NAMES})
