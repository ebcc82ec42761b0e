"""Start one program, in bubblewrap or without a sandbox, watch it, and end its whole tree."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import IO, Any, Final

from ferrule.executors.process import supervisor
from ferrule.security.characters import remove_hidden
from ferrule.tools.shell._limits import find_excess, limit_command, limit_processes
from ferrule.tools.shell._options import Options

_SECONDS_BETWEEN_LOOKS: Final = 0.03
_CHUNK: Final = 65_536
_SECONDS_TO_END: Final = 10.0


class Output:
    """The bytes that a line has written so far. Only the first and the last half of the limit are stored."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._stored = bytearray()
        self.size = 0

    def add(self, data: bytes) -> None:
        """Add bytes."""
        self.size += len(data)
        self._stored += data
        del self._stored[self._half : max(self._half, len(self._stored) - self._half)]

    @property
    def omitted(self) -> int:
        """The number of bytes that are left out."""
        return self.size - len(self._stored)

    @property
    def text(self) -> str:
        """The text without control sequences, terminal codes and invisible characters."""
        if not self.omitted:
            return _clean(self._stored)
        head, tail = self._stored[: self._half], self._stored[self._half :]
        return f"{_clean(head)}\n[… {self.omitted} bytes left out …]\n{_clean(tail)}"

    def end(self, most: int) -> str:
        """Return the last characters, for people who watch."""
        return _clean(self._stored[-most:])


def _clean(data: bytearray) -> str:
    """Return the bytes of a program as text that does nothing to a terminal or to a reader."""
    text = remove_hidden(data.decode("utf-8", "replace"))[0]
    if text.isascii():
        return text
    return "".join(one if one.isprintable() or one in "\n\t" else " " if one.isspace() else "\ufffd" for one in text)


@dataclass(frozen=True, slots=True)
class Run:
    """One program to run, with its needs beyond the rules of the sandbox."""

    script: Sequence[str]
    """A script of bash, and its arguments."""
    directory: str = "/"
    seconds: float = 20.0
    network: bool = False
    write: Sequence[str] = ()
    """Real paths of folders to write in, or of protected paths."""
    variables: Mapping[str, str] = field(default_factory=dict)
    inherited: Sequence[int] = ()
    """More descriptors that it has in the sandbox."""
    look: Callable[[Output], str | None] = lambda output: None
    """Called about every 30 ms while the program runs. It returns why the program has to end, or None."""


Streams = dict[int, Callable[[bytes], object]]


def keep_bytes(data: bytes) -> int:
    """Return a descriptor of a file in memory with these bytes."""
    number = os.memfd_create("ferrule-sandbox")
    with open(number, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(number, 0, os.SEEK_SET)
    return number


class Program:
    """A program with its limits. `watch` reads and watches it until it has ended.

    Args:
        stack: Closes what the program needs.
        streams: More descriptors to read from, and the functions that take their bytes.

    Attributes:
        reason: Why it ended: `"exit"`, `"signal"`, `"deadline"`, `"cancelled"`, `"memory"`, `"processes"`, `"cpu"`,
            `"file_size"`, `"protected"` for many changes of protected paths, or `"sandbox"` if it never started.
        exit_code: Its code; None if it was killed from here or never started.
        packets_without_route: The number of packets that the namespace could send nowhere.
        seconds: Its time.
        undone: Protected paths that it had made or changed, and their state before is back.
        changed: Protected files that somebody outside has replaced meanwhile.
    """

    reason: str | None = None
    exit_code: int | None = None
    packets_without_route = 0
    seconds = 0.0
    undone: Sequence[str] = ()
    changed: Sequence[str] = ()
    first: int | None = None
    """The process whose tree is measured."""

    def __init__(
        self, command: Sequence[str], options: Options, stack: ExitStack, streams: Streams, **more: Any
    ) -> None:
        self.options, self.stack = options, stack
        self.output = Output(int(options.output))
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more
        )
        assert self.process.stdout is not None
        stack.callback(self.process.stdout.close)
        self.streams = {self.process.stdout.fileno(): self.output.add, **streams}

    def kill(self) -> None:
        """End the whole tree of the program. Repeated calls do no harm."""
        raise NotImplementedError

    def read_code(self) -> int | None:
        """Return the exit code of the program, or None if it never started."""
        return self.process.returncode

    def watch(self, run: Run) -> Program:
        """Read and watch the program until it has ended. Then nothing that it has started runs any more."""
        started = now = time.monotonic()
        next_look, end = started + _SECONDS_BETWEEN_LOOKS, started + run.seconds
        poll, opened = select.poll(), set(self.streams)
        try:
            for number in opened:
                os.set_blocking(number, False)  # a line can open its pipe, too, and be the first to read it
                poll.register(number, select.POLLIN)
            while opened:
                for number, _ in poll.poll(max(1.0, (min(next_look, end) - now) * 1000)):
                    with suppress(BlockingIOError):
                        if data := os.read(number, _CHUNK):
                            self.streams[number](data)
                        else:
                            poll.unregister(number)
                            opened.remove(number)
                now = time.monotonic()
                if now >= min(next_look, end):
                    problem = run.look(self.output) or (
                        "deadline" if now >= end else find_excess(self.first, self.options)
                    )
                    self.reason = self.reason or problem
                    next_look = now + _SECONDS_BETWEEN_LOOKS
                if self.reason is not None:
                    self.kill()
        finally:
            self.kill()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_SECONDS_TO_END)
            self.process.kill()
            self.process.wait()
        self.seconds = time.monotonic() - started
        code = self.read_code()
        if self.reason is None and code is not None:
            named = {128 + signal.SIGXCPU: "cpu", 128 + signal.SIGXFSZ: "file_size"}
            self.reason = named.get(code, "signal" if 128 < code <= 128 + signal.NSIG else "exit")
            self.exit_code = code
        return self


