"""`trace()`: record an OpenTelemetry span and metrics for each call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.errors import DefinitionError
from ferrule.middleware.redact import Redaction, check_redaction

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from ferrule.middleware._spans import Trace


def trace(
    *,
    content: bool | None = None,
    principal: bool = False,
    agent: str | None = None,
    redact: Redaction | None = None,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> Trace:
    """Return a middleware that reports each call to OpenTelemetry: a span `execute_tool NAME` and metrics, named as in
    the GenAI conventions. See docs/telemetry.md.

        tracing = trace()
        runner = Runner(tools, around=[tracing], observers=[tracing.observe])

    It belongs in `around`, first, so its span covers the whole call: the decisions of guards, the wait, the approver.
    As an observer, it also reports calls that reach no tool, under the name `unknown`, whatever the model wrote. If a
    framework has opened a span `execute_tool` for this very call, Ferrule adds its attributes to that one and opens no
    other. Without an SDK it costs next to nothing.

    Args:
        content: Whether spans have the arguments, with stars for bound or private values, and the result, each at most
            8,192 characters. By default OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT decides; without it, no.
        principal: Whether spans have the principal, as `user.id`.
        agent: The name of the agent that makes the calls.
        redact: The `redact(…)` for arguments and results; by default, certain credentials are stars.
        tracer_provider: The maker of the spans; by default the provider set by the program.
        meter_provider: The same for metrics.

    Raises:
        DefinitionError: opentelemetry-api is not installed, a parameter is not valid, or the middleware is in `inside`.
    """
    try:
        from ferrule.middleware._spans import Trace  # 150 ms
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        raise DefinitionError('trace() needs opentelemetry-api: pip install "ferrule[otel]"') from None
    name_given: Any = agent
    if not (name_given is None or (isinstance(name_given, str) and name_given)):
        raise DefinitionError(f"trace(agent) must be the name of an agent or None, not {agent!r}")
    for name, value in (("content", content), ("principal", principal)):
        if value is not None and not isinstance(value, bool):
            raise DefinitionError(f"trace({name}) must be True or False, not {value!r}")
    mask = check_redaction("trace", redact)
    return Trace(content, principal, agent, mask, tracer_provider, meter_provider)
