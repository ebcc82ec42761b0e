"""Stores for values that several programs change concurrently: values by key, changed by compare-and-set.

`Memory` is for one process, `SealedFile` for all processes of one user on one machine, `Postgres` for those of many
machines. A store of your own has the three methods of `Store`.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString, Protocol, TypeAlias, TypeVar

from ferrule.errors import DefinitionError, FerruleError
from ferrule.security.paths import Directory, contains, open_directory, resolve_path
from ferrule.stores.file_lock import try_lock
from ferrule.values.frozen import thaw
from ferrule.values.json_text import loads_finite

if TYPE_CHECKING:
    from psycopg import Connection, Cursor

JsonValue: TypeAlias = Any
"""A JSON value, or `None` if there is none. See docs/approvals.md#stores."""

KEY_BYTES = 32
"""The shortest length of a seal's key. See docs/approvals.md#stores."""
_LOCK_SECONDS = 10.0
_POLL_SECONDS = 0.005
_OTHERS_BITS = 0o077
_REPLACE_TRIES = 100
T = TypeVar("T")


class StoreError(FerruleError):
    """A value cannot be read or changed, or differs from the written one.

    See docs/approvals.md#stores.
    """


class ReachableError(StoreError):
    """A file would lie in reach of tools. See docs/approvals.md#stores."""


class Store(Protocol):
    """Values by key. Its methods may be called from any thread, and may block.

    See docs/approvals.md#stores.
    """

    def get(self, key: str) -> JsonValue:
        """Return the value, or `None`."""
        ...

    def compare_and_set(self, key: str, old: JsonValue, new: JsonValue) -> bool:
        """Replace `old` with `new` in one step for all users of the store, and return whether `old` was there.

        `None` stands for a missing value: as `old` it creates the value, as `new` it deletes it.
        """
        ...

    def items(self, prefix: str = "") -> dict[str, JsonValue]:
        """Return all values at one moment under keys with this prefix, in the order of the keys."""
        ...


