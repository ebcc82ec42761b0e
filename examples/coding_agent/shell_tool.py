"""The tool that runs a command line in bash. Whether a line may run is for the policy to say, before it comes here.

Bash reads no file at its start and few variables (see `programs`), so that words of a line mean here what the policy
has read in them. It has nothing to read from, and a session of its own, without a terminal. It runs in a worker process
of Ferrule's, as the tests do: at the deadline that is killed with all that the line has started, in the background and
in other sessions too (on Linux).
"""

from __future__ import annotations

from programs import output_of

from ferrule import ToolContext, tool

BASH = ["/bin/bash", "--noprofile", "--norc", "-c", "--"]
"""What is started; the line is put at its end."""


@tool(isolation="process", timeout=120)
def shell(context: ToolContext, command: str) -> str:
    """Run a command line in the project's folder, and show what it wrote. It cannot ask anything back.

    Args:
        command: The line. A plain one, such as `git status`, is asked about less often than several in one.
    """
    return output_of([*BASH, command], context.working_directory)
