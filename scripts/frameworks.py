#!/usr/bin/env python3
"""Runs the tests of the adapters, each with its framework in an environment of its own, those of DBOS and Ray, and
those of telemetry with its exporters.

    python scripts/frameworks.py                     all of them
    python scripts/frameworks.py langchain -k media  one, with options for pytest
    python scripts/frameworks.py remote              DBOS and Ray
    python scripts/frameworks.py telemetry           OpenTelemetry's exporters and Logfire

`pins/NAME.txt`, in `tests/adapters/frameworks`, `tests/remote/engines` or `tests/telemetry`, names all distributions
of an environment, which is made anew where that file has changed. They are installed as they are named: langchain-core
from 1.8.2 and fastmcp from 4.1.3 on want a `certifi` that an index may not have yet, and a resolver then takes older
ones of them in silence. An environment that cannot be made skips the tests with the reason; with FERRULE_NEEDS=all, as
in .ci/run, it fails.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from needs import required, run

ROOT = Path(__file__).parent.parent
FRAMEWORKS = ROOT / "tests" / "adapters" / "frameworks"
FOLDERS = (FRAMEWORKS, ROOT / "tests" / "remote" / "engines", ROOT / "tests" / "telemetry")
TRACED = ("fastmcp", "google_adk", "pydantic_ai", "strands")
"""The frameworks that open spans of OpenTelemetry."""
WITHOUT_ADAPTER = "others"
"""The frameworks whose page shows how to do without an adapter; its programs run in one environment."""
BUILT = ROOT / "build" / "frameworks"
PYTHONPATH = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "support"), str(ROOT / "tests")])
_VERSION = "import sys; print('.'.join(map(str, sys.version_info[:2])))"


def names() -> list[str]:
    """The frameworks that there are adapters for, and what else has an environment."""
    return sorted(pins.stem for folder in FOLDERS for pins in (folder / "pins").glob("*.txt"))


def find_pins(name: str) -> Path:
    """The file that names the distributions of an environment."""
    return next(file for folder in FOLDERS if (file := folder / "pins" / f"{name}.txt").exists())


def python_for(pins: str) -> str:
    """This Python, or one that is new enough for what the pins say they need.

    Raises:
        LookupError: where there is none.
    """
    found = re.search(r"^# Needs Python 3\.(\d+)\.$", pins, re.MULTILINE)
    least = int(found[1]) if found else 0
    if sys.version_info[:2] >= (3, least):
        return sys.executable
    managed = sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python3")))
    for candidate in [*(f"python3.{minor}" for minor in range(20, least - 1, -1)), *managed]:
        if (path := shutil.which(candidate)) and python_minor(path) >= least:
            return path
    raise LookupError(f"it needs Python 3.{least}, and there is none on the PATH")


def python_minor(python: str) -> int:
    """The 12 of Python 3.12; 0 of what does not run."""
    done = subprocess.run([python, "-c", _VERSION], capture_output=True, text=True, timeout=60)
    return int(done.stdout.split(".")[1]) if done.returncode == 0 else 0


def environment(name: str) -> Path:
    """The Python of the framework's environment, which is made where it is not there.

    Raises:
        LookupError: where it cannot be made, and why.
    """
    pins = find_pins(name)
    text = pins.read_text(encoding="utf-8")
    python = python_for(text)
    folder = BUILT / f"{name}-3.{python_minor(python)}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    inside = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not (folder / "complete").exists():
        print(f"Installing {name} into {folder.relative_to(ROOT)} …", file=sys.stderr)
        for older in BUILT.glob(f"{name}-3.{python_minor(python)}-*"):
            shutil.rmtree(older)
        pip = [sys.executable, "-m", "pip", "--python", str(inside), "install", "-qq", "--no-deps", "-r", str(pins)]
        problem = run([python, "-m", "venv", "--without-pip", str(folder)]) or run(pip)
        if problem is not None:
            raise LookupError(problem)
        (folder / "complete").touch()
    return inside


def run_tests(name: str, options: list[str]) -> int:
    """The exit code of pytest in one environment."""
    try:
        python = environment(name)
    except LookupError as error:
        print(f"{'FAILED' if required() else 'SKIPPED'}: the tests of {name}: {error}", file=sys.stderr)
        return int(required())
    inside = {"FERRULE_FRAMEWORK": name, "PYTHONPATH": PYTHONPATH, "PYTHONDONTWRITEBYTECODE": "1"}
    inside["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # amplifier-core's plugin imports what it does not require
    folder = find_pins(name).parent.parent
    tested = [name, "given", "imports", "pages", *(["traced"] if name in TRACED else [])]
    tests = [str(folder / f"test_{one}.py") for one in (["pages"] if name == WITHOUT_ADAPTER else tested)]
    if folder != FRAMEWORKS:
        tests = [str(folder)]
    # The conftest.py at the root, which loads these plugins elsewhere, needs packages that are not here.
    plugins = ["-p", "pytest_asyncio.plugin", "-p", "failed_tests", "-p", "time_limit"]
    command = [str(python), "-m", "pytest", "-q", f"--confcutdir={folder}", *plugins, *tests, *options]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **inside}).returncode


def main() -> int:
    given = sys.argv[1:]
    chosen = [name for name in given if name in names()]
    options = [word for word in given if word not in names()]
    return max([run_tests(name, options) for name in chosen or names()], default=0)


if __name__ == "__main__":
    raise SystemExit(main())
