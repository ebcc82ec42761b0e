"""`trace()`: a span of OpenTelemetry for each call, and what is counted of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.errors import DefinitionError

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from ferrule.middleware._spans import Trace


def trace(
    *,
    content: bool | None = None,
    principal: bool = False,
    agent: str | None = None,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> Trace:
    """A middleware that tells OpenTelemetry of each call: a span `execute_tool NAME` and metrics, named as the GenAI
    conventions have it. See docs/telemetry.md.

        tracing = trace()
        runner = Runner(tools, around=[tracing], observers=[tracing.observe])

    It belongs in `around`, first, so that its span has all of the call: what guards decided, how long it waited, who
    approved. As an observer, it tells of the calls besides that reach no tool, under the name `unknown`, whatever the
    model wrote. Where a framework has opened a span `execute_tool` for this very call, that one gets what Ferrule
    knows, and no other is opened. Without an SDK it costs next to nothing.

    Args:
        content: Whether spans have the arguments, with stars for what is bound or private, and the result, each at
            most 8,192 characters. Left out, as OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT says; by default not.
        principal: Whether spans have the principal, as `user.id`.
        agent: The name of the agent that makes the calls.
        tracer_provider: What makes the spans; left out, the one that the program has set.
        meter_provider: The same for metrics.

    Raises:
        DefinitionError: where opentelemetry-api is not installed, for parameters that could not work, and where it
            stands in `inside`.
    """
    try:
        from ferrule.middleware._spans import Trace  # 150 ms
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        raise DefinitionError('trace() needs opentelemetry-api: pip install "ferrule[otel]"') from None
    given: Any = agent
    if not (given is None or (isinstance(given, str) and given)):
        raise DefinitionError(f"trace(agent) is the name of an agent, or None, not {given!r}")
    for name, said in (("content", content), ("principal", principal)):
        if said is not None and not isinstance(said, bool):
            raise DefinitionError(f"trace({name}) must be True or False, not {said!r}")
    return Trace(content, principal, agent, tracer_provider, meter_provider)
