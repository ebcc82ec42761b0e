"""These tests run in an environment with an SDK, exporters and Logfire, which `scripts/frameworks.py` makes; elsewhere
none is collected."""

from __future__ import annotations

import os

if os.environ.get("FERRULE_FRAMEWORK") != "telemetry":
    collect_ignore_glob = ["test_*.py"]
