"""The SDKs' errors for too many requests, an overload and a context that is too long, as one class each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from time import time
from typing import Any

from ferrule.models import ContextTooLong, ModelError, Overloaded, RateLimited
from ferrule.providers._wire import get_fields, read, read_text
from ferrule.values.content import clean_text

# Anthropic: "prompt is too long: N tokens > M maximum", "exceed context limit", request_too_large (413). OpenAI:
# context_length_exceeded, "exceeds the context window". Gemini: "exceeds the maximum number of tokens". Bedrock: "Input
# is too long". Mistral: "maximum context length". Cohere: "too many tokens: ". Groq: "reduce the length of the
# messages". xAI: "maximum prompt length". llama.cpp: "exceeds the available context size". LM Studio: "greater than the
# context length". Kimi: "exceeded model token limit". MiniMax: "context window exceeds limit".
_TOO_LONG = re.compile(
    r"context_length_exceeded|request_too_large|(?<![\w.])(prompt|input) is too long|too many tokens: |"
    r"exceeds? (the |your )?(context (limit|window)|maximum number of tokens|available context size)|"
    r"maximum (context|prompt) length|reduce the length of the messages|greater than the context length|"
    r"exceeded model token limit|context window exceeds",
    re.IGNORECASE,
)
_LIMITED = re.compile(r"rate_limit|RESOURCE_EXHAUSTED|Throttling|TooManyRequests|too many requests", re.IGNORECASE)
_OVERLOADED = re.compile(r"overloaded|UNAVAILABLE|ServiceUnavailable|ModelNotReady", re.IGNORECASE)
_LONGEST_WAIT = 7 * 86_400.0
"""Seconds. A longer wait from an API is ignored."""
_NO_CREDIT = "insufficient_quota"
"""OpenAI's code with status 429 when waiting does not help."""
_MAY_BE_TOO_LONG = (None, 200, 400, 422, -1)
"""Statuses besides 413; Ollama's SDK has -1 for an error in a stream."""


def to_model_error(error: Exception) -> ModelError | None:
    """Return the Ferrule error for an SDK's error; `None` if it is none of the three kinds."""
    aws = get_fields(getattr(error, "response", None))
    status = _status(error, aws)
    # For an error in the middle of a stream, Anthropic's SDK has status 200, and only the type tells the kind.
    kinds = [getattr(error, name, None) for name in ("type", "code", "status", "error_code")]
    kind = " ".join([*(one for one in kinds if isinstance(one, str)), read_text(aws.get("Error"), "Code")]).strip()
    if status is None and not kind:  # not from an API
        return None
    return _classify_error(status, kind, str(error), _seconds_to_wait(error, aws))


def to_reported_error(text: str) -> ModelError:
    """Return the error for a text in a response or in an event of a stream: `kind: message`, or a message alone."""
    kind = text.partition(":")[0]
    error = _classify_error(None, text if " " in kind else kind, text, None)
    return error or ModelError(f"the API ended the turn with an error: {text}")


def _classify_error(status: int | None, kind: str, text: str, retry_after: float | None) -> ModelError | None:
    shown_text = clean_text(text)[:1_000]
    if _NO_CREDIT in kind:
        return None
    # The kind goes before the status: Bedrock's ModelNotReadyException comes with 429.
    overloaded = bool(_OVERLOADED.search(kind)) or status in (503, 529)
    limited = bool(_LIMITED.search(kind)) or (status == 429 and not overloaded)
    if status == 413 or (status in _MAY_BE_TOO_LONG and _TOO_LONG.search(f"{kind} {text}")):
        return ContextTooLong(f"the context is too long for the model: {shown_text}")
    if limited:
        return RateLimited(f"the API takes no more requests at present: {shown_text}", retry_after)
    return Overloaded(f"the API is overloaded: {shown_text}", retry_after) if overloaded else None


def _status(error: Exception, aws: Mapping[str, Any]) -> int | None:
    found = getattr(error, "status_code", None) or getattr(error, "code", None)
    if found is None or isinstance(found, str):
        found = read(aws.get("ResponseMetadata"), "HTTPStatusCode")
    return found if isinstance(found, int) else None


def _seconds_to_wait(error: Exception, aws: Mapping[str, Any]) -> float | None:
    """Return the seconds to wait from a header or from Google's body; None if there are none."""
    response = getattr(error, "response", None)
    headers: Any = getattr(error, "headers", None) or getattr(response, "headers", None)
    headers = headers or read(aws.get("ResponseMetadata"), "HTTPHeaders") or {}
    for name, unit in (("retry-after-ms", 0.001), ("x-amz-retry-after", 0.001), ("retry-after", 1.0)):
        if (seconds := _as_seconds(headers.get(name), unit)) is not None:
            return seconds
    body = getattr(error, "details", None) or getattr(error, "body", None)
    details = read(read(body, "error"), "details")
    for detail in details if isinstance(details, list) else ():
        if read_text(detail, "@type").endswith("google.rpc.RetryInfo"):
            return _as_seconds(read_text(detail, "retryDelay").removesuffix("s"), 1.0)
    return None


def _as_seconds(value: Any, unit: float) -> float | None:
    """Return a number of seconds, or the time until a date (RFC 9110, section 10.2.3)."""
    if not isinstance(value, str):
        return None
    try:
        seconds = float(value) * unit
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time()
        except ValueError:
            return None
    return max(0.0, seconds) if seconds < _LONGEST_WAIT else None
