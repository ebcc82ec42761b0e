"""The file tools: they read files unchanged, and write exactly the given text."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import Decision, Diff, Runner, ToolCall, ToolError
from ferrule.guards import ask_before_changes, within
from ferrule.security.paths import SymbolicLinkError
from ferrule.security.patterns import Pattern
from ferrule.tools import files
from ferrule.values.context import ToolContext
from steps import peak


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(os.path.realpath(tmp_path))


def call(of: Any, root: Path, **arguments: Any) -> str:
    """The result of a handler, or the error below its `ToolError`."""
    try:
        result: str = of.handler(**arguments, context=ToolContext[Any](working_directory=root))
    except ToolError as error:
        raise error.__cause__ or error from None
    return result


def read(root: Path, **arguments: Any) -> str:
    return call(files.read_file, root, **arguments)


def edit(root: Path, **arguments: Any) -> str:
    return call(files.edit_file, root, **arguments)


def search(root: Path, **arguments: Any) -> str:
    return call(files.search_files, root, **arguments)


def listed(root: Path, **arguments: Any) -> list[str]:
    return call(files.list_files, root, **arguments).split("\n")


def test_a_page_has_numbered_lines_and_says_how_to_go_on(root: Path) -> None:
    (root / "a").write_text("".join(f"line {n}\n" for n in range(1, 101)))
    assert read(root, path="a", offset=3, limit=2) == "3\tline 3\n4\tline 4\n[lines 3 to 4 of 100; go on with offset=5]"
    assert read(root, path="a", offset=100).endswith("[lines 100 to 100 of 100]")
    with pytest.raises(ValueError, match="has 100 lines"):
        read(root, path="a", offset=101)
    (root / "b").write_text("")
    (root / "c").write_text("\n")
    assert read(root, path="b") == "[the file is empty]" and read(root, path="c") == "1\t"


def test_long_lines_and_long_files_are_cut_and_say_so(root: Path) -> None:
    (root / "a").write_text("x" * 100_000 + "\n" + "y\n" * 10)
    assert "[cut: 100000 characters]" in read(root, path="a")
    (root / "b").write_text(("z" * 1000 + "\n") * 1900)
    text = read(root, path="b")
    assert len(text) < 15_000
    assert "of 1900; go on with offset=" in text
    (root / "c").write_text(("z" * 2500 + "\n") * 19)
    assert 12_000 < len(read(root, path="c")) < 15_000


@pytest.mark.parametrize("text", ["\n" * 4_000_000, "x" * 4_000_000, "ab\r\n" * 1_000_000])
def test_reading_a_page_takes_the_memory_of_a_page(text: str, root: Path) -> None:
    (root / "a").write_text(text)
    assert peak(lambda: read(root, path="a", limit=1)) < 500_000
    last = text.count("\n") + (not text.endswith("\n"))
    found: list[str] = []
    assert peak(lambda: found.append(read(root, path="a", offset=last))) < 500_000
    assert found[0].startswith(f"{last}\t{text[:2].strip()}")


@given(
    st.lists(
        st.sampled_from(["", "a", "\r", "é" * 3, "x" * 1999, "y" * 2000, "z" * 2001, "x" * 2000 + "\r", "k" * 70_000])
    ),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.integers(1, 12),
)
def test_each_line_is_shown_unchanged(parts: list[str], end: str, ended: bool, offset: int) -> None:
    text = end.join(parts) + end * ended
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    del lines[len(lines) - (lines[-1] == "") :]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(os.path.realpath(folder))
        (root / "a").write_bytes(text.encode())
        if not lines or offset > len(lines):
            return
        shown = read(root, path="a", offset=offset, limit=1).split("\n[lines ")[0]
    line = lines[offset - 1]
    assert shown == f"{offset}\t{line if len(line) <= 2000 else f'{line[:2000]}… [cut: {len(line)} characters]'}"


def test_a_file_that_is_or_grows_too_large_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(root / "a", "wb") as file:
        file.truncate(50_000_001)
    with pytest.raises(ValueError, match="has 50000001 bytes; at most 50000000 are read"):
        read(root, path="a")
    (root / "b").write_text("x" * 5_000_001)
    with pytest.raises(ValueError, match="has 5000001 bytes; at most 5000000 are edited"):
        edit(root, path="b", old="x", new="y")
    with pytest.raises(ToolError, match="at most 5000000 are edited"):
        preview(files.edit_file, path=str(root / "b"), old="x", new="y")
    (root / "empty").touch()
    empty = os.stat(root / "empty")
    monkeypatch.setattr(os, "fstat", lambda descriptor: empty)  # as if it had none yet
    with pytest.raises(ValueError, match="has 5000001 bytes; at most 5000000 are edited"):
        edit(root, path="b", old="x", new="y")


def test_reading_and_editing_stop_at_the_deadline(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "a").write_text("needle")
    monkeypatch.setattr(ToolContext, "remaining", lambda context: 0.0)
    for call_it in (lambda: read(root, path="a"), lambda: edit(root, path="a", old="needle", new="y")):
        with pytest.raises(TimeoutError):
            call_it()
    assert (root / "a").read_text() == "needle"


def test_other_encodings_can_be_read_but_not_edited_and_binary_files_neither(root: Path) -> None:
    (root / "a").write_bytes("caf\xe9\n".encode("latin-1"))
    assert "not UTF-8" in read(root, path="a")
    with pytest.raises(ValueError, match=r"not UTF-8 text \(byte 3\)"):
        edit(root, path="a", old="caf", new="x")
    assert (root / "a").read_bytes() == b"caf\xe9\n"
    (root / "b").write_bytes(b"\x89PNG\0\0")
    for call_it in (lambda: read(root, path="b"), lambda: edit(root, path="b", old="P", new="Q")):
        with pytest.raises(ValueError, match="binary file"):
            call_it()


ON_A_FILE: tuple[tuple[Any, dict[str, Any]], ...] = (
    (files.read_file, {}),
    (files.write_file, {"content": "x"}),
    (files.edit_file, {"old": "secret", "new": "x"}),
    (files.search_files, {"pattern": "secret"}),
)


def test_links_are_never_followed(root: Path) -> None:
    (root / "real").mkdir()
    (root / "real" / "a").write_text("secret")
    (root / "link").symlink_to("real")
    (root / "a-link").symlink_to("real/a")
    uses = [(tool, path, more) for tool, more in ON_A_FILE for path in ("link/a", "a-link")]
    for tool, path, more in [*uses, (files.list_files, "link", {})]:
        with pytest.raises(OSError, match="symbolic link"):
            call(tool, root, path=path, **more)
    assert search(root, pattern="secret") == "real/a:1: secret"
    assert (root / "real" / "a").read_text() == "secret"


def test_a_working_directory_exchanged_for_a_link_is_not_followed(root: Path) -> None:
    (root / "secret").mkdir()
    (root / "secret" / "a").write_text("secret")
    (root / "work").symlink_to("secret")  # it was a folder when the path was judged
    for tool, more in ON_A_FILE:
        with pytest.raises(SymbolicLinkError):
            call(tool, root / "work", path=str(root / "work" / "a"), **more)
    assert (root / "secret" / "a").read_text() == "secret"


def test_a_pipe_blocks_nothing(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        read(root, path="pipe")
    assert "no line fits" in search(root, pattern="x")


def test_a_file_is_written_to_the_byte(root: Path) -> None:
    assert call(files.write_file, root, path="d/e/a", content="ä\r\nb") == "made 'd/e/a': 2 lines"
    assert (root / "d" / "e" / "a").read_bytes() == "ä\r\nb".encode()
    assert call(files.write_file, root, path="d/e/a", content="") == "replaced 'd/e/a': 0 lines"
    with pytest.raises(ValueError, match="names a directory"):
        call(files.write_file, root, path="d/", content="x")
    with pytest.raises(ValueError, match="surrogate"):
        call(files.write_file, root, path="b", content="\ud800")
    with pytest.raises(IsADirectoryError):
        call(files.write_file, root, path="d", content="x")


def test_an_edit_replaces_one_passage_and_nothing_else(root: Path) -> None:
    (root / "a").write_bytes("\ufeffone\r\ntwo\r\nthree".encode())
    (root / "a").chmod(0o640)
    assert edit(root, path="a", old="one\ntwo", new="1\n2") == "replaced once in 'a', at line 1"
    assert (root / "a").read_bytes() == "\ufeff1\r\n2\r\nthree".encode()
    assert stat.S_IMODE((root / "a").stat().st_mode) == 0o640
    (root / "b").write_bytes(b"a\r\nb\nc\r\nd\n")
    edit(root, path="b", old="b\nc", new="B\nC")
    assert (root / "b").read_bytes() == b"a\r\nB\nC\r\nd\n"  # mixed line ends stay mixed


def test_a_passage_must_occur_and_occur_once(root: Path) -> None:
    (root / "a").write_text("x = 1\n    y = 2\nx = 1\naaa\n")
    for old, new, error in (
        ("x = 1", "z", r"occurs 2 times .* lines 1, 3"),
        ("aa", "z", "occurs 2 times"),  # they overlap
        ("y  =  2", "z", "other blanks"),
        ("yy = 2", "z", "line 2 comes closest: 'y = 2'"),
        ("x", "x", "same"),
        ("", "x", "old is empty"),
    ):
        with pytest.raises(ValueError, match=error):
            edit(root, path="a", old=old, new=new)
    assert edit(root, path="a", old="x = 1", new="z", replace_all=True) == "replaced 2 times in 'a', at line 1"
    assert (root / "a").read_text() == "z\n    y = 2\nz\naaa\n"


texts = st.lists(st.sampled_from(["a", "b", "\n", "\r\n", "\r", "é", "\u2028"])).map("".join)


@given(texts, texts.filter(bool), texts, st.sampled_from(["\n", "\r\n"]))
def test_an_edit_equals_str_replace_with_the_line_ends_of_the_file(text: str, old: str, new: str, end: str) -> None:
    text, old, new = (value.replace("\r", "") for value in (text, old, new))
    if old and old in text and old != new:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(os.path.realpath(folder))
            (root / "a").write_bytes(text.replace("\n", end).encode())
            edit(root, path="a", old=old, new=new, replace_all=True)
            kept = end if "\n" in text else "\n"
            assert (root / "a").read_bytes() == text.replace(old, new).replace("\n", kept).encode()


@pytest.fixture
def tree(root: Path) -> Path:
    for name in ("a.py", "src/b.py", "src/deep/er/c.py", "src/x.txt", ".git/config", "node_modules/m.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"needle in {name}\n")
    (root / "link").symlink_to("src")
    return root


def test_a_listing_is_sorted_and_marks_folders_and_links(tree: Path) -> None:
    assert listed(tree) == [
        ".git/", "a.py", "link@", "node_modules/", "src/", "src/b.py", "src/deep/", "src/deep/er/", "src/x.txt"
    ]  # fmt: skip
    assert listed(tree, path="src", depth=1) == ["b.py", "deep/", "x.txt"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("src/*.py", ["src/b.py"]),
        ("src/**/*.py", ["src/b.py", "src/deep/er/c.py"]),
        ("src/**/deep", ["src/deep/"]),
        ("**/" * 70 + "c.py", ["src/deep/er/c.py"]),
        ("src/**", ["src/", "src/b.py", "src/deep/", "src/deep/er/", "src/deep/er/c.py", "src/x.txt"]),
        ("nothing", ["[nothing in it fits 'nothing']"]),
    ],
)
def test_a_pattern_narrows_a_listing(pattern: str, expected: list[str], tree: Path) -> None:
    assert listed(tree, pattern=pattern, depth=9) == expected


def test_a_name_cannot_forge_a_line(root: Path) -> None:
    (root / "a\nb").write_text("x")
    (root / os.fsdecode(b"\xff")).write_text("x")
    assert listed(root) == [r"'a\nb'", r"'\udcff'"]
    search(root, pattern="x").encode()


def test_a_search_shows_file_line_and_text(tree: Path) -> None:
    assert search(tree, pattern=r"need\w+ in .*\.py").split("\n") == [
        "a.py:1: needle in a.py",
        "src/b.py:1: needle in src/b.py",
        "src/deep/er/c.py:1: needle in src/deep/er/c.py",
    ]
    assert search(tree, pattern="NEEDLE") == "no line fits 'NEEDLE' (4 files searched)"
    assert search(tree, pattern="(?i)NEEDLE", glob="*.txt") == "src/x.txt:1: needle in src/x.txt"
    assert search(tree, pattern="needle", path="src/x.txt") == "src/x.txt:1: needle in src/x.txt"


def test_a_long_listing_is_cut_between_entries(root: Path) -> None:
    names = [f"{n:03}{'x' * 200}" for n in range(200)]
    for name in names:
        (root / name).touch()
    *shown, note = listed(root, limit=10_000)
    assert len("\n".join([*shown, note])) < 15_000 < len("\n".join(names))
    assert shown == names[: len(shown)]
    assert note == f"[left off: {200 - len(shown)} more; to see them, narrow it by path, pattern or depth]"
    assert "at least" in listed(root, limit=199)[-1]
    assert listed(root, pattern="19*", limit=10)[-1] == names[-1]


def test_a_long_search_is_cut_between_lines(root: Path) -> None:
    (root / "a").write_text(f"x{'y' * 280}\n" * 200)
    *shown, note = search(root, pattern="x", limit=2000).split("\n")
    assert len("\n".join([*shown, note])) < 15_000
    assert shown == [f"a:{n}: x{'y' * 280}" for n in range(1, len(shown) + 1)]
    assert note == f"[left off: {200 - len(shown)} more; to see them, narrow it by pattern, path or glob]"
    (root / "a").write_text("x\n" * 5)
    assert search(root, pattern="x", limit=2).endswith(
        "a:2: x\n[left off: at least 1 more; to see them, narrow it by pattern, path or glob]"
    )
    assert "left off" not in search(root, pattern="x", limit=5)
    assert len(search(root, pattern="\x01" * 1000)) < 2000  # a pattern that fits nothing is not quoted whole


def test_a_crowded_directory_is_listed_in_part_with_a_note(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MAX_ENTRIES", 3)
    for name in "abc":
        (root / name).write_text("x")
    assert not any("looked at" in line for line in listed(root))
    (root / "d").write_text("x")
    note = "[directories of which only 3 entries were looked at: 1]"
    assert listed(root)[-1] == note
    assert listed(root, pattern="none") == ["[nothing in it fits 'none']", note]
    assert search(root, pattern="none").endswith(note)


def test_a_search_counts_every_file_that_it_opens(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MAX_SEARCHED_FILES", 3)
    for name in "abcde":
        (root / name).write_bytes(b"needle\0")
    assert "stopped after 3 files" in search(root, pattern="needle")


def test_a_search_counts_skipped_files(root: Path) -> None:
    (root / "a").write_text("needle")
    (root / "b").write_bytes(b"needle\0")
    assert search(root, pattern="needle") == "a:1: needle\n[binary or unreadable files that were skipped: 1]"
    assert "skipped: 1]" in search(root, pattern="needle", path="b")
    (root / "c").write_text("needle")
    (root / "c").chmod(0)
    if not os.access(root / "c", os.R_OK):
        assert "skipped: 2]" in search(root, pattern="needle")


def test_a_listing_and_a_search_end_at_the_deadline(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [1.0, 1.0, 0.0]
    monkeypatch.setattr(ToolContext, "remaining", lambda context: left.pop(0) if len(left) > 1 else left[0])
    assert listed(tree) == [".git/", "a.py", "[stopped at the deadline; narrow it by path or depth]"]
    assert "stopped at the deadline" in search(tree, pattern="needle")
    assert "stopped at the deadline" in search(tree, pattern="needle", glob="none")


@pytest.mark.parametrize("pattern", ["(", "(?=a)", r"(\w{1,40} ){1,40}"])
def test_a_wrong_or_heavy_pattern_is_refused(pattern: str, root: Path) -> None:
    with pytest.raises(ValueError, match=r"is not (a regular expression|taken)") as raised:
        search(root, pattern=pattern)
    assert len(str(raised.value)) < 700


def test_a_search_knows_letters_and_digits_of_all_languages(root: Path) -> None:
    (root / "a").write_text("naïve Größe\n٣\n!\n")
    assert search(root, pattern=r"^\w+ \w+$") == "a:1: naïve Größe"
    assert search(root, pattern=r"^[\d]$") == "a:2: ٣"
    assert search(root, pattern=r"^\W$") == "a:3: !"


def test_lines_too_long_for_the_pattern_are_counted(root: Path) -> None:
    pattern = "(x[^!]{1,9}a){1,9}!"
    most = Pattern(pattern, unicode=True).max_length
    (root / "a").write_text("xya!\n" + "xya!" * most)
    assert search(root, pattern=pattern).split("\n") == [
        "a:1: xya!",
        f"[lines over {most} characters, not searched: 1]",
    ]


def test_a_search_checks_the_deadline_within_a_file(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "a").write_text("xya\n" * 100_000)
    left = [1.0] * 4 + [0.0]
    monkeypatch.setattr(ToolContext, "remaining", lambda context: left.pop(0) if len(left) > 1 else 0.0)
    assert "stopped at the deadline, after 1 file;" in search(root, pattern="(x[^!]{1,9}a){1,9}!", path="a")
    assert left == [0.0]


def test_two_spellings_of_a_path_share_a_key(root: Path) -> None:
    keys = files.read_file.resources
    assert keys is not None
    assert list(keys({"path": "a/../b"})) == list(keys({"path": os.path.join(os.path.realpath("."), "B")}))
    assert list(keys({})) == []


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("edit_file", {"path": "a", "old": "no", "new": "y"}, "old does not occur in 'a', which was not changed; read"),
        ("edit_file", {"path": "link", "old": "x", "new": "y"}, "symbolic link"),
        ("write_file", {"path": "folder/", "content": "x"}, "names a directory"),
        ("write_file", {"path": "folder", "content": "x"}, "is a directory"),
    ],
)
async def test_a_change_that_was_not_made_is_not_executed(
    name: str, arguments: dict[str, Any], error: str, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (root / "a").write_text("x")
    (root / "folder").mkdir()
    (root / "link").symlink_to("a")
    result = await Runner(files.tools).run(name, arguments, ToolContext(working_directory=str(root)))
    assert (result.status, result.executed) == ("failed", False)
    assert error in result.text and result.text.endswith("Nothing was run.")
    assert "Traceback" not in caplog.text


async def test_a_write_into_a_new_folder_that_fails_may_have_made_folders(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError("no space is left")

    monkeypatch.setattr(os, "fsync", full)
    at_root = ToolContext(working_directory=str(root))
    results = [
        await Runner(files.tools).run("write_file", {"path": path, "content": "x"}, at_root) for path in ("a", "new/a")
    ]
    assert [(one.status, one.executed) for one in results] == [("failed", False), ("failed", None)]
    assert os.listdir(root) == ["new"] and os.listdir(root / "new") == []


async def test_they_work_in_a_runner_behind_within(tree: Path) -> None:
    runner = Runner(files.tools, guards=[within("src")])
    context = ToolContext[Any](working_directory=tree)
    for name, arguments, status, text in (
        ("read_file", {"path": "link/b.py"}, "ok", "1\tneedle in src/b.py"),
        ("read_file", {"path": "a.py"}, "denied", ""),
        ("write_file", {"path": "src/new", "content": "one"}, "ok", ""),
        ("edit_file", {"path": "src/new", "old": "one", "new": "two"}, "ok", ""),
        ("list_files", {"path": "src", "depth": 1}, "ok", "b.py\ndeep/\nnew\nx.txt"),
        ("search_files", {"pattern": "two", "path": "link"}, "ok", "src/new:1: two"),
        ("list_files", {}, "denied", ""),
        ("read_file", {"path": "src/none"}, "failed", "does not exist"),
    ):
        result = await runner.run(name, arguments, context)
        assert result.status == status and text in result.text, result.text


def test_replacements_and_writes_are_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MAX_REPLACED", 3)
    monkeypatch.setattr(files, "_MAX_BYTES", 10)
    (root / "a").write_text("xxxx")
    with pytest.raises(ValueError, match="more than 3 times"):
        edit(root, path="a", old="x", new="y", replace_all=True)
    (root / "a").write_text("xxx")
    assert edit(root, path="a", old="x", new="y", replace_all=True).startswith("replaced 3 times")
    with pytest.raises(ValueError, match="at most 10"):
        call(files.write_file, root, path="b", content="ä" * 6)
    assert not (root / "b").exists()
    assert call(files.write_file, root, path="b", content="ä" * 5).startswith("made")
    assert "ä" in read(root, path="b")


# -- bounds and hard links ---------------------------------------------------------------------------------------------


def preview(of: Any, **arguments: Any) -> Any:
    return of.preview(arguments)


def test_the_preview_of_a_change_is_its_diff(root: Path) -> None:
    path = str(root / "a.txt")
    assert preview(files.write_file, path=path, content="x\n") == Diff("", "x\n", path)
    assert preview(files.write_file, path=str(root / "no" / "a.txt"), content="x").before == ""
    text = "one\r\ntwo\r\none\r\n"
    (root / "a.txt").write_bytes(text.encode())
    assert preview(files.write_file, path=path, content="x\n") == Diff(text, "x\n", path)
    arguments = {"path": path, "old": "one", "new": "1\n2", "replace_all": True}
    seen = preview(files.edit_file, **arguments)
    assert (root / "a.txt").read_bytes() == text.encode()
    edit(root, **arguments)
    assert seen == Diff(text, (root / "a.txt").read_bytes().decode(), path)


@pytest.mark.parametrize(("there", "reason"), [(b"\0", "binary file"), (b"caf\xe9\n", "is not UTF-8 text (byte 3)")])
def test_a_preview_of_a_file_that_is_not_text_shows_the_new_text(there: bytes, reason: str, root: Path) -> None:
    (root / "a").write_bytes(there)
    seen = preview(files.write_file, path=str(root / "a"), content="new text")
    assert isinstance(seen, str) and reason in seen and seen.endswith(":\nnew text")


def test_a_preview_shows_nothing_behind_links_and_relative_paths(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "a.txt").write_text("one two")
    (root / "link").symlink_to(root / "a.txt")
    os.link(root / "a.txt", root / "hard")
    strict = {tool.name: tool for tool in files.refusing_hard_links()}
    for write_file, edit_file, name, reason in (
        (files.write_file, files.edit_file, "link", "links are not followed"),
        (strict["write_file"], strict["edit_file"], "hard", "has 2 hard links, which are refused"),
    ):
        with pytest.raises(ToolError, match=reason) as refused:
            preview(edit_file, path=str(root / name), old="one", new="1")
        seen = preview(write_file, path=str(root / name), content="x")
        assert isinstance(seen, str) and "two" not in f"{seen}{refused.value}"
    assert preview(files.edit_file, path=str(root / "hard"), old="one", new="1").before == "one two"
    assert strict["read_file"].preview is None
    monkeypatch.chdir(root)  # a relative path may be another file when the call runs
    once = "In 'a.txt' this would be replaced in one place:\none\nby this:\n1"
    assert preview(files.edit_file, path="a.txt", old="one", new="1") == once
    assert "replaced everywhere" in str(preview(files.edit_file, path="a.txt", old="one", new="1", replace_all=True))
    assert "two" not in preview(files.write_file, path="a.txt", content="x")


async def test_behind_within_a_person_sees_the_resolved_file(root: Path) -> None:
    (root / "a.txt").write_text("one\n")
    seen: list[Any] = []

    def approve(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
        seen.append(context.tool.preview(call.arguments))
        return True

    runner = Runner(files.tools, guards=[within(), ask_before_changes], approve=approve)
    context = ToolContext[Any](working_directory=root)
    assert (await runner.run("edit_file", {"path": "a.txt", "old": "one", "new": "two"}, context)).success
    assert (await runner.run("write_file", {"path": "a.txt", "content": "three"}, context)).success
    path = str(root / "a.txt")
    assert seen == [Diff("one\n", "two\n", path), Diff("two\n", "three", path)]


async def test_files_with_several_hard_links_can_be_refused(root: Path) -> None:
    (root / "in").mkdir()
    (root / "secret").write_text("secret")
    os.link(root / "secret", root / "in" / "hard")
    context = ToolContext[Any](working_directory=root / "in")
    plain, strict = Runner(files.tools), Runner(files.refusing_hard_links())
    assert [tool.name for tool in strict.tools] == [tool.name for tool in plain.tools]
    assert (await plain.run("read_file", {"path": "hard"}, context)).output == "1\tsecret"
    for name, arguments in {
        "read_file": {"path": "hard"},
        "edit_file": {"path": "hard", "old": "secret", "new": "x"},
        "search_files": {"path": "hard", "pattern": "sec"},
    }.items():
        assert "hard links" in str((await strict.run(name, arguments, context)).error)
    assert "no line fits" in (await strict.run("search_files", {"pattern": "sec"}, context)).text
    assert (await plain.run("write_file", {"path": "hard", "content": "mine"}, context)).success
    assert (root / "secret").read_text() == "secret"
    assert (await strict.run("read_file", {"path": "hard"}, context)).output == "1\tmine"
