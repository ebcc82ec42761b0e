"""A pytest plugin for CI: hand failed tests to `scripts/rerun_failed.py`, which decides whether chance failed them.

`FERRULE_FAILED` names a folder. A run whose only fault is failed tests writes their ids there and exits with 0; the
caller of that run must call `rerun_failed.py` afterwards. Any other fault (a collection error, a crash, a hang that
ended the process) keeps its exit code.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from pathlib import Path

import pytest

# Removed, so that a pytest that a test starts reports to that test.
FOLDER = os.environ.pop("FERRULE_FAILED", None)
FAILED: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and report.nodeid not in FAILED:
        FAILED.append(report.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if FOLDER is None or exitstatus != pytest.ExitCode.TESTS_FAILED or not FAILED:
        return
    options = [f"--confcutdir={cut}"] if (cut := session.config.getoption("confcutdir")) else []
    options += [f"-p{plugin}" for plugin in session.config.getoption("plugins")]
    record = {
        "command": [sys.executable, "-m", "pytest", "-q", *options],
        "directory": os.fspath(session.config.rootpath),
        "environment": {
            name: value for name, value in os.environ.items() if name.startswith(("FERRULE_", "PYTEST_DIS", "PYTHON"))
        },
        "tests": FAILED,
    }
    Path(FOLDER, f"{uuid.uuid4().hex}.json").write_text(json.dumps(record), encoding="utf-8")
    session.exitstatus = pytest.ExitCode.OK
