"""One sandbox: its folders, user and limits, chosen when the tool is made; and the run of one program in it."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from ferrule.errors import DefinitionError
from ferrule.tools.shell._evidence import find_refusals
from ferrule.tools.shell._host import choose_user, explain_failure, find_bwrap, find_home
from ferrule.tools.shell._limits import Limits
from ferrule.tools.shell._output import Output
from ferrule.tools.shell._process import Descriptors, Ended, Sandboxed, Unsandboxed
from ferrule.tools.shell._protection import Protection, find_common_git_folder, open_exactly, protect
from ferrule.tools.shell._seccomp import make_filter
from ferrule.tools.shell._view import View, check_apart, check_place, is_inside, make_environment, make_options

_PROBE_SECONDS: Final = 20.0
_MAX_UNDONE: Final = 5
"""Changes of protected paths, after which a line is ended."""


class Needs(NamedTuple):
    """The needs of one line beyond the rules of the sandbox.

    Attributes:
        network: Whether it shares the network of the machine.
        write: Real paths of folders to write in, or of protected paths.
    """

    network: bool = False
    write: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """One program to run, with the functions that watch it."""

    command: Sequence[str]
    directory: str
    limits: Limits
    needs: Needs = field(default_factory=Needs)
    variables: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    """More files, by their path in the sandbox."""
    state_at: Callable[[int], Sequence[str]] | None = None
    """Makes the command for a descriptor at which it writes its state."""
    is_cancelled: Callable[[], bool] = lambda: False
    on_output: Callable[[Output], object] = lambda output: None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a run.

    Attributes:
        refused: Each need that the sandbox refused, with the evidence.
        undone: Protected paths that the line had made or changed, and their state before is back.
        changed: Protected files that somebody outside has replaced meanwhile.
    """

    ended: Ended
    text: str
    refused: Mapping[str, str] = field(default_factory=dict)
    undone: Sequence[str] = ()
    changed: Sequence[str] = ()


