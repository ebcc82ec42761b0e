"""Ctrl-C in three stages: let running calls finish and start no new ones, stop them, kill the program."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import Any

try:
    import termios as _termios
except ImportError:  # pragma: no cover
    termios: Any = None
else:
    termios = _termios

CODE = 128 + signal.SIGINT
"""The exit code of a program that was interrupted."""
_KILLS = 3
FINISHES_FIRST = (
    "finishing the running calls; press ctrl-C again to stop them",
    "stopping the running calls; press ctrl-C again to kill the program",
)
"""The messages for the first and the second press, if the first lets running calls finish."""
STOPS = ("stopping the running calls", FINISHES_FIRST[1])
"""The messages if the first press stops running calls."""
_SHOW_CURSOR = b"\x1b[?25h\r\n"


class Stages:
    """Handles the signal inside its `with` block, unless another handler is installed or the signal is ignored.

    It is a signal handler of Python, not of the event loop: the third press must kill the program even if a handler
    blocks the loop. It also keeps `asyncio.run` from installing its own.

    Args:
        aside: Makes room on the terminal for the messages.
        messages: The messages for the first press, and for the second.
    """

    def __init__(
        self, aside: Callable[[], AbstractContextManager[object]], messages: tuple[str, str] = FINISHES_FIRST
    ) -> None:
        self.pressed = 0
        """The number of presses."""
        self._messages = messages
        self._aside = aside
        self._is_installed = False
        self._handled = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cancel: Callable[[], object] = int
        self._modes: list[Any] | None = None

    def __enter__(self) -> Stages:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._is_installed = True
            self._modes = _modes()
            signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def steer(self, cancel: Callable[[], object]) -> None:
        """Call `cancel` in the running loop for each press, and once for each earlier press."""
        self._loop = asyncio.get_running_loop()
        self._cancel = cancel
        if self._is_installed:
            self._wake_loop(self._loop)
        while self._handled < self.pressed:
            self._handle_press()

    def _wake_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make a signal wake the loop, even between its last check and its wait, as the loop's own handlers do."""
        with contextlib.suppress(NotImplementedError):  # Windows, whose loop wakes for every signal
            loop.add_signal_handler(signal.SIGINT, lambda: None)
            signal.signal(signal.SIGINT, self._press)

    def _press(self, number: int, frame: FrameType | None) -> None:
        self.pressed += 1
        if self.pressed >= _KILLS:
            self._kill()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._handle_press)

    def _handle_press(self) -> None:
        if self._handled == self.pressed:  # `steer` handled it
            return
        self._handled += 1
        self._cancel()
        with self._aside():
            start = "\n" if sys.stderr.isatty() else ""  # the terminal has printed ^C
            print(f"{start}ferrule: {self._messages[min(self._handled, 2) - 1]}", file=sys.stderr, flush=True)

    def _kill(self) -> None:
        """End as the signal would, but restore the terminal first."""
        with contextlib.suppress(OSError, ValueError):
            if self._modes is not None:
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, self._modes)
            for stream in (sys.stdout, sys.stderr):
                if stream.isatty():
                    os.write(stream.fileno(), _SHOW_CURSOR)
                    break
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        os._exit(CODE)  # pragma: no cover: systems where a signal to oneself does not end the program


def _modes() -> list[Any] | None:
    """Return the modes of the terminal, or None without a terminal."""
    if termios is None or not sys.stdin.isatty():
        return None
    modes: list[Any] = termios.tcgetattr(sys.stdin.fileno())
    return modes
