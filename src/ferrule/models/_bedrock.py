"""Models on Amazon Bedrock, asked through Converse, over the package `boto3`."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar

from ferrule.definition.toolset import Toolset
from ferrule.executors import threads as pool
from ferrule.models import _over_sdk as sdk
from ferrule.providers import Strict, bedrock
from ferrule.values.result import ToolResult


class Bedrock(sdk.SdkModel):
    """A model on Bedrock; see docs/providers/bedrock.md.

    Args:
        name: The model's id, or an inference profile's.
        client: boto3's client of `bedrock-runtime`; by default, a client is made from the environment and the AWS
            configuration.
        base_url: Another address for the default client.
        strict: As in `providers.bedrock.tools`.
        cache: As in `providers.bedrock.tools`.
        deferred: As in `providers.bedrock.tools`.
        result_status: Whether a failed result has a `status`. Some models refuse it.
        result_media: The media that a result may hold, as `media` of `providers.bedrock.results`.
        stream: Whether the answer comes event by event; `False` for a model that cannot stream calls.
        **options: More of the request, such as `system` or `inferenceConfig`. The tools in a `toolConfig` come after
            the toolset's.

    Raises:
        DefinitionError: The SDK, credentials or a region are missing, or the API does not have an option.
    """

    provider = bedrock
    usage_names: ClassVar = {
        "inputTokens": "input_tokens",
        "outputTokens": "output_tokens",
        "cacheReadInputTokens": "cache_read_input_tokens",
        "cacheWriteInputTokens": "cache_creation_input_tokens",
    }

    def __init__(
        self,
        name: str,
        *,
        client: Any = None,
        base_url: str | None = None,
        strict: Strict = False,
        cache: bool = False,
        deferred: Collection[str] = (),
        result_status: bool = True,
        result_media: Collection[str] = bedrock.RESULT_MEDIA,
        stream: bool = True,
        **options: Any,
    ) -> None:
        used = _make_client(name, base_url) if client is None else client
        sdk.check_options(f"bedrock:{name}", _request_fields(used), options)
        super().__init__(
            name, used, options, is_own=client is None, stream=stream, strict=strict, cache=cache, deferred=deferred
        )
        self._result_options: dict[str, Any] = {"status": result_status, "media": result_media}

    def request(self, messages: sdk.Messages, toolset: Toolset, state: sdk.State, found: sdk.Found) -> sdk.Request:
        request = {"modelId": self.name, "messages": list(messages), **self.options}
        definitions = self.define_tools(toolset, found) or {"tools": []}
        config = sdk.with_tools(request.pop("toolConfig", {}), definitions["tools"])
        if "tools" not in config:
            config = _make_config_of_history(messages)
        return {**request, "toolConfig": config} if config else request

    async def stream_events(self, request: sdk.Request) -> AsyncGenerator[Any, None]:
        """Yield the events of one request. boto3 blocks, so each step runs in a thread. A cancelled task does not wait
        for it."""
        stream = (await _run_in_thread(lambda: self.client.converse_stream(**request)))["stream"]
        events = iter(stream)
        try:
            while (event := await _run_in_thread(lambda: next(events, None))) is not None:
                yield event
        finally:
            pool.run_in_thread(stream.close)  # not awaited

    def send(self, request: sdk.Request) -> Any:
        return _run_in_thread(lambda: self.client.converse(**request))

    def read_event_text(self, event: Any) -> str:
        return str(event.get("contentBlockDelta", {}).get("delta", {}).get("text", ""))

    def unforce(self, request: sdk.Request, offers: bool) -> sdk.Request:
        config = request.get("toolConfig", {})
        if "auto" in config.get("toolChoice", {"auto": {}}):
            return request
        return {**request, "toolConfig": {key: value for key, value in config.items() if key != "toolChoice"}}

    def results(self, results: Iterable[ToolResult], /) -> list[Any]:
        return bedrock.results(results, **self._result_options)

    def user(self, text: str, /) -> list[dict[str, Any]]:
        return [{"role": "user", "content": [{"text": text}]}]


def _make_client(name: str, base_url: str | None) -> Any:
    boto3 = sdk.import_sdk("boto3", "bedrock")
    session = boto3.session.Session()
    if not (os.environ.get("AWS_BEARER_TOKEN_BEDROCK") or session.get_credentials()):
        remedy = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or AWS_BEARER_TOKEN_BEDROCK"
        raise sdk.missing_credentials(f"bedrock:{name}", remedy)
    if not session.region_name:
        raise sdk.missing_credentials(f"bedrock:{name}", "set AWS_DEFAULT_REGION")
    return session.client("bedrock-runtime", endpoint_url=base_url)


def _request_fields(client: Any) -> Collection[str] | None:
    """Return the fields of a request; `None` if the client is not boto3's."""
    service = getattr(getattr(client, "meta", None), "service_model", None)
    members = service.operation_model("Converse").input_shape.members if service is not None else None
    return members if isinstance(members, Mapping) else None


async def _run_in_thread(step: Callable[[], Any]) -> Any:
    done = await pool.run_in_thread(step)
    if isinstance(done, pool.Raised):
        raise done.error
    return done


def _make_config_of_history(messages: sdk.Messages) -> dict[str, Any]:
    """Return the tools in the history: the API refuses a history with calls if the request declares no tools."""
    blocks = [block for message in messages for block in message["content"]]
    names = sorted({block["toolUse"]["name"] for block in blocks if "toolUse" in block})
    tools = [{"toolSpec": {"name": name, "inputSchema": {"json": {"type": "object"}}}} for name in names]
    return {"tools": tools} if tools else {}
