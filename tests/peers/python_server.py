"""A server as the SDK's own way of writing servers makes one, which wraps what is no object: `{"result": …}`."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer

server = MCPServer("python")


@server.tool()
def greet(name: str) -> str:
    return f"hello {name}"


@server.tool()
def names(count: int) -> list[str]:
    return [f"name {number}" for number in range(count)]


server.run("stdio")
