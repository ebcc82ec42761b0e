"""The safe opening of paths: what was judged is what is opened, whatever is swapped in between.

`open_inside` is `open` for handlers. `real` says what a string names and `contains` whether that lies inside; both only
look. `open_exactly`, `open_directory` and `write_exactly` take such a canonical path and go down it one component at a
time, each opened relative to the one before and none of them through a symbolic link. Files that are no files (pipes,
devices, sockets) are refused, so that nothing here waits for somebody to write.

No path tells that a file has a hard link elsewhere. What is opened to be read or changed in place may be refused for
having several; `write_exactly` puts a new file in the place of one of them, and leaves the others.
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
"""What is at a path. See docs/guards.md#paths."""
Expected: TypeAlias = os.stat_result | Literal["nothing"] | None
"""What is to be replaced: a file as it was when it was read, `"nothing"` where there was none, or whatever is there.
See docs/guards.md#paths."""

PATH_NAMES: Final = frozenset(
    {"path", "paths", "filepath", "filepaths", "file", "files", "filename", "filenames"}
    | {"dir", "dirs", "dirname", "directory", "directories", "folder", "folders", "cwd", "workdir"}
)
"""The names of paths. A parameter has one of these names where its last word, or its last two, are one: `output_path`,
`fileName2`. See docs/guards.md#paths."""
_WORD_OF_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_MOST_DIRECTORIES = 1000

_HOLDS_DIRECTORIES: Final = (
    {os.open, os.stat, os.mkdir, os.rename, os.unlink} <= os.supports_dir_fd
    and os.scandir in os.supports_fd
    and hasattr(os, "O_NOFOLLOW")
)
_CLOSED_ON_EXEC: Final = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_LINKS: Final = getattr(os, "O_NOFOLLOW", 0) | _CLOSED_ON_EXEC
_NO_WAITING: Final = getattr(os, "O_NONBLOCK", 0)
_DIRECTORY: Final = getattr(os, "O_DIRECTORY", 0)
# O_PATH needs no right to list a directory that is only passed through (Linux).
_PASSING: Final = getattr(os, "O_PATH", os.O_RDONLY) | _DIRECTORY | _NO_LINKS
_NOTHING_THERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR})
# As Linux has it, path_resolution(7).
_MOST_LINKS: Final = 40
RESERVED: Final[set[tuple[int, int]]] = set()
"""Files that nothing here opens, by device and number: those of the journals that this process has open, whose locks
the system drops when the process closes another descriptor of them. See docs/journal.md#where-to-keep-it."""
ALLOWED_PATHS: Final[WeakKeyDictionary[object, frozenset[str]]] = WeakKeyDictionary()
"""The real paths that a `within` guard allows, by the call (`context.running_call`). Handlers that read files only
under such a guard use them. See docs/openapi.md#uploads."""
LONGEST: Final = 32_767
"""Characters that a path has at most on any system (Windows; 4,096 on Linux). See docs/guards.md#paths."""


@lru_cache(maxsize=1024)
def has_name_of(name: str, names: frozenset[str]) -> bool:
    """Whether the last word of a parameter's name, or its last two, are one of `names`. See docs/guards.md#paths."""
    words = words_in_name(name)[-2:]
    return bool(words) and (words[-1] in names or "".join(words) in names)


def words_in_name(name: str) -> list[str]:
    """The words of a parameter's name, in small letters: `run_cmdStr2` has `run`, `cmd` and `str`. See
    docs/guards.md#paths."""
    return [word.lower() for word in _WORD_OF_NAME.findall(name)]


class SymbolicLinkError(OSError):
    """A path goes through a symbolic link where it must not. See docs/guards.md#paths."""


class ReservedError(OSError):
    """A file belongs to a journal that this process has open. See docs/journal.md#where-to-keep-it."""


class HardLinkError(OSError):
    """A file has several hard links, of which others may be elsewhere. See docs/guards.md#paths."""


