"""Where tools come from that nobody wrote here: `mcp` connects to MCP servers.

Each module is imported by its own name, and what it needs beyond Ferrule when it is used. A source gives a `Toolset`:

    async with mcp.connect(["python", "my_server.py"]) as toolset:
        runner = Runner(toolset)
"""
