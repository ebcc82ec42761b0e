"""Open paths safely: the opened file is the file that was judged, even if something is swapped in between.

`open_inside` is `open` for handlers. `resolve_path` resolves a path and `contains` checks whether the result lies
inside; both only look. `open_exactly`, `open_directory` and `write_exactly` take such a canonical path and descend one
component at a time. They open each component relative to the one before and never through a symbolic link. They refuse
pipes, devices and sockets, so nothing here waits for a writer.

A path does not show that a file has a hard link elsewhere. `open_inside` and `open_exactly` can refuse a file with
several hard links. `write_exactly` replaces one of them by a new file and leaves the others.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from functools import lru_cache
from pathlib import PurePath
from types import TracebackType
from typing import IO, Any, Final, Literal, TypeAlias
from weakref import WeakKeyDictionary

from ferrule.errors import DefinitionError

Kind: TypeAlias = Literal["file", "directory", "link", "other"]
"""The kind of a path's target. See docs/guards.md#paths."""
Expected: TypeAlias = os.stat_result | Literal["nothing"] | None
"""The expected state of a file before it is replaced: its stat from the time of reading, `"nothing"` if it must not
exist, or `None` for any state. See docs/guards.md#paths.
"""

PATH_NAMES: Final = frozenset(
    {"path", "paths", "filepath", "filepaths", "file", "files", "filename", "filenames"}
    | {"dir", "dirs", "dirname", "directory", "directories", "folder", "folders", "cwd", "workdir"}
)
"""The names of paths. A parameter is a path if the last word of its name, or the last two, are one of these:
`output_path`, `fileName2`. See docs/guards.md#paths.
"""
_WORD_OF_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_MOST_DIRECTORIES = 1000

_HAS_DIRECTORY_DESCRIPTORS: Final = (
    {os.open, os.stat, os.mkdir, os.rename, os.unlink} <= os.supports_dir_fd
    and os.scandir in os.supports_fd
    and hasattr(os, "O_NOFOLLOW")
)
_CLOSE_ON_EXEC: Final = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_LINKS: Final = getattr(os, "O_NOFOLLOW", 0) | _CLOSE_ON_EXEC
_NO_WAITING: Final = getattr(os, "O_NONBLOCK", 0)
_DIRECTORY: Final = getattr(os, "O_DIRECTORY", 0)
# O_PATH needs no right to list the directories on the way (Linux).
_PASSING: Final = getattr(os, "O_PATH", os.O_RDONLY) | _DIRECTORY | _NO_LINKS
_MISSING_ERRORS: Final = frozenset({errno.ENOENT, errno.ENOTDIR})
# The limit of Linux, path_resolution(7).
_MOST_LINKS: Final = 40
RESERVED_FILES: Final[set[tuple[int, int]]] = set()
"""Files that nothing here opens, by device and number: those of the journals that this process has open. The system
drops their locks when the process closes another descriptor of them. See docs/journal.md#where-to-keep-it.
"""
ALLOWED_PATHS: Final[WeakKeyDictionary[object, frozenset[str]]] = WeakKeyDictionary()
"""The real paths that a `within` guard allows, by the call (`context.running_call`). Handlers that read files only
under such a guard use them. See docs/openapi.md#uploads.
"""
MAX_PATH_LENGTH: Final = 32_767
"""The most characters of a path on any system (Windows; 4,096 on Linux). See docs/guards.md#paths."""


@lru_cache(maxsize=1024)
def has_last_word(name: str, names: frozenset[str]) -> bool:
    """Return whether the last word of a parameter's name, or its last two, are one of `names`.

    See docs/guards.md#paths.
    """
    words = split_name(name)[-2:]
    return bool(words) and (words[-1] in names or "".join(words) in names)


def split_name(name: str) -> list[str]:
    """Return the words of a parameter's name, in lower case: `run_cmdStr2` has `run`, `cmd` and `str`.

    See docs/guards.md#paths.
    """
    return [word.lower() for word in _WORD_OF_NAME.findall(name)]


class SymbolicLinkError(OSError):
    """A path goes through a symbolic link where it must not. See docs/guards.md#paths."""


class ReservedError(OSError):
    """A file belongs to a journal that this process has open. See docs/journal.md#where-to-keep-it."""


class HardLinkError(OSError):
    """A file has several hard links, and others may be elsewhere. See docs/guards.md#paths."""


