"""The trace that a call belongs to, for where its handler runs: the headers of W3C Trace Context, without its baggage.

Whatever an installation of OpenTelemetry makes of that, the call goes on without.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

log = logging.getLogger("ferrule")


def trace_headers() -> dict[str, str]:
    """What a span elsewhere needs to belong to the trace of here; nothing where nobody uses OpenTelemetry."""
    if "opentelemetry" not in sys.modules:
        return {}
    headers: dict[str, str] = {}
    try:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        TraceContextTextMapPropagator().inject(headers)
    except Exception as error:
        log.warning("the trace of a call does not go on where its handler runs: %r", error)
        return {}
    return headers


@contextmanager
def in_trace(headers: Mapping[str, str]) -> Iterator[None]:
    """In the trace that these say, where there is one and OpenTelemetry is installed."""
    detach, token = _attached(headers) if headers else (None, None)
    try:
        yield
    finally:
        if detach is not None:
            detach(token)


def _attached(headers: Mapping[str, str]) -> tuple[Any, object]:
    try:
        from opentelemetry import context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        return context.detach, context.attach(TraceContextTextMapPropagator().extract(headers))
    except ImportError:
        return None, None
    except Exception as error:
        log.warning("the trace of a call does not go on here: %r", error)
        return None, None
