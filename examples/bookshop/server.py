"""Serve the API of a bookshop to MCP clients: reading is allowed, orders are asked about, large orders are denied.

    BOOKSHOP_KEY=secret python examples/bookshop/api.py 8001 &
    export BOOKSHOP_KEY=secret BOOKSHOP=http://127.0.0.1:8001
    ferrule serve examples/bookshop/server.py               # over standard input and output
    ferrule serve examples/bookshop/server.py --http 8000   # at http://127.0.0.1:8000/mcp

The tools are the operations of `api.yaml`. Ferrule validates, judges and approves the arguments before it sends
anything. The key is not an argument, and goes only to the address in BOOKSHOP.

What to change first: the document, `only`, and the guard.
"""

from __future__ import annotations

import os
from pathlib import Path

from ferrule import Decision, Runner, ToolCall, ToolContext, deny
from ferrule.guards import ask_before_changes
from ferrule.sources import openapi

MOST_COPIES = 5

tools = openapi(
    Path(__file__).parent / "api.yaml",
    server=os.environ.get("BOOKSHOP", "http://127.0.0.1:8001"),
    credentials={"key": "bookshop_key"},
    only=["GET", "POST /orders", "DELETE /orders/*"],
)


def no_large_orders(call: ToolCall, context: ToolContext) -> Decision | None:
    """Deny large orders, so that nobody is asked about them."""
    if call.name == "orderBook" and call.arguments["copies"] > MOST_COPIES:
        return deny(f"at most {MOST_COPIES} copies of a book")
    return None


runner = Runner(
    tools,
    guards=[no_large_orders, ask_before_changes],
    secrets={"bookshop_key": os.environ.get("BOOKSHOP_KEY", "")},
    timeout=20,
)
