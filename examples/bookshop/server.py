"""The bookshop's API for any client of MCP: reading is free, an order is asked about, and no order is a large one.

    BOOKSHOP_KEY=secret python examples/bookshop/api.py 8001 &
    export BOOKSHOP_KEY=secret BOOKSHOP=http://127.0.0.1:8001
    ferrule serve examples/bookshop/server.py               # over standard input and output
    ferrule serve examples/bookshop/server.py --http 8000   # at http://127.0.0.1:8000/mcp

The tools are the operations of `api.yaml`. Arguments are validated, judged and approved here before anything is sent;
the key is no argument, and goes to the address in BOOKSHOP alone.

To change first: the document, `only`, and the guard.
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
    """Nobody is asked about what is out of the question."""
    if call.name == "orderBook" and call.arguments["copies"] > MOST_COPIES:
        return deny(f"at most {MOST_COPIES} copies of a book")
    return None


runner = Runner(
    tools,
    guards=[no_large_orders, ask_before_changes],
    secrets={"bookshop_key": os.environ.get("BOOKSHOP_KEY", "")},
    timeout=20,
)
