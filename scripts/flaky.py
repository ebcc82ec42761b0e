#!/usr/bin/env python3
"""Runs tests again and again on a busy machine, to find those that fail by chance.

    python scripts/flaky.py                             the tests that the change since origin/main touches, ten times
    python scripts/flaky.py --since HEAD~3              since another commit
    python scripts/flaky.py --times 30 tests/journal    chosen tests
    python scripts/flaky.py --all                       the whole suite

Beside the tests run two programs that never rest and one that writes to the disk. A changed test file is run itself; a
changed module of `src/ferrule/ROOM` runs the tests in `tests/ROOM`. Prints each test that failed, with how often, and
exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
SPIN = "while True: pass"
WRITE = """
import os, sys
with open(sys.argv[1], "wb", buffering=0) as file:
    while True:
        file.seek(0)
        file.write(os.urandom(2**20))
        os.fsync(file.fileno())
"""
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


def find_touched_tests(since: str) -> list[str]:
    """Return the test files and folders that the change since a commit touches, and those of its new files."""
    diff = ["git", "diff", "--name-only", "--diff-filter=d", since, "--", "src/ferrule", "tests"]
    new = ["git", "ls-files", "--others", "--exclude-standard", "--", "src/ferrule", "tests"]
    changed = [Path(line) for command in (diff, new) for line in read_lines(command)]
    touched = {path for path in changed if path.parts[0] == "tests" and path.name.startswith("test_")}
    touched |= {Path("tests", path.parts[2]) for path in changed if path.parts[0] == "src" and len(path.parts) > 3}
    touched |= {Path("tests/kernel") for path in changed if path.parts[0] == "src" and len(path.parts) == 3}
    return sorted(str(path) for path in touched if (ROOT / path).exists())


def read_lines(command: list[str]) -> list[str]:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}\nName a commit that exists with --since")
    return done.stdout.splitlines()


@contextmanager
def keep_busy() -> Iterator[None]:
    """Run two busy loops and one disk writer meanwhile."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        programs = [["-c", SPIN], ["-c", SPIN], ["-c", WRITE, f"{folder}/file"]]
        for program in programs:
            started = stack.enter_context(subprocess.Popen([sys.executable, *program]))
            stack.callback(started.kill)
        yield


def run_once(tests: list[str], options: list[str]) -> tuple[int, list[str]]:
    """Run the tests once, and return pytest's exit code and the ids of the tests that failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *tests]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        print(done.stdout, flush=True)
    return done.returncode, FAILED.findall(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", help="files, folders or ids of tests")
    parser.add_argument("--times", type=int, default=10, help="how many runs (default: %(default)s)")
    parser.add_argument("--since", default="origin/main", help="the commit before the change (default: %(default)s)")
    parser.add_argument("--all", action="store_true", help="run the whole suite")
    parser.add_argument("-m", dest="marks", default="not large", help="markers, as for pytest (default: %(default)s)")
    chosen = parser.parse_args()
    tests = [] if chosen.all else chosen.tests or find_touched_tests(chosen.since)
    if not tests and not chosen.all:
        print(f"Nothing in src/ferrule or tests has changed since {chosen.since}")
        return 0
    failed, broken = Counter[str](), 0
    with keep_busy():
        for number in range(1, chosen.times + 1):
            status, names = run_once(tests, ["-m", chosen.marks])
            failed.update(names)
            broken += bool(status)
            print(f"run {number} of {chosen.times}: {f'exit {status}' if status else 'passed'}", flush=True)
    for name, count in failed.most_common():
        print(f"FAILED {count} of {chosen.times}: {name}")
    return int(broken > 0)


if __name__ == "__main__":
    raise SystemExit(main())
