"""Start one program, in bubblewrap or without a sandbox, watch it, and end its whole tree."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from ferrule.tools.shell._limits import Limits, limit_processes, limiting_command, measure, set_limits
from ferrule.tools.shell._output import Output

_FIRST_LOOKS: Final = 0.02
_LATER_LOOKS: Final = 0.05
_CHUNK: Final = 65_536
_MAX_STATE: Final = 262_144
_SECONDS_TO_END: Final = 10.0
_SUPERVISOR: Final = str(Path(__file__).with_name("_supervisor.py"))


@dataclass(frozen=True, slots=True)
class User:
    """The user that a line runs as.

    Attributes:
        uid, gid: Ids to change to; None to stay the user of this program.
        in_cgroup: Whether a cgroup limits the number of processes, because the system does not limit this user.
    """

    uid: int | None = None
    gid: int | None = None
    in_cgroup: bool = False

    @property
    def popen_options(self) -> dict[str, Any]:
        """The arguments of `subprocess.Popen` for this user."""
        return {} if self.uid is None else {"user": self.uid, "group": self.gid, "extra_groups": []}


@dataclass(slots=True)
class Ended:
    """How a program ended.

    Attributes:
        reason: `"exit"`, `"signal"`, `"deadline"`, `"cancelled"`, `"memory"`, `"processes"`, `"cpu"`, `"file_size"`,
            `"protected"` for many changes of protected paths, or `"sandbox"` if it never started.
        exit_code: The code of the program; None if it was killed from here or never started.
        state: The bytes that it wrote to the descriptor for them.
        packets_without_route: The number of packets that the namespace could send nowhere.
        seconds: Its time.
    """

    reason: str
    exit_code: int | None
    output: Output
    state: bytes = b""
    packets_without_route: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Descriptors:
    """The file descriptors that a sandbox inherits. They are closed here when it has them."""

    numbers: list[int] = field(default_factory=list)

    def keep(self, number: int) -> int:
        """Keep an open descriptor, and return it."""
        self.numbers.append(number)
        return number

    def attach(self, data: bytes) -> int:
        """Keep bytes in memory as a file, and return its descriptor."""
        number = self.keep(os.memfd_create("ferrule-sandbox"))
        with open(number, "wb", closefd=False) as file:
            file.write(data)
        os.lseek(number, 0, os.SEEK_SET)
        return number

    def open_pipe(self, *, writes: bool) -> tuple[int, int]:
        """Return this program's end of a new pipe, and the end of the sandbox, which writes or reads."""
        reader, writer = os.pipe()
        own, theirs = (reader, writer) if writes else (writer, reader)
        self.numbers.append(theirs)
        return own, theirs

    def close(self) -> None:
        """Close all of them."""
        while self.numbers:
            os.close(self.numbers.pop())


