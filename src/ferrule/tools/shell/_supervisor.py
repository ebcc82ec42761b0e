"""The supervisor of a program without a sandbox: it starts the program, and kills its whole tree.

This file is run by its path, with a descriptor and a command as its arguments. The descriptor is one end of a pipe: a
byte in it lets the program start, and its end, also by the death of Ferrule's process, ends the program.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import suppress

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def main(lifeline: int, command: list[str]) -> int:
    """Run a command and return its exit code, or 128 and the number of the signal that killed it."""
    os.set_inheritable(lifeline, False)
    with suppress(Exception):  # adopt orphans, if the system can do that
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if not os.read(lifeline, 1):
        return 1
    child = os.fork()
    if child == 0:
        os.setsid()
        try:
            os.execvp(command[0], command)
        finally:
            os._exit(127)
    status = None
    while status is None and not select.select([lifeline], [], [], 0.02)[0]:
        found, value = os.waitpid(child, os.WNOHANG)
        status = value if found else None
    code = 128 + signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)
    if status is None:
        with suppress(OSError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    _kill_children()
    return code if code >= 0 else 128 - code


def _kill_children() -> None:
    """Kill the children of this process, adopted ones included, until there are none."""
    others: set[int] = set()
    while children := _find_children() - others:
        for child in children:
            try:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            except (PermissionError, ChildProcessError, ProcessLookupError):  # it runs as another user, or has ended
                others.add(child)


def _find_children() -> set[int]:
    own = str(os.getpid())
    names = os.listdir("/proc") if os.path.isdir("/proc") else []
    return {int(name) for name in names if name.isdigit() and _read_parent(name) == own}


def _read_parent(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/stat") as fields:
            return fields.read().rpartition(")")[2].split()[1]
    except OSError:
        return ""


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]), sys.argv[2:]))
