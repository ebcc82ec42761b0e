"""An MCP server that writes whatever bytes its tool `odd` is given, with `@ID@` for the id of the call.

python raw_server.py [ERROR]: what it answers notifications with, as some servers do. It dies of a question for its
revision.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from typing import Any

TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("odd", "hi", "pid", "hold")]
held = []


def write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def answer(number: Any, result: Any) -> None:
    write(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode() + b"\n")


for line in sys.stdin.buffer:
    message = json.loads(line)
    number, method, params = message.get("id"), message.get("method"), message.get("params", {})
    if method == "server/discover":
        sys.exit("expected initialize")
    elif method == "initialize":
        info = {"name": "raw", "version": "1"}
        answer(number, {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info})
    elif number is None and sys.argv[1:]:
        write(sys.argv[1].encode() + b"\n")
    elif method == "tools/list":
        answer(number, {"tools": TOOLS})
    elif method == "tools/call":
        name = params["name"]
        text = {"type": "text", "text": str(os.getpid()) if name == "pid" else name}
        if name == "hold":
            held.append(number)
        elif name == "odd":
            data = base64.b64decode(params["arguments"]["data"])
            write(data.replace(b"@ID@", str(number).encode()) * params["arguments"].get("times", 1))
        else:
            answer(number, {"content": [text]})
            while held:
                answer(held.pop(), {"content": [text]})