class Sandbox:
    """A sandbox for the programs of a model in one root folder.

    Raises:
        DefinitionError: A folder is wrong, or this machine can make no sandbox; the text says what would help.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        read: Sequence[str | os.PathLike[str]],
        write: Sequence[str | os.PathLike[str]],
        protect: Sequence[str],
        environment: Mapping[str, str],
        scratch: int,
    ) -> None:
        self._bwrap = find_bwrap()
        self._filter = make_filter(platform.machine())
        self.root = os.path.realpath(os.path.expanduser(root))
        if not os.path.isdir(self.root):
            raise DefinitionError(f"root must be a folder, not {os.fspath(root)!r}")
        self._user = choose_user(self.root)
        home = find_home(self._user)
        try:
            self._kept_outside = (home, os.path.expanduser("~"))
            check_place(self.root, self._kept_outside)
            self.writable = tuple(check_place(path, self._kept_outside) for path in write)
            readable = tuple(check_place(path, self._kept_outside, may_be_file=True) for path in read)
            check_apart((self.root, *self.writable), readable)
        except (ValueError, OSError) as error:
            raise DefinitionError(str(error)) from None
        self._protect = tuple(protect)
        self._git = find_common_git_folder(self.root)
        self._git_config = _read_git_config()
        self._environment = make_environment(home, environment.items())
        self._view = View(
            self.root,
            self.writable,
            readable,
            self.root,
            home,
            self._user.uid is None,
            False,
            scratch,
            self._git_config,
        )
        self._probe()

    def _probe(self) -> None:
        limits = Limits(1 << 30, 64, 60, 1 << 30, 4000, _PROBE_SECONDS)
        outcome = self.run(Run(["/bin/bash", "-c", ":"], self.root, limits))
        if outcome.ended.exit_code != 0:
            raise explain_failure(outcome.text)

    def resolve_write(self, path: str) -> str:
        """Return the real path of a place to write in, as a person has to see it.

        Raises:
            ValueError: It is not there, goes through a link, or holds what no line may have.
        """
        full = os.path.normpath(os.path.join(self.root, os.path.expanduser(path)))
        real = os.path.realpath(full)
        if is_inside(real, self._folders):
            if real != full:
                raise ValueError(f"{path!r} goes through a link to {real!r}; write the real path")
            return real
        check_place(real, self._kept_outside, may_be_file=True)
        if real != full:
            raise ValueError(f"{path!r} goes through a link to {real!r}; write the real path")
        if any(Path(folder).is_relative_to(real) for folder in self._folders):
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

    @property
    def _folders(self) -> tuple[str, ...]:
        return (self.root, *self.writable, *(self._git or ())[:1])

    def run(self, run: Run) -> Outcome:
        """Run a program, and return its outcome when nothing of it runs any more.

        Raises:
            OSError: The sandbox cannot be made.
            ValueError: A needed path is inside a protected one.
        """
        more = tuple(path for path in run.needs.write if not is_inside(path, self._folders) and os.path.isdir(path))
        files = tuple(path for path in run.needs.write if not is_inside(path, self._folders) and os.path.isfile(path))
        folders = (*self._folders, *more)
        protection = protect(folders, names=self._protect, opened=run.needs.write, git=self._git)
        _check_needs(run.needs, protection)
        view = replace(
            self._view,
            writable=(*self.writable, *(self._git or ())[:1], *more, *files),
            directory=run.directory,
            network=run.needs.network,
            protection=protection,
        )
        changes = _Changes(protection)
        try:
            ended = self._start(run, view, changes)
        finally:
            changes.undo()
        text = ended.output.text
        undone, changed = (
            [_show_path(path, self.root) for path in paths] for paths in (changes.undone, changes.changed)
        )
        return Outcome(ended, text, find_refusals(ended, text, undone), undone, changed)

    def _start(self, run: Run, view: View, changes: _Changes) -> Ended:
        descriptors = Descriptors()
        try:
            options = make_options(view, descriptors.attach, lambda path: descriptors.keep(open_exactly(path)))
            # bubblewrap itself runs outside, so variables such as LD_LIBRARY_PATH must not reach it.
            for name, value in {**self._environment, **run.variables}.items():
                options += ["--setenv", name, value]
            for path, data in run.files.items():
                options += ["--file", str(descriptors.attach(data)), path]
            options += ["--seccomp", str(descriptors.attach(self._filter))]
            command, state = run.command, None
            if run.state_at is not None:
                state, theirs = descriptors.open_pipe(writes=True)
                command = run.state_at(theirs)
            program = Sandboxed(
                command,
                options,
                descriptors,
                bwrap=self._bwrap,
                user=self._user,
                limits=run.limits,
                state=state,
            )
        finally:
            descriptors.close()

        def look(output: Output) -> str | None:
            run.on_output(output)
            changes.undo()
            return "protected" if len(changes.undone) > _MAX_UNDONE else None

        return program.watch(run.is_cancelled, look)


def run_unsandboxed(run: Run, environment: Mapping[str, str]) -> Outcome:
    """Run a program without a sandbox: only its limits and its end are enforced."""
    program = Unsandboxed(run.command, directory=run.directory, environment=environment, limits=run.limits)

    def look(output: Output) -> None:
        run.on_output(output)

    ended = program.watch(run.is_cancelled, look)
    return Outcome(ended, ended.output.text)


def _check_needs(needs: Needs, protection: Protection) -> None:
    for path in needs.write:
        for other in protection.fixed:
            if path.startswith(other + os.sep):
                raise ValueError(f"{path!r} is inside {other!r}, which is protected as a whole; name {other!r} itself")


class _Changes:
    """The changes of protected paths during one run."""

    def __init__(self, protection: Protection) -> None:
        self._protection = protection
        self.undone: list[str] = []
        self.changed: list[str] = []

    def undo(self) -> None:
        """Undo the changes of the line, and collect those that somebody outside has made."""
        for path in self._protection.find_changes():
            if path not in self.changed:  # told once
                (self.undone if self._protection.restore(path) else self.changed).append(path)


def _show_path(path: str, root: str) -> str:
    return os.path.relpath(path, root) if Path(path).is_relative_to(root) else path


def _read_git_config() -> bytes:
    """Return the system's configuration of git with the identity of this user, which every commit needs. The
    configuration of a repository comes before it.
    """
    text = b""
    with suppress(OSError), open("/etc/gitconfig", "rb") as file:
        text = file.read(100_000) + b"\n"
    lines = ["[user]"]
    for name in ("name", "email"):
        with suppress(OSError, subprocess.SubprocessError):
            command = ["git", "config", "--global", f"user.{name}"]
            found = subprocess.run(command, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, timeout=10)
            value = found.stdout.decode("utf-8", "replace").strip()
            if found.returncode == 0 and value.isprintable():
                lines.append('\t{} = "{}"'.format(name, value.replace("\\", "\\\\").replace('"', '\\"')))
    return text + "\n".join([*lines, ""]).encode()
