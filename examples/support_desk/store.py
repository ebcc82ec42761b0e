"""The database of the support desk: orders, refunds, cases and open questions in one SQLite file. The journal is a
second file in the same folder."""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

TABLES = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer TEXT, item TEXT, cents INTEGER);
CREATE TABLE IF NOT EXISTS refunds (id INTEGER PRIMARY KEY, order_id INTEGER, cents INTEGER, reason TEXT, at REAL);
CREATE TABLE IF NOT EXISTS cases
    (id INTEGER PRIMARY KEY, customer TEXT, question TEXT, status TEXT, answer TEXT, suspended TEXT, so_far TEXT,
    at REAL);
CREATE TABLE IF NOT EXISTS queue (key TEXT PRIMARY KEY, value TEXT);
INSERT OR IGNORE INTO orders VALUES
    (1001, 'ada', 'Teapot', 3950), (1002, 'ada', 'Headphones', 12900), (1003, 'bob', 'Desk lamp', 5400);
"""
ORDER = """SELECT id, customer, item, cents,
    (SELECT coalesce(sum(cents), 0) FROM refunds WHERE order_id = orders.id) AS refunded FROM orders"""
LEFT_BEHIND = 600
"""Seconds after which a case counts as left by a process that was killed."""
STOPPED = f"""suspended IS NULL AND
    (status = 'stopped' AND so_far IS NOT NULL OR status = 'working' AND at < ? - {LEFT_BEHIND})"""
"""Cases to try again: the model failed, or the process was killed before a question was stored."""


class Store:
    """Opens a connection for each use, so that threads and processes do not disturb each other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(TABLES)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit the whole block or nothing. Other writers wait."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.row_factory = sqlite3.Row
            connection.execute("BEGIN IMMEDIATE")
            with connection:
                yield connection

    def rows(self, query: str, *values: Any) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(self.path)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(query, values)]

    def order(self, number: object) -> dict[str, Any] | None:
        if not isinstance(number, int) or number.bit_length() > 63:  # the largest integer of SQLite
            return None
        return next(iter(self.rows(f"{ORDER} WHERE id = ?", number)), None)

    def refund(self, number: int, cents: int, reason: str) -> bool:
        """Store a refund, unless it is more than was paid, and return whether it was stored."""
        with self.transaction() as connection:
            order = connection.execute(f"{ORDER} WHERE id = ?", (number,)).fetchone()
            if order is None or order["refunded"] + cents > order["cents"]:
                return False
            values = (number, cents, reason, time.time())
            connection.execute("INSERT INTO refunds (order_id, cents, reason, at) VALUES (?, ?, ?, ?)", values)
            return True

    def open_case(self, customer: str, question: str) -> int:
        with self.transaction() as connection:
            values = (customer, question, time.time())
            done = connection.execute(
                "INSERT INTO cases (customer, question, status, at) VALUES (?, ?, 'working', ?)", values
            )
            assert done.lastrowid is not None
            return done.lastrowid

    def claim(self, case: int, call_id: str, key: str) -> dict[str, Any] | None:
        """Take a suspended run to continue it, or return None if its call no longer waits."""
        with self.transaction() as connection:
            row = connection.execute(
                "SELECT suspended FROM cases WHERE id = ? AND (status = 'waiting' OR status = 'working' AND at < ?)",
                (case, time.time() - LEFT_BEHIND),
            ).fetchone()
            suspended: dict[str, Any] | None = json.loads(row["suspended"]) if row and row["suspended"] else None
            if suspended is None or suspended["waiting"].get(call_id, {}).get("key") != key:
                return None
            connection.execute("UPDATE cases SET status = 'working', at = ? WHERE id = ?", (time.time(), case))
            return suspended

    def claim_stopped(self, case: int) -> dict[str, Any] | None:
        """Take a case to try it again, or return None if there is nothing to try."""
        with self.transaction() as connection:
            row = connection.execute(f"SELECT * FROM cases WHERE id = ? AND {STOPPED}", (case, time.time())).fetchone()
            if row is None:
                return None
            connection.execute("UPDATE cases SET status = 'working', at = ? WHERE id = ?", (time.time(), case))
            return {**row, "so_far": json.loads(row["so_far"] or "null")}

    def save_case(self, case: int, status: str, answer: str, suspended: Any = None, so_far: Any = None) -> None:
        texts = [json.dumps(value) if value else None for value in (suspended, so_far)]
        with self.transaction() as connection:
            connection.execute(
                "UPDATE cases SET status = ?, answer = ?, suspended = ?, so_far = ?, at = ? WHERE id = ?",
                (status, answer, *texts, time.time(), case),
            )

    def cases(self) -> list[dict[str, Any]]:
        """Return all waiting cases and the newest others. A waiting call comes with the order in the database."""
        waiting = self.rows("SELECT * FROM cases WHERE suspended IS NOT NULL ORDER BY id DESC")
        cases = waiting + self.rows("SELECT * FROM cases WHERE suspended IS NULL ORDER BY id DESC LIMIT 100")
        for case in cases:
            suspended = json.loads(case.pop("suspended") or "{}")
            case["waiting"] = [
                pending | {"order": self.order(pending["arguments"].get("order"))}
                for pending in suspended.get("waiting", {}).values()
            ]
            case["left_behind"] = case["status"] == "working" and case["at"] < time.time() - LEFT_BEHIND
            case["again"] = case.pop("so_far") is not None or (case["left_behind"] and not case["waiting"])
        return cases


class Queue:
    """The open questions, in the same file: a store with compare-and-set for `approval.web`."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def get(self, key: str) -> Any:
        return self.items(key).get(key)

    def items(self, prefix: str = "") -> dict[str, Any]:
        rows = self.store.rows("SELECT key, value FROM queue WHERE substr(key, 1, ?) = ?", len(prefix), prefix)
        return {row["key"]: json.loads(row["value"]) for row in rows}

    def compare_and_set(self, key: str, old: Any, new: Any) -> bool:
        with self.store.transaction() as connection:
            row = connection.execute("SELECT value FROM queue WHERE key = ?", (key,)).fetchone()
            if (row and json.loads(row["value"])) != old:
                return False
            if new is None:
                connection.execute("DELETE FROM queue WHERE key = ?", (key,))
            else:
                connection.execute("REPLACE INTO queue VALUES (?, ?)", (key, json.dumps(new)))
            return True


def read_key(path: Path) -> bytes:
    """Return the key in this file. The first call creates it for its owner alone."""
    new_file = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(new_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_bytes(32))
    try:
        os.link(new_file, path)  # fails if another process was first, and never links half a key
    except FileExistsError:
        pass
    finally:
        new_file.unlink()
    return path.read_bytes()
