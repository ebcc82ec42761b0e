"""OpenAI's models, and whatever is compatible with them, over the package `openai`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ferrule.errors import DefinitionError
from ferrule.models._streamed import Messages, OnText, Streamed, counts, import_sdk, missing_credentials, with_tools
from ferrule.providers import Strict, openai_chat, openai_responses

if TYPE_CHECKING:
    from ferrule.definition.toolset import Toolset

_CHAT_USAGE_NAMES = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}
_USAGE_NAMES = {"input_tokens": "input_tokens", "output_tokens": "output_tokens"}
_Options: TypeAlias = dict[str, Any]


def openai(
    name: str,
    *,
    client: Any = None,
    base_url: str | None = None,
    api: Literal["responses", "chat"] | None = None,
    strict: Strict = False,
    deferred: Collection[str] = (),
    on_text: OnText | None = None,
    **options: Any,
) -> Streamed:
    """A model of OpenAI's, or one at a compatible address, such as a local Ollama or vLLM.

    Args:
        name: The model.
        client: An `AsyncOpenAI`; without one, a client is made as the environment says (`OPENAI_API_KEY`).
        base_url: Another address for the client that is made; no key is needed there.
        api: `"responses"` or `"chat"`. Left out: the Responses API, and where `base_url` is, Chat
            Completions, which all that is compatible has. `OPENAI_BASE_URL` in the environment changes nothing about
            it: with an address of OpenAI's own, such as a region's, the Responses API is meant.
        strict: As in the provider's `tools`.
        deferred: As there; the Responses API finds them where a tool search is among the `tools` in `options`.
        on_text: Called with each chunk of text as it comes.
        **options: More of the request, such as `instructions`, or `tools` of the API's own, which stand behind those of
            the toolset. Where nothing may be stored, a reasoning model needs
            `store=False, include=["reasoning.encrypted_content"]`, which others refuse.

    Raises:
        DefinitionError: where the SDK or a key is missing, or for another `api`.
    """
    api = api or ("responses" if base_url is None else "chat")
    if api not in _APIS:
        raise DefinitionError(f"api is 'responses' or 'chat', not {api!r}")
    own = client is None
    if own:
        client = _client(name, base_url)
    close = client.close if own else None
    return _APIS[api](name, client, {"strict": strict, "deferred": deferred}, options, on_text, close)


def _client(name: str, base_url: str | None) -> Any:
    module = import_sdk("openai", "openai")
    try:
        return module.AsyncOpenAI(base_url=base_url)
    except module.OpenAIError:
        if base_url is None:
            raise missing_credentials(
                f"openai:{name}", "set OPENAI_API_KEY, or give an address with its own base_url"
            ) from None
    return module.AsyncOpenAI(base_url=base_url, api_key="none")  # the SDK wants one, a local server does not


def _responses(name: str, client: Any, tool_options: _Options, options: _Options, on_text: Any, close: Any) -> Streamed:
    async def ask(messages: Messages, toolset: Toolset) -> AsyncGenerator[Any, None]:
        request = {"model": name, "input": list(messages), **options}
        request = with_tools(request, openai_responses.tools(toolset, **tool_options))
        async with await client.responses.create(stream=True, **request) as events:
            async for event in events:
                yield event

    return Streamed(openai_responses, ask, _event_text, _event_usage, on_text=on_text, close=close)


def _event_text(event: Any) -> str:
    return str(event.delta) if event.type in {"response.output_text.delta", "response.refusal.delta"} else ""


def _event_usage(event: Any) -> dict[str, int]:
    return counts(getattr(getattr(event, "response", None), "usage", None), _USAGE_NAMES)  # the last events have it


def _chat(name: str, client: Any, tool_options: _Options, options: _Options, on_text: Any, close: Any) -> Streamed:
    async def ask(messages: Messages, toolset: Toolset) -> AsyncGenerator[Any, None]:
        request = {"model": name, "messages": list(messages), "stream_options": {"include_usage": True}, **options}
        request = with_tools(request, openai_chat.tools(toolset, **tool_options))
        async with await client.chat.completions.create(stream=True, **request) as events:
            async for event in events:
                yield event

    return Streamed(openai_chat, ask, _chat_event_text, _chat_event_usage, on_text=on_text, close=close)


def _chat_event_text(event: Any) -> str:
    delta = event.choices[0].delta if event.choices else None
    return (delta.content or getattr(delta, "refusal", None) or "") if delta is not None else ""


def _chat_event_usage(event: Any) -> dict[str, int]:
    return counts(event.usage, _CHAT_USAGE_NAMES)


_APIS = {"responses": _responses, "chat": _chat}
