"""The paths inside a writable folder that a line may not change: they decide what programs outside the sandbox run.

A path that is there becomes a read-only mount, and each folder above it a mount, because only mount points cannot be
renamed. Nothing can be mounted on an absent path without making it, or on a link. These are looked at while the line
runs and after it: a new path is moved aside, and a changed link is made again.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from stat import S_ISLNK, S_ISREG
from typing import Final

from ferrule.policy.files import configuration_folder, state_folder

_NAMES: Final = (
    *(".ferrule", ".vscode", ".idea", ".zed", ".fleet", ".devcontainer"),
    *(".claude", ".cursor", ".codex", ".gemini", ".windsurf", ".kiro"),
    *(".git", ".gitmodules", "ferrule.lock", ".mcp.json", ".envrc", ".claude.json", ".cursorrules"),
    *("opencode.json", ".aider.conf.yml"),
)
_GIT_FILES: Final = ("config", "config.worktree", "commondir", "gitdir")
_GIT_PATHS: Final = re.compile(r"(?im)^[ \t]*(?:\[[^\]\n]*\])?[ \t]*(hookspath|path)[ \t]*=[ \t]*\"?([^\"\n#;]+)")
"""`core.hooksPath`, and the `path` of an include."""
_PLACE_FLAGS: Final = getattr(os, "O_PATH", 0) | os.O_NOFOLLOW | os.O_CLOEXEC  # only Linux has O_PATH
_MAX_SUBMODULES: Final = 200
_MAX_LINKS: Final = 8
_MAX_CONFIG_BYTES: Final = 1_000_000


class Protection:
    """The protected paths of one line, collected in writable folders, none of which lies in another.

    Args:
        folders: Their real paths; the first one is the root.
        names: More protected paths, relative to the root.
        opened: Real paths that are not protected for this line.
        git: The common git folder of a linked worktree, which is one of the folders, and its own one.

    Attributes:
        pinned: Writable folders that become mounts, so that they stay in their place.
        fixed: Paths that become read-only mounts.
        states: The state of each path before the line: absent, a link, or the identity of a file or a folder.
        undone: Paths that the line had made or changed, and their state before is back.
        changed: Files that somebody outside has replaced meanwhile.
    """

    def __init__(
        self,
        folders: Sequence[str],
        *,
        names: Iterable[str] = (),
        opened: Iterable[str] = (),
        git: tuple[str, str] | None = None,
    ) -> None:
        self._folders, self._opened = folders, frozenset(opened)
        self.pinned: set[str] = set()
        self.fixed: set[str] = set()
        self.states: dict[str, object] = {}
        self.undone: list[str] = []
        self.changed: list[str] = []
        for name in names:
            self._add(os.path.join(folders[0], name))
        for folder in folders:
            if git is not None and folder == git[0]:
                self._add_repository(folder, folder, git[1])
            else:
                self._add_project(folder)
        self.fixed = {path for path in self.fixed if not _is_below(path, self.fixed)}
        self.pinned = {path for path in self.pinned - self.fixed if not _is_below(path, self.fixed)}

    def undo(self) -> None:
        """Undo the changes of the line, and collect those that somebody outside has made."""
        for path, state in self.states.items():
            if path not in self.changed and _read_state(path) != state:
                (self.undone if self._restore(path) else self.changed).append(path)

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
                names = os.listdir(f"/proc/self/fd/{parent}")
                if name in names:
                    new = next(one for n in count() if (one := f"{name}.refused{n or ''}") not in names)
                    os.rename(name, new, src_dir_fd=parent, dst_dir_fd=parent)
                if before is not None:
                    os.symlink(before, name, dir_fd=parent)
            finally:
                os.close(parent)
            return True
        return False

    def _add(self, path: str, depth: int = 0) -> None:
        """Protect a path in a writable folder, and the target of each link on its way if that is in one, too."""
        path = os.path.normpath(path)
        folder = next((one for one in self._folders if _is_below(path, [one])), None)
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

    def _add_project(self, folder: str) -> None:
        # With a HEAD and a few folders, git takes the root itself for a repository without a worktree.
        gits = [git for git in (folder, os.path.join(folder, ".git")) if _is_git_folder(git)]
        names = [*_NAMES, *([] if folder in gits else ["HEAD"])]
        if os.path.lexists(os.path.join(folder, ".husky")):
            names.append(".husky")  # its hooks are run by one in a folder below it
        for path in (*names, sys.prefix, str(state_folder()), str(configuration_folder())):
            if (path := os.path.join(folder, path)) not in gits:
                self._add(path)
        for git in gits:
            self._add_repository(git, folder, None)
        for git in find_common_git_folder(folder) or ():
            self._add_configured_paths(git, folder)
        submodules = _GIT_PATHS.findall(_read_text(os.path.join(folder, ".gitmodules")))
        for _, path in [one for one in submodules if one[0].lower() == "path"][:_MAX_SUBMODULES]:
            self._add(os.path.join(folder, path.strip(), ".git"))

    def _add_repository(self, git: str, worktree: str, own: str | None) -> None:
        """Protect a git folder, its submodules, and the entries of other worktrees than one's `own`.

        Other worktrees look deleted in here, and git would prune their entries.
        """
        self._add_git_folder(git, worktree)
        entries = os.path.join(git, "worktrees")
        with suppress(OSError):
            for entry in (os.path.join(entries, name) for name in os.listdir(entries)):
                if entry != own:
                    self._add(entry)
        for name in () if own is None else _GIT_FILES:
            self._add(os.path.join(own or "", name))
        modules = os.path.join(git, "modules")
        for number, (place, folders, files) in enumerate(os.walk(modules)):
            if number == _MAX_SUBMODULES:  # so that a line cannot hide one among many
                self._add(modules)
                return
            if "HEAD" in files and "config" in files:
                self._add_git_folder(place, place)
                folders[:] = [name for name in folders if name == "modules"]

    def _add_git_folder(self, git: str, worktree: str) -> None:
        """Protect what git runs or follows in a git folder: configuration, hooks, links to other folders.

        Args:
            worktree: The folder at which relative paths of hooks start.
        """
        if os.path.isfile(os.path.join(git, "HEAD")):
            for name in (*_GIT_FILES, "hooks"):
                self._add(os.path.join(git, name))
            self._add_configured_paths(git, worktree)

    def _add_configured_paths(self, git: str, worktree: str) -> None:
        """Protect the folders of hooks and the included files that the configuration of a git folder names."""
        own = [os.path.expanduser("~/.gitconfig"), os.path.expanduser("~/.config/git/config"), "/etc/gitconfig"]
        todo = [os.path.join(git, "config"), os.path.join(git, "config.worktree"), *own]
        for file in todo:
            for key, value in _GIT_PATHS.findall(_read_text(file)):
                is_hooks = key.lower() == "hookspath"
                start = worktree if is_hooks else os.path.dirname(file)
                path = os.path.normpath(os.path.join(start, os.path.expanduser(value.strip())))
                self._add(path)
                if not is_hooks and path not in todo and len(todo) < _MAX_SUBMODULES:
                    todo.append(path)


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
    """Return the text of a small file, or "" for anything else. A line may have made it a pipe without an end."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if S_ISREG(os.fstat(descriptor).st_mode):
                return os.read(descriptor, _MAX_CONFIG_BYTES).decode("utf-8", "replace")
        finally:
            os.close(descriptor)
    return ""


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return any(path.startswith(folder + os.sep) for folder in folders)


def find_common_git_folder(root: str) -> tuple[str, str] | None:
    """Return the common git folder of a linked worktree or a submodule, and its own one; None for any other root.

    Both must say that they belong to this root, so a forged `.git` file opens nothing.
    """
    line = _read_text(os.path.join(root, ".git"))
    own = os.path.realpath(os.path.join(root, line.removeprefix("gitdir:").strip()))
    if not line.startswith("gitdir:"):
        return None
    shared = _read_text(os.path.join(own, "commondir")).strip()
    if shared:
        back = _read_text(os.path.join(own, "gitdir")).strip()
        belongs = os.path.realpath(os.path.join(own, back)) == os.path.join(root, ".git")
        common = os.path.realpath(os.path.join(own, shared))
    else:
        found = re.search(r"(?im)^\s*worktree\s*=\s*(.+)$", _read_text(os.path.join(own, "config")))
        belongs = found is not None and os.path.realpath(os.path.join(own, found[1].strip())) == root
        common = own
    return (common, own) if belongs and _is_git_folder(common) else None


def _is_git_folder(path: str) -> bool:
    is_git = os.path.isfile(os.path.join(path, "HEAD")) and os.path.isdir(os.path.join(path, "objects"))
    return is_git and not os.path.islink(path)
