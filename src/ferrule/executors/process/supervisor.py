"""The supervisor of a worker process. It forks the worker, and kills it with everything that it has started.

    program ═══ lifeline ═══ supervisor  kills the worker's group, and waits for the dead processes
       └────── connection ── worker      the leader of its own process group; runs one call at a time

The program alone holds the other end of `lifeline`. It closes that end to have the worker killed. The system closes it
when the program ends, even by SIGKILL, and even if the worker holds the GIL in C. On Linux the supervisor adopts the
orphans of the worker. So it finds processes that moved to another group or session, and killed processes do not wait
for a container's first process to reap them.

Over `lifeline` the program also sends its liveness files (`executors/liveness.py`). The supervisor holds them until the
worker has ended, so no other program counts the call as cut off while the worker still runs it.

It also runs single programs, such as a line of a shell without a sandbox: see `run_command`.

This file is run by its path. `-m` would import the whole package before the first line here, and it would find the
package only on the default path. So this file imports the standard library alone, and little of it. The worker imports
Ferrule by the path that the program used. Later changes of the path come with the first message.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys
from contextlib import suppress
from typing import NoReturn

NUMBER = struct.Struct("!q")
"""A message of the supervisor over `lifeline`: the worker's process id, and at the end its exit code or negative
signal."""
HOLD_FILES = b"\0"
"""A message of the program over `lifeline`: hold the attached open files instead of earlier ones."""
RUN_COMMAND = "run"
"""The argument, instead of the worker's socket, before a command to run."""
_MAX_FILES = 253  # SCM_MAX_FD of Linux
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def main(lifeline: socket.socket, connection: int, path: list[str]) -> None:
    """Fork a worker that uses the socket `connection` and imports from `path`."""
    # The signal mask is inherited from the thread that started this process, which may have blocked signals.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    worker = os.fork()
    with suppress(OSError):  # parent and child both do this, because either may be first
        os.setpgid(worker, worker or os.getpid())
    if worker:
        _supervise(lifeline, connection, worker)
    lifeline.close()
    os.set_inheritable(connection, False)
    sys.path[:] = path
    sys.argv[:] = ["ferrule-worker"]
    from ferrule.executors.process.worker import run_worker

    run_worker(socket.socket(fileno=connection))


def _supervise(lifeline: socket.socket, connection: int, worker: int) -> NoReturn:
    try:
        for one in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(one, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: _reap_orphans(worker))
        for descriptor in (0, 1, 2, connection):  # a reader of the program's output waits until all writers close it
            os.close(descriptor)
        _become_subreaper()  # before the worker can import anything that starts a process
        lifeline.sendall(NUMBER.pack(worker))
        _hold_files(lifeline)
    finally:
        try:
            lifeline.sendall(NUMBER.pack(_kill_worker(worker)))
        finally:
            os._exit(0)


def run_command(lifeline: socket.socket, command: list[str]) -> int:
    """Run a command until it ends, or until the program closes its end of `lifeline`. Then kill all that it started.

    Return its exit code, or 128 and the number of the signal that killed it.
    """
    lifeline.set_inheritable(False)
    _become_subreaper()
    child = os.fork()
    if child == 0:
        os.setsid()
        try:
            os.execvp(command[0], command)
        finally:
            os._exit(127)
    pid = status = 0
    while not pid and not select.select([lifeline], [], [], 0.02)[0]:
        pid, status = os.waitpid(child, os.WNOHANG)
    code = os.waitstatus_to_exitcode(status) if pid else _kill_worker(child)
    _kill_children()
    return code if code >= 0 else 128 - code


def _hold_files(lifeline: socket.socket) -> None:
    """Hold the open files that the program sends, until it closes its end of the socket."""
    held: list[int] = []
    while True:
        message, files, _, _ = socket.recv_fds(lifeline, 1, _MAX_FILES)
        if not message:
            return
        for descriptor in held:
            os.close(descriptor)
        held = files


def _kill_worker(worker: int) -> int:
    """Kill the worker and all processes that it has started. Return its exit code or negative signal."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for kill in (os.killpg, os.kill):  # the second is for a worker that moved to another group
        with suppress(OSError):
            kill(worker, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    _kill_children()
    return code


def _kill_children() -> None:
    """Kill the children of this process, adopted ones included, until there are none."""
    not_permitted: set[int] = set()
    while children := _find_children() - not_permitted:  # killing one may turn its children into ours
        for child in children:
            try:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            except PermissionError:  # it runs as another user
                not_permitted.add(child)


def _find_children() -> set[int]:
    """Return the children of this process, adopted ones included. The set is empty on a system without /proc."""
    own = str(os.getpid())
    names = os.listdir("/proc") if os.path.isdir("/proc") else []
    return {int(pid) for pid in names if pid.isdigit() and _read_parent(pid) == own}


def _read_parent(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/stat") as fields:
            return fields.read().rpartition(")")[2].split()[1]
    except OSError:  # it has ended
        return ""


def _become_subreaper() -> None:
    """Adopt the orphans of the worker, if the system can do that."""
    with suppress(Exception):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _reap_orphans(worker: int) -> None:
    """Wait for the adopted children that have ended. The worker itself is left for the end."""
    with suppress(ChildProcessError):
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid == worker:
                return
            os.waitpid(ended.si_pid, 0)


if __name__ == "__main__":
    own_end = socket.socket(fileno=int(sys.argv[1]))
    if sys.argv[2] == RUN_COMMAND:
        raise SystemExit(run_command(own_end, sys.argv[3:]))
    main(own_end, int(sys.argv[2]), sys.argv[3:])
