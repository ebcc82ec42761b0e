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
from dataclasses import dataclass
from typing import IO, Any, Final

from ferrule.executors.process import supervisor
from ferrule.security.characters import remove_hidden
from ferrule.tools.shell._limits import Limits, find_excess, limit_processes, limit_script, set_limits

_FIRST_LOOKS: Final = 0.02
_LATER_LOOKS: Final = 0.05
_CHUNK: Final = 65_536
_MAX_STATE: Final = 262_144
_SECONDS_TO_END: Final = 10.0


class Output:
    """The bytes that a line has written so far. Only the first and the last half of the limit are stored."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self.size = 0

    def add(self, data: bytes) -> None:
        """Add bytes."""
        self.size += len(data)
        fresh = max(0, self._half - len(self._head))
        self._head += data[:fresh]
        self._tail += data[fresh:]
        del self._tail[: -self._half]

    @property
    def omitted(self) -> int:
        """The number of bytes that are left out."""
        return self.size - len(self._head) - len(self._tail)

    @property
    def text(self) -> str:
        """The text without control sequences, terminal codes and invisible characters."""
        if not self.omitted:
            return _clean(self._head + self._tail)
        return f"{_clean(self._head)}\n[… {self.omitted} bytes left out …]\n{_clean(self._tail)}"

    def end(self, most: int) -> str:
        """Return the last characters, for people who watch."""
        return _clean((self._tail or self._head)[-most:])


def _clean(data: bytearray) -> str:
    """Return the bytes of a program as text that does nothing to a terminal or to a reader."""
    text = remove_hidden(data.decode("utf-8", "replace"))[0]
    if text.isascii():
        return text
    return "".join(one if one.isprintable() or one in "\n\t" else " " if one.isspace() else "\ufffd" for one in text)


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
        undone: Protected paths that the line had made or changed, and their state before is back.
        changed: Protected files that somebody outside has replaced meanwhile.
    """

    output: Output
    reason: str = "sandbox"
    exit_code: int | None = None
    state: bytes = b""
    packets_without_route: int = 0
    seconds: float = 0.0
    undone: Sequence[str] = ()
    changed: Sequence[str] = ()


class Descriptors(list[int]):
    """The file descriptors that a sandbox inherits. They are closed here when it has them."""

    def keep(self, number: int) -> int:
        """Keep an open descriptor, and return it."""
        self.append(number)
        return number

    def attach(self, data: bytes) -> int:
        """Keep bytes in memory as a file, and return its descriptor."""
        number = self.keep(os.memfd_create("ferrule-sandbox"))
        with open(number, "wb", closefd=False) as file:
            file.write(data)
        os.lseek(number, 0, os.SEEK_SET)
        return number

    def close(self) -> None:
        """Close all of them."""
        while self:
            os.close(self.pop())


