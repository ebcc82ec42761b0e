"""The file in which a command records its calls, by `--journal`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

from ferrule import Journal, Runner
from ferrule.approval import printable
from ferrule.cli.find import roots_of
from ferrule.cli.text import short
from ferrule.cli.usage import UsageError
from ferrule.policy.files import state_folder
from ferrule.stores.store import ReachableError, private_place

_MOST_OF_A_LINE = 500


def add_journal(parser: argparse.ArgumentParser) -> None:
    """Add the option of the commands that run tools."""
    parser.add_argument(
        "--journal",
        metavar="FILE",
        help="keep every call in this file; a name without a folder is one in the state folder. `ferrule log FILE` "
        "shows what happened",
    )


def file_of(path: str) -> str:
    """Return the journal's file. A name without a folder is a file in the state folder, where no tools work, unless the
    working directory has one of that name.
    """
    return path if os.path.dirname(path) or os.path.lexists(path) else str(state_folder() / "journals" / path)


@contextmanager
def kept(work: asyncio.Runner, runner: Runner, path: str | None) -> Iterator[Runner]:
    """Yield the runner with a journal in the file at `path`, if there is one. Calls that an earlier program left open
    there are settled first, and reported on standard error.

    Raises:
        UsageError: The runner has a journal of its own, or its tools may reach the file.
        JournalError: The file cannot be used.
    """
    if path is None:
        yield runner
        return
    if runner.journal is not None:
        raise UsageError("--journal: the runner in this file has a journal of its own")
    try:
        file = file_of(path)
        place = private_place(file, roots_of([runner]), working_directory=None)
        if file != path:
            os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
    except ReachableError as error:
        raise UsageError(f"--journal: {error}") from None
    with closing(Journal.open(place)) as journal:
        journaled = runner.replace(journal=journal)
        for result in work.run(journaled.recover()):
            said = " ".join((result.error or result.text).split())
            line = short(f"ferrule: cut off before: {result.tool_name}: {said}", _MOST_OF_A_LINE)
            print(printable(line), file=sys.stderr)
        yield journaled
