"""A program in a real terminal: what it writes, what is on the screen then, and a keyboard."""

from __future__ import annotations

import codecs
import os
import re
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from rich.cells import cell_len

from ferrule.approval.terminal import RESET
from waits import BOUND

if sys.platform != "win32":
    import fcntl
    import pty
    import termios

PROGRAM = [sys.executable, "-m", "ferrule"]
_TOKEN = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])|(.)", re.DOTALL)
_UNFINISHED = re.compile(r"\x1b(\[\??[\d;]*)?\Z")


class Gate:
    """What a tool of the program under test waits at, or says that it has come to; both without looking again."""

    def __init__(self, folder: Path, name: str) -> None:
        os.mkfifo(folder / name)
        self._descriptor = os.open(folder / name, os.O_RDWR)

    def open(self) -> None:
        os.write(self._descriptor, b"x")

    def passed(self) -> None:
        ready, _, _ = select.select([self._descriptor], [], [], BOUND)
        assert ready, "the tool has not come there"
        os.read(self._descriptor, 1)

    def close(self) -> None:
        os.close(self._descriptor)


class Screen:
    """What a terminal shows, and all that has gone out at its top; it reads on from where it was.

    Attributes:
        said: All that was written, without colours and movements.
    """

    def __init__(self, columns: int, lines: int) -> None:
        self.said = ""
        self.lines = [""]
        self.cursor = True
        self._row = self._column = 0
        self._columns, self._height = columns, lines
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unfinished = ""

    def read(self, raw: bytes) -> None:
        """Take what was sent, which may end inside a character or inside an escape sequence."""
        text = (self._unfinished + self._decoder.decode(raw)).replace(RESET, "\r\x1b[J")
        end = found.start() if (found := _UNFINISHED.search(text)) else len(text)
        begun = (at for at in range(max(len(text) - len(RESET), 0), end) if RESET.startswith(text[at:]))
        end = next(begun, end)
        self._unfinished = text[end:]
        characters = []
        for arguments, command, character in _TOKEN.findall(text[:end]):
            if command:
                self._command(arguments, command)
            else:
                self._put(character)
                characters.append(character)
        self.said += "".join(characters).replace("\r", "")

    def _command(self, arguments: str, command: str) -> None:
        if command == "A":
            self._row = max(self._row - int(arguments or 1), len(self.lines) - self._height, 0)
        elif command == "K":
            assert arguments == "2"
            self.lines[self._row] = ""
        elif command == "J":
            del self.lines[self._row + 1 :]
            self.lines[self._row] = ""
        elif command in "hl":
            assert arguments == "?25"
            self.cursor = command == "h"
        else:
            assert command == "m", f"what does {command!r} do?"

    def _put(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._down()
        else:
            assert character.isprintable(), repr(character)
            width = cell_len(character)
            if self._column + width > self._columns:
                self._column = 0
                self._down()
            line = self.lines[self._row]
            self.lines[self._row] = _over(line, self._column, character)
            self._column += width

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self.lines):
            self.lines.append("")


def _over(line: str, column: int, character: str) -> str:
    """`line` with `character` at `column`."""
    if cell_len(line) == column:
        return line + character
    before, at = "", 0
    while at < len(line) and cell_len(before + line[at]) <= column:
        before += line[at]
        at += 1
    before += " " * (column - cell_len(before))
    return before + character + line[at + 1 :]


class Terminal:
    """The program with `words`, in a terminal that is its own, until the end of the `with`."""

    def __init__(
        self,
        *words: str,
        cwd: Path,
        columns: int = 100,
        lines: int = 30,
        output: Path | None = None,
        **environment: str,
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen = Screen(columns, lines)
        self._seen = 0
        known = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}}
        written = None if output is None else output.open("wb")
        self.program = subprocess.Popen(
            [*PROGRAM, *words],
            cwd=cwd,
            stdin=theirs,
            stdout=theirs if written is None else written,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_at_the_keyboard,
            env={**known, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **environment},
        )
        os.close(theirs)
        if written is not None:
            written.close()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.program.kill()
        self.program.wait(BOUND)
        os.close(self._ours)

    @property
    def said(self) -> str:
        """All that was written so far, without colours and movements."""
        return self.screen.said

    @property
    def shown(self) -> str:
        """The lines on the screen, and those before them."""
        return "\n".join(line.rstrip() for line in self.screen.lines)

    def until(self, text: str) -> None:
        """Wait until `text` is written, after what was waited for before."""
        self._until(lambda: text in self.said[self._seen :], text)
        self._seen = self.said.index(text, self._seen) + len(text)

    def until_shown(self, text: str) -> None:
        """Wait until `text` is on the screen."""
        self.until_so(lambda shown: text in shown, text)

    def until_so(self, check: Callable[[str], bool], what: str) -> None:
        """Wait until the screen is as `check` says; it may be read in the middle of a change."""
        self._until(lambda: check(self.shown), what)

    def _until(self, there: Callable[[], bool], text: str) -> None:
        end = time.monotonic() + BOUND
        while not there():
            assert self._read(end), f"it ended without {text!r}:\n{self.shown}"

    def _read(self, end: float) -> bool:
        ready, _, _ = select.select([self._ours], [], [], max(0.0, end - time.monotonic()))
        assert ready, f"it says nothing any more:\n{self.shown}"
        try:
            chunk = os.read(self._ours, 65536)
        except OSError:  # Linux's way to say that the other side is closed
            chunk = b""
        self.screen.read(chunk)
        return bool(chunk)

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def interrupt(self) -> None:
        self.type("\x03")

    def end(self) -> int:
        """Its exit code, once it has ended."""
        end = time.monotonic() + BOUND
        while self._read(end):
            pass
        return self.program.wait(BOUND)

    def echoes(self) -> bool:
        """Whether what is typed is shown."""
        return bool(termios.tcgetattr(self._ours)[3] & termios.ECHO)


def steps(folder: Path, *turns: object) -> None:
    """Write the steps of a scripted model, which says that it is done after these."""
    (folder / "steps.py").write_text(f"steps = {[*turns, 'Done.']!r}", encoding="utf-8")


def _at_the_keyboard() -> None:
    """In the child: this terminal's ctrl-C is its own, and is not ignored because the tests run in the background."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    listening()


def listening() -> None:
    """For a child: ctrl-C is not ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
