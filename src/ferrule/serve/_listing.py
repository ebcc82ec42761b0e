"""The tools of a runner as a client sees them: in their order, in pages, with a cursor that belongs to this list."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

import mcp_types as wire
from mcp.shared.exceptions import MCPError

from ferrule import Runner, Tool
from ferrule.middleware.untrusted import untrusted
from ferrule.values.frozen import thaw

PAGE = 100
_MCP_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_HINTS = {"read_only": "readOnlyHint", "destructive": "destructiveHint", "idempotent": "idempotentHint"}
_HINTS |= {"open_world": "openWorldHint"}


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
        # A result says no null beside its content, and has no other form in an envelope: clients refuse one that has
        # none where a schema was told.
        kept = [t for t in tools if structured and _never_null(t) and not _is_enveloped(t, runner)]
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
        values = {hint: getattr(tool, name) for name, hint in _HINTS.items()}
        hints = {hint: value for hint, value in values.items() if isinstance(value, bool)}
        return wire.Tool(
            name=wire_name(tool),
            title=tool.title,
            description=tool.description or None,
            input_schema=thaw(tool.input_schema),
            output_schema=thaw(tool.output_schema) if self.is_structured(tool, modern=modern) else None,
            annotations=wire.ToolAnnotations.model_validate({**hints, "title": tool.title}),
        )

    def _cursor(self, place: int) -> str:
        return base64.urlsafe_b64encode(f"{self.digest}:{place}".encode()).decode()

    def _place(self, cursor: str) -> int:
        for place in range(PAGE, len(self._modern), PAGE):
            if cursor == self._cursor(place):
                return place
        raise MCPError(wire.INVALID_PARAMS, "Unknown cursor: the list has changed; begin again without one")


def wire_name(tool: Tool) -> str:
    """The tool's own name where MCP takes it, else the one that every provider takes; a toolset finds it by both."""
    return tool.name if _MCP_NAME.fullmatch(tool.name) else tool.wire_name


def _is_enveloped(tool: Tool, runner: Runner) -> bool:
    mounts = (mount.settings.around for mount in tool.mounts)
    return any(untrusted in around for around in (runner.around, tool.around, *mounts))


def _never_null(tool: Tool) -> bool:
    """Whether null does not fit its output schema."""
    try:
        return bool(tool.output.misfit(None, None))
    except Exception:  # of a validator of the tool's own, which cannot take null
        return True
