"""The state between the lines of one session: the working directory and the exported variables.

It is a script of bash, which lines read and write through a descriptor. A model has chosen it, so nothing outside the
sandbox reads it.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from shlex import quote
from typing import Final

from ferrule.tools.shell._process import Run, keep_bytes

_MAX_SESSIONS: Final = 1000
_MAX_BYTES: Final = 262_144


class Sessions:
    """The states of the newest sessions.

    Args:
        root: The folder in which a working directory persists.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._states: OrderedDict[object, bytes] = OrderedDict()

    @contextmanager
    def join(self, session: object, run: Run, directory: str) -> Iterator[Run]:
        """Yield a run that begins with the state of a session and then in this directory, and store its new state."""
        number = keep_bytes(self._states.get(session, b""))
        try:
            file, (lines, *words) = f"/dev/fd/{number}", run.script
            move = f'[[ $PWD/ == {quote(self._root)}/* ]] && printf "cd %q" "$PWD"'
            keep = quote(f"{{ export -p; {move}; }} >{file}")
            lines = f". {file} 2>/dev/null; cd -- {quote(directory)}; trap {keep} EXIT; {lines}"
            yield replace(run, script=[lines, *words], inherited=[number])
            if len(state := os.pread(number, _MAX_BYTES + 1, 0)) <= _MAX_BYTES:
                self._states.pop(session, None)
                self._states[session] = state
            if len(self._states) > _MAX_SESSIONS:
                self._states.popitem(last=False)
        finally:
            os.close(number)
