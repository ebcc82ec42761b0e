"""Projects for lines to run in."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from needed import needed
from shell_projects import git, give_to_nobody


@pytest.fixture(scope="session", autouse=True)
def bubblewrap() -> str:
    return needed("bubblewrap")["bwrap"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may enter, which those of `tmp_path` are not."""
    path = Path(tempfile.mkdtemp(prefix="shell-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)  # a cancelled line may still be undoing its changes


@pytest.fixture
def make_project(folder: Path) -> Callable[..., Path]:
    """Makes a small repository whose lines run as root or as another user."""

    def make(user: str = "ordinary", name: str = "project") -> Path:
        root = folder / name
        (root / "src").mkdir(parents=True)
        (root / "src" / "app.py").write_text("print('hello')\n")
        (root / ".husky").mkdir()
        (root / ".husky" / "old").write_text("")
        (root / ".gitshared").write_text("[alias]\n\ts = status\n")
        (root / ".ferrule").mkdir()
        (root / ".ferrule" / "policy.toml").write_text('deny = ["*"]\n')
        (root / "shared" / "idea").mkdir(parents=True)
        (root / "shared" / "idea" / "workspace.xml").write_text("<x/>")
        (root / ".idea").symlink_to("shared/idea")
        if os.geteuid() == 0 and user == "ordinary":
            give_to_nobody(root)
        git(root, "init", "-q", ".")
        git(root, "config", "core.hooksPath", ".husky")
        git(root, "config", "include.path", "../.gitshared")
        git(root, "add", ".")
        git(root, "commit", "-q", "--no-verify", "-m", "first")
        return root

    return make
