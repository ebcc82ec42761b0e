"""These tests run in the environment of the framework, which `scripts/needs.py` makes; elsewhere none is collected."""

from __future__ import annotations

import os

FRAMEWORK = os.environ.get("FERRULE_FRAMEWORK", "")
collect_ignore_glob = ["*"] if not FRAMEWORK else [name for name in ("test_*.py",) if False]