class Memory:
    """A store in the memory of this process. See docs/approvals.md#stores."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._lock = threading.Lock()

    @property
    def waits(self) -> bool:
        """Whether `get` may block: not here, but perhaps in a subclass."""
        return type(self) is not Memory

    def get(self, key: str) -> JsonValue:
        """Return a copy of the value, or `None`."""
        return read_json(self._texts.get(key, "null"))

    def compare_and_set(self, key: str, old: JsonValue, new: JsonValue) -> bool:
        """Replace `old` with `new`, and return whether `old` was there."""
        with self._lock:
            return _replace_text(self._texts, key, old, new)

    def items(self, prefix: str = "") -> dict[str, JsonValue]:
        """Return all values under keys with this prefix."""
        with self._lock:
            return _list_items(self._texts, prefix)


def _replace_text(texts: dict[str, str], key: str, old: JsonValue, new: JsonValue) -> bool:
    if texts.get(key, "null") != row_text(old):
        return False
    if new is None:
        texts.pop(key, None)
    else:
        texts[key] = row_text(new)
    return True


def _list_items(texts: Mapping[str, str], prefix: str) -> dict[str, JsonValue]:
    return {key: read_json(texts[key]) for key in sorted(texts) if key.startswith(prefix)}


class ForeignText(str):
    """The text of a stored row that no store has written. `compare_and_set` takes it as the old value."""

    __slots__ = ()


def read_json(text: str) -> JsonValue:
    """Return the value of a stored row, or its text as a `ForeignText` if no store writes a value that way."""
    try:
        value = loads_finite(text)
        return value if row_text(value) == text else ForeignText(text)
    except (ValueError, TypeError, RecursionError):
        return ForeignText(text)


def row_text(value: JsonValue) -> str:
    """Return the one JSON text of a value in a store.

    Raises:
        TypeError, ValueError: The value has no JSON, such as NaN.
    """
    if isinstance(value, ForeignText):
        return str(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=thaw)


@dataclass(frozen=True, slots=True)
class BrokenRow:
    """An unreadable row of a store, and the reason."""

    problem: str


def read_row(row: JsonValue, read: Callable[[JsonValue], T]) -> T | BrokenRow:
    """Return the result of `read` for the value of a stored row. Nothing in one row raises, so none hides another."""
    try:
        if isinstance(row, ForeignText):
            raise ValueError("no store has written it so")
        row_text(row)  # a store of your own may return anything
        return read(row)
    except Exception as error:
        return BrokenRow(f"{type(error).__name__}: {error}")


def replace_row(store: Store, key: str, value: JsonValue) -> None:
    """Set the value under this key, whatever is there.

    Raises:
        StoreError: The store changes nothing.
    """
    if not any(store.compare_and_set(key, store.get(key), value) for _ in range(_REPLACE_TRIES)):
        raise StoreError(f"{key!r} was not changed: compare_and_set(key, get(key), …) of the store is never true")


class SealedFile:
    """A store in one file, protected by a key against changes by others.

    See docs/approvals.md#stores.

    The file is made with mode 0600, in a folder with mode 0700 if that is missing. Each change replaces the whole file,
    one process after the other, and each access reads it anew.

    Args:
        path: The file. It lies outside of the working directory and of `apart_from`, it is no link, and nobody else may
            read it or write to its folder.
        key: The key of the seal, an HMAC over the whole file: at least 32 bytes. Store it elsewhere.
        apart_from: The folders in reach of tools, such as the roots of a `within`.
        working_directory: The folder that tools start in; `None` for a program that runs none.

    Raises:
        DefinitionError: The key is too short.
        StoreError: The file may not lie there, or its content was not written with this key.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        key: bytes,
        *,
        apart_from: Iterable[str | os.PathLike[str]] = (),
        working_directory: str | None = ".",
    ) -> None:
        given: Any = key
        if not isinstance(given, bytes) or len(given) < KEY_BYTES:
            raise DefinitionError(
                f"SealedFile(key) must be at least {KEY_BYTES} bytes. Make it once with "
                f"secrets.token_bytes({KEY_BYTES}), and store it elsewhere"
            )
        self._path = private_place(path, apart_from, working_directory)
        self._key = key
        self._lock = threading.Lock()
        self._newest_lock = threading.Lock()
        self._newest = 0  # the highest write count read so far: an older copy has a lower one
        self._read()

    @property
    def path(self) -> str:
        """The path of the file, even if it does not exist yet."""
        return self._path

    def get(self, key: str) -> JsonValue:
        """Return the value, or `None`.

        Raises:
            StoreError: The file cannot be read, or differs from the written one.
        """
        return read_json(self._read()[0].get(key, "null"))

    def compare_and_set(self, key: str, old: JsonValue, new: JsonValue) -> bool:
        """Replace `old` with `new` in spite of other processes, and return whether `old` was there.

        Raises:
            StoreError: The file cannot be read or written, or differs from the written one.
        """
        with self._lock_store():
            texts, writes = self._read()
            done = _replace_text(texts, key, old, new)
            if done:
                self._write(texts, writes + 1)
            return done

    def items(self, prefix: str = "") -> dict[str, JsonValue]:
        """Return all values under keys with this prefix.

        Raises:
            StoreError: The file cannot be read, or differs from the written one.
        """
        return _list_items(self._read()[0], prefix)

    @contextlib.contextmanager
    def _lock_store(self) -> Iterator[None]:
        deadline = time.monotonic() + _LOCK_SECONDS
        if not self._lock.acquire(timeout=_LOCK_SECONDS):
            raise StoreError(f"{self._path!r} was not changed: another thread has used it for {_LOCK_SECONDS:.0f} s")
        try:
            with lock_file(self._path, deadline):
                yield
        finally:
            self._lock.release()

    def _read(self) -> tuple[dict[str, str], int]:
        """Return the values as JSON texts and the write count of the file, after a check of the seal."""
        newest = self._newest
        try:
            found = loads_finite(read_private(self._path).decode())
            sealed, seal = found["sealed"], str(found["seal"])
            texts = {key: row_text(value) for key, value in sealed["values"].items()}
            writes = int(sealed["writes"])
        except FileNotFoundError:
            if newest:
                raise StoreError(f"{self._path!r} has been removed") from None
            return {}, 0
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise StoreError(f"{self._path!r} is no sealed file ({type(error).__name__})") from None
        if not self._is_valid_seal(seal, sealed):
            raise StoreError(
                f"{self._path!r} was sealed with another key, or was changed since, so Ferrule does not use it. "
                "Pass the key of the file, or move it away for a new one"
            )
        if writes < newest:
            raise StoreError(f"{self._path!r} is an earlier copy of the file that was read before")
        self._set_newest(writes)
        return texts, writes

    def _set_newest(self, writes: int) -> None:
        with self._newest_lock:
            self._newest = max(self._newest, writes)

    def _write(self, texts: Mapping[str, str], writes: int) -> None:
        values = {key: loads_finite(text) for key, text in texts.items()}
        sealed = {"version": 1, "writes": writes, "values": values}
        data = json.dumps({"seal": self._seal(sealed), "sealed": sealed}, indent=1).encode()
        folder, name = os.path.split(self._path)
        with _as_store_errors(self._path), open_private_folder(folder) as directory:
            directory.write(name, data, mode=0o600)
        self._set_newest(writes)

    def _is_valid_seal(self, seal: str, sealed: object) -> bool:
        from hmac import compare_digest  # loads OpenSSL

        return compare_digest(seal.encode("utf-8", "replace"), self._seal(sealed).encode())

    def _seal(self, sealed: object) -> str:
        from hmac import digest

        about = f"ferrule store {os.path.basename(self._path)} {row_text(sealed)}"
        return digest(self._key, about.encode(), "sha256").hex()


