"""One worker process, as the program sees it, and the thread that attends to it."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ferrule.errors import NotStartedError, ToolError
from ferrule.executors.liveness import SHARED
from ferrule.executors.threads import Raised
from ferrule.isolation.orders import Order
from ferrule.isolation.protocol import Connection, Kind, Message, Surroundings, surroundings
from ferrule.isolation.remote_errors import rebuild
from ferrule.isolation.supervisor import HOLD, NUMBER
from ferrule.isolation.transfer import unpack
from ferrule.startup import IMPORT_PATH

if TYPE_CHECKING:
    from ferrule.isolation.pool import Job, WorkerPool

STARTING = threading.Lock()
"""Held while a process is started, and while the program forks: a forked child has to know of every socket, or it would
keep open what a supervisor waits for."""
_LATE_SECONDS = 0.02
"""After the deadline: the event loop stops a call first, where it is not blocked."""
_LARGE = 1 << 16
_SUPERVISOR = str(Path(__file__).with_name("supervisor.py"))


class WorkerProcess:
    """A worker and its supervisor. What is told of it changes with the pool's lock held.

    Attributes:
        job: The call that it was given.
        ready: Whether it takes calls, or has.
        killed: Whether it is being ended.
        recipes: Of the tools that it makes ahead.
    """

    def __init__(self, pool: WorkerPool, recipes: list[str]) -> None:
        self.job: Job | None = None
        self.ready = False
        self.killed = False
        self._pool = pool
        self.recipes = recipes
        self._pid: int | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._life: socket.socket | None = None  # its end ends the supervisor, and with it the worker
        self._connection: Connection | None = None
        self._surroundings: Surroundings | None = None  # as the worker was told last
        self._has_files = False  # whether the supervisor holds open files

    @property
    def pid(self) -> int | None:
        """The worker's, which leads its process group; `None` where that is not known yet, or may be another's soon."""
        return None if self.killed else self._pid

    def start(self) -> None:
        """Start the thread that starts the process: that takes a while, and no loop waits for it."""
        try:
            threading.Thread(target=self._attend, name="ferrule-worker", daemon=True).start()
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            self._pool.ended(self, str(error))

    def send(self, order: Order) -> None:
        """Send a call; where the worker has died, the thread that attends to it gives the call to another."""
        with SHARED.lock:  # before the worker begins anything
            self._have_held(SHARED.all())
        now = surroundings()
        changed, self._surroundings = (None if now == self._surroundings else now), now
        if len(order.head) + len(order.body) > _LARGE:  # the socket does not hold it, and no loop waits for the worker
            with suppress(RuntimeError):  # no more threads, or the interpreter is ending
                threading.Thread(target=self._send, args=(order, changed), name="ferrule-send", daemon=True).start()
                return
        self._send(order, changed)

    def release_files(self) -> None:
        """Have the supervisor close the files that it holds: the worker has no call."""
        self._have_held([])

    def _have_held(self, files: list[int]) -> None:
        """Have the supervisor hold these open files, instead of others."""
        if self._life is not None and (files or self._has_files):
            self._has_files = bool(files)
            with suppress(OSError):
                socket.send_fds(self._life, [HOLD], files)

    def _send(self, order: Order, changed: Surroundings | None) -> None:
        assert self._connection is not None
        with suppress(OSError):
            self._connection.send(Kind.CALL, [order.recipe.text, changed, order.head], order.body, order.mark)

    def reply(self, order: Order, head: object, body: bytes) -> None:
        """Send what a tool came to that the handler has asked for; this may block."""
        assert self._connection is not None
        with suppress(OSError):
            self._connection.send(Kind.RESULT, head, body, order.mark)

    def kill(self) -> None:
        """Have the supervisor end the worker with all that it has started."""
        self.killed = True
        if self._life is not None:
            with suppress(OSError):
                self._life.shutdown(socket.SHUT_WR)

    def disown(self) -> None:
        """In a forked child: let go of what keeps the supervisor waiting, and of a process that is none of its own."""
        if self._connection is not None:
            self._connection.abandon()
        if self._life is not None:
            self._life.close()
        if self._supervisor is not None:
            self._supervisor.returncode = 0

    # -- in its thread -----------------------------------------------------------------------------------------------

    def _attend(self) -> None:
        why = ""
        try:
            self._open()
            self._receive()
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        self._pool.ended(self, self._end() or why)
        if self._connection is not None:
            self._connection.close()
        if self._life is not None:
            self._life.close()
        if self._supervisor is not None:
            self._supervisor.wait()

    def _open(self) -> None:
        with STARTING:
            ours, theirs = socket.socketpair()
            self._connection = Connection(ours)
            self._life, life = socket.socketpair()
            with theirs, life:
                self._supervisor = _supervisor(life.fileno(), theirs.fileno())
        self._pid = self._number()
        if self.killed:
            self.kill()
        self._surroundings = surroundings()
        self._connection.send(Kind.PREPARE, [self.recipes, self._surroundings])

    def _receive(self) -> None:
        """Take what the worker sends, and kill it where it is late, until it has ended or is not needed."""
        assert self._connection is not None and self._life is not None
        events = select.poll()
        events.register(self._connection.fileno(), select.POLLIN)
        events.register(self._life.fileno(), 0)  # that it was closed: without its supervisor the worker has to end too
        while True:
            job = self.job
            ready = [descriptor for descriptor, _ in events.poll(self._patience(job))]
            if self._connection.fileno() in ready:  # first: it may say that a call was started, or how it ended
                self._take(self._connection.receive())
            elif ready:
                raise EOFError("its supervisor has ended")
            elif job is not None:
                job.kill()
            elif self._pool.retires(self):
                return

    def _patience(self, job: Job | None) -> float | None:
        """Milliseconds until the call is late, or an idle worker may be one too many; `None` for never."""
        if job is None:
            seconds = self._pool.idle_seconds
        elif job.deadline is None or self.killed:
            return None
        else:
            seconds = job.deadline + _LATE_SECONDS - time.monotonic()
        return max(0.0, seconds) * 1000

    def _take(self, message: Message) -> None:
        job = self.job
        if message.kind == Kind.READY and not self.ready:
            self._pool.ready(self)
        elif job is None:
            return
        elif message.mark != job.order.mark:
            raise EOFError("it sent what belongs to no call that it runs")
        elif message.kind == Kind.READ:
            job.read = True
        elif message.kind == Kind.STARTED:
            job.start()
        elif message.kind in (Kind.RUN, Kind.STOP):
            job.take_request(message)
        elif message.kind == Kind.PROGRESS:
            job.tell(message.head)
        elif message.kind == Kind.NOT_STARTED:
            error = rebuild(message.head)
            why = NotStartedError(f"it could not be started in its process: {type(error).__name__}: {error}")
            why.__cause__ = error
            self._pool.finished(self, failure=why)
        else:
            self._pool.finished(self, _outcome(message, job.order))

    def _end(self) -> str:
        """End the worker with all that it has started; how it ended, empty where that is not known."""
        self.kill()
        if self._pid is None:
            return ""
        try:
            return _how_it_ended(self._number())
        except (EOFError, OSError):  # the supervisor was killed, so the worker lives, and its id is its own
            with suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)
            return "its supervisor was ended"

    def _number(self) -> int:
        assert self._life is not None
        data = self._life.recv(NUMBER.size)
        if not data:
            raise EOFError("its supervisor has ended")
        number: int = NUMBER.unpack(data)[0]
        return number


def _supervisor(life: int, connection: int) -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise RuntimeError("sys.executable does not say where Python is")
    # -P: beside supervisor.py are modules whose names others have too.
    flags = [*subprocess._args_from_interpreter_flags(), "-P"]  # type: ignore[attr-defined]
    return subprocess.Popen(
        [sys.executable, *flags, _SUPERVISOR, str(life), str(connection), *IMPORT_PATH],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=(life, connection),
    )


def _outcome(message: Message, order: Order) -> object:
    """What the handler returned, or `Raised`."""
    if message.kind == Kind.RAISED:
        return Raised(rebuild(message.head))
    try:
        return unpack(message.body, order.recipe.transfer)
    except ToolError as error:
        return Raised(error)


def _how_it_ended(status: int) -> str:
    if status == -signal.SIGKILL:
        return "it was killed (SIGKILL), perhaps for want of memory, or it closed its connection"
    if status < 0:
        known = {int(one): one.name for one in signal.Signals}
        return f"it was ended by {known.get(-status, f'signal {-status}')}"
    return f"it left with exit code {status}"