def checked(path: str) -> str:
    """`path`, where it can be one. See docs/guards.md#paths.

    Raises:
        ValueError: for an empty one, one with a NUL or a lone surrogate, one that starts with `~`, and one that is
            too long on any system.
    """
    if not isinstance(path, str):
        raise ValueError(f"a path is text, not {type(path).__name__}")
    if not path:
        raise ValueError("the path is empty; '.' means the working directory")
    if "\0" in path:
        raise ValueError("the path holds a NUL character")
    if len(path) > LONGEST:
        raise ValueError(f"the path has {len(path)} characters, and no path has more than {LONGEST}")
    if path.startswith("~"):
        raise ValueError(f"{_quoted(path)} starts with '~', which is not expanded; write the path out")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ValueError("the path holds a lone surrogate, which no file name can") from None
    return path


def real(path: str, base: str) -> str:
    """The canonical absolute path that `path` names, seen from `base`: no symbolic links, no `.` or `..`.
    See docs/guards.md#paths.

    What does not exist is taken as it is written, so that a file can be judged before it is made. Each component is
    looked up once, and nothing below one that does not exist.

    Raises:
        ValueError: for what cannot be a path; see `checked`.
        OSError: where it cannot be told what the path names: a loop of links, a directory that may not be searched,
            one that is too long to be looked up. (`os.path.realpath` takes these as they are written, CVE-2025-4517.)
    """
    start = os.path.join(os.getcwd(), base, checked(path))
    if os.name == "nt":  # pragma: no cover
        return _real_on_windows(start)
    done: list[str] = []
    there = 0  # so many components of `done` exist
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
                    raise OSError(f"{_quoted(path)} goes round in a loop of symbolic links")
                done = [] if target.startswith("/") else done[:-1]
                there = len(done)
                to_do += target.split("/")[::-1]
    return "/" + "/".join(done)


def _link_target(components: list[str], path: str) -> str | None:
    """Where a link leads; empty for what is none, nothing where nothing is."""
    try:
        return os.readlink("/" + "/".join(components))
    except OSError as error:
        if error.errno == errno.EINVAL:
            return ""
        if error.errno in _NOTHING_THERE:
            return None
        explained = type(error)(f"{_quoted(path)} cannot be resolved: {error.strerror}")
        explained.errno = error.errno
        raise explained from None


def _real_on_windows(start: str) -> str:  # pragma: no cover
    drive, rest = os.path.splitdrive(start)
    if ":" in rest or drive.startswith(("\\\\?\\", "\\\\.\\")):
        raise ValueError(f"{_quoted(start)} names a device or a stream and not a file")
    return os.path.realpath(start)


def contains(root: str, path: str) -> bool:
    """Whether canonical `path` is `root` or lies below it, by components: `notes-secret` is not inside `notes`.
    See docs/guards.md#paths."""
    if os.name == "posix":  # five times as fast as by `PurePath`
        return path.startswith("/") and ".." not in path.split("/") and f"{path}/".startswith(f"{root.rstrip('/')}/")
    inner = PurePath(path)  # pragma: no cover
    return ".." not in inner.parts and inner.is_absolute() and inner.is_relative_to(PurePath(root))  # pragma: no cover


