"""A real terminal, and somebody who types at it."""

from __future__ import annotations

import asyncio
import codecs
import os
import select
import time
from collections.abc import Callable, Iterable
from typing import TextIO

from waits import BOUND

ALLOW = "Allow it? [y/N"
PROMPT = "Allow it? [y/N] "


class Terminal:
    """A pseudo-terminal with somebody in front of it."""

    def __init__(self) -> None:
        self.master, slave = os.openpty()
        self.input: TextIO = os.fdopen(slave, "r")
        self.output: TextIO = os.fdopen(os.dup(slave), "w")
        self.seen = ""
        self.decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end in the middle of a character

    def until(self, text: str, times: int = 1) -> str:
        """Return the screen once `text` has come up so often."""
        ends = time.monotonic() + BOUND
        while self.seen.count(text) < times:
            assert select.select([self.master], [], [], ends - time.monotonic())[0], self.seen
            self.seen += self.decoder.decode(os.read(self.master, 65536))
        return self.seen

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    async def answer(self, dialogue: Iterable[tuple[str, str | Callable[[], str]]]) -> None:
        """Wait for each prompt, and type its answer; a function does something meanwhile and returns the answer."""
        prompts: list[str] = []
        for prompt, answer in dialogue:
            prompts.append(prompt)
            await asyncio.to_thread(self.until, prompt, prompts.count(prompt))
            self.type(answer if isinstance(answer, str) else answer())

    def close(self) -> None:
        self.input.close()
        self.output.close()
        os.close(self.master)
