"""The view of a line: folders, system files and devices, as options of bubblewrap. It only reads `/etc`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Final

from ferrule.tools.shell._protection import NO_PROTECTION, Protection

_ETC_FILES: Final = (
    *("passwd", "group", "nsswitch.conf", "ld.so.cache", "ld.so.conf", "localtime", "os-release"),
    *("services", "protocols", "mime.types", "magic", "ssl/openssl.cnf"),
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
_SYSTEM_FOLDERS: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_OPTIONAL_FOLDERS: Final = ("/opt", "/nix/store", "/gnu/store", "/home/linuxbrew/.linuxbrew")
_NO_NETWORK_FILES: Final = {"resolv.conf": b"nameserver 192.0.2.1\noptions attempts:1 timeout:1\n"}
"""A name server without a route (RFC 5737): look-ups fail at once, and the system counts them."""
_NEVER_INSIDE: Final = ("/usr", "/etc", "/bin", "/lib", "/proc", "/sys", "/dev", "/run", "/tmp", "/var", "/boot")
_MAX_FILE_BYTES: Final = 4_000_000


@dataclass(frozen=True, slots=True)
class View:
    """The files and the network of one line.

    Attributes:
        root, writable, readable: Real paths; the root is writable, too.
        directory: The folder to start in.
        home: The path of the home folder, which is empty in here.
        toolchains: Whether the user of the line can enter that home folder outside.
        scratch: Bytes of each of `/tmp`, `/dev/shm` and the home folder.
        git_config: The configuration of git for the whole system.
    """

    root: str
    writable: tuple[str, ...]
    readable: tuple[str, ...]
    directory: str
    home: str
    toolchains: bool
    network: bool
    scratch: int
    git_config: bytes
    protection: Protection = NO_PROTECTION


Attach = Callable[[bytes], int]
"""Keep bytes for the sandbox, and return their file descriptor."""


def make_options(view: View, attach: Attach, hold: Callable[[str], int]) -> list[str]:
    """Return the options of bubblewrap for a view, without those that start and watch a process.

    Args:
        hold: Opens exactly this real path for the sandbox, and returns its file descriptor.
    """
    options = ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
    options += [] if view.network else ["--unshare-net"]
    options += ["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--ro-bind", "/usr", "/usr"]
    for top in _SYSTEM_FOLDERS:
        if os.path.islink(top):
            options += ["--symlink", os.readlink(top), top]
        elif os.path.isdir(top):
            options += ["--ro-bind", top, top]
    for path, data in (*_iter_etc_files(view.network), ("/etc/gitconfig", view.git_config)):
        options += ["--file", str(attach(data)), path]
    for path in _iter_etc_folders():
        options += ["--ro-bind", path, path]
    # With uid 0 bubblewrap leaves /proc/sys writable, and a program named in core_pattern runs outside.
    options += ["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev", "--symlink", "/tmp", "/var/tmp"]
    for path in ("/dev/shm", "/tmp", view.home):
        options += ["--size", str(view.scratch), "--perms", "1777" if path != view.home else "0755", "--tmpfs", path]
    options += _bind_folders(view, hold)
    # Without this, a line could fill the memory: these two are file systems without a size.
    return [*options, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", view.directory]


def _bind_folders(view: View, hold: Callable[[str], int]) -> Iterator[str]:
    """Yield the options for folders of the host: the outer ones first, and protected paths over all of them.

    Another line may swap a path below a writable folder meanwhile, so these are given as descriptors.
    """
    readable = [path for path in _OPTIONAL_FOLDERS if os.path.isdir(path)] + list(view.readable)
    if view.toolchains:
        found = [path for name in _TOOLCHAINS if os.path.isdir(path := os.path.join(view.home, name))]
        readable += [path for path in found if not is_inside(path, (view.root, *view.writable))]
    kinds = dict.fromkeys(readable, "--ro-bind")
    kinds |= dict.fromkeys([view.root, *view.writable], "--bind")
    kinds |= {path: "--bind" for path in view.protection.pinned if kinds.get(path) != "--ro-bind"}
    kinds |= dict.fromkeys(view.protection.fixed, "--ro-bind")
    for path in sorted(kinds, key=lambda path: path.count(os.sep)):
        if path in readable and kinds[path] == "--ro-bind":
            yield from ("--ro-bind", path, path)
        else:
            yield from (f"{kinds[path]}-fd", str(hold(path)), path)


def _iter_etc_files(network: bool) -> Iterator[tuple[str, bytes]]:
    for name in (*_ETC_FILES, *(_NETWORK_FILES if network else ())):
        with suppress(OSError), open(f"/etc/{name}", "rb") as file:
            yield f"/etc/{name}", file.read(_MAX_FILE_BYTES)
    if not network:
        hosts = f"127.0.0.1 localhost {os.uname().nodename}\n::1 localhost\n".encode()
        yield from ((f"/etc/{name}", data) for name, data in {**_NO_NETWORK_FILES, "hosts": hosts}.items())


def _iter_etc_folders() -> Iterator[str]:
    for name in _ETC_FOLDERS:
        yield from (path for path in sorted(glob(f"/etc/{name}")) if os.path.isdir(path))


def make_environment(home: str, more: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the whole environment of a line. Nothing of the program's own but `PATH` is in it."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": home,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "GIT_TERMINAL_PROMPT": "0",
        "NO_COLOR": "1",
        "CI": "1",
        **dict(more),
    }


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
