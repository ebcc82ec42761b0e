"""From the definitions of an MCP server to tools, each checked by itself: invalid ones are left out and reported."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any, NamedTuple

import mcp_types as types

from ferrule import DefinitionError, Tool
from ferrule.arguments.schema_parameters import copy_schema
from ferrule.mcp._calls import RemoteTool
from ferrule.mcp._connection import MOST_LIST, Connection, Listing
from ferrule.mcp._settings import Server
from ferrule.mcp._status import LeftOut
from ferrule.mcp.icons import keep_icons
from ferrule.security.characters import disarm, remove_hidden
from ferrule.security.foreign_text import clean_schema, measure_size
from ferrule.security.patterns import ForeignSchema, Patterns
from ferrule.security.similar_names import lookalike_key
from ferrule.values.content import truncate_text

_MOST_SCHEMA = 200_000
_MOST_DESCRIPTION = 8_000
_MOST_DEFINITION = 500_000
"""Most characters of all texts in one definition."""
_NAME = "[A-Za-z0-9_./-]{1,128}"
"""The form of a name that MCP recommends: https://modelcontextprotocol.io/specification/2025-11-25/server/tools"""
_MOST_NAME = 140


class OfferedTool(NamedTuple):
    """A tool on offer, its definition, and the patterns in that."""

    raw: dict[str, Any]
    tool: Tool
    patterns: tuple[str, ...]


class Built(NamedTuple):
    """The tools made of a list.

    Attributes:
        patterns: The patterns of all its schemas.
        offered: The tools on offer, by their names.
        left_out: The names of the other tools, each with the reason.
        warnings: Other texts for the log.
    """

    patterns: Patterns
    offered: dict[str, OfferedTool]
    left_out: list[tuple[str | None, str]]
    warnings: list[str]


