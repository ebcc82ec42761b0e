"""The options of a tool for lines or programs. See docs/shell.md#options."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ferrule.errors import DefinitionError

Paths = Sequence[str | os.PathLike[str]]


@dataclass(eq=False)
class Options:
    """The options of one tool.

    Raises:
        DefinitionError: A value cannot work.
    """

    root: str | os.PathLike[str]
    read: Paths = ()
    write: Paths = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    protect: Sequence[str] = ()
    timeout: float = 120
    memory: int = 2 << 30
    processes: int = 256
    file_size: int = 1 << 30
    output: int = 30_000
    scratch: int = 256 << 20
    session: bool = False
    background: bool = False
    sandbox: Literal["bubblewrap"] | None = "bubblewrap"
    ask_needs: bool = True

    def __post_init__(self) -> None:
        self.folder = os.path.realpath(os.path.expanduser(self.root))
        if not os.path.isdir(self.folder):
            raise DefinitionError(f"root must be a folder, not {os.fspath(self.root)!r}")
        if isinstance(self.read, str) or isinstance(self.write, str) or isinstance(self.protect, str):
            raise DefinitionError("read, write and protect are lists of paths, such as read=['/data']")
        if self.session and self.sandbox is None:
            raise DefinitionError("session=True needs the sandbox: without one, each line starts afresh")
        for name in ("timeout", "memory", "processes", "file_size", "output", "scratch"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or value < 1:
                raise DefinitionError(f"{name} must be a number of at least 1, not {value!r}")
        if any("\0" in name + value for name, value in self.env.items()):
            raise DefinitionError("env holds names and values without NUL")
