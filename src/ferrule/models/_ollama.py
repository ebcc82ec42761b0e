"""Models that Ollama runs, over the package `ollama`."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from ferrule.definition.toolset import Toolset
from ferrule.models import _over_sdk as sdk
from ferrule.providers import ollama as provider

_USAGE_NAMES = {"prompt_eval_count": "input_tokens", "eval_count": "output_tokens"}


class Ollama(sdk.SdkModel):
    """A model that Ollama runs; see docs/providers/ollama.md.

    Its SDK does not retry.

    Args:
        name: The model.
        client: An `ollama.AsyncClient`; by default, a client is made from the environment (`OLLAMA_HOST`).
        base_url: Another address for the default client.
        deferred: As in `providers.ollama.tools`.
        stream: Whether the answer comes event by event; `False` for a model that cannot stream calls.
        text_calls: Whether to run calls that the model wrote into its text, for a model whose template does not read
            them. Otherwise such a turn is `"malformed"`. See docs/models.md#calls-in-the-text.
        **options: More of the request, such as `think` or `options`; `tools` come after the toolset's.

    Raises:
        DefinitionError: The SDK is missing, or it does not have an option.
    """

    def __init__(
        self,
        name: str,
        *,
        client: Any = None,
        base_url: str | None = None,
        deferred: Collection[str] = (),
        stream: bool = True,
        text_calls: bool = False,
        **options: Any,
    ) -> None:
        used = sdk.import_sdk("ollama", "ollama").AsyncClient(host=base_url) if client is None else client

        sdk.check_options(f"ollama:{name}", sdk.list_parameters(getattr(used, "chat", None)), options)

        def request(messages: sdk.Messages, toolset: Toolset, state: sdk.State, later: sdk.Found) -> sdk.Request:
            found = {"model": name, "messages": list(messages), **options}
            return sdk.with_tools(
                found, provider.tools(toolset, **sdk.select_tool_options(toolset, later, deferred=deferred))
            )

        super().__init__(
            provider,
            name=name,
            request=request,
            events=lambda request: _send(used, request, stream=True),
            response=lambda request: _send(used, request, stream=False),
            event_text=_event_text,
            usage=partial(sdk.counts, names=_USAGE_NAMES, at=()),
            stream=stream,
            rewrite=provider.with_text_calls if text_calls else None,
            close=used.close if client is None else None,
        )


async def _send(client: Any, request: sdk.Request, *, stream: bool) -> Any:
    # The same as `chat`, but with the request unchanged: `chat` itself drops nested properties, anyOf, $ref and
    # additionalProperties from a tool's schema (its type Tool.Function.Parameters has no place for them).
    answer = sdk.import_sdk("ollama", "ollama").ChatResponse
    return await client._request(answer, "POST", "/api/chat", json={**request, "stream": stream}, stream=stream)


def _event_text(chunk: Any) -> str:
    return chunk.message.content or ""
