"""What a worker process comes from: a warden, which forks the worker, waits for its end, and leaves nothing behind.

    program ══ life ══ warden      ends the worker's group with the program, and collects what has died of it
       └────── line ────── worker  the leader of a group of its own; takes calls, one at a time

`life` is a socket whose other end the program alone holds, so the warden is told of every end of the program, a SIGKILL
too, whatever the worker does meanwhile: it may hold the GIL in C. On Linux it adopts the orphans of the group, so that
killed processes are gone at once and do not wait for whoever is the first process of a container. Until it is told that
the program kills no more it leaves the dead worker uncollected, so that the group's id cannot become another's.

Run by its path and not by `-m`, which would import the whole package before the first line here, and only where the
program's own `sys.path` was not needed to find it. The standard library alone, and little of it.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
from contextlib import suppress
from typing import NoReturn

WORD = struct.Struct("!q")
"""What the warden says over `life`: the worker's process id, and at the end its exit code, or the negative signal."""
_BECOME_REAPER = 36  # PR_SET_CHILD_SUBREAPER, linux/prctl.h


def main(life: socket.socket, line: int, path: list[str]) -> None:
    """Fork a worker that speaks over the socket `line` and imports from `path`."""
    # A thread that had signals blocked would have left them so.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    worker = os.fork()
    with suppress(OSError):  # both do it, because neither knows which is first
        os.setpgid(worker, worker or os.getpid())
    if worker:
        _watch(life, line, worker)
    life.close()
    os.set_inheritable(line, False)
    sys.path[:] = path
    sys.argv[:] = ["ferrule-worker"]
    from ferrule.worker import serve

    serve(socket.socket(fileno=line))


def _watch(life: socket.socket, line: int, worker: int) -> NoReturn:
    try:
        for one in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(one, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: _collect(worker))
        for descriptor in (0, 1, 2, line):  # who reads the program's output waits for all its writers
            with suppress(OSError):  # the program had closed it
                os.close(descriptor)
        life.sendall(WORD.pack(worker))
        _adopt()
        while life.recv(1):
            pass
    finally:
        with suppress(OSError):
            os.killpg(worker, signal.SIGKILL)
        with suppress(OSError):  # it may have gone to another group
            os.kill(worker, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
        with suppress(ChildProcessError):
            while True:
                os.waitpid(-worker, 0)
        with suppress(OSError):
            life.sendall(WORD.pack(code))
        os._exit(0)


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
