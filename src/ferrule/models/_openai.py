"""OpenAI's models, and models at compatible servers, over the package `openai`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError
from ferrule.models import _over_sdk as sdk
from ferrule.providers import Strict, openai_chat, openai_responses
from ferrule.providers._wire import read_content_text

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

    usage_names: ClassVar = {
        **dict.fromkeys(("input_tokens", "prompt_tokens"), "input_tokens"),
        **dict.fromkeys(("output_tokens", "completion_tokens"), "output_tokens"),
    }

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
        used = _make_client(name, base_url) if client is None else client
        self._in_chat, self._send_reasoning = api == "chat", send_reasoning
        self.provider = openai_chat if self._in_chat else openai_responses
        self._create = used.chat.completions.create if self._in_chat else used.responses.create
        sdk.check_options(f"openai:{name}", sdk.list_parameters(self._create), options)
        super().__init__(name, used, options, is_own=client is None, stream=stream, strict=strict, deferred=deferred)
        self.rewrite = openai_chat.with_text_calls if text_calls else None

    def request(self, messages: sdk.Messages, toolset: Toolset, state: sdk.State, found: sdk.Found) -> sdk.Request:
        if self._in_chat:
            _check_descriptions(toolset, str(getattr(self.client, "base_url", "")))
            if not self._send_reasoning:
                messages = [_without_reasoning(message) for message in messages]
            return super().request(messages, toolset, state, found)
        if found and any(map(openai_responses.is_search, toolset)):
            # The API keeps their definitions at their place in the history.
            defined = openai_responses.find_referred_tools(messages)
            toolset = Toolset(tool for tool in toolset if tool.wire_name not in defined or tool.wire_name not in found)
        definitions = self.define_tools(toolset, None if found is None else ())
        return sdk.with_tools({"model": self.name, "input": list(messages), **self.options}, definitions)

    def stream_events(self, request: sdk.Request) -> Any:
        usage = {"stream_options": {"include_usage": True}} if self._in_chat else {}
        return self._create(**{"stream": True, **usage, **request})

    def send(self, request: sdk.Request) -> Any:
        return self._create(**request)

    def read_event_text(self, event: Any) -> str:
        if not self._in_chat:
            return str(event.delta) if event.type in {"response.output_text.delta", "response.refusal.delta"} else ""
        delta = event.choices[0].delta if event.choices else None
        return read_content_text(delta.content) or getattr(delta, "refusal", None) or "" if delta is not None else ""


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


def _make_client(name: str, base_url: str | None) -> Any:
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