def check_path(path: str) -> str:
    """Return `path` if it can be a path. See docs/guards.md#paths.

    Raises:
        ValueError: The path is empty, contains a NUL or a lone surrogate, starts with `~`, or is too long on any
            system.
    """
    if not isinstance(path, str):
        raise ValueError(f"a path is text, not {type(path).__name__}")
    if not path:
        raise ValueError("the path is empty; '.' means the working directory")
    if "\0" in path:
        raise ValueError("the path has a NUL character")
    if len(path) > MAX_PATH_LENGTH:
        raise ValueError(f"the path has {len(path)} characters, and no path has more than {MAX_PATH_LENGTH}")
    if path.startswith("~"):
        raise ValueError(f"{_quote(path)} starts with '~', which is not expanded; write the path out")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ValueError("the path has a lone surrogate, which no file name has") from None
    return path


def resolve_path(path: str, base: str) -> str:
    """Return the canonical absolute path of `path`, seen from `base`: no symbolic links, no `.` or `..`.

    Missing components are used as written, so a file can be judged before it exists. Each component is looked up once,
    and nothing below a missing one. See docs/guards.md#paths.

    Raises:
        ValueError: `path` cannot be a path; see `check_path`.
        OSError: The target is uncertain: a loop of links, a directory without the right to search it, or a path too
            long to look up. (`os.path.realpath` uses these as written, CVE-2025-4517.)
    """
    start = os.path.join(os.getcwd(), base, check_path(path))
    if os.name == "nt":  # pragma: no cover
        return _resolve_windows_path(start)
    done: list[str] = []
    there = 0  # the number of leading components of `done` that exist
    to_do = start.split("/")[::-1]
    links = 0
    while to_do:
        name = to_do.pop()
        if name == "..":
            del done[-1:]
            there = min(there, len(done))
        elif name not in {"", "."}:
            done.append(name)
            target = _link_target(done, path) if there == len(done) - 1 else None
            if target == "":
                there += 1
            elif target is not None:
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(f"{_quote(path)} leads into a loop of symbolic links")
                done = [] if target.startswith("/") else done[:-1]
                there = len(done)
                to_do += target.split("/")[::-1]
    return "/" + "/".join(done)


def _link_target(components: list[str], path: str) -> str | None:
    """Return the target of a link; empty for any other file, or None if nothing exists there."""
    try:
        return os.readlink("/" + "/".join(components))
    except OSError as error:
        if error.errno == errno.EINVAL:
            return ""
        if error.errno in _MISSING_ERRORS:
            return None
        explained = type(error)(f"{_quote(path)} cannot be resolved: {error.strerror}")
        explained.errno = error.errno
        raise explained from None


def _resolve_windows_path(start: str) -> str:  # pragma: no cover
    drive, rest = os.path.splitdrive(start)
    if ":" in rest or drive.startswith(("\\\\?\\", "\\\\.\\")):
        raise ValueError(f"{_quote(start)} is the name of a device or a stream, not of a file")
    return os.path.realpath(start)


def contains(root: str, path: str) -> bool:
    """Return whether canonical `path` is `root` or lies below it, by components: `notes-secret` is not inside `notes`.

    See docs/guards.md#paths.
    """
    if os.name == "posix":  # five times as fast as `PurePath`
        return path.startswith("/") and ".." not in path.split("/") and f"{path}/".startswith(f"{root.rstrip('/')}/")
    inner = PurePath(path)  # pragma: no cover
    return ".." not in inner.parts and inner.is_absolute() and inner.is_relative_to(PurePath(root))  # pragma: no cover


