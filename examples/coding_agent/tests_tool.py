"""The tool that runs the project's tests: one program, no shell, and only a path from the model.

It runs in a worker process of Ferrule, which is killed at the deadline with everything that the tests have started. A
worker imports the module of its tool and never the script, so the tool needs its own file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from programs import run_program

from ferrule import ToolContext, tool

COMMAND = [sys.executable, "-m", "pytest", "-q", "--color=no"]
"""The path is appended. Use the Python of the project's own environment here."""


@tool(isolation="process", timeout=300)
def run_tests(context: ToolContext, path: Path = Path(".")) -> str:
    """Run the tests of the project, and show their output.

    Args:
        path: A file or folder with tests. Leave it out to run all tests.
    """
    folder = context.working_directory
    # an absolute path, which no program reads as an option
    return run_program([*COMMAND, os.path.join(folder, path)], folder)