@contextlib.contextmanager
def lock_file(place: str, deadline: float | None = None) -> Iterator[None]:
    """Lock the file at this canonical path for one process at a time. The folder is made if it is missing.

    See docs/approvals.md#stores.

    Args:
        place: The file to change.
        deadline: The end of the wait for the lock, by `time.monotonic`; by default 10 s from now.

    Raises:
        StoreError: Another process holds the lock, or others may write to the folder.
    """
    folder, name = os.path.split(place)
    deadline = time.monotonic() + _LOCK_SECONDS if deadline is None else deadline
    with _as_store_errors(place):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with open_private_folder(folder) as directory:
            descriptor = directory.open(f".{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with _as_store_errors(place):
            while not try_lock(descriptor):
                if time.monotonic() > deadline:
                    raise StoreError(f"{place!r} was not changed: another process has locked it")
                time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _as_store_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path!r} cannot be written: {error.strerror or error}") from None


# -- files that are a person's own -------------------------------------------------------------------------------------


def private_place(
    path: str | os.PathLike[str],
    apart_from: Iterable[str | os.PathLike[str]] = (),
    working_directory: str | None = ".",
) -> str:
    """Return the real path of a file out of reach of tools: outside of the working directory and of `apart_from`.

    A link as the last part of the path stays one, and is not followed. See
    docs/approvals.md#stores.

    Raises:
        ReachableError: The path lies inside one of them.
        StoreError: The text cannot be a path.
    """
    written = os.path.expanduser(os.fspath(path))
    try:
        folder, name = os.path.split(os.path.abspath(written))
        place = os.path.join(resolve_path(folder, "."), name)
        roots = [(os.fspath(root), resolve_path(os.path.expanduser(os.fspath(root)), ".")) for root in apart_from]
        if working_directory is not None:
            roots.append(("the working directory", resolve_path(working_directory, ".")))
    except (OSError, ValueError) as error:
        raise StoreError(f"{written!r} cannot be a path: {error}") from None
    for root_name, root in roots:
        if contains(root, place):
            where = root if root == root_name else f"{root_name} ({root})"
            raise ReachableError(f"{place!r} lies inside {where}, where tools may reach it. Use another place")
    return place


def read_private(place: str) -> bytes:
    """Return the content of the file at exactly this canonical path, which its owner alone may access.

    See docs/approvals.md#stores.

    Raises:
        FileNotFoundError: There is no file.
        StoreError: The file is a link or has several names, somebody else owns it or may read or write it, or others
            may write to its folder.
    """
    folder, name = os.path.split(place)
    try:
        with open_private_folder(folder) as directory, os.fdopen(directory.open(name, hard_links=False), "rb") as file:
            _check_private(place, os.fstat(file.fileno()), _OTHERS_BITS)
            return file.read()
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise StoreError(f"{place!r} cannot be read: {error}") from None


@contextlib.contextmanager
def open_private_folder(folder: str) -> Iterator[Directory]:
    """Open the folder at exactly this canonical path, to which only its owner may write.

    See docs/approvals.md#stores.

    Raises:
        StoreError: Somebody else owns it or may write to it.
    """
    with open_directory(folder) as directory:
        _check_private(folder, directory.stat_itself(), 0o022)
        yield directory


def _check_private(place: str, found: os.stat_result, others: int) -> None:
    if os.name == "nt":  # pragma: no cover
        return
    if found.st_uid not in {os.geteuid(), 0}:
        raise StoreError(f"{place!r} belongs to another user")
    if stat.S_IMODE(found.st_mode) & others:
        right = "0700" if stat.S_ISDIR(found.st_mode) else "0600"
        raise StoreError(f"others may write to {place!r}, or read it: chmod {right} {place}")


