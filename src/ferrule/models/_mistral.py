"""Mistral's models, over the package `mistralai`."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from ferrule.definition.toolset import Toolset
from ferrule.models import _over_sdk as sdk
from ferrule.providers import Strict
from ferrule.providers import mistral as provider

_USAGE_NAMES = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}
_FIRST_RETRY, _LAST_RETRY, _GIVE_UP = 500, 8_000, 30_000  # milliseconds


class Mistral(sdk.SdkModel):
    """A model of Mistral's; see docs/providers/mistral.md.

    Args:
        name: The model.
        client: A `mistralai.client.Mistral`; by default, a client is made with `MISTRAL_API_KEY`. It retries for half a
            minute.
        base_url: Another address for the default client.
        strict: As in `providers.mistral.tools`.
        deferred: As in `providers.mistral.tools`.
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
        strict: Strict = False,
        deferred: Collection[str] = (),
        stream: bool = True,
        **options: Any,
    ) -> None:
        used = _client(name, base_url) if client is None else client

        sdk.check_options(f"mistral:{name}", sdk.list_parameters(used.chat.stream_async), options)

        def request(messages: sdk.Messages, toolset: Toolset, state: sdk.State, later: sdk.Found) -> sdk.Request:
            found = {"model": name, "messages": list(messages), **options}
            return sdk.with_tools(
                found,
                provider.tools(toolset, **sdk.select_tool_options(toolset, later, strict=strict, deferred=deferred)),
            )

        async def close() -> None:
            await used.__aexit__(None, None, None)  # it has no other way
            used.__exit__(None, None, None)

        super().__init__(
            provider,
            name=name,
            request=request,
            events=lambda request: used.chat.stream_async(**request),
            response=lambda request: used.chat.complete_async(**request),
            event_text=_event_text,
            usage=partial(sdk.counts, names=_USAGE_NAMES),
            stream=stream,
            close=close if client is None else None,
        )


def _client(name: str, base_url: str | None) -> Any:
    module = sdk.import_sdk("mistralai.client", "mistral")
    retries = sdk.import_sdk("mistralai.client.utils", "mistral")
    key = sdk.key_in_environment(f"mistral:{name}", "MISTRAL_API_KEY")
    backoff = retries.BackoffStrategy(_FIRST_RETRY, _LAST_RETRY, 2, _GIVE_UP)
    # Without retry_config, this SDK never retries.
    config = retries.RetryConfig("backoff", backoff, retry_connection_errors=True)
    return module.Mistral(api_key=key, server_url=base_url, retry_config=config)


def _event_text(event: Any) -> str:
    chunk = event.data
    content = chunk.choices[0].delta.content if chunk.choices else None
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    return "".join(part.text for part in parts if getattr(part, "type", "") == "text")
