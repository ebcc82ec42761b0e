"""Models that Ollama runs, over the package `ollama`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from ferrule.models._streamed import Messages, OnText, Streamed, counts, import_sdk, with_tools
from ferrule.providers import ollama as provider

if TYPE_CHECKING:
    from ferrule.definition.toolset import Toolset

_USAGE_NAMES = {"prompt_eval_count": "input_tokens", "eval_count": "output_tokens"}


def ollama(
    name: str,
    *,
    client: Any = None,
    base_url: str | None = None,
    deferred: Collection[str] = (),
    on_text: OnText | None = None,
    **options: Any,
) -> Streamed:
    """A model that Ollama runs.

    Its SDK retries nothing.

    Args:
        name: The model.
        client: An `ollama.AsyncClient`; without one, a client is made as the environment says (`OLLAMA_HOST`).
        base_url: Another address for the client that is made.
        deferred: As in `providers.ollama.tools`.
        on_text: Called with each chunk of text as it comes.
        **options: More of the request, such as `think` or `options`; `tools` stand behind those of the toolset.

    Raises:
        DefinitionError: where the SDK is missing.
    """
    own = client is None
    if own:
        client = import_sdk("ollama", "ollama").AsyncClient(host=base_url)

    async def ask(messages: Messages, toolset: Toolset) -> AsyncGenerator[Any, None]:
        request = {"model": name, "messages": list(messages), "stream": True, **options}
        request = with_tools(request, provider.tools(toolset, deferred=deferred))
        async with aclosing(await _stream_chat(client, request)) as chunks:
            async for chunk in chunks:
                yield chunk

    return Streamed(provider, ask, _event_text, _event_usage, on_text=on_text, close=client.close if own else None)


async def _stream_chat(client: Any, request: dict[str, Any]) -> Any:
    # What `chat` does with the request as it is: `chat` itself drops nested properties, anyOf, $ref and
    # additionalProperties from a tool's schema (its type Tool.Function.Parameters has no place for them).
    answer = import_sdk("ollama", "ollama").ChatResponse
    return await client._request(answer, "POST", "/api/chat", json=request, stream=True)


def _event_text(chunk: Any) -> str:
    return chunk.message.content or ""


def _event_usage(chunk: Any) -> dict[str, int]:
    return counts(chunk, _USAGE_NAMES)