class Program:
    """A running program with its limits. `watch` reads and watches it until it has ended."""

    def __init__(self, process: subprocess.Popen[bytes], limits: Limits) -> None:
        assert process.stdout is not None
        self.process = process
        self.limits = limits
        self.stack = ExitStack()
        self.stack.callback(process.stdout.close)
        self.reason: str | None = None
        self.first: int | None = None
        """The process whose tree is measured."""
        self.ended = Ended("sandbox", None, Output(limits.output))
        self.streams: dict[int, Callable[[bytes], object]] = {process.stdout.fileno(): self.ended.output.add}

    def kill(self) -> None:
        """End the whole tree of the program. Repeated calls do no harm."""
        raise NotImplementedError

    def settle(self) -> None:
        """Fill in how the program ended, once it has."""
        raise NotImplementedError

    def watch(self, is_cancelled: Callable[[], bool], look: Callable[[Output], str | None]) -> Ended:
        """Read and watch the program until it has ended. Then nothing that it has started runs any more.

        Args:
            look: Called about every 50 ms while the program runs. It returns why the program has to end, or None.
        """
        started = time.monotonic()
        next_look, end = started + _FIRST_LOOKS, started + self.limits.seconds
        poll, opened = select.poll(), set(self.streams)
        with self.stack:
            try:
                for number in opened:
                    os.set_blocking(number, False)  # a line can open its pipe, too, and be the first to read it
                    poll.register(number, select.POLLIN)
                while opened:
                    for number, _ in poll.poll(max(0.0, min(next_look, end) - time.monotonic()) * 1000):
                        with suppress(BlockingIOError):
                            if data := os.read(number, _CHUNK):
                                self.streams[number](data)
                            else:
                                poll.unregister(number)
                                opened.remove(number)
                    now = time.monotonic()
                    if self.reason is not None and now >= end:
                        break  # a process that no signal ends, such as one in a broken file system
                    if now < min(next_look, end) and self.reason is None:
                        continue
                    problem = look(self.ended.output)
                    if self.reason is None and (reason := problem or self._look(now >= end, is_cancelled)):
                        self.reason, end = reason, now + _SECONDS_TO_END
                    if self.reason is not None:
                        self.kill()
                    next_look = now + (_FIRST_LOOKS if now - started < 2 else _LATER_LOOKS)
            finally:
                self.kill()
                self._wait()
                self.ended.seconds = time.monotonic() - started
                self.settle()
        return self.ended

    def _wait(self) -> None:
        try:
            self.process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _look(self, is_late: bool, is_cancelled: Callable[[], bool]) -> str | None:
        """Return why the program has to end now, or None."""
        if is_late:
            return "deadline"
        if is_cancelled():
            return "cancelled"
        return None if self.first is None else measure(self.first, self.limits.processes + 2).find_excess(self.limits)