class Tools:
    """The tools of one server's last list. An unchanged definition keeps its tool.

    Args:
        trusted: Whether to believe the server's hints about them.
        longest: Characters at which a tool's description is cut.
    """

    def __init__(self, connection: Connection, trusted: bool, longest: int) -> None:
        self._longest = longest
        self._connection = connection
        self._trusted = trusted
        self._built = Built(Patterns(), {}, [], [])
        self._taking = asyncio.Lock()
        self.tools: tuple[Tool, ...] = ()
        self.left_out: tuple[LeftOut, ...] = ()

    async def take(self, listing: Listing, is_late: Callable[[], bool]) -> bool:
        """Take over a server's list, as far as there is time. Return whether anything changed. The tools are made in a
        thread, without a change to shared state."""
        async with self._taking:
            self._built = built = await asyncio.to_thread(self._build, listing, is_late)
        before_tools, before_out = self.tools, self.left_out
        self.tools = tuple(one.tool for one in built.offered.values())
        self.left_out = tuple(self._make_left_out(name, reason) for name, reason in built.left_out)
        news = [str(one) for one in self.left_out if one not in before_out]
        for text in (*news, *built.warnings):
            self._connection.log.write(logging.WARNING, text)
        return self.tools != before_tools or self.left_out != before_out

    def _build(self, listing: Listing, is_late: Callable[[], bool]) -> Built:
        built = Built(Patterns(self._built.patterns, is_late), {}, [*listing.left_out], [])
        room = MOST_LIST
        for definition in listing.tools:
            try:
                if is_late():
                    raise DefinitionError("there was no time left to read it")
                size = measure_size(definition, _MOST_DEFINITION)
                if size > _MOST_DEFINITION:
                    raise DefinitionError(f"its definition has over {_MOST_DEFINITION:,} characters")
                if size > room:
                    raise DefinitionError(f"the list would have over {MOST_LIST:,} characters")
                room -= size
                self._add(definition, built)
            except (DefinitionError, ValueError) as error:
                built.left_out.append((definition.name, str(error)))
        return built

    def _add(self, definition: types.Tool, built: Built) -> None:
        """Add one tool. An unchanged definition keeps its tool.

        Raises:
            DefinitionError, ValueError: The definition is invalid.
        """
        name = definition.name
        _check_schemas(definition)
        raw = definition.model_dump(by_alias=True, exclude_none=True, mode="json")
        if name in built.offered:
            raise DefinitionError("the server lists another tool with this name")
        before = self._built.offered.get(name)
        if before is None or before.raw != raw:
            built.offered[name] = OfferedTool(raw, *self._make_tool(definition, built))
            return
        built.offered[name] = before
        for text in before.patterns:
            built.patterns.compile(text)

    def _make_left_out(self, name: str | None, reason: str) -> LeftOut:
        """Return a tool as left out. The name could mislead, so it is shown escaped."""
        connection = self._connection
        shown = None if name is None else connection.log.clean(ascii(name)[1:-1])[:_MOST_NAME]
        return LeftOut(connection.server.label, shown, connection.log.clean(reason))

    def _make_tool(self, definition: types.Tool, built: Built) -> tuple[Tool, tuple[str, ...]]:
        """Return one tool, and the patterns in its schemas.

        Raises:
            DefinitionError, ValueError: The definition is invalid.
        """
        if not re.fullmatch(_NAME, definition.name):
            raise DefinitionError("its name must be 1 to 128 ASCII letters, digits, '_', '.', '/' and '-'")
        if definition.execution is not None and definition.execution.task_support == "required":
            raise DefinitionError("it runs only as a task (execution.taskSupport), which Ferrule does not support")
        prefix = self._connection.server.name
        name = definition.name if prefix is None else f"{prefix}__{definition.name}"
        description, removed = remove_hidden(definition.description or "")
        description = disarm(description)
        removed += max(len(description) - self._longest, 0)
        shown, more = clean_schema(definition.input_schema, _MOST_DESCRIPTION)
        input_schema, output_schema = ForeignSchema(shown, built.patterns), None
        if definition.output_schema is not None:
            shown, _ = clean_schema(definition.output_schema, _MOST_DESCRIPTION)
            output_schema = ForeignSchema(shown, built.patterns)
        schemas = (input_schema,) if output_schema is None else (input_schema, output_schema)
        hints = definition.annotations or types.ToolAnnotations()
        title = definition.title or hints.title
        about: dict[str, Any] = {
            "server": self._connection.server.label,
            "name": definition.name,
            "annotations": hints.model_dump(by_alias=True, exclude_none=True),
            "_meta": dict(definition.meta or {}),
            "not_enforced": [one for schema in schemas for one in schema.not_enforced],
        }
        if removed + more:
            about["removed"] = removed + more
            what = f"{removed + more} characters of its texts are removed: hidden, or too many"
            built.warnings.append(f"{name}: {what}")
        metadata: dict[str, Any] = {"mcp": {key: value for key, value in about.items() if value}}
        if title is not None:
            metadata["title"] = disarm(remove_hidden(title)[0])
        if self._trusted and definition.icons:
            metadata["icons"] = keep_icons(one.model_dump(by_alias=True, exclude_none=True) for one in definition.icons)
        remote = RemoteTool(self._connection, definition.name, trusted=self._trusted)
        tool: Tool = Tool(
            name,
            remote.call,
            description=truncate_text(description, self._longest, "head"),
            input_schema=input_schema,
            output_schema=output_schema,
            tags=() if prefix is None else (prefix,),
            metadata=metadata,
            **self._traits(hints),
        ).with_server(make_server_id(self._connection.server, definition.name))
        remote.check = None if output_schema is None else tool.output.describe_misfit
        return tool, tuple(text for schema in schemas for text in schema.patterns)

    def _traits(self, hints: types.ToolAnnotations) -> Any:
        """Return the tool's effects on the world: the server's hints, with MCP's defaults, if the server is trusted.
        Otherwise return the most cautious values."""
        if not self._trusted:
            return {"read_only": False, "destructive": True, "idempotent": False, "open_world": True}
        read_only = hints.read_only_hint is True
        return {
            "read_only": read_only,
            "destructive": not read_only and hints.destructive_hint is not False,
            "idempotent": read_only or hints.idempotent_hint is True,
            "open_world": hints.open_world_hint is not False,
        }


def make_server_id(server: Server, name: str) -> str:
    """Return one text for a server and the name of its tool, different if anything differs. It shows none of them: an
    address may hold a token."""
    return sha256(json.dumps((*server.identity, name)).encode()).hexdigest()


def _check_schemas(definition: types.Tool) -> None:
    """Refuse schemas that would take long to read.

    Raises:
        DefinitionError: A schema is over a bound; the text names both.
    """
    for what, schema in (("inputSchema", definition.input_schema), ("outputSchema", definition.output_schema)):
        copy_schema(schema or {}, f"its {what}")
        if (size := len(json.dumps(schema))) > _MOST_SCHEMA:
            raise DefinitionError(f"its {what} has {size:,} characters of JSON; at most {_MOST_SCHEMA:,} are allowed")


def remove_duplicates(servers: Iterable[Tools]) -> tuple[list[Tool], list[LeftOut]]:
    """Return the tools of all servers, and those left out because they look the same as another tool of a toolset."""
    tools: list[Tool] = []
    left_out: list[LeftOut] = []
    taken: dict[str, Tool] = {}
    for server in servers:
        left_out += server.left_out
        for tool in server.tools:
            seen = {lookalike_key(tool.name), lookalike_key(tool.wire_name)}
            other = next((taken[name] for name in seen if name in taken), None)
            if other is None:
                taken.update(dict.fromkeys(seen, tool))
                tools.append(tool)
                continue
            about = tool.metadata["mcp"]
            left_out.append(LeftOut(about["server"], about["name"], f"it looks the same as the tool {other.name!r}"))
    return tools, left_out
