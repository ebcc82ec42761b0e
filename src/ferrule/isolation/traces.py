"""The trace that a call belongs to, for where its handler runs: the headers of W3C Trace Context."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


def trace_headers() -> dict[str, str]:
    """What a span elsewhere needs to belong to the trace of here; nothing where nobody uses OpenTelemetry."""
    headers: dict[str, str] = {}
    if "opentelemetry" in sys.modules:
        from opentelemetry import propagate

        propagate.inject(headers)
    return headers


@contextmanager
def in_trace(headers: Mapping[str, str]) -> Iterator[None]:
    """In the trace that these say, where there is one and OpenTelemetry is installed."""
    if not headers:
        yield
        return
    try:
        from opentelemetry import context, propagate
    except ImportError:
        yield
        return
    token = context.attach(propagate.extract(headers))
    try:
        yield
    finally:
        context.detach(token)
