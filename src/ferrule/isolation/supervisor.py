"""What a worker process comes from: a supervisor, which forks the worker, waits to be told to end it, and leaves
nothing behind.

    program ══════ life ══════ supervisor  ends the worker's group with the program, and collects what has died of it
       └─────── connection ─── worker      the leader of a group of its own; takes calls, one at a time

`life` is a socket whose other end the program alone holds. The program closes it to have the worker ended; and it
closes with the program, whatever ends that, a SIGKILL too, and whatever the worker does meanwhile: it may hold the GIL
in C. On Linux the supervisor adopts the orphans of the worker, so that it finds what went to a group or a session of
its own, and so that killed processes are gone at once and do not wait for whoever is the first process of a container.

Over `life` the program also sends open files, whose locks say that it lives. The supervisor holds them until the worker
has ended, so that nobody takes the call for cut off while the worker is still at it.

Run by its path and not by `-m`, which would import the whole package before the first line here, and only where the
program's own `sys.path` was not needed to find it. The standard library alone, and little of it. The worker finds
Ferrule by the path by which the program found it; what was put on the path since comes with the first message.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
from contextlib import suppress
from typing import NoReturn

NUMBER = struct.Struct("!q")
"""What the supervisor says over `life`: the worker's process id, and at the end its exit code or negative signal."""
HOLD = b"\0"
"""What the program says over `life` with the open files that the supervisor holds from now on, instead of others."""
_MOST_FILES = 253  # SCM_MAX_FD of Linux
_BECOME_REAPER = 36  # PR_SET_CHILD_SUBREAPER, linux/prctl.h


def main(life: socket.socket, connection: int, path: list[str]) -> None:
    """Fork a worker that speaks over the socket `connection` and imports from `path`."""
    # A thread that had signals blocked would have left them so.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    worker = os.fork()
    with suppress(OSError):  # both do it, because neither knows which is first
        os.setpgid(worker, worker or os.getpid())
    if worker:
        _watch(life, connection, worker)
    life.close()
    os.set_inheritable(connection, False)
    sys.path[:] = path
    sys.argv[:] = ["ferrule-worker"]
    from ferrule.isolation.worker import serve

    serve(socket.socket(fileno=connection))


def _watch(life: socket.socket, connection: int, worker: int) -> NoReturn:
    try:
        for one in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(one, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: _collect(worker))
        for descriptor in (0, 1, 2, connection):  # who reads the program's output waits for all its writers
            os.close(descriptor)
        _adopt()  # before the program has the worker import anything that could start a process
        life.sendall(NUMBER.pack(worker))
        _hold_files(life)
    finally:
        try:
            life.sendall(NUMBER.pack(_end_worker(worker)))
        finally:
            os._exit(0)


def _hold_files(life: socket.socket) -> None:
    """Hold the open files that the program sends, until its end of the socket is closed."""
    held: list[int] = []
    while True:
        said, files, _, _ = socket.recv_fds(life, 1, _MOST_FILES)
        if not said:
            return
        for descriptor in held:
            os.close(descriptor)
        held = files


def _end_worker(worker: int) -> int:
    """End the worker and all that it has started; how the worker ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for kill in (os.killpg, os.kill):  # the second for a worker that went to another group
        with suppress(OSError):
            kill(worker, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    spared: set[int] = set()
    while left := _child_processes() - spared:  # what one of them had started comes here when it is dead
        for child in left:
            try:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            except PermissionError:  # it became another user's
                spared.add(child)
    return code


def _child_processes() -> set[int]:
    """The children of this process, adopted ones among them; none where there is no /proc."""
    own = str(os.getpid())
    found = os.listdir("/proc") if os.path.isdir("/proc") else []
    return {int(pid) for pid in found if pid.isdigit() and _parent(pid) == own}


def _parent(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/stat") as fields:
            return fields.read().rpartition(")")[2].split()[1]
    except OSError:  # it has ended
        return ""


def _adopt() -> None:
    """Become the parent of what the worker's processes leave behind, where the system can do that."""
    with suppress(Exception):
        import ctypes

        ctypes.CDLL(None).prctl(_BECOME_REAPER, 1, 0, 0, 0)


def _collect(worker: int) -> None:
    """Collect adopted children that have ended; the worker itself comes last."""
    with suppress(ChildProcessError):
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid == worker:
                return
            os.waitpid(ended.si_pid, 0)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3:])