class Roots:
    """Allowed folders or files, resolved at construction: links created later do not move them.

    See docs/guards.md#paths.

    Args:
        roots: Texts or paths, with `~` for the home directory; by default the working directory. Relative roots start
            at the working directory of the call if it has one, and otherwise at the program's working directory at
            construction.
        of: The receiver of the roots, for errors.

    Raises:
        DefinitionError: A root is no path, or cannot be looked up.
    """

    def __init__(self, *roots: str | os.PathLike[str], of: str = "within(…)") -> None:
        self._texts = tuple(_expand_root(root, of) for root in roots) or (".",)
        try:
            self._created_in = os.getcwd()
            self._fixed = [resolve_path(root, self._created_in) for root in self._texts]
        except (OSError, ValueError) as error:
            raise DefinitionError(f"{of}: {error}") from None
        self._resolve_cached = lru_cache(maxsize=_MOST_DIRECTORIES)(self._resolve_roots)

    def find_base(self, working_directory: str | None) -> str:
        """Return the start of relative paths for a call with this working directory."""
        return self._created_in if working_directory is None else os.path.join(self._created_in, working_directory)

    def resolve_roots(self, working_directory: str | None) -> list[str]:
        """Return the canonical paths of the roots for a call with this working directory.

        Raises:
            OSError, ValueError: A root cannot be looked up.
        """
        return self._fixed if working_directory is None else self._resolve_cached(self.find_base(working_directory))

    def _resolve_roots(self, base: str) -> list[str]:
        roots = zip(self._texts, self._fixed, strict=True)
        return [root if os.path.isabs(text) else resolve_path(text, base) for text, root in roots]

    def contains(self, path: str, working_directory: str | None) -> bool:
        """Return whether the target of `path` is one of the roots, or lies below one.

        Raises:
            OSError, ValueError: The target is uncertain; see `resolve_path`.
        """
        return next(self._find_holding(path, working_directory), None) is not None

    def contains_without_link(self, path: str, working_directory: str | None) -> bool | None:
        """Return whether `contains` holds, or None if each such root is relative and leads through a link.

        The files of a working directory may be a stranger's, so a link in it is no choice of the person who wrote the
        root.

        Raises:
            OSError, ValueError: The target is uncertain; see `resolve_path`.
        """
        holding = [*self._find_holding(path, working_directory)]
        if not holding:
            return False
        base = resolve_path(".", self.find_base(working_directory))
        return True if any(_has_no_link(text, root, base) for text, root in holding) else None

    def _find_holding(self, path: str, working_directory: str | None) -> Iterator[tuple[str, str]]:
        """Return the roots that hold the target of `path`: as written, and resolved."""
        found = resolve_path(path, self.find_base(working_directory))
        roots = zip(self._texts, self.resolve_roots(working_directory), strict=True)
        return ((text, root) for text, root in roots if contains(root, found))

    def covers(self, other: Roots) -> bool:
        """Return whether these roots hold everything that `other` holds, from any working directory.

        Relative roots are compared as written.
        """
        wide, narrow = (list(zip(roots._texts, roots._fixed, strict=True)) for roots in (self, other))
        return all(any(_covers_root(root, inner) for root in wide) for inner in narrow)


def _has_no_link(text: str, root: str, base: str) -> bool:
    """Return whether a root is absolute as written, or was resolved through no link from its canonical start."""
    return os.path.isabs(text) or root == os.path.normpath(os.path.join(base, text))


def _covers_root(root: tuple[str, str], inner: tuple[str, str]) -> bool:
    """Return whether one root contains another. Each root is a pair: its written form and its resolved path."""
    if os.path.isabs(root[0]) and os.path.isabs(inner[0]):
        return contains(root[1], inner[1])
    return root == inner


def _expand_root(root: object, of: str) -> str:
    root = os.fspath(root) if isinstance(root, os.PathLike) else root
    if not isinstance(root, str) or not root or "\0" in root:
        raise DefinitionError(f"{of} takes folders, as text or paths, not {root!r}")
    expanded = os.path.expanduser(root)
    if expanded.startswith("~"):
        raise DefinitionError(f"{of}: the home directory in {root!r} does not exist")
    return expanded


def _quote(path: str) -> str:
    return repr(path) if len(path) <= 200 else f"{path[:200]!r}…"