def read_key(place: str) -> bytes | None:
    """Return the key in the file at this canonical path, or `None` if there is none.

    See docs/approvals.md#stores.

    Raises:
        StoreError: The content is no key, or others may read it or write to its folder.
    """
    try:
        key = bytes.fromhex(read_private(place).decode("ascii"))
    except FileNotFoundError:
        return None
    except ValueError:
        key = b""
    if len(key) < KEY_BYTES:
        raise StoreError(f"{place!r} is no key. Restore it, or move it and the files that it seals away for new ones")
    return key


def make_key(place: str) -> None:
    """Write a new key to the file at this canonical path, if there is none.

    See docs/approvals.md#stores.

    Raises:
        StoreError: The file cannot be written.
    """
    folder, name = os.path.split(place)
    try:
        with lock_file(place), open_directory(folder) as directory:
            if directory.kind(name) is None:  # else another process has made it just now
                directory.write(name, secrets.token_hex(KEY_BYTES).encode(), mode=0o400)
    except OSError as error:
        raise StoreError(f"{place!r} cannot be made: {error}") from None


# -- a table of PostgreSQL ---------------------------------------------------------------------------------------------

DATABASE_URL = "FERRULE_DATABASE_URL"
"""The environment variable with the address of a database. See docs/limits.md#among-several-programs."""
_CONNECTIONS = 4
_IDLE_SECONDS = 1.0  # a connection idle for longer is checked before use: servers end idle connections
_DEFAULTS = {"connect_timeout": 10, "tcp_user_timeout": 10_000, "application_name": "ferrule"}
_STATEMENT_MS = "10000"


class Postgres:
    """A store in a table of PostgreSQL, for programs on many machines. See docs/limits.md#among-several-programs.

    The table is made on first use if it is missing. A lost connection is replaced at the next use; each wait has a
    bound of about ten seconds. The store has up to four connections, closed by `close()` or once nobody holds the
    store. It needs psycopg: `pip install ferrule[postgres]`.

    Args:
        url: The address of the database, `"postgresql://user:password@host/name"` or another form of libpq; by default
            the environment variable `FERRULE_DATABASE_URL`.
        table: The name of the table, after the schema and a point if its schema is not that of the connection.

    Raises:
        DefinitionError: There is no address, it cannot be parsed, or psycopg is not installed.
    """

    def __init__(self, url: str | None = None, *, table: str = "ferrule_store") -> None:
        given = os.environ.get(DATABASE_URL) if url is None else url
        if not given:
            raise DefinitionError(
                f"Postgres(url) needs the URL of a database. Pass it, or set {DATABASE_URL} in the environment"
            )
        try:
            import psycopg
            from psycopg.conninfo import conninfo_to_dict
        except ImportError as error:
            raise DefinitionError(
                f"PostgreSQL needs psycopg, which could not be imported ({error}): pip install ferrule[postgres]"
            ) from None
        try:
            self._address = {**_DEFAULTS, **conninfo_to_dict(given)}
        except psycopg.Error:
            raise DefinitionError(  # without the address, which may hold a password
                "the URL of the database cannot be read: postgresql://user:password@host:port/name is right"
            ) from None
        self._table = table
        self._pools: dict[int, _Pool] = {}
        self._pool()  # makes the pool now, so it is closed after the objects that use it

    def get(self, key: str) -> JsonValue:
        """Return a copy of the value, or `None`.

        Raises:
            StoreError: The database cannot be reached or read.
        """
        with self._execute("SELECT value FROM {table} WHERE key = %s", (key,)) as cursor:
            found = cursor.fetchone()
        return read_json(found[0]) if found else None

    def compare_and_set(self, key: str, old: JsonValue, new: JsonValue) -> bool:
        """Replace `old` with `new` in spite of other programs, and return whether `old` was there.

        Raises:
            StoreError: The database cannot be reached or changed. If the connection was lost on the way, the change may
                have been made.
        """
        before, after = row_text(old), row_text(new)
        if old is None and new is None:
            return self.get(key) is None
        if old is None:
            insert: LiteralString = "INSERT INTO {table} (key, value) VALUES (%s, %s) ON CONFLICT DO NOTHING"
            return self._execute_change(insert, (key, after))
        if new is None:
            return self._execute_change("DELETE FROM {table} WHERE key = %s AND value = %s", (key, before))
        return self._execute_change("UPDATE {table} SET value = %s WHERE key = %s AND value = %s", (after, key, before))

    def items(self, prefix: str = "") -> dict[str, JsonValue]:
        """Return all values at one moment under keys with this prefix, in the order of the keys.

        Raises:
            StoreError: The database cannot be reached or read.
        """
        wanted: LiteralString = "SELECT key, value FROM {table} WHERE key >= %s AND starts_with(key, %s) ORDER BY key"
        with self._execute(wanted, (prefix, prefix)) as cursor:
            return {key: read_json(value) for key, value in cursor}

    def close(self) -> None:
        """Close the idle connections. A later use of the store opens new ones."""
        for pool in self._pools.values():
            pool.close()

    def _execute_change(self, statement: LiteralString, parameters: tuple[str, ...]) -> bool:
        with self._execute(statement, parameters) as cursor:
            return cursor.rowcount == 1

    @contextlib.contextmanager
    def _execute(self, statement: LiteralString, parameters: tuple[str, ...]) -> Iterator[Cursor[Any]]:
        """Run one statement as its own transaction, and yield its cursor."""
        import psycopg
        from psycopg import sql

        query = sql.SQL(statement).format(table=sql.Identifier(*self._table.split(".")))
        try:
            with self._pool().connection() as connection:
                yield connection.execute(query, parameters)
        except (psycopg.Error, UnicodeError) as error:
            raise StoreError(f"the database cannot be used: {self._hide_password(error)}") from None

    def _pool(self) -> _Pool:
        """Return the pool of this process. A forked process leaves its parent's connections alone."""
        process = os.getpid()
        pool = self._pools.get(process)
        if pool is None:
            made = _Pool(self._address, self._table)
            pool = self._pools.setdefault(process, made)
            if pool is made:
                weakref.finalize(self, pool.close)
        return pool

    def _hide_password(self, error: Exception) -> str:
        text = " ".join(str(error).split())
        password = str(self._address.get("password") or os.environ.get("PGPASSWORD") or "")
        return text.replace(password, "***") if password else text


