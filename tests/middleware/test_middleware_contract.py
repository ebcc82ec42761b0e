"""Every middleware keeps the contract that users run on their own."""

from __future__ import annotations

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

from ferrule.middleware import (
    after,
    before,
    breaker,
    budget,
    cache,
    limit_output,
    rate,
    redact,
    retry,
    sanitize,
    trace,
    untrusted,
)
from ferrule.stores import Artifacts
from ferrule.testing import MiddlewareContract
from ferrule.types import Middleware


class TestBefore(MiddlewareContract):
    place = "around"

    def middleware(self) -> Middleware:
        return before(lambda arguments: None)


class TestAfter(MiddlewareContract):
    def middleware(self) -> Middleware:
        return after(lambda result: None)


class TestBreaker(MiddlewareContract):
    may_answer = True

    def middleware(self) -> Middleware:
        return breaker(3)


class TestBudget(MiddlewareContract):
    may_answer = True

    def middleware(self) -> Middleware:
        return budget(calls=120)


class TestCache(MiddlewareContract):
    may_answer = True

    def middleware(self) -> Middleware:
        return cache()


class TestRate(MiddlewareContract):
    may_answer = True

    def middleware(self) -> Middleware:
        return rate(60, 60)


class TestRetry(MiddlewareContract):
    may_repeat = True

    def middleware(self) -> Middleware:
        return retry(attempts=3)


class TestLimitOutput(MiddlewareContract):
    place = "around"

    def middleware(self) -> Middleware:
        return limit_output(16_000)


class TestLimitOutputThatKeeps(MiddlewareContract):
    place = "around"

    def middleware(self) -> Middleware:
        return limit_output(1_000, artifacts=Artifacts())


class TestRedact(MiddlewareContract):
    place = "around"

    def middleware(self) -> Middleware:
        return redact()


class TestSanitize(MiddlewareContract):
    place = "around"

    def middleware(self) -> Middleware:
        return sanitize()


class TestUntrusted(MiddlewareContract):
    place = "around"
    changes_text = True

    def middleware(self) -> Middleware:
        return untrusted


class TestTrace(MiddlewareContract):
    place = "around"

    def middleware(self) -> Middleware:
        return trace(tracer_provider=TracerProvider(), meter_provider=MeterProvider([InMemoryMetricReader()]))


class TestTraceWithoutProviders(MiddlewareContract):
    place = "around"

    def middleware(self) -> Middleware:
        return trace()