class Roots:
    """Folders or files that may be reached, fixed when this is made: no link that is put there later moves them.
    See docs/guards.md#paths.

    Args:
        roots: As text or as paths, with `~` for the home directory; the working directory where there are none.
            Relative ones start at the working directory of the call where it has one, and else where the program was
            when this was made.
        of: What they are given to, for errors.

    Attributes:
        given: The roots as they were given.

    Raises:
        DefinitionError: where one is no path, or cannot be looked up.
    """

    def __init__(self, *roots: str | os.PathLike[str], of: str = "within(…)") -> None:
        self.given = tuple(os.fspath(root) if isinstance(root, os.PathLike) else root for root in roots)
        self._written = tuple(_root_text(root, of) for root in self.given) or (".",)
        try:
            self._made_in = os.getcwd()
            self._fixed = [real(root, self._made_in) for root in self._written]
        except (OSError, ValueError) as error:
            raise DefinitionError(f"{of}: {error}") from None
        self._seen_from = lru_cache(maxsize=_MOST_DIRECTORIES)(self._look_up)

    def base(self, working_directory: str | None) -> str:
        """Where relative paths start in a call that was given this working directory."""
        return self._made_in if working_directory is None else os.path.join(self._made_in, working_directory)

    def seen_from(self, working_directory: str | None) -> list[str]:
        """The canonical paths of the roots for such a call.

        Raises:
            OSError, ValueError: where one cannot be looked up.
        """
        return self._fixed if working_directory is None else self._seen_from(self.base(working_directory))

    def _look_up(self, base: str) -> list[str]:
        known = zip(self._written, self._fixed, strict=True)
        return [root if os.path.isabs(text) else real(text, base) for text, root in known]

    def hold(self, path: str, working_directory: str | None) -> bool:
        """Whether what `path` names is one of the roots, or lies below one.

        Raises:
            OSError, ValueError: where it cannot be told what it names; see `real`.
        """
        found = real(path, self.base(working_directory))
        return any(contains(root, found) for root in self.seen_from(working_directory))

    def cover(self, other: Roots) -> bool:
        """Whether all that `other` holds is held too, from wherever it is seen; a relative root is compared as it is
        written."""
        mine, theirs = (list(zip(one._written, one._fixed, strict=True)) for one in (self, other))
        return all(any(_covers_root(root, inner) for root in mine) for inner in theirs)


def _covers_root(root: tuple[str, str], inner: tuple[str, str]) -> bool:
    """Of two roots as they are written and as they were looked up."""
    if os.path.isabs(root[0]) and os.path.isabs(inner[0]):
        return contains(root[1], inner[1])
    return root == inner


def _root_text(root: object, of: str) -> str:
    if not isinstance(root, str) or not root or "\0" in root:
        raise DefinitionError(f"{of} takes folders, as text or as paths, not {root!r}")
    expanded = os.path.expanduser(root)
    if expanded.startswith("~"):
        raise DefinitionError(f"{of}: there is no such home directory as in {root!r}")
    return expanded


def _quoted(path: str) -> str:
    return repr(path) if len(path) <= 200 else f"{path[:200]!r}…"


