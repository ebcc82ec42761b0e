"""Google's Gemini models, over the package `google-genai`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Literal

from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError
from ferrule.models import _over_sdk as sdk
from ferrule.providers import WHERE_POSSIBLE, gemini
from ferrule.providers._gemini_names import read_either, to_camel_case
from ferrule.providers._wire import get_fields


class Gemini(sdk.SdkModel):
    """A Gemini model, asked through `generateContent`; see docs/providers/gemini.md.

    Args:
        name: The model.
        client: A `google.genai.Client`; by default, a client is made from the environment (`GEMINI_API_KEY` or
            `GOOGLE_API_KEY`, or the SDK's variables for Vertex AI), with the default retries of its SDK.
        base_url: Another address for the default client.
        strict: Whether the API holds the model to the schemas, of all tools or of none: `True` (or `"where possible"`)
            sets the mode `VALIDATED` of calling functions if `tool_config` sets none.
        deferred: As in `providers.gemini.tools`.
        stream: Whether the answer comes event by event; `False` for a server that cannot stream calls.
        **options: More of the request's `config`, such as `system_instruction`, or `tools` of the API's own; these come
            after the toolset's.

    Raises:
        DefinitionError: The SDK or a key is missing; `config` does not have an option; `strict` names single tools, or
            comes with a mode that is not strict; or `automatic_continuation` is False (only the SDK can join the parts
            of a turn that continues in another request).
    """

    provider = gemini
    usage_names: ClassVar = {
        "prompt_token_count": "input_tokens",
        "candidates_token_count": "output_tokens",
        "thoughts_token_count": "reasoning_tokens",
        "cached_content_token_count": "cached_tokens",
    }

    def __init__(
        self,
        name: str,
        *,
        client: Any = None,
        base_url: str | None = None,
        strict: bool | Literal["where possible"] = False,
        deferred: Collection[str] = (),
        stream: bool = True,
        **options: Any,
    ) -> None:
        used = _make_client(name, base_url) if client is None else client
        _check(name, options)
        self._free_mode = "VALIDATED" if _is_strict(strict) else "AUTO"
        options = _strict_config(options) if strict else options
        super().__init__(name, used, options, is_own=client is None, stream=stream, deferred=deferred)

    def request(self, messages: sdk.Messages, toolset: Toolset, state: sdk.State, found: sdk.Found) -> sdk.Request:
        options = {"automatic_function_calling": {"disable": True}, **self.options}
        definitions = self.define_tools(toolset, found)
        config = sdk.with_tools(options if definitions else _without_choice(options), definitions)
        return {"model": self.name, "contents": list(messages), "config": config}

    def stream_events(self, request: sdk.Request) -> Any:
        return self.client.aio.models.generate_content_stream(**request)

    def send(self, request: sdk.Request) -> Any:
        return self.client.aio.models.generate_content(**request)

    def read_event_text(self, event: Any) -> str:
        content = event.candidates[0].content if event.candidates else None
        parts = (content.parts if content is not None else None) or ()
        return "".join(part.text for part in parts if part.text and not part.thought)

    def read_usage(self, response: Any) -> dict[str, int]:
        usage = read_either(response, "usage_metadata", "usageMetadata")
        counts = {ours: read_either(usage, name, to_camel_case(name)) for name, ours in self.usage_names.items()}
        return {name: count for name, count in counts.items() if count}

    def unforce(self, request: sdk.Request, offers: bool) -> sdk.Request:
        """Return the request with a mode that lets the model answer; VALIDATED beside names of allowed tools."""
        config = request["config"]
        for place in ("tool_config", "toolConfig"):
            fields = dict(get_fields(config.get(place)))
            for inner in ("function_calling_config", "functionCallingConfig"):
                calling = dict(get_fields(fields.get(inner)))
                if _read_mode(calling) == "ANY":
                    names = read_either(calling, "allowed_function_names", "allowedFunctionNames")
                    fields[inner] = {**calling, "mode": "VALIDATED" if names else self._free_mode}
                    config = {**config, place: fields}
        return {**request, "config": config}

    def user(self, text: str, /) -> list[dict[str, Any]]:
        return [{"role": "user", "parts": [{"text": text}]}]

    def close_client(self) -> Any:
        return self.client.aio.aclose()


def _check(name: str, options: Mapping[str, Any]) -> None:
    fields = sdk.import_sdk("google.genai", "gemini").types.GenerateContentConfig.model_fields
    sdk.check_options(f"gemini:{name}", [*fields, *map(to_camel_case, fields)], options)
    if read_either(options, "automatic_continuation", "automaticContinuation") is False:
        raise DefinitionError(
            "automatic_continuation=False is not supported, because only the SDK can join the parts of "
            "a turn: leave it out"
        )


def _is_strict(strict: object) -> bool:
    if not isinstance(strict, bool) and strict != WHERE_POSSIBLE:
        raise DefinitionError(
            f"Gemini holds the model to the schemas of all tools or of none: pass strict=True, not strict={strict!r}"
        )
    return bool(strict)


def _strict_config(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with a mode that holds the model to the schemas.

    Raises:
        DefinitionError: The options have another mode.
    """
    place = "toolConfig" if "toolConfig" in options else "tool_config"
    fields = dict(get_fields(options.get(place)))
    inner = "functionCallingConfig" if "functionCallingConfig" in fields else "function_calling_config"
    calling = dict(get_fields(fields.get(inner)))
    mode = _read_mode(calling)
    if mode in ("AUTO", "MODE_UNSPECIFIED"):
        raise DefinitionError(f"strict=True needs the mode VALIDATED or ANY, and {place} says {mode}: leave that out")
    if not mode:
        calling["mode"] = "VALIDATED"
    return {**options, place: {**fields, inner: calling}}


def _read_mode(calling: Mapping[str, Any]) -> str:
    mode = calling.get("mode")
    return str(getattr(mode, "value", mode) or "").upper()


def _without_choice(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options without those about function calls: the API refuses them if no function is declared."""
    kept = {name: dict(get_fields(config[name])) for name in ("tool_config", "toolConfig") if name in config}
    for fields in kept.values():
        fields.pop("function_calling_config", fields.pop("functionCallingConfig", None))
    return {**config, **kept}


def _make_client(name: str, base_url: str | None) -> Any:
    genai = sdk.import_sdk("google.genai", "gemini")
    # Without retry_options, this SDK never retries.
    options = genai.types.HttpOptions(base_url=base_url, retry_options=genai.types.HttpRetryOptions())
    try:
        return genai.Client(http_options=options)
    except ValueError:
        raise sdk.missing_credentials(f"gemini:{name}", "set GEMINI_API_KEY") from None
