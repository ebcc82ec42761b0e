"""Cohere's models, over the package `cohere`."""

from __future__ import annotations

import os
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from ferrule.models._over_sdk import (
    Messages,
    OnText,
    Request,
    SdkModel,
    State,
    check_options,
    counts,
    import_sdk,
    missing_credentials,
    parameters_of,
    with_tools,
)
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
    stream: bool = True,
    on_text: OnText | None = None,
    **options: Any,
) -> SdkModel:
    """A model of Cohere's.

    Its SDK retries no streamed request.

    Args:
        name: The model.
        client: An `AsyncClientV2`; without one, a client is made with `CO_API_KEY`.
        base_url: Another address for the client that is made.
        strict: Whether all tools are strict, as in `providers.cohere.tools`.
        deferred: As there.
        stream: Whether the answer comes event by event; `False` for what cannot stream calls.
        on_text: Called with each chunk of text as it comes.
        **options: More of the request, such as `temperature`; `tools` stand behind those of the toolset.

    Raises:
        DefinitionError: where the SDK or a key is missing, or for an option that the API does not have.
    """
    own = client is None
    if own:
        client = _client(name, base_url)

    # Its constructor wraps the methods of the client, and what they take is seen at the class alone.
    known = parameters_of(getattr(type(client), "chat_stream", client.chat_stream))
    check_options(f"cohere:{name}", known, options)

    def request(messages: Messages, toolset: Toolset, state: State) -> Request:
        found = {"model": name, "messages": list(messages), **options}
        found = with_tools(found, provider.tools(toolset, strict=strict, deferred=deferred))
        return {**found, "strict_tools": True} if strict and "tools" in found else found

    async def close() -> None:
        await client.__aexit__(None, None, None)  # it has no other way

    return SdkModel(
        provider,
        request=request,
        events=lambda request: client.chat_stream(**request),
        response=lambda request: client.chat(**request),
        event_text=_event_text,
        usage=partial(counts, names=_USAGE_NAMES, at=("usage", "tokens")),
        stream=stream,
        on_text=on_text,
        close=close if own else None,
    )


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
