"""The paths inside a writable folder that a line may not change: they decide what programs outside the sandbox run.

A path that is there becomes a read-only mount, and each folder above it a mount, because only mount points cannot be
renamed. Nothing can be mounted on an absent path without making it, or on a link. These are looked at while the line
runs and after it: a new path is moved aside, and a changed link is made again.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
_FOLDER_FLAGS: Final = _PLACE_FLAGS | os.O_DIRECTORY
_MAX_SUBMODULES: Final = 200
_MAX_LINKS: Final = 8
_MAX_CONFIG_BYTES: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Protection:
    """The protected paths of one line.

    Attributes:
        pinned: Writable folders that become mounts, so that they stay in their place.
        fixed: Paths that become read-only mounts.
        states: The state of each path before the line: absent, a link, or the identity of a file or a folder.
    """

    pinned: tuple[str, ...]
    fixed: tuple[str, ...]
    states: dict[str, object]

    def find_changes(self) -> list[str]:
        """Return the paths that the line, or anybody else, has changed."""
        return [path for path, state in self.states.items() if _read_state(path) != state]

    def restore(self, path: str) -> bool:
        """Move a path that was absent aside, or make a link again. Return whether that was possible.

        Nothing is deleted: somebody outside may have made the path meanwhile.
        """
        before = self.states[path]
        if not (before is None or isinstance(before, str)):
            return False  # a file that somebody outside has replaced
        with suppress(OSError):
            folder, name = os.path.split(_find_first_link(path))
            parent = _open_folder(folder)
            try:
                _give_rights(parent)
                _move_aside(name, parent)
                if before is not None:
                    os.symlink(before, name, dir_fd=parent)
            finally:
                os.close(parent)
            return True
        return False


NO_PROTECTION: Final = Protection((), (), {})


def _find_first_link(path: str) -> str:
    """Return the first part of a real path that has become a link, or the path itself."""
    places = [str(place) for place in [*reversed(Path(path).parents), Path(path)]]
    return next((place for place in places if os.path.islink(place)), path)


def _open_folder(path: str) -> int:
    """Return a descriptor of the folder at exactly this real path, through no link that a line has made."""
    current = os.open(os.sep, _FOLDER_FLAGS)
    for part in path.strip(os.sep).split(os.sep):
        try:
            inner = _open_part(part, current)
        finally:
            os.close(current)
        current = inner
    return current


def open_exactly(path: str) -> int:
    """Return a descriptor of the file or folder at exactly this real path, which can be used as a place only."""
    parent = _open_folder(os.path.dirname(path))
    try:
        return os.open(os.path.basename(path), _PLACE_FLAGS, dir_fd=parent)
    finally:
        os.close(parent)


def _open_part(name: str, folder: int) -> int:
    try:
        return os.open(name, _FOLDER_FLAGS, dir_fd=folder)
    except PermissionError:
        _give_rights(folder)
        return os.open(name, _FOLDER_FLAGS, dir_fd=folder)


def _give_rights(folder: int) -> None:
    """Let this user change its own folder again. A line of the same user may have taken that right away."""
    found = os.fstat(folder)
    if found.st_uid == os.geteuid() and found.st_mode & 0o700 != 0o700:
        os.chmod(f"/proc/self/fd/{folder}", found.st_mode & 0o7777 | 0o700)


def _move_aside(name: str, folder: int) -> None:
    if not _exists(name, folder):
        return
    new = next(one for number in count() if not _exists(one := f"{name}.refused{number or ''}", folder))
    os.rename(name, new, src_dir_fd=folder, dst_dir_fd=folder)


def _exists(name: str, folder: int) -> bool:
    with suppress(FileNotFoundError):
        os.lstat(name, dir_fd=folder)
        return True
    return False


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


class _Collector:
    """A collector of the protected paths in writable folders, none of which lies in another."""

    def __init__(self, folders: Sequence[str], opened: frozenset[str]) -> None:
        self.folders = folders
        self.opened = opened
        self.pinned: dict[str, None] = {}
        self.fixed: dict[str, None] = {}
        self.states: dict[str, object] = {}

    def add(self, path: str, depth: int = 0) -> None:
        """Protect a path in a writable folder, and the target of each link on its way if that is in one, too."""
        path = os.path.normpath(path)
        folder = next((one for one in self.folders if path.startswith(one + os.sep)), None)
        if folder is None or path in self.opened or depth > _MAX_LINKS:
            return
        place, parts = folder, path[len(folder) + 1 :].split(os.sep)
        for number, part in enumerate(parts):
            place = os.path.join(place, part)
            state = _read_state(place)
            is_last = number == len(parts) - 1
            if isinstance(state, str):
                self.states[place] = state
                target = os.path.join(os.path.dirname(place), state, *parts[number + 1 :])
                self.add(os.path.realpath(target), depth + 1)
                return
            if not state or not (is_last or os.path.isdir(place)):
                self.states[path] = _read_state(path)
                return
            self.states[place] = state
            if not is_last:
                self.pinned[place] = None
        self.fixed[place] = None

    def add_git_folder(self, git: str, worktree: str) -> None:
        """Protect what git runs or follows in a git folder: configuration, hooks, links to other folders.

        Args:
            worktree: The folder at which relative paths of hooks start.
        """
        if not os.path.isfile(os.path.join(git, "HEAD")):
            return
        for name in _GIT_FILES:
            self.add(os.path.join(git, name))
        self.add(os.path.join(git, "hooks"))
        self.add_configured_paths(git, worktree)

    def add_configured_paths(self, git: str, worktree: str) -> None:
        """Protect the folders of hooks and the included files that the configuration of a git folder names."""
        configs = [os.path.join(git, "config"), os.path.join(git, "config.worktree"), *_own_git_files()]
        for start, name in _iter_paths_in_config(configs):
            base = worktree if start is None else start
            self.add(os.path.join(base, name))


def _own_git_files() -> list[str]:
    return [os.path.expanduser("~/.gitconfig"), os.path.expanduser("~/.config/git/config"), "/etc/gitconfig"]


def _iter_paths_in_config(files: list[str]) -> Iterator[tuple[str | None, str]]:
    """Yield the folders of hooks as `(None, path)`, and included files as `(folder of the including file, path)`."""
    todo, seen = list(files), set(files)
    while todo:
        file = todo.pop()
        for key, value in _GIT_PATHS.findall(_read_text(file)):
            path = os.path.expanduser(value.strip())
            if key.lower() == "hookspath":
                yield None, path
                continue
            yield os.path.dirname(file), path
            included = os.path.normpath(os.path.join(os.path.dirname(file), path))
            if included not in seen and len(seen) < _MAX_SUBMODULES:
                seen.add(included)
                todo.append(included)


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


def protect(
    folders: Sequence[str],
    *,
    names: Iterable[str] = (),
    opened: Iterable[str] = (),
    git: tuple[str, str] | None = None,
) -> Protection:
    """Return the protection of writable folders.

    Args:
        folders: Their real paths; the first one is the root.
        names: More protected paths, relative to the root.
        opened: Real paths that are not protected for this line.
        git: The common git folder of a linked worktree, which is one of the folders, and its own one.
    """
    collector = _Collector(folders, frozenset(opened))
    for name in names:
        collector.add(os.path.join(folders[0], name))
    for folder in folders:
        if git is None or folder != git[0]:
            _collect_project(collector, folder)
        else:
            _collect_repository(collector, folder, folder, git[1])
    fixed = {path for path in collector.fixed if not any(_is_below(path, other) for other in collector.fixed)}
    pinned = [path for path in collector.pinned if not any(path == one or _is_below(path, one) for one in fixed)]
    return Protection(tuple(pinned), tuple(fixed), collector.states)


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder + os.sep)


def _collect_project(collector: _Collector, folder: str) -> None:
    # With a HEAD and a few folders, git takes the root itself for a repository without a worktree.
    gits = {git: _is_git_folder(git) for git in (folder, os.path.join(folder, ".git"))}
    for path in (*(os.path.join(folder, name) for name in _NAMES), os.path.join(folder, "HEAD")):
        if not (gits.get(path) or (gits[folder] and path.endswith("/HEAD"))):
            collector.add(path)
    if os.path.lexists(husky := os.path.join(folder, ".husky")):
        collector.add(husky)  # its hooks are run by one in a folder below it
    for own in (sys.prefix, str(state_folder()), str(configuration_folder())):
        collector.add(os.path.join(folder, own))
    for git in (git for git, found in gits.items() if found):
        _collect_repository(collector, git, folder, None)
    if (found := find_common_git_folder(folder)) is not None:
        for git in found:
            collector.add_configured_paths(git, folder)
    for path in _find_submodule_folders(folder):
        collector.add(os.path.join(path, ".git"))


def _collect_repository(collector: _Collector, git: str, worktree: str, own: str | None) -> None:
    collector.add_git_folder(git, worktree)
    _collect_worktrees(collector, git, own)
    _collect_submodules(collector, git)


def _collect_worktrees(collector: _Collector, git: str, own: str | None) -> None:
    """Keep the entries of other worktrees as they are: they look deleted in here, and git would prune them."""
    entries = os.path.join(git, "worktrees")
    with suppress(OSError):
        for name in os.listdir(entries):
            entry = os.path.join(entries, name)
            if entry != own:
                collector.add(entry)
    if own is not None:
        for name in _GIT_FILES:
            collector.add(os.path.join(own, name))


def _collect_submodules(collector: _Collector, git: str) -> None:
    modules = os.path.join(git, "modules")
    for number, (place, folders, files) in enumerate(os.walk(modules)):
        if number == _MAX_SUBMODULES:  # so that a line cannot hide one among many
            collector.add(modules)
            return
        if "HEAD" in files and "config" in files:
            collector.add_git_folder(place, place)
            folders[:] = [name for name in folders if name == "modules"]


def _find_submodule_folders(folder: str) -> list[str]:
    text = _read_text(os.path.join(folder, ".gitmodules"))
    paths = [value.strip() for key, value in _GIT_PATHS.findall(text) if key.lower() == "path"]
    return [os.path.join(folder, path) for path in paths[:_MAX_SUBMODULES]]


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
