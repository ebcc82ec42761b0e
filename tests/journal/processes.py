"""Programs beside a test, which print what they do and wait for a line."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ferrule.values.journal_entry import Intent

SECONDS = 60
"""How long a test waits for something that must happen."""
_numbers = itertools.count(1)

PROGRAM = """
import asyncio, os, signal, sqlite3, sys, time
from ferrule import Journal
from ferrule.errors import JournalError
from processes import intent
path = sys.argv[1]
def say(*what): print(*what, flush=True)
def wait(): return sys.stdin.readline().strip()
"""


def intent(key: str, claim: str | None = None, **facts: Any) -> Intent:
    """The intent of a call of this key, with a claim of its own."""
    given: dict[str, Any] = {
        "key": key,
        "reference": key,
        "claim": claim or f"claim {next(_numbers)} of {os.getpid()}",
        "call_id": "c1",
        "tool_name": "pay",
        "principal": None,
        "session": "s",
        "parent": None,
        "fingerprint": "f",
        "arguments": {},
        "at": 1.0,
    }
    return Intent(**{**given, **facts})


class Program:
    """A process that runs `PROGRAM` and then a text of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def read_line(self) -> str:
        """Return the next line that it prints; empty if it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, what: str = "") -> None:
        """Send it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """End it by SIGKILL, and wait until it has ended."""
        self.process.kill()
        self.process.wait(SECONDS)

    def rest(self) -> str:
        """Wait until it has ended by itself, and return all that it printed."""
        said, _ = self.process.communicate(timeout=SECONDS)
        assert self.process.returncode == 0, said
        return said.strip()


@contextmanager
def program(text: str, *arguments: object, under: tuple[str, ...] = ()) -> Iterator[Program]:
    """Run a program in this block; `under` is a command that runs it."""
    command = [*under, sys.executable, "-c", PROGRAM + text, *map(str, arguments)]
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    try:
        yield Program(process)
    finally:
        process.kill()
        process.communicate()


BEGINS = """
async def main():
    journal = Journal.open(path)
    for key in sys.argv[2:] or ["one"]:
        await journal.begin(intent(key, claim=f"of {key}"))
    say("begun")
    wait()
    for key in sys.argv[2:]:
        await journal.end(intent(key, claim=f"of {key}"), {"status": "ok"})
    say("ended")
    wait()
asyncio.run(main())
"""
"""Begins a call for each key, and ends them at a word."""
LOOKS = "journal = Journal.open(path); say(asyncio.run(journal.find(sys.argv[2])).state); journal.close()"


def state_elsewhere(path: object, before: str = "", key: str = "one") -> str:
    """The state of a call, as a process finds it that begins with the text `before`."""
    with program(before + LOOKS, path, key) as other:
        return other.rest()
