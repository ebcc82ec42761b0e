"""From the definitions of an MCP server to tools, each judged by itself: what is wrong is left out and told."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable
from typing import Any

import mcp_types as types

from ferrule import DefinitionError, Tool
from ferrule.arguments.names import as_seen
from ferrule.arguments.schema_parameters import plain_schema
from ferrule.sources._mcp_calls import RemoteTool
from ferrule.sources._mcp_connection import Connection, Listing
from ferrule.sources._mcp_status import LeftOut
from ferrule.sources._mcp_text import visible, visible_schema

_MOST_SCHEMA = 200_000
_MOST_DESCRIPTION = 8_000
_NAME = "[A-Za-z0-9_./-]{1,128}"
"""What MCP says that a name should be: https://modelcontextprotocol.io/specification/2025-11-25/server/tools"""
_MOST_NAME = 140


class Tools:
    """The tools of one server, as they were listed last. A definition that is as it was keeps its tool."""

    def __init__(self, connection: Connection, trusted: bool) -> None:
        self._connection = connection
        self._trusted = trusted
        self._known: dict[str, tuple[dict[str, Any], Tool]] = {}
        self.tools: tuple[Tool, ...] = ()
        self.left_out: tuple[LeftOut, ...] = ()

    def take(self, listing: Listing) -> bool:
        """Take over what the server listed; whether anything is different."""
        left_out = [self._refused(name, reason) for name, reason in listing.left_out]
        known: dict[str, tuple[dict[str, Any], Tool]] = {}
        for definition in listing.tools:
            name = definition.name
            try:
                _check_schemas(definition)
                raw = definition.model_dump(by_alias=True, exclude_none=True, mode="json")
                if name in known:
                    raise DefinitionError("the server lists another tool of this name, which was taken")
                before = self._known.get(name)
                made = before[1] if before is not None and before[0] == raw else self._made(definition)
                known[name] = (raw, made)
            except (DefinitionError, ValueError) as error:
                left_out.append(self._refused(name, str(error)))
        before_tools, before_out = self.tools, self.left_out
        self._known = known
        self.tools, self.left_out = tuple(made for _, made in known.values()), tuple(left_out)
        for one in self.left_out:
            if one not in before_out:
                self._connection.log.tell(logging.WARNING, str(one))
        return self.tools != before_tools or self.left_out != before_out

    def _refused(self, name: str | None, reason: str) -> LeftOut:
        """The name is one that could mislead, so that it is shown escaped."""
        connection = self._connection
        shown = None if name is None else connection.log.told(ascii(name)[1:-1])[:_MOST_NAME]
        return LeftOut(connection.server.label, shown, connection.log.told(reason))

    def _made(self, definition: types.Tool) -> Tool:
        """One tool.

        Raises:
            DefinitionError, ValueError: for what is wrong with its definition.
        """
        if not re.fullmatch(_NAME, definition.name):
            raise DefinitionError(
                "its name is not 1 to 128 ASCII letters, digits, '_', '.', '/' and '-', which look like no others"
            )
        if definition.execution is not None and definition.execution.task_support == "required":
            raise DefinitionError("it runs as a task alone (execution.taskSupport), and its calls are answered at once")
        prefix = self._connection.server.name
        name = definition.name if prefix is None else f"{prefix}__{definition.name}"
        description, removed = visible(definition.description or "")
        removed += max(len(description) - _MOST_DESCRIPTION, 0)
        input_schema, more = visible_schema(definition.input_schema, _MOST_DESCRIPTION)
        output_schema = None
        if definition.output_schema is not None:
            output_schema, _ = visible_schema(definition.output_schema, _MOST_DESCRIPTION)
        hints = definition.annotations or types.ToolAnnotations()
        title = definition.title or hints.title
        about: dict[str, Any] = {
            "server": self._connection.server.label,
            "name": definition.name,
            "annotations": hints.model_dump(by_alias=True, exclude_none=True),
            "_meta": dict(definition.meta or {}),
        }
        if removed + more:
            about["removed"] = removed + more
            what = f"{removed + more} hidden or too many characters of its texts are left out"
            self._connection.log.tell(logging.WARNING, f"{name}: {what}")
        remote = RemoteTool(self._connection, definition.name)
        made: Tool = Tool(
            name,
            remote.call,
            description=description[:_MOST_DESCRIPTION],
            title=None if title is None else visible(title)[0],
            input_schema=input_schema,
            output_schema=output_schema,
            tags=() if prefix is None else (prefix,),
            metadata={"mcp": {key: value for key, value in about.items() if value}},
            **self._traits(hints),
        )
        remote.check = None if output_schema is None else made.output.misfit
        return made

    def _traits(self, hints: types.ToolAnnotations) -> Any:
        """What the tool does to the world: what the server says where it is trusted, with MCP's defaults."""
        if not self._trusted:
            return {"read_only": False, "destructive": True, "idempotent": False, "open_world": True}
        read_only = hints.read_only_hint is True
        return {
            "read_only": read_only,
            "destructive": not read_only and hints.destructive_hint is not False,
            "idempotent": read_only or hints.idempotent_hint is True,
            "open_world": hints.open_world_hint is not False,
        }


def _check_schemas(definition: types.Tool) -> None:
    """Refuse what would take long to read.

    Raises:
        DefinitionError: naming the schema and the bound.
    """
    for what, schema in (("inputSchema", definition.input_schema), ("outputSchema", definition.output_schema)):
        plain_schema(schema or {}, f"its {what}")
        if (size := len(json.dumps(schema))) > _MOST_SCHEMA:
            raise DefinitionError(f"its {what} has {size:,} characters of JSON; at most {_MOST_SCHEMA:,} are taken")


def without_doubles(servers: Iterable[Tools]) -> tuple[list[Tool], list[LeftOut]]:
    """The tools of all servers, and those that a toolset cannot hold beside another, because they look the same."""
    tools: list[Tool] = []
    left_out: list[LeftOut] = []
    taken: dict[str, Tool] = {}
    for server in servers:
        left_out += server.left_out
        for tool in server.tools:
            seen = {as_seen(tool.name), as_seen(tool.wire_name)}
            other = next((taken[name] for name in seen if name in taken), None)
            if other is None:
                taken.update(dict.fromkeys(seen, tool))
                tools.append(tool)
                continue
            about = tool.metadata["mcp"]
            left_out.append(LeftOut(about["server"], about["name"], f"it looks the same as the tool {other.name!r}"))
    return tools, left_out