class Directory:
    """An open directory, held by a descriptor where the platform can; whose entries are reached without links.
    See docs/guards.md#paths.

    Use it as a context manager. `name` is always one component.
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
        """Let the descriptor go; more than once does no harm."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _at(self, name: str) -> str:
        if name in {"", ".", ".."} or "/" in name or os.sep in name or "\0" in name:
            raise ValueError(f"{_quoted(name)} is not the name of one file")
        return name if self._fd is not None else os.path.join(self.path, name)

    def _full(self, name: str) -> str:
        return os.path.join(self.path, name)

    def stat_itself(self) -> os.stat_result:
        """What this directory is."""
        return os.stat(self.path if self._fd is None else self._fd)

    def stat(self, name: str) -> os.stat_result:
        """What `name` is; a link is a link.

        Raises:
            OSError: where there is none.
        """
        try:
            return os.stat(self._at(name), dir_fd=self._fd, follow_symlinks=False)
        except OSError as error:
            raise self._explained(name, error) from None

    def kind(self, name: str) -> Kind | None:
        """What `name` is, or `None` where there is none."""
        try:
            return _kind_of_mode(self.stat(name).st_mode)
        except FileNotFoundError:
            return None

    def enter(self, name: str) -> Directory:
        """The directory `name` in this one.

        Raises:
            SymbolicLinkError: where it is a link.
            OSError: where it is none.
        """
        place = self._at(name)
        if self._fd is None:
            self._expect(name, "directory")
            _same_on_disk(place)
            return Directory(place, None)
        try:
            fd = os.open(place, _PASSING, dir_fd=self._fd)
        except OSError as error:
            raise self._explained(name, error, "directory") from None
        return Directory(self._full(name), fd)

    def make(self, name: str) -> None:
        """Make the directory `name` where there is none."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._at(name), dir_fd=self._fd)

    def open(self, name: str, flags: int = os.O_RDONLY, mode: int = 0o666, *, hard_links: bool = True) -> int:
        """A descriptor of the regular file `name`, whose close is the caller's.

        Raises:
            SymbolicLinkError: where it is a link.
            HardLinkError: where it has several hard links, and these are not taken.
            ReservedError: where it belongs to a journal that is open.
            OSError: where it is no regular file, or cannot be opened.
        """
        place = self._at(name)
        if not flags & os.O_CREAT or self.kind(name) is not None:
            # Asked before it is opened: opening a device can already do something.
            self._expect(name, "file")
        if self._fd is None:
            _same_on_disk(place)
        try:
            fd = os.open(place, flags & ~os.O_TRUNC | _NO_LINKS | _NO_WAITING, mode, dir_fd=self._fd)
        except OSError as error:
            raise self._explained(name, error, "file") from None
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise _wrong_kind(self._full(name), _kind_of_mode(found.st_mode), "file")
            if self._fd is None and not os.path.samestat(found, os.lstat(place)):
                raise SymbolicLinkError(f"{_quoted(place)} was exchanged while it was opened")
            if not hard_links and found.st_nlink > 1:
                raise HardLinkError(f"{_quoted(self._full(name))} has {found.st_nlink} hard links, which are refused")
            if flags & os.O_TRUNC:
                os.truncate(fd, 0)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def entries(self) -> Iterator[tuple[str, Kind]]:
        """The names in it with what they are, in no order. `.` and `..` are not among them."""
        if self._fd is None:
            with os.scandir(self.path) as found:
                yield from ((entry.name, _entry_kind(entry)) for entry in found)
            return
        try:
            fd = os.open(".", os.O_RDONLY | _DIRECTORY | _CLOSED_ON_EXEC, dir_fd=self._fd)
        except OSError as error:
            raise type(error)(f"{_quoted(self.path)} cannot be listed: {error.strerror}") from None
        try:
            with os.scandir(fd) as found:
                yield from ((entry.name, _entry_kind(entry)) for entry in found)
        finally:
            os.close(fd)

    def write(self, name: str, data: bytes, *, expected: Expected = None, mode: int = 0o666) -> bool:
        """Put `data` in the place of the file `name`, all at once, keeping its mode; whether it is a new file.

        Args:
            expected: What the file was when it was read, or `"nothing"` where there was none; where it has changed
                since, it stays as it is.
            mode: The rights of a new file.

        Raises:
            SymbolicLinkError: where it is a link.
            OSError: where it is no regular file, may not be written, or has changed.
        """
        before = self._writable(name)
        self._unchanged(name, before, expected)
        temporary = f".ferrule-{secrets.token_hex(8)}.tmp"
        try:
            fd = self.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode if before is None else 0o600)
        except PermissionError:
            raise PermissionError(f"no file can be made in {_quoted(self.path)}: Permission denied") from None
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                if before is not None:
                    _keep_rights(file.fileno(), before)
                os.fsync(file.fileno())
            if expected is not None:
                self._unchanged(name, self._writable(name), expected)
            os.replace(self._at(temporary), self._at(name), src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(self._at(temporary), dir_fd=self._fd)
            raise
        return before is None

    def _writable(self, name: str) -> os.stat_result | None:
        # Replacing a file needs no right to write it, so that right is asked for.
        if self.kind(name) is None:
            return None
        fd = self.open(name, os.O_WRONLY)
        try:
            return os.fstat(fd)
        finally:
            os.close(fd)

    def _unchanged(self, name: str, now: os.stat_result | None, expected: Expected) -> None:
        if expected is None:
            return
        before = None if expected == "nothing" else _version(expected)
        if before != (None if now is None else _version(now)):
            raise OSError(f"{_quoted(self._full(name))} was changed by somebody else meanwhile; read it again")

    def _expect(self, name: str, wanted: Kind) -> None:
        found = self.stat(name)
        kind = _kind_of_mode(found.st_mode)
        if kind != wanted:
            raise _wrong_kind(self._full(name), kind, wanted)
        if (found.st_dev, found.st_ino) in RESERVED:
            raise ReservedError(f"{_quoted(self._full(name))} belongs to a journal that is open; tools do not open it")

    def _explained(self, name: str, error: OSError, wanted: Kind = "file") -> OSError:
        """`error` in words that name the whole path, and the link where there is one."""
        full = self._full(name)
        if isinstance(error, FileNotFoundError):
            return FileNotFoundError(f"{_quoted(full)} does not exist")
        with contextlib.suppress(OSError):
            kind = _kind_of_mode(os.stat(self._at(name), dir_fd=self._fd, follow_symlinks=False).st_mode)
            if kind == "link" or (kind != wanted and not isinstance(error, PermissionError)):
                return _wrong_kind(full, kind, wanted)
        return type(error)(f"{_quoted(full)} cannot be opened: {error.strerror}")


def _wrong_kind(path: str, kind: Kind, wanted: Kind) -> OSError:
    if kind == "link":
        with contextlib.suppress(OSError, ValueError):
            return SymbolicLinkError(
                f"the path goes through a symbolic link, {_quoted(path)}, and links are not followed; "
                f"its real path is {_quoted(real(path, '/'))}"
            )
        return SymbolicLinkError(f"the path goes through a symbolic link that leads nowhere, {_quoted(path)}")
    if wanted == "directory":
        return NotADirectoryError(f"{_quoted(path)} is not a directory")
    if kind == "directory":
        return IsADirectoryError(f"{_quoted(path)} is a directory and not a file")
    return OSError(f"{_quoted(path)} is not a regular file (a pipe, a device or a socket)")


def _kind_of_mode(mode: int) -> Kind:
    if stat.S_ISLNK(mode):
        return "link"
    if stat.S_ISREG(mode):
        return "file"
    return "directory" if stat.S_ISDIR(mode) else "other"


def _entry_kind(entry: os.DirEntry[str]) -> Kind:
    try:
        if entry.is_symlink():
            return "link"
        if entry.is_file(follow_symlinks=False):
            return "file"
        return "directory" if entry.is_dir(follow_symlinks=False) else "other"
    except OSError:
        return "other"


def _version(of: os.stat_result) -> tuple[int, ...]:
    """What differs where a file has changed; the time of the last change of its entry cannot be set back."""
    return of.st_dev, of.st_ino, of.st_size, of.st_mtime_ns, of.st_ctime_ns


def _keep_rights(fd: int, before: os.stat_result) -> None:
    if hasattr(os, "fchown"):
        with contextlib.suppress(OSError):
            os.fchown(fd, before.st_uid, before.st_gid)
    if hasattr(os, "fchmod"):
        os.fchmod(fd, stat.S_IMODE(before.st_mode))


def _same_on_disk(path: str) -> None:
    """For platforms that cannot hold a directory open: refuse a path that is not its own real path."""
    found = os.path.realpath(path)
    if os.path.normcase(found) != os.path.normcase(path):
        raise SymbolicLinkError(
            f"the path goes through a symbolic link, and links are not followed; its real path is {_quoted(found)}"
        )


def _components(path: str) -> tuple[str, list[str]]:
    """The root of a canonical path, and its components."""
    checked(path)
    pure = PurePath(path)
    if not pure.is_absolute() or os.path.normpath(path) != path or path.startswith("//"):
        raise ValueError(f"{_quoted(path)} is not a canonical absolute path")
    return pure.anchor, list(pure.parts[1:])


def open_directory(path: str, *, make: bool = False) -> Directory:
    """The directory at exactly the canonical absolute `path`, with all that is missing made where `make` is true.
    See docs/guards.md#paths.

    Raises:
        ValueError: where `path` is not canonical.
        SymbolicLinkError: where it goes through a link.
        OSError: where there is no such directory, or it may not be entered.
    """
    root, components = _components(path)
    current = Directory(root, os.open(root, _PASSING) if _HOLDS_DIRECTORIES else None)
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


def _split(path: str) -> tuple[str, str]:
    directory, name = os.path.split(path)
    if not name:
        raise IsADirectoryError(f"{_quoted(path)} is a directory and not a file")
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
    """Open the file at `path`, which starts at `root` where it is relative, as `open` does, if it is inside `root`.
    See docs/guards.md#paths.

    Symbolic links are followed before it is judged; one that is put there afterwards is refused. A file is emptied only
    once it is known to be the right one.

    Args:
        root: A directory, or the file itself; where it is relative, it starts at the program's working directory.
        mode, encoding, errors, newline: As for `open`; text is UTF-8 where no encoding is given.
        hard_links: Whether a file may have several hard links. No path tells where the others are.

    Raises:
        ValueError: for what cannot be a path; see `checked`.
        PermissionError: where it is outside.
        SymbolicLinkError, HardLinkError: where it goes through a link, or has several.
        OSError: where there is no such file, it may not be opened, or it is a directory, a pipe or a device.
    """
    base = real(os.fspath(root), ".")
    full = real(os.fspath(path), base)
    if not contains(base, full):
        raise PermissionError(f"{_quoted(os.fspath(path))} is outside of {_quoted(os.fspath(root))}")
    if "b" not in mode:
        encoding = encoding or "utf-8"

    def opener(exact: str, flags: int) -> int:
        return open_exactly(exact, flags, hard_links=hard_links)

    return open(full, mode, encoding=encoding, errors=errors, newline=newline, opener=opener)


def read_file(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the bytes of a regular file that somebody else may have written, such as one that a repository brings.
    See docs/guards.md#paths.

    Args:
        path: The file; symbolic links are followed, and `~` is not expanded.
        most: The number of bytes that it may have.

    Raises:
        ValueError: if it has more, or for what cannot be a path.
        OSError: if there is no such file, it may not be opened, or it is a directory, a pipe or a device.
    """
    with os.fdopen(open_exactly(real(os.fspath(path), ".")), "rb") as file:
        data = file.read(most + 1) or b""  # None for some files of /proc that have nothing yet
    if len(data) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return data


