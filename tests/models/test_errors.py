"""What an API says of too many requests, an overload and a context that is too long, as the SDKs raise it."""

from __future__ import annotations

import json
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
from tests.models.cases import BY_NAME, NO_TOOLS, Case, each, serving
from tests.models.servers.bedrock import framed
from tests.models.servers.serving import Answer, Turn, sse
from tests.providers.apis import responses_dict

from ferrule.models import ContextTooLong, ModelError, Overloaded, RateLimited
from ferrule.models._errors import to_model_error, to_reported_error

pytestmark = pytest.mark.slow

ERRORS: dict[str, type[Exception]] = {
    "anthropic": anthropic.APIStatusError,
    "openai": openai.APIStatusError,
    "compatible": openai.APIStatusError,
    "gemini": google.genai.errors.APIError,
    "vertex": google.genai.errors.APIError,
    "bedrock": botocore.exceptions.ClientError,
    "mistral": mistralai.client.errors.SDKError,
    "cohere": cohere.core.ApiError,
    "ollama": ollama.ResponseError,
}


def options_without_retries(case: Case, address: str) -> dict[str, Any]:
    """The options of a model that asks once."""
    if case.name == "anthropic":
        return {"client": anthropic.AsyncAnthropic(base_url=address, max_retries=0)}
    if case.name in {"openai", "compatible"}:
        api = {"api": "chat"} if case.name == "compatible" else {}
        return {"client": openai.AsyncOpenAI(base_url=address, max_retries=0), **api}
    if case.name in {"gemini", "vertex"}:
        once = google.genai.types.HttpRetryOptions(attempts=1)
        options = google.genai.types.HttpOptions(base_url=address, retry_options=once)
        return {"client": google.genai.Client(http_options=options)}
    if case.name == "bedrock":
        config = botocore.config.Config(retries={"total_max_attempts": 1})
        return {"client": boto3.client("bedrock-runtime", endpoint_url=address, config=config)}
    if case.name == "mistral":
        return {"client": mistralai.client.Mistral(api_key="dummy", server_url=address)}
    return {"base_url": address} | ({"request_options": {"max_retries": 0}} if case.name == "cohere" else {})


async def error_of(case: Case, fault: Answer, stream: bool = True) -> Exception:
    """What a model raises for one request that is answered with `fault`."""
    with serving(case, [Turn("Hello.")], fault=fault) as (api, address):
        async with case.model("model-1", stream=stream, **options_without_retries(case, address)) as model:
            with pytest.raises(Exception) as found:
                await model(model.user("Hi."), NO_TOOLS)
    assert len(api.requests) == 1
    return found.value


def answer(status: int, body: Any, headers: dict[str, str] | None = None) -> Answer:
    return Answer(status, "application/json", [json.dumps(body).encode()], headers or {})


def anthropic_error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


def openai_error(code: str | None, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}


def google_error(status: int, kind: str, message: str, *details: dict[str, Any]) -> dict[str, Any]:
    return {"error": {"code": status, "message": message, "status": kind, "details": list(details)}}


RETRY_INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "45.5s"}
QUOTA = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": []}
SECONDS, MILLISECONDS = {"retry-after": "7"}, {"retry-after-ms": "7500", "retry-after": "9"}
BAD_REQUEST, THROTTLED, NOT_READY = (
    {"x-amzn-ErrorType": kind} for kind in ("ValidationException", "ThrottlingException", "ModelNotReadyException")
)
TOO_MANY = "The input token count (9) exceeds the maximum number of tokens"
TOO_MANY_TOKENS = google_error(400, "INVALID_ARGUMENT", TOO_MANY)
WRONG = google_error(400, "INVALID_ARGUMENT", "Request contains an invalid argument.")


def bad_request(message: str) -> dict[str, Any]:
    return anthropic_error("invalid_request_error", message)


