"""Cohere's models, over the package `cohere`."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any, Literal

from ferrule.definition.toolset import Toolset
from ferrule.models import _over_sdk as sdk
from ferrule.providers import cohere as provider

_USAGE_NAMES = {"input_tokens": "input_tokens", "output_tokens": "output_tokens"}


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
        used = _client(name, base_url) if client is None else client

        # Its constructor wraps the methods of the client, so only the class shows their parameters.
        known = sdk.list_parameters(getattr(type(used), "chat_stream", used.chat_stream))
        sdk.check_options(f"cohere:{name}", known, options)

        def request(messages: sdk.Messages, toolset: Toolset, state: sdk.State, later: sdk.Found) -> sdk.Request:
            found = {"model": name, "messages": list(messages), **options}
            found = sdk.with_tools(
                found,
                provider.tools(toolset, **sdk.select_tool_options(toolset, later, strict=strict, deferred=deferred)),
            )
            is_strict = "tools" in found and provider.strict_tools(toolset, strict)
            return {**found, "strict_tools": True} if is_strict else found

        super().__init__(
            provider,
            name=name,
            request=request,
            events=lambda request: used.chat_stream(**request),
            response=lambda request: used.chat(**request),
            event_text=_event_text,
            usage=partial(sdk.counts, names=_USAGE_NAMES, at=("usage", "tokens")),
            stream=stream,
            close=partial(used.__aexit__, None, None, None) if client is None else None,  # it has no other way
        )


def _client(name: str, base_url: str | None) -> Any:
    module = sdk.import_sdk("cohere", "cohere")
    key = sdk.key_in_environment(f"cohere:{name}", "CO_API_KEY")
    return module.AsyncClientV2(api_key=key, **({"base_url": base_url} if base_url else {}))


def _event_text(event: Any) -> str:
    if event.type != "content-delta":
        return ""
    content = getattr(getattr(event.delta, "message", None), "content", None)  # each of them may be None
    return getattr(content, "text", None) or ""
