"""The tools of a runner as a client sees them: in their order, in pages, with a cursor that belongs to this list."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import mcp_types as wire
from mcp.shared.exceptions import MCPError

from ferrule import Runner, Tool
from ferrule.mcp.content import annotations_of, tells_form, wire_name
from ferrule.values.frozen import thaw

PAGE = 100


class Listing:
    """The tools of one runner, written once for each era.

    Args:
        runner: What is served.
        seconds: How long a client may keep the list.
        public: Whether a cache may show it to others than the one who asked.
        structured: Whether output schemas are told, and structured content given.

    Attributes:
        digest: Another one for each other list.
    """

    def __init__(self, runner: Runner, *, seconds: float, public: bool, structured: bool) -> None:
        self._tools = tools = runner.tools
        kept = [tool for tool in tools if structured and tells_form(tool, runner.around)]
        schemas = {t.name: t.output_schema for t in kept}
        told = {name: schema for name, schema in schemas.items() if schema is not None}
        self._structured = frozenset(told)
        self._structured_legacy = frozenset(name for name, schema in told.items() if schema.get("type") == "object")
        self._untold = ((dict, list), (dict,)) if structured else ((), ())
        self._ttl = int(seconds * 1000)
        self._scope: Any = "public" if public else "private"
        self._modern = [self._written(tool, modern=True) for tool in tools]
        self._legacy = [self._written(tool, modern=False) for tool in tools]
        text = json.dumps([tool.model_dump(mode="json", by_alias=True) for tool in self._modern], sort_keys=True)
        self.digest = hashlib.sha256(text.encode()).hexdigest()[:16]

    def page(self, cursor: str | None, *, modern: bool) -> wire.ListToolsResult:
        """The page that begins at `cursor`, the first where it is `None`.

        Raises:
            MCPError: for a cursor that this list did not give.
        """
        start = 0 if cursor is None else self._place(cursor)
        tools = self._modern if modern else self._legacy
        end = start + PAGE
        following = self._cursor(end) if end < len(tools) else None
        return wire.ListToolsResult(
            tools=tools[start:end], next_cursor=following, ttl_ms=self._ttl, cache_scope=self._scope
        )

    def is_structured(self, tool: Tool, *, modern: bool) -> bool:
        """Whether a client of that era was told what this tool's result looks like; it is never null, and before 2026
        an object."""
        return tool.name in (self._structured if modern else self._structured_legacy)

    def untold(self, *, modern: bool) -> tuple[type, ...]:
        """The classes of outputs that are structured content of a tool of which no output schema was told; it is an
        object before 2026."""
        return self._untold[0 if modern else 1]

    def schema_of(self, name: str) -> dict[str, Any] | None:
        """The input schema of a tool, for the headers that mirror arguments."""
        tool = self._tools.find(name)
        return None if tool is None else thaw(tool.input_schema)

    def _written(self, tool: Tool, *, modern: bool) -> wire.Tool:
        return wire.Tool(
            name=wire_name(tool),
            title=tool.title,
            description=tool.description or None,
            input_schema=thaw(tool.input_schema),
            output_schema=thaw(tool.output_schema) if self.is_structured(tool, modern=modern) else None,
            annotations=annotations_of(tool),
        )

    def _cursor(self, place: int) -> str:
        return base64.urlsafe_b64encode(f"{self.digest}:{place}".encode()).decode()

    def _place(self, cursor: str) -> int:
        for place in range(PAGE, len(self._modern), PAGE):
            if cursor == self._cursor(place):
                return place
        raise MCPError(wire.INVALID_PARAMS, "Unknown cursor: the list has changed; begin again without one")
