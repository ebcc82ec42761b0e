"""The state between the lines of one session: the working directory and the exported variables."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_MAX_SESSIONS: Final = 1000
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OWN_NAMES: Final = frozenset({"PWD", "OLDPWD", "SHLVL", "_"})

VARIABLES_FILE: Final = "/tmp/.variables"
LINE_WITH_STATE: Final = f"""
while IFS= read -rd '' one; do export "$one"; done <{VARIABLES_FILE} 2>/dev/null; unset one
trap '{{ pwd -P; printf "\\0"; env -0; }} >&%d' EXIT; eval "$1" """
"""Lines of bash that read a state, run the first argument, and write the new state to a descriptor.

A line has chosen the variables. Here they reach nothing outside the sandbox, and come after the limits.
"""


@dataclass(frozen=True, slots=True)
class State:
    """The state of one session. It is data from a model's line, so it counts only inside the sandbox."""

    directory: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    def encode_variables(self) -> bytes:
        """Return the content of the file of variables."""
        return b"".join(f"{name}={value}\0".encode() for name, value in self.variables.items())


def read_state(data: bytes) -> State | None:
    """Return the state that a line has written, or None if it wrote none."""
    directory, found, rest = data.partition(b"\n\0")
    if not found:
        return None
    pairs = (one.decode("utf-8", "replace").partition("=") for one in rest.split(b"\0"))
    variables = {name: value for name, equals, value in pairs if equals and _NAME.fullmatch(name)}
    kept = {name: value for name, value in variables.items() if name not in _OWN_NAMES}
    return State(directory.decode("utf-8", "replace"), kept)


class Sessions:
    """The states of the newest sessions, by principal and session."""

    def __init__(self) -> None:
        self._states: OrderedDict[object, State] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: object) -> State:
        """Return the state of a session; a new session has none."""
        with self._lock:
            return self._states.get(key, State())

    def set(self, key: object, state: State) -> None:
        """Store the state of a session. The oldest of very many is forgotten."""
        with self._lock:
            self._states[key] = state
            self._states.move_to_end(key)
            while len(self._states) > _MAX_SESSIONS:
                self._states.popitem(last=False)
