"""The tool that runs the project's tests: one program, no shell, and nothing from the model but a path.

It runs in a worker process of Ferrule's, which is killed at the deadline with all that the tests have started. A worker
imports the module of its tool and never runs the script, so the tool is in a file of its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from programs import output_of

from ferrule import ToolContext, tool

COMMAND = [sys.executable, "-m", "pytest", "-q", "--color=no"]
"""What is started; the path is put at its end. Name the Python of the project's own environment here."""


@tool(isolation="process", timeout=300)
def run_tests(context: ToolContext, path: Path = Path(".")) -> str:
    """Run the tests of the project, and show what they said.

    Args:
        path: A file or folder with tests; all of them where it is left out.
    """
    folder = context.working_directory
    # a whole path, which no program takes for an option
    return output_of([*COMMAND, os.path.join(folder, path)], folder)
