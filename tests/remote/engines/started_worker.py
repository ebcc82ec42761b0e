"""`ferrule`, with an SQLite that is new enough for DBOS, whatever this Python was built with."""

from __future__ import annotations

import sys

import pysqlite3

sys.modules["sqlite3"] = pysqlite3
sys.modules["sqlite3.dbapi2"] = pysqlite3.dbapi2

from ferrule.cli import main  # noqa: E402

if __name__ == "__main__":
    raise SystemExit(main())