class Sandboxed(Program):
    """One program in bubblewrap. It dies with the thread that makes it, so the same thread has to watch it.

    Args:
        setup: The path of bubblewrap, and its options. Numbers in there are descriptors, and the caller closes them.
        user: The user to run as, for `Popen`, if this program changes its user.
    """

    _first_descriptor: int | None = None
    _counters: IO[str] | None = None
    _messages = b""

    def __init__(
        self, run: Run, options: Options, stack: ExitStack, setup: list[str | int], user: Mapping[str, Any]
    ) -> None:
        self._in_cgroup = not user and os.geteuid() == 0
        status, status_end = os.pipe()
        start_end, self._start = os.pipe()
        for number in (status, self._start):
            stack.callback(os.close, number)
        setup += ["--json-status-fd", status_end, "--block-fd", start_end]
        # Every process inside can read the command line of the first one, so the options do not stand there.
        bwrap, *arguments = map(str, setup)
        setup.append(hidden := keep_bytes(b"\0".join(map(os.fsencode, arguments))))
        # The death of this program would let bubblewrap start, so bash waits for a byte of its own.
        setup.append(gate := os.dup(start_end))
        lines, *words = run.script
        lines = f"read -rn 1 -u {gate} || exit; exec {gate}<&-; {lines}"
        command = [bwrap, "--args", str(hidden), "--", *limit_command([lines, *words], options)]
        inherited = [*(one for one in setup if isinstance(one, int)), *run.inherited]
        streams: Streams = {status: self._on_message}
        super().__init__(command, options, stack, streams, env={}, cwd="/", pass_fds=inherited, **user)

    def _on_message(self, data: bytes) -> None:
        """Read a message of bubblewrap. At the first one the program waits, so that it can be counted and limited."""
        self._messages += data
        if self.first is None and (child := self._find_number("child-pid")) is not None:
            try:
                self._let_start(child)
            except OSError as error:
                with suppress(OSError):
                    os.kill(child, signal.SIGKILL)
                self.output.add(f"the sandbox cannot be watched: {error}\n".encode())
                self.reason = "sandbox"

    def _let_start(self, child: int) -> None:
        self._first_descriptor = os.pidfd_open(child)
        self.stack.callback(os.close, self._first_descriptor)
        self.first = child
        self._counters = self.stack.enter_context(open(f"/proc/{child}/net/snmp"))  # noqa: SIM115
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, child, 10)  # the watch comes first
        if self._in_cgroup:
            self.stack.enter_context(limit_processes(child, int(self.options.processes)))
        os.write(self._start, b"xx")

    def _find_number(self, name: str) -> int | None:
        """Return the last number with this name in the messages, which are JSON."""
        found = re.findall(rb'"%s": *([0-9]{1,10})' % name.encode(), self._messages)
        return int(found[-1]) if found else None

    def kill(self) -> None:
        """Kill the first process of the namespace, which takes all others with it. If it is unknown, wait for it."""
        if self._first_descriptor is not None:
            with suppress(OSError):
                signal.pidfd_send_signal(self._first_descriptor, signal.SIGKILL)

    def read_code(self) -> int | None:
        """Return the exit code of the program, and count the packets that it could send nowhere.

        bubblewrap ends before the first process, which ends after all others. So wait for that one.
        """
        if self._first_descriptor is not None:
            poll = select.poll()
            poll.register(self._first_descriptor, select.POLLIN)
            poll.poll(_SECONDS_TO_END * 1000)
        if self._counters is not None:  # names in the first line, values in the second
            with suppress(OSError):
                names, values = (line.split() for line in self._counters.read().splitlines()[:2])
                self.packets_without_route = int(values[names.index("OutNoRoutes")])
        return self._find_number("exit-code")


class Unsandboxed(Program):
    """One program with the rights of this one. Only its limits hold, and its whole tree ends with it."""

    def __init__(self, run: Run, options: Options, stack: ExitStack) -> None:
        self._lifeline, theirs = socket.socketpair()
        stack.callback(self._lifeline.close)
        with theirs:
            end = theirs.fileno()
            command = [sys.executable, "-I", "-S", supervisor.__file__, str(end), supervisor.RUN_COMMAND]
            command += limit_command(run.script, options, of_user=False)
            more = {"env": run.variables, "cwd": run.directory, "pass_fds": [end], "start_new_session": True}
            super().__init__(command, options, stack, {}, **more)
        self.first = self.process.pid
        os.setpriority(os.PRIO_PROCESS, self.first, 10)

    def kill(self) -> None:
        """Close the lifeline. The supervisor then kills everything below it."""
        self._lifeline.close()