class Directory:
    """An open directory, with access to its entries without links. A descriptor holds it if the platform supports that.

    Use it as a context manager. `name` is always one component. See docs/guards.md#paths.
    """

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int | None) -> None:
        self.path = path
        self._fd = fd

    def __enter__(self) -> Directory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor. Repeated calls do no harm."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _check_name(self, name: str) -> str:
        if name in {"", ".", ".."} or "/" in name or os.sep in name or "\0" in name:
            raise ValueError(f"{_quote(name)} is not the name of one file")
        return name if self._fd is not None else os.path.join(self.path, name)

    def _join(self, name: str) -> str:
        return os.path.join(self.path, name)

    def stat_itself(self) -> os.stat_result:
        """Return the stat of this directory."""
        return os.stat(self.path if self._fd is None else self._fd)

    def stat(self, name: str) -> os.stat_result:
        """Return the stat of `name`, without following a link.

        Raises:
            OSError: There is no such entry.
        """
        try:
            return os.stat(self._check_name(name), dir_fd=self._fd, follow_symlinks=False)
        except OSError as error:
            raise self._explain_error(name, error) from None

    def kind(self, name: str) -> Kind | None:
        """Return the kind of `name`, or `None` if there is no such entry."""
        try:
            return _kind_of_mode(self.stat(name).st_mode)
        except FileNotFoundError:
            return None

    def enter(self, name: str) -> Directory:
        """Return the directory `name` in this one.

        Raises:
            SymbolicLinkError: It is a link.
            OSError: It is no directory.
        """
        place = self._check_name(name)
        if self._fd is None:
            self._check_kind(name, "directory")
            _refuse_links(place)
            return Directory(place, None)
        try:
            fd = os.open(place, _PASSING, dir_fd=self._fd)
        except OSError as error:
            raise self._explain_error(name, error, "directory") from None
        return Directory(self._join(name), fd)

    def make(self, name: str) -> None:
        """Make the directory `name` if it does not exist."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._check_name(name), dir_fd=self._fd)

    def open(self, name: str, flags: int = os.O_RDONLY, mode: int = 0o666, *, hard_links: bool = True) -> int:
        """Return a descriptor of the regular file `name`. The caller closes it.

        Raises:
            SymbolicLinkError: It is a link.
            HardLinkError: It has several hard links, and `hard_links` is false.
            ReservedError: It belongs to an open journal.
            OSError: It is no regular file, or cannot be opened.
        """
        place = self._check_name(name)
        if not flags & os.O_CREAT or self.kind(name) is not None:
            # Check before opening: the mere opening of a device can have an effect.
            self._check_kind(name, "file")
        if self._fd is None:
            _refuse_links(place)
        try:
            fd = os.open(place, flags & ~os.O_TRUNC | _NO_LINKS | _NO_WAITING, mode, dir_fd=self._fd)
        except OSError as error:
            raise self._explain_error(name, error, "file") from None
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise _make_kind_error(self._join(name), _kind_of_mode(found.st_mode), "file")
            if self._fd is None and not os.path.samestat(found, os.lstat(place)):
                raise SymbolicLinkError(f"{_quote(place)} was replaced while it was opened")
            if not hard_links and found.st_nlink > 1:
                raise HardLinkError(f"{_quote(self._join(name))} has {found.st_nlink} hard links, which are refused")
            if flags & os.O_TRUNC:
                os.truncate(fd, 0)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def entries(self) -> Iterator[tuple[str, Kind]]:
        """Yield the names in this directory with their kinds, in no order, without `.` and `..`."""
        if self._fd is None:
            with os.scandir(self.path) as found:
                yield from ((entry.name, _entry_kind(entry)) for entry in found)
            return
        try:
            fd = os.open(".", os.O_RDONLY | _DIRECTORY | _CLOSE_ON_EXEC, dir_fd=self._fd)
        except OSError as error:
            raise type(error)(f"{_quote(self.path)} cannot be listed: {error.strerror}") from None
        try:
            with os.scandir(fd) as found:
                yield from ((entry.name, _entry_kind(entry)) for entry in found)
        finally:
            os.close(fd)

    def write(self, name: str, data: bytes, *, expected: Expected = None, mode: int = 0o666) -> bool:
        """Replace the file `name` by `data` atomically, and keep its mode. Return whether the file is new.

        Args:
            expected: The stat of the file when it was read, or `"nothing"` if it did not exist. A file that has changed
                since then stays as it is.
            mode: The rights of a new file.

        Raises:
            SymbolicLinkError: It is a link.
            OSError: It is no regular file, cannot be written, or has changed.
        """
        before = self._stat_writable(name)
        self._check_unchanged(name, before, expected)
        temporary = f".ferrule-{secrets.token_hex(8)}.tmp"
        try:
            fd = self.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode if before is None else 0o600)
        except PermissionError:
            raise PermissionError(f"{_quote(self.path)} takes no new files: Permission denied") from None
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                if before is not None:
                    _copy_rights(file.fileno(), before)
                os.fsync(file.fileno())
            if expected is not None:
                self._check_unchanged(name, self._stat_writable(name), expected)
            os.replace(self._check_name(temporary), self._check_name(name), src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(self._check_name(temporary), dir_fd=self._fd)
            raise
        return before is None

    def _stat_writable(self, name: str) -> os.stat_result | None:
        # The replacement of a file needs no write permission on it, so check that permission here.
        if self.kind(name) is None:
            return None
        fd = self.open(name, os.O_WRONLY)
        try:
            return os.fstat(fd)
        finally:
            os.close(fd)

    def _check_unchanged(self, name: str, now: os.stat_result | None, expected: Expected) -> None:
        if expected is None:
            return
        before = None if expected == "nothing" else _version(expected)
        if before != (None if now is None else _version(now)):
            raise OSError(f"{_quote(self._join(name))} has changed since it was read; read it again")

    def _check_kind(self, name: str, wanted: Kind) -> None:
        found = self.stat(name)
        kind = _kind_of_mode(found.st_mode)
        if kind != wanted:
            raise _make_kind_error(self._join(name), kind, wanted)
        if (found.st_dev, found.st_ino) in RESERVED_FILES:
            raise ReservedError(f"{_quote(self._join(name))} belongs to an open journal; tools cannot open it")

    def _explain_error(self, name: str, error: OSError, wanted: Kind = "file") -> OSError:
        """Return `error` in words that name the whole path, and the link if there is one."""
        full = self._join(name)
        if isinstance(error, FileNotFoundError):
            return FileNotFoundError(f"{_quote(full)} does not exist")
        with contextlib.suppress(OSError):
            kind = _kind_of_mode(os.stat(self._check_name(name), dir_fd=self._fd, follow_symlinks=False).st_mode)
            if kind == "link" or (kind != wanted and not isinstance(error, PermissionError)):
                return _make_kind_error(full, kind, wanted)
        return type(error)(f"{_quote(full)} cannot be opened: {error.strerror}")


def _make_kind_error(path: str, kind: Kind, wanted: Kind) -> OSError:
    if kind == "link":
        with contextlib.suppress(OSError, ValueError):
            return SymbolicLinkError(
                f"the path goes through a symbolic link, {_quote(path)}, and links are not followed; "
                f"its real path is {_quote(resolve_path(path, '/'))}"
            )
        return SymbolicLinkError(f"the path goes through a symbolic link that leads nowhere, {_quote(path)}")
    if wanted == "directory":
        return NotADirectoryError(f"{_quote(path)} is not a directory")
    if kind == "directory":
        return IsADirectoryError(f"{_quote(path)} is a directory, not a file")
    return OSError(f"{_quote(path)} is not a regular file (a pipe, a device or a socket)")


def _kind_of_mode(mode: int) -> Kind:
    if stat.S_ISLNK(mode):
        return "link"
    if stat.S_ISREG(mode):
        return "file"
    return "directory" if stat.S_ISDIR(mode) else "other"


def _entry_kind(entry: os.DirEntry[str]) -> Kind:
    try:
        return _kind_of_mode(entry.stat(follow_symlinks=False).st_mode)
    except OSError:
        return "other"


def _version(status: os.stat_result) -> tuple[int, ...]:
    """Return values that differ if a file has changed. The change time of its entry cannot be set back."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _copy_rights(fd: int, before: os.stat_result) -> None:
    if hasattr(os, "fchown"):
        with contextlib.suppress(OSError):
            os.fchown(fd, before.st_uid, before.st_gid)
    if hasattr(os, "fchmod"):
        os.fchmod(fd, stat.S_IMODE(before.st_mode))


