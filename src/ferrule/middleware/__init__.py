"""What goes round a call. A file is one middleware, named as the verb that reads in a list.

A middleware takes the call, its context and what comes next, and gives a result, which is frozen:
`result.replace(…)` is a changed copy. The first in a list is the outermost. The smallest one of your own:

    async def stamped(call, context, next):
        result = await next(call, context)
        return result.replace(metadata={**result.metadata, "host": platform.node()})

What it may know of the call (how often it ran, whether it was cancelled, how long it may wait) is on its context, and
Ferrule's own use no more than that; docs/middleware.md has a small `retry` as an example.
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
