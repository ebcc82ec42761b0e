"""`ferrule worker`: runs the calls that programs put into the queues of these tools."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import threading
from typing import Any

from ferrule import DefinitionError, Runner
from ferrule.cli import find
from ferrule.cli.until import until_told
from ferrule.cli.usage import UsageError
from ferrule.remote import dbos
from ferrule.sources._objects import to_toolset

_KILL_AFTER = 5.0


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the tools, and the seconds that running calls may take at the end."""
    parser.add_argument(
        "place",
        metavar="MODULE",
        help="where the tools are whose isolation is a dbos.queue, as programs import it, or that with :attribute; or "
        "a dbos.worker, which has their deps. The environment has the address of the database, "
        "DBOS_SYSTEM_DATABASE_URL, and the key, FERRULE_REMOTE_KEY",
    )
    parser.add_argument(
        "--drain", type=_drain_seconds, metavar="SECONDS", help="how long calls have to end when it stops (30)"
    )


def _drain_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"it must be seconds from 0, not {text!r}")
    return seconds


def command(options: argparse.Namespace) -> int:
    """Run until a signal comes. Refused orders are reported on standard error."""
    logging.basicConfig(format="ferrule: %(message)s")
    worker = _worker(options.place)
    if options.drain is not None:
        worker.drain = options.drain
    code = asyncio.run(until_told(_Running(worker)))
    kill = threading.Timer(_KILL_AFTER, os._exit, [code])  # threads of DBOS wait for a database that is gone
    kill.daemon = True
    kill.start()
    return code


def _worker(place: str) -> dbos.Worker:
    if (file := place.partition(":")[0]).endswith(".py"):
        raise UsageError(
            f"programs order tools by the name of their module: write {place.replace('.py', '', 1)!r}, in the folder "
            f"where {file!r} is"
        )
    what: Any = find.object_at(place)
    if isinstance(what, dbos.Worker):
        return what
    try:
        return dbos.worker(what.tools if isinstance(what, Runner) else to_toolset(what))
    except DefinitionError as error:
        raise UsageError(f"{place!r} gives no worker: {error}") from None


class _Running:
    def __init__(self, worker: dbos.Worker) -> None:
        self._worker = worker

    async def __call__(self, *, stop: asyncio.Event) -> None:
        try:
            async with self._worker:
                print(f"ferrule: taking calls from {', '.join(self._worker.queues)}", file=sys.stderr, flush=True)
                await stop.wait()
        except asyncio.CancelledError:  # cancelled: threads may not be
            os._exit(128 + signal.SIGINT)
