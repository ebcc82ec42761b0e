"""The tools of a runner as a client sees them: in their order, in pages, with a cursor that belongs to this list."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection
from typing import Any

import mcp_types as wire
from mcp.shared.exceptions import MCPError

from ferrule import Runner, Tool
from ferrule.mcp.content import has_sendable_schema, make_annotations, wire_name
from ferrule.mcp.icons import make_icons
from ferrule.values.frozen import thaw

PAGE = 100


class Listing:
    """The tools of one runner, prepared once for each era.

    Args:
        runner: The runner to serve.
        seconds: How long a client may keep the list.
        public: Whether a cache may show it to other clients.
        structured: Whether clients get output schemas and structured content.

    Attributes:
        digest: A hash of the list.
    """

    def __init__(self, runner: Runner, *, seconds: float, public: bool, structured: bool) -> None:
        self._tools = tools = runner.tools
        self._icons = {tool.name: _find_icons(tool) for tool in tools if "icons" in tool.metadata}
        with_schema = [tool for tool in tools if structured and has_sendable_schema(tool, runner.around)]
        schemas = {t.name: t.output_schema for t in with_schema}
        schemas_listed = {name: schema for name, schema in schemas.items() if schema is not None}
        # A client of 2026 gets a task, and its result has another form than the ticket.
        background = {tool.name for tool in with_schema if tool.background}
        self._structured = frozenset(schemas_listed) - background
        self._structured_tasks = frozenset(background)
        objects = {name for name, schema in schemas_listed.items() if schema.get("type") == "object"}
        self._structured_legacy = frozenset(objects)
        self._unlisted_types = ((dict, list), (dict,)) if structured else ((), ())
        self._ttl = int(seconds * 1000)
        self._scope: Any = "public" if public else "private"
        self._modern = [self._to_wire_tool(tool, modern=True) for tool in tools]
        self._legacy = [self._to_wire_tool(tool, modern=False) for tool in tools]
        text = json.dumps([tool.model_dump(mode="json", by_alias=True) for tool in self._modern], sort_keys=True)
        self.digest = hashlib.sha256(text.encode()).hexdigest()[:16]

    def page(self, cursor: str | None, hidden: Collection[str], *, modern: bool) -> wire.ListToolsResult:
        """Return the page that begins at `cursor`, the first if it is `None`.

        Args:
            hidden: The names of tools that this client does not see.

        Raises:
            MCPError: This list did not give the cursor.
        """
        tools, digest = self._modern if modern else self._legacy, self.digest
        if hidden:
            tools = [shown for tool, shown in zip(self._tools, tools, strict=True) if tool.name not in hidden]
            digest = hashlib.sha256(f"{digest} {[tool.name for tool in tools]}".encode()).hexdigest()[:16]
        start = 0 if cursor is None else _find_place(cursor, digest, len(tools))
        end = start + PAGE
        following = _make_cursor(digest, end) if end < len(tools) else None
        return wire.ListToolsResult(
            tools=tools[start:end], next_cursor=following, ttl_ms=self._ttl, cache_scope=self._scope
        )

    def is_structured(self, tool: Tool, *, modern: bool) -> bool:
        """Return whether a client of that era was sent the output schema of this tool. The result is never null, and
        before 2026 an object."""
        return tool.name in (self._structured if modern else self._structured_legacy)

    def is_structured_task(self, tool: Tool) -> bool:
        """Return whether the result of a task of this tool has structured content."""
        return tool.name in self._structured_tasks

    def unlisted_types(self, *, modern: bool) -> tuple[type, ...]:
        """Return the classes of outputs sent as structured content if the tool's output schema was not listed. Before
        2026 structured content is an object."""
        return self._unlisted_types[0 if modern else 1]

    def _to_wire_tool(self, tool: Tool, *, modern: bool) -> wire.Tool:
        return wire.Tool(
            name=wire_name(tool),
            title=tool.title,
            description=tool.description or None,
            input_schema=thaw(tool.input_schema),
            output_schema=thaw(tool.output_schema) if self.is_structured(tool, modern=modern) else None,
            annotations=make_annotations(tool),
            icons=self._icons.get(tool.name),
        )


def _find_icons(tool: Tool) -> list[wire.Icon] | None:
    icons = make_icons(tool.metadata["icons"], f"the tool {tool.name!r}")
    return None if icons is None else [wire.Icon.model_validate(one) for one in icons]


def _make_cursor(digest: str, place: int) -> str:
    return base64.urlsafe_b64encode(f"{digest}:{place}".encode()).decode()


def _find_place(cursor: str, digest: str, length: int) -> int:
    for place in range(PAGE, length, PAGE):
        if cursor == _make_cursor(digest, place):
            return place
    raise MCPError(wire.INVALID_PARAMS, "Unknown cursor: the list has changed; start again without a cursor")
