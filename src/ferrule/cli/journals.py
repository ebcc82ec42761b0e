"""The file of `--journal`, in which a command records its calls."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ferrule import Journal, Runner
from ferrule.cli.runners import list_roots
from ferrule.cli.text import warn
from ferrule.cli.usage import UsageError, place_file
from ferrule.policy import Policy
from ferrule.policy.files import state_folder
from ferrule.stores.store import ReachableError, private_place


def find_journal(path: str) -> str:
    """Return the journal to read: a file of that name in the working directory, or else in the state folder.

    Raises:
        UsageError: Both exist.
    """
    is_only_here = os.path.lexists(path) and not os.path.lexists(_journals_folder() / path)
    return path if is_only_here else place_file("--journal", path, _journals_folder(), may_be_here=True)


def place_journal(path: str) -> str:
    """Return the journal to write.

    Raises:
        UsageError: The name without a folder is also that of a file in the working directory.
    """
    return place_file("--journal", path, _journals_folder(), may_be_here=False)  # tools may reach the one here


def _journals_folder() -> Path:
    return state_folder() / "journals"


@contextmanager
def open_journal(work: asyncio.Runner, runner: Runner, path: str | None) -> Iterator[Runner]:
    """Yield the runner with a journal in the file at `path`, if a path is set. Calls that an earlier program left
    unfinished are settled first, and reported on standard error. Without a journal, warn about a policy that needs one.

    Raises:
        UsageError: The runner has its own journal, or its tools may reach the file.
        JournalError: The file cannot be used.
    """
    if path is None:
        if runner.journal is None and _remembers_calls(runner):
            warn("the policy counts and remembers calls until this command ends; to keep them, add --journal FILE")
        yield runner
        return
    place = _choose_place(runner, path)
    if place_journal(path) != path:
        os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
    with closing(Journal.open(place)) as journal:
        journaled = runner.replace(journal=journal)
        for result in work.run(journaled.recover()):
            history = shlex.join(["ferrule", "explain", path, result.call_id])
            warn(f"an earlier program was interrupted: {result.tool_name}: {result.error or result.text} ({history})")
        yield journaled


@contextmanager
def look_into_journal(runner: Runner, path: str | None) -> Iterator[Runner]:
    """Yield the runner with the journal at `path`, if a path is set, so that a policy can judge a call by earlier ones.
    Nothing is settled. Without a journal, warn about a policy that needs one.

    Raises:
        UsageError: There is no such file, the runner has its own journal, or its tools may reach the file.
        JournalError: The file cannot be used.
    """
    if path is None:
        if runner.journal is None and _remembers_calls(runner):
            warn("the policy is asked as if there were no earlier calls; to judge by those of a journal, add --journal")
        yield runner
        return
    place = _choose_place(runner, path)
    if not os.path.lexists(place):
        raise UsageError(f"--journal: there is no journal {place!r}")
    with closing(Journal.open(place)) as journal:
        yield runner.replace(journal=journal)


def _choose_place(runner: Runner, path: str) -> str:
    """Return the real path of the journal, for a runner without one.

    Raises:
        UsageError: The runner has its own journal, or its tools may reach the file.
    """
    if runner.journal is not None:
        raise UsageError("--journal: the runner that --tools names has its own journal; leave the option out")
    try:
        file = place_journal(path)
        place = private_place(file, list_roots([runner]), working_directory=None)
    except ReachableError as error:
        hint = f", such as {str(_journals_folder())!r}" if file == path else ", or start the command in another folder"
        raise UsageError(f"--journal: {error}{hint}") from None
    return place


def _remembers_calls(runner: Runner) -> bool:
    """Return whether a policy has rules about earlier calls."""
    rules = [rule for guard in runner.guards if isinstance(guard, Policy) for rule in guard.rules]
    return any(rule.when is not None and rule.when.needs_marks for rule in rules)
