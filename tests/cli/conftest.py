"""A folder with the tools of a shop, and the commands of `ferrule` run in it."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.cli.terminal import Gate

from ferrule.cli import main

SHOP = '''
from pathlib import Path

from ferrule import tool

@tool(read_only=True)
def stock(article: str) -> int:
    """Say how many of an article are there."""
    Path("ran").write_text("stock")
    return 3

@tool
def order(article: str, count: int = 1) -> str:
    """Order more of an article."""
    Path("ran").write_text("order")
    return f"ordered {count} of {article}"
'''


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    with closing(Gate(tmp_path, "gate")) as gate:
        yield gate


class Done(NamedTuple):
    """A command that has ended: its exit code and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """Both streams in one line."""
        return " ".join(f"{self.out} {self.err}".split())

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, which has shop.py. The folders of the person lie beside it."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "shop.py").write_text(SHOP, encoding="utf-8")
    for variable, name in (("XDG_CONFIG_HOME", "config"), ("XDG_STATE_HOME", "state")):
        monkeypatch.setenv(variable, str(tmp_path / name))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def ferrule(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Run a command in this process, without a terminal."""

    def run(*words: str) -> Done:
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        capsys.readouterr()
        code = main(words)
        return Done(code, *capsys.readouterr())

    return run
