"""The tool that runs the project's tests: one program, no shell, and nothing from the model but a path.

It runs in a worker process of Ferrule's, which is killed at the deadline with all that the tests have started. A worker
imports the module of its tool and never runs the script, so the tool is in a file of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ferrule import ToolContext, tool

COMMAND = [sys.executable, "-m", "pytest", "-q", "--color=no"]
"""What is started; the path is put at its end. Name the Python of the project's own environment here."""

PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR", "SYSTEMROOT")
"""What the tests see of the environment: not the key of the model, for they run code that a model wrote."""


@tool(isolation="process", timeout=300)
def run_tests(context: ToolContext, path: Path = Path(".")) -> str:
    """Run the tests of the project, and show what they said.

    Args:
        path: A file or folder with tests; all of them where it is left out.
    """
    folder = context.working_directory
    ended = subprocess.run(
        [*COMMAND, os.path.join(folder, path)],  # a whole path, which no program takes for an option
        cwd=folder,
        env={name: os.environ[name] for name in PASSED_ON if name in os.environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    return f"exit code {ended.returncode}\n{ended.stdout}"
