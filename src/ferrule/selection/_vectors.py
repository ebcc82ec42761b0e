"""Vectors of an embedding model: read them from its answers, cache them on disk, compare them."""

from __future__ import annotations

import hashlib
import heapq
import logging
import sqlite3
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from math import fsum, hypot, isfinite
from operator import mul
from pathlib import Path
from typing import Any, TypeAlias

from ferrule.errors import DefinitionError
from ferrule.selection._numeric import numpy

log = logging.getLogger("ferrule")

Vector: TypeAlias = "array[float]"
"""A vector of length 1, as 32-bit floats; or of zeros alone, and then similar to nothing."""

_ROUNDED = 6
"""The decimals of a score. The numbers of a service for the same text differ by less, and equal scores are a tie."""
_MOST_KEYS = 500  # SQLite takes 999 parameters in its oldest builds
_SCHEMA = "CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB NOT NULL) WITHOUT ROWID"
_WAIT = 10.0  # seconds for another process; its writes take milliseconds


class Reader:
    """A reader of an embedding's answers. All its vectors must have one length.

    Args:
        owner: The name of the embedding in errors.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._length: int | None = None

    def vectors(self, answer: Any, texts: Sequence[str]) -> list[Vector]:
        """Return one vector for each text.

        Raises:
            DefinitionError: The answer is no list of vectors, has not one for each text, or has vectors of a new
                length.
        """
        if isinstance(answer, str | bytes | Mapping) or not isinstance(answer, Iterable):
            raise DefinitionError(
                f"{self._owner} returned {type(answer).__name__}; it returns a list of vectors, one for each text"
            )
        rows = list(answer)
        if len(rows) != len(texts):
            raise DefinitionError(
                f"{self._owner} returned {len(rows)} vectors for {len(texts)} texts; it returns one for each"
            )
        return [self._vector(row) for row in rows]

    def _vector(self, row: Any) -> Vector:
        try:
            if isinstance(row, str | bytes | bytearray | Mapping):
                raise TypeError(f"{type(row).__name__}, not numbers")
            values = array("d", row)
        except (TypeError, ValueError, OverflowError) as error:
            raise DefinitionError(f"{self._owner} returned a vector that is no list of numbers: {error}") from None
        length = hypot(*values)
        if not isfinite(length):
            raise DefinitionError(f"{self._owner} returned a vector with NaN or infinity in it")
        return self.fitting(array("f", [value / length for value in values] if length else values))

    def fitting(self, vector: Vector) -> Vector:
        """Return the vector if it is as long as those before it.

        Raises:
            DefinitionError: It has another length.
        """
        if not vector:
            raise DefinitionError(f"{self._owner} returned an empty vector")
        if self._length is None:
            self._length = len(vector)
        if len(vector) != self._length:
            raise DefinitionError(
                f"{self._owner} returned a vector of {len(vector)} numbers, and of {self._length} before; "
                "another model "
                "needs another embedding(…), and another name= where there is a cache"
            )
        return vector


class Disk:
    """Vectors in an SQLite file. Several processes may use it at once, and it survives a crash of each (WAL).

    It stores no texts, only a hash of the model's name and the text.

    Args:
        path: The file; it is created if it does not exist.
        model: The name of the model.
    """

    def __init__(self, path: Path, model: str) -> None:
        self._path = path
        self._model = hashlib.sha256(model.encode("utf-8", "replace")).digest()

    def read(self, texts: Iterable[str]) -> dict[str, Vector]:
        """Return the stored vectors of these texts, by text.

        Raises:
            DefinitionError: The file is no cache, or has something else than vectors.
        """
        by_key = {self._key(text): text for text in texts}
        found: dict[str, Vector] = {}
        keys = list(by_key)
        try:
            with closing(self._open()) as database:
                for start in range(0, len(keys), _MOST_KEYS):
                    some = keys[start : start + _MOST_KEYS]
                    marks = ",".join("?" * len(some))
                    rows = database.execute(f"SELECT key, vector FROM vectors WHERE key IN ({marks})", some)
                    found.update((by_key[key], array("f", vector)) for key, vector in rows)
        except (sqlite3.Error, OSError, TypeError, ValueError) as error:
            self._go_without(error)
        return found

    def write(self, vectors: Mapping[str, Vector]) -> None:
        """Store vectors, by text.

        Raises:
            DefinitionError: The file is no cache.
        """
        rows = [(self._key(text), vector.tobytes()) for text, vector in vectors.items()]
        try:
            with closing(self._open()) as database, database:
                database.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?)", rows)
        except (sqlite3.Error, OSError) as error:
            self._go_without(error)

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(self._path, timeout=_WAIT)
        try:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute(_SCHEMA)
        except BaseException:
            database.close()
            raise
        return database

    def _key(self, text: str) -> bytes:
        return hashlib.sha256(self._model + text.encode("utf-8", "replace")).digest()

    def _go_without(self, error: Exception) -> None:
        """Log an error of the cache and continue without it, or raise if the file is no cache.

        A cache that is full, locked or read-only costs time, and is no reason to end a conversation.
        """
        if not isinstance(error, sqlite3.OperationalError | OSError):
            raise DefinitionError(
                f"embedding: the cache {str(self._path)!r} cannot be used: {error}; name another file, or delete it"
            ) from error
        log.warning("embedding: the cache %r is left out: %s", str(self._path), error)


class Rows:
    """Vectors to compare with others: by numpy if it is installed, else in Python, with the same answers.

    Each score is the exact sum of the exact products, rounded. numpy sums in 32 bits and in its own order, and only
    finds the candidates for the best rows.
    """

    def __init__(self, rows: Sequence[Vector]) -> None:
        self._rows = rows
        self._numpy = numpy()
        self._matrix: Any = None
        if self._numpy is not None and rows:
            self._matrix = self._numpy.frombuffer(b"".join(rows), self._numpy.float32).reshape(len(rows), -1)

    def best(self, question: Vector, limit: int) -> list[tuple[int, float]]:
        """Return the positions of the rows most similar to `question`, the best first, and their cosines.

        Rows with 0 or less are left out, and ties stay in their order.
        """
        scores = (
            (at, round(fsum(map(mul, self._rows[at], question)), _ROUNDED)) for at in self._candidates(question, limit)
        )
        return heapq.nsmallest(limit, (one for one in scores if one[1] > 0), key=lambda one: (-one[1], one[0]))

    def _candidates(self, question: Vector, limit: int) -> Iterable[int]:
        if self._matrix is None or limit >= len(self._rows):
            return range(len(self._rows))
        scores = self._matrix @ self._numpy.frombuffer(question, self._numpy.float32)
        least = self._numpy.partition(scores, -limit)[-limit]
        # For vectors of length 1, numpy's sum of n products of 32-bit floats is wrong by at most about n * 2**-24. A
        # row among the best is below the last of numpy's best by at most twice that, plus twice the rounding.
        slack = len(question) * 2**-22 + 2 * 10**-_ROUNDED
        return self._numpy.flatnonzero(scores >= least - slack).tolist()  # type: ignore[no-any-return]
