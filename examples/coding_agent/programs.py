"""Runs a program of the project: with nothing to read from, few variables, a session of its own without a terminal, and
a bound on what it writes."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from contextlib import suppress

PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR", "SYSTEMROOT")
"""What a program sees of the environment: not the key of the model, and no BASH_ENV. It runs with your rights, so it
may find more where it looks for it, such as in /proc or in your files."""

SHOWN = 200_000
"""Bytes of the output that are read; what is longer is cut in front, for errors stand at the end."""

ENDED_AT = 50_000_000
"""Bytes of the output at which a program is ended: they lie on the disk."""


def output_of(command: list[str], folder: str | None) -> str:
    """What a program wrote, below the code that it ended with."""
    with tempfile.TemporaryFile() as output:  # a pipe would be held open by what goes on in the background
        started = subprocess.Popen(
            command,
            cwd=folder,
            env={name: os.environ[name] for name in PASSED_ON if name in os.environ},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        while started.poll() is None and os.fstat(output.fileno()).st_size <= ENDED_AT:
            with suppress(subprocess.TimeoutExpired):
                started.wait(0.05)
        code = started.poll()
        end(started)
        started.wait()
        told = f"ended: it wrote more than {ENDED_AT:,} bytes" if code is None else f"exit code {code}"
        output.seek(max(output.seek(0, os.SEEK_END) - SHOWN, 0))
        return f"{told}\n{output.read(SHOWN).decode(errors='replace')}"


def end(started: subprocess.Popen[bytes]) -> None:
    """End a program, and what it left in the background."""
    if os.name == "nt":
        started.kill()
        return
    with suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
