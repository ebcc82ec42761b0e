"""Models: callables that take the messages and a toolset and give one reply.

A model is anything of this shape, and `messages` are its provider's own dicts:

    async def model(messages, toolset) -> Reply: ...
    model.results(results) -> the messages that answer the calls

There is one over each official SDK, imported when it is used, with an extra of the same name in small letters:
`Anthropic`, `OpenAI` (also for whatever is compatible with it), `Gemini`, `Bedrock`, `Mistral`, `Cohere` and `Ollama`.
They stream, or not with `stream=False`; retries are the SDK's. `Scripted` says what it was told to say. Of what an SDK
raises, "too many requests" is `RateLimited`, "overloaded" `Overloaded` and "too long" `ContextTooLong`, whichever SDK
it is:

    from ferrule import models

    async with models.Anthropic("claude-sonnet-5-5") as model:
        result = await run(model, model.user("What is in notes.txt?"), runner)

`named("anthropic:claude-sonnet-5-5")` makes the same of a text, such as a setting.

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
"""The models in this package; docs/models.md#models-and-the-loop says more of each."""

Message: TypeAlias = Any
"""A dict in the form of the model's own API, as in docs/models.md#models-and-the-loop. To type checkers it is whatever
that API's SDK calls it, and the SDKs have no type in common."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's answer: one turn. A model of your own gives it, as in docs/models.md#models-and-the-loop."""

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
    """Why there is no answer, or not all of it, in the API's own words where it has some; never `None` where `stop` is
    neither `"end"` nor `"calls"`."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """What the next request needs besides the messages, by name, as the provider's `state` says it: the model gets it
    as the keyword `state` when it is asked again."""
    raw: Any = None
    """The whole response as plain data, to read what else is in it: grounding, citations, reasoning."""

    @property
    def is_empty(self) -> bool:
        """Whether it holds nothing: no text, no call, and no image, sound or file in its messages."""
        return not (self.calls or self.text.strip() or any(map(_holds_media, self.messages)))


Call: TypeAlias = ToolCall | tuple[str, str | Mapping[str, Any] | None]
Answer: TypeAlias = str | Sequence[Call] | tuple[str, Sequence[Call]] | Reply
Step: TypeAlias = Answer | Callable[[Sequence[Message]], Answer]
"""A turn of `Scripted`: a text, a list of calls, both, a `Reply`, or a function of the messages that gives one of them.
See docs/testing.md."""

# What a medium in a turn is the type of, or stands under, in Responses, Chat (`images`: OpenRouter), generateContent,
# Interactions, Converse and Mistral.
_MEDIA = (
    *("image_generation_call", "image", "images", "image_url", "audio", "input_audio", "video", "document"),
    *("document_url", "file", "inlineData", "inline_data", "fileData", "file_data"),
)


def _holds_media(message: Any) -> bool:
    """Whether a message, or one of its parts, is an image, a sound or a file."""
    if not isinstance(message, Mapping):
        return False
    if message.get("type") in _MEDIA or any(message.get(key) for key in _MEDIA):
        return True
    parts = message.get("content") or message.get("parts")
    return isinstance(parts, list) and any(map(_holds_media, parts))


class ModelError(FerruleError):
    """The API reported an error. Of what its SDK raised, that is the `__cause__`. See docs/models.md#errors.

    Attributes:
        retry_after: Seconds after which it may go well, where the API says so.
    """

    def __init__(self, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class RateLimited(ModelError):
    """Too many requests: wait, and ask again, as in docs/models.md#errors."""


class Overloaded(ModelError):
    """The API or the model has too much to do: wait, and ask again, as in docs/models.md#errors."""


class ContextTooLong(ModelError):
    """The messages are more than the model takes: the same request never goes well. See docs/models.md#errors."""


class Model(Protocol):
    """Asks a model once; docs/models.md#models-and-the-loop has one of your own.

    Where a reply has a `state`, the next call brings it as the keyword `state`. One whose call has a parameter
    `on_text` is given a function, which it calls with each chunk of text as it comes. Where the loop offers a part of
    the tools, one whose call has a parameter `deferred` is given the wire names of those that were found, which stand
    last in the toolset; and of one that has `referred(messages)`, the tools whose wire names it gives are offered from
    the start, because the messages refer to them. One that has `user(text)`, the messages in which a user says a text,
    is told of a malformed turn without calls. If a model has `unforced()`, the loop asks what that returns from the
    second turn on: the same model without a choice that forces a call. One that has a text `api`, the name of the form
    of its messages, is not given the suspended run of another.
    """

    async def __call__(self, messages: Sequence[Message], toolset: Toolset, /) -> Reply: ...

    def results(self, results: Iterable[ToolResult], /) -> list[Message]:
        """The messages that answer the calls of a turn."""
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
    "named",
]


def named(name: str, **options: Any) -> SdkModel:
    """The model that `PROVIDER:NAME` means: `named("anthropic:claude-sonnet-5-5")` is `Anthropic("claude-sonnet-5-5")`.

    For a program whose model is set from outside. `options` are those of the class, as in
    docs/models.md#models-and-the-loop.

    Raises:
        DefinitionError: for another provider than those over an SDK, and as the class does.
    """
    provider, _, model = str(name).partition(":")
    classes = {one.lower(): one for one in NAMES if one != "Scripted"}
    if provider not in classes or not model:
        near = NameIndex(classes).find_nearest(provider, 1)
        hint = f"did you mean '{near[0]}:{model or 'NAME'}'? " if near else ""
        raise DefinitionError(f"{name!r} is not PROVIDER:NAME; {hint}The providers are {', '.join(classes)}")
    made: SdkModel = getattr(import_module(f"ferrule.models._{provider}"), classes[provider])(model, **options)
    return made


def __getattr__(name: str) -> object:
    if name in NAMES:
        return getattr(import_module(f"ferrule.models._{name.lower()}"), name)
    raise AttributeError(f"ferrule.models has no {name!r}; the models in it are {', '.join(NAMES)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *NAMES})
