"""Attacks by paths: they reach nothing outside, whoever opens them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from sample import CASES, assert_canary, make_folder, rows

from ferrule import Runner, ToolContext, ToolResult, tool
from ferrule.guards import within
from ferrule.security.paths import open_inside
from ferrule.tools import files
from waits import BOUND

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs POSIX")
FINE = {"allow": {True}, "deny": {False}, "either": {True, False}, "contained": {True, False}, "policy": {False}}
"""Whether a row may succeed; a hard link is refused where the tools are told to, as they are here."""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    found = Path(os.path.realpath(tmp_path))
    make_folder(found)
    return found


@tool(read_only=True)
def read_alone(path: str, context: ToolContext) -> str:
    """Read a file by what looks after itself."""
    with open_inside(str(context.working_directory), path, hard_links=False) as file:
        return str(file.read())


def run(base: Path, op: str, path: str) -> list[ToolResult]:
    """The results of the file tools for a path; reading needs no guard, too."""
    runner = Runner(files.refusing_hard_links(), guards=[within(base / "ws")])
    by_itself = Runner([read_alone])
    calls: dict[str, list[tuple[Runner, str, dict[str, str]]]] = {
        "read": [(runner, "read_file", {"path": path}), (by_itself, "read_alone", {"path": path})],
        "write": [(runner, "write_file", {"path": path, "content": "mine"})],
        "edit": [(runner, "edit_file", {"path": path, "old": "S", "new": "mine"})],
        "list": [(runner, "list_files", {"path": path})],
        "search": [(runner, "search_files", {"path": path, "pattern": "."})],
        "glob": [(runner, "list_files", {"pattern": path}), (runner, "search_files", {"pattern": "S", "glob": path})],
    }
    context = ToolContext[Any](working_directory=base / "ws")
    return [asyncio.run(one.run(name, arguments, context, timeout=BOUND)) for one, name, arguments in calls[op]]


def named(row: dict[str, str]) -> str:
    return f"{row['op']} {row['path']!r}"


@pytest.mark.parametrize("row", rows("paths"), ids=named)
def test_a_row_of_paths_reaches_nothing_outside(row: dict[str, str], base: Path) -> None:
    found = run(base, row["op"], row["path"])
    assert_canary(base, *(result.record() for result in found))
    assert {result.success for result in found} <= FINE[row["expect"]], found
    assert all(result.status != "timeout" for result in found)


OUTSIDE = [
    *("..", "../", "../secret.txt", "./../secret.txt", "sub/./../../secret.txt", "sub//..//..//secret.txt"),
    *("/etc/passwd", "///etc/passwd", "/./etc/passwd", "/etc/../etc/passwd", "link_out", "./link_out"),
    *("sub/../link_out", "dirlink", "dirlink/secret.txt", "dirlink/ws/../secret.txt", "dirlink/out/f", "abs_link"),
    *("abs_link/../etc/passwd", "loop", "loop/x", "dangling", "fifo", "/dev/zero", "/dev/stdin", "/dev/fd/0"),
    *("/proc/self/root/etc/passwd", "/proc/self/fd/0", "/proc/self/environ", "/proc/thread-self/cwd/secret.txt"),
    *("a.txt/../../secret.txt", "a.txt\0", "a.txt\0/../../secret.txt", "\0", "../\ud800", "\udcff/../../secret.txt"),
    *("~root/.ssh/id_rsa", "../ws-evil/secret.txt", "file:///etc/passwd", "file:../secret.txt"),
    *("x" * 5000 + "/../../secret.txt", "x/" * 3000 + "../" * 3001 + "secret.txt", "\\\\?\\C:\\x", "..\\secret.txt"),
    *("sub\\..\\..\\secret.txt", "C:\\x", "\n/../../secret.txt", "../secret.txt\n"),
]  # fmt: skip
"""Each leads outside, or would where separators are others, or cannot be opened as a file."""


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: ascii(path)[:60])
def test_a_path_outside_is_refused_by_every_tool(path: str, base: Path) -> None:
    before = sorted(os.walk(base))
    for op in ("read", "write", "edit", "list", "search"):
        found = run(base, op, path)
        assert_canary(base, *(result.record() for result in found))
        assert all(result.error and result.status != "timeout" for result in found) or "\\" in path, (op, found)
    if "\\" not in path:
        assert sorted(os.walk(base)) == before


INSIDE = [
    *("a.txt", "./a.txt", "sub/../a.txt", "sub/b.txt", "sub//b.txt", "link_in", "\u00e9.txt", "e\u0301.txt", "...txt"),
]


@pytest.mark.parametrize("path", INSIDE)
def test_a_path_inside_works(path: str, base: Path) -> None:
    if path != "link_in":
        assert all(result.success for result in run(base, "write", path))
    assert all(result.success for result in run(base, "read", path))


@pytest.mark.parametrize(
    "pattern", ["**/*", "../*", "../**", "dirlink/*", "/etc/*", "*/../../*", "**/../../*", "[.][.]/*", "{..,x}/*"]
)
def test_no_pattern_lists_or_searches_outside(pattern: str, base: Path) -> None:
    for result in run(base, "glob", pattern):
        assert_canary(base, result.record())
        assert "ws-evil" not in str(result.output) and "passwd" not in str(result.output)


@pytest.mark.parametrize(
    "path", [*CASES["atk004"]["input"]["paths"], "../secret.txt ", "~", "$HOME/x", "\u2025/secret.txt"]
)
async def test_a_handler_gets_the_path_that_was_judged(path: str, base: Path) -> None:
    judged: list[Any] = []
    got: list[str] = []

    def watch(call: Any, context: Any) -> None:
        judged.append(call.arguments["path"])

    @tool(read_only=True)
    def opens(path: str) -> str:
        got.append(path)
        return Path(path).read_text()

    runner = Runner([opens], guards=[within(base / "ws"), watch])
    result = await runner.run("opens", {"path": path}, ToolContext[Any](working_directory=base / "ws"))
    assert_canary(base, result.record())
    assert not result.success and got in ([], judged[-1:])
    assert all(one.startswith(f"{base}/ws/") for one in got)
