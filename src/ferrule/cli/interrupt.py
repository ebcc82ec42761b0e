"""Ctrl-C in stages: the first lets running calls finish and starts nothing new, the second stops them, the third
kills.
"""

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
    "finishing what runs; press ctrl-C again to stop it now",
    "stopping what runs; press ctrl-C again to kill the program",
)
"""The texts for each press if the first lets running calls finish."""
STOPS = ("stopping what runs", "stopping what runs; press ctrl-C again to kill the program")
"""The texts for each press if the first stops running calls."""
_SHOW_CURSOR = b"\x1b[?25h\r\n"


class Stages:
    """Handles the signal within its `with`, unless another handler is installed or the signal is ignored.

    It is a plain handler and none of the loop's. Those are not called while something blocks the loop, and the third
    press has to kill the program then, too. It also prevents `asyncio.run` from installing its own.

    Args:
        aside: Makes room on the terminal for the texts.
        said: The texts for the first press, and for the second.
    """

    def __init__(
        self, aside: Callable[[], AbstractContextManager[object]], said: tuple[str, str] = FINISHES_FIRST
    ) -> None:
        self.pressed = 0
        """The number of presses."""
        self._said = said
        self._aside = aside
        self._ours = False
        self._heard = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cancel: Callable[[], object] = int
        self._modes: list[Any] | None = None

    def __enter__(self) -> Stages:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._ours = True
            self._modes = _modes()
            signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def steer(self, cancel: Callable[[], object]) -> None:
        """From now on call `cancel`, in the running loop, at each press; and once for each earlier press."""
        self._loop = asyncio.get_running_loop()
        self._cancel = cancel
        if self._ours:
            self._wake_for_it(self._loop)
        while self._heard < self.pressed:
            self._hear()

    def _wake_for_it(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make a signal wake the loop. It may come between the loop's last check and its wait; the loop's own handlers
        end the wait then.
        """
        with contextlib.suppress(NotImplementedError):  # Windows, whose loop wakes for every signal
            loop.add_signal_handler(signal.SIGINT, lambda: None)
            signal.signal(signal.SIGINT, self._press)

    def _press(self, number: int, frame: FrameType | None) -> None:
        self.pressed += 1
        if self.pressed >= _KILLS:
            self._die()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                self._loop.call_soon_threadsafe(self._hear)

    def _hear(self) -> None:
        if self._heard == self.pressed:  # `steer` has handled it
            return
        self._heard += 1
        self._cancel()
        with self._aside():
            start = "\n" if sys.stderr.isatty() else ""  # after the terminal's ^C
            print(f"{start}ferrule: {self._said[min(self._heard, 2) - 1]}", file=sys.stderr, flush=True)

    def _die(self) -> None:
        """End as the signal would have done, but leave the terminal as it was."""
        with contextlib.suppress(OSError, ValueError):
            if self._modes is not None:
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, self._modes)
            for stream in (sys.stdout, sys.stderr):
                if stream.isatty():
                    os.write(stream.fileno(), _SHOW_CURSOR)
                    break
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        os._exit(CODE)  # pragma: no cover: where a signal to oneself does not end the program


def _modes() -> list[Any] | None:
    """Return the modes of the terminal, if there is one."""
    if termios is None or not sys.stdin.isatty():
        return None
    modes: list[Any] = termios.tcgetattr(sys.stdin.fileno())
    return modes
