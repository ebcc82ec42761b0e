"""Google's Gemini models, over the package `google-genai`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from ferrule.models._streamed import Messages, OnText, Streamed, counts, import_sdk, missing_credentials, with_tools
from ferrule.providers import Strict
from ferrule.providers import gemini as provider

if TYPE_CHECKING:
    from ferrule.definition.toolset import Toolset

_USAGE_NAMES = {
    "prompt_token_count": "input_tokens",
    "candidates_token_count": "output_tokens",
    "thoughts_token_count": "reasoning_tokens",
    "cached_content_token_count": "cached_tokens",
}


def gemini(
    name: str,
    *,
    client: Any = None,
    base_url: str | None = None,
    strict: Strict = False,
    deferred: Collection[str] = (),
    on_text: OnText | None = None,
    **options: Any,
) -> Streamed:
    """A Gemini model, asked through `generateContent`.

    Args:
        name: The model.
        client: A `google.genai.Client`; without one, a client is made as the environment says (`GEMINI_API_KEY` or
            `GOOGLE_API_KEY`, or what the SDK says about Vertex AI), which retries as its SDK does by default.
        base_url: Another address for the client that is made.
        strict: As in `providers.gemini.tools`.
        deferred: As there.
        on_text: Called with each chunk of text as it comes.
        **options: More of the request's `config`, such as `system_instruction`, or `tools` of the API's own, which
            stand behind those of the toolset.

    Raises:
        DefinitionError: where the SDK or a key is missing.
    """
    own = client is None
    if own:
        client = _client(name, base_url)

    async def ask(messages: Messages, toolset: Toolset) -> AsyncGenerator[Any, None]:
        given = {"automatic_function_calling": {"disable": True}, **options}
        config = with_tools(given, provider.tools(toolset, strict=strict, deferred=deferred))
        models = client.aio.models
        asked = models.generate_content_stream(model=name, contents=list(messages), config=config)
        async with aclosing(await asked) as chunks:
            async for chunk in chunks:
                yield chunk

    return Streamed(
        provider, ask, _event_text, _event_usage, user=_user, on_text=on_text, close=client.aio.aclose if own else None
    )


def _client(name: str, base_url: str | None) -> Any:
    genai = import_sdk("google.genai", "gemini")
    # Without retry_options, this SDK never retries.
    options = genai.types.HttpOptions(base_url=base_url, retry_options=genai.types.HttpRetryOptions())
    try:
        return genai.Client(http_options=options)
    except ValueError:
        raise missing_credentials(f"gemini:{name}", "set GEMINI_API_KEY") from None


def _user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "parts": [{"text": text}]}]


def _event_text(chunk: Any) -> str:
    content = chunk.candidates[0].content if chunk.candidates else None
    parts = (content.parts if content is not None else None) or ()
    return "".join(part.text for part in parts if part.text and not part.thought)


def _event_usage(chunk: Any) -> dict[str, int]:
    return counts(chunk.usage_metadata, _USAGE_NAMES)
