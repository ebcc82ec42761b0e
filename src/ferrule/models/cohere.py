"""Cohere's models, over the package `cohere`."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from ferrule.models._streamed import Messages, OnText, Streamed, counts, import_sdk, missing_credentials, with_tools
from ferrule.providers import cohere as provider

if TYPE_CHECKING:
    from ferrule.definition.toolset import Toolset

_USAGE_NAMES = {"input_tokens": "input_tokens", "output_tokens": "output_tokens"}


def cohere(
    name: str,
    *,
    client: Any = None,
    base_url: str | None = None,
    strict: bool = False,
    deferred: Collection[str] = (),
    on_text: OnText | None = None,
    **options: Any,
) -> Streamed:
    """A model of Cohere's.

    Its SDK retries no streamed request.

    Args:
        name: The model.
        client: An `AsyncClientV2`; without one, a client is made with `CO_API_KEY`.
        base_url: Another address for the client that is made.
        strict: Whether all tools are strict, as in `providers.cohere.tools`.
        deferred: As there.
        on_text: Called with each chunk of text as it comes.
        **options: More of the request, such as `temperature`; `tools` stand behind those of the toolset.

    Raises:
        DefinitionError: where the SDK or a key is missing.
    """
    own = client is None
    if own:
        client = _client(name, base_url)

    async def ask(messages: Messages, toolset: Toolset) -> AsyncGenerator[Any, None]:
        request = {"model": name, "messages": list(messages), **options}
        request = with_tools(request, provider.tools(toolset, strict=strict, deferred=deferred))
        if strict and "tools" in request:
            request["strict_tools"] = True
        async with aclosing(client.chat_stream(**request)) as events:
            async for event in events:
                yield event

    async def close() -> None:
        await client.__aexit__(None, None, None)  # it has no other way

    return Streamed(provider, ask, _event_text, _event_usage, on_text=on_text, close=close if own else None)


def _client(name: str, base_url: str | None) -> Any:
    module = import_sdk("cohere", "cohere")
    key = os.environ.get("CO_API_KEY")
    if not key:
        raise missing_credentials(f"cohere:{name}", "set CO_API_KEY")
    return module.AsyncClientV2(api_key=key, **({"base_url": base_url} if base_url else {}))


def _event_text(event: Any) -> str:
    if event.type != "content-delta":
        return ""
    content = getattr(getattr(event.delta, "message", None), "content", None)  # each of them may be None
    return getattr(content, "text", None) or ""


def _event_usage(event: Any) -> dict[str, int]:
    usage = event.delta.usage if event.type == "message-end" and event.delta is not None else None
    return counts(getattr(usage, "tokens", None), _USAGE_NAMES)