class _Pool:
    """The database connections of one process."""

    def __init__(self, address: Mapping[str, Any], table: str) -> None:
        self._address = address
        self._table = table
        self._free = threading.BoundedSemaphore(_CONNECTIONS)
        self._idle: list[tuple[Connection[Any], float]] = []
        self._process = os.getpid()

    @contextlib.contextmanager
    def connection(self) -> Iterator[Connection[Any]]:
        """Yield a connection that nobody else uses meanwhile. It is closed after an error."""
        if not self._free.acquire(timeout=_LOCK_SECONDS):
            raise StoreError(f"the database cannot be used: all {_CONNECTIONS} connections are busy")
        try:
            connection = self._reuse_connection() or self._connect()
            try:
                yield connection
            except BaseException:
                connection.close()
                raise
            self._idle.append((connection, time.monotonic()))
        finally:
            self._free.release()

    def close(self) -> None:
        """Close the idle connections, if they belong to this process."""
        while self._idle and self._process == os.getpid():
            with contextlib.suppress(IndexError):
                self._idle.pop()[0].close()

    def _reuse_connection(self) -> Connection[Any] | None:
        import psycopg

        while self._idle:
            try:
                connection, since = self._idle.pop()
            except IndexError:
                break
            try:
                if time.monotonic() - since > _IDLE_SECONDS:
                    connection.execute("SELECT 1")
            except psycopg.Error:
                connection.close()
            else:
                return connection
        return None

    def _connect(self) -> Connection[Any]:
        import psycopg
        from psycopg import sql

        connection = psycopg.connect(**self._address, autocommit=True)
        try:
            connection.execute("SELECT set_config('statement_timeout', %s, false)", (_STATEMENT_MS,))
            table = sql.Identifier(*self._table.split("."))
            if connection.execute("SELECT to_regclass(%s)", (table.as_string(connection),)).fetchone() == (None,):
                with connection.transaction():  # one program after the other: IF NOT EXISTS does not wait for others
                    connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (self._table,))
                    columns: LiteralString = '(key text COLLATE "C" PRIMARY KEY, value text NOT NULL)'
                    connection.execute(sql.SQL("CREATE TABLE IF NOT EXISTS {} " + columns).format(table))
        except BaseException:
            connection.close()
            raise
        return connection
