"""`ferrule worker`: runs the calls that programs put into the queues of these tools."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import threading
from functools import partial
from typing import Any

from ferrule import DefinitionError, Runner
from ferrule.cli.load import load_object
from ferrule.cli.stopping import run_until_signal
from ferrule.cli.text import warn
from ferrule.cli.usage import UsageError, parse_number
from ferrule.remote import dbos
from ferrule.sources._objects import to_toolset

_KILL_AFTER = 5.0


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the tools, and the time for running calls at the end."""
    parser.add_argument(
        "place",
        metavar="MODULE",
        help="the module of the tools as programs import it, whose isolation is a dbos.queue; or MODULE:NAME for "
        "tools, a runner, or a dbos.worker with deps. Set DBOS_SYSTEM_DATABASE_URL to the address of the database, and "
        "FERRULE_REMOTE_KEY to the key of the programs",
    )
    parser.add_argument(
        "--drain", type=_drain_seconds, metavar="SECONDS", help="time for running calls when it stops (default: 30)"
    )


def _drain_seconds(text: str) -> float:
    return parse_number(text, "a number of seconds, such as 30", 1e9)


def command(options: argparse.Namespace) -> int:
    """Run until a signal comes. Refused calls are reported on standard error."""
    logging.basicConfig(format="ferrule: %(message)s")
    worker = _load_worker(options.place)
    if options.drain is not None:
        worker.drain = options.drain
    code = asyncio.run(run_until_signal(partial(_take_calls, worker)))
    kill = threading.Timer(_KILL_AFTER, os._exit, [code])  # threads of DBOS may wait for a missing database
    kill.daemon = True
    kill.start()
    return code


def _load_worker(place: str) -> dbos.Worker:
    if (file := place.partition(":")[0]).endswith(".py"):
        raise UsageError(
            f"{file!r} is a file, and programs name tools by module: change to its folder, and write "
            f"{place.replace('.py', '', 1)!r}"
        )
    item: Any = load_object(place)
    if isinstance(item, dbos.Worker):
        return item
    try:
        return dbos.worker(item.tools if isinstance(item, Runner) else to_toolset(item))
    except DefinitionError as error:
        raise UsageError(f"{place!r} cannot be a worker: {error}") from None


async def _take_calls(worker: dbos.Worker, *, stop: asyncio.Event) -> None:
    try:
        async with worker:
            warn(f"taking calls from {', '.join(worker.queues)}")
            await stop.wait()
    except asyncio.CancelledError:  # threads cannot be cancelled
        os._exit(128 + signal.SIGINT)