# Each answer, with the error that it is, and the seconds to wait if it says any. None: the SDK's own error.
ANSWERS: list[tuple[str, Answer, Any, float | None]] = [
    ("anthropic", answer(429, anthropic_error("rate_limit_error", "Tokens exceeded"), SECONDS), RateLimited, 7),
    ("openai", answer(429, openai_error("rate_limit_exceeded", "Limit reached"), MILLISECONDS), RateLimited, 7.5),
    ("compatible", answer(429, openai_error(None, "slow down"), SECONDS), RateLimited, 7),
    ("gemini", answer(429, google_error(429, "RESOURCE_EXHAUSTED", "Full", QUOTA, RETRY_INFO)), RateLimited, 45.5),
    ("vertex", answer(429, google_error(429, "RESOURCE_EXHAUSTED", "Full")), RateLimited, None),
    ("bedrock", answer(429, {"message": "Too many"}, {**THROTTLED, "x-amz-retry-after": "1500"}), RateLimited, 1.5),
    ("mistral", answer(429, {"object": "error", "message": "Limit exceeded"}, SECONDS), RateLimited, 7),
    ("cohere", answer(429, {"id": "1", "message": "trial key, 20 calls a minute"}, SECONDS), RateLimited, 7),
    ("ollama", answer(429, {"error": "too many concurrent requests"}, SECONDS), RateLimited, None),
    ("anthropic", answer(529, anthropic_error("overloaded_error", "Overloaded"), SECONDS), Overloaded, 7),
    ("openai", answer(503, openai_error(None, "The engine is currently overloaded"), SECONDS), Overloaded, 7),
    ("bedrock", answer(429, {"message": "not ready"}, {**NOT_READY, **SECONDS}), Overloaded, 7),
    ("anthropic", answer(400, bad_request("prompt is too long: 210000 tokens > 200000")), ContextTooLong, None),
    ("anthropic", answer(400, bad_request("input length and `max_tokens` exceed context limit")), ContextTooLong, None),
    ("openai", answer(400, openai_error("context_length_exceeded", "Your input is too long")), ContextTooLong, None),
    ("compatible", answer(400, openai_error(None, "Please reduce the length of the messages.")), ContextTooLong, None),
    ("compatible", answer(413, {}), ContextTooLong, None),
    ("gemini", answer(400, TOO_MANY_TOKENS), ContextTooLong, None),
    ("bedrock", answer(400, {"message": "Input is too long for requested model."}, BAD_REQUEST), ContextTooLong, None),
    ("mistral", answer(400, {"message": "Prompt is too large for 32768 maximum context length"}), ContextTooLong, None),
    ("cohere", answer(400, {"message": "too many tokens: it cannot exceed 4096"}), ContextTooLong, None),
    ("anthropic", answer(400, bad_request("metadata.user_id: the value is too long")), None, None),
    ("openai", answer(400, openai_error("string_above_max_length", "Invalid 'input': string too long.")), None, None),
    ("openai", answer(429, openai_error("insufficient_quota", "You exceeded your quota.")), None, None),
    ("gemini", answer(400, WRONG), None, None),
    ("bedrock", answer(400, {"message": "The model returned the following errors: bad"}, BAD_REQUEST), None, None),
    ("ollama", answer(404, {"error": "model 'm' not found"}), None, None),
]


@pytest.mark.parametrize(("case", "fault", "kind", "seconds"), ANSWERS)
async def test_errors_of_a_kind_are_one_error(case: str, fault: Answer, kind: Any, seconds: float | None) -> None:
    found = await error_of(BY_NAME[case], fault)
    if kind is None:
        assert isinstance(found, ERRORS[case])
    else:
        assert (type(found), found.retry_after) == (kind, seconds)
        assert isinstance(found.__cause__, ERRORS[case])


@each()
async def test_an_error_is_the_same_without_a_stream(case: Case) -> None:
    fault = next(fault for name, fault, *_ in ANSWERS if name == case.name)
    assert type(await error_of(case, fault, stream=False)) is RateLimited


