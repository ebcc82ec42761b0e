"""The status of an MCP server, for users."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

State: TypeAlias = Literal["idle", "starting", "ready", "down", "closed"]


@dataclass(frozen=True)
class ServerStatus:
    """The state of an MCP server. See docs/mcp.md.

    Attributes:
        name: Its name, or its address if it has no name.
        state: `"ready"`, or the reason why it is not.
        reason: If it is down, the reason, with the end of its standard error.
        retry_in: If it is down, the seconds until a call may start it again.
        protocol: The revision spoken with it, such as `"2026-07-28"`.
        server: The server's name and version, in its own words.
        tools: The number of its tools.
        instructions: The server's text about its tools as a whole, for a model: without hidden characters, at most
            8,000 characters. The server's author wrote it, so it is untrusted.
    """

    name: str
    state: State
    reason: str = ""
    retry_in: float = 0.0
    protocol: str = ""
    server: str = ""
    tools: int = 0
    instructions: str = field(default="", repr=False)

    def __str__(self) -> str:
        identity = ", ".join(filter(None, (self.server, self.protocol)))
        about = f": {self.reason}" if self.reason else f" ({identity})" if identity else ""
        return f"{self.name} is {self.state}{about}"


@dataclass(frozen=True)
class LeftOut:
    """A tool of an MCP server that is not offered. See docs/mcp.md.

    Attributes:
        server: The server's name.
        tool: The tool's own name, with escapes for non-ASCII characters; `None` for the whole list.
        reason: The problem with it.
    """

    server: str
    tool: str | None
    reason: str

    def __str__(self) -> str:
        what = "a part of the list" if self.tool is None else f"the tool '{self.tool}'"
        return f"{self.server}: {what} is left out: {self.reason}"
