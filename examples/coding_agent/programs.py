"""Runs a program of the project: no input, no terminal, few variables, and a limit on its output."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from contextlib import suppress

ENVIRONMENT = ("PATH", "HOME", "LANG", "TMPDIR", "SYSTEMROOT")
"""The variables that a program gets: not the key of the model, and not BASH_ENV. It runs with your rights, so it may
still find the key in /proc or in your files."""

MOST_SHOWN = 200_000
"""Bytes of the output that the model sees: the last ones, because errors come at the end."""

MOST_WRITTEN = 50_000_000
"""Bytes of the output after which the program is killed. They are on the disk."""


def run_program(command: list[str], folder: str | None) -> str:
    """Return the exit code of a program and its output below it."""
    with tempfile.TemporaryFile() as output:  # a background process would keep a pipe open
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        while process.poll() is None and os.fstat(output.fileno()).st_size <= MOST_WRITTEN:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        code = process.poll()
        kill_group(process)
        process.wait()
        status = f"ended: it wrote more than {MOST_WRITTEN:,} bytes" if code is None else f"exit code {code}"
        output.seek(max(output.seek(0, os.SEEK_END) - MOST_SHOWN, 0))
        return f"{status}\n{output.read(MOST_SHOWN).decode(errors='replace')}"


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a program and its background processes."""
    if os.name == "nt":
        process.kill()
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