class Program:
    """A running program with its limits. `watch` reads and watches it until it has ended."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.stack = ExitStack()
        self.reason: str | None = None
        self.first: int | None = None
        """The process whose tree is measured."""
        self.ended = Ended(Output(limits.output))
        self.streams: dict[int, Callable[[bytes], object]] = {}

    def start(self, command: Sequence[str], **options: Any) -> None:
        """Start the process. If that fails, close everything."""
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options
            )
        except BaseException:
            self.stack.close()
            raise
        assert self.process.stdout is not None
        self.stack.callback(self.process.stdout.close)
        self.streams[self.process.stdout.fileno()] = self.ended.output.add

    def kill(self) -> None:
        """End the whole tree of the program. Repeated calls do no harm."""
        raise NotImplementedError

    def read_code(self) -> int | None:
        """Return the exit code of the program, or None if it never started."""
        return self.process.returncode

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
                self._settle(time.monotonic() - started)
        return self.ended

    def _wait(self) -> None:
        try:
            self.process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _settle(self, seconds: float) -> None:
        self.ended.seconds = seconds
        code = self.read_code()
        if self.reason is not None:
            self.ended.reason = self.reason
        elif code is not None:
            named = {128 + signal.SIGXCPU: "cpu", 128 + signal.SIGXFSZ: "file_size"}
            self.ended.reason = named.get(code, "signal" if 128 < code <= 128 + signal.NSIG else "exit")
            self.ended.exit_code = code

    def _look(self, is_late: bool, is_cancelled: Callable[[], bool]) -> str | None:
        """Return why the program has to end now, or None."""
        if is_late:
            return "deadline"
        if is_cancelled():
            return "cancelled"
        return None if self.first is None else find_excess(self.first, self.limits)


class Sandboxed(Program):
    """One program in bubblewrap. It dies with the thread that makes it, so the same thread has to watch it.

    Args:
        script: A script of bash, and its arguments.
        options: Options of bubblewrap.
        descriptors: The descriptors of the options.
        owner: The uid and gid to run as, if this program changes its user.
        state: The descriptor from which to read a state that the program writes.
    """

    def __init__(
        self,
        script: Sequence[str],
        options: Sequence[str],
        descriptors: Descriptors,
        *,
        bwrap: str,
        owner: tuple[int, int] | None,
        limits: Limits,
        state: int | None = None,
    ) -> None:
        super().__init__(limits)
        status, status_end = os.pipe()
        start_end, self._start = os.pipe()
        for number in (status, self._start, *([] if state is None else [state])):
            self.stack.callback(os.close, number)
        # Every process inside can read the command line of the first one, so the options do not stand there.
        # The first process holds the end of this program, too: otherwise the death of this program would let it start.
        ends = [descriptors.keep(one) for one in (status_end, start_end, os.dup(self._start))]
        names = ("--json-status-fd", "--block-fd", "--sync-fd")
        more = [word for name, end in zip(names, ends, strict=True) for word in (name, str(end))]
        arguments = descriptors.attach(b"\0".join(map(os.fsencode, [*options, *more])))
        user = {} if owner is None else {"user": owner[0], "group": owner[1], "extra_groups": []}
        self.start(
            [bwrap, "--args", str(arguments), "--", *_limit_command(script, limits)],
            env={},
            cwd="/",
            pass_fds=descriptors,
            **user,
        )
        self.streams[status] = self._on_message
        if state is not None:
            self.streams[state] = self._on_state
        self._in_cgroup = owner is None and os.geteuid() == 0
        self._messages = b""
        self._first_descriptor: int | None = None
        self._counters: IO[str] | None = None

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
        self._counters = self.stack.enter_context(open(f"/proc/{child}/net/snmp"))  # noqa: SIM115
        set_limits(child, self.limits)
        if self._in_cgroup:
            self.stack.enter_context(limit_processes(child, self.limits.processes))
        os.write(self._start, b"x")

    def _on_state(self, data: bytes) -> None:
        self.ended.state = (self.ended.state + data)[:_MAX_STATE]

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
                self.ended.packets_without_route = int(values[names.index("OutNoRoutes")])
        return _find_number(self._messages, "exit-code")


class Unsandboxed(Program):
    """One program with the rights of this one. Only its limits hold, and its whole tree ends with it."""

    def __init__(
        self, script: Sequence[str], *, directory: str, environment: Mapping[str, str], limits: Limits
    ) -> None:
        super().__init__(limits)
        self._lifeline, theirs = socket.socketpair()
        self.stack.callback(self._lifeline.close)
        with theirs:
            supervised = [sys.executable, "-I", "-S", supervisor.__file__, str(theirs.fileno()), supervisor.RUN_COMMAND]
            self.start(
                [*supervised, *_limit_command(script, limits, of_user=False)],
                env=environment,
                cwd=directory,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        if sys.platform == "linux":
            self.first = self.process.pid
            os.setpriority(os.PRIO_PROCESS, self.first, 10)  # the watch comes first

    def kill(self) -> None:
        """Close the lifeline. The supervisor then kills everything below it."""
        self._lifeline.close()


def _limit_command(script: Sequence[str], limits: Limits, *, of_user: bool = True) -> list[str]:
    """Return the command for a script of bash with its arguments, which limits itself first.

    With `-p`, bash reads no file or function that the environment names, which could lift the limits.
    """
    lines, *arguments = script
    limited = f"{limit_script(limits, of_user=of_user)} || exit; {lines}"
    return ["/bin/bash", "--norc", "--noprofile", "-pc", limited, "bash", *arguments]


def _find_number(messages: bytes, name: str) -> int | None:
    """Return the last number with this name in the messages of bubblewrap, which are JSON."""
    found = re.findall(rb'"%s": *([0-9]{1,10})' % name.encode(), messages)
    return int(found[-1]) if found else None