def _refuse_links(path: str) -> None:
    """Refuse a path that is not its own real path, on platforms that cannot hold a directory open."""
    found = os.path.realpath(path)
    if os.path.normcase(found) != os.path.normcase(path):
        raise SymbolicLinkError(
            f"the path goes through a symbolic link, and links are not followed; its real path is {_quote(found)}"
        )


def _split_components(path: str) -> tuple[str, list[str]]:
    """Return the root of a canonical path, and its components."""
    check_path(path)
    pure = PurePath(path)
    if not pure.is_absolute() or os.path.normpath(path) != path or path.startswith("//"):
        raise ValueError(f"{_quote(path)} is not a canonical absolute path")
    return pure.anchor, list(pure.parts[1:])


def open_directory(path: str, *, make: bool = False) -> Directory:
    """Return the directory at exactly the canonical absolute `path`. If `make` is true, make all missing directories.

    See docs/guards.md#paths.

    Raises:
        ValueError: `path` is not canonical.
        SymbolicLinkError: It goes through a link.
        OSError: There is no such directory, or no right to enter it.
    """
    root, components = _split_components(path)
    current = Directory(root, os.open(root, _PASSING) if _HAS_DIRECTORY_DESCRIPTORS else None)
    try:
        for name in components:
            if make:
                current.make(name)
            inner = current.enter(name)
            current.close()
            current = inner
    except BaseException:
        current.close()
        raise
    return current


