#!/usr/bin/env python3
"""Runs each failed test of a CI run again, alone, three times: a test that passes each time failed by chance.

    python scripts/rerun_failed.py FOLDER

`tests/support/failed_tests.py` wrote the ids into FOLDER. Prints `FLAKY: <test>` for a test that passes three times,
and `FAILED: <test>` for the first that does not. Exits with 1 if a test failed again, or if so many failed that chance
cannot be the cause.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

TIMES = 3
MOST = 30
"""More failed tests than this are not chance, and running them again would take too long."""


def main(folder: Path) -> int:
    records = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    failed = [(record, test) for record in records for test in record["tests"]]
    if len(failed) > MOST:
        print(f"FAILED: {len(failed)} tests, which is too many for chance")
        return 1
    flaky = []
    for record, test in failed:
        if not all(passes_alone(record, test) for _ in range(TIMES)):
            print(*(f"FLAKY: {name}" for name in flaky), f"FAILED: {test}", sep="\n")
            return 1
        flaky.append(test)
    print(*(f"FLAKY: {name}" for name in flaky), sep="\n", end="\n" if flaky else "")
    return 0


def passes_alone(record: dict[str, object], test: str) -> bool:
    """Run one test in a process of its own, as it was run before, and return whether it passed."""
    name = test.partition("::")[0]
    # A snippet may import the modules that its page shows before it, so the whole page runs again.
    chosen = name if name.endswith(".md") else test
    print(f"== again, alone: {test}", flush=True)
    environment = {**os.environ, **record["environment"]}
    environment.pop("FERRULE_FAILED", None)
    done = subprocess.run(
        [*record["command"], chosen], cwd=record["directory"], env=environment, stdin=subprocess.DEVNULL
    )
    return done.returncode == 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
