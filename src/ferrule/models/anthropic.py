"""Anthropic's models, over the package `anthropic`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable
from typing import TYPE_CHECKING, Any

from ferrule.models._streamed import Messages, OnText, Streamed, counts, import_sdk, missing_credentials, with_tools
from ferrule.providers import Strict
from ferrule.providers import anthropic as provider

if TYPE_CHECKING:
    from ferrule.definition.toolset import Toolset

MAX_TOKENS = 16_000
_USAGE_NAMES = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


def anthropic(
    name: str,
    *,
    client: Any = None,
    base_url: str | None = None,
    strict: Strict = False,
    cache: bool = False,
    deferred: Collection[str] = (),
    on_text: OnText | None = None,
    **options: Any,
) -> Streamed:
    """A model of Anthropic's.

    Args:
        name: The model.
        client: An `AsyncAnthropic`; without one, a client is made as the environment says (`ANTHROPIC_API_KEY`).
        base_url: Another address for the client that is made.
        strict: As in `providers.anthropic.tools`.
        cache: As there.
        deferred: As there; the tool search that finds them is one of the `tools` in `options`.
        on_text: Called with each chunk of text as it comes.
        **options: More of the request, such as `system`, or `tools` of the API's own, which stand behind those of the
            toolset; `max_tokens` is 16,000 where it is left out.

    Raises:
        DefinitionError: where the SDK or a key is missing.
    """
    own = client is None
    if own:
        client = _client(name, base_url)

    async def ask(messages: Messages, toolset: Toolset) -> AsyncGenerator[Any, None]:
        request = {"model": name, "max_tokens": MAX_TOKENS, "messages": list(messages), **options}
        request = with_tools(request, provider.tools(toolset, strict=strict, cache=cache, deferred=deferred))
        if "tools" not in request and (used := sorted(_tools_in_history(messages))):
            request |= {"tools": [_unavailable_tool(tool) for tool in used], **provider.tool_choice("none")}
        async with await client.messages.create(stream=True, **request) as events:
            async for event in events:
                yield event

    return Streamed(provider, ask, _event_text, _event_usage, on_text=on_text, close=client.close if own else None)


def _client(name: str, base_url: str | None) -> Any:
    client = import_sdk("anthropic", "anthropic").AsyncAnthropic(base_url=base_url)
    # It notices only when it asks.
    if not (client.api_key or client.auth_token or getattr(client, "credentials", None)):
        raise missing_credentials(f"anthropic:{name}", "set ANTHROPIC_API_KEY")
    return client


def _tools_in_history(messages: Messages) -> Iterable[str]:
    """The names of the tools in the history."""
    blocks = [block for message in messages if isinstance(message["content"], list) for block in message["content"]]
    return {block["name"] for block in blocks if block.get("type") == "tool_use"}


def _unavailable_tool(name: str) -> dict[str, Any]:
    """A tool that is offered no more: the API refuses a history with calls where the request declares no tools."""
    return {"name": name, "input_schema": {"type": "object"}}


def _event_text(event: Any) -> str:
    if event.type == "content_block_delta" and event.delta.type == "text_delta":
        return str(event.delta.text)
    return ""


def _event_usage(event: Any) -> dict[str, int]:
    usage = event.message.usage if event.type == "message_start" else getattr(event, "usage", None)
    return counts(usage, dict(zip(_USAGE_NAMES, _USAGE_NAMES, strict=True)))