def _split_file_name(path: str) -> tuple[str, str]:
    directory, name = os.path.split(path)
    if not name:
        raise IsADirectoryError(f"{_quote(path)} is a directory, not a file")
    return directory, name


def open_inside(
    root: str | os.PathLike[str],
    path: str | os.PathLike[str],
    mode: str = "r",
    *,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    hard_links: bool = True,
) -> IO[Any]:
    """Open the file at `path` as `open` does, if it is inside `root`. A relative `path` starts at `root`.

    Symbolic links are resolved before the check; a link created after it is refused. A file is emptied only after this
    check of its identity. See docs/guards.md#paths.

    Args:
        root: A directory, or the file itself. A relative one starts at the program's working directory.
        mode, encoding, errors, newline: As for `open`; text is UTF-8 by default.
        hard_links: Whether a file may have several hard links. No path shows the places of the others.

    Raises:
        ValueError: `path` cannot be a path; see `check_path`.
        PermissionError: It is outside of `root`.
        SymbolicLinkError, HardLinkError: It goes through a link, or has several hard links.
        OSError: There is no such file, no right to open it, or it is a directory, a pipe or a device.
    """
    base = resolve_path(os.fspath(root), ".")
    full = resolve_path(os.fspath(path), base)
    if not contains(base, full):
        raise PermissionError(f"{_quote(os.fspath(path))} is outside of {_quote(os.fspath(root))}")
    if "b" not in mode:
        encoding = encoding or "utf-8"

    def opener(exact: str, flags: int) -> int:
        return open_exactly(exact, flags, hard_links=hard_links)

    return open(full, mode, encoding=encoding, errors=errors, newline=newline, opener=opener)


def read_file(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """Return the bytes of a regular file from an untrusted source, such as a file in a repository.

    See docs/guards.md#paths.

    Args:
        path: The file. Symbolic links are followed, and `~` is not expanded.
        max_bytes: The most bytes of the file.

    Raises:
        ValueError: The file has more bytes, or `path` cannot be a path.
        OSError: There is no such file, no right to open it, or it is a directory, a pipe or a device.
    """
    with os.fdopen(open_exactly(resolve_path(os.fspath(path), ".")), "rb") as file:
        data = file.read(max_bytes + 1) or b""  # it is None for some files of /proc without data yet
    if len(data) > max_bytes:
        raise ValueError(f"it has more than {max_bytes:,} bytes")
    return data


def open_exactly(path: str, flags: int = os.O_RDONLY, mode: int = 0o666, *, hard_links: bool = True) -> int:
    """Return a descriptor of the regular file at exactly the canonical absolute `path`. The caller closes it.

    See docs/guards.md#paths.

    Args:
        flags: As for `os.open`. Links are never followed, and the descriptor is not inherited.
        mode: The rights of a new file.
        hard_links: Whether the file may have several hard links.

    Raises:
        ValueError: `path` is not canonical.
        SymbolicLinkError: It goes through a link, for instance one created after the path was judged.
        HardLinkError: It has several hard links, and `hard_links` is false.
        OSError: There is no such file, no right to open it, or it is a directory, a pipe or a device.
    """
    _split_components(path)
    directory, name = _split_file_name(path)
    with open_directory(directory) as parent:
        return parent.open(name, flags, mode, hard_links=hard_links)


def write_exactly(
    path: str,
    data: bytes,
    *,
    expected: Expected = None,
    make_directories: bool = False,
) -> bool:
    """Put `data` at exactly the canonical absolute `path`, atomically. Return whether the file is new.

    See docs/guards.md#paths.

    Args:
        expected: The stat of the file when it was read, or `"nothing"` if it did not exist. A file that has changed
            since then stays as it is.
        make_directories: Whether to make the missing directories above it.

    Raises:
        ValueError: `path` is not canonical.
        SymbolicLinkError: It goes through a link.
        OSError: It cannot be written, or has changed.
    """
    _split_components(path)
    directory, name = _split_file_name(path)
    with open_directory(directory, make=make_directories) as parent:
        return parent.write(name, data, expected=expected)
