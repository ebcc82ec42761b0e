"""`within`: paths stay inside, and become the real paths that were judged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ferrule.errors import DefinitionError
from ferrule.guards import PATH_NAMES, within
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision


@pytest.fixture
def world(tmp_path: Path) -> Path:
    root = Path(os.path.realpath(tmp_path))
    for folder in ("notes/sub", "notes-secret", "other"):
        (root / folder).mkdir(parents=True)
    (root / "notes" / "a.txt").write_text("a")
    (root / "notes-secret" / "s.txt").write_text("s")
    (root / "notes" / "to-secret").symlink_to(root / "notes-secret")
    (root / "notes" / "s-link").symlink_to("../notes-secret/s.txt")
    (root / "notes" / "dangling").symlink_to("../other/new")
    (root / "notes" / "loop").symlink_to("loop")
    (root / "notes" / "inner-link").symlink_to("sub")
    return root


def judged(world: Path, arguments: dict[str, Any], *roots: Any, **options: Any) -> Decision | None:
    context = ToolContext[Any](working_directory=world)
    return within(*roots, **options)(ToolCall("1", "read", arguments), context)


def denied(decision: Decision | None) -> str:
    assert decision is not None
    assert decision.kind == "deny"
    return decision.reason


def changed(decision: Decision | None) -> dict[str, Any]:
    assert decision is not None
    assert decision.kind == "allow"
    assert decision.arguments is not None
    return dict(decision.arguments)


OUTSIDE = [
    *("notes/../notes-secret/s.txt", "notes-secret/s.txt", "notes-secret", "notes/to-secret/s.txt", "notes/to-secret"),
    *("notes/s-link", "notes/dangling", "notes/loop/x", "notes/sub/../../other", "notes/missing/../../other/x"),
    *("notes/inner-link/../../other", "notes/to-secret/../notes-secret/s.txt"),
    *("NOTES/a.txt" if os.path.normcase("A") == "A" and not os.path.exists("/ETC") else "..", "notes\u2215a.txt"),
    *("..", ".", "/", "/etc/passwd", "/proc/self/cwd/../../etc/passwd", "//etc/passwd", "~/x", "", "notes/a.txt\0"),
    *("file:///etc/passwd", "FILE:notes/a.txt", "https://example.org/notes", "notes/" + "d" * 300, "notes/\ud800"),
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_path_outside_is_denied(path: str, world: Path) -> None:
    assert "path" in denied(judged(world, {"path": path}, "notes"))


def test_calls_without_paths_or_with_canonical_ones_are_left_alone(world: Path) -> None:
    first = changed(judged(world, {"paths": ["notes/a.txt", "notes/inner-link"]}, "notes"))
    canonical = {"path": str(world / "notes" / "a.txt"), "mode": "r"}
    for arguments in (first, canonical, {}, {"path": None}, {"paths": []}, {"text": "other"}):
        assert judged(world, arguments, "notes") is None


def test_the_reason_names_the_argument_and_the_roots_as_written(world: Path) -> None:
    reason = denied(judged(world, {"path": "notes/to-secret/s.txt"}, "notes", Path("other")))
    assert "path='notes/to-secret/s.txt'" in reason and "'notes', 'other'" in reason and str(world) not in reason
    reason = denied(judged(world, {"path": "../" + "\x1b[2J\n" * 10_000}, "notes"))
    assert len(reason) < 600 and reason.isprintable()


@pytest.mark.parametrize(
    "name",
    [
        *(*sorted(PATH_NAMES), "filePath", "log_file", "BASE_DIRECTORY", "sub-folder", "targetPaths"),
        *("FileNames", "path1", "dir_name_3", "file2name", "output_filepath", "XMLFile"),
    ],
)
def test_names_that_mean_a_path_are_judged(name: str, world: Path) -> None:
    assert name in denied(judged(world, {name: "other"}, "notes"))


@pytest.mark.parametrize("name", ["text", "content", "profile", "name", "names", "user_name", "1", "filing", "path_of"])
def test_other_names_are_not_judged(name: str, world: Path) -> None:
    assert judged(world, {name: "other"}, "notes") is None


def test_paths_are_found_at_every_depth(world: Path) -> None:
    real = str(world / "notes" / "a.txt")
    bad = {"edits": [{"path": "notes/a.txt"}, {"inner": {"files": ["notes/a.txt", "/etc/passwd"]}}]}
    assert "edits[1].inner.files[1]" in denied(judged(world, bad, "notes"))
    assert "paths[0][1]" in denied(judged(world, {"paths": [[real, "../x"]]}, "notes"))
    good = {"edits": [{"path": "notes/a.txt", "text": "other"}], "paths": [["notes/a.txt", None]]}
    assert changed(judged(world, good, "notes")) == {
        "edits": [{"path": real, "text": "other"}],
        "paths": [[real, None]],
    }


@pytest.mark.parametrize("value", [1, True, 1.5, [1], [[1]], [{"x": "y"}, 1]])
def test_a_path_that_is_no_text_is_denied(value: Any, world: Path) -> None:
    assert "must be a path" in denied(judged(world, {"path": value}, "notes"))


@pytest.mark.parametrize("name", ["max_files", "is_dir", "follow_paths"])
def test_a_number_under_a_name_that_ends_in_a_path_is_allowed(name: str, world: Path) -> None:
    assert judged(world, {name: 10}, "notes") is judged(world, {name: True}, "notes") is None


# -- any other text that reads as a path -------------------------------------------------------------------------------

READ_AS_PATHS = [
    *("/etc/passwd", "/", "//etc/passwd", "/etc/passwd\0.txt", "/usr/bin/ls -l /tmp", "/^foo$/", "/api/users", "~"),
    *("~/x", "..", "../x", "notes/to-secret/../other", "missing/../../x"),
    *(" /etc/passwd", "/etc/passwd\n", '"/etc/passwd"', "' ../x '", "`~/x`", "' \"/etc\" '", "\u00a0/etc/passwd"),
    *("\x1f/etc", "file:///etc/passwd", "FILE:/etc/passwd", "file:notes/a.txt", "file://localhost/etc/passwd"),
    *("<file:///etc/passwd>", " <url:FILE:/etc/passwd>"),
    *("view-source:jar:file:///etc/a", "C:\\Windows\\x", "c:/Windows/x", "\\\\server\\share\\x"),
    *("C:\\Program Files\\x", "..\\x", "notes\\..\\..\\x", "a b/../../x", "/a b/../etc/passwd", "/ /../etc/passwd"),
    *("x" * 300 + "/../../x", "/etc/" + "x" * 5000, "/etc/ " + "x" * 5000, "/x\ny/../etc/passwd", "/./etc/a b"),
]


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX")
@pytest.mark.parametrize("text", READ_AS_PATHS)
def test_a_text_that_reads_as_a_path_outside_is_denied_anywhere(text: str, world: Path) -> None:
    for name in ("output", "script", "config", "target", "1"):
        assert f"text=({name!r},)" in denied(judged(world, {name: text}, "notes"))
    assert "text=('steps',)" in denied(judged(world, {"steps": [["x", text]]}, "notes"))
    assert "text=('to',)" in denied(judged(world, {"steps": [{"to": text}]}, "notes"))
    assert "reads as a path" in denied(judged(world, {"env": {text: "x"}}, "notes"))


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX")
def test_a_text_that_reads_as_a_path_inside_is_unchanged(world: Path) -> None:
    inside = [f"{world}/notes/a.txt", f" {world}/notes/ ", "other/../notes/a.txt", f"{world}/notes/inner-link/new"]
    assert judged(world, {"output": inside, f"{world}/notes/x": 1}, "notes") is None
    assert "output" in denied(judged(world, {"output": f"{world}/notes/to-secret/s.txt"}, "notes"))


OTHER_TEXT = [
    *("", ".", "...", "a..b", "main..dev", "see /etc/passwd", "cat ../x", "--output=/etc/passwd", "a:b", "HEAD~1"),
    *("https://example.org/a/b", "sqlite:///x", "x ~ y", "// a comment", "//\n// Package x", "/* a comment */"),
    *("/** @file ../../x\n */", "/remind me tomorrow", "/ 2", "~5 minutes", "~~~ python\nx\n~~~", "</div>"),
    *("file: x is missing", "profile:/a and log_file:/b", "File:\n/etc/passwd", "\\d+\\.", "A: yes", "a/b/c"),
    *("${HOME}/x", "%2e%2e/x", "import a from './b'", "\u2044etc\u2044passwd", "/9j/4AAQ" + "Sk" * 3000),
]


@pytest.mark.parametrize("text", OTHER_TEXT)
def test_other_text_is_not_judged(text: str, world: Path) -> None:
    assert judged(world, {"value": text, "more": [{text: text}]}, "notes") is None


def test_a_text_that_begins_like_an_existing_path_is_judged(world: Path) -> None:
    (world / "a b").mkdir()
    assert judged(world, {"value": ["a c/../other", "/a c"]}, "notes") is None
    denied(judged(world, {"value": f"{world}/a b/x"}, "notes"))
    denied(judged(world, {"value": "a b/../other"}, "notes"))


def test_text_under_a_name_for_text_is_not_judged(world: Path) -> None:
    free = {"content": "/etc/passwd", "edits": [{"content": {"old": "../x", "path": "other"}}], "file": "/x"}
    assert judged(world, free, "notes", text=["content", "file"]) is None
    assert "old" in denied(judged(world, {**free, "old": "/x"}, "notes", text=["content", "file"]))
    assert "path" in denied(judged(world, {**free, "path": "/x"}, "notes", text=["content", "file"]))


def test_further_parameters_are_paths(world: Path) -> None:
    assert "note" in denied(judged(world, {"note": "x"}, "notes", parameters=["note"]))
    assert "path" in denied(judged(world, {"path": "x"}, "notes", parameters=["note"]))
    real = str(world / "notes" / "a.txt")
    assert changed(judged(world, {"note": ["notes/a.txt"]}, "notes", parameters=["note"])) == {"note": [real]}


def test_a_root_may_be_a_link_and_a_file(world: Path) -> None:
    (world / "link").symlink_to("notes")
    assert changed(judged(world, {"path": "link/a.txt"}, "link")) == {"path": str(world / "notes" / "a.txt")}
    assert changed(judged(world, {"path": "notes/a.txt"}, "notes/a.txt")) == {"path": str(world / "notes" / "a.txt")}


MISTAKES: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    *(((root,), {}) for root in (["notes"], "", None, b"notes", "a\0b", "~nobody-of-this-name/x", "notes/loop")),
    *((("notes",), {option: wrong}) for option in ("parameters", "text") for wrong in ("path", [1], [""])),
    (("notes",), {"parameters": ["note"], "text": ["note"]}),
]


@pytest.mark.parametrize(("roots", "options"), MISTAKES)
def test_a_wrong_option_is_a_definition_error(
    roots: Any, options: Any, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world)
    with pytest.raises(DefinitionError):
        within(*roots, **options)
