"""A tool that runs lines of bash in a sandbox of the operating system. See docs/shell.md.

from ferrule.tools import shell

runner = Runner([shell.tool(".")])
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from ferrule.definition.tool import Tool
from ferrule.tools.shell._options import Options
from ferrule.tools.shell._tool import Place, make_line_tool

__all__ = ["tool"]


def tool(
    root: str | os.PathLike[str],
    *,
    read: Sequence[str | os.PathLike[str]] = (),
    write: Sequence[str | os.PathLike[str]] = (),
    env: Mapping[str, str] = MappingProxyType({}),
    protect: Sequence[str] = (),
    timeout: float = 120,
    memory: int = 2 << 30,
    processes: int = 256,
    file_size: int = 1 << 30,
    output: int = 30_000,
    scratch: int = 256 << 20,
    session: bool = False,
    background: bool = False,
    sandbox: Literal["bubblewrap"] | None = "bubblewrap",
    ask_needs: bool = True,
    name: str = "shell",
) -> Tool:
    """Return a tool that runs lines of bash in a sandbox around one folder. See docs/shell.md.

    A line changes files in the folder and reaches nothing else. If it needs more, the model sends it again with
    `network`, `write` or `outside`, and a person is asked.

    Args:
        root: The folder of the project.
        read: More files and folders that lines may read.
        write: More folders that lines may change.
        env: More variables of the environment. Lines get none of your program but `PATH`.
        protect: More paths inside the root that lines may not change.
        timeout: Seconds for one line.
        memory: Bytes for all processes of a line together.
        processes: Processes and threads of a line at once.
        file_size: Bytes of each file that a line writes.
        output: Bytes of output that are returned: the first and the last half of them.
        scratch: Bytes of each of the private folders `/tmp`, `/dev/shm` and the home folder.
        session: Whether the working directory and exported variables persist between the lines of a session, in the
            sandbox only.
        background: Whether a call returns a ticket at once. See docs/long-work.md#in-the-background.
        sandbox: With None, lines run with all rights of your program, and a person is asked about each.
        ask_needs: Whether the tool itself asks about needs. With False, your policy and guards decide alone.
        name: The name of the tool.

    Raises:
        DefinitionError: This machine can make no sandbox, or an option is wrong; the text says what would help.
    """
    options = {key: value for key, value in locals().items() if key != "name"}
    return make_line_tool(Place(Options(**options)), name)
