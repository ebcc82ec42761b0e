"""What `ferrule worker far_worker:WORKER` runs: all handlers, in the queue that the environment says."""

from __future__ import annotations

import json
import os

from far_tools import HANDLERS

from ferrule import tool
from ferrule.remote import dbos

LIMITS = {"concurrency": 16, "per_worker": 16, "poll": 0.02, **json.loads(os.environ.get("FAR_LIMITS", "{}"))}
if LIMITS.get("rate"):
    LIMITS["rate"] = tuple(LIMITS["rate"])
QUEUE = dbos.queue("far", **LIMITS)
TOOLS = [tool(handler, isolation=QUEUE) for handler in HANDLERS]
WORKER = dbos.worker(TOOLS, deps="the worker's", secrets={"token": "the worker's"}, drain=5)
