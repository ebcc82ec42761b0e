"""The tool that runs a command line in bash. The policy decides before whether the line may run.

Bash reads no start-up file and few variables (see `programs.py`), so a line means here what the policy has read in it.
It has no input and no terminal. It runs in a worker process of Ferrule, which is killed at the deadline with everything
that the line has started, on Linux also in the background and in other sessions.
"""

from __future__ import annotations

from programs import run_program

from ferrule import ToolContext, tool

BASH = ["/bin/bash", "--noprofile", "--norc", "-c", "--"]
"""The command line is appended."""


@tool(isolation="process", timeout=120)
def shell(context: ToolContext, command: str) -> str:
    """Run a command line in the project's folder, and show its output. It has no input.

    Args:
        command: The line. A simple one such as `git status` needs approval less often than a combined one.
    """
    return run_program([*BASH, command], context.working_directory)
