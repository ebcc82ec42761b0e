"""The limits of one line: of the system for each process, and a watch over all of them together."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from ferrule.tools.shell._options import Options

_PIDS_CGROUPS: Final = ("/sys/fs/cgroup/pids", "/sys/fs/cgroup")
"""The controller for numbers of processes, of cgroup v1 and v2."""
_SPARE_PROCESSES: Final = 16
"""Processes beyond the limit that the system allows, so that the watch sees the excess and can name it."""
_SPARE_SECONDS: Final = 60
"""Seconds of the processor beyond the timeout, for programs with several threads."""
_SECONDS_TO_END: Final = 10.0
_KILOBYTES: Final = re.compile(r"(?m)^(RssAnon|VmSwap|RssShmem):\s*([0-9]+)")
"""The memory of a process. Its name, which a line chooses, stands in the same file, but on a line of its own."""


def limit_command(script: Sequence[str], options: Options, *, of_user: bool = True) -> list[str]:
    """Return the command for a script of bash with its arguments, which limits itself first.

    With `-p`, bash reads no file or function that the environment names, which could lift the limits. A limit cannot
    be set only if this program has a lower one, which stays.

    Args:
        of_user: Whether to limit the processes of its user, who has no others in a user namespace.
    """
    seconds = int(options.timeout) + _SPARE_SECONDS
    limits = ["-c 0", f"-t {seconds + 1}", f"-St {seconds}"]  # a signal with a name, a second before the kill
    limits += [f"-f {int(options.file_size) >> 10}", f"-d {int(options.memory) >> 10}"]  # -v would break WebAssembly
    if of_user:
        limits.append(f"-u {int(options.processes) + _SPARE_PROCESSES}")
    lines, *words = script
    limited = "".join(f"ulimit {one} 2>/dev/null; " for one in limits)
    return ["/bin/bash", "--norc", "--noprofile", "-pc", limited + lines, "bash", *words]


def find_excess(pid: int | None, options: Options) -> str | None:
    """Return the limit that a process and all below it exceed: `"processes"`, `"memory"` or None.

    It stops counting at once, because a walk without an end loses against a fork bomb. Memory that processes share
    counts once: the largest share of one process.
    """
    todo, count, own, shared = [] if pid is None else [pid], -1, 0, 0  # without the first process of the sandbox
    while todo:
        current = todo.pop()
        with suppress(OSError, ValueError, IndexError):  # it has ended
            for thread in os.listdir(f"/proc/{current}/task"):
                todo += map(int, Path(f"/proc/{current}/task/{thread}/children").read_text().split())
                count += 1
            if count > options.processes:
                return "processes"
            status = Path(f"/proc/{current}/status").read_text()
            sizes = {name: int(size) for name, size in _KILOBYTES.findall(status)}
            own += sizes.get("RssAnon", 0) + sizes.get("VmSwap", 0)
            shared = max(shared, sizes.get("RssShmem", 0))
    return "memory" if (own + shared) * 1024 > options.memory else None


@contextmanager
def limit_processes(pid: int, most: int) -> Iterator[None]:
    """Put a process into a cgroup of its own with at most so many processes. It has to be dead at the end.

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
        raise OSError(
            "no pids cgroup can be made, so nothing would stop a fork bomb of root: give the folder to another user, "
            "and lines run as that user"
        )
    try:
        (group / "pids.max").write_text(str(most + _SPARE_PROCESSES))  # refused if the controller is not enabled here
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        end = time.monotonic() + _SECONDS_TO_END
        while time.monotonic() < end:
            with suppress(OSError):  # a dying process counts for a moment
                group.rmdir()
                break
            time.sleep(0.002)
