"""What a user is told of an MCP server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

State: TypeAlias = Literal["idle", "starting", "ready", "down", "closed"]


@dataclass(frozen=True)
class ServerStatus:
    """How an MCP server is. See docs/mcp.md.

    Attributes:
        name: Its name, or what it is where it has none.
        state: `"ready"`, or what stands in the way.
        reason: Of one that is down, why, with the end of what it wrote to its standard error.
        retry_in: Of one that is down, the seconds until a call may start it again.
        protocol: The revision that is spoken with it, such as `"2026-07-28"`.
        server: The name and version that it gives itself.
        tools: How many of its tools there are.
        instructions: What it says of its tools as a whole, for a model: without what nobody sees, at most 8,000
            characters. It is the text of whoever wrote the server.
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
        known = ", ".join(filter(None, (self.server, self.protocol)))
        about = f": {self.reason}" if self.reason else f" ({known})" if known else ""
        return f"{self.name} is {self.state}{about}"


@dataclass(frozen=True)
class LeftOut:
    """A tool of an MCP server that is not offered. See docs/mcp.md.

    Attributes:
        server: The server's name.
        tool: The tool's own name, with escapes for what is not ASCII; `None` where it is about the whole list.
        reason: What is wrong with it.
    """

    server: str
    tool: str | None
    reason: str

    def __str__(self) -> str:
        what = "a part of the list" if self.tool is None else f"the tool '{self.tool}'"
        return f"{self.server}: {what} is left out: {self.reason}"
