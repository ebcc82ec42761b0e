"""These tests run in the environment of their framework, which `scripts/frameworks.py` makes; elsewhere none is
collected."""

from __future__ import annotations

import os

if not os.environ.get("FERRULE_FRAMEWORK"):
    collect_ignore_glob = ["test_*.py"]
