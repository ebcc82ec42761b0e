"""One worker process as the program sees it, and the thread that manages it."""

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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ferrule.errors import NotStartedError, ToolError
from ferrule.executors.liveness import LIVENESS_FILES
from ferrule.executors.process.order import Order
from ferrule.executors.process.protocol import Connection, Kind, Message, ProcessState, read_process_state
from ferrule.executors.process.remote_errors import rebuild_error
from ferrule.executors.process.supervisor import HOLD_FILES, NUMBER
from ferrule.executors.process.transfer import unpack
from ferrule.executors.threads import Raised
from ferrule.security.import_path import IMPORT_PATH

if TYPE_CHECKING:
    from ferrule.executors.process.pool import Job, WorkerPool

START_LOCK = threading.Lock()
"""Held while a process starts and while the program forks. A forked child must know all sockets to the supervisors:
one that it kept open would keep a supervisor alive."""
_KILL_DELAY = 0.02
"""Seconds from the deadline to the kill. They let the event loop stop the call first, unless it is blocked."""
_LARGE_MESSAGE = 1 << 16
_SUPERVISOR = str(Path(__file__).with_name("supervisor.py"))


class WorkerProcess:
    """A worker and its supervisor. `job` and `is_ready` change only while the pool's lock is held.

    Attributes:
        job: The call that the worker has, or None.
        is_ready: Whether the worker has reported that it takes calls.
        is_killed: Whether the worker has been or is being killed.
        recipes: The recipes of the tools that the worker makes ahead.
    """

    def __init__(self, pool: WorkerPool, recipes: list[str]) -> None:
        self.job: Job | None = None
        self.is_ready = False
        self.is_killed = False
        self._pool = pool
        self.recipes = recipes
        self._pid: int | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._lifeline: socket.socket | None = None  # the supervisor kills the worker when this closes
        self._connection: Connection | None = None
        self._sent_state: ProcessState | None = None
        self._has_files = False  # whether the supervisor holds open files

    @property
    def pid(self) -> int | None:
        """The worker's process id, which is also its group's.

        It is None before the start, and after a kill, when the system may give the id to another process.
        """
        return None if self.is_killed else self._pid

    def start(self) -> None:
        """Start the thread that starts the process. Starting takes a while, and the loop must not wait for it."""
        try:
            threading.Thread(target=self._manage, name="ferrule-worker", daemon=True).start()
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            self._pool.on_worker_ended(self, str(error))

    def send(self, order: Order) -> None:
        """Send a call. If the worker has died, its thread returns the call to the pool."""
        with LIVENESS_FILES.lock:  # the supervisor must hold the files before the handler can start
            self._hold_files(LIVENESS_FILES.all_descriptors())
        state = read_process_state()
        changed, self._sent_state = (None if state == self._sent_state else state), state
        if len(order.head) + len(order.body) > _LARGE_MESSAGE:  # sending could block the loop until the worker reads
            with suppress(RuntimeError):  # no more threads, or the interpreter is ending
                sending = partial(self._send_call, order, changed)
                threading.Thread(target=sending, name="ferrule-send", daemon=True).start()
                return
        self._send_call(order, changed)

    def release_files(self) -> None:
        """Tell the supervisor to close its open files, because the worker has no call."""
        self._hold_files([])

    def _hold_files(self, descriptors: list[int]) -> None:
        """Tell the supervisor to hold these open files instead of earlier ones."""
        if self._lifeline is not None and (descriptors or self._has_files):
            self._has_files = bool(descriptors)
            with suppress(OSError):
                socket.send_fds(self._lifeline, [HOLD_FILES], descriptors)

    def _send_call(self, order: Order, changed: ProcessState | None) -> None:
        assert self._connection is not None
        with suppress(OSError):
            self._connection.send(Kind.CALL, [order.recipe.text, changed, order.head], order.body, order.token)

    def reply(self, order: Order, head: object, body: bytes) -> None:
        """Send the result of a nested call. This may block."""
        assert self._connection is not None
        with suppress(OSError):
            self._connection.send(Kind.NESTED_RESULT, head, body, order.token)

    def kill(self) -> None:
        """Tell the supervisor to kill the worker and all processes that it has started."""
        self.is_killed = True
        if self._lifeline is not None:
            with suppress(OSError):
                self._lifeline.shutdown(socket.SHUT_WR)

    def abandon_after_fork(self) -> None:
        """Close the sockets in a forked child, so that it does not keep the parent's worker alive."""
        if self._connection is not None:
            self._connection.close_after_fork()
        if self._lifeline is not None:
            self._lifeline.close()
        if self._supervisor is not None:
            self._supervisor.returncode = 0  # so that Popen does not wait for a process that is no child of this one

    # -- in the thread of the worker -----------------------------------------------------------------------------------

    def _manage(self) -> None:
        reason = ""
        try:
            self._start_process()
            self._receive_messages()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        self._pool.on_worker_ended(self, self._end_process() or reason)
        if self._connection is not None:
            self._connection.close()
        if self._lifeline is not None:
            self._lifeline.close()
        if self._supervisor is not None:
            self._supervisor.wait()

    def _start_process(self) -> None:
        with START_LOCK:
            ours, theirs = socket.socketpair()
            self._connection = Connection(ours)
            self._lifeline, lifeline = socket.socketpair()
            with theirs, lifeline:
                self._supervisor = _start_supervisor(lifeline.fileno(), theirs.fileno())
        self._pid = self._receive_number()
        if self.is_killed:
            self.kill()
        self._sent_state = read_process_state()
        self._connection.send(Kind.PREPARE, [self.recipes, self._sent_state])

    def _receive_messages(self) -> None:
        """Receive the worker's messages until it ends or is surplus. Kill its job when that is late."""
        assert self._connection is not None and self._lifeline is not None
        events = select.poll()
        events.register(self._connection.fileno(), select.POLLIN)
        events.register(self._lifeline.fileno(), 0)  # reports only that the supervisor closed it
        while True:
            job = self.job
            ready = [descriptor for descriptor, _ in events.poll(self._poll_timeout(job))]
            if self._connection.fileno() in ready:  # first, because a message may report the start or the outcome
                self._on_message(self._connection.receive())
            elif ready:
                raise EOFError("its supervisor has ended")
            elif job is not None:
                job.kill()
            elif self._pool.retire_if_surplus(self):
                return

    def _poll_timeout(self, job: Job | None) -> float | None:
        """Return the milliseconds until the job is late or the idle worker may retire, or None to wait forever."""
        if job is None:
            seconds = self._pool.idle_seconds
        elif job.deadline is None or self.is_killed:
            return None
        else:
            seconds = job.deadline + _KILL_DELAY - time.monotonic()
        return max(0.0, seconds) * 1000

    def _on_message(self, message: Message) -> None:
        job = self.job
        if message.kind == Kind.READY and not self.is_ready:
            self._pool.on_ready(self)
        elif job is None:
            return
        elif message.token != job.order.token:
            raise EOFError("it sent what belongs to no call that it runs")
        elif message.kind == Kind.RECEIVED:
            job.is_received = True
        elif message.kind == Kind.STARTED:
            job.on_started()
        elif message.kind in (Kind.RUN_NESTED, Kind.CANCEL_NESTED):
            job.on_nested_call(message)
        elif message.kind == Kind.PROGRESS:
            job.on_progress(message.head)
        elif message.kind == Kind.NOT_STARTED:
            error = rebuild_error(message.head)
            failure = NotStartedError(f"it could not be started in its process: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._pool.on_finished(self, failure=failure)
        else:
            self._pool.on_finished(self, _read_outcome(message, job.order))

    def _end_process(self) -> str:
        """Kill the worker and all processes that it has started. Return how it ended, or "" if that is unknown."""
        self.kill()
        if self._pid is None:
            return ""
        try:
            return _describe_exit(self._receive_number())
        except (EOFError, OSError):  # the supervisor was killed, so the worker still lives and has its process id
            with suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)
            return "its supervisor was ended"

    def _receive_number(self) -> int:
        assert self._lifeline is not None
        data = self._lifeline.recv(NUMBER.size)
        if not data:
            raise EOFError("its supervisor has ended")
        number: int = NUMBER.unpack(data)[0]
        return number


def _start_supervisor(lifeline: int, connection: int) -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise RuntimeError("sys.executable does not say where Python is")
    # -P: the folder of supervisor.py has modules with names that other packages use too.
    flags = [*subprocess._args_from_interpreter_flags(), "-P"]  # type: ignore[attr-defined]
    return subprocess.Popen(
        [sys.executable, *flags, _SUPERVISOR, str(lifeline), str(connection), *IMPORT_PATH],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=(lifeline, connection),
    )


def _read_outcome(message: Message, order: Order) -> object:
    """Return the handler's value, or `Raised`."""
    if message.kind == Kind.RAISED:
        return Raised(rebuild_error(message.head))
    try:
        return unpack(message.body, order.recipe.transfer)
    except ToolError as error:
        return Raised(error)


def _describe_exit(status: int) -> str:
    if status == -signal.SIGKILL:
        return "it was killed (SIGKILL), perhaps for want of memory, or it closed its connection"
    if status < 0:
        names = {int(one): one.name for one in signal.Signals}
        return f"it was ended by {names.get(-status, f'signal {-status}')}"
    return f"it left with exit code {status}"
