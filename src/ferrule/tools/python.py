"""A tool that runs programs in Python in a sandbox of the operating system. See docs/shell.md#python.

from ferrule.tools import python

runner = Runner([python.tool(".")])
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ferrule.definition.tool import Tool
from ferrule.tools.shell._options import Options
from ferrule.tools.shell._tool import Place, make_program_tool

__all__ = ["tool"]


def tool(
    root: str | os.PathLike[str],
    *,
    python: str = "python3",
    read: Sequence[str | os.PathLike[str]] = (),
    write: Sequence[str | os.PathLike[str]] = (),
    env: Mapping[str, str] = MappingProxyType({}),
    protect: Sequence[str] = (),
    timeout: float = 120,
    memory: int = 2 << 30,
    ask_needs: bool = True,
    name: str = "python",
) -> Tool:
    """Return a tool that runs programs in Python in the sandbox of `shell.tool`. See docs/shell.md#python.

    Args:
        root: The folder of the project, where programs start.
        python: The interpreter, as a name on the `PATH` or a path that the sandbox has.
        read, write, env, protect, timeout, memory, ask_needs: As for `shell.tool`.
        name: The name of the tool.

    Raises:
        DefinitionError: As for `shell.tool`.
    """
    options = {key: value for key, value in locals().items() if key not in ("name", "python")}
    return make_program_tool(Place(Options(**options)), name, python)
