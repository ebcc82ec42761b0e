"""Anthropic's models, over the package `anthropic`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, ClassVar

from ferrule.definition.toolset import Toolset
from ferrule.models import _over_sdk as sdk
from ferrule.providers import Strict, anthropic

MAX_TOKENS = 16_000
# The parameters that `client.beta.messages.create` has and `client.messages.create` has not (anthropic 2.12).
_BETA_OPTIONS = frozenset(
    [
        "betas",
        "billing_policy",
        "compaction",
        "context_management",
        "fallback_credit_token",
        "fallbacks",
        "mcp_servers",
        "thread",
    ]
)


class Anthropic(sdk.SdkModel):
    """A model of Anthropic's; see docs/providers/anthropic.md.

    Args:
        name: The model.
        client: An `AsyncAnthropic`; by default, a client is made from the environment (`ANTHROPIC_API_KEY`).
        base_url: Another address for the default client.
        strict: As in `providers.anthropic.tools`.
        cache: As in `providers.anthropic.tools`.
        deferred: As in `providers.anthropic.tools`. The tool search that finds them is one of the `tools` in `options`.
        stream: Whether the answer comes event by event; `False` for a server that cannot stream calls.
        **options: More of the request, such as `system`, or `tools` of the API's own; these come after the toolset's.
            `max_tokens` is 16,000 by default. An option of the API's beta surface, such as `betas`, `mcp_servers` or
            `context_management`, sends the request there.

    Raises:
        DefinitionError: The SDK or a key is missing, or the API does not have an option.
    """

    provider = anthropic
    usage_names: ClassVar = {
        name: name
        for name in ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    }
    lasting = ("container",)

    def __init__(
        self,
        name: str,
        *,
        client: Any = None,
        base_url: str | None = None,
        strict: Strict = False,
        cache: bool = False,
        deferred: Collection[str] = (),
        stream: bool = True,
        **options: Any,
    ) -> None:
        used = _make_client(name, base_url) if client is None else client
        self._create = (used if _BETA_OPTIONS.isdisjoint(options) else used.beta).messages.create
        sdk.check_options(f"anthropic:{name}", sdk.list_parameters(self._create), options)
        super().__init__(
            name, used, options, is_own=client is None, stream=stream, strict=strict, cache=cache, deferred=deferred
        )

    def request(self, messages: sdk.Messages, toolset: Toolset, state: sdk.State, found: sdk.Found) -> sdk.Request:
        request: sdk.Request = {"model": self.name, "max_tokens": MAX_TOKENS, "messages": list(messages)}
        request |= self.options | _merge_state(self.options, state)
        referred = anthropic.find_referred_tools(messages)
        # The API shows a deferred definition only if the messages refer to it, and it requires at least one definition
        # that is not deferred.
        shown = None if found is None else [name for name in found if name in referred]
        if shown and len(shown) == len(toolset):
            shown = []
        request = sdk.with_tools(request, self.define_tools(toolset, shown))
        if "tools" not in request and (names := sorted(_list_tools_in_history(messages))):
            request |= {"tools": [_make_unavailable_tool(name) for name in names], **anthropic.tool_choice("none")}
        return _add_referred_tools(request, referred)

    def stream_events(self, request: sdk.Request) -> Any:
        return self._create(stream=True, **request)

    def send(self, request: sdk.Request) -> Any:
        return self._create(**request)

    def read_event_text(self, event: Any) -> str:
        if event.type == "content_block_delta" and event.delta.type == "text_delta":
            return str(event.delta.text)
        return ""


def _merge_state(options: sdk.Request, state: sdk.State) -> sdk.Request:
    """Return the state of the turn before. A container keeps the caller's skills."""
    given = options.get("container")
    return {"container": {**given, "id": state["container"]}} if isinstance(given, dict) and state else dict(state)


def _make_client(name: str, base_url: str | None) -> Any:
    client = sdk.import_sdk("anthropic", "anthropic").AsyncAnthropic(base_url=base_url)
    # The client itself notices it only at its first request.
    if not (client.api_key or client.auth_token or getattr(client, "credentials", None)):
        raise sdk.missing_credentials(f"anthropic:{name}", "set ANTHROPIC_API_KEY")
    return client


def _list_tools_in_history(messages: sdk.Messages) -> Iterable[str]:
    """Return the names of the tools in the history."""
    blocks = [block for message in messages if isinstance(message["content"], list) for block in message["content"]]
    return {block["name"] for block in blocks if block.get("type") == "tool_use"}


def _add_referred_tools(request: sdk.Request, names: Iterable[str]) -> sdk.Request:
    """Return the request with a definition for each tool to which its messages refer: the API refuses it without. For
    MCP servers, the API gets the definitions from them."""
    defined = {tool.get("name") for tool in request.get("tools", ())}
    if any(tool.get("type") == "mcp_toolset" for tool in request.get("tools", ())):
        return request
    missing = [{**_make_unavailable_tool(name), "defer_loading": True} for name in names if name not in defined]
    if not missing:
        return request
    # The API refuses examples together with deferred tools.
    others = [{key: tool[key] for key in tool if key != "input_examples"} for tool in request.get("tools", ())]
    return {**request, "tools": [*others, *missing]}


def _make_unavailable_tool(name: str) -> dict[str, Any]:
    """Return a definition for a tool that is not offered any more: the API refuses a history with calls if the request
    declares no tools."""
    return {"name": name, "input_schema": {"type": "object"}}
