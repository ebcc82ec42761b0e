"""The system-call filter of the sandbox, as a classic BPF program for bubblewrap's `--seccomp`.

Mounts and user ids cannot stop these: input written into a terminal, keyrings, new namespaces, io_uring, sockets of
other families, and setuid bits on new files. See docs/shell.md.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable
from typing import Final

from ferrule.errors import DefinitionError


def _read_numbers(text: str) -> dict[str, int]:
    """Return the numbers of system calls, from names and numbers in turn."""
    words = text.split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


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

_LOAD, _EQUAL, _AT_LEAST, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000


def make_filter(machine: str) -> bytes:
    """Return the filter for a machine, such as `"x86_64"`.

    Raises:
        DefinitionError: The system calls of this machine are unknown.
    """
    if machine not in _MACHINES:
        raise DefinitionError(f"the sandbox runs on {' and '.join(_MACHINES)}, not on {machine!r}")
    audit, table = _MACHINES[machine]
    unknown_call = _refuse(errno.ENOSYS)
    program = [_make(_LOAD, 4), _make(_EQUAL, audit, 1, 0), unknown_call, _make(_LOAD, 0)]
    program += [_make(_AT_LEAST, _X32_BIT, 0, 1), unknown_call]
    for name, number in _read_numbers(table).items():
        body = _RULES.get(name) or [_refuse(errno.EPERM)]
        program += [_make(_EQUAL, number, 0, len(body)), *body]
    return b"".join([*program, _make(_RETURN, _ALLOW)])


def _make(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _refuse(number: int) -> bytes:
    return _make(_RETURN, _ERRNO | number)


def _load(argument: int) -> bytes:
    """Load the low half of an argument. The kernel reads no more of flags, modes, families and requests."""
    return _make(_LOAD, 16 + 8 * argument)


def _refuse_bits(argument: int, bits: int) -> list[bytes]:
    return [_load(argument), _make(_HAS_BITS, bits, 0, 1), _refuse(errno.EPERM), _make(_RETURN, _ALLOW)]


def _refuse_values(argument: int, values: Iterable[int]) -> list[bytes]:
    checks = [line for value in values for line in (_make(_EQUAL, value, 0, 1), _refuse(errno.EPERM))]
    return [_load(argument), *checks, _make(_RETURN, _ALLOW)]


def _allow_values(argument: int, values: Iterable[int], number: int) -> list[bytes]:
    checks = [line for value in values for line in (_make(_EQUAL, value, 0, 1), _make(_RETURN, _ALLOW))]
    return [_load(argument), *checks, _refuse(number)]


def _refuse_mode_of_new_file(flags: int, mode: int) -> list[bytes]:
    """Refuse set-id bits of a new file. Without a new file, the mode may be anything."""
    check = _refuse_bits(mode, _SET_ID_BITS)
    return [_load(flags), _make(_HAS_BITS, _CREATES_FILE, 1, 0), _make(_RETURN, _ALLOW), *check]


_RULES: Final = {
    "clone": _refuse_bits(0, _NAMESPACES),
    "unshare": _refuse_bits(0, _NAMESPACES | _NEW_TIME_NAMESPACE),
    # Their arguments are in memory, where a filter cannot look. Programs then use `clone` and `openat`.
    "clone3": [_refuse(errno.ENOSYS)],
    "openat2": [_refuse(errno.ENOSYS)],
    "ioctl": _refuse_values(1, _TERMINAL_INPUT),
    "socket": _allow_values(0, _FAMILIES, errno.EAFNOSUPPORT),
    "open": _refuse_mode_of_new_file(1, 2),
    "openat": _refuse_mode_of_new_file(2, 3),
    "creat": _refuse_bits(1, _SET_ID_BITS),
    "chmod": _refuse_bits(1, _SET_ID_BITS),
    "fchmod": _refuse_bits(1, _SET_ID_BITS),
    "fchmodat": _refuse_bits(2, _SET_ID_BITS),
    "fchmodat2": _refuse_bits(2, _SET_ID_BITS),
    "mknod": _refuse_bits(1, _SET_ID_BITS),
    "mknodat": _refuse_bits(2, _SET_ID_BITS),
}
