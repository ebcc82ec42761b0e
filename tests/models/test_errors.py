"""What an API says of too many requests, an overload and a context that is too long, as the SDKs raise it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import anthropic
import boto3
import botocore.config
import botocore.exceptions
import cohere
import cohere.core
import google.genai
import google.genai.errors
import httpx
import mistralai.client
import mistralai.client.errors
import ollama
import openai
import pytest
from google.genai._gaos.lib import compat_errors
from tests.models.cases import CASES, Case, serving
from tests.models.servers.bedrock import framed
from tests.models.servers.openai_responses import _response
from tests.models.servers.serving import BOUND, Answer, Turn, sse

from ferrule import Toolset
from ferrule.models import ContextTooLong, ModelError, Overloaded, RateLimited, Reply

pytestmark = pytest.mark.slow

BY_NAME = {case.name: case for case in CASES}
ERRORS: dict[str, type[Exception]] = {
    "anthropic": anthropic.APIStatusError,
    "openai": openai.APIStatusError,
    "compatible": openai.APIStatusError,
    "gemini": google.genai.errors.APIError,
    "vertex": google.genai.errors.APIError,
    "interactions": compat_errors.APIStatusError,
    "bedrock": botocore.exceptions.ClientError,
    "mistral": mistralai.client.errors.SDKError,
    "cohere": cohere.core.ApiError,
    "ollama": ollama.ResponseError,
}


def options_without_retries(case: Case, address: str) -> dict[str, Any]:
    """What makes a model of `case` ask once."""
    if case.name == "anthropic":
        return {"client": anthropic.AsyncAnthropic(base_url=address, max_retries=0)}
    if case.name in {"openai", "compatible"}:
        return {"client": openai.AsyncOpenAI(base_url=address, max_retries=0)} | (
            {"api": "chat"} if case.name == "compatible" else {}
        )
    if case.name in {"gemini", "vertex", "interactions"}:
        once = google.genai.types.HttpRetryOptions(attempts=1)
        options = google.genai.types.HttpOptions(base_url=address, retry_options=once)
        return {"client": google.genai.Client(http_options=options)}
    if case.name == "bedrock":
        config = botocore.config.Config(retries={"total_max_attempts": 1})
        return {"client": boto3.client("bedrock-runtime", endpoint_url=address, config=config)}
    if case.name == "mistral":
        return {"client": mistralai.client.Mistral(api_key="dummy", server_url=address)}
    return {"base_url": address} | ({"request_options": {"max_retries": 0}} if case.name == "cohere" else {})


def answer(status: int, body: Any, headers: dict[str, str] | None = None) -> Answer:
    return Answer(status, "application/json", [json.dumps(body).encode()], headers or {})


def raised(case: Case, fault: Answer | None, *, stream: bool = True, **given: Any) -> Exception:
    """What a model raises for one request that is answered with `fault`."""

    async def main(address: str) -> Reply:
        async with case.model("model-1", stream=stream, **options_without_retries(case, address)) as model:
            return await asyncio.wait_for(model(model.user("Hi."), Toolset([])), BOUND)

    with serving(case, [Turn("Hello.")], fault=fault, **given) as (api, address):
        with pytest.raises(Exception) as found:
            asyncio.run(main(address))
    assert len(api.requests) == 1
    return found.value


@pytest.fixture(autouse=True)
def credentials(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    case = request.node.callspec.params["case"]
    chosen = BY_NAME[case] if isinstance(case, str) else case
    for name, value in {"NO_PROXY": "127.0.0.1", **chosen.environment}.items():
        monkeypatch.setenv(name, value)


def anthropics(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


def openais(code: str | None, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}


def googles(status: int, kind: str, message: str, *details: dict[str, Any]) -> dict[str, Any]:
    return {"error": {"code": status, "message": message, "status": kind, "details": list(details)}}


RETRY_INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "45.5s"}
QUOTA = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": []}
SECONDS, MILLISECONDS = {"retry-after": "7"}, {"retry-after-ms": "7500", "retry-after": "9"}
LIMITED = [
    ("anthropic", answer(429, anthropics("rate_limit_error", "Number of tokens exceeded"), SECONDS), 7),
    ("openai", answer(429, openais("rate_limit_exceeded", "Rate limit reached"), MILLISECONDS), 7.5),
    ("compatible", answer(429, openais(None, "slow down"), SECONDS), 7),
    ("gemini", answer(429, googles(429, "RESOURCE_EXHAUSTED", "Quota exceeded", QUOTA, RETRY_INFO)), 45.5),
    ("vertex", answer(429, googles(429, "RESOURCE_EXHAUSTED", "Resource exhausted")), None),
    ("interactions", answer(429, googles(429, "RESOURCE_EXHAUSTED", "Quota exceeded", RETRY_INFO)), 45.5),
    (
        "bedrock",
        answer(
            429,
            {"message": "Too many tokens, please wait before trying again."},
            {"x-amzn-ErrorType": "ThrottlingException", "x-amz-retry-after": "1500"},
        ),
        1.5,
    ),
    ("mistral", answer(429, {"object": "error", "message": "Requests rate limit exceeded"}, SECONDS), 7),
    ("cohere", answer(429, {"id": "1", "message": "trial key, 20 calls a minute"}, SECONDS), 7),
    ("ollama", answer(429, {"error": "too many concurrent requests"}, SECONDS), None),
]
OVERLOADED = [
    ("anthropic", answer(529, anthropics("overloaded_error", "Overloaded"))),
    ("anthropic", answer(503, anthropics("api_error", "no servers"))),
    ("openai", answer(503, openais(None, "The engine is currently overloaded"))),
    ("compatible", answer(529, openais(None, "busy"))),
    ("gemini", answer(503, googles(503, "UNAVAILABLE", "The model is overloaded. Please try again later."))),
    ("interactions", answer(503, googles(503, "UNAVAILABLE", "The model is overloaded."))),
    ("bedrock", answer(503, {"message": "Too many connections"}, {"x-amzn-ErrorType": "ServiceUnavailableException"})),
    ("bedrock", answer(429, {"message": "not ready"}, {"x-amzn-ErrorType": "ModelNotReadyException"})),
    ("mistral", answer(503, {"object": "error", "message": "Service unavailable."})),
    ("cohere", answer(503, {"id": "1", "message": "service unavailable"})),
    ("ollama", answer(503, {"error": "server busy, please try again.  maximum pending requests exceeded"})),
]
BAD_REQUEST = {"x-amzn-ErrorType": "ValidationException"}
TOO_LONG = [
    ("anthropic", answer(400, anthropics("invalid_request_error", "prompt is too long: 210000 tokens > 200000"))),
    (
        "anthropic",
        answer(
            400,
            anthropics("invalid_request_error", "input length and `max_tokens` exceed context limit: 190000 + 20000"),
        ),
    ),
    ("anthropic", answer(413, anthropics("request_too_large", "Request exceeds the maximum size"))),
    ("openai", answer(400, openais("context_length_exceeded", "Your input exceeds the context window of this model."))),
    ("compatible", answer(400, openais(None, "Please reduce the length of the messages or completion."))),
    ("compatible", answer(400, openais(None, "the request exceeds the available context size (8192 tokens)"))),
    ("compatible", answer(413, {})),
    (
        "gemini",
        answer(400, googles(400, "INVALID_ARGUMENT", "The input token count (9) exceeds the maximum number of tokens")),
    ),
    (
        "interactions",
        answer(400, googles(400, "INVALID_ARGUMENT", "The input token count (9) exceeds the maximum number of tokens")),
    ),
    ("bedrock", answer(400, {"message": "Input is too long for requested model."}, BAD_REQUEST)),
    ("mistral", answer(400, {"message": "Prompt is too large for model with 32768 maximum context length"})),
    ("cohere", answer(400, {"message": "too many tokens: total number of tokens cannot exceed 4096"})),
]
OTHER = [
    ("anthropic", answer(400, anthropics("invalid_request_error", "metadata.user_id: the value is too long"))),
    ("anthropic", answer(400, anthropics("invalid_request_error", "tools.0.input is too long"))),
    ("anthropic", answer(401, anthropics("authentication_error", "invalid x-api-key"))),
    ("anthropic", answer(404, anthropics("not_found_error", "model: claude-0"))),
    ("openai", answer(400, openais("string_above_max_length", "Invalid 'input[0].content': string too long."))),
    ("openai", answer(429, openais("insufficient_quota", "You exceeded your current quota, check your billing."))),
    ("openai", answer(500, openais(None, "The server had an error"))),
    ("compatible", answer(401, openais("invalid_api_key", "Incorrect API key provided"))),
    ("gemini", answer(400, googles(400, "INVALID_ARGUMENT", "Request contains an invalid argument."))),
    ("gemini", answer(403, googles(403, "PERMISSION_DENIED", "no"))),
    ("interactions", answer(400, googles(400, "INVALID_ARGUMENT", "Request contains an invalid argument."))),
    ("bedrock", answer(400, {"message": "The model returned the following errors: bad"}, BAD_REQUEST)),
    ("bedrock", answer(403, {"message": "no"}, {"x-amzn-ErrorType": "AccessDeniedException"})),
    ("mistral", answer(401, {"message": "Unauthorized"})),
    ("cohere", answer(401, {"message": "invalid api token"})),
    ("ollama", answer(404, {"error": "model 'm' not found"})),
]
STREAMED = pytest.mark.parametrize("stream", [True, False])


@STREAMED
@pytest.mark.parametrize(("case", "fault", "seconds"), LIMITED)
def test_too_many_requests_are_one_error_that_says_when_to_ask_again(
    case: str, fault: Answer, seconds: float | None, stream: bool
) -> None:
    found = raised(BY_NAME[case], fault, stream=stream)
    assert type(found) is RateLimited
    assert found.retry_after == seconds
    assert isinstance(found.__cause__, ERRORS[case])


@STREAMED
@pytest.mark.parametrize(("case", "fault"), OVERLOADED)
def test_an_overload_is_one_error(case: str, fault: Answer, stream: bool) -> None:
    found = raised(BY_NAME[case], replace(fault, headers={**fault.headers, **SECONDS}), stream=stream)
    assert type(found) is Overloaded
    assert found.retry_after == (None if case == "ollama" else 7)
    assert isinstance(found.__cause__, ERRORS[case])


@STREAMED
@pytest.mark.parametrize(("case", "fault"), TOO_LONG)
def test_a_context_that_is_too_long_is_one_error(case: str, fault: Answer, stream: bool) -> None:
    found = raised(BY_NAME[case], fault, stream=stream)
    assert type(found) is ContextTooLong
    assert found.retry_after is None
    assert isinstance(found.__cause__, ERRORS[case])


@STREAMED
@pytest.mark.parametrize(("case", "fault"), OTHER)
def test_every_other_error_stays_the_sdks_own(case: str, fault: Answer, stream: bool) -> None:
    assert isinstance(raised(BY_NAME[case], fault, stream=stream), ERRORS[case])


@pytest.mark.parametrize("case", ["anthropic", "mistral", "cohere"])
def test_a_date_to_ask_again_at_is_told_in_seconds(case: str) -> None:
    at = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    found = raised(BY_NAME[case], answer(429, {"message": "slow down"}, {"retry-after": at}))
    assert isinstance(found, RateLimited) and found.retry_after is not None
    assert 90 < found.retry_after <= 100


def events(*chunks: bytes, kind: str = "text/event-stream") -> Answer:
    return Answer(200, kind, chunks)


def failed(code: str, message: str) -> Answer:
    response = {**_response(0, "failed", []), "error": {"code": code, "message": message}}
    return events(sse({"type": "response.failed", "response": response, "sequence_number": 0}, "response.failed"))


def framed_error(kind: str, message: str) -> Answer:
    chunk = framed(kind, {"message": message}, message_type="exception")
    return events(chunk, kind="application/vnd.amazon.eventstream")


@pytest.mark.parametrize(
    ("case", "fault", "kind"),
    [
        ("anthropic", events(sse(anthropics("overloaded_error", "Overloaded"), "error")), Overloaded),
        ("anthropic", events(sse(anthropics("rate_limit_error", "too many"), "error")), RateLimited),
        ("anthropic", events(sse(anthropics("invalid_request_error", "prompt is too long"), "error")), ContextTooLong),
        ("anthropic", events(sse(anthropics("api_error", "Internal server error"), "error")), anthropic.APIStatusError),
        ("openai", failed("rate_limit_exceeded", "Rate limit reached"), RateLimited),
        ("openai", failed("context_length_exceeded", "Your input exceeds the context window"), ContextTooLong),
        ("openai", failed("server_error", "The server had an error"), ModelError),
        ("compatible", events(sse(openais("rate_limit_exceeded", "slow down"))), RateLimited),
        ("compatible", events(sse(openais(None, "something went wrong"))), openai.APIError),
        ("gemini", events(sse(googles(503, "UNAVAILABLE", "The model is overloaded."))), Overloaded),
        ("bedrock", framed_error("throttlingException", "Too many tokens, please wait"), RateLimited),
        ("bedrock", framed_error("serviceUnavailableException", "busy"), Overloaded),
        ("bedrock", framed_error("validationException", "Input is too long for requested model."), ContextTooLong),
        ("bedrock", framed_error("internalServerException", "broken"), botocore.exceptions.EventStreamError),
        ("ollama", events(b'{"error":"prompt is too long"}\n', kind="application/x-ndjson"), ContextTooLong),
        ("ollama", events(b'{"error":"llama runner died"}\n', kind="application/x-ndjson"), ollama.ResponseError),
    ],
)
def test_an_error_in_a_stream_is_the_same_error(case: str, fault: Answer, kind: type[Exception]) -> None:
    assert type(raised(BY_NAME[case], fault)) is kind


@pytest.mark.parametrize(
    ("case", "body", "kind"),
    [
        ("openai", {**_response(0, "failed", []), "error": {"code": "server_error", "message": "broken"}}, ModelError),
        (
            "openai",
            {**_response(0, "failed", []), "error": {"code": "rate_limit_exceeded", "message": ""}},
            RateLimited,
        ),
        ("compatible", {"error": {"message": "Provider returned error: overloaded", "code": 502}}, Overloaded),
    ],
)
def test_an_error_in_a_response_that_came_at_once_is_raised(
    case: str, body: dict[str, Any], kind: type[Exception]
) -> None:
    assert type(raised(BY_NAME[case], answer(200, body), stream=False)) is kind


TURNED_AWAY = httpx.Response(429, request=httpx.Request("POST", "https://example.org"))
RAISED = [ValueError("prompt is too long"), openai.RateLimitError("of another API", response=TURNED_AWAY, body=None)]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
@STREAMED
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_what_a_listener_raises_is_not_taken_for_the_apis(case: Case, stream: bool, error: Exception) -> None:
    def refuse(chunk: str) -> None:
        raise error

    async def main(address: str) -> None:
        async with case.model("m", base_url=address, stream=stream) as model:
            await asyncio.wait_for(model(model.user("Hi."), Toolset([]), on_text=refuse), BOUND)

    with serving(case, [Turn("Hello.")]) as (_, address), pytest.raises(type(error)) as found:
        await main(address)
    assert found.value is error
