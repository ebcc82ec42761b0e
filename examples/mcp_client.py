"""Lists the tools of an MCP server, and calls each once with arguments made from its schema.

    python examples/mcp_client.py http://127.0.0.1:8000/mcp

It prints each call and its result:

    read_note {'name': 'example'}
      failed: there is no note 'example'; list_notes shows the names

MCP_CONFORMANCE_CONTEXT may name other calls, as JSON: {"toolCalls": [{"name": …, "arguments": …}]}.

What to change first: `make_arguments`, which stands in for a model, and `answer`, which stands in for a person.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from ferrule import Decision, Event, Runner, Tool, ToolCall, ToolContext, Toolset, allow, mcp
from ferrule.approval import printable

EXAMPLES: dict[str, Any] = {
    "string": "example",
    "integer": 3,
    "number": 2.5,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}


def make_value(schema: Mapping[str, Any]) -> Any:
    """Return a value that fits a simple schema."""
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return make_value(schema[key][0])
    kind = schema.get("type", "string")
    kind = kind[0] if isinstance(kind, list | tuple) else kind
    if kind == "object":
        required = schema.get("required", ())
        return {name: make_value(node) for name, node in schema.get("properties", {}).items() if name in required}
    if kind in ("integer", "number") and "minimum" in schema:
        return schema["minimum"]
    return EXAMPLES.get(kind)


def make_arguments(tool: Tool, toolset: Toolset) -> dict[str, Any]:
    """Return values for all parameters. A parameter named `schema` gets the schema of the first tool."""
    arguments = {name: make_value(node) for name, node in tool.input_schema.get("properties", {}).items()}
    if "schema" in arguments:
        arguments["schema"] = copy.deepcopy(next(iter(toolset)).input_schema)
    return arguments


def say(text: str) -> None:
    """Print text of models, tools and servers without characters that affect a terminal."""
    print(printable(text), flush=True)


def answer(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
    """Answer yes, and fill in a form with its defaults."""
    say(f"  asked: {decision.reason}")
    if decision.schema is None:
        return allow()
    required = decision.schema.get("required", ())
    properties = decision.schema.get("properties", {})
    return allow({name: make_value(node) for name, node in properties.items() if "default" in node or name in required})


def show(event: Event) -> None:
    if event.kind == "tool:progress":
        say(f"  {event.data['done']} of {event.data['total']} {event.data['message']}")


def list_calls(toolset: Toolset) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls that the environment names, or one call of each tool."""
    calls = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}")).get("toolCalls")
    if calls is not None:
        return [(call["name"], call["arguments"]) for call in calls]
    return [(tool.name, make_arguments(tool, toolset)) for tool in toolset]


async def main(server: str) -> int:
    servers = mcp.connect(server)
    async with servers as toolset:
        for status in servers.status.values():
            say(str(status))
        for left_out in servers.left_out:
            say(str(left_out))
        runner = Runner(toolset, approve=answer, observers=[show], timeout=30)
        for name, arguments in list_calls(toolset):
            say(f"{name} {arguments}")
            result = await runner.run(name, arguments)
            say(f"  {result.status}: {result.text[:500]}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python mcp_client.py URL_OR_MCP_JSON")
    try:
        sys.exit(asyncio.run(main(sys.argv[1])))
    except mcp.ServersDownError as error:
        sys.exit(f"mcp_client: {error}")
