"""The state between the lines of one session: the working directory and the exported variables."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_VARIABLE: Final = re.compile(rb"(?!(?:PWD|OLDPWD|SHLVL|_)=)[A-Za-z_][A-Za-z0-9_]*=")

VARIABLES_FILE: Final = "/tmp/.variables"
STATE_SCRIPT: Final = f"""
while IFS= read -rd '' one; do export "$one"; done <{VARIABLES_FILE} 2>/dev/null; unset one
trap '{{ pwd -P; printf "\\0"; env -0; }} >&%d' EXIT"""
"""Lines of bash that read a state, and write the new one to a descriptor at the end.

A line has chosen the variables. Here they reach nothing outside the sandbox, and come after the limits.
"""


class State(NamedTuple):
    """The state of one session. It is data from a model's line, so it counts only inside the sandbox.

    Attributes:
        directory: The working directory.
        variables: The variables, each as `NAME=value` with a NUL at its end.
    """

    directory: str = "."
    variables: bytes = b""


def read_state(data: bytes) -> State | None:
    """Return the state that a line has written, or None if it wrote none."""
    directory, found, rest = data.partition(b"\n\0")
    variables = b"".join(one + b"\0" for one in rest.split(b"\0") if _VARIABLE.match(one))
    return State(directory.decode("utf-8", "replace"), variables) if found else None
