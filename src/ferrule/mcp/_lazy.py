"""Tools as a lock file has accepted them: of a server that is not started yet, and of one whose list changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import mcp_types as types

from ferrule import Tool, Toolset
from ferrule.mcp._connection import Listing
from ferrule.mcp._settings import Server
from ferrule.mcp._tools import Tools, make_server_id
from ferrule.policy.lock import RECORDED_TOOLSETS, Definition, find_differences, format_server_source, make_definition

_HINTS = {"read_only": "readOnlyHint", "destructive": "destructiveHint"}
_HINTS |= {"idempotent": "idempotentHint", "open_world": "openWorldHint"}


async def recall_listing(server: Server, tools: Tools, definitions: Mapping[str, Definition]) -> Listing | None:
    """Return a server's list as far as a lock file has it, or None if the server has to be started.

    Args:
        server: The server.
        tools: Makes tools of its definitions, for a comparison with the lock file.
        definitions: The accepted definitions, by the names of their tools.
    """
    if RECORDED_TOOLSETS.get() is not None:  # the file is being written
        return None
    prefix = "" if server.name is None else f"{server.name}__"
    names = {name: name.removeprefix(prefix) for name in definitions if name.startswith(prefix)}
    own = {name: raw for name, raw in names.items() if _is_from_server(server, raw, definitions[name])}
    listing = Listing([_to_wire_tool(raw, definitions[name]) for name, raw in own.items()], [])
    await tools.take(listing, lambda: False)
    is_same = {tool.name for tool in tools.tools} == own.keys() and not find_differences(tools.tools, definitions)
    return listing if own and is_same else None


def _is_from_server(server: Server, name: str, definition: Definition) -> bool:
    return bool(definition.get("source") == format_server_source(make_server_id(server, name)))


def _to_wire_tool(name: str, definition: Definition) -> types.Tool:
    hints: dict[str, Any] = {_HINTS[trait]: value for trait, value in definition["traits"].items() if trait in _HINTS}
    about = {key: definition[key] for key in ("description", "title") if key in definition}
    schemas = {
        "inputSchema": _to_listed_schema(definition["input_schema"]),
        "outputSchema": definition.get("output_schema"),
    }
    return types.Tool.model_validate({"name": name, **about, **schemas, "annotations": hints})


def _to_listed_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an input schema as the server listed it: Ferrule adds empty properties, and closes listed ones."""
    is_closed = bool({"additionalProperties", "patternProperties", "unevaluatedProperties"} & schema.keys())
    return schema if schema.get("properties") or is_closed else {k: v for k, v in schema.items() if k != "properties"}


def find_withdrawn(seen: Collection[str], tools: Iterable[Tool], toolset: Toolset) -> frozenset[str]:
    """Return the server's names of the tools that it no longer lists as they were accepted.

    Args:
        seen: The server's names of all tools that were ever listed, or made of the lock file.
        tools: The tools of the server's present list.
        toolset: The tools on offer, where the lock file has put changed ones aside.
    """
    accepted = set()
    for tool in tools:
        offered = toolset.find(tool.name)
        if offered is not None and offered.quarantine is None:
            if offered is tool or make_definition(offered)["digest"] == make_definition(tool)["digest"]:
                accepted.add(tool.metadata["mcp"]["name"])
    return frozenset(seen) - accepted
