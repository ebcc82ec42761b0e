"""The file tools: what they read is what is there, and what they write is what was said."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import Decision, Diff, Runner, ToolCall, ToolError, deny
from ferrule.guards import ask_before_changes, within
from ferrule.security.paths import SymbolicLinkError
from ferrule.security.patterns import Pattern
from ferrule.tools import files
from ferrule.tools.files import _Document
from ferrule.values.context import ToolContext
from steps import calls, peak


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(os.path.realpath(tmp_path))


def call(of: Any, root: Path, **arguments: Any) -> str:
    result: str = of.handler(**arguments, context=ToolContext[Any](working_directory=root))
    return result


def read(root: Path, **arguments: Any) -> str:
    return call(files.read_file, root, **arguments)


def edit(root: Path, **arguments: Any) -> str:
    return call(files.edit_file, root, **arguments)


def search(root: Path, **arguments: Any) -> str:
    return call(files.search_files, root, **arguments)


def listed(root: Path, **arguments: Any) -> list[str]:
    return call(files.list_files, root, **arguments).split("\n")


def test_there_are_five_in_a_stable_order() -> None:
    assert [tool.name for tool in files.tools] == ["read_file", "write_file", "edit_file", "list_files", "search_files"]


def test_what_changes_nothing_says_so() -> None:
    assert [tool.name for tool in files.tools if tool.read_only] == ["read_file", "list_files", "search_files"]


def test_the_context_is_no_parameter() -> None:
    for tool in files.tools:
        assert "context" not in tool.input_schema["properties"]
        assert all("description" in parameter for parameter in tool.input_schema["properties"].values() if parameter)


def test_lines_are_numbered(root: Path) -> None:
    (root / "a").write_text("one\ntwo\n")
    assert read(root, path="a") == "1\tone\n2\ttwo"


def test_a_part_says_how_much_there_is(root: Path) -> None:
    (root / "a").write_text("".join(f"line {n}\n" for n in range(1, 101)))
    assert read(root, path="a", offset=3, limit=2) == "3\tline 3\n4\tline 4\n[lines 3 to 4 of 100; go on with offset=5]"
    assert read(root, path="a", offset=100).endswith("[lines 100 to 100 of 100]")
    with pytest.raises(ValueError, match="has 100 lines"):
        read(root, path="a", offset=101)


def test_long_lines_and_long_files_are_cut_and_say_so(root: Path) -> None:
    (root / "a").write_text("x" * 100_000 + "\n" + "y\n" * 10)
    assert "[cut: 100000 characters]" in read(root, path="a")
    (root / "b").write_text(("z" * 1000 + "\n") * 1900)
    text = read(root, path="b")
    assert len(text) < 15_000
    assert "of 1900; go on with offset=" in text
    (root / "c").write_text(("z" * 2500 + "\n") * 19)
    assert 12_000 < len(read(root, path="c")) < 15_000


def test_pages_follow_each_other_without_a_gap(root: Path) -> None:
    (root / "a").write_text("".join(f"{n} {'z' * 900}\n" for n in range(1, 60)))
    numbers: list[int] = []
    while not numbers or numbers[-1] < 59:
        page = read(root, path="a", offset=len(numbers) + 1).split("\n")
        numbers += [int(line.split("\t")[0]) for line in page if "\t" in line]
    assert numbers == list(range(1, 60))


def test_an_empty_file_is_told_from_an_empty_line(root: Path) -> None:
    (root / "a").write_text("")
    (root / "b").write_text("\n")
    assert read(root, path="a") == "[the file is empty]"
    assert read(root, path="b") == "1\t"


@pytest.mark.parametrize("text", ["\n" * 4_000_000, "x" * 4_000_000, "ab\r\n" * 1_000_000])
def test_a_page_takes_the_memory_of_a_page_however_large_the_file_is(text: str, root: Path) -> None:
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
def test_each_line_is_shown_as_it_is_wherever_it_begins(parts: list[str], end: str, ended: bool, offset: int) -> None:
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


def test_a_file_that_is_too_large_says_so_and_so_does_one_that_grows(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_who_reads_and_who_edits_stops_at_the_deadline(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "a").write_text("needle")
    monkeypatch.setattr(ToolContext, "remaining", lambda context: 0.0)
    with pytest.raises(TimeoutError):
        read(root, path="a")
    with pytest.raises(TimeoutError):
        edit(root, path="a", old="needle", new="y")
    assert (root / "a").read_text() == "needle"


def test_binary_files_are_refused(root: Path) -> None:
    (root / "a").write_bytes(b"\x89PNG\0\0")
    with pytest.raises(ValueError, match="binary file"):
        read(root, path="a")
    with pytest.raises(ValueError, match="binary file"):
        edit(root, path="a", old="P", new="Q")


def test_what_is_not_utf_8_can_be_read_but_not_edited(root: Path) -> None:
    (root / "a").write_bytes("caf\xe9\n".encode("latin-1"))
    assert "not UTF-8" in read(root, path="a")
    with pytest.raises(ValueError, match=r"not UTF-8 text \(byte 3\)"):
        edit(root, path="a", old="caf", new="x")
    assert (root / "a").read_bytes() == b"caf\xe9\n"


@pytest.mark.parametrize("path", ["", "~/x", "a\0b", "missing", "d", "d/../missing"])
def test_what_cannot_be_read_is_a_short_clear_error(path: str, root: Path) -> None:
    (root / "d").mkdir()
    with pytest.raises((ValueError, OSError)) as raised:
        read(root, path=path)
    assert 10 < len(str(raised.value)) < 400


def test_links_are_never_followed(root: Path) -> None:
    (root / "real").mkdir()
    (root / "real" / "a").write_text("secret")
    (root / "link").symlink_to("real")
    (root / "a-link").symlink_to("real/a")
    for path in ("link/a", "a-link"):
        with pytest.raises(OSError, match="symbolic link"):
            read(root, path=path)
        with pytest.raises(OSError, match="symbolic link"):
            call(files.write_file, root, path=path, content="x")
        with pytest.raises(OSError, match="symbolic link"):
            edit(root, path=path, old="secret", new="x")
    with pytest.raises(OSError, match="symbolic link"):
        listed(root, path="link")
    with pytest.raises(OSError, match="symbolic link"):
        search(root, pattern="secret", path="link")
    assert search(root, pattern="secret") == "real/a:1: secret"
    assert (root / "real" / "a").read_text() == "secret"


def test_a_working_directory_that_is_a_link_is_followed_by_relative_paths_alone(root: Path) -> None:
    (root / "real").mkdir()
    (root / "real" / "a").write_text("x")
    (root / "link").symlink_to("real")
    assert read(root / "link", path="a") == "1\tx"
    assert read(root / "link", path=str(root / "real" / "a")) == "1\tx"
    with pytest.raises(SymbolicLinkError, match=f"its real path is '{root}/real'"):
        read(root / "link", path=str(root / "link" / "a"))


def test_a_working_directory_that_is_exchanged_after_a_path_was_judged_is_not_followed(root: Path) -> None:
    (root / "work").mkdir()
    (root / "secret").mkdir()
    (root / "secret" / "a").write_text("secret")
    judged = str(root / "work" / "a")
    (root / "work").rmdir()
    (root / "work").symlink_to("secret")
    for of, arguments in (
        (files.read_file, {}),
        (files.write_file, {"content": "x"}),
        (files.edit_file, {"old": "secret", "new": "x"}),
        (files.search_files, {"pattern": "secret"}),
    ):
        with pytest.raises(SymbolicLinkError):
            call(of, root / "work", path=judged, **arguments)
    assert (root / "secret" / "a").read_text() == "secret"


def test_a_pipe_does_not_hold_anything_up(root: Path) -> None:
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


def test_mixed_line_ends_stay_mixed(root: Path) -> None:
    (root / "a").write_bytes(b"a\r\nb\nc\r\nd\n")
    edit(root, path="a", old="b\nc", new="B\nC")
    assert (root / "a").read_bytes() == b"a\r\nB\nC\r\nd\n"


def test_a_passage_must_occur_and_occur_once(root: Path) -> None:
    (root / "a").write_text("x = 1\n    y = 2\nx = 1\n")
    with pytest.raises(ValueError, match=r"occurs 2 times .* lines 1, 3"):
        edit(root, path="a", old="x = 1", new="z")
    with pytest.raises(ValueError, match="other blanks"):
        edit(root, path="a", old="y  =  2", new="z")
    with pytest.raises(ValueError, match="line 2 comes closest: 'y = 2'"):
        edit(root, path="a", old="yy = 2", new="z")
    with pytest.raises(ValueError, match="same"):
        edit(root, path="a", old="x", new="x")
    with pytest.raises(ValueError, match="old is empty"):
        edit(root, path="a", old="", new="x")
    assert edit(root, path="a", old="x = 1", new="z", replace_all=True) == "replaced 2 times in 'a', at line 1"
    assert (root / "a").read_text() == "z\n    y = 2\nz\n"


def test_what_comes_closest_is_looked_for_in_few_lines_of_many_that_are_alike(root: Path) -> None:
    (root / "a.txt").write_text("\n".join(format(number * 7919, "064b") for number in range(200)))

    def missed() -> None:
        with pytest.raises(ValueError, match="comes closest"):
            edit(root, path="a.txt", old=f"{100 * 7919:064b}2", new="")

    assert calls(missed)["ratio"] <= 40


def test_passages_that_overlap_are_not_one(root: Path) -> None:
    (root / "a").write_text("aaa")
    with pytest.raises(ValueError, match="occurs 2 times"):
        edit(root, path="a", old="aa", new="b")


texts = st.lists(st.sampled_from(["a", "b", "\n", "\r\n", "\r", "é", "\u2028"])).map("".join)


@given(texts, st.sampled_from(["a", "b", "\n", "a\n", "\nb", "\n\n", "é\na"]))
def test_replacing_a_passage_by_itself_changes_no_byte(text: str, wanted: str) -> None:
    document = _Document.parse(text)
    places = list(files._find_places(document.flat, wanted))
    replaced = document.replace_places(places, len(wanted), wanted)
    assert replaced.replace("\r\n", "\n") == text.replace("\r\n", "\n")
    if len({end for end in ("\r\n", "\n") if end in text.replace("\r\n", "")} | ({1} if "\r\n" in text else set())) < 2:
        assert replaced == text


@given(texts, texts.filter(bool), texts)
def test_an_edit_is_what_replacing_is_for_plain_line_ends(text: str, wanted: str, new: str) -> None:
    text, wanted, new = (value.replace("\r", "") for value in (text, wanted, new))
    if wanted:
        document = _Document.parse(text)
        places = list(files._find_places(document.flat, wanted))
        assert document.replace_places(places, len(wanted), new) == text.replace(wanted, new)


@pytest.fixture
def tree(root: Path) -> Path:
    for name in ("a.py", "src/b.py", "src/deep/er/c.py", "src/x.txt", ".git/config", "node_modules/m.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"needle in {name}\n")
    (root / "link").symlink_to("src")
    return root


def test_a_listing_is_in_order_and_says_what_each_is(tree: Path) -> None:
    assert listed(tree) == [
        ".git/", "a.py", "link@", "node_modules/", "src/", "src/b.py", "src/deep/", "src/deep/er/", "src/x.txt"
    ]  # fmt: skip
    assert listed(tree, path="src", depth=1) == ["b.py", "deep/", "x.txt"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.py", ["a.py", "src/b.py", "src/deep/er/c.py"]),
        ("**/*.py", ["a.py", "src/b.py", "src/deep/er/c.py"]),
        ("src/*.py", ["src/b.py"]),
        ("src/**/*.py", ["src/b.py", "src/deep/er/c.py"]),
        ("**/er/**/*.py", ["src/deep/er/c.py"]),
        ("**/deep/**/c.py", ["src/deep/er/c.py"]),
        ("src/**/deep", ["src/deep/"]),
        ("**/" * 70 + "c.py", ["src/deep/er/c.py"]),
        ("src/**", ["src/", "src/b.py", "src/deep/", "src/deep/er/", "src/deep/er/c.py", "src/x.txt"]),
        ("nothing", ["[nothing in it fits 'nothing']"]),
    ],
)
def test_a_pattern_narrows_a_listing(pattern: str, expected: list[str], tree: Path) -> None:
    assert listed(tree, pattern=pattern, depth=9) == expected


def test_a_listing_that_is_cut_says_so(tree: Path) -> None:
    assert listed(tree, limit=2) == [
        ".git/", "a.py", "[left off: at least 1 more; to see them, narrow it by path, pattern or depth]"
    ]  # fmt: skip
    assert not any("left off" in line for line in listed(tree, limit=9))


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
    assert search(tree, pattern="NEEDLE") == "no line fits 'NEEDLE' (4 files were searched)"
    assert search(tree, pattern="(?i)NEEDLE", glob="*.txt") == "src/x.txt:1: needle in src/x.txt"
    assert search(tree, pattern="needle", path="src/x.txt") == "src/x.txt:1: needle in src/x.txt"


def test_a_search_that_is_cut_says_so(root: Path) -> None:
    (root / "a").write_text("x\n" * 5)
    assert search(root, pattern="x", limit=2) == (
        "a:1: x\na:2: x\n[left off: at least 1 more; to see them, narrow it by pattern, path or glob]"
    )
    assert "left off" not in search(root, pattern="x", limit=5)


def test_a_long_listing_is_cut_between_entries_and_says_how_many_are_left_off(root: Path) -> None:
    names = [f"{n:03}{'x' * 200}" for n in range(200)]
    for name in names:
        (root / name).touch()
    *shown, note = listed(root, limit=10_000)
    assert len("\n".join([*shown, note])) < 15_000 < len("\n".join(names))
    assert shown == names[: len(shown)]
    assert note == f"[left off: {200 - len(shown)} more; to see them, narrow it by path, pattern or depth]"
    assert "at least" in listed(root, limit=199)[-1]
    assert listed(root, pattern="19*")[-1] == names[-1]


def test_a_long_search_is_cut_between_lines_and_says_how_many_are_left_off(root: Path) -> None:
    (root / "a").write_text(f"x{'y' * 280}\n" * 200)
    *shown, note = search(root, pattern="x", limit=2000).split("\n")
    assert len("\n".join([*shown, note])) < 15_000
    assert shown == [f"a:{n}: x{'y' * 280}" for n in range(1, len(shown) + 1)]
    assert note == f"[left off: {200 - len(shown)} more; to see them, narrow it by pattern, path or glob]"
    assert "at least" in search(root, pattern="x", limit=199)


def test_a_name_that_is_longer_than_a_page_is_cut_and_says_so(root: Path) -> None:
    deep = root
    for _ in range(12):
        deep = deep / ("\u200b" * 80)
        deep.mkdir()
    (deep / "a").write_text("x")
    for shown in ("\n".join(listed(root, depth=40)), search(root, pattern="x")):
        assert "[cut: " in shown
        assert len(shown) < 15_000


def test_a_pattern_that_fits_nothing_is_not_given_back_whole(root: Path) -> None:
    assert len(search(root, pattern="\x01" * 1000)) < 2000


def test_a_crowded_directory_says_that_it_was_not_looked_at_whole(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MAX_ENTRIES", 3)
    for name in "abc":
        (root / name).write_text("x")
    assert not any("looked at" in line for line in listed(root))
    (root / "d").write_text("x")
    note = "[directories of which only 3 entries were looked at: 1]"
    assert listed(root)[-1] == note
    assert listed(root, pattern="none") == ["[nothing in it fits 'none']", note]
    assert search(root, pattern="none").endswith(note)


def test_a_directory_that_goes_while_it_is_looked_through_is_counted(root: Path) -> None:
    (root / "a").mkdir()
    (root / "b").write_text("x")
    walk = files._Walk()
    with files.open_directory(str(root)) as directory:
        found = walk.iterate(directory, 2)
        assert next(found).name == "a"
        (root / "a").rmdir()
        assert [entry.name for entry in found] == ["b"]
    assert walk.describe_gaps() == ["directories that could not be read: 1"]


def test_a_search_counts_every_file_that_it_opens(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MAX_SEARCHED_FILES", 3)
    for name in "abcde":
        (root / name).write_bytes(b"needle\0")
    assert "stopped after 3 files" in search(root, pattern="needle")


def test_a_search_reads_the_whole_of_a_long_line(root: Path) -> None:
    (root / "a").write_text("x" * 10_000 + "needle\n")
    found = search(root, pattern="needle$")
    assert found.startswith("a:1: xxx")
    assert len(found) < 400


def test_a_search_says_what_it_did_not_read(root: Path) -> None:
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


@pytest.mark.slow
def test_a_passage_that_occurs_everywhere_is_not_counted_to_the_end(root: Path) -> None:
    (root / "a").write_text("a" * 900_000)
    with pytest.raises(ValueError, match=r"more than 1000 times .* lines 1, 1"):
        edit(root, path="a", old="a", new="b")
    assert edit(root, path="a", old="a", new="b", replace_all=True).startswith("replaced 900000 times")


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(a|aa)+$", r"(a|a)*b", r"a*a*a*a*a*a*b"])
def test_no_pattern_takes_for_ever(pattern: str, root: Path) -> None:
    (root / "a").write_text(("a" * 1900 + "c\n") * 20)
    assert search(root, pattern=pattern).startswith("no line fits")


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "is not a regular expression: .*unclosed group"),
        ("a{2,1}", "is not a regular expression: "),
        (r"(a)\1", "is not taken: it has look-around or a back-reference"),
        ("(?=a)", "is not taken: it has look-around or a back-reference"),
        ("(a{100000}){100000}", "is not taken: it has too many states"),
        ("([^!]{1,250}a){1,30}!", "is not taken: it has too many states"),
        (r"(\w{1,40} ){1,40}", "is not taken: it has too many states"),
    ],
)
def test_a_pattern_that_is_not_taken_says_why(pattern: str, why: str, root: Path) -> None:
    with pytest.raises(ValueError, match=why) as raised:
        search(root, pattern=pattern)
    assert len(str(raised.value)) < 700


def test_a_search_takes_the_letters_and_digits_of_all_languages(root: Path) -> None:
    (root / "a").write_text("naïve Größe\n٣\n!\n")
    assert search(root, pattern=r"^\w+ \w+$") == "a:1: naïve Größe"
    assert search(root, pattern=r"^[\d]$") == "a:2: ٣"
    assert search(root, pattern=r"^[\w-]+ [\]\w]+$") == "a:1: naïve Größe"
    assert search(root, pattern=r"^\W$") == "a:3: !"


def test_a_line_too_long_for_the_pattern_is_not_searched_and_counted(root: Path) -> None:
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
    assert "stopped at the deadline, after 1 files" in search(root, pattern="(x[^!]{1,9}a){1,9}!", path="a")
    assert left == [0.0]


def test_two_spellings_of_a_path_share_a_key(root: Path) -> None:
    keys = files.read_file.resources
    assert keys is not None
    assert list(keys({"path": "a/../b"})) == list(keys({"path": os.path.join(os.path.realpath("."), "B")}))
    assert list(keys({})) == []


async def test_they_work_in_a_runner_behind_within(tree: Path) -> None:
    runner_module = pytest.importorskip("ferrule.runner")
    from ferrule.definition.toolset import Toolset
    from ferrule.guards import within

    runner = runner_module.Runner(Toolset(files.tools), guards=[within("src")])
    context = ToolContext[Any](working_directory=tree)

    async def calls() -> list[tuple[str, str]]:
        sent: list[tuple[str, dict[str, Any]]] = [
            ("read_file", {"path": "link/b.py"}),
            ("read_file", {"path": "a.py"}),
            ("write_file", {"path": "src/new", "content": "one"}),
            ("edit_file", {"path": "src/new", "old": "one", "new": "two"}),
            ("list_files", {"path": "src", "depth": 1}),
            ("search_files", {"pattern": "two", "path": "link"}),
            ("list_files", {}),
            ("read_file", {"path": "src/none"}),
        ]
        results = [await runner.run(name, arguments, context) for name, arguments in sent]
        return [(result.status, result.text) for result in results]

    statuses, shown = zip(*(await calls()), strict=True)
    assert statuses == ("ok", "denied", "ok", "ok", "ok", "ok", "denied", "failed")
    assert shown[0] == "1\tneedle in src/b.py"
    assert shown[4].split("\n") == ["b.py", "deep/", "new", "x.txt"]
    assert shown[5] == "src/new:1: two"
    assert "does not exist" in shown[7]


# -- bounds and hard links ---------------------------------------------------------------------------------------------


def test_an_edit_that_would_write_too_much_is_refused_before_it_is_made(root: Path) -> None:
    (root / "a").write_text("x" * 20_000)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="380000000 bytes"):
            edit(root, path="a", old="x", new="y" * 19_000, replace_all=True)
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()
    assert (root / "a").read_text() == "x" * 20_000


@pytest.mark.parametrize(("old", "new"), [("x", "\n\n\n"), ("\n", "ä\n"), ("xx", "yyy"), ("x\n", "😀\n\n")])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_an_edit_writes_is_never_more_than_the_bound(
    old: str, new: str, end: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"xx{end}" * 10
    for bound in range(20, 200):
        monkeypatch.setattr(files, "_MAX_BYTES", max(bound, len(text)))
        (root / "a").write_bytes(text.encode())
        with contextlib.suppress(ValueError):
            edit(root, path="a", old=old, new=new, replace_all=True)
        assert (root / "a").stat().st_size <= max(bound, len(text))


def test_more_replacements_than_fit_in_memory_are_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MAX_REPLACED", 3)
    (root / "a").write_text("xxxx")
    with pytest.raises(ValueError, match="more than 3 times"):
        edit(root, path="a", old="x", new="y", replace_all=True)
    (root / "a").write_text("xxx")
    assert edit(root, path="a", old="x", new="y", replace_all=True).startswith("replaced 3 times")


def test_a_file_that_could_not_be_read_again_is_not_written(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MAX_BYTES", 10)
    with pytest.raises(ValueError, match="at most 10"):
        call(files.write_file, root, path="a", content="ä" * 6)
    assert not (root / "a").exists()
    assert call(files.write_file, root, path="a", content="ä" * 5).startswith("made")
    assert "ä" in read(root, path="a")


def preview(of: Any, **arguments: Any) -> Any:
    return of.preview(arguments)


def test_who_is_asked_sees_what_a_write_changes(root: Path) -> None:
    path = str(root / "a.txt")
    assert preview(files.write_file, path=path, content="x\n") == Diff("", "x\n", path)
    assert preview(files.write_file, path=str(root / "no" / "a.txt"), content="x").before == ""
    (root / "a.txt").write_text("one\ntwo\n")
    assert preview(files.write_file, path=path, content="x\n") == Diff("one\ntwo\n", "x\n", path)
    assert (root / "a.txt").read_text() == "one\ntwo\n"


def test_who_is_asked_sees_what_an_edit_changes_and_that_is_what_it_does(root: Path) -> None:
    path = root / "a.txt"
    path.write_bytes(b"one\r\ntwo\r\none\r\n")
    arguments = {"path": str(path), "old": "one", "new": "1\n2", "replace_all": True}
    seen = preview(files.edit_file, **arguments)
    edit(root, **arguments)
    assert seen == Diff("one\r\ntwo\r\none\r\n", path.read_bytes().decode(), str(path))


def test_an_edit_that_cannot_work_is_none_to_ask_about(root: Path) -> None:
    (root / "a.txt").write_text("one\none\n")
    for name, old, why in (
        ("a.txt", "two", "old does not occur in"),
        ("a.txt", "one", "2"),
        ("b.txt", "x", "not exist"),
    ):
        with pytest.raises(ToolError, match=why):
            preview(files.edit_file, path=str(root / name), old=old, new="2", replace_all=False)


def test_what_cannot_be_shown_is_told_with_what_would_be_written(root: Path) -> None:
    (root / "a.bin").write_bytes(b"\0")
    seen = preview(files.write_file, path=str(root / "a.bin"), content="new text")
    assert "binary file" in seen and seen.endswith("new text")


def test_a_preview_says_that_what_is_there_is_no_text_and_makes_no_text_of_it(root: Path) -> None:
    (root / "a.txt").write_bytes(b"caf\xe9\n")
    seen = preview(files.write_file, path=str(root / "a.txt"), content="caf\ufffd\n")
    assert isinstance(seen, str) and "is not UTF-8 text (byte 3)" in seen and seen.endswith(":\ncaf\ufffd\n")


def test_an_edit_that_was_approved_is_looked_for_again_when_it_runs(root: Path) -> None:
    def changes_it(call: Any, decision: Any, context: Any) -> bool:
        (root / "a.txt").write_text("one two two", encoding="utf-8")
        return True

    runner = Runner([files.edit_file.replace(ask=True)], approve=changes_it)
    (root / "a.txt").write_text("one two", encoding="utf-8")
    result = runner.run_sync("edit_file", {"path": str(root / "a.txt"), "old": "two", "new": "2"})
    assert "old occurs 2 times" in str(result.error)
    assert (root / "a.txt").read_text(encoding="utf-8") == "one two two"


def test_a_preview_follows_no_link(root: Path) -> None:
    (root / "a.txt").write_text("what is there")
    (root / "link").symlink_to(root / "a.txt")
    with pytest.raises(ToolError) as cannot_work:
        preview(files.edit_file, path=str(root / "link"), old="what", new="x")
    for seen in (preview(files.write_file, path=str(root / "link"), content="x"), str(cannot_work.value)):
        assert isinstance(seen, str) and "links are not followed" in seen and "is there" not in seen


def test_a_preview_of_a_relative_path_reads_no_file_as_it_may_be_another(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a.txt").write_text("one two")
    monkeypatch.chdir(root)
    once = "In 'a.txt' this would be replaced in one place:\none\nby this:\n1"
    assert preview(files.edit_file, path="a.txt", old="one", new="1") == once
    assert "replaced everywhere" in str(preview(files.edit_file, path="a.txt", old="one", new="1", replace_all=True))
    assert "two" not in preview(files.write_file, path="a.txt", content="x")


def test_behind_within_the_person_sees_the_file_that_is_meant(root: Path) -> None:
    (root / "a.txt").write_text("one\n")
    seen: list[Any] = []

    def approve(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
        seen.append(context.tool.preview(call.arguments))
        return True

    runner = Runner(files.tools, guards=[within(), ask_before_changes], approve=approve)
    context = ToolContext[Any](working_directory=root)
    assert runner.run_sync("edit_file", {"path": "a.txt", "old": "one", "new": "two"}, context).success
    assert runner.run_sync("write_file", {"path": "a.txt", "content": "three"}, context).success
    path = str(root / "a.txt")
    assert seen == [Diff("one\n", "two\n", path), Diff("two\n", "three", path)]


def test_a_preview_shows_nothing_of_a_file_with_several_hard_links_where_these_are_refused(root: Path) -> None:
    (root / "a.txt").write_text("one two")
    os.link(root / "a.txt", root / "b.txt")
    tools = {tool.name: tool for tool in files.refusing_hard_links()}
    path = str(root / "b.txt")
    with pytest.raises(ToolError, match=r"has 2 hard links, which are refused$"):
        preview(tools["edit_file"], path=path, old="one", new="1")
    assert "two" not in preview(tools["write_file"], path=path, content="x")
    assert preview(files.edit_file, path=path, old="one", new="1").before == "one two"
    assert tools["read_file"].preview is None


def test_files_with_several_hard_links_are_refused_where_that_is_asked_for(root: Path) -> None:
    (root / "in").mkdir()
    (root / "secret").write_text("secret")
    os.link(root / "secret", root / "in" / "hard")
    context = ToolContext[Any](working_directory=root / "in")

    def result(tools: list[Any], name: str, **arguments: Any) -> Any:
        return asyncio.run(Runner(tools).run(name, arguments, context))

    strict = files.refusing_hard_links()
    assert [tool.name for tool in strict] == [tool.name for tool in files.tools]
    assert result(files.tools, "read_file", path="hard").output == "1\tsecret"
    for name, arguments in {
        "read_file": {"path": "hard"},
        "edit_file": {"path": "hard", "old": "secret", "new": "x"},
        "search_files": {"path": "hard", "pattern": "sec"},
    }.items():
        assert "hard links" in result(strict, name, **arguments).error
    assert "no line fits" in result(strict, "search_files", pattern="sec").output
    assert result(files.tools, "write_file", path="hard", content="mine").success
    assert (root / "secret").read_text() == "secret"
    assert result(strict, "read_file", path="hard").output == "1\tmine"


async def test_guards_are_told_where_the_paths_of_every_file_tool_are() -> None:
    told: dict[str, tuple[str, ...]] = {}

    def sees(call: ToolCall, context: ToolContext) -> Decision:
        told[call.name] = tuple(found.text for found in context.paths)
        return deny("only looking")

    async def main() -> None:
        runner = Runner(files.tools, guards=[sees])
        for one in files.tools:
            required = one.input_schema.get("required", ())
            await runner.run(one.name, dict.fromkeys(required, "x") | {"path": "a/b"})

    await main()
    assert told == {one.name: ("a/b",) for one in files.tools}
