"""Mistral's models, over the package `mistralai`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from ferrule.models import _over_sdk as sdk
from ferrule.providers import Strict, mistral

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

    provider = mistral
    usage_names: ClassVar = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}

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
        used = _make_client(name, base_url) if client is None else client
        sdk.check_options(f"mistral:{name}", sdk.list_parameters(used.chat.stream_async), options)
        super().__init__(name, used, options, is_own=client is None, stream=stream, strict=strict, deferred=deferred)

    def stream_events(self, request: sdk.Request) -> Any:
        return self.client.chat.stream_async(**request)

    def send(self, request: sdk.Request) -> Any:
        return self.client.chat.complete_async(**request)

    def read_event_text(self, event: Any) -> str:
        chunk = event.data
        content = chunk.choices[0].delta.content if chunk.choices else None
        if isinstance(content, str):
            return content
        parts = content if isinstance(content, list) else ()
        return "".join(part.text for part in parts if getattr(part, "type", "") == "text")

    async def close_client(self) -> None:
        await self.client.__aexit__(None, None, None)  # it has no other way
        self.client.__exit__(None, None, None)


def _make_client(name: str, base_url: str | None) -> Any:
    module = sdk.import_sdk("mistralai.client", "mistral")
    retries = sdk.import_sdk("mistralai.client.utils", "mistral")
    key = sdk.key_in_environment(f"mistral:{name}", "MISTRAL_API_KEY")
    backoff = retries.BackoffStrategy(_FIRST_RETRY, _LAST_RETRY, 2, _GIVE_UP)
    # Without retry_config, this SDK never retries.
    config = retries.RetryConfig("backoff", backoff, retry_connection_errors=True)
    return module.Mistral(api_key=key, server_url=base_url, retry_config=config)
