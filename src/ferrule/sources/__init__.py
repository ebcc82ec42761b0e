"""Sources of tools from elsewhere.

Each source gives a `Toolset`:

    async with mcp.connect(["python", "my_server.py"]) as toolset:       # an MCP server
        runner = Runner(toolset)

    runner = Runner(openapi("api.yaml", server="https://api.example.com"))
    runner = Runner(python("tools/"))                                    # files and modules
    runner = Runner(plugins("crm"))                                      # what installed packages offer

`mcp` is a module, and all others are functions. The other packages that a source needs are imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ferrule.sources._report import Imported, ImportedTool, LeftOut, Report
from ferrule.sources.plugins import plugins
from ferrule.sources.python import python

if TYPE_CHECKING:
    from ferrule import mcp
    from ferrule.openapi import openapi

__all__ = ["Imported", "LeftOut", "Report", "ImportedTool", "mcp", "openapi", "plugins", "python"]


def __getattr__(name: str) -> object:
    if name == "mcp":  # only programs that use these two pay for their imports
        from ferrule import mcp

        return mcp
    if name == "openapi":
        from ferrule.openapi import openapi

        return openapi
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
