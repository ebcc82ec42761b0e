"""What a queue's database has to be, before anything is connected."""

from __future__ import annotations

import sqlite3

import pytest

from ferrule import DefinitionError
from ferrule.remote._dbos_database import DEFAULT_URL, Database


def test_an_old_sqlite_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 41, 2))
    with pytest.raises(DefinitionError, match=r"SQLite 3.42 or newer.*DBOS_SYSTEM_DATABASE_URL"):
        Database("sqlite:///calls.sqlite")


def test_the_default_database_is_sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 42, 0))
    monkeypatch.delenv("DBOS_SYSTEM_DATABASE_URL", raising=False)
    assert Database(None).url == DEFAULT_URL
    monkeypatch.setenv("DBOS_SYSTEM_DATABASE_URL", "postgresql://tools@db.internal/tools")
    assert Database(None).url == "postgresql://tools@db.internal/tools"


def test_another_database_is_refused() -> None:
    with pytest.raises(DefinitionError, match="postgresql"):
        Database("mysql://localhost/tools")
