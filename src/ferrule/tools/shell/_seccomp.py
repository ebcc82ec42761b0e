"""The system-call filter of the sandbox, as a classic BPF program for bubblewrap's `--seccomp`.

Mounts and user ids cannot stop these: input written into a terminal, keyrings, new namespaces, io_uring, sockets of
other families, and setuid bits on new files. See docs/shell.md.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from typing import Final

from ferrule.errors import DefinitionError

# From the tables of Linux. Calls without a rule below are refused.
_EVERYWHERE: Final = """
    io_uring_setup 425 io_uring_enter 426 io_uring_register 427 open_tree 428 move_mount 429 fsopen 430 fsconfig 431
    fsmount 432 fspick 433 clone3 435 openat2 437 mount_setattr 442 quotactl_fd 443 fchmodat2 452 open_tree_attr 467
"""
_X86: Final = """
    open 2 ioctl 16 socket 41 clone 56 creat 85 chmod 90 fchmod 91 syslog 103 mknod 133 uselib 134 pivot_root 155
    chroot 161 acct 163 mount 165 umount2 166 swapon 167 swapoff 168 reboot 169 init_module 175 delete_module 176
    quotactl 179 kexec_load 246 add_key 248 request_key 249 keyctl 250 openat 257 mknodat 259 fchmodat 268 unshare 272
    perf_event_open 298 fanotify_init 300 open_by_handle_at 304 setns 308 finit_module 313 kexec_file_load 320 bpf 321
    userfaultfd 323
"""
_ARM: Final = """
    ioctl 29 mknodat 33 umount2 39 mount 40 pivot_root 41 chroot 51 fchmod 52 fchmodat 53 openat 56 quotactl 60 acct 89
    unshare 97 kexec_load 104 init_module 105 delete_module 106 syslog 116 reboot 142 socket 198 add_key 217
    request_key 218 keyctl 219 clone 220 swapon 224 swapoff 225 perf_event_open 241 fanotify_init 262
    open_by_handle_at 265 setns 268 finit_module 273 bpf 280 userfaultfd 282 kexec_file_load 294
"""
_MACHINES: Final = {"x86_64": (0xC000003E, _X86 + _EVERYWHERE), "aarch64": (0xC00000B7, _ARM + _EVERYWHERE)}
"""The value of AUDIT_ARCH in linux/audit.h and the system calls, by machine."""

_NAMESPACES: Final = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET
_NEW_TIME_NAMESPACE: Final = 0x80  # in `clone`, these bits are the signal at the end
_SET_ID_BITS: Final = 0o6000
_CREATES_FILE: Final = 0o20000100  # O_TMPFILE without its O_DIRECTORY, and O_CREAT; the same on both machines
_TERMINAL_INPUT: Final = (0x5412, 0x541C)  # TIOCSTI and TIOCLINUX
_FAMILIES: Final = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK
_X32_BIT: Final = 0x40000000

_LOAD, _RETURN = 0x20, 0x06
_EQUAL, _AT_LEAST, _ANY_BIT, _NO_BIT = (0x15, 0, 1), (0x35, 0, 1), (0x45, 0, 1), (0x45, 1, 0)
"""Comparisons with a value: the code of the jump, and how many steps it skips if it holds and if not."""
_ALLOW: Final = 0x7FFF0000
_REFUSE: Final = 0x00050000 | errno.EPERM
_UNKNOWN: Final = 0x00050000 | errno.ENOSYS
_NO_FAMILY: Final = 0x00050000 | errno.EAFNOSUPPORT

_Check = tuple[int, tuple[int, int, int], int, int]
"""The number of an argument, its comparison with a value, and the answer if that holds."""
_NEVER: Final[list[_Check]] = [(0, _AT_LEAST, 0, _REFUSE)]
_NO_NEW_CALL: Final[list[_Check]] = [(0, _AT_LEAST, 0, _UNKNOWN)]
_RULES: Final[dict[str, list[_Check]]] = {
    "clone": [(0, _ANY_BIT, _NAMESPACES, _REFUSE)],
    "unshare": [(0, _ANY_BIT, _NAMESPACES | _NEW_TIME_NAMESPACE, _REFUSE)],
    # Their arguments are in memory, where a filter cannot look. Programs then use `clone` and `openat`.
    "clone3": _NO_NEW_CALL,
    "openat2": _NO_NEW_CALL,
    "ioctl": [(1, _EQUAL, request, _REFUSE) for request in _TERMINAL_INPUT],
    "socket": [*((0, _EQUAL, family, _ALLOW) for family in _FAMILIES), (0, _AT_LEAST, 0, _NO_FAMILY)],
    # Without a new file, the mode may be anything.
    "open": [(1, _NO_BIT, _CREATES_FILE, _ALLOW), (2, _ANY_BIT, _SET_ID_BITS, _REFUSE)],
    "openat": [(2, _NO_BIT, _CREATES_FILE, _ALLOW), (3, _ANY_BIT, _SET_ID_BITS, _REFUSE)],
    **{name: [(1, _ANY_BIT, _SET_ID_BITS, _REFUSE)] for name in ("creat", "chmod", "fchmod", "mknod")},
    **{name: [(2, _ANY_BIT, _SET_ID_BITS, _REFUSE)] for name in ("fchmodat", "fchmodat2", "mknodat")},
}
"""The checks of each call, in order. If none holds, the call is allowed."""


def make_filter(machine: str) -> bytes:
    """Return the filter for a machine, such as `"x86_64"`.

    Raises:
        DefinitionError: The system calls of this machine are unknown.
    """
    if machine not in _MACHINES:
        raise DefinitionError(f"the sandbox runs on {' and '.join(_MACHINES)}, not on {machine!r}")
    audit, table = _MACHINES[machine]
    program = [_make(_LOAD, 4), _make(_EQUAL[0], audit, 1, 0), _make(_RETURN, _UNKNOWN), _make(_LOAD, 0)]
    program += [_make(_AT_LEAST[0], _X32_BIT, 0, 1), _make(_RETURN, _UNKNOWN)]
    words = table.split()
    for name, number in zip(words[::2], words[1::2], strict=True):
        body = [step for check in _RULES.get(name, _NEVER) for step in _make_steps(*check)]
        program += [_make(_EQUAL[0], int(number), 0, len(body) + 1), *body, _make(_RETURN, _ALLOW)]
    return b"".join([*program, _make(_RETURN, _ALLOW)])


def _make(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _make_steps(argument: int, comparison: tuple[int, int, int], value: int, answer: int) -> Iterator[bytes]:
    """Yield the steps of a check. The kernel reads the low half of flags, modes, families and requests only."""
    code, if_true, if_false = comparison
    yield _make(_LOAD, 16 + 8 * argument)
    yield _make(code, value, if_true, if_false)
    yield _make(_RETURN, answer)
