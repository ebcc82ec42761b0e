"""Continue the trace of a call in another process, by the headers of W3C Trace Context without its baggage.

A call goes on without a trace if OpenTelemetry raises.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

log = logging.getLogger("ferrule")


def trace_headers() -> dict[str, str]:
    """Return the headers of the current trace, or no headers if the program does not use OpenTelemetry. See
    docs/long-work.md#somewhere-else."""
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
def continue_trace(headers: Mapping[str, str]) -> Iterator[None]:
    """Make the trace of these headers the current one, if there are headers and OpenTelemetry is installed. See
    docs/long-work.md#somewhere-else."""
    detach, token = _attach(headers) if headers else (None, None)
    try:
        yield
    finally:
        if detach is not None:
            detach(token)


def _attach(headers: Mapping[str, str]) -> tuple[Any, object]:
    try:
        from opentelemetry import context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        return context.detach, context.attach(TraceContextTextMapPropagator().extract(headers))
    except ImportError:
        return None, None
    except Exception as error:
        log.warning("the trace of a call does not go on here: %r", error)
        return None, None
