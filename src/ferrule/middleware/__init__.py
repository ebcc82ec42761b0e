"""Middleware: functions around a call. Each file holds one, with a name that reads as a verb in a list.

A middleware takes the call, its context and the next step, and returns a result. Results are frozen:
`result.replace(…)` returns a changed copy. The first middleware in a list is the outermost. A minimal one of your own:

    async def stamped(call, context, next):
        result = await next(call, context)
        return result.replace(metadata={**result.metadata, "host": platform.node()})

The context has all facts about the call for a middleware: how often it ran, whether it was cancelled, how long it may
wait. Ferrule's own middleware uses nothing else; docs/middleware.md has a small `retry` as an example.
"""

from __future__ import annotations

from ferrule.middleware.after import after
from ferrule.middleware.before import before
from ferrule.middleware.breaker import breaker
from ferrule.middleware.budget import budget
from ferrule.middleware.cache import cache
from ferrule.middleware.limit_output import limit_output
from ferrule.middleware.rate import rate
from ferrule.middleware.redact import redact
from ferrule.middleware.retry import retry
from ferrule.middleware.sanitize import sanitize
from ferrule.middleware.trace import trace
from ferrule.middleware.untrusted import untrusted

__all__ = [
    "after",
    "before",
    "breaker",
    "budget",
    "cache",
    "limit_output",
    "rate",
    "redact",
    "retry",
    "sanitize",
    "trace",
    "untrusted",
]
