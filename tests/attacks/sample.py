"""The sample of attacks: its tables, its cases, and the folder that rows of paths are for."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SAMPLE: dict[str, Any] = json.loads((Path(__file__).parent.parent / "data" / "attacks.json").read_text("utf-8"))
CASES: dict[str, dict[str, Any]] = {case["id"]: case for case in SAMPLE["cases"]}


def rows(table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = SAMPLE["tables"][table]["rows"]
    return found


def make_folder(base: Path) -> Path:
    """The fixture `fs1` below `base`; its only root is what is returned."""
    for kind, name, what in SAMPLE["fixtures"]["fs1"]["make"]:
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        made: dict[str, Callable[[Path, str], Any]] = {
            "file": lambda path, text: path.write_text(text),
            "symlink": lambda path, target: path.symlink_to(target),
            "fifo": lambda path, _: os.mkfifo(path),
            "hardlink": lambda path, target: os.link(base / target, path),
        }
        made[kind](base / name, what)
    return base / "ws"


def assert_canary(base: Path, *told: object) -> None:
    """Nothing outside the root was read or touched."""
    assert not (base / "new.txt").exists()
    assert (base / "secret.txt").read_text() == "SECRET"
    assert (base / "ws-evil" / "secret.txt").read_text() == "SECRET"
    assert "SECRET" not in repr(told)


def splits(text: str) -> Iterator[tuple[str, str]]:
    """The text in two pieces, in every way."""
    for place in range(len(text) + 1):
        yield text[:place], text[place:]
