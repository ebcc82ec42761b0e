"""OpenAI's models, and models at compatible servers, over the package `openai`."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any, Literal
from urllib.parse import urlsplit

from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError
from ferrule.models import _over_sdk as sdk
from ferrule.providers import Strict, openai_chat, openai_responses
from ferrule.providers._wire import read_content_text

_CHAT_USAGE_NAMES = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}
_USAGE_NAMES = {"input_tokens": "input_tokens", "output_tokens": "output_tokens"}
_REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details")


class OpenAI(sdk.SdkModel):
    """A model of OpenAI's, or one at a compatible address, such as a local Ollama or vLLM; see
    docs/providers/openai-responses.md and docs/providers/openai-chat.md.

    Args:
        name: The model.
        client: An `AsyncOpenAI`; by default, a client is made from the environment (`OPENAI_API_KEY`).
        base_url: Another address for the default client. It needs no key.
        api: `"responses"` or `"chat"`. By default, the Responses API, or Chat Completions if you pass `base_url`,
            because all compatible servers have that. `OPENAI_BASE_URL` in the environment does not change the default:
            it is for an address of OpenAI's own, such as a region's, and those have the Responses API.
        strict: As in the provider's `tools`.
        deferred: As in the provider's `tools`. The Responses API finds them if a tool search is among the `tools` in
            `options`.
        stream: Whether the answer comes event by event; `False` for a server that cannot stream calls.
        text_calls: Whether to run calls that the model wrote into its text, for Chat Completions of a server that does
            not read them. Otherwise such a turn is `"malformed"`. See docs/models.md#calls-in-the-text.
        send_reasoning: Whether the reasoning in a history goes back in Chat Completions: DeepSeek, Kimi and OpenRouter
            want it, Groq, Cerebras and Mistral refuse it.
        **options: More of the request, such as `instructions`, or `tools` of the API's own; these come after the
            toolset's. If nothing may be stored, a reasoning model needs
            `store=False, include=["reasoning.encrypted_content"]`; other models refuse that.

    Raises:
        DefinitionError: The SDK or a key is missing; `api` is not valid; the API does not have an option; or
            `text_calls` or `send_reasoning=False` is passed for the Responses API, which needs neither. When the model
            is asked: a tool's description is too long for the Chat Completions of OpenAI and Azure; other servers take
            it.
    """

    def __init__(
        self,
        name: str,
        *,
        client: Any = None,
        base_url: str | None = None,
        api: Literal["responses", "chat"] | None = None,
        strict: Strict = False,
        deferred: Collection[str] = (),
        stream: bool = True,
        text_calls: bool = False,
        send_reasoning: bool = True,
        **options: Any,
    ) -> None:
        api = api or ("responses" if base_url is None else "chat")
        if api not in ("responses", "chat"):
            raise DefinitionError(f"api is 'responses' or 'chat', not {api!r}")
        if api == "responses" and (text_calls or not send_reasoning):
            raise DefinitionError("text_calls and send_reasoning are for api='chat': the Responses API needs neither")
        used = _client(name, base_url) if client is None else client
        in_chat = api == "chat"
        provider: Any = openai_chat if in_chat else openai_responses
        create = used.chat.completions.create if in_chat else used.responses.create
        sdk.check_options(f"openai:{name}", sdk.list_parameters(create), options)

        def request(messages: sdk.Messages, toolset: Toolset, state: sdk.State, later: sdk.Found) -> sdk.Request:
            sent = list(messages) if send_reasoning or not in_chat else [_without_reasoning(one) for one in messages]
            found = {"model": name, "messages" if in_chat else "input": sent, **options}
            if later and not in_chat and any(map(openai_responses.is_search, toolset)):
                told = openai_responses.referred(sent)  # the API keeps these at their place in the history
                toolset = Toolset(tool for tool in toolset if tool.wire_name not in told or tool.wire_name not in later)
            if in_chat:
                _check_descriptions(toolset, str(getattr(used, "base_url", "")))
            asked = sdk.select_tool_options(
                toolset, later if in_chat or later is None else (), strict=strict, deferred=deferred
            )
            return sdk.with_tools(found, provider.tools(toolset, **asked))

        streamed = {"stream": True, **({"stream_options": {"include_usage": True}} if in_chat else {})}
        super().__init__(
            provider,
            name=name,
            request=request,
            events=lambda request: create(**streamed | request),
            response=lambda request: create(**request),
            event_text=_chat_event_text if in_chat else _event_text,
            usage=partial(sdk.counts, names=_CHAT_USAGE_NAMES if in_chat else _USAGE_NAMES),
            stream=stream,
            rewrite=openai_chat.with_text_calls if text_calls else None,
            close=used.close if client is None else None,
        )


def _check_descriptions(toolset: Toolset, address: str) -> None:
    """Refuse a tool of the request that the API would answer with status 400.

    Raises:
        DefinitionError: A description is too long. The text has the tool and the ways out.
    """
    host = urlsplit(address).hostname or ""
    if not host.endswith((".openai.com", ".azure.com")):
        return
    for tool in toolset:
        if (size := len(tool.description)) > openai_chat.MOST_DESCRIPTION:
            raise DefinitionError(
                f"{tool.name!r} has a description of {size:,} characters, and Chat Completions refuse a request with "
                f"one of more than {openai_chat.MOST_DESCRIPTION:,}: use api='responses', a shorter one "
                "(tool.replace(description=…)), or, of MCP servers, mcp.connect(…, longest_description=1_024)"
            )


def _client(name: str, base_url: str | None) -> Any:
    module = sdk.import_sdk("openai", "openai")
    try:
        return module.AsyncOpenAI(base_url=base_url)
    except module.OpenAIError:
        if base_url is None:
            raise sdk.missing_credentials(
                f"openai:{name}",
                "set OPENAI_API_KEY, or name another address by base_url (on the command line --base-url)",
            ) from None
    return module.AsyncOpenAI(base_url=base_url, api_key="none")  # the SDK wants one, a local server does not


def _without_reasoning(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    return {key: value for key, value in message.items() if key not in _REASONING_FIELDS}


def _event_text(event: Any) -> str:
    return str(event.delta) if event.type in {"response.output_text.delta", "response.refusal.delta"} else ""


def _chat_event_text(event: Any) -> str:
    delta = event.choices[0].delta if event.choices else None
    return read_content_text(delta.content) or getattr(delta, "refusal", None) or "" if delta is not None else ""
