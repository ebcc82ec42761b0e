"""A PostgreSQL server of a test's own: made in a temporary folder, on this machine alone, gone at the end.

    with postgres.server() as url_of:
        store = Postgres(url_of("one"))

The fixture `postgres_url` of `tests/conftest.py` is such an `url_of`, of one server for all tests of a run.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from needed import needed

USER = "ferrule"
SECONDS = 60
"""How long one step may take: making the files, starting, stopping."""
UNSAFE = ("fsync=off", "full_page_writes=off", "synchronous_commit=off")
"""What a crash of the machine may cost is worth nothing here."""
SMALL = ("shared_buffers=16MB", "max_connections=200", "autovacuum=off")


@contextmanager
def server() -> Iterator[Callable[[str], str]]:
    """A function that makes an empty database of a name, in the place of one that there was, and gives its URL. A test
    is skipped where there is no PostgreSQL, and fails where FERRULE_NEEDS=all."""
    programs, identity = needed("postgres"), unprivileged()
    folder = Path(tempfile.mkdtemp(prefix="ferrule-pg-"))
    try:
        if identity:
            shutil.chown(folder, identity["user"], identity["group"])
        make = [programs["initdb"], "-D", str(folder / "data"), "-U", USER, "--auth=trust", "--no-sync"]
        made = subprocess.run(
            [*make, "--encoding=UTF8", "--locale=C"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            **identity,
        )
        assert made.returncode == 0, made.stderr
        with running(programs["postgres"], folder, identity) as address:
            yield lambda name: new_database(address, name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def unprivileged() -> dict[str, Any]:
    """Whom the server runs as: it refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    import grp
    import pwd

    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    chosen = known.get("postgres") or known["nobody"]
    return {"user": chosen.pw_name, "group": grp.getgrgid(chosen.pw_gid).gr_name, "extra_groups": ()}


@contextmanager
def running(program: str, folder: Path, identity: dict[str, Any]) -> Iterator[str]:
    """The server while it runs: what the URLs of its databases begin with."""
    port = free_port()
    network = (f"port={port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={folder}")
    settings = [word for setting in (*network, *UNSAFE, *SMALL) for word in ("-c", setting)]
    log = folder / "log"
    with log.open("wb") as said:
        started = subprocess.Popen(
            [program, "-D", str(folder / "data"), *settings],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,  # Ctrl-C in a terminal is for the tests, which end it then
            **identity,
        )
    try:
        address = f"postgresql://{USER}@127.0.0.1:{port}"
        await_start(started, f"{address}/postgres", log)
        yield address
    finally:
        stop(started)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def await_start(started: subprocess.Popen[bytes], url: str, log: Path) -> None:
    import psycopg

    ends = time.monotonic() + SECONDS
    while True:
        try:
            psycopg.connect(url, connect_timeout=SECONDS).close()
            return
        except psycopg.OperationalError as error:
            if started.poll() is not None or time.monotonic() > ends:
                said = log.read_text(encoding="utf-8", errors="replace")
                raise AssertionError(f"no PostgreSQL: {error}\n{said}") from error
            time.sleep(0.05)


def stop(started: subprocess.Popen[bytes]) -> None:
    """End it, without waiting for its clients."""
    started.send_signal(signal.SIGINT)
    try:
        started.wait(SECONDS)
    except subprocess.TimeoutExpired:
        started.kill()
        started.wait(SECONDS)


def new_database(address: str, name: str) -> str:
    import psycopg
    from psycopg import sql

    with psycopg.connect(f"{address}/postgres", autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return f"{address}/{name}"
