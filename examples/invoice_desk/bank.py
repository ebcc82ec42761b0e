"""The bank of the invoice desk: a file that stands in for the API of a bank.

Like many banks, it pays twice if you order a transfer twice. But each transfer has a reference, and you can find it by
that.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

MAILS = "CREATE TABLE IF NOT EXISTS mails (id INTEGER PRIMARY KEY, receiver TEXT, text TEXT)"
TABLE = "CREATE TABLE IF NOT EXISTS transfers (id INTEGER PRIMARY KEY, reference TEXT, payee TEXT, cents INTEGER)"


class Bank:
    """Opens a connection for each use, because handlers run in threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(TABLE)
            connection.execute(MAILS)

    def transfer(self, reference: str, payee: str, cents: int) -> int:
        """Pay, and return the number of the transfer."""
        with closing(sqlite3.connect(self.path)) as connection, connection:
            values = (reference, payee, cents)
            done = connection.execute("INSERT INTO transfers (reference, payee, cents) VALUES (?, ?, ?)", values)
            assert done.lastrowid is not None
            return done.lastrowid

    def find(self, reference: str) -> int | None:
        """Return the number of the transfer with this reference, or None."""
        with closing(sqlite3.connect(self.path)) as connection:
            found = connection.execute("SELECT id FROM transfers WHERE reference = ?", (reference,)).fetchone()
        return found[0] if found else None

    def keep_mail(self, to: str, text: str) -> int:
        """Put a mail into the outbox, and return its number."""
        with closing(sqlite3.connect(self.path)) as connection, connection:
            sent = connection.execute("INSERT INTO mails (receiver, text) VALUES (?, ?)", (to, text))
            assert sent.lastrowid is not None
            return sent.lastrowid
