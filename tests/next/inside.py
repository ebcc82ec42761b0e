"""Runs pytest in Pyodide, and skips each test that needs what Pyodide lacks.

Pyodide has no threads, no processes, no connections and few functions of an operating system, and some packages have no
wheel for it. Python reports each attempt to use one, so there is no list of tests to maintain.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import subprocess
import sys
from asyncio import events, runners, selector_events
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from typing import Any, NoReturn

import pytest

AUDITED = {
    "_thread.start_joinable_thread": "threads",
    "_thread.start_new_thread": "threads",
    "os.exec": "processes",
    "os.fork": "processes",
    "os.forkpty": "processes",
    "os.posix_spawn": "processes",
    "os.system": "processes",
    "socket.bind": "connections",
    "socket.connect": "connections",
    "socket.getaddrinfo": "connections",
}
"""What Pyodide lacks, by the audit event that Python raises when code asks for it."""

refused: list[str] = []
"""What Pyodide lacks and the current test asked for."""
missing: list[str] = []
"""The packages that the current test tried to import, and may do without."""


def refuse(what: str) -> NoReturn:
    """End the test. Code may catch this, so that the test fails later: `refused` has the reason by then."""
    refused.append(what)
    pytest.skip(f"Pyodide lacks {what}", allow_module_level=True)


def on_audit(event: str, arguments: object) -> None:
    if event in AUDITED:
        refuse(AUDITED[event])


class MissingPackages:
    """The last finder on `sys.meta_path`. Python asks it only about a module that no other finder has found."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if path is None:
            missing.append(f"the package {name}")
        return None


class Selector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Ends a test that would wait in vain: for a thread to wake its loop, or for what it was refused."""

    turns = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        if refused:
            self.turns += 1
            if timeout != 0 or self.turns % 1000 == 0:  # the test may look again in each turn of the loop
                refuse(refused[-1])
        if timeout is None and not self.get_map():
            refuse("threads")
        return super().select(timeout)  # type: ignore[no-any-return]


def adapt_python() -> None:
    """Undo Pyodide's changes to asyncio, whose own loop cannot wait for a coroutine, and do without sockets there."""
    events._set_running_loop(None)
    events._set_event_loop_policy(None)
    asyncio.run = runners.run
    for name in ("_make_self_pipe", "_close_self_pipe", "_write_to_self"):
        setattr(selector_events.BaseSelectorEventLoop, name, lambda loop: None)
    selectors.DefaultSelector = Selector  # type: ignore[misc]
    subprocess.Popen.__init__ = lambda *_, **__: refuse("processes")  # type: ignore[method-assign]
    sys.meta_path.append(MissingPackages)
    sys.addaudithook(on_audit)


class Skips:
    """The plugin of pytest that turns a failure into a skip if the test asked for what Pyodide lacks."""

    def __init__(self) -> None:
        self.passed = 0
        self.reasons: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        forget()
        report = yield
        if report.failed and (what := lacking()):
            report.outcome = "skipped"
            report.longrepr = (report.nodeid, None, f"Skipped: Pyodide lacks {what}")
            self.reasons[f"{report.nodeid}: Pyodide lacks {what}"] += 1
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        forget()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, None, None]:
        with skipped_if_lacking():
            yield

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, None, None]:
        with skipped_if_lacking():
            yield

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Generator[None, None, None]:
        with skipped_if_lacking():
            yield

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.passed += report.when == "call" and report.passed
        if report.skipped and isinstance(report.longrepr, tuple):
            self.reasons[report.longrepr[2].removeprefix("Skipped: ")] += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.line("left out on this Python:")
        for reason, cases in self.reasons.most_common():
            terminalreporter.line(f"  {cases:5} × {reason}")


def forget() -> None:
    refused.clear()
    missing.clear()


def lacking() -> str | None:
    return next(reversed([*missing, *refused]), None)


@contextmanager
def skipped_if_lacking() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if what := lacking() or missing_function(error):
            pytest.skip(f"Pyodide lacks {what}")
        raise


def missing_function(error: BaseException) -> str | None:
    """Return the name of the system's function whose absence is the error, or None."""
    if isinstance(error, AttributeError) and any(error.obj is module for module in (os, signal)):
        return f"{error.obj.__name__}.{error.name}"
    return None


def main(arguments: Sequence[str]) -> int:
    print(f"Python {sys.version.partition(' ')[0]}, {sys.platform}")
    adapt_python()
    skips = Skips()
    options = ["-p", "pytest_ferrule", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=0", "-rfE", "--tb=native"]
    code = pytest.main([*options, *arguments], plugins=[skips])
    return int(code) if skips.passed else 1
