"""What the errors of models go by, without a server."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from ferrule.models import ModelError, RateLimited
from ferrule.models._errors import to_model_error, to_reported_error


@pytest.mark.parametrize(
    "text",
    [
        "invalid_request_error: The file 'x' is unavailable.",
        "invalid_request_error: tool 'rate_limit_check' not found",
        "not_found_error: the service overloaded_things is not there",
    ],
)
def test_an_error_in_a_stream_is_classed_by_its_kind_and_not_by_other_words(text: str) -> None:
    assert type(to_reported_error(text)) is ModelError


@pytest.mark.parametrize("value", ["inf", "1e999", "nan", "Fri, 31 Dec 9999 00:00:00 GMT"])
def test_a_time_to_wait_that_is_none_is_left_out(value: str) -> None:
    error = openai.RateLimitError("slow down", response=refused({"retry-after": value}), body=None)
    found = to_model_error(error)
    assert isinstance(found, RateLimited) and found.retry_after is None


def refused(headers: dict[str, str]) -> Any:
    return type("Response", (), {"headers": headers, "status_code": 429, "request": None})()
