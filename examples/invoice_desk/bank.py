"""The bank of the invoice desk: a file that stands in for an account with an interface.

Like many banks it does as it is told: who orders a transfer twice has paid twice. But each transfer has a reference,
and who asks for one by that is told of it.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

TABLE = "CREATE TABLE IF NOT EXISTS transfers (id INTEGER PRIMARY KEY, reference TEXT, payee TEXT, cents INTEGER)"


class Bank:
    """A connection for each use: handlers run in threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(TABLE)

    def transfer(self, reference: str, payee: str, cents: int) -> int:
        """Pay; the number of the transfer."""
        with closing(sqlite3.connect(self.path)) as connection, connection:
            values = (reference, payee, cents)
            done = connection.execute("INSERT INTO transfers (reference, payee, cents) VALUES (?, ?, ?)", values)
            assert done.lastrowid is not None
            return done.lastrowid

    def find(self, reference: str) -> int | None:
        """The number of the transfer with this reference; `None` where there is none."""
        with closing(sqlite3.connect(self.path)) as connection:
            found = connection.execute("SELECT id FROM transfers WHERE reference = ?", (reference,)).fetchone()
        return found[0] if found else None
