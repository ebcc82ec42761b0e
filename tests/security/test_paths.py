"""The file that is opened is the file that was judged."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.security import paths
from ferrule.security.paths import (
    HardLinkError,
    SymbolicLinkError,
    contains,
    open_directory,
    open_exactly,
    open_inside,
    resolve_path,
    write_exactly,
)

posix = pytest.mark.skipif(os.name == "nt", reason="needs POSIX")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(os.path.realpath(tmp_path))


@pytest.fixture(params=["held", "by name"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With directories held open, and as on a platform that cannot do so."""
    assert paths._HAS_DIRECTORY_DESCRIPTORS is (os.name != "nt")
    if request.param == "by name":
        monkeypatch.setattr(paths, "_HAS_DIRECTORY_DESCRIPTORS", False)


@pytest.mark.parametrize("path", ["", "a\0b", "~", "~root/x", "~/x", "a\ud800"])
def test_an_impossible_path_is_refused(path: str, root: Path) -> None:
    with pytest.raises(ValueError):
        resolve_path(path, str(root))


def test_a_path_is_resolved_from_its_base(root: Path) -> None:
    assert resolve_path("a/./b//../c/", str(root)) == str(root / "a" / "c")
    assert resolve_path(".", str(root)) == str(root)
    assert resolve_path("/", str(root)) == "/"
    assert resolve_path("//etc", str(root)) == "/etc"
    assert contains("/w/notes", "/w/notes/a") and contains("/", "/w")
    for outside in ("/w/notes-secret/a", "/w", "/w/notes/../x", "notes/a"):
        assert not contains("/w/notes", outside)


@posix
def test_links_are_resolved_before_dot_dot(root: Path) -> None:
    (root / "deep" / "er").mkdir(parents=True)
    (root / "link").symlink_to("deep/er")
    assert resolve_path("link/../x", str(root)) == str(root / "deep" / "x")
    (root / "dangling").symlink_to("/nowhere/at/all")
    assert resolve_path("dangling", str(root)) == "/nowhere/at/all"


@posix
@pytest.mark.parametrize(
    ("path", "lookups"),
    [
        ("a/b/" + "missing/" * 2000, 3),
        ("a/b/" + "file/" * 2000, 4),
        ("missing/../" * 2000 + "a", 2001),
        ("a/../" * 2000 + "a/b", 2002),
        ("link/" * 30, 60),
    ],
)
def test_each_component_is_looked_up_at_most_once(
    path: str, lookups: int, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "file").write_text("x")
    (root / "link").symlink_to(".")
    looked_up: list[str] = []
    readlink = os.readlink

    def counted(place: str) -> str:
        looked_up.append(place)
        return readlink(place)

    monkeypatch.setattr(os, "readlink", counted)
    resolve_path(path, str(root))
    assert len(looked_up) - len(root.parts[1:]) <= lookups


