"""These tests run in the environment of DBOS and Ray, which `scripts/frameworks.py` makes; elsewhere none is
collected."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator

import pytest

if os.environ.get("FERRULE_FRAMEWORK") != "remote":
    collect_ignore_glob = ["test_*.py"]
else:
    import pysqlite3  # this Python's own may be older than DBOS needs

    sys.modules["sqlite3"] = pysqlite3
    sys.modules["sqlite3.dbapi2"] = pysqlite3.dbapi2

os.environ.setdefault("FERRULE_REMOTE_KEY", secrets.token_hex(32))


@pytest.fixture(scope="session")
def databases() -> Iterator[object]:
    """Makes an empty PostgreSQL database of a name, and gives its URL."""
    import postgres

    with postgres.server() as url_of:
        yield url_of
