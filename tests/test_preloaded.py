"""A program started by `preloaded` behaves like one in its own process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import preloaded
from waits import BOUND

PROGRAM = """
import asyncio, atexit, json, locale, logging, os, signal, sys, threading, time

import ferrule.security.import_path

atexit.register(print, "at the end")
main = sys.modules["__main__"]
state = {
    "arguments": [sys.argv, sys.orig_argv, sys.path, ferrule.security.import_path.IMPORT_PATH],
    "names": [__name__, __file__, __spec__, __package__, __doc__, type(__loader__).__name__, globals() is vars(main)],
    "place": [os.getcwd(), time.tzname, os.umask(0)],
    "environment": sorted(os.environ.items()),
    "streams": [
        [stream.encoding, stream.errors, stream.line_buffering, stream.write_through, stream.isatty(), stream.fileno()]
        for stream in (sys.stdin, sys.stdout, sys.stderr)
    ],
    "descriptors": sorted(map(int, os.listdir("/proc/self/fd"))),
    "signals": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals() - {9, 19, 32, 33})],
    "threads": [thread.name for thread in threading.enumerate()] + os.listdir("/proc/self/task")[1:],
    "python": [*sys.flags, locale.getlocale(), sys.excepthook is sys.__excepthook__, sys.warnoptions],
    "logging": [logging.root.level, len(logging.root.handlers), type(asyncio.get_event_loop_policy()).__name__],
}
for part in state:
    print(part, json.dumps(state[part]))
print("read", repr(sys.stdin.read()), flush=True)
print("told", file=sys.stderr)
"""
MARKS = "import json, os\nprint(hasattr(json, 'mark'), 'MARK' in os.environ)\njson.mark = 1"
ENDS = {
    "by itself": "",
    "with an exception": "def f():\n    1 / 0\ntry:\n    f()\nexcept ArithmeticError as e:\n    raise KeyError from e",
    "by an interrupt": "signal.raise_signal(signal.SIGINT)",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "by os._exit": "print('lost')\nos._exit(4)",
}

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is `subprocess.run`")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    for name, end in ENDS.items():
        (folder / f"{name}.py").write_text(PROGRAM + end)
    (folder / "marks.py").write_text(MARKS)
    return folder


@pytest.mark.parametrize("end", ENDS)
def test_it_is_as_in_a_process_of_its_own(folder: Path, end: str) -> None:
    command = [sys.executable, os.fspath(folder / f"{end}.py"), "a", "--b"]
    environment = {**os.environ, "MARK": "é", "TZ": "Asia/Kolkata", "PYTHONIOENCODING": "utf-8"}
    started: dict[str, Any] = {"cwd": folder, "env": environment, "input": "one\ntwo", "timeout": BOUND}
    hears = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
    alone = subprocess.run(command, **started, capture_output=True, encoding="utf-8", preexec_fn=hears)
    forked = preloaded.run(command, **started)
    assert (forked.stdout, forked.stderr, forked.returncode) == (alone.stdout, alone.stderr, alone.returncode)


def test_programs_do_not_see_each_other(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, os.fspath(folder / "marks.py")]
    new = {**os.environ, "PYTHONHASHSEED": "17"}
    monkeypatch.setenv("MARK", "of the tests")
    assert preloaded.run(command, env={**new, "MARK": "1"}, timeout=BOUND).stdout == "False True\n"
    assert preloaded.run(command, env=new, timeout=BOUND).stdout == "False False\n"
