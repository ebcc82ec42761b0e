"""Programs that start at once: each is forked from a process that has imported Ferrule and done nothing else.

`run` is `subprocess.run` with its output captured, for `python -m ferrule …` and `python program.py …`. Standard
streams, working directory, environment, exit code and all that is written are as in a process of its own, and no
program sees what another one did. What Python makes of the environment before a program begins (PYTHON…, LC_…, LANG),
and the folder of the program on `sys.path`, the imported process was started with: there is one for each of them.

A test of the start itself, such as what is imported and from where, and one that needs a terminal, a session, limits or
a signal, takes `subprocess`. Elsewhere than on Linux `run` does too.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from tempfile import TemporaryFile
from types import ModuleType, TracebackType
from typing import IO, Any

COMMANDS = ("call", "decide", "eval", "explain", "lint", "list", "lock", "log", "policy", "run", "schema", "select")
COMMANDS += ("test",)
MODULES = (*(f"ferrule.cli.{command}" for command in COMMANDS), "ferrule.journal.sqlite")
"""What is imported: Ferrule, Rich, and what the usual commands need."""

_READ_BY_PYTHON = ("PYTHON", "LC_", "LANG")


# -- in the process of the tests ---------------------------------------------------------------------------------------


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    timeout: float,
    cwd: str | os.PathLike[str] = ".",
    env: dict[str, str] | None = None,
    input: str | None = None,
    merged: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run `command`, whose first word is this Python, and capture its output, as UTF-8. Without `input` the standard
    input is empty; where it is `merged`, the standard error is the standard output.

    Raises:
        subprocess.TimeoutExpired: It had not ended after `timeout` seconds, and was killed.
    """
    words = [os.fspath(word) for word in command]
    environment = dict(os.environ if env is None else env)
    if sys.platform != "linux":
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL} if input is None else {"input": input}
        given |= {"cwd": cwd, "env": environment, "encoding": "utf-8", "timeout": timeout}
        given |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT if merged else subprocess.PIPE}
        return subprocess.run(words, check=False, **given)
    assert words[0] == sys.executable, "this starts Python alone"
    folder = "" if words[1] == "-m" else str(Path(cwd, words[1]).resolve(strict=True).parent)
    assert folder or words[2] == "ferrule", "this runs Ferrule, or a file"
    read = {name: value for name, value in environment.items() if name.startswith(_READ_BY_PYTHON)}
    imported = _imported(folder, *sorted(read.items()))
    with TemporaryFile() as asked, TemporaryFile() as said, TemporaryFile() as failed:
        asked.write((input or "").encode())
        asked.seek(0)
        streams = [asked, said, said if merged else failed]
        code = imported.run(words, os.path.abspath(cwd), environment, [one.fileno() for one in streams], timeout)
        return subprocess.CompletedProcess(words, code, _read_text(said), _read_text(failed))


def _read_text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode().replace("\r\n", "\n").replace("\r", "\n")


@cache
def _imported(folder: str, *environment: tuple[str, str]) -> _Imported:
    return _Imported(folder, dict(environment))


class _Imported:
    """The process that the programs are forked from."""

    def __init__(self, folder: str, environment: dict[str, str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The streams are no terminal, as those of the programs are none: Python buffers that in another way.
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno()), folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env=environment,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        atexit.register(self._end)

    def _end(self) -> None:
        self._control.close()
        self._process.communicate()

    def run(self, command: list[str], cwd: str, environment: dict[str, str], streams: list[int], timeout: float) -> int:
        with open(os.memfd_create("command"), "w") as body:
            json.dump([command, cwd, environment], body)
            body.flush()
            socket.send_fds(self._control, [b"run"], [*streams, body.fileno()])
        pid = self._hear()
        try:
            self._control.settimeout(timeout)
            return os.waitstatus_to_exitcode(self._hear())
        except BaseException as error:
            os.kill(pid, signal.SIGKILL)
            self._control.settimeout(None)
            self._hear()
            if isinstance(error, TimeoutError):
                raise subprocess.TimeoutExpired(command, timeout) from None
            raise
        finally:
            self._control.settimeout(None)

    def _hear(self) -> int:
        said = self._control.recv(20)
        assert said, self._process.communicate()[1].decode()
        return int(said)


# -- in the process that has imported ----------------------------------------------------------------------------------


def _next_program(control: socket.socket) -> list[str]:
    """Fork for each command that comes, and tell its process and how that ended. Returns in the fork, with the command.

    Raises:
        SystemExit: The tests have ended.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # one of the keyboard is for the tests
    assert len(os.listdir("/proc/self/task")) == 1, "a thread is not there in a fork, and what it held stays held"
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 20, 4)
        if not message:
            sys.exit()
        pid = os.fork()
        if not pid:
            control.detach()
            return _become(*descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        try:
            control.send(str(pid).encode())
            control.send(str(os.waitpid(pid, 0)[1]).encode())
        except BrokenPipeError:
            sys.exit()


def _become(stdin: int, stdout: int, stderr: int, body: int) -> list[str]:
    """Have this fork be as a process that was started with a command; the command."""
    command, cwd, environment = json.loads(os.pread(body, os.fstat(body).st_size, 0))
    for place, descriptor in enumerate((stdin, stdout, stderr)):
        os.dup2(descriptor, place)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(cwd)
    os.environ.update(environment)  # beside what Python reads nothing was there
    time.tzset()
    sys.orig_argv[:] = command
    sys.argv[:] = command[1:] if command[1] != "-m" else ["-m", *command[3:]]
    sys.modules["__main__"] = main = ModuleType("__main__")
    main.__dict__.update(__builtins__=sys.modules["builtins"], __annotations__={})
    return command


def _source(file: str) -> tuple[bytes, str, dict[str, Any]]:
    """A program, its path, and its names as Python makes them for `python FILE`."""
    path = os.path.abspath(file)
    names = vars(sys.modules["__main__"])
    names.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    return Path(path).read_bytes(), path, names


def _show(
    hook: Callable[..., object], kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Show an exception without the frame of this file."""
    rest = trace and trace.tb_next
    hook(kind, error.with_traceback(rest), rest)


if __name__ == "__main__":
    sys.path[:1] = [sys.argv[2]] if sys.argv[2] else []  # Ferrule takes the working directory away where it is run
    for name in MODULES:
        importlib.import_module(name)
    gc.freeze()
    started = _next_program(socket.socket(fileno=int(sys.argv[1])))
    try:
        if started[1] == "-m":
            runpy._run_module_as_main(started[2])  # what Python itself calls
        else:
            source, path, names = _source(started[1])
            exec(compile(source, path, "exec", dont_inherit=True), names)
    except BaseException:
        sys.excepthook = partial(_show, sys.excepthook)
        raise
