"""Anthropic's models, over the package `anthropic`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable
from typing import TYPE_CHECKING, Any

from ferrule.models._streamed import Messages, OnText, Streamed, counts, offered, sdk, user_message, without_key
from ferrule.providers import anthropic as provider
from ferrule.providers._read import Names

if TYPE_CHECKING:
    from ferrule.definition.toolset import Toolset

MAX_TOKENS = 16_000
_COUNTS = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


def anthropic(
    name: str,
    *,
    client: Any = None,
    base_url: str | None = None,
    strict: Names = False,
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
        on_text: Called with each piece of text as it comes.
        **options: More of the request, such as `system`, or `tools` of the API's own, which stand behind those of the
            toolset; `max_tokens` is 16,000 where it is not said.

    Raises:
        DefinitionError: where the SDK or a key is missing.
    """
    made: Any = None if client is not None else _client(name, base_url)

    async def ask(messages: Messages, toolset: Toolset) -> AsyncGenerator[Any, None]:
        request = {"model": name, "max_tokens": MAX_TOKENS, "messages": list(messages), **options}
        request = offered(request, provider.tools(toolset, strict=strict, cache=cache, deferred=deferred))
        if "tools" not in request and (used := sorted(_used(messages))):
            request |= {"tools": [_forbidden(tool) for tool in used], **provider.tool_choice("none")}
        async with await (client or made).messages.create(stream=True, **request) as events:
            async for event in events:
                yield event

    close = made.close if made is not None else None
    return Streamed(provider, ask, said=_said, counted=_counted, user=user_message, on_text=on_text, close=close)


def _client(name: str, base_url: str | None) -> Any:
    client = sdk("anthropic", "anthropic").AsyncAnthropic(base_url=base_url)
    # It notices only when it asks.
    if not (client.api_key or client.auth_token or getattr(client, "credentials", None)):
        raise without_key(f"anthropic:{name}", "set ANTHROPIC_API_KEY")
    return client


def _used(messages: Messages) -> Iterable[str]:
    """The names of the tools in the history."""
    blocks = [block for message in messages if isinstance(message["content"], list) for block in message["content"]]
    return {block["name"] for block in blocks if block.get("type") == "tool_use"}


def _forbidden(name: str) -> dict[str, Any]:
    """A tool that is offered no more: the API refuses a history with calls where the request declares no tools."""
    return {"name": name, "input_schema": {"type": "object"}}


def _said(event: Any) -> str:
    if event.type == "content_block_delta" and event.delta.type == "text_delta":
        return str(event.delta.text)
    return ""


def _counted(event: Any) -> dict[str, int]:
    usage = event.message.usage if event.type == "message_start" else getattr(event, "usage", None)
    return counts(usage, dict(zip(_COUNTS, _COUNTS, strict=True)))