@pytest.mark.parametrize("case", ["anthropic", "mistral", "cohere"])
async def test_a_date_to_ask_again_at_is_told_in_seconds(case: str) -> None:
    at = format_datetime(datetime.now(UTC) + timedelta(seconds=1_000), usegmt=True)
    found = await error_of(BY_NAME[case], answer(429, {"message": "slow down"}, {"retry-after": at}))
    assert isinstance(found, RateLimited) and found.retry_after is not None
    assert 500 < found.retry_after <= 1_000


FAILED = {**responses_dict("", [], None), "status": "failed"}


def events(*chunks: bytes, kind: str = "text/event-stream") -> Answer:
    return Answer(200, kind, chunks)


def failed(code: str, message: str) -> Answer:
    response = {**FAILED, "error": {"code": code, "message": message}}
    return events(sse({"type": "response.failed", "response": response, "sequence_number": 0}, "response.failed"))


def framed_error(kind: str, message: str) -> Answer:
    chunk = framed(kind, {"message": message}, message_type="exception")
    return events(chunk, kind="application/vnd.amazon.eventstream")


@pytest.mark.parametrize(
    ("case", "fault", "kind"),
    [
        ("anthropic", events(sse(anthropic_error("overloaded_error", "Overloaded"), "error")), Overloaded),
        ("anthropic", events(sse(bad_request("prompt is too long"), "error")), ContextTooLong),
        ("anthropic", events(sse(anthropic_error("api_error", "It broke"), "error")), anthropic.APIStatusError),
        ("openai", failed("rate_limit_exceeded", "Rate limit reached"), RateLimited),
        ("openai", failed("server_error", "The server had an error"), ModelError),
        ("compatible", events(sse(openai_error("rate_limit_exceeded", "slow down"))), RateLimited),
        ("compatible", events(sse(openai_error(None, "something went wrong"))), openai.APIError),
        ("gemini", events(sse(google_error(503, "UNAVAILABLE", "The model is overloaded."))), Overloaded),
        ("bedrock", framed_error("throttlingException", "Too many tokens, please wait"), RateLimited),
        ("bedrock", framed_error("serviceUnavailableException", "busy"), Overloaded),
        ("bedrock", framed_error("internalServerException", "broken"), botocore.exceptions.EventStreamError),
        ("ollama", events(b'{"error":"prompt is too long"}\n', kind="application/x-ndjson"), ContextTooLong),
        ("ollama", events(b'{"error":"llama runner died"}\n', kind="application/x-ndjson"), ollama.ResponseError),
    ],
)
async def test_an_error_in_a_stream_is_the_same_error(case: str, fault: Answer, kind: type[Exception]) -> None:
    assert type(await error_of(BY_NAME[case], fault)) is kind


@pytest.mark.parametrize(
    ("case", "body", "kind"),
    [
        ("openai", {**FAILED, "error": {"code": "rate_limit_exceeded", "message": ""}}, RateLimited),
        ("compatible", {"error": {"message": "Provider returned error: overloaded", "code": 502}}, Overloaded),
    ],
)
async def test_an_error_in_a_whole_response_is_raised(case: str, body: dict[str, Any], kind: type[Exception]) -> None:
    assert type(await error_of(BY_NAME[case], answer(200, body), stream=False)) is kind


@pytest.mark.parametrize(
    "text",
    [
        "invalid_request_error: The file 'x' is unavailable.",
        "not_found_error: the service overloaded_things is not there",
    ],
)
def test_a_reported_error_is_classed_by_its_kind_alone(text: str) -> None:
    assert type(to_reported_error(text)) is ModelError


@pytest.mark.parametrize("value", ["1e999", "nan", "Fri, 31 Dec 9999 00:00:00 GMT"])
def test_an_impossible_time_to_wait_is_left_out(value: str) -> None:
    request = httpx.Request("POST", "https://example.org")
    response = httpx.Response(429, headers={"retry-after": value}, request=request)
    error = openai.RateLimitError("slow down", response=response, body=None)
    found = to_model_error(error)
    assert isinstance(found, RateLimited) and found.retry_after is None
