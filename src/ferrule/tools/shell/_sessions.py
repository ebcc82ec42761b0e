"""The state between the lines of one session: the working directory and the exported variables."""

from __future__ import annotations

import re
import threading
from typing import Final, NamedTuple

_MAX_SESSIONS: Final = 1000
_VARIABLE: Final = re.compile(rb"(?!(?:PWD|OLDPWD|SHLVL|_)=)[A-Za-z_][A-Za-z0-9_]*=")

VARIABLES_FILE: Final = "/tmp/.variables"
LINE_WITH_STATE: Final = f"""
while IFS= read -rd '' one; do export "$one"; done <{VARIABLES_FILE} 2>/dev/null; unset one
trap '{{ pwd -P; printf "\\0"; env -0; }} >&%d' EXIT; eval -- "$1" """
"""Lines of bash that read a state, run the first argument, and write the new state to a descriptor.

A line has chosen the variables. Here they reach nothing outside the sandbox, and come after the limits.
"""


class State(NamedTuple):
    """The state of one session. It is data from a model's line, so it counts only inside the sandbox.

    Attributes:
        directory: The working directory.
        variables: The variables, each as `NAME=value` with a NUL at its end.
    """

    directory: str | None = None
    variables: bytes = b""


def read_state(data: bytes) -> State | None:
    """Return the state that a line has written, or None if it wrote none."""
    directory, found, rest = data.partition(b"\n\0")
    variables = b"".join(one + b"\0" for one in rest.split(b"\0") if _VARIABLE.match(one))
    return State(directory.decode("utf-8", "replace"), variables) if found else None


class States:
    """The states of the newest sessions, by principal and session."""

    def __init__(self) -> None:
        self._states: dict[object, State] = {}
        self._lock = threading.Lock()

    def get(self, key: object) -> State:
        """Return the state of a session; a new session has none."""
        return self._states.get(key, State())

    def set(self, key: object, state: State | None) -> None:
        """Store the state of a session, if there is one. The oldest of very many is forgotten."""
        with self._lock:
            if state is not None:
                self._states.pop(key, None)
                self._states[key] = state
            if len(self._states) > _MAX_SESSIONS:
                del self._states[next(iter(self._states))]
