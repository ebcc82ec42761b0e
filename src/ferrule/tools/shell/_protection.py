"""The paths inside a writable folder that a line may not change: they decide what programs outside the sandbox run.

A path that is there becomes a read-only mount, and each folder above it a mount, because only mount points cannot be
renamed. Nothing can be mounted on an absent path without making it, or on a link. These are looked at while the line
runs and after it: a new path is moved aside, and a changed link is made again.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from stat import S_ISLNK, S_ISREG
from typing import Final

from ferrule.policy.files import configuration_folder, state_folder
from ferrule.security.paths import read_file

_NAMES: Final = (
    *(".ferrule", ".vscode", ".idea", ".zed", ".fleet", ".devcontainer"),
    *(".claude", ".cursor", ".codex", ".gemini", ".windsurf", ".kiro"),
    *(".gitmodules", "ferrule.lock", ".mcp.json", ".envrc", ".claude.json", ".cursorrules", ".husky"),
    *("opencode.json", ".aider.conf.yml"),
    "HEAD",  # with it and a few folders, git takes the root itself for a repository
)
_GIT_NAMES: Final = ("config", "config.worktree", "commondir", "gitdir", "hooks", "modules")
"""What git runs or follows in a git folder."""
_GIT_PATHS: Final = re.compile(r"(?im)^[ \t]*(?:\[[^\]\n]*\])?[ \t]*(hookspath|path)[ \t]*=[ \t]*\"?([^\"\n#;]+)")
"""`core.hooksPath`, and the `path` of an include."""
_PLACE_FLAGS: Final = getattr(os, "O_PATH", 0) | os.O_NOFOLLOW | os.O_CLOEXEC  # only Linux has O_PATH
_MAX_CONFIG_FILES: Final = 200
_MAX_CONFIG_BYTES: Final = 1_000_000
_MAX_LINKS: Final = 8
_MAX_UNDONE: Final = 5


class Protection:
    """The protected paths of one line, collected in its writable folders.

    Args:
        folders: The real paths of these folders. The first one is the root.
        git: Those of them that are git folders.
        names: More protected paths, relative to the root.
        opened: Real paths that are not protected for this line.

    Attributes:
        pinned: Writable folders that become mounts, so that they stay in their place.
        fixed: Paths that become read-only mounts.
        states: The state of each path before the line: absent, a link, or the identity of a file or a folder.
        undone: Paths that the line had made or changed, and their state before is back.
        changed: Files that somebody outside has replaced meanwhile.

    Raises:
        ValueError: One of the folders is a git folder itself.
    """

    def __init__(
        self, folders: Sequence[str], git: Sequence[str] = (), names: Iterable[str] = (), opened: Iterable[str] = ()
    ) -> None:
        self._folders, self._opened = folders, frozenset(opened)
        self.pinned: set[str] = set()
        self.fixed: set[str] = set()
        self.states: dict[str, object] = {}
        self.undone: list[str] = []
        self.changed: list[str] = []
        outside = (sys.prefix, str(state_folder()), str(configuration_folder()))
        for folder in folders:
            if folder in git:
                self._add_git_folder(folder)
            elif _is_git_folder(folder):
                raise ValueError(f"{folder!r} is a git folder without a worktree, which no line may change")
            else:
                self._add_all(folder, (*_NAMES, *outside))
                self._add_repository(folder)
        self._add_all(folders[0], names)
        self.pinned = {path for path in self.pinned - self.fixed if not is_below(path, self.fixed)}

    def undo(self) -> str | None:
        """Undo the changes of the line, and collect those that somebody outside has made.

        Return `"protected"` if these are so many that the line has to end.
        """
        for path, state in self.states.items():
            if path not in self.changed and _read_state(path) != state:
                (self.undone if self._restore(path) else self.changed).append(path)
        return "protected" if len(self.undone) > _MAX_UNDONE else None

    def _restore(self, path: str) -> bool:
        """Move a path that was absent aside, or make a link again. Return whether that was possible.

        Nothing is deleted: somebody outside may have made the path meanwhile.
        """
        before = self.states[path]
        if not (before is None or isinstance(before, str)):
            return False  # a file that somebody outside has replaced
        with suppress(OSError):
            folder, name = os.path.split(_find_first_link(path))
            parent = _open_own_folder(folder)
            try:
                with suppress(FileNotFoundError):
                    os.rename(name, f"{name}.refused-{time.time_ns()}", src_dir_fd=parent, dst_dir_fd=parent)
                if before is not None:
                    os.symlink(before, name, dir_fd=parent)
            finally:
                os.close(parent)
            return True
        return False

    def _add(self, path: str, depth: int = 0) -> None:
        """Protect a path in a writable folder, and the target of each link on its way if that is in one, too."""
        path = os.path.normpath(path)
        folder = next((one for one in self._folders if is_below(path, [one])), None)
        if folder is None or path in self._opened or depth > _MAX_LINKS:
            return
        place, parts = folder, path[len(folder) + 1 :].split(os.sep)
        for number, part in enumerate(parts, 1):
            place = os.path.join(place, part)
            state = _read_state(place)
            if isinstance(state, str):
                self.states[place] = state
                target = os.path.join(os.path.dirname(place), state, *parts[number:])
                self._add(os.path.realpath(target), depth + 1)
                return
            if not state or not (number == len(parts) or os.path.isdir(place)):
                self.states[path] = _read_state(path)
                return
            self.states[place] = state
            (self.fixed if number == len(parts) else self.pinned).add(place)

    def _add_all(self, folder: str, names: Iterable[str]) -> None:
        for name in names:
            self._add(os.path.join(folder, name))

    def _add_git_folder(self, git: str) -> None:
        self._add_all(git, _GIT_NAMES)
        if os.path.isdir(worktrees := os.path.join(git, "worktrees")):  # otherwise a person may make it meanwhile
            self._add(worktrees)

    def _add_repository(self, folder: str) -> None:
        """Protect what git obeys in a project: its `.git`, the folders of hooks and the files that settings name."""
        git = os.path.join(folder, ".git")
        if os.path.isdir(git) and not os.path.islink(git):
            self._add_git_folder(git)
        else:
            self._add(git)
        own = [os.path.expanduser("~/.gitconfig"), os.path.expanduser("~/.config/git/config"), "/etc/gitconfig"]
        for place in find_git_folders(folder) or [git]:
            own += [os.path.join(place, "config"), os.path.join(place, "config.worktree")]
        for file in own:
            for key, value in _GIT_PATHS.findall(_read_text(file)):
                is_hooks = key.lower() == "hookspath"
                start = folder if is_hooks else os.path.dirname(file)
                path = os.path.normpath(os.path.join(start, os.path.expanduser(value.strip())))
                self._add(path)
                if not is_hooks and path not in own and len(own) < _MAX_CONFIG_FILES:
                    own.append(path)


def _find_first_link(path: str) -> str:
    """Return the first part of a real path that has become a link, or the path itself."""
    places = [*reversed(Path(path).parents), Path(path)]
    return next((str(place) for place in places if os.path.islink(place)), path)


def open_exactly(path: str) -> int:
    """Return a descriptor of the file or folder at exactly this real path, which can be used as a place only."""
    descriptor = os.open(path, _PLACE_FLAGS)
    if os.readlink(f"/proc/self/fd/{descriptor}") == path:
        return descriptor
    os.close(descriptor)
    raise OSError(f"{path!r} goes through a link that a line has made")


def _open_own_folder(path: str) -> int:
    """Return a descriptor of the folder at exactly this real path, which this user can change again.

    A line of the same user may have taken away the rights of this folder, or of one above it.
    """
    try:
        folder = open_exactly(path)
    except PermissionError:
        os.close(_open_own_folder(os.path.dirname(path)))
        folder = open_exactly(path)
    found = os.fstat(folder)
    if found.st_uid == os.geteuid() and found.st_mode & 0o700 != 0o700:
        os.chmod(f"/proc/self/fd/{folder}", found.st_mode & 0o7777 | 0o700)
    return folder


def _read_state(path: str) -> object:
    """Return None for an absent path, False for a hidden one, the target of a link, or the identity of others."""
    try:
        found = os.lstat(path)
        if S_ISLNK(found.st_mode):
            return os.readlink(path)
    except PermissionError:
        return False
    except OSError:
        return None
    content = (found.st_size, found.st_mtime_ns) if S_ISREG(found.st_mode) else ()
    return (found.st_dev, found.st_ino, *content)


def _read_text(path: str) -> str:
    """Return the text of a small file, or "" for anything else."""
    with suppress(OSError, ValueError):
        return read_file(path, _MAX_CONFIG_BYTES).decode("utf-8", "replace")
    return ""


def is_below(path: str, folders: Iterable[str]) -> bool:
    """Return whether a path lies in one of these folders."""
    return any(path.startswith(folder + os.sep) for folder in folders)


def find_git_folders(root: str) -> list[str]:
    """Return the common git folder of a linked worktree, and its own one in there; [] for any other root.

    Both must say that they belong to this root, so a forged `.git` file opens nothing.
    """
    line = _read_text(os.path.join(root, ".git"))
    own = os.path.realpath(os.path.join(root, line.removeprefix("gitdir:").strip()))
    back, shared = (_read_text(os.path.join(own, name)).strip() for name in ("gitdir", "commondir"))
    common = os.path.realpath(os.path.join(own, shared))
    belongs = os.path.realpath(os.path.join(own, back)) == os.path.join(root, ".git")
    is_linked = line.startswith("gitdir:") and belongs and os.path.dirname(own) == os.path.join(common, "worktrees")
    return [common, own] if is_linked and _is_git_folder(common) else []


def _is_git_folder(path: str) -> bool:
    return os.path.isfile(os.path.join(path, "HEAD")) and os.path.isdir(os.path.join(path, "objects"))
