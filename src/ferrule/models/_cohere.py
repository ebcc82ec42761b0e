"""Cohere's models, over the package `cohere`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from ferrule.definition.toolset import Toolset
from ferrule.models import _over_sdk as sdk
from ferrule.providers import cohere


class Cohere(sdk.SdkModel):
    """A model of Cohere's; see docs/providers/cohere.md.

    Its SDK does not retry streamed requests.

    Args:
        name: The model.
        client: An `AsyncClientV2`; by default, a client is made with `CO_API_KEY`.
        base_url: Another address for the default client.
        strict: Whether all tools are strict, as in `providers.cohere.tools`.
        deferred: As in `providers.cohere.tools`.
        stream: Whether the answer comes event by event; `False` for a server that cannot stream calls.
        **options: More of the request, such as `temperature`; `tools` come after the toolset's.

    Raises:
        DefinitionError: The SDK or a key is missing, or the API does not have an option.
    """

    provider = cohere
    usage_path = ("usage", "tokens")

    def __init__(
        self,
        name: str,
        *,
        client: Any = None,
        base_url: str | None = None,
        strict: bool | Literal["where possible"] = False,
        deferred: Collection[str] = (),
        stream: bool = True,
        **options: Any,
    ) -> None:
        used = _make_client(name, base_url) if client is None else client
        # Its constructor wraps the methods of the client, so only the class shows their parameters.
        known = sdk.list_parameters(getattr(type(used), "chat_stream", used.chat_stream))
        sdk.check_options(f"cohere:{name}", known, options)
        super().__init__(name, used, options, is_own=client is None, stream=stream, strict=strict, deferred=deferred)
        self._strict: bool | Literal["where possible"] = strict

    def request(self, messages: sdk.Messages, toolset: Toolset, state: sdk.State, found: sdk.Found) -> sdk.Request:
        request = super().request(messages, toolset, state, found)
        is_strict = "tools" in request and cohere.strict_tools(toolset, self._strict)
        return {**request, "strict_tools": True} if is_strict else request

    def stream_events(self, request: sdk.Request) -> Any:
        return self.client.chat_stream(**request)

    def send(self, request: sdk.Request) -> Any:
        return self.client.chat(**request)

    def read_event_text(self, event: Any) -> str:
        if event.type != "content-delta":
            return ""
        content = getattr(getattr(event.delta, "message", None), "content", None)  # each of them may be None
        return getattr(content, "text", None) or ""

    def close_client(self) -> Any:
        return self.client.__aexit__(None, None, None)  # it has no other way


def _make_client(name: str, base_url: str | None) -> Any:
    module = sdk.import_sdk("cohere", "cohere")
    key = sdk.key_in_environment(f"cohere:{name}", "CO_API_KEY")
    return module.AsyncClientV2(api_key=key, **({"base_url": base_url} if base_url else {}))
