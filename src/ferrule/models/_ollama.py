"""Models that Ollama runs, over the package `ollama`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from ferrule.models import _over_sdk as sdk
from ferrule.providers import ollama


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

    provider = ollama
    usage_names: ClassVar = {"prompt_eval_count": "input_tokens", "eval_count": "output_tokens"}
    usage_path = ()

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
        super().__init__(name, used, options, is_own=client is None, stream=stream, deferred=deferred)
        self.rewrite = ollama.with_text_calls if text_calls else None

    def stream_events(self, request: sdk.Request) -> Any:
        return self._post(request, stream=True)

    def send(self, request: sdk.Request) -> Any:
        return self._post(request, stream=False)

    async def _post(self, request: sdk.Request, *, stream: bool) -> Any:
        # The same as `chat`, but with the request unchanged: `chat` itself drops nested properties, anyOf, $ref and
        # additionalProperties from a tool's schema (its type Tool.Function.Parameters has no place for them).
        answer = sdk.import_sdk("ollama", "ollama").ChatResponse
        body = {**request, "stream": stream}
        return await self.client._request(answer, "POST", "/api/chat", json=body, stream=stream)

    def read_event_text(self, event: Any) -> str:
        return event.message.content or ""
