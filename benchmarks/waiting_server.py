"""An MCP server of the standard library alone. It waits for a second before it answers, as `npx` does on its start."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

TOOL = {"name": "echo", "description": "Return the text.", "inputSchema": {"type": "object", "properties": {}}}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request, without its id."""
    if request["method"] == "initialize":
        version = request["params"]["protocolVersion"]
        about = {"name": "waiting", "version": "1"}
        return {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}}
    if request["method"] == "tools/list":
        return {"result": {"tools": [TOOL]}}
    return {"error": {"code": -32601, "message": "Method not found"}}


if __name__ == "__main__":
    time.sleep(1)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer(message)}), flush=True)
