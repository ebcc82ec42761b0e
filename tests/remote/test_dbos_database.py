"""What a queue's database has to be, before anything is connected."""

from __future__ import annotations

import sqlite3
from types import SimpleNamespace

import pytest

from ferrule import DefinitionError
from ferrule.remote import _dbos_database
from ferrule.remote._dbos_database import DEFAULT_URL, Database


def test_an_sqlite_that_is_too_old_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 41, 2))
    with pytest.raises(DefinitionError, match=r"SQLite 3.42 or newer.*DBOS_SYSTEM_DATABASE_URL"):
        Database("sqlite:///calls.sqlite")


def test_one_that_is_new_enough_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 42, 0))
    monkeypatch.delenv("DBOS_SYSTEM_DATABASE_URL", raising=False)
    assert Database(None).url == DEFAULT_URL
    monkeypatch.setenv("DBOS_SYSTEM_DATABASE_URL", "postgresql://tools@db.internal/tools")
    assert Database(None).url == "postgresql://tools@db.internal/tools"


def test_another_database_is_refused() -> None:
    with pytest.raises(DefinitionError, match="postgresql"):
        Database("mysql://localhost/tools")


class Rows(Database):
    """Workers and when they last said that they live, without a database."""

    rows: dict[str, float] = {}

    def _execute(self, statement: str, **values: object) -> list[tuple[str, float]]:
        return [*self.rows.items()]


def test_a_worker_is_lost_that_says_nothing_while_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(_dbos_database, "time", SimpleNamespace(monotonic=lambda: now[0]))
    database = Rows("postgresql://nobody@127.0.0.1/none")
    database.rows = {"speaks": 1.0, "silent": 1.0}

    def lost(after: float) -> set[str]:
        now[0] += after
        return database._find_lost_workers({"speaks", "silent", "ended"})

    assert lost(0) == {"ended"}  # it is not there, and the others may have been away as the database was
    database.rows["speaks"] = 2.0
    assert lost(_dbos_database.ALIVE_SECONDS) == {"ended"}
    assert lost(0.1) == {"ended", "silent"}
    database.rows["silent"] = 2.0
    assert lost(0.1) == {"ended"}
