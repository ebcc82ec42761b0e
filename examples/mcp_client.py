"""Lists what an MCP server offers, and calls each tool once with arguments made from its schema.

    python examples/mcp_client.py http://127.0.0.1:8000/mcp

The calls may come from outside, as JSON in MCP_CONFORMANCE_CONTEXT: {"toolCalls": [{"name": …, "arguments": …}]}.

To change first: `arguments_for`, which makes up what a model would say, and `answer`, which stands for a person.
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


def made_up(schema: Mapping[str, Any]) -> Any:
    """A value that fits a simple schema."""
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return made_up(schema[key][0])
    kind = schema.get("type", "string")
    kind = kind[0] if isinstance(kind, list | tuple) else kind
    if kind == "object":
        wanted = schema.get("required", ())
        return {name: made_up(node) for name, node in schema.get("properties", {}).items() if name in wanted}
    if kind in ("integer", "number") and "minimum" in schema:
        return schema["minimum"]
    return EXAMPLES.get(kind)


def arguments_for(tool: Tool, toolset: Toolset) -> dict[str, Any]:
    """All parameters, the optional ones too; for one that wants a schema, that of the first tool."""
    made = {name: made_up(node) for name, node in tool.input_schema.get("properties", {}).items()}
    if "schema" in made:
        made["schema"] = copy.deepcopy(next(iter(toolset)).input_schema)
    return made


def say(text: str) -> None:
    """Print what models, tools and servers say, without what could move a terminal's cursor or hide a question."""
    print(printable(text), flush=True)


def answer(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
    """What a person would say: yes, and in a form what it has for defaults."""
    say(f"  asked: {decision.reason}")
    if decision.schema is None:
        return allow()
    wanted = decision.schema.get("required", ())
    properties = decision.schema.get("properties", {})
    return allow({name: made_up(node) for name, node in properties.items() if "default" in node or name in wanted})


def show(event: Event) -> None:
    if event.kind == "tool:progress":
        say(f"  {event.data['done']} of {event.data['total']} {event.data['message']}")


def calls_for(toolset: Toolset) -> list[tuple[str, dict[str, Any]]]:
    """What is called, with what: what the environment says, or each tool once."""
    said = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}")).get("toolCalls")
    if said is not None:
        return [(call["name"], call["arguments"]) for call in said]
    return [(tool.name, arguments_for(tool, toolset)) for tool in toolset]


async def main(server: str) -> int:
    servers = mcp.connect(server)
    async with servers as toolset:
        for status in servers.status.values():
            say(str(status))
        for left_out in servers.left_out:
            say(str(left_out))
        runner = Runner(toolset, approve=answer, observers=[show], timeout=30)
        for name, arguments in calls_for(toolset):
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
