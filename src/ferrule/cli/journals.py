"""The file of `--journal`, in which a command records its calls."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager

from ferrule import Journal, Runner
from ferrule.cli.runners import list_roots
from ferrule.cli.text import warn
from ferrule.cli.usage import UsageError, place_file
from ferrule.policy.files import state_folder
from ferrule.stores.store import ReachableError, private_place


def find_journal(path: str) -> str:
    """Return the journal to read: a file of that name in the working directory, or else in the state folder."""
    return path if os.path.lexists(path) else place_journal(path)


def place_journal(path: str) -> str:
    """Return the journal to write.

    Raises:
        UsageError: The name without a folder is also that of a file in the working directory.
    """
    return place_file("--journal", path, state_folder() / "journals")


@contextmanager
def open_journal(work: asyncio.Runner, runner: Runner, path: str | None) -> Iterator[Runner]:
    """Yield the runner with a journal in the file at `path`, if a path is set. Calls that an earlier program left
    unfinished are settled first, and reported on standard error.

    Raises:
        UsageError: The runner has its own journal, or its tools may reach the file.
        JournalError: The file cannot be used.
    """
    if path is None:
        yield runner
        return
    if runner.journal is not None:
        raise UsageError("--journal: the runner that --tools names has its own journal; leave the option out")
    try:
        file = place_journal(path)
        place = private_place(file, list_roots([runner]), working_directory=None)
        if file != path:
            os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
    except ReachableError as error:
        raise UsageError(f"--journal: {error}") from None
    with closing(Journal.open(place)) as journal:
        journaled = runner.replace(journal=journal)
        for result in work.run(journaled.recover()):
            warn(f"an earlier program was interrupted: {result.tool_name}: {result.error or result.text}")
        yield journaled
