"""The limits of one line: of the system for each process, and a watch over all of them together."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

_PIDS_CGROUPS: Final = ("/sys/fs/cgroup/pids", "/sys/fs/cgroup")
"""The controller for numbers of processes, of cgroup v1 and v2."""
_SPARE_PROCESSES: Final = 16
"""Processes beyond the limit that the system allows, so that the watch sees the excess and can name it."""
_ENDING_SECONDS: Final = 10.0


class Limits(NamedTuple):
    """The most that one line may use.

    Attributes:
        memory: Bytes of all its processes together.
        processes: Processes and threads at once.
        cpu: Seconds of the processor for each process.
        file_size: Bytes of each file that it writes.
        output: Bytes of its output that are returned.
        seconds: Seconds until all of it is killed.
    """

    memory: int
    processes: int
    cpu: int
    file_size: int
    output: int
    seconds: float


def _list_limits(limits: Limits, of_user: bool) -> Iterator[tuple[int, str, int, int, int]]:
    """Yield each limit as its number, its option of `ulimit` with its unit, and its soft and hard value."""
    processes = limits.processes + _SPARE_PROCESSES
    for kind, option, unit, soft, hard in (
        (resource.RLIMIT_CORE, "c", 1, 0, 0),
        (resource.RLIMIT_CPU, "t", 1, limits.cpu, limits.cpu + 1),  # a signal with a name, a second before the kill
        (resource.RLIMIT_FSIZE, "f", 1024, limits.file_size, limits.file_size),
        (resource.RLIMIT_DATA, "d", 1024, limits.memory, limits.memory),  # RLIMIT_AS would break WebAssembly in node
        (resource.RLIMIT_NPROC, "u", 1, processes, processes),
    ):
        if of_user or kind != resource.RLIMIT_NPROC:
            own = resource.getrlimit(kind)[1]
            most = hard if own == resource.RLIM_INFINITY else min(hard, own)
            yield kind, option, unit, min(soft, most), most


def set_limits(pid: int, limits: Limits) -> None:
    """Limit a process and all that it will start, and let the watch come first.

    Root without CAP_SYS_RESOURCE cannot do that to another user; `limit_script` does it then.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, 10)
    with suppress(PermissionError):
        for kind, _, _, soft, hard in _list_limits(limits, of_user=True):
            resource.prlimit(pid, kind, (soft, hard))


def limit_script(limits: Limits, *, of_user: bool = True) -> str:
    """Return the beginning of a script of bash that limits this bash, and all that it will start.

    Args:
        of_user: Whether to limit the processes of its user, who has no others in a user namespace.
    """
    settings = (
        f"ulimit -S{option} {soft // unit} && ulimit -H{option} {hard // unit}"
        for _, option, unit, soft, hard in _list_limits(limits, of_user)
    )
    return " && ".join(settings)


def find_excess(pid: int, limits: Limits) -> str | None:
    """Return the limit that a process and all below it exceed: `"processes"`, `"memory"` or None.

    It stops counting at once, because a walk without an end loses against a fork bomb. Memory that processes share
    counts once: the largest share of one process.
    """
    todo, count, own, shared = [pid], -1, 0, 0  # without the first process of the sandbox
    while todo:
        current = todo.pop()
        with suppress(OSError, ValueError, IndexError):  # it has ended
            for thread in os.listdir(f"/proc/{current}/task"):
                todo += map(int, Path(f"/proc/{current}/task/{thread}/children").read_text().split())
                count += 1
            if count > limits.processes:
                return "processes"
            status = Path(f"/proc/{current}/status").read_text()
            own += _read_kilobytes(status, "RssAnon") + _read_kilobytes(status, "VmSwap")
            shared = max(shared, _read_kilobytes(status, "RssShmem"))
    return "memory" if (own + shared) * 1024 > limits.memory else None


def _read_kilobytes(status: str, name: str) -> int:
    _, found, rest = status.partition(f"{name}:")
    return int(rest.split(None, 1)[0]) if found else 0


@contextmanager
def limit_processes(pid: int, most: int) -> Iterator[None]:
    """Put a process into a cgroup of its own with at most so many processes.

    For uid 0 the system ignores RLIMIT_NPROC, and a fork bomb outruns any watch.

    Raises:
        OSError: No such cgroup can be made.
    """
    for base in _PIDS_CGROUPS:
        group = Path(base, f"ferrule-{os.getpid()}-{pid}-{time.monotonic_ns()}")
        with suppress(OSError):
            group.mkdir()
            break
    else:
        raise OSError("no pids cgroup")
    try:
        (group / "pids.max").write_text(str(most + _SPARE_PROCESSES))  # refused if the controller is not enabled here
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        _remove_group(group)


def _remove_group(group: Path) -> None:
    """Kill what is left in a cgroup, and remove it."""
    end = time.monotonic() + _ENDING_SECONDS
    while time.monotonic() < end:
        with suppress(OSError):
            group.rmdir()
            return
        with suppress(OSError, ValueError):
            for pid in (group / "cgroup.procs").read_text().split():
                os.kill(int(pid), 9)
        time.sleep(0.002)