@posix
def test_a_loop_of_links_is_refused(root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    with pytest.raises(OSError, match="loop"):
        resolve_path("a/x", str(root))


def test_an_impossibly_long_path_is_refused_without_a_lookup(root: Path) -> None:
    with pytest.raises(ValueError, match="no path has more than 32767"):
        resolve_path("a/" * 20_000, str(root))


names = st.sampled_from(["a", "b", "link", "..", ".", "", "missing", "file"])


@posix
@given(st.lists(names, min_size=1, max_size=8))
def test_resolving_agrees_with_realpath(parts: list[str]) -> None:
    with tempfile.TemporaryDirectory() as made:
        base = os.path.realpath(made)
        os.makedirs(f"{base}/a/b")
        os.symlink("a/b", f"{base}/link")
        Path(f"{base}/file").write_text("x")
        text = "/".join(parts)
        if not text:
            return
        assert resolve_path(text, base) == os.path.realpath(os.path.join(base, text)).replace("//", "/")


def opened(path: Path) -> bytes:
    fd = open_exactly(str(path))
    with os.fdopen(fd, "rb") as file:
        return file.read()


@pytest.mark.usefixtures("both_ways")
def test_a_file_is_opened_and_not_inherited(root: Path) -> None:
    (root / "d").mkdir()
    (root / "d" / "a.txt").write_text("hello")
    assert opened(root / "d" / "a.txt") == b"hello"
    fd = open_exactly(str(root / "d" / "a.txt"))
    assert not os.get_inheritable(fd)
    os.close(fd)


@posix
@pytest.mark.usefixtures("both_ways")
def test_no_component_may_be_a_link(root: Path) -> None:
    (root / "d").mkdir()
    (root / "d" / "a.txt").write_text("hello")
    (root / "e").symlink_to("d")
    (root / "d" / "b.txt").symlink_to("a.txt")
    (root / "d" / "gone").symlink_to("nowhere")
    for path in (root / "e" / "a.txt", root / "d" / "b.txt", root / "d" / "gone"):
        with pytest.raises(SymbolicLinkError, match="goes through a symbolic link"):
            open_exactly(str(path))
        with pytest.raises(SymbolicLinkError):
            write_exactly(str(path), b"x")
    with pytest.raises(SymbolicLinkError, match=str(root / "d" / "a.txt")):
        open_exactly(str(root / "d" / "b.txt"))
    assert (root / "d" / "a.txt").read_text() == "hello"


@posix
@pytest.mark.usefixtures("both_ways")
def test_pipes_and_devices_are_refused_at_once(root: Path) -> None:
    os.mkfifo(root / "pipe")
    actions: list[Callable[[str], object]] = [
        open_exactly,
        lambda path: open_exactly(path, os.O_WRONLY),
        lambda path: write_exactly(path, b"x"),
        *(lambda path, mode=mode: open_inside(root, path, mode) for mode in ("rb", "wb", "ab")),
    ]
    for action in actions:
        for path in (str(root / "pipe"), "/dev/null"):
            with pytest.raises(OSError, match=r"not a regular file|outside"):
                action(path)


@pytest.mark.usefixtures("both_ways")
def test_errors_name_the_whole_path(root: Path) -> None:
    (root / "file").write_text("x")
    (root / "d").mkdir()
    with pytest.raises(FileNotFoundError, match=str(root / "no" / "b")[:-2]):
        open_exactly(str(root / "no" / "b"))
    with pytest.raises(FileNotFoundError, match="does not exist"):
        open_exactly(str(root / "missing"))
    with pytest.raises(IsADirectoryError, match="is a directory"):
        open_exactly(str(root / "d"))
    with pytest.raises(NotADirectoryError, match="is not a directory"):
        open_exactly(str(root / "file" / "x"))
    with pytest.raises(IsADirectoryError):
        open_exactly("/")


def test_only_canonical_paths_are_opened(root: Path) -> None:
    for path in ("a", "/a/../b", "/a/", "/a//b", "/./a", "//a"):
        with pytest.raises(ValueError, match="canonical"):
            open_exactly(path)
    with open_directory(str(root)) as directory:
        for name in ("", ".", "..", "a/b", "a\0b"):
            for use in (directory.open, lambda name: directory.write(name, b"")):
                with pytest.raises(ValueError):
                    use(name)


@pytest.mark.usefixtures("both_ways")
def test_writing_keeps_the_mode_and_leaves_nothing_beside(root: Path) -> None:
    target = root / "run.sh"
    target.write_text("old")
    target.chmod(0o751)
    assert write_exactly(str(target), b"new") is False
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o751
    assert [entry.name for entry in root.iterdir()] == ["run.sh"]


@pytest.mark.usefixtures("both_ways")
def test_missing_directories_are_made_only_on_request(root: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_exactly(str(root / "a" / "b" / "c"), b"x")
    write_exactly(str(root / "a" / "b" / "c"), b"x", make_directories=True)
    assert (root / "a" / "b" / "c").read_bytes() == b"x"


@pytest.mark.usefixtures("both_ways")
def test_a_changed_file_is_not_overwritten(root: Path) -> None:
    target = root / "a"
    target.write_text("one")
    read = target.stat()
    target.write_text("other")
    with pytest.raises(OSError, match="has changed since it was read"):
        write_exactly(str(target), b"mine", expected=read)
    assert target.read_text() == "other"
    assert [entry.name for entry in root.iterdir()] == ["a"]


@pytest.mark.skipif(os.name == "nt", reason="there a file says when it was made instead")
def test_a_change_of_equal_size_and_time_is_noticed(root: Path) -> None:
    target = root / "a.txt"
    target.write_text("aaaa")
    read = os.stat(target)
    while os.stat(target).st_ctime_ns == read.st_ctime_ns:  # the clock of the file system has steps
        target.write_text("bbbb")
        os.utime(target, ns=(read.st_atime_ns, read.st_mtime_ns))
    with pytest.raises(OSError, match="has changed since it was read"):
        write_exactly(str(target), b"mine", expected=read)
    assert target.read_text() == "bbbb"


@posix
def test_a_read_only_file_is_not_replaced() -> None:
    nobody = 65534
    with tempfile.TemporaryDirectory() as made, as_somebody_else(nobody, made):
        fixed = Path(os.path.realpath(made), "fixed")
        fixed.write_text("x")
        fixed.chmod(0o444)
        with pytest.raises(PermissionError):
            write_exactly(str(fixed), b"y")
        assert fixed.read_text() == "x"


@contextmanager
def as_somebody_else(user: int, directory: str) -> Iterator[None]:
    """Without the rights of root, who may write everything; `directory` belongs to `user` meanwhile."""
    if os.geteuid() != 0:
        yield
        return
    os.chown(directory, user, user)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)


@posix
def test_no_descriptor_is_left_open(root: Path) -> None:
    (root / "d").mkdir()
    (root / "d" / "a").write_text("x")
    (root / "l").symlink_to("d")

    def every_way() -> None:
        actions: list[Callable[[], object]] = [
            lambda: opened(root / "d" / "a"),
            lambda: opened(root / "d" / "no"),
            lambda: opened(root / "l" / "a"),
            lambda: opened(root / "d"),
            lambda: write_exactly(str(root / "d" / "b"), b"x"),
            lambda: write_exactly(str(root / "l" / "b"), b"x"),
        ]
        for action in actions:
            try:
                action()
            except OSError:
                pass

    every_way()
    before = os.open("/", os.O_RDONLY)
    os.close(before)
    every_way()
    after = os.open("/", os.O_RDONLY)
    os.close(after)
    assert after == before


# -- open_inside -------------------------------------------------------------------------------------------------------


@pytest.fixture
def inside(root: Path) -> Path:
    (root / "in").mkdir()
    (root / "in" / "a").write_text("ä", encoding="utf-8")
    (root / "secret").write_text("secret")
    return root / "in"


def test_open_inside_opens_files_like_open(inside: Path, both_ways: None) -> None:
    for path in ("a", "./x/../a", inside / "a"):
        with open_inside(inside, path) as file:
            assert file.read() == "ä"
    with open_inside(inside, "a", "rb") as file:
        assert file.read() == "ä".encode()
    with open_inside(inside, "new", "x", newline="\r\n") as file:
        file.write("1\n")
    with open_inside(inside, "new", "ab") as file:
        file.write(b"2")
    assert (inside / "new").read_bytes() == b"1\r\n2"
    with open_inside(inside, "a", "w") as file:
        file.write("b")
    with open_inside(inside, "a", "r+") as file:
        assert file.read() == "b"
    with pytest.raises(FileExistsError):
        open_inside(inside, "a", "x")


@posix
@pytest.mark.parametrize("mode", ["r", "w", "a", "x", "r+", "wb"])
@pytest.mark.parametrize("path", ["../secret", "out", "dir/secret", "new-link", "/etc/passwd", "in/../../secret"])
def test_open_inside_opens_nothing_outside(inside: Path, path: str, mode: str, both_ways: None) -> None:
    (inside / "out").symlink_to("../secret")
    (inside / "dir").symlink_to("..")
    (inside / "new-link").symlink_to("../new")
    with pytest.raises(PermissionError, match="outside"):
        open_inside(inside, path, mode)
    assert (inside.parent / "secret").read_text() == "secret"
    assert not (inside.parent / "new").exists()


@posix
@pytest.mark.parametrize("mode", ["r", "w", "r+"])
def test_a_swapped_link_is_refused(inside: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    judged = paths.resolve_path

    def real_and_then_exchanged(path: str, base: str) -> str:
        found = judged(path, base)
        if found == str(inside / "a"):
            (inside / "a").unlink()
            (inside / "a").symlink_to("../secret")
        return found

    monkeypatch.setattr(paths, "resolve_path", real_and_then_exchanged)
    with pytest.raises(SymbolicLinkError):
        open_inside(inside, "a", mode)
    assert (inside.parent / "secret").read_text() == "secret"


@posix
@pytest.mark.parametrize("mode", ["r", "w", "a", "r+"])
def test_a_hard_linked_file_is_refused_on_request(inside: Path, mode: str) -> None:
    os.link(inside.parent / "secret", inside / "hard")
    with pytest.raises(HardLinkError, match="2 hard links"):
        open_inside(inside, "hard", mode, hard_links=False)
    assert (inside.parent / "secret").read_text() == "secret"
    open_inside(inside, "a", mode, hard_links=False).close()
    with open_inside(inside, "hard") as file:
        assert file.read() == "secret"
    write_exactly(str(inside / "hard"), b"mine")
    assert (inside.parent / "secret").read_text() == "secret"  # the name is replaced, not the file
