"""`ferrule inspect` in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from waits import BOUND, wait_until

HERE = Path(__file__).parent


class Page:
    """The server of a page, in a process of its own.

    Attributes:
        link: The newest link at its terminal.
        said: The other lines there.
    """

    def __init__(self, folder: Path, *words: str, port: int = 0) -> None:
        self._command = [sys.executable, "-m", "ferrule", "inspect", *words, "--no-browser", "--by", "ann"]
        self._environment = {**os.environ, "XDG_STATE_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
        self.port = port
        self.link = ""
        self.said: list[str] = []
        self.start()

    def start(self) -> None:
        command = [*self._command, *(["--port", str(self.port)] if self.port else [])]
        self.process = subprocess.Popen(command, cwd=HERE, env=self._environment, stderr=subprocess.PIPE, text=True)
        before, self.link = self.link, ""
        self._reader = threading.Thread(target=self._read, args=(self.process.stderr,), daemon=True)
        self._reader.start()
        wait_until(lambda: self.link not in ("", before) or self.process.poll() is not None)
        assert self.link, "the page did not start"
        self.port = int(self.address.rpartition(":")[2])

    def _read(self, stream: Any) -> None:
        for line in stream:
            if found := re.search(r"open (http\S+)", line):
                self.link = found[1]
            else:
                self.said.append(line)

    @property
    def address(self) -> str:
        return self.link.partition("/#")[0]

    def stop(self, *, kill: bool = False) -> None:
        self.process.kill() if kill else self.process.terminate()
        self.process.wait(BOUND)
        self._reader.join(BOUND)
        assert self.process.stderr is not None
        self.process.stderr.close()


@contextmanager
def serve(folder: Path, *words: str) -> Iterator[Page]:
    page = Page(folder, *words)
    try:
        yield page
    finally:
        page.stop()
