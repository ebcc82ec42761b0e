"""A file from a repository that is a device, a pipe, a folder or endless is refused at once."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ferrule import DefinitionError, mcp
from ferrule.errors import FerruleError
from ferrule.guards import rules
from ferrule.journal.reading import Reader
from ferrule.mcp.serve._tokens import TokenFile
from ferrule.policy.lock import read_lock
from ferrule.security.paths import read_file
from ferrule.sources import openapi
from ferrule.testing import cassette, read_cases

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files")


def link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def too_large(path: Path) -> None:
    """An endless file, as far as a reader can tell: it takes no room on the disk."""
    with path.open("wb") as file:
        file.truncate(2**40)


NO_FILES: dict[str, Callable[[Path], Any]] = {
    "endless device": link_to("/dev/zero"),
    "terminal": link_to("/dev/tty"),
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "link to a pipe": lambda path: (os.mkfifo(path.with_suffix(".pipe")), path.symlink_to(path.with_suffix(".pipe"))),
    "terabyte": too_large,
}


def read_env_file(path: Path) -> None:
    server = {"command": "true", "envFile": str(path)}
    path.with_name("mcp.json").write_text(json.dumps({"servers": {"a": server}}), encoding="utf-8")
    mcp.connect(path.with_name("mcp.json"))


def read_test_file(path: Path) -> None:
    from ferrule.cli.test_file import read_tool_tests

    if findings := read_tool_tests(str(path)).findings:
        raise DefinitionError(findings[0].text)


READERS: dict[str, Callable[[Path], Any]] = {
    "any": lambda path: read_file(path, 1_000),
    "lock": read_lock,
    "mcp.json": mcp.connect,
    "env file": read_env_file,
    "test file": read_test_file,
    "cassette": cassette,
    "cases": read_cases,
    "policy": rules,
    "openapi": openapi,
    "tokens": TokenFile,
    "journal": lambda path: list(Reader(path).calls()),
}
REFUSED = (FerruleError, OSError, ValueError)


@pytest.mark.parametrize("made", NO_FILES)
@pytest.mark.parametrize("reader", READERS)
def test_a_device_pipe_or_folder_is_refused(reader: str, made: str, tmp_path: Path) -> None:
    path = tmp_path / "brought.json"
    NO_FILES[made](path)
    with pytest.raises(REFUSED):
        READERS[reader](path)


@pytest.mark.parametrize("reader", READERS)
def test_a_file_without_data_yet_blocks_nobody(reader: str, tmp_path: Path) -> None:
    path = tmp_path / "brought.json"
    path.symlink_to("/proc/kmsg")
    with suppress(*REFUSED):
        READERS[reader](path)


def test_a_file_within_its_limit_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 10)
    assert read_file(path, 10) == b"x" * 10
    with pytest.raises(ValueError, match="more than 9 bytes"):
        read_file(path, 9)
