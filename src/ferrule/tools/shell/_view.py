"""The view of a line: folders, system files and devices, as options of bubblewrap. It only reads `/etc`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import Final

from ferrule.tools.shell._process import keep_bytes
from ferrule.tools.shell._protection import Protection, open_exactly

_ETC_FILES: Final = (
    *("passwd", "group", "nsswitch.conf", "ld.so.cache", "ld.so.conf", "localtime", "os-release"),
    *("services", "protocols", "mime.types", "magic", "ssl/openssl.cnf", "gitconfig"),
)
_ETC_FOLDERS: Final = (
    *("alternatives", "ssl/certs", "pki/tls/certs", "pki/ca-trust/extracted", "crypto-policies"),
    *("ca-certificates/extracted", "fonts", "java-*", "python3*"),
)
_NETWORK_FILES: Final = ("resolv.conf", "hosts", "host.conf", "gai.conf")
_TOOLCHAINS: Final = (
    *(".pyenv", ".rustup", ".cargo/bin", ".cargo/registry", ".nvm", ".volta", ".sdkman", ".asdf", ".bun/bin"),
    *(".deno/bin", ".local/bin", ".local/lib", ".local/pipx", ".local/share/pipx/venvs", ".local/share/uv/python"),
    *(".local/share/uv/tools", ".local/share/mise/installs", "go/pkg/mod", "go/bin"),
)
"""Folders below the home folder with programs, and without credentials."""
_OPTIONAL_FOLDERS: Final = ("/opt", "/nix/store", "/gnu/store", "/home/linuxbrew/.linuxbrew")
_NO_NAMES: Final = b"nameserver 192.0.2.1\noptions attempts:1 timeout:1\n"
"""A name server without a route (RFC 5737): look-ups fail at once, and the system counts them."""
_NEVER_INSIDE: Final = ("/usr", "/etc", "/bin", "/lib", "/proc", "/sys", "/dev", "/run", "/tmp", "/var", "/boot")


def make_system_options(home: str, scratch: int) -> list[str]:
    """Return the options of bubblewrap that are the same for all lines of a sandbox.

    Args:
        home: The path of the home folder, which is empty in here.
        scratch: Bytes of each of `/tmp`, `/dev/shm` and the home folder.
    """
    options = ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
    options += ["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--ro-bind", "/usr", "/usr"]
    for top in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        options += ["--symlink", os.readlink(top), top] if os.path.islink(top) else ["--ro-bind-try", top, top]
    for path in (path[:-1] for name in _ETC_FOLDERS for path in glob(f"/etc/{name}/")):
        options += ["--ro-bind-try", path, path]
    # With uid 0 bubblewrap leaves /proc/sys writable, and a program named in core_pattern runs outside.
    options += ["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev", "--symlink", "/tmp", "/var/tmp"]
    for path, mode in (("/dev/shm", "1777"), ("/tmp", "1777"), (home, "0755")):
        options += ["--size", str(scratch), "--perms", mode, "--tmpfs", path]
    return options


def find_readable(home: str | None, writable: Sequence[str]) -> list[str]:
    """Return the folders with programs beside `/usr`, also those in a home folder that the user of lines can enter."""
    tools = [] if home is None else [path for name in _TOOLCHAINS if os.path.isdir(path := os.path.join(home, name))]
    return [*_OPTIONAL_FOLDERS, *(path for path in tools if not is_inside(path, writable))]


def make_etc_options(*, network: bool) -> Iterator[str | int]:
    """Yield the options for network and files of `/etc`, with a descriptor for each file."""
    for name in (*_ETC_FILES, *(_NETWORK_FILES if network else ())):
        with suppress(OSError):
            yield from ("--file", os.open(f"/etc/{name}", os.O_RDONLY | os.O_CLOEXEC), f"/etc/{name}")
    if not network:
        hosts = f"127.0.0.1 localhost {os.uname().nodename}\n::1 localhost\n".encode()
        yield "--unshare-net"
        yield from ("--file", keep_bytes(_NO_NAMES), "/etc/resolv.conf")
        yield from ("--file", keep_bytes(hosts), "/etc/hosts")


def bind_folders(readable: Iterable[str], writable: Iterable[str], protection: Protection) -> Iterator[str | int]:
    """Yield the options for folders of the host: the outer ones first, and protected paths over all of them.

    Another line may swap a path below a writable folder meanwhile, so these are given as descriptors.
    """
    kinds = dict.fromkeys(readable, "--ro-bind-try") | dict.fromkeys(writable, "--bind-fd")
    kinds = dict.fromkeys(protection.pinned, "--bind-fd") | kinds | dict.fromkeys(protection.fixed, "--ro-bind-fd")
    for path in sorted(kinds, key=lambda path: path.count(os.sep)):
        yield from (kinds[path], path if kinds[path] == "--ro-bind-try" else open_exactly(path), path)


def make_environment(home: str, more: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of a line. Nothing of the program's own but `PATH` is in it."""
    fixed = {"LANG": "C.UTF-8", "TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": home, **fixed, "NO_COLOR": "1", "CI": "1", **more}


def is_inside(path: str, folders: Iterable[str]) -> bool:
    """Return whether a real path is one of these folders, or lies in one."""
    return any(Path(path).is_relative_to(folder) for folder in folders)


def check_apart(folders: Sequence[str], paths: Sequence[str]) -> None:
    """Raise a ValueError if a path lies in a writable folder, where lines could put a link in its place."""
    for path in (*folders, *paths):
        for folder in folders:
            if path != folder and is_inside(path, [folder]):
                raise ValueError(f"{path!r} lies in {folder!r}, which lines may change: use protect instead")


def check_place(path: str | os.PathLike[str], kept_outside: Sequence[str], *, may_be_file: bool = False) -> str:
    """Return the real path of a folder that lines may see.

    Raises:
        ValueError: It is not there, or holds the system, the home folder or another one of `kept_outside`.
    """
    real = os.path.realpath(os.path.expanduser(path))
    if not (os.path.isdir(real) or (may_be_file and os.path.isfile(real))):
        raise ValueError(f"{os.fspath(path)!r} is not a folder{' or a file' if may_be_file else ''}")
    for other in map(os.path.realpath, (*_NEVER_INSIDE, *kept_outside)):
        if Path(other).is_relative_to(real):
            raise ValueError(f"{os.fspath(path)!r} holds {other!r}, which no line may have; name a folder inside")
    if is_inside(real, ("/proc", "/sys", "/dev", "/run")):
        raise ValueError(f"{os.fspath(path)!r} is a part of the system that no line may have")
    return real
