"""The tool that runs a command line in bash. Whether a line may run is for the policy to say, before it comes here.

Bash reads no file at its start and no variable but those below, so that the words of a line mean here what the policy
has read in them. It has nothing to read from, and a session of its own, without a terminal. It runs in a worker process
of Ferrule's, as the tests do: at the deadline that is killed with all that the line has started, in the background and
in other sessions too (on Linux).
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from contextlib import suppress

from ferrule import ToolContext, tool

BASH = ["/bin/bash", "--noprofile", "--norc", "-c", "--"]
"""What is started; the line is put at its end."""

PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR")
"""What a command sees of the environment: not the key of the model, and no BASH_ENV."""

MOST = 200_000
"""Bytes of the output that are read; what is longer is cut in front, for errors stand at the end."""


@tool(isolation="process", timeout=120)
def shell(context: ToolContext, command: str) -> str:
    """Run a command line in the project's folder, and show what it wrote. It cannot ask anything back.

    Args:
        command: The line. A plain one, such as `git status`, is asked about less often than several in one.
    """
    with tempfile.TemporaryFile() as output:  # a pipe would be held open by what goes on in the background
        started = subprocess.Popen(
            [*BASH, command],
            cwd=context.working_directory,
            env={name: os.environ[name] for name in PASSED_ON if name in os.environ},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code = started.wait()
        with suppress(ProcessLookupError):  # what it left in the background ends with it
            os.killpg(started.pid, signal.SIGKILL)
        output.seek(max(output.seek(0, os.SEEK_END) - MOST, 0))
        return f"exit code {code}\n{output.read().decode(errors='replace')}"