class Sandboxed(Program):
    """One program in bubblewrap. It dies with the thread that makes it, so the same thread has to watch it.

    Args:
        options: Options of bubblewrap.
        descriptors: The descriptors of the options.
        state: Both ends of a pipe for a state that the program writes.
    """

    def __init__(
        self,
        command: Sequence[str],
        options: Sequence[str],
        descriptors: Descriptors,
        *,
        bwrap: str,
        user: User,
        limits: Limits,
        state: int | None = None,
    ) -> None:
        status, status_end = descriptors.open_pipe(writes=True)
        start, start_end = descriptors.open_pipe(writes=False)
        own = [status, start, *([] if state is None else [state])]
        # Every process inside can read the command line of the first one, so the options do not stand there.
        # The first process holds the end of this program, too: otherwise the death of this program would let it start.
        held = os.dup(start)
        descriptors.numbers.append(held)
        more = ["--json-status-fd", str(status_end), "--block-fd", str(start_end), "--sync-fd", str(held)]
        arguments = descriptors.attach(b"\0".join(os.fsencode(one) for one in [*options, *more]))
        # Root without CAP_SYS_RESOURCE cannot limit the process of another user, so that one limits itself.
        limited = limiting_command(limits) if user.uid is not None else []
        try:
            process = subprocess.Popen(
                [bwrap, "--args", str(arguments), "--", *limited, *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={},
                cwd="/",
                pass_fds=descriptors.numbers,
                **user.popen_options,
            )
        except BaseException:
            for number in own:
                os.close(number)
            raise
        finally:
            descriptors.close()
        super().__init__(process, limits)
        for number in own:
            self.stack.callback(os.close, number)
        self.streams[status] = self._on_message
        if state is not None:
            self.streams[state] = self._on_state
        self._user = user
        self._start = start
        self._messages = b""
        self._first_descriptor: int | None = None
        self._counters: list[Any] = []

    def _on_message(self, data: bytes) -> None:
        """Read a message of bubblewrap. At the first one the program waits, so that it can be counted and limited."""
        self._messages += data
        if self.first is None and (child := _find_number(self._messages, "child-pid")) is not None:
            try:
                self._let_start(child)
            except OSError as error:
                self.ended.output.add(f"the sandbox cannot be watched: {error}\n".encode())
                self.reason = "sandbox"

    def _let_start(self, child: int) -> None:
        self._first_descriptor = os.pidfd_open(child)
        self.stack.callback(os.close, self._first_descriptor)
        self.first = child
        if self.reason is not None:  # it was ended before it could start
            return
        for name in ("snmp", "snmp6"):
            with suppress(FileNotFoundError):
                counters = open(f"/proc/{child}/net/{name}")  # noqa: SIM115 - the stack closes it
                self._counters.append(self.stack.enter_context(counters))
        if self._user.uid is None:
            set_limits(child, self.limits)
        if self._user.in_cgroup and not self.stack.enter_context(limit_processes(child, self.limits.processes)):
            raise OSError("no pids cgroup can be made, and nothing else limits the processes of root")
        os.write(self._start, b"x")

    def _on_state(self, data: bytes) -> None:
        self.ended.state = (self.ended.state + data)[:_MAX_STATE]

    def kill(self) -> None:
        """Kill the first process of the namespace, which takes all others with it. If it is unknown, wait for it."""
        if self._first_descriptor is not None:
            with suppress(OSError):
                signal.pidfd_send_signal(self._first_descriptor, signal.SIGKILL)

    def settle(self) -> None:
        for counters in self._counters:
            with suppress(OSError):
                self.ended.packets_without_route += _count_packets_without_route(counters.read())
        code = _find_number(self._messages, "exit-code")
        self.ended.reason, self.ended.exit_code = (
            (self.reason, None) if self.reason is not None else ("sandbox", None) if code is None else read_code(code)
        )


class Unsandboxed(Program):
    """One program with the rights of this one. Only its limits hold, and its whole tree ends with it."""

    def __init__(
        self, command: Sequence[str], *, directory: str, environment: Mapping[str, str], limits: Limits
    ) -> None:
        lifeline, lifeline_end = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", _SUPERVISOR, str(lifeline), *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=directory,
                pass_fds=[lifeline],
                start_new_session=True,
            )
        except BaseException:
            os.close(lifeline_end)
            raise
        finally:
            os.close(lifeline)
        super().__init__(process, limits)
        self._lifeline: int | None = lifeline_end
        if sys.platform == "linux":
            self.first = process.pid
            set_limits(process.pid, limits, of_user=False)
        os.write(lifeline_end, b"x")

    def kill(self) -> None:
        """Close the lifeline. The supervisor then kills everything below it."""
        lifeline, self._lifeline = self._lifeline, None
        if lifeline is not None:
            os.close(lifeline)

    def settle(self) -> None:
        code = self.process.returncode
        self.ended.reason, self.ended.exit_code = read_code(code) if self.reason is None else (self.reason, None)


def read_code(code: int) -> tuple[str, int]:
    """Return what ended a program with this exit code, and the code."""
    named = {128 + signal.SIGXCPU: "cpu", 128 + signal.SIGXFSZ: "file_size"}
    return named.get(code, "signal" if 128 < code <= 128 + signal.NSIG else "exit"), code


def _find_number(messages: bytes, name: str) -> int | None:
    """Return the last number with this name in the messages of bubblewrap, which are JSON."""
    found = re.findall(rb'"%s": *([0-9]{1,10})' % name.encode(), messages)
    return int(found[-1]) if found else None


def _count_packets_without_route(text: str) -> int:
    """Return the counter in the text of `snmp` (two lines for each protocol) or `snmp6` (names and values)."""
    rows = [line.split() for line in text.splitlines()]
    tables = [dict(zip(names, values, strict=False)) for names, values in pairwise(rows)]
    found = [one["OutNoRoutes"] for one in tables if one.get("Ip:") == "Ip:" and "OutNoRoutes" in one]
    found += [row[1] for row in rows if row[0] == "Ip6OutNoRoutes"]
    return sum(int(value) for value in found if value.isdigit())
