"""The limits of one line: of the system for each process, and a watch over all of them together."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PIDS_CGROUPS: Final = ("/sys/fs/cgroup/pids", "/sys/fs/cgroup")
"""The controller for numbers of processes, of cgroup v1 and v2."""
_SPARE_PROCESSES: Final = 16
"""Processes beyond the limit that the system allows, so that the watch sees the excess and can name it."""
_ENDING_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Limits:
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


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of a tree of processes at one moment."""

    processes: int
    memory: int

    def find_excess(self, limits: Limits) -> str | None:
        """Return the exceeded limit: `"processes"`, `"memory"` or None."""
        if self.processes > limits.processes:
            return "processes"
        return "memory" if self.memory > limits.memory else None


def _list_limits(limits: Limits) -> list[tuple[int, str, int, int]]:
    """Return each limit as its number, its option of `ulimit`, and its soft and hard value."""
    processes = limits.processes + _SPARE_PROCESSES
    return [
        (resource.RLIMIT_CORE, "c", 0, 0),
        (resource.RLIMIT_CPU, "t", limits.cpu, limits.cpu + 1),  # a signal with a name comes a second before the kill
        (resource.RLIMIT_FSIZE, "f", limits.file_size, limits.file_size),
        (resource.RLIMIT_DATA, "d", limits.memory, limits.memory),  # RLIMIT_AS would break WebAssembly in node
        (resource.RLIMIT_NPROC, "u", processes, processes),
    ]


def set_limits(pid: int, limits: Limits, *, of_user: bool = True) -> None:
    """Limit a process of the same user, and all that it will start.

    Args:
        of_user: Whether to limit the processes of its user, who has no others in a user namespace.
    """
    for kind, _, soft, hard in _list_limits(limits):
        if kind != resource.RLIMIT_NPROC or of_user:
            own = resource.prlimit(pid, kind)[1]
            most = hard if own == resource.RLIM_INFINITY else min(hard, own)
            resource.prlimit(pid, kind, (min(soft, most), most))
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, 10)  # the watch comes first


def limiting_command(limits: Limits) -> list[str]:
    """Return the beginning of a command that limits itself, and then becomes the rest of the command."""
    settings = []
    for kind, option, soft, hard in _list_limits(limits):
        unit = 1024 if kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_DATA) else 1
        own = resource.getrlimit(kind)[1]
        most = (hard if own == resource.RLIM_INFINITY else min(hard, own)) // unit
        settings.append(f"ulimit -S{option} {min(soft // unit, most)} && ulimit -H{option} {most}")
    script = " && ".join([*settings, 'exec nice -n 10 -- "$@"'])
    return ["/bin/bash", "--norc", "--noprofile", "-c", script, "bash"]


def measure(pid: int, most_processes: int) -> Usage:
    """Return the usage of a process and all below it. It stops counting after `most_processes`, because a walk without
    an end loses against a fork bomb.

    Memory that processes share counts once: the largest share of one process.
    """
    todo, count, own, shared = [pid], 0, 0, 0
    while todo and count <= most_processes:
        current = todo.pop()
        with suppress(OSError, ValueError, IndexError):  # it has ended
            for thread in os.listdir(f"/proc/{current}/task"):
                todo += map(int, Path(f"/proc/{current}/task/{thread}/children").read_text().split())
                count += 1
            status = Path(f"/proc/{current}/status").read_text()
            own += _read_kilobytes(status, "RssAnon") + _read_kilobytes(status, "VmSwap")
            shared = max(shared, _read_kilobytes(status, "RssShmem"))
    return Usage(count - 1, (own + shared) * 1024)  # without the first process of the sandbox


def _read_kilobytes(status: str, name: str) -> int:
    _, found, rest = status.partition(f"{name}:")
    return int(rest.split(None, 1)[0]) if found else 0


def has_pids_cgroup() -> bool:
    """Return whether this process can limit the number of processes by a cgroup."""
    with limit_processes(os.getpid(), None) as found:
        return found


@contextmanager
def limit_processes(pid: int, most: int | None) -> Iterator[bool]:
    """Put a process into a cgroup of its own with at most so many processes, and yield whether that worked.

    For uid 0 the system ignores RLIMIT_NPROC, and a fork bomb outruns any watch. Without a number, only try to make the
    cgroup.
    """
    group = next(filter(None, (_make_group(Path(base), pid, most) for base in _PIDS_CGROUPS)), None)
    try:
        yield group is not None
    finally:
        if group is not None:
            _remove_group(group)


def _make_group(base: Path, pid: int, most: int | None) -> Path | None:
    group = base / f"ferrule-{os.getpid()}-{pid}-{time.monotonic_ns()}"
    try:
        group.mkdir()
    except OSError:
        return None
    try:
        limit = group / "pids.max"  # absent if the controller is not enabled here
        if limit.is_file() and most is None:
            return group
        if limit.is_file() and most is not None:
            limit.write_text(str(most + _SPARE_PROCESSES))
            (group / "cgroup.procs").write_text(str(pid))
            if limit.read_text().strip() == str(most + _SPARE_PROCESSES):
                return group
    except OSError:
        pass
    _remove_group(group)
    return None


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