def open_exactly(path: str, flags: int = os.O_RDONLY, mode: int = 0o666, *, hard_links: bool = True) -> int:
    """A descriptor of the regular file at exactly the canonical absolute `path`, whose close is the caller's.
    See docs/guards.md#paths.

    Args:
        flags: As for `os.open`; links are never followed, and the descriptor is not inherited.
        mode: The rights of a file that is made.
        hard_links: Whether it may have several hard links.

    Raises:
        ValueError: where `path` is not canonical.
        SymbolicLinkError: where it goes through a link: one put there after the path was judged, for instance.
        HardLinkError: where it has several hard links, and these are not taken.
        OSError: where there is no such file, it may not be opened, or it is a directory, a pipe or a device.
    """
    _components(path)
    directory, name = _split(path)
    with open_directory(directory) as parent:
        return parent.open(name, flags, mode, hard_links=hard_links)


def write_exactly(
    path: str,
    data: bytes,
    *,
    expected: Expected = None,
    make_directories: bool = False,
) -> bool:
    """Put `data` at exactly the canonical absolute `path`, all at once; whether it is a new file.
    See docs/guards.md#paths.

    Args:
        expected: What the file was when it was read, or `"nothing"` where there was none; where it has changed since,
            it stays as it is.
        make_directories: Make the directories above it that are missing.

    Raises:
        ValueError: where `path` is not canonical.
        SymbolicLinkError: where it goes through a link.
        OSError: where it cannot or may not be written, or has changed.
    """
    _components(path)
    directory, name = _split(path)
    with open_directory(directory, make=make_directories) as parent:
        return parent.write(name, data, expected=expected)
